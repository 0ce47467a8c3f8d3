"""A leaf to which the engine goes on without a gradient, where in eager PyTorch a backward pass does not come to it:
hooks that it got after the call do not hear of that pass.

Several passes may come to a leaf at once, one within another or in threads. So what is known goes by the number of the
pass, and in any other one a hook is called as it is; the last of them to end puts the hooks back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ..autograd_state import is_leaf
from ..torch_private.autograd import at_end_of_pass, running_pass
from .given_tensors import is_heard


@define(eq=False)
class _Leaf:
    """One that passes which run pass over."""

    leaf: Any
    arrives: dict[int, bool] = field(factory=dict)
    """By pass, whether a gradient comes from elsewhere, known when it is added up."""
    _handle: RemovableHandle | None = None

    def wrap(self) -> None:
        """Stand before the hooks that the leaf has."""
        after = self.leaf._post_accumulate_grad_hooks or {}
        if after and self._handle is None:  # these are not told what has arrived
            self._handle = get_gradient_edge(self.leaf).node.register_prehook(self.hear)
        for hooks in (self.leaf._backward_hooks or {}, after):
            for key, hook in list(hooks.items()):
                if not isinstance(hook, _Hook):
                    hooks[key] = _Hook(hook, self, is_after=hooks is after)

    def hear(self, given: tuple[Tensor | None, ...]) -> None:
        """The leaf is given this."""
        if (number := running_pass()) in self.arrives:
            self.arrives[number] = given[0] is not None

    def put_back(self) -> None:
        """The hooks stand for themselves again."""
        if self._handle is not None:
            self._handle.remove()
        for hooks in (self.leaf._backward_hooks or {}, self.leaf._post_accumulate_grad_hooks or {}):
            for key, hook in list(hooks.items()):
                if isinstance(hook, _Hook) and key in hooks:
                    hooks[key] = hook.hook


@frozen(eq=False)
class _Hook:
    """A hook, which in passes that pass over its leaf is called where a gradient arrives from elsewhere."""

    hook: Callable[[Any], Any]
    leaf: _Leaf
    is_after: bool
    """Whether it is given the leaf, to which a gradient has been added."""

    def __call__(self, given: Tensor | None) -> Any:
        number = running_pass()
        if number in self.leaf.arrives and not (self.leaf.arrives[number] if self.is_after else given is not None):
            return None
        return self.hook(given)


_lock = threading.RLock()
_leaves: dict[int, _Leaf] = {}
"""Those that passes which run pass over, by identity."""


@frozen(eq=False)
class _End:
    """That of a pass: called, or let go of by the engine, which calls nothing where a pass fails."""

    leaf: _Leaf
    number: int

    def __call__(self) -> None:
        with _lock:
            if self.leaf.arrives.pop(self.number, None) is not None and not self.leaf.arrives:
                del _leaves[id(self.leaf.leaf)]
                self.leaf.put_back()

    __del__ = __call__


def pass_over(leaf: Tensor) -> None:
    """The hooks of a leaf do not hear of the backward pass that runs, if it comes to it without a gradient."""
    number = running_pass()
    if number < 0:  # the node is called by itself, and nothing goes on to the leaf
        return
    with _lock:
        own = _leaves.setdefault(id(leaf), _Leaf(leaf))
        if number not in own.arrives:
            own.arrives[number] = False
            at_end_of_pass(_End(own, number))
        own.wrap()


def add_zeros(ctx: Any, result: list[Any], places: Iterable[int]) -> None:
    """The engine goes on to inputs that this pass does not reach, where in eager PyTorch it does not: a hook there
    would be given None. So a leaf that got hooks since the call is passed over, and what was computed outside, which
    may have some, gets zeros."""
    for i in places:
        given = ctx.given[i]()
        if result[i] is not None or not is_heard(given):
            continue
        if given is not None and is_leaf(given):
            if not hasattr(ctx, "_asked"):  # a recorded pass calls them itself
                pass_over(given)
        else:
            like = ctx.inputs[i]
            result[i] = torch.zeros_like(like if isinstance(like, Tensor) else like.empty())
