"""What each output of a function is: computed, one of the inputs, or a view of an input or of memory it shares with
other outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.nn import Parameter

from .. import refusals
from ..autograd_state import (
    has_history,
    is_dead_end,
    is_leaf,
    is_stale,
    is_untold,
    leaves_below,
    retains_grad,
    view_base,
)
from ..graphs import type_now
from ..slots import Arg, Base, Captured, Out, Slot, Stored
from ..state.new_values import NewObject
from .floats import NotSymbolicError
from .lineage import Lineage
from .questions import set_by_function
from .results import hidden_tensor
from .views import DETACH, Step, View, When, detaches

aten = torch.ops.aten

_WHOLE = (0, sys.maxsize)


@frozen
class OutputFact:
    """One leaf of the result: its path, its type (``is_dynamic``: a tensor or a symbolic scalar, not a constant), and
    what it is a view of, if that is an input or another output's memory.

    ``requires_grad``: whether a gradient flows into what computed it (not where it *is* a view). ``is_leaf``: it
    requires grad and nothing computed it (``requires_grad_()`` in the function).
    """

    path: str
    type: str
    is_dynamic: bool
    requires_grad: bool
    is_leaf: bool
    view: View | None
    constant: Any = field(default=None, eq=False, repr=False)
    """A leaf that is no tensor, as this run returned it."""
    is_parameter: bool = False
    """Whether the function made an ``nn.Parameter`` of it."""
    attributes: tuple[tuple[str, Any], ...] = field(default=(), eq=False)
    """What it gave a tensor it made besides."""
    retains_grad: bool = False
    """Whether it keeps the gradient that comes to it (``retain_grad()``)."""
    is_inference: bool = False
    """Whether it was made in inference mode, by a function that is called outside."""

    def __str__(self) -> str:
        kind = "" if self.view is None else (f"is {self.view}" if not self.view.steps else f"view {self.view}")
        return ", ".join(
            filter(None, ["requires grad" if self.requires_grad else "", "a leaf" if self.is_leaf else "", kind])
        )


def look_at_outputs(
    leaves: Sequence[Any],
    paths: Sequence[str],
    slot_of: Mapping[int, Arg | Captured],
    lineage: Lineage,
    out_slot: Callable[[str], Slot],
    is_base: Callable[[Slot, Tensor], bool] | None,
    varying: Collection[str] = (),
    firsts: Collection[Stored] = (),
) -> tuple[tuple[OutputFact, ...], dict[Base, Tensor]]:
    """The facts of each output, and the intermediates that several of them are views of.

    ``slot_of`` names the stand-ins by identity, ``out_slot`` an output by its path. ``is_base`` decides whether an
    intermediate that several outputs are views of is a base: only where autograd must know that they share it. With
    None, outputs are not compared with each other (those of a gradient depend on how it is traced). ``varying``: the
    paths of numbers that are no constants; ``firsts``: what is stored where nothing was.
    """
    first: dict[int, str] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, Tensor):
            first.setdefault(id(leaf), path)
    views, intermediates = _views(
        {p: leaf for p, leaf in zip(paths, leaves, strict=True) if first.get(id(leaf)) == p}, slot_of, lineage
    )
    bases: dict[Base, Tensor] = {}
    for root, users in intermediates:
        itself = first.get(id(root)) if lineage.current(root) is root else None
        base = out_slot(itself) if itself is not None else Base(tuple(map(out_slot, users)))
        made = itself is not None and root.requires_grad and is_leaf(root)  # what is no view of it would become one
        if is_base is not None and (made or (is_base(base, root) and _must_be_views(users))):
            views |= {p: _within(base, *user) for p, user in users.items() if p != itself}
            bases |= {base: root} if isinstance(base, Base) else {}
    found: list[OutputFact] = []
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, Tensor):
            twin = first[id(leaf)]
            view = views.get(twin)
            if twin != path and is_base is not None and (view is None or view.steps):
                when = "after" if view is None else ("last" if view.late else view.when)
                view = View(out_slot(twin), (), when)  # one object, returned twice
            now = lineage.current(leaf)
            seen_of = view_base(now)
            if (
                view is not None
                and seen_of is not None
                and is_untold(now)
                and has_history(seen_of)
                and detaches(view.steps)
            ):
                raise refusals.RETURNS_NO_GRAD_VIEW(where=f"result{path}")
            of_input = view is not None and is_untold(now) and not detaches(view.steps) and id(now) not in lineage.told
            own_leaf = now.requires_grad and id(leaf) not in slot_of and is_leaf(now) and not of_input
            made = id(leaf) not in slot_of
            attributes = tuple(set_by_function(leaf).items()) if made else ()
            requires_grad = (view is None or view.computed) and has_history(now)
            is_parameter = made and isinstance(leaf, Parameter)
            _require_plain(attributes, path)
            found.append(
                OutputFact(
                    path, type_now(now), True, requires_grad, own_leaf, view, None, is_parameter, attributes,
                    made and retains_grad(leaf), made and not is_parameter and _is_inference(lineage, now)
                )
            )  # fmt: skip
        else:
            is_dynamic = path in varying or isinstance(leaf, (SymInt, SymFloat, SymBool))
            is_object = isinstance(leaf, (list, dict, NewObject))  # what is in it is not read
            kind = type(leaf).__name__ if is_object else type_now(leaf)
            found.append(OutputFact(path, kind, is_dynamic, False, False, None, leaf))
    tensors = [(path, v) for path, v in zip(paths, leaves, strict=True) if isinstance(v, Tensor)]
    _refuse_leaves(tensors, slot_of, {*map(str, firsts)}, lineage)
    return tuple(found), bases


def _is_inference(lineage: Lineage, tensor: Tensor) -> bool:
    """Whether a tensor, or what it is a view of, was made in inference mode, and the call is outside."""
    made = (tensor, lineage.path(tensor, lambda _: False, through=True)[0])
    return not torch.is_inference_mode_enabled() and not tensor.requires_grad and any(t.is_inference() for t in made)


def require_views_by_no_size(outputs: Sequence[OutputFact], first: Sequence[OutputFact]) -> None:
    """Views are taken again as the dry run has seen them, so no symbol may be in the way: ``NotSymbolicError``."""
    for now, was in zip(outputs, first, strict=True):
        if was.view is not None and (now.view is None or _without_sizes(now.view.steps) != was.view.steps):
            raise NotSymbolicError("results that look at inputs, or at other results, by a size have known sizes")


def _without_sizes(steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """Steps, if no symbols are in them. A slice of all there is PyTorch takes only where sizes are symbols."""
    given = [value for step in steps for value in (*step.args, *dict(step.kwargs).values())]
    if any(isinstance(n, SymInt) for value in given for n in (value if isinstance(value, tuple) else (value,))):
        return None
    return tuple(step for step in steps if step.op is not aten.slice.Tensor or step.args[1:] != _WHOLE)


def results_by_slot(
    leaves: Sequence[Any], paths: Sequence[str], slot_of: Mapping[int, Arg | Captured], out_slot: Callable[[str], Slot]
) -> dict[Out, Tensor]:
    """The tensors a function returns that are no inputs, by the first slot of each."""
    found: dict[int, tuple[Slot, Tensor]] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, Tensor) and id(leaf) not in slot_of:
            found.setdefault(id(leaf), (out_slot(path), leaf))
    return {slot: leaf for slot, leaf in found.values() if isinstance(slot, Out)}


_Users = dict[str, tuple[tuple[Step, ...], When, bool, bool]]
"""Output path → the steps to it from some tensor, when they are taken, whether a gradient flows through it, and
whether a hook hears of it on the way."""


def _within(base: Slot, steps: tuple[Step, ...], when: When, tracked: bool, heard: bool) -> View:
    """A view of a base; one that was detached, and written to with what requires grad, has a history of its own, as
    has one on whose way a hook hears of the gradient."""
    computed = tracked and (detaches(steps) or heard)
    return View(base, steps, "after" if computed else when, when == "before" and not computed, computed=computed)


def _must_be_views(users: _Users) -> bool:
    """Whether autograd must know that outputs share memory: a gradient flows through one of several, or one may not
    be used any more."""
    stale = any(when == "before" for _, when, *_ in users.values())
    return stale or (len(users) > 1 and any(tracked for _, _, tracked, _ in users.values()))


def _views(
    tensors: Mapping[str, Tensor], slot_of: Mapping[int, Arg | Captured], lineage: Lineage
) -> tuple[dict[str, View], list[tuple[Tensor, _Users]]]:
    """The outputs that are inputs or views of them; and the other tensors outputs are views of, each with these
    outputs."""
    views: dict[str, View] = {}
    intermediates: dict[int, tuple[Tensor, _Users]] = {}
    for path, tensor in tensors.items():
        if id(tensor) in slot_of:
            views[path] = View(slot_of[id(tensor)])
            continue
        now = lineage.current(tensor)
        root, steps, written_since = lineage.path(
            now, lambda t: id(lineage.named(t)) in slot_of and not lineage.is_past(t), True
        )
        own = lineage.named(root)
        if id(own) in slot_of:
            when: When = "after"
            if own is not root:
                when = "last" if lineage.current(own) is root else "before"
            elif written_since or (is_stale(root) and lineage.late(now, root) < len(steps)):
                when = "before"
            # what stands for it looks at memory that it has in the end alone
            holder = root if lineage.given(own) is not None else own
            own_way = lineage.is_opaque(now, holder) or detaches(steps) or lineage.is_heard(now, own)
            tracked = has_history(now) and own_way
            computed = tracked or lineage.is_ruled(now, holder)
            # it looked like this for a while, or does not yet
            if root is not holder and (when == "before" or computed):
                _, before, _ = lineage.path(root, lambda t, own=own: t is own)  # type: ignore[misc]
                steps = (*before, *steps)
            if own is root and lineage.precedes(now, own):
                if written_since or not lineage.written(lambda t, own=own: t is own):  # type: ignore[misc]
                    when = "first"
                else:
                    # no gradient flows to it, as to one taken before
                    steps = tuple(evolve(step, tracked=False) for step in steps)
            elif own is root and lineage.follows(now, own):
                steps = (DETACH, *steps)  # it still requires grad when the view is taken again
            if computed:
                views[path] = View(
                    slot_of[id(own)], steps, "last" if root is holder and root is not own else "after", computed=True
                )
            else:
                late = lineage.late(now, root) if when == "before" else 0
                views[path] = View(slot_of[id(own)], steps, when, is_stale(now) and when == "last", late=late)
            continue
        root, steps, written_since = lineage.path(now, lambda t: False)
        if not lineage.is_unknown(root):
            intermediates.setdefault(id(root), (root, {}))[1][path] = (
                steps,
                "before" if is_stale(now) else "after",
                has_history(now) and not is_dead_end(now),
                now is not root and lineage.is_heard(now, root),
            )
    return views, list(intermediates.values())


def _require_plain(attributes: Sequence[tuple[str, Any]], path: str) -> None:
    for name, value in attributes:
        if isinstance(value, Tensor) or hidden_tensor(value) is not None:
            raise refusals.ATTRIBUTE_OF_RESULT(path, name, where=f"result{path}.{name}")


def _refuse_leaves(
    named: Sequence[tuple[str, Tensor]], slot_of: Mapping[int, object], firsts: Collection[str], lineage: Lineage
) -> None:
    """A leaf that the function makes and returns, or stores, would not get the gradient of a result that depends on
    it."""
    tensors = [t for _, t in named]
    own = {id(t) for t in tensors if is_leaf(t) and id(t) not in slot_of and t.requires_grad}
    depends = own and {id(leaf) for leaf in leaves_below([t for t in tensors if has_history(t)])} & own
    returned = {id(t) for path, t in named if not path.startswith("stored(")}
    stored = [path for path, t in named if path.startswith("stored(") and depends and id(t) in depends]
    if stored:
        lasting = [path for path in stored if path not in firsts]  # it makes another one in each call
        refusal = refusals.STORES_OWN_LEAF if lasting else refusals.MAKES_OWN_LEAF
        raise refusal(*(lasting or stored)[:1], where=(lasting or stored)[0])
    for path, tensor in named:
        if not path.startswith("stored(") or id(tensor) in slot_of:
            continue
        if id(tensor) not in returned and lineage.gradient_of(tensor) is not None:
            raise refusals.STORES_WITH_GRADIENT(path, where=path)
    if depends:
        raise refusals.RETURNS_OWN_LEAF()
