"""Functions that compile again and again since one number is another in each call: who is told of it, once."""

from __future__ import annotations

import re
import types
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from ..capture.inputs import Inputs
from ..errors import RecompileWarning
from ..options import Options
from ..state.lines import user_line, warn
from .key import Difference
from .miss_reasons import why_not
from .program import Program

_CHANGES = 3
"""How often one number may be another before a call compiles with a warning."""
_SEVERAL_CHANGE = 7
"""The same of several values at once: each may settle in its own time."""

_STATE = (
    "a value it reads is another in each call ({}). Pass it as an argument, where a float becomes a symbol, keep it "
    "in a tensor, or let "
    "what depends on it be done outside."
)
_STATES = (
    "values it reads are others in each call ({}). Let a container that it only fills be a list, keep numbers in a "
    "tensor, pass them as arguments, or let what depends on them be done outside."
)
_VALUE = (
    "an argument is another number in each call ({}), which decides what the program is{}. Compute with tensors there "
    "(torch.arange, a mask), pass torch.tensor(n), or name the argument in static_argnums where a program for each "
    "value is meant."
)
_READ = (
    "a size is another in each call ({}), and its value is taken as a number in {}. Compute with tensors there "
    "(torch.arange, a reduction, "
    "a mask), pad to few sizes, or say dynamic=False where a program for each size is meant."
)
_STRUCTURE = (
    "the arguments are of another structure in each call ({}). Pass a tensor in the place of a list, pad to few "
    "lengths, or leave out what is not needed."
)
_STATIC = (
    "a size is another in each call ({}), and the function is not traced with a symbol for it{}. Let what needs the "
    "number be done "
    "outside, pad to few sizes, or say dynamic=False where a program for each size is meant."
)
_OBJECT = (
    "an argument is another object in each call ({}), and programs are for that very one: the function stores there "
    "what a gradient goes through, or it matters which object it is. Return what it stores, or pass what it reads."
)
_NUMBER = (
    "an argument is another number in each call ({}), of a type that is no symbol. Pass float(x) or int(x) where it is "
    "one of NumPy's, a tensor where it is complex, or name the argument in static_argnums where a program for each "
    "value is meant."
)
_TEXT = (
    "an argument that it reads says something else in each call ({}). Leave it out, or name the argument in "
    "static_argnums where a program for each is meant."
)
_TAKEN = (
    "a number that it reads of a tensor is another in each call, and is taken as one of Python's in {}. Where it goes "
    "into arithmetic, sizes or slices of tensors, read it by .item(), which is a symbol; take an item of a tensor, "
    "not of a list. What is only printed is to be formatted in the call of print, or of a logger: "
    "print(f'{{loss:.4f}}'). A loop of another length is another program."
)


_MADE_ANEW = (
    "{} is transformed anew in each call at {}, and compiles for the {}th time: programs are kept by what a transform "
    "returns. Make that once, and call it."
)
_first_compiles: weakref.WeakKeyDictionary[Any, Counter[tuple[str, str | None]]] = weakref.WeakKeyDictionary()


def note_first(kind: str, function: Any, name: str) -> None:
    """Warn where a fourth compiled function of one ``function`` makes its first program at one line of the caller's.
    Bound methods are others in each call."""
    if not isinstance(function, (types.FunctionType, torch.nn.Module)):
        return
    counts, line = _first_compiles.setdefault(function, Counter()), user_line()
    counts[kind, line] += 1
    if counts[kind, line] == _CHANGES + 1:
        warn(_MADE_ANEW.format(name, line, _CHANGES + 1), RecompileWarning)


