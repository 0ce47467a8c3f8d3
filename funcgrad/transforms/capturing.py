"""The first half of the pipeline: a call becomes what stands around its kernel, and a joint graph.

observe (a dry run says what the function does) → layers (what must happen around the kernel for that) → capture (the
recorded run).
"""

from __future__ import annotations

import types

import torch
from attrs import evolve

from ..capture.backward import BackwardError
from ..capture.captures import GradientsMatter
from ..capture.dry_run import Surroundings
from ..capture.error_translation import named_error
from ..capture.facts import Facts, require_sizes_may_vary
from ..capture.floats import NotSymbolicError, VaryingNumbersError
from ..capture.inner import Inner
from ..capture.inputs import Inputs, Unresolved, read_all
from ..capture.joint import capture
from ..capture.observe import observe
from ..capture.reads import READS_LATER
from ..checkpoint_policies import policy_of
from ..errors import AutocastWarning
from ..graph_primitives import Opaque, Path, has_sizes, has_symbols
from ..joint import Joint
from ..layers.inverse import inverse_of
from ..layers.layer import statements_of
from ..layers.stack import inner_signature, inner_values, outer_signature, plan_layers, writing_at_level
from ..levels import level_of_call
from ..options import Options
from ..runtime.captured import CapturedCall
from ..runtime.key import key_of, with_sizes
from ..stages import Stages
from ..state.lines import warn
from ..state.renewed import Brought, may_lead_to
from ..state.values import is_plain
from ..state.watch import Watch
from ..torch_private.autograd import is_of_graph
from .definition import Definition, Inferring, Plain, Untracked, name_of, runs_graph

_AUTOCAST_UNSAID = (
    "{} is differentiated while autocast is on: the backward of a custom autograd.Function will not see it. "
    'Say backward_autocast="off" if that is meant, or "same_as_forward".'
)


def capture_call(definition: Definition, inputs: Inputs, options: Options, stages: Stages, path: Path) -> CapturedCall:
    """``path``: what Python reads first of the values of tensors, whatever they are now."""
    varying = frozenset[str]()
    while True:
        try:
            return _captured(definition, inputs, options, stages, path, varying)
        # the dry run sees concrete sizes: if the recorded run returns a number that depends on a symbolic one, both
        # run again, with those results marked as varying
        except VaryingNumbersError as found:
            if found.names <= varying:
                raise
            varying |= found.names


def _captured(
    definition: Definition, inputs: Inputs, options: Options, stages: Stages, path: Path, varying: frozenset[str]
) -> CapturedCall:
    """The first half of the pipeline for one path and one set of symbols: the dry run, the layers that its facts call
    for, the recorded run of what they leave, and the key."""
    with stages("observe"):
        known = None if options.reads == "error" else path
        definition, grad, facts, watch = _observed(definition, inputs, options, known, varying)
        tensors = read_all(facts.captured, dict(inputs.dynamic))
        key = key_of(inputs, list(tensors.items()), facts)
        if inputs.sizes or (facts.path is not None and any(has_sizes(v) for v in facts.path if type(v) is tuple)):
            require_sizes_may_vary(facts)
    with stages("layers"):
        if (
            key.ambient.autocast
            and options.backward_autocast is None
            and facts.has_custom_functions
            and (facts.differentiable or not definition.splits)
        ):
            warn(_AUTOCAST_UNSAID.format(name_of(definition.root)), AutocastWarning)
        devices = tuple(device for device, _ in key.ambient.autocast)
        outer = outer_signature(facts, definition.out_slot)
        layers = plan_layers(outer, facts, devices, not grad and not definition.splits, definition.at_level)
        if definition.at_level:
            layers = writing_at_level(layers, dict([*inputs.tensors, *tensors.items()]), facts, level_of_call())
        statements = statements_of(layers, outer)
        inner = Inner(
            definition, inputs.released(), facts.released(), inner_signature(outer, layers), inverse_of(statements),
            definition.out_slot, definition.splits, options.backward_autocast, policy_of(options.policy), options.rng,
        )  # fmt: skip
    with stages("capture"):
        joint, refused = _traced(inner, inner_values(statements, inputs, facts), grad, watch, definition.at_level)
        watch.release()
        if joint.sizes is not None and joint.sizes.are_numbers:
            require_sizes_may_vary(facts)
            if options.memory_budget is not None:
                raise NotSymbolicError("a program with a memory_budget is for known sizes")
        if facts.state.brought.renewed and _keeps_objects(facts, joint):
            facts = evolve(facts, state=evolve(facts.state, brought=Brought()))
            key = key_of(inputs, list(tensors.items()), facts)
        same = {str(slot): str(first) for slot, first in facts.first_of_same.items()}
        key = with_sizes(key, joint.sizes, same)
    return CapturedCall(definition.root, grad, inputs, tensors, facts, key, outer, layers, inner, joint, refused)


