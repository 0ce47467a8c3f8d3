"""What ``torch.func.vjp`` returned outside, called in a trace: autograd goes through the graph that was recorded there.

Its nodes compute with the incoming gradient, which is of the trace, and with what they saved, real tensors that no
torch-function mode sees, as they come from below it. These are captured tensors like others, but for what is above
them: where one has a history of its own that the call would go on with, it is refused. (The nodes of compiled
functions are Python, and give what they saved to functions that the trace sees.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..autograd_state import nodes_below
from ..graphs import type_text
from ..inside import having
from ..state.lines import user_line
from ..torch_private.autograd import autograd_heard, custom_function_of
from ..torch_private.fakes import FakeTensor
from ..torch_private.functional import FunctionalTensor, view_kind
from ..torch_private.levels import is_dead, unwrap_dead
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass
from ..trees import flatten, tree_map
from .trace import Trace


def run_pullback(trace: Trace, outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
    """``torch.autograd.grad`` of tensors with such a graph; ``NotImplemented`` of others."""
    given = [v for v in flatten((outputs, inputs))[0] if isinstance(v, Tensor)]
    if not any(map(is_recorded, given)):
        return NotImplemented
    for function in map(custom_function_of, nodes_below([v for v in given if is_recorded(v)])):
        if function is not None and trace.watch is not None:  # code of the caller's: what it reads is Python state
            trace.watch.see(getattr(function, "backward", None), f"{function.__name__}.backward")
    pullback = "of a level" if any(is_transform_wrapper(_below(v)) for v in given) else "of no level"
    with having(trace, pullback=pullback):
        return torch.autograd.grad(
            *tree_map(lambda v: v if is_recorded(v) else trace.operand(v), (outputs, inputs)),
            *map(trace.operand, rest),
            **{name: trace.operand(value) for name, value in options.items()},
        )


def is_recorded(value: Any) -> bool:
    """Whether a tensor is of a level that has ended, which has recorded its history."""
    return isinstance(value, Tensor) and is_dead(value) and value.requires_grad


def _below(value: Tensor) -> Tensor:
    while is_dead(value):
        value = unwrap_dead(value)
    return value


def with_saved(trace: Trace, op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an operator that such a graph calls, with what stands for the tensors that it saved; or that
    C++ calls where nobody was told (``z.real = y``): a view of a real tensor, which it then writes to."""
    if trace.pullback is None and (view_kind(op) is None or op is torch.ops.aten.lift_fresh.default):
        return args
    return type(args)(_stand_in(trace, v) for v in args)  # type: ignore[call-arg]


def _stand_in(trace: Trace, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_stand_in(trace, v) for v in value)
    if not isinstance(value, Tensor) or isinstance(value, (FakeTensor, FunctionalTensor)) or is_wrapper_subclass(value):
        return value
    tracked = value.requires_grad and torch.is_grad_enabled()
    if trace.pullback is None and tracked:
        return value
    if trace.pullback == "of a level" or tracked:
        raise refusals.PULLBACK_OF_HISTORY(type_text(value), where=user_line())
    with without_function_modes(), trace.functional, autograd_heard():  # as where the function mentions one
        return trace.lineage.current(trace.lift(value))
