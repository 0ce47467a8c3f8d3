"""Views: how one tensor looks at the memory of another, as a sequence of ATen view ops that can be taken again.

An output that is a view of an input is not computed by a program: the view is taken again, of the caller's tensor. The
steps are the very ops the function called, so the result has the strides, the history and the limits (a part of
``unbind`` cannot be written to) that it has in eager PyTorch. ``as_strided`` would lose them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from attrs import evolve, frozen
from torch import Tensor

from ..graphs import target_text
from ..slots import Slot


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
        return str(self.op.__name__.split(".")[0]) + "_"

    def __str__(self) -> str:
        args = ", ".join(map(str, (*self.args, *(f"{k}={v}" for k, v in self.kwargs))))
        return f"{target_text(self.op).removeprefix('aten.')}({args})" + ("" if self.item is None else f"[{self.item}]")


When = Literal["first", "before", "after", "last"]


@frozen
class View:
    """The tensor one gets from ``of`` by ``steps``; with none of them, ``of`` itself.

    ``when`` it was taken: ``"first"``, before ``of`` came to require grad; ``"before"`` memory it looks at was written
    to, ``"after"`` that, or ``"last"``, of what an input looks like in the end. Autograd forbids to use some views (a
    part of ``unbind``) once their base was written to or restrided: ``stale`` ones. So many of the last steps were
    taken ``late``, of a view taken before, when nothing was written to any more. ``computed``: it has a history of its
    own (a custom Function's, or it was written to after ``detach``), which its value carries; or it is a ``leaf``.
    """

    of: Slot
    steps: tuple[Step, ...] = ()
    when: When = "after"
    stale: bool = False
    computed: bool = False
    late: int = 0
    leaf: bool = False

    def __str__(self) -> str:
        return ".".join([str(self.of), *map(str, self.steps)])


@frozen
class Geometry:
    """How a tensor lies in its memory: sizes, strides, offset (in elements), and what an element is."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(t: Tensor) -> Geometry:
        return Geometry(tuple(t.shape), tuple(t.stride()), int(t.storage_offset()), t.dtype)

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
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """How many elements of memory it takes, from the first one of the storage on."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return self.offset + last + 1 if self.numel else 0


def steps_between(base: Geometry, member: Geometry) -> tuple[Step, ...] | None:
    """The view ops that lead from a base to a tensor that looks at part of its memory, or None where there are none.

    Slices where they do it; windows (``unfold``) of its flat memory where elements overlap, or strides interlock. Never
    ``as_strided``, which goes by how a value lies in memory: what is computed in its place lies otherwise.
    """
    if (base.shape, base.stride, base.offset) == (member.shape, member.stride, member.offset):
        return (ALIAS,)
    if not base.numel:
        return None
    expanded = [i for i, (n, s) in enumerate(zip(member.shape, member.stride, strict=True)) if n > 1 and s == 0]
    if expanded:
        once = tuple(1 if i in expanded else n for i, n in enumerate(member.shape))
        seen_once = steps_between(base, evolve(member, shape=once))
        return None if seen_once is None else (*seen_once, Step(torch.ops.aten.expand.default, (member.shape,)))
    dims = sorted((i for i, n in enumerate(member.shape) if n > 1), key=lambda i: member.stride[i], reverse=True)
    strides = [(member.shape[i], member.stride[i]) for i in dims]
    start = member.offset - base.offset
    flat = [] if len(base.shape) == 1 else [Step(torch.ops.aten.view.default, ((-1,),))]
    steps = (_slices_of_flat(base.numel, start, strides) if base.is_contiguous else None) or None
    steps = _slices(base, start, strides) if steps is None else flat + steps
    steps = _windows(base, start, strides) if steps is None else steps
    if steps is None or member.numel == 0:
        return None
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    if order != list(range(len(dims))):
        steps.append(Step(torch.ops.aten.permute.default, (tuple(order),)))
    ones = [i for i, n in enumerate(member.shape) if n == 1]
    return (*steps, *(Step(torch.ops.aten.unsqueeze.default, (i,)) for i in ones)) or (ALIAS,)


_Strides = Sequence[tuple[int, int]]
"""Sizes and strides of the dimensions longer than one, largest stride first."""


def _slices_of_flat(length: int, start: int, strides: _Strides) -> list[Step] | None:
    """From a flat tensor: rows are cut out and made a dimension of their own, from the largest stride to the
    smallest."""
    steps: list[Step] = []
    rows: tuple[int, ...] = ()
    for k, (size, stride) in enumerate(strides):
        dim = len(rows)
        extent = sum((n - 1) * s for n, s in strides[k + 1 :]) + 1
        if stride <= 0 or start < 0 or start + (size - 1) * stride + extent > length:
            return None
        if k == len(strides) - 1:
            return [*steps, Step(torch.ops.aten.slice.Tensor, (dim, start, start + (size - 1) * stride + 1, stride))]
        first = max(0, min(start, length - size * stride))
        if first + size * stride > length or start - first + extent > stride:
            return None  # rows overlap, or the last one is not all there
        steps.append(Step(torch.ops.aten.slice.Tensor, (dim, first, first + size * stride)))
        rows = (*rows, size)
        steps.append(Step(torch.ops.aten.view.default, ((*rows, stride),)))
        length, start = stride, start - first
    return [*steps, Step(torch.ops.aten.select.int, (len(rows), start))]


def _slices(base: Geometry, start: int, strides: _Strides) -> list[Step] | None:
    """A slice or select in every dimension of the base."""
    dims = sorted((d for d, n in enumerate(base.shape) if n > 1), key=lambda d: base.stride[d], reverse=True)
    starts: dict[int, int] = {}
    for d in dims:
        if base.stride[d] <= 0:
            return None
        starts[d], start = divmod(start, base.stride[d])
    if start or any(not 0 <= starts[d] < base.shape[d] for d in dims):
        return None
    slices: dict[int, tuple[int, int]] = {}
    for size, stride in strides:
        source = next((d for d in dims if d not in slices and stride > 0 and stride % base.stride[d] == 0), None)
        if source is None or starts[source] + (size - 1) * (stride // base.stride[source]) >= base.shape[source]:
            return None
        slices[source] = (size, stride // base.stride[source])
    steps = []
    for d, (size, by) in slices.items():
        steps.append(Step(torch.ops.aten.slice.Tensor, (d, starts[d], starts[d] + (size - 1) * by + 1, by)))
    for d in reversed(range(len(base.shape))):
        if d not in slices:
            steps.append(Step(torch.ops.aten.select.int, (d, starts.get(d, 0))))
    found = sorted(slices)  # the dimensions that are left, in the base's order, put into that of the strides
    if found != list(slices):
        steps.append(Step(torch.ops.aten.permute.default, (tuple(found.index(d) for d in slices),)))
    return steps


def _windows(base: Geometry, start: int, strides: _Strides) -> list[Step] | None:
    """From what is dense: a window for each index of a dimension, as long as the smaller ones reach."""
    order = sorted(range(len(base.shape)), key=lambda d: (base.stride[d], base.shape[d]), reverse=True)
    dense = Geometry(tuple(base.shape[d] for d in order), tuple(base.stride[d] for d in order), 0, base.dtype)
    reach = [sum((n - 1) * s for n, s in strides[k:]) + 1 for k in range(len(strides) + 1)]
    if not dense.is_contiguous or start < 0 or start + reach[0] > base.numel:
        return None
    steps = [] if order == list(range(len(order))) else [Step(torch.ops.aten.permute.default, (tuple(order),))]
    steps += [] if len(order) == 1 else [Step(torch.ops.aten.view.default, ((-1,),))]
    steps.append(Step(torch.ops.aten.slice.Tensor, (0, start, start + reach[0])))
    steps += [Step(torch.ops.aten.unfold.default, (k, reach[k + 1], stride)) for k, (_, stride) in enumerate(strides)]
    return [*steps, Step(torch.ops.aten.select.int, (len(strides), 0))]


def take(tensor: Tensor, steps: Sequence[Step]) -> Tensor:
    """The view one gets by some steps."""
    for step in steps:
        tensor = step(tensor)
    return tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie in memory without gaps, each once: a copy has the same strides."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


ALIAS = Step(torch.ops.aten.alias.default, ())
DETACH = Step(torch.ops.aten.detach.default, ())


def detaches(steps: Sequence[Step]) -> bool:
    """Whether the result of some steps has no history."""
    return any(step.op is torch.ops.aten.detach.default for step in steps)


HowGiven = Literal["data", "set_", "set_, tracked"]
"""How a tensor is given other memory: ``x.data = y`` or ``x.set_(y)``. A ``set_`` that is tracked (in grad mode, one of
both requires grad) has no derivative."""


@frozen
class Given:
    """How a tensor is given other memory; how that changes its sizes and strides since, and whether it is written
    to, and ``tracked``: what requires grad is."""

    how: HowGiven
    restrides: tuple[Step, ...] = ()
    written: bool = False
    tracked: bool = False

    def __str__(self) -> str:
        return ", ".join([self.how, *(step.method for step in self.restrides)])
