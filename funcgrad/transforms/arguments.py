"""From a call's arguments to the inputs of a trace: taken apart, named, and refused by name where they can be none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import evolve
from torch import Tensor

from ..capture.captures import require_traceable
from ..capture.hidden import require_comparable
from ..capture.inputs import Inputs
from ..errors import ArgumentError
from ..options import Options
from ..runtime.key import flatten_call, spec_of
from ..slots import Arg
from ..state.given import with_parts
from ..trees import which_are_one
from .definition import Definition, name_of


def take_apart(definition: Definition, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """The arguments of a call as leaves with slots. A static argument is one leaf, whatever it is.

    Raises ``ArgumentError``, ``ContainerError``, ``UnsupportedTensorError`` or ``UnsupportedTransformError`` for what
    can be no input.
    """
    by_name = _static_by_name(definition, options.static_argnums, len(args))
    given = [i for i in options.static_argnums if i not in by_name]
    static = positions(definition, "static_argnums", given, len(args))
    if doubled := static & positions(definition, "donate_argnums", options.donate_argnums, len(args)):
        raise ArgumentError(
            f"static_argnums and donate_argnums both name position {min(doubled)} of this call of "
            f"{name_of(definition.root)}",
            fix="leave it out of donate_argnums: what is static is baked in",
        )
    names = definition.argument_names(len(args))
    meant = frozenset([*(names[i] for i in static), *by_name.values()])
    leaves, paths, both = flatten_call(names, meant, args, kwargs)
    for leaf, path in zip(leaves, paths, strict=True):
        _check(leaf, path)
    inputs = Inputs(tuple(names), tuple(leaves), tuple(map(Arg, paths)), both, static=meant)
    containers = inputs.containers(args, kwargs)
    identities = {own.variable: id(own.value) for container in containers for own in with_parts(container)}
    return evolve(inputs, identities=identities, one=which_are_one(containers))


def _static_by_name(definition: Definition, argnums: tuple[int, ...], n: int) -> dict[int, str]:
    """The parameters at positions beyond the ``n`` arguments of a call, as in JAX: static where they are given by
    keyword, and left at their defaults where they are not given."""
    beyond = [i for i in argnums if i >= n]
    names = definition.argument_names(max(beyond) + 1) if beyond else []
    return {i: names[i] for i in beyond if names[i].isidentifier()}


def positions(definition: Definition, option: str, argnums: Iterable[int], n: int) -> set[int]:
    """The positions, counted from the first of ``n`` arguments, that an option names. Raises ``ArgumentError`` for
    one that this call has not."""
    for i in argnums:
        if not -n <= i < n:
            raise ArgumentError(
                f"{option} names position {i}, but {name_of(definition.root)} was called with {n} positional ones",
                fix="name positions of arguments that every call passes",
            )
    return {i % n for i in argnums}


def _check(leaf: Any, path: str) -> None:
    """Refuse, before anything runs, a leaf that can be no input."""
    if isinstance(leaf, Tensor):
        require_traceable(leaf, path)
    else:
        require_comparable(leaf, path)
    spec_of(leaf, path)
