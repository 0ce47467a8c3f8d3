"""Calls of torch's operators that take functions, in a trace: what they are in terms of control flow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import DataDependentControlFlowError, TraceError
from ..torch_private.patches import generic_associative_scan
from ..trees import Tree, flatten, require_same, unflatten
from .bodies import Body, closed_over
from .control_flow import Choice, Scan, While, apply
from .source_location import user_line

if TYPE_CHECKING:
    from .trace import Trace

_operators = torch.ops.higher_order


def cond(trace: Trace, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """``torch.cond``: both branches are traced, and one runs."""
    if not isinstance(pred, Tensor):
        return (true_fn if pred else false_fn)(*operands)
    leaves, tree, _ = flatten(tuple(operands))
    tensors = _tensors(trace, "an operand of torch.cond", leaves)
    branches = [
        _Flat(lambda *values, function=function: function(*unflatten(values, tree))) for function in (true_fn, false_fn)
    ]
    like = [t.clone for t in tensors]
    first, second = branches
    more = closed_over(trace, "a branch of torch.cond", first, like) | closed_over(
        trace, "a branch of torch.cond", second, like
    )
    require_same(first.structure, second.structure, "result", "the branches of torch.cond return different structures")
    for value, other in zip(first.template, second.template, strict=True):
        if isinstance(value, Tensor) != isinstance(other, Tensor) or not (isinstance(value, Tensor) or value == other):
            raise TraceError(
                f"one branch of torch.cond returns {_shown(value)}, where the other returns {_shown(other)}",
                where=user_line(),
                fix="return tensors from both: torch.tensor(n)",
            )
    flow = Choice(trace, Body(trace, first, more), Body(trace, second, more))
    outs = apply(flow, [trace.lifting().stand_in(pred).reshape(()), *tensors, *more.tensors])
    return first.result(outs)


def scan(
    trace: Trace,
    combine_fn: Callable[..., Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """``scan``: its body returns the next carry and slices of results, in a structure that the result has, too."""
    first, sliced = (_tensors(trace, f"{what} of scan", given) for what, given in (("init", init), ("xs", xs)))
    return _scanned(
        trace, "the body of a scan", combine_fn, first, sliced, _tensors(trace, "an operand of scan", additional_inputs)
    )


def map_(trace: Trace, f: Callable[..., Any], xs: Sequence[Any], pos_args: Sequence[Any] = ()) -> Any:
    """``map``: a scan without a carry. What is given to each step may be anything."""
    is_tensor = [isinstance(v, Tensor) for v in pos_args]
    given = _tensors(trace, "an argument of map", [v for v in pos_args if isinstance(v, Tensor)])

    def body(*values: Any) -> Any:
        rest = iter(values[len(xs) :])
        return f(
            *values[: len(xs)], *(next(rest) if known else v for known, v in zip(is_tensor, pos_args, strict=True))
        )

    return _scanned(trace, "the body of a map", body, [], _tensors(trace, "xs of map", xs), given)


def _scanned(
    trace: Trace, what: str, function: Callable[..., Any], init: list[Tensor], xs: list[Tensor], given: list[Tensor]
) -> Any:
    body = _Flat(function)
    like: list[Callable[[], Tensor]] = [
        *(t.clone for t in init),
        *(functools.partial(_first_slice, t) for t in xs),
        *(t.clone for t in given),
    ]
    more = closed_over(trace, what, body, like)
    odd = [
        leaf
        for i, leaf in enumerate(body.template)
        if not isinstance(leaf, Tensor) and (i < len(init) or leaf is not None)
    ]
    if odd:
        raise TraceError(
            f"{what} returns {odd[0]!r}, which is no tensor",
            where=user_line(),
            fix="return tensors: torch.tensor(n), torch.full_like(x, n)",
        )
    return body.result(Scan.run(trace, Body(trace, body, more), init, xs, [*given, *more.tensors]))


def while_loop(
    trace: Trace,
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Any:
    """``while_loop``: as many steps as its condition says."""
    carry = _tensors(trace, "a carried input of while_loop", carried_inputs, "torch.tensor(0)")
    given = _tensors(trace, "an operand of while_loop", additional_inputs)
    body, condition = _Flat(body_fn), _Flat(cond_fn)
    like = [*(t.clone for t in carry), *(t.clone for t in given)]
    more = closed_over(trace, "the condition of a while_loop", condition, like)
    if not any(isinstance(leaf, Tensor) for leaf in condition.template):
        raise DataDependentControlFlowError(
            f"the condition of while_loop returns {condition.template[0]!r}, which is the same after each step",
            where=user_line(),
            fix="compute it of the carried tensors: lambda i, x: i < n, with i = torch.tensor(0)",
        )
    more |= closed_over(trace, "the body of a while_loop", body, like)
    if not all(isinstance(leaf, Tensor) for leaf in body.template):
        raise TraceError(
            "the body of a while_loop returns what is no tensor",
            where=user_line(),
            fix="return tensors: torch.tensor(n)",
        )
    flow = While(trace, Body(trace, condition, more), Body(trace, body, more), len(carry))
    return body.result(apply(flow, [*(t.contiguous() for t in carry), *given, *more.tensors]))


def associative_scan(
    trace: Trace, combine_fn: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """``associative_scan`` of a pointwise function: as torch's own, calls of it for all pairs at once, in as many
    rounds as halvings."""
    leaves = _tensors(trace, "xs of associative_scan", xs)
    with trace.lifting():
        return generic_associative_scan(
            lambda *values: flatten(combine_fn(*values))[0], leaves, additional_inputs=tuple(additional_inputs)
        )


def _called(function: Callable[[Sequence[Any], Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """An operator that is no more than a call of its function."""

    def call(trace: Trace, *args: Any, **kwargs: Any) -> Any:
        with trace.lifting():
            return function(args, kwargs)

    return call


CALLS: Mapping[Any, Callable[..., Any]] = {
    _operators.cond: cond,
    _operators.scan: scan,
    _operators.map_impl: map_,
    _operators.while_loop: while_loop,
    _operators.associative_scan: associative_scan,
    _operators.invoke_subgraph: _called(lambda args, _: args[0](*args[2:])),
    _operators.strict_mode: _called(lambda args, _: args[0](*args[1])),
    _operators.hints_wrapper: _called(lambda args, _: args[0](*args[1], **args[2])),
    _operators.run_const_graph: _called(lambda args, _: args[0](*args[1])),
    _operators.invoke_quant_packed: _called(lambda args, _: args[0](*args[1:])),
}
"""Operators that take functions, as they are carried out."""


class _Flat:
    """A function that returns the tensors in the result of another one, and keeps what else is in it."""

    structure: Tree
    template: Sequence[Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        self.template, self.structure, _ = flatten(self._function(*values))
        return tuple(leaf for leaf in self.template if isinstance(leaf, Tensor))

    def result(self, tensors: Sequence[Tensor]) -> Any:
        """A result of the function with other tensors."""
        rest = iter(tensors)
        return unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.template], self.structure)


def _first_slice(xs: Tensor) -> Tensor:
    return xs.select(0, 0).clone()


def _shown(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)


def _tensors(trace: Trace, what: str, values: Sequence[Any], instead: str = "torch.tensor(n)") -> list[Tensor]:
    odd = next((v for v in values if not isinstance(v, Tensor)), None)
    if odd is not None:
        raise TraceError(f"{what} is {odd!r}, which is no tensor", where=user_line(), fix=f"pass a tensor: {instead}")
    return [trace.lifting().stand_in(v) for v in values]
