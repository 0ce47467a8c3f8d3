"""Which tensor each view was taken of in one run of a function, and which tensors were changed to look otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from ..autograd_state import gradient_of, is_leaf, made_by_python, version_of
from ..graphs import tensors_in
from ..subclasses import is_traced
from ..torch_private.functional import view_kind
from ..torch_private.modes import without_function_modes
from .views import Given, HowGiven, Step, detaches


class Lineage:
    """Which tensor each view was taken of, in one run of a function; and which tensors were changed to look
    otherwise."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Tensor, Step, int]] = {}
        self._without_grad: set[int] = set()
        self.switched_off: set[int] = set()
        """Leaves that require grad no more."""
        self.switched_on: set[int] = set()
        """By identity, inputs, views, that come to require grad: for themselves, as what they are views of does not."""
        self.told: set[int] = set()
        """Views taken under no_grad of a leaf that come to be leaves for themselves."""
        self._replaced: dict[int, Tensor] = {}
        self._looks: dict[int, list[Tensor]] = {}
        self._named: dict[int, Tensor] = {}
        self._restrides: dict[int, list[Step]] = {}
        self._given: dict[int, Tensor] = {}
        self._how_given: dict[int, tuple[HowGiven, Tensor, int, bool]] = {}
        self._over_given: set[int] = set()
        self._restrided_before: dict[int, int] = {}
        self._unknown: set[int] = set()
        self._ruled: set[int] = set()
        self._hooked: set[int] = set()
        self._written: list[tuple[Tensor, bool]] = []
        self._written_with_grad: list[Tensor] = []
        self.variables: dict[int, Tensor] = {}
        """By identity, leaves that stand for what is differentiated, inside of a gradient alone."""
        self.with_history: dict[int, Tensor] = {}
        """The same that are computed outside: written to while grad mode is on, they would be other variables."""
        self.frees_graph = False
        """Whether the gradient that is traced is not to be differentiable, so that it frees the graph of its run."""
        self._alive: list[Tensor] = []  # an id stays unique only while its object lives

    def note(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Write down one view op."""
        source = args[0]
        if not is_traced(source):
            return  # a constant on its way into the trace
        self._alive.append(source)
        if view_kind(op) == "restride":
            self._unknown.add(id(source))
            return
        if op in _AS_ANOTHER:
            op, args = _AS_ANOTHER[op], (source, tuple(args[1].shape))
        with without_function_modes():
            version, without_grad = version_of(source), not source.requires_grad
        rest, named = _hashable(args[1:]), tuple((k, _hashable(v)) for k, v in kwargs.items())
        for i, result in enumerate(tensors_in(out)):
            if result is not source:
                item = i if isinstance(out, (list, tuple)) else None
                self._taken[id(result)] = (source, Step(op, rest, named, item, torch.is_grad_enabled()), version)
                self._without_grad |= {id(result)} if without_grad else set()
                self._alive.append(result)

    def wrote(self, tensor: Tensor, tracked: bool) -> None:
        """Write down that a tensor was written to, and whether autograd could track it."""
        self._written.append((tensor, tracked))
        if torch.is_grad_enabled():
            self._written_with_grad.append(tensor)

    def written(self, known: Callable[[Tensor], bool]) -> list[tuple[Tensor, bool]]:
        """The ``known`` tensors that were written to, themselves or through a view; tracked or not. Through
        ``detach``, none is."""
        paths = [(*self.path(t, known, True)[:2], tracked) for t, tracked in self._written]
        return [(root, tracked and not detaches(steps)) for root, steps, tracked in paths if known(root)]

    def written_with_grad(self, known: Callable[[Tensor], bool]) -> set[int]:
        """The ``known`` tensors that were written to in grad mode, as ``written`` has them, by identity."""
        paths = (self.path(t, known, True)[:2] for t in self._written_with_grad)
        return {id(root) for root, steps in paths if known(root) and not detaches(steps)}

    def strided_and_written(self, tensor: Tensor) -> Iterator[Tensor]:
        """What was written to, and tracked, through an ``as_strided`` view of a tensor."""
        for view, tracked in self._written:
            root, steps, _ = self.path(view, lambda t: t is tensor, True)
            if tracked and root is tensor and any(step.op is torch.ops.aten.as_strided.default for step in steps):
                yield view

    def replace(self, tensor: Tensor, by: Tensor, tracked: bool) -> None:
        """Wherever the function names ``tensor`` from now on, it means ``by``, the view it changed into (in grad
        mode: ``tracked``)."""
        self._replaced[id(tensor)] = by
        self._looks.setdefault(id(tensor), []).append(by)
        self._named[id(by)] = tensor
        self._alive += [tensor, by]
        self._restrides.setdefault(id(tensor), []).append(evolve(self._taken[id(by)][1], tracked=tracked))

    def give(self, tensor: Tensor, by: Tensor, memory: Tensor, how: HowGiven) -> None:
        """From now on ``tensor`` means ``by``, which has its history and looks at the memory of ``memory``."""
        self._replaced[id(tensor)] = by
        self._looks.setdefault(id(tensor), []).append(by)
        self._named[id(by)] = tensor
        self._given[id(tensor)] = memory
        self._over_given.add(id(by))
        # its version counter is the one it had
        before = id(tensor) in self._how_given and self.how_given(tensor).written
        self._how_given[id(tensor)] = how, by, version_of(by), before
        steps = self._restrides.setdefault(id(tensor), [])
        del steps[self._restrided_before.setdefault(id(tensor), len(steps)) :]  # of memory it has no more
        self._alive += [tensor, by, memory]

    def version_taken(self, tensor: Tensor) -> int:
        """The version counter of a tensor when it was taken as a view; of any other, its counter now."""
        return self._taken[id(tensor)][2] if id(tensor) in self._taken else version_of(tensor)

    def late(self, tensor: Tensor, root: Tensor) -> int:
        """How many of the last steps on the way from a root to a tensor were taken after all writes."""
        now, found = version_of(root), 0
        while tensor is not root and self._taken[id(tensor)][2] == now:
            tensor, found = self._taken[id(tensor)][0], found + 1
        return found

    def given(self, tensor: Tensor) -> Tensor | None:
        """A tensor over the memory that this one was given in the place of its own, if it was."""
        return self._given.get(id(tensor))

    def how_given(self, tensor: Tensor) -> Given:
        """How it was given that."""
        how, by, version, before = self._how_given[id(tensor)]
        restrides = tuple(self._restrides[id(tensor)][self._restrided_before[id(tensor)] :])
        now = self.current(tensor)
        tracked = how != "set_, tracked" and now.requires_grad and self._is_rewritten(tensor)
        return Given(how, restrides, before or version_of(by) != version, tracked)

    def rewritten(self, tensor: Tensor) -> Tensor:
        """What a tensor holds in memory that it was given, with the history of what was written there."""
        with torch.enable_grad():
            return self.current(tensor).clone()

    def _is_rewritten(self, tensor: Tensor) -> bool:
        """Whether a write to memory that a tensor was given was tracked."""
        looks = {id(look) for look in self.looks(tensor)} & self._over_given
        return any(tracked for _, tracked in self.written(lambda t: id(t) in looks))

    def is_given_alone(self, tensor: Tensor) -> bool:
        """Whether it was given other memory, and looked as it was made until then: it has the gradient that it had."""
        return self.given(tensor) is not None and not self.restrides(tensor)

    def is_past(self, tensor: Tensor) -> bool:
        """Whether it stood for another one until that was given other memory: it looks at memory that one has no
        more."""
        named = self.named(tensor)
        return named is not tensor and self.given(named) is not None and self.current(named) is not tensor

    def is_looked_at(self, tensor: Tensor) -> bool:
        """Whether a view of it was taken."""
        return any(source is tensor for source, _, _ in self._taken.values())

    def views_of(self, tensor: Tensor) -> list[Tensor]:
        """The views of a tensor, and of its views, that were taken so far."""
        taken = {id(t): t for t in self._alive if id(t) in self._taken}
        return [t for t in taken.values() if self.path(t, lambda source: source is tensor)[0] is tensor]

    def restrides(self, tensor: Tensor) -> tuple[Step, ...]:
        """The changes of how a tensor looks, in order, before it was given other memory."""
        return tuple(self._restrides.get(id(tensor), ())[: self._restrided_before.get(id(tensor))])

    def current(self, tensor: Tensor) -> Tensor:
        """What a tensor has become: itself, or the view that stands for it since it was restrided."""
        return self._replaced.get(id(tensor), tensor)

    def looks(self, tensor: Tensor) -> Sequence[Tensor]:
        """What has stood for a tensor since it was restrided, or given other memory, in order."""
        return self._looks.get(id(tensor), ())

    def gradient_of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor: of what it has become, or the one it had before it came to look otherwise, and
        still has."""
        found = (gradient_of(look) for look in (self.current(tensor), tensor, *self.looks(tensor)))
        return next((gradient for gradient in found if gradient is not None), None)

    def named(self, tensor: Tensor) -> Tensor:
        """The tensor of the function's that a view stands for; any other is itself."""
        return self._named.get(id(tensor), tensor)

    def source(self, tensor: Tensor) -> tuple[Tensor, Step] | None:
        """What a tensor was taken of, and how."""
        return self._taken[id(tensor)][:2] if id(tensor) in self._taken else None

    def root(self, tensor: Tensor) -> Tensor:
        """What a tensor is a view of, or a view of a view."""
        while (taken := self.source(tensor)) is not None:
            tensor = taken[0]
        return tensor

    def precedes(self, tensor: Tensor, leaf: Tensor) -> bool:
        """Whether a view of a leaf was taken before that came to require grad (``requires_grad_()``): no gradient
        flows to it."""
        return leaf.requires_grad and is_leaf(leaf) and self._is_without_grad(tensor, leaf)

    def follows(self, tensor: Tensor, leaf: Tensor) -> bool:
        """Whether a view of a leaf was taken after that was told to require grad no more, or before that ever did."""
        return id(leaf) in self.switched_off and not leaf.requires_grad and self._is_without_grad(tensor, leaf)

    def _is_without_grad(self, tensor: Tensor, leaf: Tensor) -> bool:
        while (taken := self.source(tensor)) is not None and taken[0] is not leaf:
            tensor = taken[0]
        return id(tensor) in self._without_grad

    def ruled(self, results: Sequence[Tensor]) -> None:
        """Write down what a custom ``autograd.Function`` made at a level: forward mode asks its rule, and leaves no
        history to tell."""
        self._ruled |= set(map(id, results))
        self._alive += results

    def hooked(self, tensor: Tensor) -> None:
        """Write down that the function registers a hook on a tensor."""
        self._hooked |= {id(tensor), id(self.named(tensor))}
        self._alive.append(tensor)

    def is_heard(self, view: Tensor, source: Tensor) -> bool:
        """Whether a hook of the function's hears of gradients on their way from a view to what it looks at."""
        while id(view) not in self._hooked and view is not source and id(view) in self._taken:
            view = self._taken[id(view)][0]
        return id(view) in self._hooked

    def is_opaque(self, tensor: Tensor, source: Tensor) -> bool:
        """Whether a custom ``autograd.Function`` stands between a view and what it looks at."""
        return self.path(tensor, lambda t: t is source)[0] is not source

    def is_ruled(self, tensor: Tensor, source: Tensor) -> bool:
        """Whether the rule of such a one says what the tangent of a view is."""
        return id(self.path(tensor, lambda t: t is source)[0]) in self._ruled - {id(source)}

    def _is_made_by_function(self, tensor: Tensor) -> bool:
        return id(tensor) in self._ruled or made_by_python(tensor)

    def is_unknown(self, tensor: Tensor) -> bool:
        """Whether a tensor was restrided where ``replace`` did not hear of it (in C++, in a custom Function)."""
        return id(tensor) in self._unknown

    def path(
        self, tensor: Tensor, known: Callable[[Tensor], bool], through: bool = False
    ) -> tuple[Tensor, tuple[Step, ...], bool]:
        """The tensor it is, in the end, a view of, the steps from there, and whether that was written to since.

        The search ends at a tensor that is ``known``, and at the result of a custom ``autograd.Function``, which is a
        view with a history of its own (unless it goes ``through`` these).
        """
        steps: list[Step] = []
        version = None
        while not known(tensor) and id(tensor) in self._taken and (through or not self._is_made_by_function(tensor)):
            tensor, step, then = self._taken[id(tensor)]
            # of the last step: what it is taken of may itself have been stale
            version = then if version is None else version
            steps.append(step)
        return tensor, tuple(reversed(steps)), version is not None and version_of(tensor) > version


_AS_ANOTHER = {
    torch.ops.aten.view_as.default: torch.ops.aten.view.default,
    torch.ops.aten.expand_as.default: torch.ops.aten.expand.default,
    torch.ops.aten.reshape_as.default: torch.ops.aten.reshape.default,
}
"""Views of the sizes of another tensor, which is not there when they are taken again, and the views of those sizes."""


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value
