"""A compiled function called under transforms of torch.func, or with dual tensors of ``torch.autograd.forward_ad``.

The stack of interpreters is taken off one level at a time, from the innermost. **vmap** is peeled at the definition:
the batched function is compiled, of tensors with one more dimension (``Batched``). **grad, vjp, jvp**: the ordinary
program runs at that level, so that its layers write, alias and return as the level's autograd has it; its kernel is a
pure function (``Pure``), and as such a node in the graph of the level (``nodes.py``). All of these are definitions,
compiled, cached and peeled like any other, and so every order and every nesting exists.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from .. import refusals
from ..capture.inputs import containers_of_call
from ..capture.trace import active_trace
from ..errors import CapturedTransformError
from ..runtime.call import MISS
from ..state.effects import FILLED, store_into
from ..state.lines import user_line
from ..state.values import copied
from ..torch_private.levels import (
    BelowLevel,
    batched_at,
    dual_parts,
    functional_at,
    functional_below,
    innermost_transform,
    is_legacy_batched,
    legacy_batched_at,
    legacy_level,
    legacy_unbatched_at,
    unbatched_at,
    unwrap_dead,
    vmap_level,
)
from ..torch_private.modes import foreign_trace_active
from ..torch_private.tensors import unwrap_transform
from ..trees import Node, Tree, flatten, unflatten
from .definition import Pullback
from .nodes import batch_of, pure_call, randomness_at
from .peel import AT_MOST, Peel, print_peel, with_batch_dimensions
from .programs import Programs
from .pure import PURE, AtLevel, Batched, Given, HalfAlone, stores_refused

# ── the call ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def call_under_transforms(compiled: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a compiled function while a transform of torch.func runs, or a dual level is open."""
    if active_trace() is not None or foreign_trace_active(()):
        return compiled.definition(*args, **kwargs)  # inside another trace a compiled function is inlined
    kind, level = innermost_transform()
    if isinstance(compiled.definition, PURE):
        if kind == "functionalize":
            return _functionalised(compiled, list(args), flatten((args, {}))[1], level)
        return pure_call(compiled, args, kind, level)
    # these read their arguments alone
    if kind is None and isinstance(compiled.definition, (Pullback, HalfAlone)) and not _any_dual(args):
        return compiled.run(args, kwargs)
    found = _found(compiled, args, kwargs, kind, level)
    return found if found is not MISS else _met_first(compiled, args, kwargs, kind, level)


def _any_dual(args: tuple[Any, ...]) -> bool:
    tensors = [v for v in flatten(args)[0] if isinstance(v, Tensor) and not is_legacy_batched(v)]
    return any(dual_parts(tensor)[1] is not None for tensor in tensors)


def _found(compiled: Programs, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str | None, level: int) -> Any:
    """The result of what was made for such a call before, or ``MISS``."""
    if kind == "functionalize":
        return MISS
    if kind != "vmap":
        return _at_level(compiled).run_first_fit(args, kwargs)
    try:
        for peel in compiled.peels:
            result = peel(args, kwargs, level)
            if result is not MISS:
                return result
    except CapturedTransformError:
        return MISS
    return MISS


def _met_first(compiled: Programs, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str | None, level: int) -> Any:
    given, tree, _ = flatten((args, kwargs))
    leaves = [unwrap_dead(v) if isinstance(v, Tensor) else v for v in given]
    if foreign_trace_active([unwrap_transform(v) for v in leaves if isinstance(v, Tensor)]):
        return compiled.definition(*args, **kwargs)
    if kind == "vmap":
        return _batched(compiled, leaves, tree, level)
    if kind == "functionalize":
        return _functionalised(compiled, leaves, tree, level)
    if all(now is was for now, was in zip(leaves, given, strict=True)):
        return _at_level(compiled).run(args, kwargs)
    return _with_unwrapped(compiled, args, kwargs, unflatten(leaves, tree), tree)


def _with_unwrapped(compiled: Programs, args: Any, kwargs: Any, own: Any, tree: Tree) -> Any:
    """At a level of reverse or forward mode, with tensors of levels that have ended unwrapped (``own``); what is stored
    into these containers is stored into those of the caller's."""
    names = compiled.definition.argument_names(len(args))
    here, there = (containers_of_call(call[0], call[1], tree, names) for call in ((args, kwargs), own))
    pairs = [*zip(here, there, strict=True)]
    stores = [(was.value, now.value, copied(now.value)) for was, now in pairs if isinstance(now.value, FILLED)]
    with stores_refused([now for _, now in pairs if not isinstance(now.value, FILLED)]):
        result = _at_level(compiled).run(*own)
    for container, copy, before in stores:
        store_into(container, copy, before)
    return result


