"""``checkpoint`` and ``checkpoint_name``: what a function need not keep for its backward pass, in eager PyTorch and
compiled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts, noop_context_fn
from torch.utils.checkpoint import checkpoint as checkpoint_eager

from ..capture.trace import active_trace
from ..checkpoint_policies import Policy, naming, policy_of
from ..errors import ArgumentError
from ..torch_private.levels import transform_active
from ..torch_private.operators import draws_random, is_operator, writes_inputs
from ..trees import tree_map
from .decorator import OMITTED, Decorated, applied
from .definition import name_of


@overload
def checkpoint(f: Callable[..., Any], policy: Any = None) -> Callable[..., Any]: ...
@overload
def checkpoint(*, policy: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
def checkpoint(f: Any = OMITTED, policy: Any = None) -> Any:
    """``f`` whose intermediate values are not kept for backward but computed again, as ``policy`` says.

    ``f`` takes and returns pytrees of tensors. ``policy`` is the name of a policy (``"dots_saveable"``), a function of
    ``fg.checkpoint_policies``, any function that ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes,
    or a list of operators to save; None saves nothing but the arguments. Random draws are made once: compiled, the draw
    is kept (with ``rng="philox"`` its seed is); in eager PyTorch the generator is set back. Called outside of a
    compiled function, this is ``torch.utils.checkpoint.checkpoint(f, ..., use_reentrant=False)``. Inside a
    ``torch.func`` transform that is not compiled, ``f`` is called as it is: torch.func allows no hooks on saved
    tensors, so the numbers are the same and nothing is computed again. Without ``f`` it is a decorator:
    ``@fg.checkpoint(policy="dots_saveable")``.

    Raises ``OptionError`` for what is no policy, ``ArgumentError`` if ``f`` is no function, and where a policy demands
    that a value be computed again that cannot be (a draw with ``rng="eager"``, an operator with effects)
    ``PartitionError``.
    """
    chosen = policy_of(policy)
    return applied(lambda f: Checkpointed(f, chosen), f)


class Checkpointed(Decorated):
    """A function whose intermediate values are computed again. A copy has a copy of the function, as of a method its
    instance."""

    def __init__(self, f: Callable[..., Any], policy: Policy | None) -> None:
        functools.update_wrapper(self, f, updated=())
        self.function, self.policy = f, policy

    def __repr__(self) -> str:
        return f"<funcgrad checkpoint of {name_of(self.function)}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if active_trace() is None and transform_active():
            return self.function(*args, **kwargs)
        contexts: Callable[[], Any] = noop_context_fn
        if self.policy is not None:
            asked = _in_eager(self.policy) if active_trace() is None else self.policy
            contexts = functools.partial(create_selective_checkpoint_contexts, asked)
        # the keywords of f by way of a partial function: some are keywords of torch's checkpoint, too
        called = functools.partial(self.function, **kwargs)
        return checkpoint_eager(called, *args, use_reentrant=False, context_fn=contexts)


_UNWRITTEN = frozenset(
    getattr(torch.ops.aten, name) for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


def _in_eager(policy: Policy) -> Policy:
    """A policy for torch's own contexts. They hand out a saved tensor in place of the call: a skipped draw would
    leave the generator behind, and what is written in place is saved as it was before, or not at all."""

    def ask(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy | bool:
        if is_operator(op) and (draws_random(op) or writes_inputs(op) or op.overloadpacket in _UNWRITTEN):
            return CheckpointPolicy.PREFER_RECOMPUTE
        return policy(ctx, op, *args, **kwargs)

    return ask


def checkpoint_name(x: Any, name: str) -> Any:
    """``x``, a pytree of tensors, as values that a checkpoint policy knows by ``name``; the tensors returned are views
    of those given.

    Raises ``ArgumentError`` if ``name`` is no string.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"checkpoint_name takes a name, got {name!r}", fix='checkpoint_name(x, "attention")')
    with naming(name):
        return tree_map(lambda leaf: _seen(leaf) if isinstance(leaf, Tensor) else leaf, x)


def _seen(tensor: Tensor) -> Tensor:
    """A view of a tensor as a whole: the call that a policy is asked about."""
    return tensor.view_as(tensor)
