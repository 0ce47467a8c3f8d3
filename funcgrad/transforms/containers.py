"""Containers that torch.func does not know, within what its transforms take and return.

torch.func takes apart what is registered with torch's pytrees. Dataclasses, attrs classes and subclasses of dict and
list are containers here, too: while a transform of torch.func works on them, each is carried by a node that is
registered, and the function sees what it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..torch_private.pytrees import map_leaves, register
from ..trees import LEAF, Tree, flatten, unflatten


class Carrier:
    """The children of one container, and what it was: a container of its own to torch's pytrees."""

    def __init__(self, children: list[Any], shape: Tree) -> None:
        self.children = children
        self.shape = shape


register(Carrier, lambda carrier: (carrier.children, carrier.shape), Carrier)


def carried(value: Any, none: bool = False) -> Any:
    """``value`` as a pytree of torch's. A container as batch dimensions (``in_dims``) fits the arguments it is for.
    ``none``: whether None is a container of nothing, too; to vmap it is a leaf.

    Raises ``ContainerError`` for a container that holds itself.
    """
    return map_leaves(functools.partial(_carried, none=none), value)


def _carried(leaf: Any, none: bool) -> Any:
    children, shape, _ = flatten(leaf, is_leaf=lambda value: value is not leaf)
    if (leaf is None and not none) or shape == LEAF:
        return leaf
    flatten(leaf)  # what holds itself has no end
    return Carrier([carried(child, none) for child in children], shape)


def as_given(value: Any) -> Any:
    """The other way."""
    return map_leaves(_as_given, value, is_leaf=lambda value: type(value) is Carrier)


def _as_given(leaf: Any) -> Any:
    return unflatten([as_given(child) for child in leaf.children], leaf.shape) if type(leaf) is Carrier else leaf


def over_carried(f: Callable[..., Any], none: bool = False) -> Callable[..., Any]:
    """``f``, of carried arguments, with a carried result."""

    @functools.wraps(f, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return carried(f(*as_given(args), **as_given(kwargs)), none)

    return call


def of_given(f: Callable[..., Any], none: bool = False) -> Callable[..., Any]:
    """The other way: a function of carried arguments, called with what they are."""

    @functools.wraps(f, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return as_given(f(*carried(args, none), **carried(kwargs, none)))

    return call
