"""One program or two: which graph is traced, which graphs run, and how the halves become a differentiable call.

A gradient runs as one program, forward and backward fused. A ``jit`` whose result must be differentiable is traced
together with its pullback and runs as two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..backends.backend import Runnable
from ..capture.facts import Facts, Inputs
from ..capture.joint import capture
from ..errors import TraceError
from ..graphs import Graph, Joint, is_random, restrict, value_of
from ..partition.partition import Partition
from ..runtime.execute import Differentiable
from ..runtime.key import Autocast, autocast_as
from ..slots import Grad, Saved, Slot, Tangent
from ..trees import leaf_paths
from .definition import Definition, Pullback, name_of


def pullback_of(definition: Definition, inputs: Inputs, facts: Facts) -> Pullback:
    """The vector-Jacobian product of a definition with respect to every input that requires grad."""
    paths = leaf_paths(inputs.tree)
    wrt = [(p, s) for p, s, v in zip(paths, inputs.slots, inputs.leaves, strict=True) if isinstance(v, Tensor) and v.requires_grad]
    captured = [c.slot for c in facts.captured if c.requires_grad]
    return Pullback(definition, tuple(p for p, _ in wrt), (*(s for _, s in wrt), *captured))


def trace_joint(definition: Definition, inputs: Inputs, facts: Facts, grad: bool) -> Joint:
    """The joint graph of a definition: with its pullback if its result must be differentiable and it runs as two halves."""
    if definition.splits and facts.differentiable:
        pullback = pullback_of(definition, inputs, facts)
        joint = capture(lambda *args, **kwargs: pullback(args, kwargs, None), inputs, facts, True, pullback.split_out_slot)
        joint = joint.returning_child(0)
    else:
        joint = capture(definition, inputs, facts, grad and definition.splits, definition.out_slot)
    if [f.path for f in facts.outputs] != leaf_paths(joint.returned.tree):
        raise TraceError(
            f"{name_of(definition.root)} returned another structure in its second run than in its first",
            fix="make it a pure function of its arguments: the structure of its result must not depend on what ran before",
        )
    return joint


def outs_to_run(joint: Joint) -> list[Slot]:
    """The outputs a forward program computes. An output that *is* an input is the caller's own tensor."""
    returned = [leaf for leaf in joint.returned.leaves if isinstance(leaf, Slot)]
    return [slot for slot in dict.fromkeys(returned) if joint.graph.input_of(slot) is None]


def graphs_to_run(definition: Definition, facts: Facts, joint: Joint, split: Partition) -> list[Graph]:
    """The whole joint graph, or its two halves."""
    outs = outs_to_run(joint)
    if definition.splits and facts.differentiable:
        saved = [s for s in split.forward.signature.outs if isinstance(s, Saved)]
        return [restrict(split.forward, [*outs, *saved]), split.backward]
    return [restrict(joint.graph, outs)]


def differentiable(
    inputs: Inputs,
    facts: Facts,
    joint: Joint,
    graphs: Sequence[Graph],
    runnables: Sequence[Runnable],
    pullback: Callable[..., Any],
    autocast: Autocast,
) -> Differentiable:
    """The program as an autograd Function of its flat inputs; ``pullback`` is compiled when a derivative of it is asked for."""
    ins = [s for s in joint.signature.ins if not isinstance(s, Tangent)]
    outs = outs_to_run(joint)
    grads = {slot for slot, _, requires_grad in facts.inputs if requires_grad} | {c.slot for c in facts.captured if c.requires_grad}
    requires_grad = [f.requires_grad for f in facts.outputs if f.is_tensor]
    slots = [leaf for leaf in joint.returned.leaves if isinstance(leaf, Slot)]
    active = {slot for slot, flag in zip(slots, requires_grad, strict=True) if flag}
    backward = graphs[1] if len(graphs) == 2 else None
    tangents = [n for s, n in zip(joint.signature.ins, joint.graph.placeholders, strict=True) if isinstance(s, Tangent)]
    template = inputs.released()
    dynamic = [slot for slot, _ in inputs.dynamic]

    captured_then = facts.released().captured

    def derivative(values: Sequence[Any], incoming: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Runs the function again, so what it closes over must be what it was."""
        for c, then in zip(captured_then, values[len(dynamic) :], strict=True):
            if c.read() is not then:
                raise TraceError(
                    f"{c.slot} was rebound between a forward pass and a backward pass that is differentiated (create_graph=True)",
                    where=str(c.slot),
                    fix="pass it as an argument, or rebind it after the backward pass",
                )
        args, kwargs = template.rebuild(dict(zip(dynamic, values, strict=False)))
        with autocast_as(autocast):
            gradients, captured = pullback(args, kwargs, tuple(incoming))
        return (*gradients, *captured)

    return Differentiable(
        forward=runnables[0],
        backward=runnables[1] if backward else None,
        n_outs=len(outs),
        differentiable=tuple(i for i, slot in enumerate(outs) if slot in active),
        tangent_strides=tuple(tuple(value_of(n).stride()) for n in tangents),
        kept_inputs=tuple(ins.index(s) for s in backward.signature.ins if s in ins) if backward else (),
        backward_gradients=tuple(ins.index(s.of) for s in backward.signature.outs if isinstance(s, Grad)) if backward else (),
        gradient_inputs=tuple(i for i, slot in enumerate(ins) if slot in grads),
        pullback=derivative,
        draws=any(is_random(n) for n in joint.graph.fx.nodes),
    )