class Recompiles:
    """What made one compiled function compile."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, name: str, programs: Sequence[Program], inputs: Inputs, options: Options, why_static: str) -> None:
        """Warn at the fourth compile for one number that alone is another. ``why_static``: what stood in the way of
        symbols for sizes."""
        by_program = [(program, found) for program in programs if (found := why_not(program, inputs))]
        reasons = _of_state(by_program) | _of_objects(by_program) | _of_structure(by_program)
        of_arguments = _of_one(by_program, "text", _TEXT) | _of_one(by_program, "number", _NUMBER)
        if options.dynamic is not False:
            of_arguments |= _of_values(by_program)
            reasons |= _of_sizes(by_program, why_static)
        reasons |= {where: reason for where, reason in of_arguments.items() if where not in inputs.static}
        for about, reason in reasons.items():
            self._counts[about] += 1
            at = _SEVERAL_CHANGE if about in (_TOGETHER, _OF_ARGUMENTS) else _CHANGES
            if self._counts[about] == at:
                warn(f"{name} compiles for the {at + 1}th time, since {reason}", RecompileWarning)

    def note_path(self, name: str, programs: Sequence[Program]) -> None:
        """Warn at the fourth compile for a number that was read of a tensor, and is a symbol but for its value being
        taken. Of the programs there are, the first has none."""
        taken: dict[str, set[str]] = {}
        for joint in (program.joint for program in programs if program.joint.reads):
            known = {*joint.symbols, *(joint.sizes.symbols if joint.sizes is not None else ())}
            for guard in joint.by_value & joint.lines.keys():
                if not known.issuperset(_SYMBOL.findall(guard)):
                    taken.setdefault(joint.lines[guard], set()).add(guard)
        for line in (line for line, guards in taken.items() if len(guards) >= _CHANGES - 1):
            self._counts[line] += 1
            if self._counts[line] == 1:
                warn(f"{name} compiles for the {_CHANGES + 1}th time, since {_TAKEN.format(line)}", RecompileWarning)


_SYMBOL = re.compile(r"\b[a-z]+_?\d+\b")
"""Of a number, or of a size."""
_Misses = Collection[tuple[Program, list[Difference]]]


_TOGETHER, _OF_ARGUMENTS, _SHOWN = "values of Python state", "the structure of arguments", 3


def _of_state(misses: _Misses) -> dict[str, str]:
    """The values of Python state that alone are others; where none is, those that are together."""
    symbols = frozenset[str]().union(*(program.facts.symbols for program, _ in misses))
    alone, together = dict[str, str](), ""
    for program, found in misses:
        name = found[0].where if {(d.where, d.about) for d in found} == {(found[0].where, "state")} else ""
        if not name and {d.about for d in found} == {"state"}:
            together = _STATES.format("; ".join(map(str, found[:_SHOWN])))
        # programs from before it was a symbol say nothing about that
        if name and (name in program.facts.symbols or name not in symbols):
            alone.setdefault(name, _STATE.format(found[0]))
    return alone or ({_TOGETHER: together} if together else {})


def _of_objects(misses: _Misses) -> dict[str, str]:
    """The arguments that alone are other objects."""
    alone = [found[0] for _, found in misses if {(d.where, d.about) for d in found} == {(found[0].where, "object")}]
    return {d.where: _OBJECT.format(d) for d in alone}


def _first_of(misses: _Misses, about: str) -> list[Difference]:
    """The first difference to each program to which all are about one thing."""
    return [found[0] for _, found in misses if {d.about for d in found} == {about}]


def _of_structure(misses: _Misses) -> dict[str, str]:
    """The structure of arguments, where it alone is another than in each program."""
    alone = _first_of(misses, "structure")
    return {_OF_ARGUMENTS: _STRUCTURE.format(alone[-1])} if alone and len(alone) == len(misses) else {}


def _of_one(misses: _Misses, about: str, reason: str) -> dict[str, str]:
    """The texts, or the numbers that are no symbols, among the arguments that alone are others."""
    return {d.where: reason.format(d) for d in _first_of(misses, about)}


def _of_values(misses: _Misses) -> dict[str, str]:
    """The arguments that alone are other numbers; where there is a program with a symbol for one, it says which line
    takes its value."""
    symbols = {name for program, _ in misses for name in program.joint.symbols.values()}
    alone = [
        (program, found[0])
        for program, found in misses
        if {(d.where, d.about) for d in found} == {(found[0].where, "value")}
    ]
    # programs from before it was a symbol say nothing about that
    told = [d for program, d in alone if d.where in program.joint.symbols.values() or d.where not in symbols]
    return {d.where: _VALUE.format(d, f" in {d.fixed_in}" if d.fixed_in else "") for d in told}


_SIZES = "sizes"


def _of_sizes(misses: _Misses, why_static: str) -> dict[str, str]:
    """Sizes that alone are others, where a program with symbols takes one as a number, or where none has symbols."""
    alone = [(program, found) for program, found in misses if {d.about for d in found} <= {"sizes", "shape", "stride"}]
    symbolic = [found for program, found in alone if program.joint.sizes is not None]
    for found in symbolic:
        for difference in found:
            if difference.fixed_in:
                return {_SIZES: _READ.format(difference, difference.fixed_in)}
    if symbolic or not alone:
        return {}
    return {_SIZES: _STATIC.format(alone[0][1][0], f" ({why_static})" if why_static else "")}
