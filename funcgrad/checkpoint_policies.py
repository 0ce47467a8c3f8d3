"""Checkpoint policies by JAX's names: what may be saved for backward, and what is computed again.

A policy is what ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes, a function ``(ctx, op, *args,
**kwargs)`` of an ATen call that answers with a ``CheckpointPolicy`` or a bool (True: saved if backward needs it). One
policy serves in eager PyTorch and in compiled functions. Where ``checkpoint_name`` has named a value, the policy is
asked about the name: ``name_asked()`` is the name, and the answer is the answer for the value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from .errors import OptionError
from .inside import set_to
from .torch_private.operators import is_operator

Policy = Callable[..., CheckpointPolicy | bool]

_name: ContextVar[str | None] = ContextVar("funcgrad_checkpoint_name", default=None)

_aten = torch.ops.aten
_Packet = type(_aten.mm)  # all overloads of an operator: calls are of one
_DOTS = frozenset((
    _aten.mm.default, _aten.addmm.default, _aten.mv.default, _aten.addmv.default, _aten.dot.default, _aten.vdot.default,
    _aten.linear.default,
))  # fmt: skip
_BATCHED_DOTS = frozenset((_aten.bmm.default, _aten.baddbmm.default, _aten.addbmm.default))


def name_asked() -> str | None:
    """While a policy is asked about a named value: its name. Else None."""
    return _name.get()


def naming(name: str) -> contextlib.AbstractContextManager[None]:
    """Inside, policies are asked about a value of this name."""
    return set_to(_name, name)


def everything_saveable(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """Whatever backward needs may be saved; nothing is computed again."""
    return True


def nothing_saveable(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """Backward starts from the arguments alone."""
    return False


def dots_saveable(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """Results of matrix products may be saved, batched ones included."""
    return op in _DOTS or op in _BATCHED_DOTS


checkpoint_dots = dots_saveable


def dots_with_no_batch_dims_saveable(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    """Results of matrix products without batch dimensions may be saved: those with weights, not those of attention."""
    return op in _DOTS


checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """Values of these names may be saved, nothing else."""
    return lambda ctx, op, *args, **kwargs: name_asked() in names


def save_anything_except_these_names(*names: str) -> Policy:
    """Everything may be saved but values of these names."""
    return lambda ctx, op, *args, **kwargs: name_asked() not in names


def save_any_names_but_these(*names: str) -> Policy:
    """Named values may be saved, but not those of these names; nothing without a name."""
    return lambda ctx, op, *args, **kwargs: name_asked() is not None and name_asked() not in names


_SAVES = (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """What one of two policies saves may be saved."""
    return lambda ctx, op, *args, **kwargs: any(
        policy(ctx, op, *args, **kwargs) in _SAVES for policy in (first, second)
    )


NAMED: dict[str, Policy] = {
    policy.__name__: policy
    for policy in (everything_saveable, nothing_saveable, dots_saveable, dots_with_no_batch_dims_saveable)
} | {"checkpoint_dots": checkpoint_dots, "checkpoint_dots_with_no_batch_dims": checkpoint_dots_with_no_batch_dims}
"""The policies that an option may give by name."""


def policy_of(value: Any) -> Policy | None:
    """The policy an argument means: None, a name, a function, or a sequence of ATen operators to save.

    Raises ``OptionError`` for anything else.
    """
    if value is None or (callable(value) and not isinstance(value, (type, _Packet)) and not is_operator(value)):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]
    if isinstance(value, (list, tuple)) and value and all(map(is_operator, value)):
        ops = frozenset(value)
        return lambda ctx, op, *args, **kwargs: op in ops
    raise OptionError(
        f"policy={value!r} is no checkpoint policy",
        fix=f"use one of {', '.join(map(repr, NAMED))}, a function of fg.checkpoint_policies, a function (ctx, op, "
        "*args, **kwargs) that "
        "answers with a torch.utils.checkpoint.CheckpointPolicy, or a list of operators (torch.ops.aten.mm.default) "
        "to save",
    )
