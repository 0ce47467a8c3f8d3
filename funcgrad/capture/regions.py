"""Checkpoint regions: what is recorded inside ``torch.utils.checkpoint.checkpoint``, and what its policy says of it.

While a trace runs, a checkpointed function is called like any other, and each call it makes is marked. The innermost
region speaks for a value; a value that leaves it is judged by the region around it, and one that leaves all of them is
saved: that is where computing again stops. Eager PyTorch recomputes a region as a whole; the partition takes from it
what backward needs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from .. import refusals
from ..checkpoint_policies import Policy, name_asked
from ..graphs import is_getitem, is_view, tensors_in, value_of
from ..state.lines import user_line
from ..tags import Said, Tag, said_of, say
from ..torch_private.autograd import checkpoint_contexts, policy_context
from ..torch_private.operators import is_operator

_FLAGS = {
    CheckpointPolicy.MUST_SAVE: Tag.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE: Tag.NONE,
    CheckpointPolicy.MUST_RECOMPUTE: Tag.MUST_RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE: Tag.PREFER_RECOMPUTE,
    CheckpointPolicy.MUST_CPU_OFFLOAD: Tag.MUST_SAVE,
    CheckpointPolicy.PREFER_CPU_OFFLOAD: Tag.NONE,
}

_numbers = itertools.count()


@frozen
class Region:
    """One call of a checkpointed function, or (``policy=``) a compiled function as a whole. No policy: nothing is
    saved."""

    number: int
    policy: Policy | None
    name: str

    def judge(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Said:
        """What the policy says of one call, on fake tensors. Policies speak of operators; anything else may be
        computed again."""
        if self.policy is None or not is_operator(op):
            return Said(self.number, self.name, Tag.PREFER_RECOMPUTE, f"inside of {self.name}")
        answer = self.policy(policy_context(out), op, *args, **kwargs)
        if isinstance(answer, bool):
            answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
        if "OFFLOAD" in answer.name and any(t.device.type != "cpu" for t in tensors_in(out)):
            raise refusals.POLICY_ANSWER(answer.name, op, where=user_line())
        named = f" of {name_asked()!r}" if name_asked() else ""
        return Said(self.number, self.name, _FLAGS[answer], f"the policy of {self.name} says {answer.name}{named}")


def whole(policy: Policy) -> Region:
    """A compiled function as one region."""
    return Region(next(_numbers), policy, "the compiled function")


def checkpointed(
    enter: Callable[[Region], contextlib.AbstractContextManager[None]], _: Any, /, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """What stands for torch's own generator in ``checkpoint(f, use_reentrant=False)`` while a trace runs: it is
    entered before ``f`` is called and left afterwards."""
    where = user_line()
    name = f"checkpoint at {where}" if where else "checkpoint"
    with enter(Region(next(_numbers), _policy(checkpoint_contexts(args, kwargs)), name)):
        yield


def _policy(context_fn: Callable[[], tuple[Any, Any]]) -> Policy | None:
    contexts = context_fn()
    if all(isinstance(c, contextlib.nullcontext) for c in contexts):
        return None
    policy: Policy | None = getattr(contexts[0], "policy_fn", None)
    if policy is None:
        raise refusals.CHECKPOINT_CONTEXTS(where=user_line())
    return policy


def mark(
    regions: Sequence[Region], node: fx.Node, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any
) -> None:
    """Note what the regions around a call say of its result. Where it only names a value, they are asked about the
    call that made the value, once more: by name."""
    said = tuple(region.judge(op, args, kwargs, out) for region in regions)
    for one in (node, *node.users):
        say(one, said)
    if name_asked() is not None:
        while is_view(node):
            node = node.all_input_nodes[0]
        made = node.all_input_nodes[0] if is_getitem(node) else node
        if made.op == "call_function":
            args, kwargs = fx.map_arg((made.args, made.kwargs), value_of)
            of = {region.number: region.judge(made.target, args, kwargs, value_of(made)) for region in regions}
            # a region speaks only of what is made in it
            say(node, tuple(of.get(one.region, one) for one in said_of(node)))
