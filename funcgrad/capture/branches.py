"""``torch.cond`` in a trace: both branches are recorded as graphs of their own, and one call that chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import TraceError, UnsupportedTransformError
from ..graphs import choose, is_random, type_text
from ..philox import philox
from ..torch_private import running_sequence_number
from .where import user_line

if TYPE_CHECKING:
    from .trace import Trace


def choice(trace: Trace, condition: Tensor, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Trace both branches and record one call that chooses."""
    draws = trace.draws.operands
    first, out = trace.graph_of("if_true", if_true, operands, draws, trace.tracer)
    second, other = trace.graph_of("if_false", if_false, operands, draws, trace.tracer)
    if [type_text(v) for v in out] != [type_text(v) for v in other]:
        raise TraceError(
            f"the branches of torch.cond return different types: {type_text(out)} and {type_text(other)}",
            where=user_line(),
            fix="return tensors of the same sizes and dtypes from both",
        )
    if (
        any(is_random(n) or n.target is philox for graph in (first, second) for n in graph.fx.nodes)
        and running_sequence_number() is not None
    ):
        raise UnsupportedTransformError(
            "a branch of torch.cond draws random numbers and is differentiated: its backward pass would draw others",
            where=user_line(),
            fix="draw outside and name the draw among the operands: torch.cond(condition, f, g, (x, torch.rand_like(x)))",
        )
    trace.known.forget(out)  # which are those of one branch
    if trace.graph is not None:
        trace.record(choose, (condition, first, second, [*operands, *draws]), {}, out)
    return out
