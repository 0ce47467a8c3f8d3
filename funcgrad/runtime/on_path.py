"""Which path of a function a call takes: what Python reads of values in it, found without a call."""

from __future__ import annotations

from ..capture.inputs import Inputs
from ..generators import own_draws
from ..graph_primitives import Opaque, PathMiss
from ..graphs import checks_alone
from ..layers.layer import statements_of
from ..layers.stack import inner_values
from ..slots import Signature
from .program import Program


def require_on_path(program: Program, outer: Signature, inputs: Inputs) -> None:
    """Raise ``PathMiss`` where Python reads other values in a call with these inputs than when the program was made.
    PyTorch computes what is read, of what is there now; nothing is written to, and the generators are not drawn
    from. Where that takes Python with effects, or the parts of wrapper subclasses, it is not asked."""
    if not program.joint.reads or program.joint.wrappings:
        return
    checks = checks_alone(program.partition.forward)
    if any(isinstance(node.target, Opaque) and not node.target.is_pure for node in checks.fx.nodes):
        return
    with own_draws():
        checks.run(*inner_values(statements_of(program.plain_layers, outer), inputs, program.facts))


def other_path(program: Program, outer: Signature, inputs: Inputs) -> list[str]:
    """What Python reads otherwise first in a call with these inputs, if anything."""
    try:
        require_on_path(program, outer, inputs)
    except PathMiss as miss:
        read = program.joint.reads[miss.read]
        return [f"Python reads {miss.value!r} of a value that was {read}"]
    return []


def first_float(program: Program, start: int = 0) -> int | None:
    """Where, from a place on, a program has a number that no other call reads: a float that is no symbol."""
    reads = enumerate(program.joint.reads)
    return next((i for i, read in reads if i >= start and type(read.value) is float), None)
