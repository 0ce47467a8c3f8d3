"""Writes: what a traced function writes to, made right where functionalisation would get it wrong, and told to who
must know."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..autograd_state import bump_version, family_of, version_of
from ..graphs import is_expanded, target_text, tensors_in
from ..inside import having
from ..slots import Slot
from ..state.lines import user_line
from ..subclasses import inner_tensors
from ..torch_private.fakes import without_modes
from ..torch_private.functional import FunctionalTensor, from_functional, mutation_count, replace_value, view_kind
from ..torch_private.modes import without_function_modes
from ..torch_private.operators import draws_random, is_pointwise, writes_inputs, written_by
from ..torch_private.tensors import storage_id
from .lineage import Lineage
from .memory import share_elements
from .outside import rewrite
from .passages import Passages
from .scattered import is_not_undone, root_of, write
from .views import Geometry, is_dense

aten = torch.ops.aten


class Writes:
    """The writes of one run. ``before`` and ``after`` are called around each op of it."""

    def __init__(self, lineage: Lineage, first_run: bool) -> None:
        """``first_run``: tensors lie where the real ones do, so that it can be told which overlap."""
        self.first_run = first_run
        self.after_forward: list[Callable[[], None]] = []
        self._lineage = lineage
        self.custom_functions = 0
        """So many run, one within another."""
        self.met_custom_function = False
        self.passages: Passages | None = None
        """The nodes of autograd of the program's own backward pass."""
        self.heard: Callable[[Tensor], None] = lambda _: None
        """Is told of each tensor that is written to."""
        self.n_again = 0
        """How many of them are of a forward pass that a pullback runs again."""
        self.have_happened = False
        """Whether what was written to Python state, and printed, stays so though the run failed."""
        self._placed: list[tuple[Tensor, Geometry]] = []
        self._linked: list[dict[int, tuple[Tensor, int]]] = []
        self._scattering = False
        self._written: list[tuple[Tensor, Geometry]] = []
        self._conjugated: list[Tensor] = []
        self._listed: list[tuple[Tensor, int]] = []
        self._arrays: list[tuple[Tensor, weakref.ref[Any]]] = []
        self._memory: Mapping[Slot, Tensor] | None = None
        self._counts: dict[Slot, int] = {}

    # ── each op ──────────────────────────────────────────────────────────────────────────────────────────────────

    def before(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The call to make in place of one that functionalisation would get wrong; writes are written down."""
        op, args, kwargs = self._rewritten(op, args, kwargs)
        if writes_inputs(op) and view_kind(op) is None:
            self.note(op, args, kwargs)
            targets = [t for t in written_by(op, args, kwargs) if isinstance(t, FunctionalTensor)]
            self._listed = [(t, version_of(t)) for t in targets if _name(op).startswith("_foreach_")]
            roots = [root_of(self._lineage, t) for t in targets]
            self._written = [(root, Geometry.of(root)) for root in roots if is_dense(root)]
            self._conjugated = [
                root for t, root in zip(targets, roots, strict=True) if _is_lazy(t) and not _is_lazy(root)
            ]
        return op, args, kwargs

    def after(self) -> None:
        """A write computed a dense value in memory of its own: strides must not show it, nor, where overlaps are
        told, the offset; nor that it went through a conjugated or negated look. Version counters of lists that are
        written to (``torch._foreach_add_``) are moved by kernels alone."""
        for target, version in self._listed:
            if version_of(target) == version:
                bump_version(target)
        self._listed.clear()
        for root in self._conjugated:
            if _is_lazy(value := from_functional(root)):
                replace_value(root, value.resolve_conj().resolve_neg())
        self._conjugated.clear()
        for tensor, place in (*self._placed, *self._written):
            value = from_functional(tensor)
            if value.shape != place.shape:  # what ``out=`` names has taken the sizes of what is computed
                continue
            in_place = value.is_contiguous() if place.is_contiguous else value.stride() == place.stride
            if self.first_run and not (in_place and value.storage_offset() == place.offset):
                last = sum((n - 1) * s for n, s in zip(value.shape, place.stride, strict=True)) if value.numel() else -1
                room, at = (
                    aten.new_empty.default(value, [place.offset + last + 1]),
                    (list(value.shape), list(place.stride), place.offset),
                )
                room = aten.as_strided_scatter.default(room, value, *at)  # its values are what Python reads
                replace_value(tensor, aten.as_strided.default(room, *at))
            elif not self.first_run and not in_place:
                room = aten.new_empty_strided.default(value, list(value.shape), list(place.stride))
                replace_value(tensor, aten.copy.default(room, value))

    def note(self, op: Any, args: Any, kwargs: Any) -> None:
        """Write down what a call writes to."""
        tracked = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args))
        written = list(written_by(op, args, kwargs))
        for tensor in written:
            self._require_in_no_array(tensor)
            self.heard(tensor)
            self._lineage.wrote(tensor, tracked)
        if self.passages is not None:
            own = [t for t in written if isinstance(t, FunctionalTensor)]
            self.passages.begin_write([*own, *(root_of(self._lineage, t) for t in own)])

    def show_in_array(self, tensor: Tensor, array: Any) -> None:
        """``array`` was made of the memory of a tensor, unless it is a copy. Views of it hold on to its base alone."""
        if array.base is not None:
            self._arrays.append((tensor, weakref.ref(array.base)))

    def _require_in_no_array(self, written: Tensor) -> None:
        """Raise for a write to memory that is looked at as an array, too: in a trace that keeps what was there."""
        for tensor, base in self._arrays:
            if base() is not None and storage_id(tensor) == storage_id(written):
                raise refusals.WRITES_BELOW_ARRAY(where=user_line())

    def _rewritten(self, op: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        target = next(written_by(op, args, kwargs), None) if writes_inputs(op) and view_kind(op) is None else None
        if target is not None and self.first_run and not self._scattering:
            _refuse_as_eager(op, target, args, kwargs)
        return rewrite(op, args, kwargs)

    def scatters(self, op: Any, args: Any, kwargs: Any) -> bool:
        """Whether a call writes to a view that functionalisation cannot undo: ``scatter`` makes it otherwise."""
        return writes_inputs(op) and view_kind(op) is None and is_not_undone(self._lineage, op, args, kwargs)

    def scatter(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Make such a call."""
        written = list(written_by(op, args, kwargs))
        if self.first_run and not is_expanded(written[0]):
            _refuse_as_eager(op, written[0], args, kwargs)
        self.note(op, args, kwargs)
        with having(self, _scattering=True):
            write(self._lineage, op, args, kwargs)
        return written[0] if len(op._schema.returns) == 1 else tuple(written) or None

    def run_custom_function(
        self,
        apply: Callable[..., Any],
        operands: Sequence[Any],
        keywords: Mapping[str, Any],
        dirty: Callable[[Tensor], None],
    ) -> Any:
        """Apply a custom ``autograd.Function``. What it told autograd that it writes to (``mark_dirty``) is what it
        returns as it is: ``dirty`` is called with each of these that requires grad."""
        self.met_custom_function = True
        with having(self, custom_functions=self.custom_functions + 1):
            out = apply(*operands, **keywords)
        for result in tensors_in(out):
            if torch.is_grad_enabled() and result.requires_grad and any(result is operand for operand in operands):
                self._lineage.wrote(result, True)
                dirty(result)
        return out

    # ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def keep_place(self, tensor: Tensor) -> None:
        """``tensor`` stands for an input; where that has gaps in memory, it keeps them, and the offset it begins at."""
        own = [(inner, Geometry.of(inner)) for inner in inner_tensors(tensor)]
        self._placed += [(t, place) for t, place in own if not is_dense(t) or (place.offset and self.first_run)]

    def link(self, tensors: Sequence[Tensor]) -> None:
        """Tensors whose real ones share a version counter: what moves one moves all, whether or not they share
        theirs."""
        if len({id(family_of(t)) for t in tensors}) > 1:
            self._linked.append({id(t): (t, version_of(t)) for t in tensors})

    def spread_versions(self) -> None:
        """Move the version counters of linked tensors to where the furthest is. Called when a call of the function's
        has returned: autograd moves a counter after the op, and saves tensors before the next."""
        if not self._linked:
            return
        with without_function_modes():
            for group in self._linked:
                moved = [t for t, version in group.values() if version_of(t) != version]
                for t, _ in group.values() if moved else ():
                    if all(family_of(t) is not family_of(other) for other in moved):
                        bump_version(t)
                group.update({key: (t, version_of(t)) for key, (t, _) in group.items()} if moved else {})

    # ── forward and backward ─────────────────────────────────────────────────────────────────────────────────────

    def watch(self, memory: Mapping[Slot, Tensor]) -> None:
        """Remember how often each input was written to when the forward pass ends. The outermost function's inputs
        count."""
        if self._memory is None:
            self._memory = dict(memory)
            self.after_forward.append(lambda: self._counts.update({s: _count(t) for s, t in memory.items()}))

    def forward_is_done(self) -> None:
        """Called as the first backward pass begins; calls what waits for it, once."""
        callbacks, self.after_forward = self.after_forward, []
        for callback in callbacks:
            callback()

    def number_of(self, tensors: Container[int]) -> int:
        """How often these (ids) have been written to."""
        return len(self._lineage.written(lambda t: id(t) in tensors))

    def in_backward(self, slot: Slot) -> bool:
        """Whether a watched input was written to after the forward pass ended."""
        return self._memory is not None and slot in self._counts and _count(self._memory[slot]) > self._counts[slot]


def _is_lazy(tensor: Tensor) -> bool:
    """Whether a tensor is conjugated or negated only when it is read."""
    return tensor.is_conj() or tensor.is_neg()


def _count(tensor: Tensor) -> int:
    return sum(map(mutation_count, inner_tensors(tensor)))


def _name(op: Any) -> str:
    return str(op.__name__).split(".")[0].removesuffix("_")


def require_apart(what: Any, target: Tensor, others: Sequence[Any]) -> None:
    """Raise what eager PyTorch raises where memory that is written to is read elsewhere."""
    name = _name(what)
    for other in _in_memory_of(target, name, others):
        if name not in _UNCHECKED and (
            _partly_overlap(target, other) or (_is_same(target, other) and name in _ELSEWHERE)
        ):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def refuse_overlap(what: Any, target: Tensor, others: Sequence[Any]) -> None:
    """Raise for a write to memory that is read elsewhere: what eager PyTorch raises, or where it goes on, by its
    order."""
    require_apart(what, target, others)
    name = _name(what)
    for other in _in_memory_of(target, name, others):
        if (not _is_same(target, other) or name in _UNCHECKED) and share_elements(other, target):
            raise refusals.WRITES_WHAT_IT_READS(target_text(what), where=user_line())


def _in_memory_of(target: Tensor, name: str, others: Sequence[Any]) -> list[Tensor]:
    """What is read of the memory of what an op of this name writes to."""
    read = (t for value in others for t in tensors_in(value))
    return [t for t in read if storage_id(t) == storage_id(target) and not (name in _FILLING and t.numel() == 1)]


def _is_same(target: Tensor, other: Tensor) -> bool:
    return other is target or Geometry.of(other) == Geometry.of(target)


def refuse_reading(what: Any, target: Tensor, others: Sequence[Any]) -> None:
    """Raise for a write to memory that is read, where eager PyTorch does not look."""
    for other in (t for value in others for t in tensors_in(value)):
        if storage_id(other) == storage_id(target) and share_elements(other, target):
            raise refusals.WRITES_WHAT_IT_READS(target_text(what), where=user_line())


_FILLING = {"fill", "masked_fill", "index_fill"}
"""What reads the one value it writes before it writes."""

_ELSEWHERE = {
    "index_put", "index_copy", "index_add", "index_reduce", "scatter", "scatter_add", "scatter_reduce", "put", "gather",
    "index_select", "take", "cat", "stack",
}  # fmt: skip
"""What eager PyTorch does not let read any of what it writes to, the same element of it neither."""

_UNCHECKED = {
    "masked_scatter", "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "matmul", "sum", "nansum",
    "mean", "prod", "amax",
    "amin", "max", "min", "any", "all", "argmax", "argmin", "var", "std", "norm", "linalg_vector_norm", "logsumexp",
}  # fmt: skip
"""What reads other elements than the one it writes, and goes on where it has written to them."""

_ADDING = {"addmm", "baddbmm", "addbmm", "addmv", "addr"}
"""What adds a product to its first argument: of that, the element that is read is the one that is written."""


def _refuse_as_eager(op: Any, target: Tensor, args: Any, kwargs: Any) -> None:
    """Raise what eager PyTorch raises where a functional form of the op would go through: for a write that reads
    what it overwrites elsewhere, and for what does not fit the dtype it is written to."""
    first = op._schema.arguments[0].alias_info
    is_method = first is not None and first.is_write
    if not (op is aten.index_put_.default and _is_masked_fill(*args[1:])):
        adds_in_place = _name(op) in _ADDING and (args[0] is target or Geometry.of(args[0]) == Geometry.of(target))
        refuse_overlap(op, target, args[1:] if is_method or adds_in_place else args)
    given = (*args, *kwargs.values())
    if is_pointwise(op) and not draws_random(op) and any(_kind(a) > _kind(target) for a in given):
        # fakes and functional forms make what the kernels of PyTorch do not cast: ask these, of one element
        with without_modes(), without_function_modes(), torch.no_grad():
            op(*map(one_of, args), **{name: one_of(a) for name, a in kwargs.items()})


def _kind(value: Any) -> int:
    """Where the dtype of a value stands among truth values, whole, real and complex numbers."""
    if isinstance(value, Tensor):
        integral = 0 if value.dtype is torch.bool else 1
        return 3 if value.is_complex() else 2 if value.is_floating_point() else integral
    kinds: tuple[Any, ...] = (bool, (int, torch.SymInt), (float, torch.SymFloat), complex)
    return next((kind for kind, types in enumerate(kinds) if isinstance(value, types)), -1)


def one_of(value: Any, whole: int = 1) -> Any:
    """An argument that promotes as this one does, of ones; ``whole`` where it is of integers, which may be indices."""
    if isinstance(value, Tensor):
        is_real = value.is_floating_point() or value.is_complex()
        return torch.full([1] * value.dim(), 1 if is_real else whole, dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        return [one_of(v, whole) for v in value]
    return 1 if isinstance(value, torch.SymInt) else 1.0 if isinstance(value, torch.SymFloat) else value


def _is_masked_fill(indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> bool:
    """Whether eager PyTorch fills where a mask says so (``x[mask] = value``): it reads the value before it writes."""
    masks = [i for i in indices if i is not None]
    return values.numel() == 1 and not accumulate and len(masks) == 1 and masks[0].dtype in (torch.bool, torch.uint8)


def _partly_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors over one memory overlap without being the same look at it; for others PyTorch does
    not tell."""
    if not is_dense(a) or not is_dense(b) or not a.numel() or not b.numel():
        return False
    first = (a.storage_offset(), a.storage_offset() + a.numel())
    second = (b.storage_offset(), b.storage_offset() + b.numel())
    return first[0] < second[1] and second[0] < first[1] and (first != second or a.stride() != b.stride())
