"""Containers that somebody has registered with torch's pytrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch.utils import _pytree as pytree


@frozen
class Registered:
    """A container type registered with torch's pytree."""

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Sequence[Any], Any], Any]
    with_keys: Callable[[Any], tuple[Sequence[tuple[Any, Any]], Any]] | None

    def steps(self, value: Any, n: int) -> Iterator[str]:
        """How each child is reached, as code."""
        if self.with_keys is None:
            return (f"[{i}]" for i in range(n))
        return (pytree.keystr((key,)) for key, _ in self.with_keys(value)[0])


_registered: dict[type, Registered] = {}


def registered_container(kind: type) -> Registered | None:
    """The registration of a type, or None. Seen: ``SUPPORTED_NODES`` in 2.11, 2.13."""
    found = _registered.get(kind)
    if found is None and kind in pytree.SUPPORTED_NODES:
        entry = pytree.SUPPORTED_NODES[kind]
        found = _registered[kind] = Registered(entry.flatten_fn, entry.unflatten_fn, entry.flatten_with_keys_fn)
    return found


def registered_part(kind: type, name: str) -> Callable[..., Any]:
    """How a registered container is taken apart (``flatten``) or made (``unflatten``)."""
    return getattr(registered_container(kind), name)  # type: ignore[no-any-return]


def whose_part(function: Callable[..., Any]) -> tuple[type, str] | None:
    """Of which type, and what, a function is in ``registered_part``: it may have no name of its own."""
    names = "flatten", "unflatten"
    found = ((kind, n) for kind, own in _registered.items() for n in names if getattr(own, n) is function)
    return next(found, None)


map_leaves: Callable[..., Any] = pytree.tree_map
"""``map_leaves(function, value, is_leaf=None)``: a pytree of torch's, with other leaves."""


def register(
    kind: type, flatten: Callable[[Any], tuple[list[Any], Any]], unflatten: Callable[[list[Any], Any], Any]
) -> None:
    """Make a class a container of torch's pytrees."""
    pytree.register_pytree_node(kind, flatten, lambda children, context: unflatten(list(children), context))
