"""Views: how one tensor looks at the memory of another, as a sequence of ATen view ops that can be taken again.

An output that is a view of an input is not computed by a program: the view is taken again, of the caller's tensor. The
steps are the very ops the function called, so the result has the strides, the history and the limits (a part of ``unbind``
cannot be written to) that it has in eager PyTorch. ``as_strided`` would lose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from ..graphs import target_text, tensors_in
from ..slots import Slot
from ..torch_private import functional_form, in_place_method, made_by_python, view_kind


@frozen
class Step:
    """One view op after its first argument; ``item`` is which of several results. ``tracked``: taken in grad mode."""

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int | None = None
    tracked: bool = True

    def __call__(self, tensor: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.tracked and torch.is_grad_enabled()):
            out = self.op(tensor, *self.args, **dict(self.kwargs))
        return out if self.item is None else out[self.item]  # type: ignore[no-any-return]

    @property
    def method(self) -> str:
        """The tensor method that takes this step in place: ``t_``."""
        return in_place_method(self.op)

    def __str__(self) -> str:
        args = ", ".join(map(str, (*self.args, *(f"{k}={v}" for k, v in self.kwargs))))
        return f"{target_text(self.op).removeprefix('aten.')}({args})" + ("" if self.item is None else f"[{self.item}]")


@frozen
class View:
    """The tensor one gets from ``of`` by ``steps``; with none of them, ``of`` itself."""

    of: Slot
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return ".".join([str(self.of), *map(str, self.steps)])


@frozen(eq=False)
class Geometry:
    """How a tensor lies in its memory: sizes, strides, offset (in elements), and what an element is."""

    shape: tuple[int, ...] = field(converter=tuple)
    stride: tuple[int, ...] = field(converter=tuple)
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(t: Tensor) -> Geometry:
        return Geometry(t.shape, t.stride(), int(t.storage_offset()), t.dtype)

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) + 1 if self.numel else self.offset


def steps_between(base: Geometry, member: Geometry) -> tuple[Step, ...]:
    """The view ops that lead from a base to one that looks at part of its memory: slices of its own dimensions where that
    is possible, ``as_strided`` last (right only of a contiguous base that starts its memory, of which the offset counts)."""
    if (base.shape, base.stride, base.offset) == (member.shape, member.stride, member.offset):
        return (Step(torch.ops.aten.alias.default, ()),)
    if base.is_contiguous and member.is_contiguous:
        flat = Step(torch.ops.aten.view.default, ((-1,),))
        start = member.offset - base.offset
        part = Step(torch.ops.aten.slice.Tensor, (0, start, start + member.numel))
        return (flat, part, Step(torch.ops.aten.view.default, (member.shape,)))
    offset = member.offset - base.offset
    return _slices(base, member) or (Step(torch.ops.aten.as_strided.default, (member.shape, member.stride, offset)),)


def _slices(base: Geometry, member: Geometry) -> tuple[Step, ...]:
    """A slice or select in every dimension of the base, then a permutation; empty where the member is not made so."""
    dims = [d for d, n in enumerate(base.shape) if n > 1]
    dims.sort(key=lambda d: base.stride[d], reverse=True)
    rest, starts = member.offset - base.offset, {}
    for d in dims:
        if base.stride[d] <= 0:
            return ()
        starts[d], rest = divmod(rest, base.stride[d])
    if rest or any(not 0 <= starts[d] < base.shape[d] for d in dims):
        return ()
    comes_from: dict[int, int] = {}
    for i, (size, stride) in enumerate(zip(member.shape, member.stride, strict=True)):
        source = next((d for d in dims if d not in comes_from and stride and stride % base.stride[d] == 0), None)
        if source is None or size < 2 or starts[source] + (size - 1) * (stride // base.stride[source]) >= base.shape[source]:
            return ()
        comes_from[source] = i
    steps: list[Step] = []
    for d in range(len(base.shape)):
        if d in comes_from:
            i = comes_from[d]
            by, first = member.stride[i] // base.stride[d], starts[d]
            steps.append(Step(torch.ops.aten.slice.Tensor, (d, first, first + (member.shape[i] - 1) * by + 1, by)))
    for d in reversed(range(len(base.shape))):
        if d not in comes_from:
            steps.append(Step(torch.ops.aten.select.int, (d, starts.get(d, 0))))
    order = [comes_from[d] for d in sorted(comes_from)]
    if order != sorted(order):
        steps.append(Step(torch.ops.aten.permute.default, (tuple(order.index(i) for i in range(len(order))),)))
    return tuple(steps)


class Lineage:
    """Which tensor each view was taken of, in one run of a function."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Tensor, int, Step]] = {}
        self._restrides: dict[int, list[Step]] = {}
        self._alive: list[Tensor] = []  # an id stays unique only while its object lives

    def note(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Write down one view op."""
        source, tracked = args[0], torch.is_grad_enabled()
        rest, named = _hashable(args[1:]), tuple((k, _hashable(v)) for k, v in kwargs.items())
        self._alive.append(source)
        if view_kind(op) == "restride":
            form = functional_form(op)
            if form is not None:
                self._restrides.setdefault(id(source), []).append(Step(form, rest, named, None, tracked))
            return
        for i, result in enumerate(tensors_in(out)):
            if result is not source:
                step = Step(op, rest, named, i if isinstance(out, (list, tuple)) else None, tracked)
                self._taken[id(result)] = (source, len(self._restrides.get(id(source), ())), step)
                self._alive.append(result)

    def restrides(self, tensor: Tensor) -> tuple[Step, ...]:
        """The changes of how a tensor looks (``t_``), as view ops, in order."""
        return tuple(self._restrides.get(id(tensor), ()))

    def path(self, tensor: Tensor, known: Callable[[Tensor], bool]) -> tuple[Tensor, tuple[Step, ...]]:
        """The tensor it is, in the end, a view of, and the steps from there.

        The search ends at a tensor that is ``known``, and at the result of a custom ``autograd.Function``, which is a view with a
        history of its own.
        """
        steps: list[Step] = list(reversed(self.restrides(tensor)))
        while not known(tensor) and id(tensor) in self._taken and not made_by_python(tensor):
            tensor, before, step = self._taken[id(tensor)]
            steps.append(step)
            steps += reversed(self.restrides(tensor)[:before])
        return tensor, tuple(reversed(steps))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value
