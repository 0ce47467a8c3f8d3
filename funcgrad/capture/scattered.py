"""Writes through views that functionalisation cannot undo: ``as_strided``, ``unfold`` and ``expand``.

Such a view is taken anew, by slices, of the tensor all of whose memory it looks at (its *root*), and written to there.
Where there are no such slices, a copy is written to, and put back element by element. Where several elements of a view
are one in memory, what fills them fills that one; any other write to them is refused: by eager PyTorch, or, where that
goes on, by name, since the result depends on the order in which it goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from attrs import evolve
from torch import Tensor

from .. import refusals
from ..graphs import is_expanded, target_text, tensors_in
from ..state.lines import user_line
from ..torch_private.fakes import without_modes
from ..torch_private.modes import without_function_modes
from ..torch_private.operators import written_by
from ..torch_private.symbols import known_contiguous, known_same
from ..torch_private.tensors import storage_id
from .lineage import Lineage
from .memory import overlaps_itself, positions
from .outside import FILLS
from .views import ALIAS, Geometry, steps_between, take

aten = torch.ops.aten

_NOT_UNDONE = (aten.as_strided.default, aten.unfold.default, aten.expand.default)

_MASKED = {
    aten.masked_fill_.Scalar, aten.masked_fill_.Tensor, aten.index_fill_.int_Scalar, aten.index_fill_.int_Tensor,
    aten.index_put_.default,
}  # fmt: skip
"""What eager PyTorch lets write to several elements that are one in memory; here: where all that are written get one
value."""


_IDEMPOTENT = {
    aten.relu_.default, aten.abs_.default, aten.clamp_.default, aten.clamp_min_.default, aten.clamp_max_.default,
    aten.hardtanh_.default, aten.sign_.default, aten.sgn_.default, aten.floor_.default, aten.ceil_.default,
    aten.trunc_.default, aten.round_.default, aten.nan_to_num_.default,
}  # fmt: skip
"""What makes the same of an element however often it is done."""


def root_of(lineage: Lineage, tensor: Tensor) -> Tensor:
    """The tensor of the trace that a view was taken of in the first place: it looks at all of its memory."""
    return lineage.path(tensor, lambda _: False, through=True)[0]


def geometry(lineage: Lineage, view: Tensor) -> Geometry:
    """How a view lies in the memory of its root, by the steps that lead to it: since the root was written to, new views
    of it are views of the value it has by then, which lies otherwise."""
    root, steps, _ = lineage.path(view, lambda _: False, through=True)
    base = Geometry.of(root)
    with without_function_modes(), without_modes():
        memory = torch.empty((base.end,), dtype=base.dtype, device="meta")
        return Geometry.of(take(memory.as_strided(base.shape, base.stride, base.offset), steps))


def looked_at(lineage: Lineage, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Geometry:
    """What a call of ``as_strided`` looks at."""
    tensor, size, stride, *rest = (*args, *kwargs.values())
    start = geometry(lineage, tensor).offset if rest in ([], [None]) else rest[0]
    return Geometry(tuple(size), tuple(stride), start, tensor.dtype)


def strided(
    lineage: Lineage, room: int | None, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor | None:
    """``as_strided``, by views of the root, which can be undone; None where there are none. ``room``: how many bytes
    there are (in the first run): out of these, eager PyTorch's error is raised."""
    tensor, own = args[0], looked_at(lineage, args, kwargs)
    root = root_of(lineage, tensor)
    if not all(type(n) is int for n in (*root.shape, *root.stride(), *own.shape, *own.stride, own.offset)):
        look = _whole_look(root, own)  # by sizes that are symbols nothing else is decided
        if look is not None:
            lineage.note(op, args, kwargs, look)
        return look
    if room is not None:
        _require_room(own, tensor.element_size(), room)
    look = _look(root, own)
    if look is not None:
        lineage.note(op, args, kwargs, look)
    return look


def _whole_look(root: Tensor, own: Geometry) -> Tensor | None:
    """A look that is known, at every size, to be at all of a tensor: autograd takes such looks of what it makes for
    the gradient of what was written to, or restrided, in place."""
    shape, stride, offset = root.shape, root.stride(), root.storage_offset()
    if not known_same([offset], [own.offset]):
        return None
    if known_same(shape, own.shape) and known_same(stride, own.stride):
        return take(root, (ALIAS,))
    are_contiguous = known_contiguous(shape, stride) and known_contiguous(own.shape, own.stride)
    return root.view(own.shape) if are_contiguous and known_same([prod(shape)], [prod(own.shape)]) else None


def _require_room(look: Geometry, itemsize: int, room: int) -> None:
    needed = look.end * itemsize
    if needed > room:
        raise RuntimeError(
            f"setStorage: sizes {list(look.shape)}, strides {list(look.stride)}, storage offset {look.offset}, and "
            f"itemsize {itemsize} requiring a storage size of {needed} are out of bounds for storage of size {room}"
        )


