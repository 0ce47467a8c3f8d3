"""What a derivative is taken at, and in which direction: checked before ``torch.func`` sees it, so that an error names
the argument; and errors of ``torch.func.vmap``, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from .. import refusals
from ..capture.trace import active_trace
from ..errors import ArgumentError, TreeMismatchError
from ..state.lines import user_line
from ..torch_private.levels import raised_by_vmap, transform_active
from ..torch_private.modes import saved_hooks_active
from ..trees import flatten, require_same
from .definition import argument_names, describe, has_derivative, require_differentiable

_NOT_A_PRIMAL = "make it a floating-point tensor, or close over it: lambda x: f(x, n)"


def require_primals(f: Callable[..., Any], primals: Sequence[Any]) -> None:
    """Raise ``NonDifferentiableArgumentError`` for an argument that holds what has no derivative, or nothing."""
    for i, primal in enumerate(primals):
        if not (isinstance(primal, Tensor) and has_derivative(primal)):  # names take time
            require_leaves(primal, argument_names(f, len(primals))[i], _NOT_A_PRIMAL)


def require_no_saved_hooks(what: str) -> None:
    """Refuse a transform of torch.func's that keeps a graph, where hooks pack what graphs save, and nothing is
    traced."""
    if active_trace() is None and not transform_active() and saved_hooks_active():
        raise refusals.POINT_UNDER_SAVED_HOOKS(what, where=user_line())


def require_leaves(argument: Any, name: str, fix: str | None = None) -> None:
    """The same of one argument, of this name."""
    leaves, _, paths = flatten(argument, name)
    for leaf, path in zip(leaves, paths, strict=True) if leaves else [(argument, name)]:
        require_differentiable(leaf, path, fix)


def require_tangents(f: Callable[..., Any], primals: Any, tangents: Any) -> None:
    """Raise ``ArgumentError``, ``NonDifferentiableArgumentError`` or ``TreeMismatchError`` for what is no point, or no
    direction at it."""
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple) or not given:
            raise ArgumentError(
                f"{what} are {describe(given)}, not the arguments of a call",
                where=user_line(),
                fix=f"pass a tuple with one of them for each argument: {what}=(x,)",
            )
    require_primals(f, primals)
    points, structure, _ = flatten(primals)
    directions, own, paths = flatten(tangents, "tangents")
    require_same(structure, own, "tangents", "tangents and primals have different structure")
    for t, x, path in zip(directions, points, paths, strict=True):
        if not isinstance(t, Tensor) or t.shape != x.shape:
            raise ArgumentError(
                f"{path} is {describe(t)}",
                where=path,
                fix=f"pass a tensor of the shape of its primal: {list(x.shape)}",
            )


@contextlib.contextmanager
def mismatches_named() -> Iterator[None]:
    """What ``torch.func.vmap`` itself says of ``in_dims`` and ``out_dims`` that do not fit is raised as
    ``TreeMismatchError``."""
    try:
        yield
    except (ValueError, IndexError, TypeError) as error:
        if not raised_by_vmap(error):
            raise
        raise TreeMismatchError(
            str(error), where=user_line(), fix="give in_dims and out_dims the structure of arguments and result"
        ) from error
