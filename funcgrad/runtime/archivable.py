"""What of a program a file cannot hold: refused by name, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from .. import refusals
from ..capture.facts import Facts
from ..capture.inputs import GradientOf, read_all
from ..graph_primitives import Opaque
from ..graphs import Graph, bodies_of
from ..torch_private.tensors import storage_id
from .archive_data import pickled_like
from .captured import Around
from .execute import Differentiable
from .holds import holds
from .key import DynamicSpec, StaticSpec

_PASS = "pass {} as an argument, and return it"


def require_archivable(around: Around, kernel: Any) -> None:
    """Raises ``ArchiveError`` for the first thing that no file can hold."""
    for what, fix in _faults(around, kernel):
        raise refusals.NOT_SAVED(what, fix)


def _faults(around: Around, kernel: Any) -> Iterator[tuple[str, str]]:
    yield from _of_state(around)
    yield from _of_arguments(around)
    yield from _of_kernel(around, kernel)
    yield from _of_captured(around.facts)


def _of_state(around: Around) -> Iterator[tuple[str, str]]:
    facts = around.facts
    for effect in facts.state.effects:
        what = f"it does what only the process can do in which it was traced: {effect}"
        yield what, "return what it writes, or prints"
    if facts.itself:
        path, of = next(iter(facts.itself.items()))
        yield f"it compares objects, and {path} is {of} of this process", _PASS.format(of)
    if facts.generators:
        yield "it draws from a generator of this process", "draw from the default generator"


def _of_arguments(around: Around) -> Iterator[tuple[str, str]]:
    key = around.key
    for path, spec in zip(key.paths, key.leaves, strict=True):
        if isinstance(spec, DynamicSpec) and spec.is_object:
            yield (
                f"{path} is a {spec.kind.__name__}, of which each call brings another",
                f"pass what it reads of {path}",
            )
        if isinstance(spec, StaticSpec) and not _is_known_elsewhere(spec.value):
            kind = type(spec.object).__name__
            yield (
                f"{path} is a {kind}, which is known by which object it is",
                f"close over {path}, or pass its tensors: in another process it would be another one",
            )
    if key.ambient.function_modes:
        yield "it was compiled under a mode of this process", "compile it outside of the mode"


def _is_known_elsewhere(value: Any) -> bool:
    """Whether a value equals its copy that went through a file."""
    try:
        return holds(value, pickled_like(value))
    except Exception:  # whatever its class raises where it is pickled
        return False


def _of_kernel(around: Around, kernel: Any) -> Iterator[tuple[str, str]]:
    joint = around.joint
    if joint.wrappings:
        slot = next(iter(joint.wrappings))
        yield f"{slot} is a tensor subclass", "pass its inner tensors"
    if around.facts.hooks is not None:
        yield "hooks run in its backward pass as they are", "leave out the hooks"
    for opaque in _opaque_in(joint.graph):
        yield f"it calls {opaque.name}, Python that no trace sees", f"call {opaque.name} outside"
    if not isinstance(kernel, Differentiable):
        return
    if kernel.refused is not None:
        yield f"its backward pass raises {type(kernel.refused).__name__}", "compile it under torch.no_grad()"
    elif kernel.late is not None and kernel.late.more_than_code:
        yield "its backward pass reads Python state", "pass what it reads as an argument"
    elif kernel.backward is None and joint.is_split:
        yield "its backward pass is compiled when it runs", "compile it under torch.no_grad()"


def _opaque_in(graph: Graph) -> Iterator[Opaque]:
    for node in graph.fx.nodes:
        if isinstance(node.target, Opaque):
            yield node.target
        for body in bodies_of(node):
            yield from _opaque_in(body)


def _of_captured(facts: Facts) -> Iterator[tuple[str, str]]:
    for c in facts.captured:
        if isinstance(c.origin, GradientOf):
            yield f"it reads {c.origin.slot}.grad", _PASS.format("the gradient")
            return
    tensors = read_all(facts.captured, {})
    for slot, t in tensors.items():
        if t.grad_fn is not None:
            yield f"{slot} has a history (it was computed of what requires grad)", _PASS.format(slot)
    for (a, first), (b, second) in combinations(tensors.items(), 2):
        if first is not second and storage_id(first) == storage_id(second):
            yield f"{a} and {b} share memory", "close over one of them, and take views of it inside"