def _keeps_objects(facts: Facts, joint: Joint) -> bool:
    """Whether a program has what is of the objects of the call that was compiled: tensors that are found there, and
    nobody knows how; Python that no trace sees, but for hooks that close over plain values."""
    targets = [node.target for node in joint.graph.fx.nodes]
    is_opaque = any(isinstance(target, Opaque) and not target.takes_none for target in targets)
    hooks_keep = any(not (isinstance(v, types.FunctionType) or is_plain(v)) for v in facts.hooks or ())
    unresolved = [c.tensor for c in facts.captured if isinstance(c.origin, Unresolved)]
    return is_opaque or hooks_keep or may_lead_to(facts.state.brought.renewed, unresolved)


def _no_code() -> None:
    """What a function mentions that runs none of the caller's Python."""


def _observed(
    definition: Definition, inputs: Inputs, options: Options, path: Path | None, varying: frozenset[str]
) -> tuple[Definition, bool, Facts, Watch]:
    """What a dry run shows; of which definition, whether gradients matter outside of it, and the watch over Python
    state."""
    level = level_of_call() if definition.at_level else 0
    called = definition.of if isinstance(definition, Inferring) else definition
    hands_over = isinstance(called, Plain) and called.replays

    def observed(definition: Definition, grad: bool, replays: bool) -> tuple[Definition, bool, Facts, Watch]:
        around = Surroundings(
            inputs, grad, definition.out_slot, definition.splits, options.rng, hands_over, replays, level, path, varying
        )  # fmt: skip
        return definition, grad, *observe(definition, _no_code if runs_graph(definition) else definition.root, around)

    try:
        return observed(definition, torch.is_grad_enabled(), definition.replays)
    except GradientsMatter:
        return observed(Untracked(definition), True, definition.replays)


def _traced(
    inner: Inner, reals: list[object], grad: bool, watch: Watch, at_level: bool
) -> tuple[Joint, Exception | None]:
    """The joint graph: with its backward pass if its result must be differentiable and it runs as two halves.

    Where only differentiating fails, the forward pass alone, and the error ``backward()`` will raise, as in eager
    PyTorch. Where backward reads values that come in then, or writes to Python state, the forward pass alone, too:
    backward is compiled when it runs.
    """
    if not (inner.splits and inner.facts.differentiable):
        return capture(inner, reals, grad, False, watch, at_level), None
    try:
        return capture(inner, reals, True, not inner.facts.backward_writes, watch, at_level), None
    except BackwardError as error:
        assert isinstance(error.__cause__, Exception)
        if inner.facts.reads is not None and isinstance(error.__cause__, READS_LATER):
            return capture(inner, reals, True, False, watch, at_level), None
        is_symbolic = inner.inputs.has_symbols or bool(has_symbols(inner.facts.path))
        if is_symbolic and not is_of_graph(error.__cause__):  # C++ may know no symbol there
            raise NotSymbolicError(f"its backward pass fails ({error.__cause__})") from error
        refused = named_error(error.__cause__) or error.__cause__
        refused.__cause__ = refused.__context__ = None  # their frames hold the trace
        return capture(inner, reals, True, False, watch, at_level), refused.with_traceback(None)