def _at_level(compiled: Programs) -> Programs:
    if compiled.at_level is None:
        definition = compiled.definition
        compiled.at_level = compiled.derived("level", lambda: AtLevel(definition))
    return compiled.at_level


def call_under_legacy_vmap(compiled: Programs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with tensors of autograd's own vmap: as under that of torch.func."""
    leaves, tree, _ = flatten((args, kwargs))
    at = legacy_level()
    below = {
        i: legacy_unbatched_at(at, v) for i, v in enumerate(leaves) if isinstance(v, Tensor) and is_legacy_batched(v)
    }
    if any(map(is_legacy_batched, below.values())):
        raise refusals.LEGACY_VMAP_TWICE(where=user_line())
    with vmap_level(next(iter(below.values())).shape[0], "error") as level:
        args, kwargs = unflatten(
            [batched_at(level, below[i], 0) if i in below else v for i, v in enumerate(leaves)], tree
        )
        outs, out_tree, _ = flatten(compiled(*args, **kwargs))
        pairs = [unbatched_at(level, v) if isinstance(v, Tensor) else (v, None) for v in outs]
    return unflatten([v if d is None else legacy_batched_at(at, v, d) for v, d in pairs], out_tree)


# ── vmap ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _batched(compiled: Programs, leaves: list[Any], tree: Tree, level: int) -> Any:
    """Under vmap. What the function closes over of an outer level is found when it is traced, and given by value
    from then on."""
    while True:
        target, own_leaves, own_tree = compiled, leaves, tree
        if compiled.of_outer_levels:
            places = compiled.of_outer_levels
            target = compiled.derived(("given", places), functools.partial(Given, compiled.definition, places))
            args, kwargs = unflatten(leaves, tree)
            own_leaves, own_tree, _ = flatten((([place.read() for place in places], *args), kwargs))
        try:
            return _peeled(target, own_leaves, own_tree, level, compiled if target is compiled else None)
        except CapturedTransformError as error:
            known = {place.identity for place in compiled.of_outer_levels}
            if error.place is None or error.place.identity in known or isinstance(compiled.definition, Batched):
                raise
            compiled.of_outer_levels += (error.place,)
            compiled.peels = []


def _peeled(compiled: Programs, leaves: list[Any], tree: Tree, level: int, caller: Programs | None) -> Any:
    """A call under vmap. The next one of ``caller`` with such arguments is printed."""
    of, (own, dims, size, randomness) = compiled.definition, batch_of(leaves, level)
    target = compiled.derived(
        ("vmap", tree, dims, size, randomness),
        lambda: Batched(of=of, tree=tree, dims=dims, size=size, randomness=randomness),
    )
    with BelowLevel():
        result, out_dims = target(*own)
    if caller is not None and size is None and isinstance(tree, Node):
        outs, out_tree, _ = flatten(result)
        are_tensors, outs_are_tensors = ([isinstance(v, Tensor) for v in values] for values in (leaves, outs))
        peel = Peel(tree, are_tensors, dims, randomness, target, out_tree, outs_are_tensors, out_dims)
        caller.peels = [print_peel(peel, randomness_at), *caller.peels][:AT_MOST]
    given = {id(v): leaf for v, leaf in zip(own, leaves, strict=True) if isinstance(v, Tensor)}
    return with_batch_dimensions(result, out_dims, given, level)


def _functionalised(compiled: Programs, leaves: list[Any], tree: Tree, level: int) -> Any:
    """Under ``torch.func.functionalize``: what a program writes to, the transform gives back to its caller when it
    ends."""
    own = [functional_below(level, v) if isinstance(v, Tensor) else v for v in leaves]
    args, kwargs = unflatten(own, tree)
    containers = containers_of_call(args, kwargs, tree, compiled.definition.argument_names(len(args)))
    with BelowLevel(), stores_refused(containers):
        outs, out_tree, _ = flatten(compiled(*args, **kwargs))
    given = {id(v): leaf for v, leaf in zip(own, leaves, strict=True) if isinstance(v, Tensor)}
    wrapped = [
        given[id(v)] if id(v) in given else functional_at(level, v) if isinstance(v, Tensor) else v for v in outs
    ]
    return unflatten(wrapped, out_tree)