def is_not_undone(lineage: Lineage, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call writes to a view that functionalisation cannot undo, or to several elements that are one in
    memory."""
    return any(_is_not_undone(lineage, target) for target in written_by(op, args, kwargs))


def _is_not_undone(lineage: Lineage, target: Tensor) -> bool:
    while (taken := lineage.source(target)) is not None:
        if taken[1].op in _NOT_UNDONE:
            return True
        target = taken[0]
    return is_expanded(target)


def write(lineage: Lineage, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Carry out a call for which ``is_not_undone``, by writes that functionalisation can undo."""
    replaced: dict[int, Tensor] = {}
    copies: list[tuple[Tensor, Tensor, list[Tensor]]] = []
    for target in written_by(op, args, kwargs):
        if not _is_not_undone(lineage, target):
            continue
        own, root = geometry(lineage, target), root_of(lineage, target)
        if (look := _whole_look(root, own)) is not None:
            replaced[id(target)] = look
            continue
        if not own.numel:
            replaced[id(target)] = target.clone()
            continue
        if is_expanded(target) or overlaps_itself(own):
            _fill(lineage, root, target, op, args, kwargs)
            return
        look = _sliced(root, own)
        if look is None:
            look = target.clone()
            copies.append((look, root, _indices(root, positions(own))))
        replaced[id(target)] = look
    op(*(replaced.get(id(a), a) for a in args), **{k: replaced.get(id(v), v) for k, v in kwargs.items()})
    for copy, root, indices in copies:
        aten.index_put_.default(root, indices, copy)


def _fill(
    lineage: Lineage, root: Tensor, target: Tensor, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """A write to elements several of which are one in memory."""
    own = geometry(lineage, target)
    is_own = op is aten.copy_.default and storage_id(target) == storage_id(args[1])
    if is_own and geometry(lineage, args[1]) == own:
        return  # eager PyTorch leaves it as it is
    if not is_expanded(target) and torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args)):
        raise refusals.OVERLAPS_ITSELF_TRACKED(target_text(op), where=user_line())
    if op in _IDEMPOTENT and not is_expanded(target):
        at = _indices(root, np.unique(positions(own)))
        aten.index_put_.default(root, at, op(aten.index.Tensor(root, at), *args[1:], **kwargs))
        return
    value, hit = _filled(target, op, args)
    repeated = [d for d, (n, s) in enumerate(zip(own.shape, own.stride, strict=True)) if n > 1 and s == 0]
    once = evolve(own, shape=tuple(1 if d in repeated else n for d, n in enumerate(own.shape)))
    if hit is not None and repeated:
        hit = hit.any(repeated, keepdim=True)
    look = None if overlaps_itself(once) else _sliced(root, once)
    if look is None and hit is not None:
        mask = torch.zeros(root.shape, dtype=torch.int32, device=root.device)
        hit = aten.index_put_.default(mask, _indices(root, positions(once)), hit.int(), True) > 0
    if hit is not None:
        (root if look is None else look).masked_fill_(hit, value)
    elif look is not None:
        look.fill_(value)
    else:
        value = (
            value.to(root.dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=root.dtype, device=root.device)
        )
        aten.index_put_.default(root, _indices(root, positions(once)), value)


def _filled(target: Tensor, op: Any, args: Sequence[Any]) -> tuple[Any, Tensor | None]:
    """The one value that a call writes, and where (a bool for each element; None: everywhere). Raises where it
    writes several."""
    is_copy = op is aten.fill_.Tensor and target.device == args[1].device  # so eager PyTorch carries it out
    if op in FILLS and not (is_copy and is_expanded(target)):
        return (0 if op is aten.zero_.default else args[1]), None
    if op in _MASKED and not (op is aten.index_put_.default and (args[2].numel() != 1 or args[3:] == (True,))):
        *where, value = args[1:3] if op is aten.index_put_.default else args[1:]
        is_hit = torch.zeros(target.shape, dtype=torch.bool, device=target.device)
        return (value.reshape(()) if isinstance(value, Tensor) else value), op(is_hit, *where, _true_like(value))
    if op is aten.copy_.default and args[1].numel() == 1 and not is_expanded(target):
        return args[1].reshape(()), None
    if is_expanded(target) and op not in _MASKED:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    raise refusals.OVERLAPS_ITSELF(target_text(op), where=user_line())


def _true_like(value: Any) -> Any:
    return torch.ones_like(value, dtype=torch.bool) if isinstance(value, Tensor) else True


def _look(root: Tensor, own: Geometry) -> Tensor | None:
    steps = steps_between(Geometry.of(root), own)
    return None if steps is None else take(root, steps)


def _sliced(root: Tensor, own: Geometry) -> Tensor | None:
    steps = steps_between(Geometry.of(root), own)
    return None if steps is None or any(step.op in _NOT_UNDONE for step in steps) else take(root, steps)


def _indices(root: Tensor, looked_at: np.ndarray[Any, np.dtype[np.int64]]) -> list[Tensor]:
    """Which elements of the root, by its dimensions, lie at some positions in memory. Raises where some are none."""
    base = Geometry.of(root)
    memory = positions(base).ravel()
    order = memory.argsort()
    at = np.searchsorted(memory, looked_at, sorter=order).clip(max=memory.size - 1)
    if not memory.size or (memory[order[at]] != looked_at).any():
        raise refusals.AROUND_A_VIEW(where=user_line())
    return [
        torch.tensor(i.tolist(), dtype=torch.int64, device=root.device).reshape(i.shape)
        for i in np.unravel_index(order[at], base.shape)
    ]
