"""Calls in a trace that are carried out in Python: torch's operators that take functions, in terms of control flow;
packed sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..state.lines import user_line
from ..torch_private.operators import PACK_PADDED, PAD_PACKED, lstm_by_layers
from ..torch_private.patches import generic_associative_scan
from ..trees import Tree, flatten, require_same, unflatten
from .applied import apply
from .control_flow import Choice, Scan, While
from .copies import deep_copied
from .packed_sequences import PACKED_NETWORKS, is_packed, pack, pad
from .recurrent import (
    ARGUMENTS,
    CELLS,
    by_steps,
    drops_between_layers,
    has_symbolic_steps,
    is_of_whole_layers,
    layer_after_layer,
)
from .trace import Trace
from .traced_bodies import Body, closed_over

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
            raise refusals.BRANCHES_DISAGREE(_shown(value), _shown(other), where=user_line())
    flow = Choice(trace, Body(trace, first, more), Body(trace, second, more))
    outs = apply(flow, [trace.operand(pred).reshape(()), *tensors, *(t for _, t in more.values())])
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


def map_(trace: Trace, f: Callable[..., Any], xs: Sequence[Any], pos_args: Sequence[Any] = (), **_: Any) -> Any:
    """``map``: a scan without a carry. What is given to each step may be anything. (From 2.15 on PyTorch says which
    of its arguments the body writes to: here that is heard when it does.)"""
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
        raise refusals.BODY_RETURNS_NO_TENSOR(what, odd[0], where=user_line())
    return body.result(Scan.run(trace, Body(trace, body, more), init, xs, [*given, *(t for _, t in more.values())]))


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
        raise refusals.CONDITION_IS_CONSTANT(condition.template[0], where=user_line())
    more |= closed_over(trace, "the body of a while_loop", body, like)
    if not all(isinstance(leaf, Tensor) for leaf in body.template):
        raise refusals.LOOP_RETURNS_NO_TENSOR(where=user_line())
    flow = While(trace, Body(trace, condition, more), Body(trace, body, more), len(carry))
    return body.result(apply(flow, [*(t.contiguous() for t in carry), *given, *(t for _, t in more.values())]))


def associative_scan(
    trace: Trace, combine_fn: Callable[..., Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """``associative_scan`` of a pointwise function: as torch's own, calls of it for all pairs at once, in as many
    rounds as halvings."""
    leaves = _tensors(trace, "xs of associative_scan", xs)
    with trace.lifter:
        return generic_associative_scan(
            lambda *values: flatten(combine_fn(*values))[0], leaves, additional_inputs=tuple(additional_inputs)
        )


def _called(function: Callable[[Sequence[Any], Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """An operator that is no more than a call of a function."""

    def call(trace: Trace, *args: Any, **kwargs: Any) -> Any:
        with trace.lifter:
            return function(args, kwargs)

    return call


def _recurrent(network: Any) -> Callable[..., Any]:
    """A recurrent network of packed sequences, of as many steps as a symbol says, or with dropout between its layers;
    any other one is PyTorch's."""
    packed = _called(lambda args, kwargs: PACKED_NETWORKS[network](*args, **kwargs))

    def call(trace: Trace, *args: Any, **kwargs: Any) -> Any:
        if is_packed(*args):
            return packed(trace, *args, **kwargs)
        args = *args, *(kwargs[name] for name in ARGUMENTS[len(args) :])
        drops, is_symbolic = drops_between_layers(*args), has_symbolic_steps(*args)
        if not drops and not is_symbolic:
            return NotImplemented
        with trace.lifter:
            if not is_symbolic:
                return layer_after_layer(network, *args)
            if not drops and is_of_whole_layers(network, *args):
                return lstm_by_layers(*args)
            return by_steps(functools.partial(scan, trace), CELLS[network], *args)

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
    Tensor.__deepcopy__: deep_copied,
    PACK_PADDED: _called(lambda args, _: pack(*args)),
    PAD_PACKED: _called(lambda args, _: pad(*args)),
    **{network: _recurrent(network) for network in CELLS},
}
"""Operators, as they are carried out; NotImplemented where that is PyTorch's own way."""


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
        raise refusals.NO_TENSOR(what, odd, instead, where=user_line())
    return [trace.operand(v) for v in values]
