"""Calls that functionalisation has no rule for, or a wrong one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..graphs import written_copies
from ..state.lines import user_line
from ..subclasses import is_traced
from ..torch_private.fakes import without_modes
from ..torch_private.functional import from_functional, replace_value, to_functional
from ..torch_private.operators import (
    arguments_by_name,
    functional_form,
    is_torchs_own,
    returns_nothing,
    writes_inputs,
    written_by,
)
from .around import looked, room_for, with_memory_written
from .captures import require_dense
from .scattered import looked_at, strided
from .storages import require_data_alone
from .trace import Trace


def unfunctional(trace: Trace, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record what functionalisation has no rule for: an op that is called for its effect alone (a check of linalg),
    and a custom one that writes to its arguments; or a wrong one: a fill in the order of memory. ``NotImplemented``
    for any other."""
    require_data_alone(op)
    require_dense(op)
    trace.draws.require_order(op, args)
    order = trace.draws.order_of(op, args)
    if order is not None:
        trace.writes.note(op, args, kwargs)
        with trace.functional:
            target, p = args[0].permute(order), args[1] if len(args) > 1 else 0.5
            op(target, p.expand_as(args[0]).permute(order) if isinstance(p, Tensor) else p, **kwargs)
        return args[0]
    form = functional_form(op)
    if form is not None:
        with trace.functional:
            return args[0].copy_(form(**arguments_by_name(op, args, kwargs)))
    if op.namespace == "profiler":
        with without_modes():
            return op(*args, **kwargs)
    if op is torch.ops.aten.as_strided.default and is_traced(args[0]):
        with trace.functional:
            room = room_for(trace, args[0]) if trace.graph is None else None
            look = strided(trace.lineage, room, op, args, kwargs)
        if trace.graph is None:
            looked(trace, args[0], looked_at(trace.lineage, args, kwargs))
        return NotImplemented if look is None else look
    if trace.writes.scatters(op, args, kwargs):
        if trace.graph is None:
            with_memory_written(trace, written_by(op, args, kwargs))
        with trace.functional:
            return trace.writes.scatter(op, args, kwargs)
    if writes_inputs(op) and not is_torchs_own(op):
        return _custom_write(trace, op, args, kwargs)
    if not returns_nothing(op) or writes_inputs(op):
        return NotImplemented
    if trace.graph is not None:
        values = [trace.node(from_functional(a)) if isinstance(a, Tensor) else a for a in args]
        node = trace.graph.create_node("call_function", op, tuple(values), dict(kwargs), name="check")
        node.meta = {"val": None, **trace.during(trace.line())}
    return None


def _custom_write(trace: Trace, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    trace.writes.note(op, args, kwargs)
    places: dict[int | str, Any] = dict(enumerate(args))
    places.update(kwargs)
    tensors = {id(t) for t in written_by(op, args, kwargs)}
    written = tuple(place for place, value in places.items() if id(value) in tensors)
    if len(written) != len(tensors):
        raise refusals.WRITES_TO_LIST(op, where=user_line())
    plain = [from_functional(a) if isinstance(a, Tensor) else a for a in args]
    named = {k: from_functional(v) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
    with without_modes(), trace.fakes:
        values = written_copies(op, written, plain, named)
    if trace.graph is not None:
        trace.record(written_copies, (op, written, plain, named), {}, values)
    n = len(values) - len(written)
    for place, value in zip(written, values[n:], strict=True):
        replace_value(places[place], value)
    with trace.functional:
        outs = [to_functional(value) for value in values[:n]]
    return outs[0] if n == 1 else tuple(outs) if n else None
