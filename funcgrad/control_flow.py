"""Control flow when a program runs: calls that run graphs of their own, their *bodies*, as often as values say.

A body is a ``Graph`` in a graph that is looked at, or run node by node; in a program, a backend has compiled it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .graphs import Graph
from .torch_private.autograd import below_autograd

Body = Graph | Callable[..., Sequence[Any]]


def choose(condition: Tensor, if_true: Body, if_false: Body, operands: Sequence[Any]) -> tuple[Any, ...]:
    """``torch.cond``: one of two bodies of the same operands runs."""
    return tuple(_function(if_true if condition else if_false)(*operands))


def scan(
    body: Body, reverse: bool, init: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """A body runs once for each slice of ``xs`` along the first dimension: of the carry (``init`` at first), the
    slices and ``constants`` it makes the next carry and slices of results. Returns the last carry, then the results;
    ``reverse``: from the last slice on."""
    step, n_carry = _function(body), len(init)
    carry: Sequence[Tensor] = init
    places: list[tuple[Tensor, ...]] = []
    results: list[Tensor] = []
    with below_autograd():
        slices = list(zip(*(x.unbind(0) for x in xs), strict=True))
        for i in reversed(range(len(slices))) if reverse else range(len(slices)):
            made = step(*carry, *slices[i], *constants)
            carry, new = made[:n_carry], made[n_carry:]
            if not results and new:
                results = [torch.empty((len(slices), *y.shape), dtype=y.dtype, device=y.device) for y in new]
                places = list(zip(*(result.unbind(0) for result in results), strict=True))
            for place, y in zip(places[i] if new else (), new, strict=True):
                place.copy_(y)
    return *carry, *results


def repeat(condition: Body, body: Body, carry: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``while_loop``: a body makes the next carry as long as the condition of it is true. What no step has made is a
    copy."""
    goes_on, step = _function(condition), _function(body)
    first = carry
    while goes_on(*carry, *constants)[0]:
        carry = step(*carry, *constants)
    return tuple(t.clone() for t in carry) if carry is first else tuple(carry)


BODIES = (choose, scan, repeat)
"""The calls that have bodies."""


def _function(body: Body) -> Callable[..., Sequence[Any]]:
    return body.run if isinstance(body, Graph) else body
