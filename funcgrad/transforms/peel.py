"""A call of a compiled function at a level of torch.func, printed for what it was met with.

Under vmap, for one structure of arguments: take them apart, take off the batch dimensions, call the batched function
one level below, put batch dimensions on its results. At a level of reverse mode, for what its values are there: a pure
function runs below the level, and is a node of the level's graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from attrs import frozen
from torch import Tensor

from ..printed_trees import print_flatten, print_unflatten
from ..runtime.call import MISS
from ..source import Source, compile_function
from ..torch_private.levels import (
    BelowLevel,
    batched_at,
    transforms_or_duals,
    unbatched_at,
    unwrap_dead,
    unwrapped_at,
    wrapped_at,
)
from ..torch_private.tensors import is_transform_wrapper, is_zero_tensor
from ..trees import Node, Tree, count, flatten, unflatten

AT_MOST = 8
"""So many structures of arguments are printed for a function."""

Printed = Callable[..., Any]
"""Takes positional arguments, keyword arguments and the level of the vmap, or values and the level of reverse mode;
``MISS`` where the structure is another."""

At = Literal["tracked", "wrapped", "below", "other"]
"""What a value is at a level of reverse mode: a tensor of the level that is tracked or is not, a tensor from below the
level, or no tensor."""


@frozen(eq=False)
class Peel:
    """What a call was like: the structure of its arguments, which of their leaves are tensors, the batch dimension
    of each (None: it has none), and what random numbers are; the ``target`` below the level; the structure of its
    result, which leaves of that are tensors, and the batch dimension of each (-1: none)."""

    tree: Node
    are_tensors: Sequence[bool]
    dims: Sequence[int | None]
    randomness: str
    target: Callable[..., Any]
    out_tree: Tree
    outs_are_tensors: Sequence[bool]
    out_dims: tuple[int, ...]


def print_peel(peel: Peel, randomness: Callable[[int], str]) -> Printed:
    """The next such call. ``randomness`` says what random numbers are at a level."""
    constants: dict[str, Any] = {
        "MISS": MISS, "Tensor": Tensor, "randomness": randomness, "unwrap_dead": unwrap_dead, "unbatched": unbatched_at,
        "batched": batched_at, "BelowLevel": BelowLevel, "target": peel.target, "otherwise": with_batch_dimensions,
        "out_dims": peel.out_dims,
    }  # fmt: skip
    ends = [0, *itertools.accumulate(map(count, peel.tree.children))]
    leaves = [f"x{i}" for i in range(ends[-1])]
    lines: list[str] = []
    for child, name, (start, end) in zip(peel.tree.children, ("args", "kwargs"), itertools.pairwise(ends), strict=True):
        lines += print_flatten(child, name, leaves[start:end], constants, "return MISS")
    lines += [f"if randomness(level) != {peel.randomness!r}: return MISS"]
    own = []
    for leaf, is_tensor, dim in zip(leaves, peel.are_tensors, peel.dims, strict=True):
        lines += [f"if {'not ' if is_tensor else ''}isinstance({leaf}, Tensor): return MISS"]
        own.append(f"own_{leaf}" if is_tensor else leaf)
        if is_tensor:
            lines += [f"{leaf} = unwrap_dead({leaf})", f"own_{leaf}, dim = unbatched(level, {leaf})"]
            lines += [f"if dim {'is not None' if dim is None else f'!= {dim}'}: return MISS"]
    lines += ["with BelowLevel():", f"    result, found = target({', '.join(own)})"]
    given = ", ".join(f"id({name}): {leaf}" for name, leaf in zip(own, leaves, strict=True) if name != leaf)
    other = "return otherwise(result, found, given, level)"
    outs = [f"y{i}" for i in range(len(peel.outs_are_tensors))]
    lines += [
        f"given = {{{given}}}",
        f"if found != out_dims: {other}",
        *print_flatten(peel.out_tree, "result", outs, constants, other),
    ]
    for out, is_tensor, at in zip(outs, peel.outs_are_tensors, peel.out_dims, strict=True):
        lines += [f"if {'not ' if is_tensor else ''}isinstance({out}, Tensor): {other}"]
        if is_tensor:
            lines += [
                f"{out} = given[id({out})] if id({out}) in given else "
                f"{out if at < 0 else f'batched(level, {out}, {at})'}"
            ]
    lines.append(f"return {print_unflatten(peel.out_tree, iter(outs), constants)}")
    text = "def peel(args, kwargs, level):\n" + "".join(f"    {line}\n" for line in lines)
    printed: Printed = compile_function(Source("peel", "python", text, constants))
    return printed


def with_batch_dimensions(result: Any, dims: tuple[int, ...], given: dict[int, Tensor], level: int) -> Any:
    """A result at a level of vmap: an argument is what it was given as."""
    outs, tree, _ = flatten(result)
    pairs = zip(outs, dims, strict=True)
    at_level = [
        v if not isinstance(v, Tensor) else given[id(v)] if id(v) in given else v if d < 0 else batched_at(level, v, d)
        for v, d in pairs
    ]
    return unflatten(at_level, tree)


@frozen(eq=False)
class Crossing:
    """How a pure function crosses a level of reverse mode: what its values ``are`` there, of which no level below
    tracks any, which of them backward needs (``kept``), and how many of its outputs are results (the others backward
    needs, too). Where all of the values in ``linear_in`` are symbolic zeros it does not run."""

    are: tuple[At, ...]
    kept: Sequence[int]
    n_outs: int
    linear_in: Sequence[int]


def print_crossing(
    crossing: Crossing,
    run_first_fit: Callable[..., Any],
    run: Callable[[Sequence[Any]], Any],
    is_opaque: Callable[[Any], bool],
    node: Callable[..., Any],
) -> Printed:
    """The next such call. ``run_first_fit`` and ``run`` are the function where nothing runs below the level and where
    something does; ``node`` takes the level, the outputs, what backward needs, and the tensors that are tracked."""
    constants: dict[str, Any] = {
        "MISS": MISS, "Tensor": Tensor, "unwrapped": unwrapped_at, "wrapped": wrapped_at, "BelowLevel": BelowLevel,
        "is_wrapper": is_transform_wrapper, "is_opaque": is_opaque, "is_zero": is_zero_tensor, "node": node,
        "grad_enabled": torch.is_grad_enabled, "transforms_or_duals": transforms_or_duals,
        "run_first_fit": run_first_fit, "run": run,
    }  # fmt: skip
    names, own, kept, tracked = [f"x{i}" for i in range(len(crossing.are))], [], [], []
    lines = ["if not grad_enabled(): return MISS", f"{', '.join(names)}, = values"]
    for i, (name, at) in enumerate(zip(names, crossing.are, strict=True)):
        lines += [f"if {'' if at == 'other' else 'not '}isinstance({name}, Tensor): return MISS"]
        own.append(name if at in ("below", "other") else f"own_{name}")
        if at == "other":
            continue
        lines += [f"own_{name} = unwrapped(level, {name})"]
        if at == "below":
            lines += [f"if own_{name} is not {name}: return MISS"]
        else:
            lines += [f"if own_{name} is {name} or {name}.requires_grad is not {at == 'tracked'}: return MISS"]
        lines += [f"if {own[i]}.requires_grad or is_wrapper({own[i]}) and not is_opaque({own[i]}): return MISS"]
        if at == "tracked":
            tracked.append(name)
    if crossing.linear_in:
        lines += [f"if {' and '.join(f'is_zero({own[i]})' for i in crossing.linear_in)}: return MISS"]
    kept = [f"wrapped(level, {names[i]})" if crossing.are[i] == "below" else names[i] for i in crossing.kept]
    results = f"[wrapped(level, v) if isinstance(v, Tensor) else v for v in outs[:{crossing.n_outs}]]"
    lines += [
        f"own = {', '.join(own)},",
        "with BelowLevel(True, 'grad'):",
        "    outs = MISS if transforms_or_duals() else run_first_fit(own, {})",
        "    if outs is MISS: outs = run(own)",
        f"kept = ({''.join(f'{k}, ' for k in kept)}*outs[{crossing.n_outs}:])",
        f"return node(level, (tuple({results}), kept, None), {', '.join(tracked)})",
    ]
    text = "def peel(values, level):\n" + "".join(f"    {line}\n" for line in lines)
    printed: Printed = compile_function(Source("peel", "python", text, constants))
    return printed
