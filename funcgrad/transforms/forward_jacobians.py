"""Jacobians by forward mode, over so many tangents at a time: torch.func.jacfwd pushes all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..trees import flatten, unflatten
from .chunks import in_chunks
from .packed import with_values

Fn = Callable[..., Any]


def jacfwd_in_chunks(
    f: Fn, argnums: int | tuple[int, ...], has_aux: bool, randomness: str, chunk_size: int | None
) -> Fn:
    """``torch.func.jacfwd(f, argnums, has_aux, randomness=randomness)``, with the tangents of ``chunk_size`` elements
    of the arguments at a time; None: all at once."""
    if chunk_size is None:
        return torch.func.jacfwd(f, argnums, has_aux=has_aux, randomness=randomness)

    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)
        leaves, tree, _ = flatten(chosen)
        numels = [v.numel() for v in leaves]

        def of_leaves(*own: Tensor) -> Any:
            new = unflatten(own, tree)
            places, values = ([argnums], [new]) if isinstance(argnums, int) else (argnums, new)
            return f(*with_values(args, places, values), **kwargs)

        def push(*tangents: Tensor) -> Any:
            _, *rest = torch.func.jvp(of_leaves, tuple(leaves), tangents, has_aux=has_aux)
            return tuple(rest)

        pushed, *aux = in_chunks(push, 0, 0, randomness, chunk_size)(*_basis(leaves, numels))
        rows, out_tree, _ = flatten(pushed)
        columns = [_columns(row, leaves, numels) for row in rows]
        jacobian = unflatten([unflatten(own, tree) for own in columns], out_tree)
        return (jacobian, *(_of_first(value) for value in aux)) if has_aux else jacobian

    return call


def _basis(leaves: Sequence[Tensor], numels: Sequence[int]) -> list[Tensor]:
    """A batch of tangents for each leaf, one for each element of all of them."""
    total, found, start = sum(numels), list[Tensor](), 0
    for leaf, n in zip(leaves, numels, strict=True):
        before, after = (leaf.new_zeros(rows, n) for rows in (start, total - start - n))
        eye = torch.eye(n, dtype=leaf.dtype, device=leaf.device)
        found.append(torch.cat([before, eye, after]).view(total, *leaf.shape))
        start += n
    return found


def _columns(row: Tensor, leaves: Sequence[Tensor], numels: Sequence[int]) -> list[Tensor]:
    """The derivatives of one result, by each leaf: what was pushed of each element, as the last dimensions."""
    parts = torch.split(row.movedim(0, -1), list(numels), dim=-1)
    return [part.reshape(*row.shape[1:], *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]


def _of_first(value: Any) -> Any:
    """What is no derivative is the same for each tangent."""
    leaves, tree, _ = flatten(value)
    return unflatten([leaf[0] if isinstance(leaf, Tensor) else leaf for leaf in leaves], tree)
