"""Whether a program fits a call, and if not, why: the reasons a miss gives, and what they teach about floats and ints.

The hot path asks the printed call (``call.py``); this is the same question asked slowly, for an answer one can read.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from attrs import evolve
from torch import Tensor

from ..autograd_state import gradient_of
from ..capture.facts import Facts
from ..capture.inputs import Inputs, Symbolic
from ..capture.memory import history
from ..capture.questions import answer_of
from ..joint import Broken
from ..slots import Captured, State
from ..state.guards import Place
from ..subclasses import with_inner
from ..torch_private.tensors import is_wrapper_subclass
from .key import Ambient, CallKey, Difference, DynamicSpec, LeafSpec, TensorSpec, aliasing, explain, sizes_in, spec_of
from .program import Program

_GONE = (AttributeError, KeyError, IndexError, ValueError)


def key_of(inputs: Inputs, captured: Sequence[tuple[Captured, Tensor]], facts: Facts) -> CallKey:
    """The key of a call with these inputs, of a function that closes over ``captured`` and does what facts say."""
    paths = tuple(slot.path for slot in inputs.slots)
    leaves = tuple(spec_of(leaf, path) for leaf, path in zip(inputs.leaves, paths, strict=True))
    outer = [leaf for leaf in inputs.leaves if isinstance(leaf, Tensor)] + [t for _, t in captured]
    tensors = [t for one in outer for t in with_inner(one)]
    specs = tuple((str(slot), spec_of(t, str(slot))) for slot, t in captured)
    values = dict(zip(inputs.slots, inputs.leaves, strict=True)) | dict(captured)
    histories = tuple(
        (str(slot), history(values[slot])) for slot in facts.histories if isinstance(values.get(slot), Tensor)
    )
    known = [(a, values[a.slot]) for a in facts.asked if isinstance(values.get(a.slot), Tensor)]
    asked = tuple((str(a.slot), a.question, answer_of(a.question, t)) for a, t in known)
    return CallKey(inputs.names, inputs.tree, paths, leaves, specs, aliasing(tensors), Ambient.now(), histories, asked)


def why_not(program: Program, inputs: Inputs) -> list[Difference]:
    """Why a program does not fit a call; empty if it does."""
    captured: list[tuple[Captured, Any]] = []
    found: list[Difference] = []
    for c in program.facts.captured:
        tensor = _read(lambda: c.read(dict(inputs.dynamic) | dict(captured)))  # noqa: B023
        if isinstance(tensor, Tensor):
            captured.append((c.slot, tensor))
        else:
            found.append(Difference(str(c.slot), f"is no tensor any more: {tensor!r}"))
    if not found:
        key = key_of(inputs, captured, program.facts)
        found += explain(program.key, key)
    numbers = {slot.path: place.read() for slot, place in program.facts.numbers}
    others = [slot for slot, _ in program.facts.numbers if type(numbers[slot.path]) is not slot.kind]
    found += [Difference(s.path, f"is no {s.kind.__name__} any more: {numbers[s.path]!r}", "state") for s in others]
    if not found:
        values = {slot.path: leaf for slot, leaf in zip(inputs.slots, inputs.leaves, strict=True)} | numbers
        broken = program.joint.broken_guards(values, sizes_in(program.key, key))
        sizes = set() if program.joint.sizes is None else set(program.joint.sizes.symbols)
        fixed = {b.where for b in broken if b.guard in program.joint.by_value and b.where in numbers}
        about = ["sizes" if sizes.issuperset(b.symbols) else "state" if b.where in fixed else "" for b in broken]
        found += [
            Difference(b.where, f"{b} no longer holds", a, fixed_in=b.line or "" if _is_fixed(b, a, program) else "")
            for b, a in zip(broken, about, strict=True)
        ]
        known = dict(inputs.tensors) | dict(captured)
        changed = [slot for slot, is_leaf in program.facts.leaves.items() if known[slot].is_leaf is not is_leaf]
        found += [
            Difference(str(slot), "is a leaf" if known[slot].is_leaf else "is no leaf any more") for slot in changed
        ]
        found += [
            Difference(str(slot), "has a gradient")
            for slot in program.facts.gradless
            if gradient_of(known[slot]) is not None
        ]
    return found + list(_closed_over(program, {str(slot): tensor for slot, tensor in (*inputs.tensors, *captured)}))


_IS_NUMBER = re.compile(r"(?!.*(%| or )).* == -?\d+(\.\d+)?$")
"""Not ``n % 2 == 0``, which is one of few."""


def _is_fixed(broken: Broken, about: str, program: Program) -> bool:
    """Whether a guard on sizes says which number one is, or what is made of it."""
    return about == "sizes" and (broken.guard in program.joint.by_value or bool(_IS_NUMBER.match(broken.guard)))


def _closed_over(program: Program, tensors: Mapping[str, Tensor]) -> Iterator[Difference]:
    """What the function closes over besides captured tensors, where it is not what the trace baked in."""
    for guard in program.facts.state.guards:
        if not guard.holds():
            yield Difference(
                str(guard.place), guard.explain(), "state", guard.place if type(guard.value) in (float, int) else None
            )
    for name, tensor in tensors.items():
        if id(tensor) in program.facts.apart:
            yield Difference(
                name, "is one object with a tensor that the function read elsewhere, and did not compute with"
            )
    for place, slot in program.facts.also:
        if _read(place.read) is not tensors.get(str(slot)):
            yield Difference(str(place), f"is another tensor than {slot}")


def _read(read: Callable[[], Any]) -> Any:
    """What lives somewhere, or the exception that says it is gone."""
    try:
        return read()
    except _GONE as gone:
        return gone


def with_sizes_as_symbols(inputs: Inputs) -> Inputs:
    """The inputs, with the sizes of all tensors as symbols, but for those of 0 and 1, which mean another program."""
    tensors = [(slot.path, t) for slot, t in inputs.tensors if not is_wrapper_subclass(t)]
    dims = {path: frozenset(d for d, n in enumerate(t.shape) if n > 1) for path, t in tensors}
    return evolve(inputs, sizes={path: own for path, own in dims.items() if own})


Symbol = tuple[str, int | None]
"""What may be traced as a symbol: a float, by its path, or a size, by the path of the tensor and the dimension."""


def symbols_in(inputs: Inputs) -> set[Symbol]:
    """The symbols that stand in the place of numbers of a call."""
    floats = {(slot.path, None) for slot, leaf in inputs.dynamic if isinstance(leaf, Symbolic)}
    return floats | {(path, d) for path, dims in inputs.sizes.items() for d in dims}


_FEW = 8
"""So many symbols are left out one by one."""


def fewer(symbols: Collection[Symbol]) -> list[frozenset[Symbol]]:
    """All symbols; where the function does not trace with them, those to try next; in the end none."""
    floats = frozenset(s for s in symbols if s[1] is None)
    everything = frozenset(symbols)
    one_less = [everything - {s} for s in sorted(symbols, key=str)] if len(symbols) <= _FEW else []
    return [*dict.fromkeys([everything, *one_less, floats, everything - floats, frozenset[Symbol]()])]


def without_symbols(inputs: Inputs, gone: Collection[Symbol]) -> Inputs:
    """The inputs, with the values of some symbols in their places."""
    pairs = zip(inputs.slots, inputs.leaves, strict=True)
    leaves = tuple(v.value if isinstance(v, Symbolic) and (slot.path, None) in gone else v for slot, v in pairs)
    sizes = {path: frozenset(d for d in dims if (path, d) not in gone) for path, dims in inputs.sizes.items()}
    state = tuple(number for number in inputs.state if (number[0].path, None) not in gone)
    return evolve(inputs, leaves=leaves, sizes={path: dims for path, dims in sizes.items() if dims}, state=state)


def with_symbols(inputs: Inputs, programs: Iterable[Program], sizes: bool, ints: bool = False) -> Inputs:
    """The inputs, where a float, or (if ``sizes``) a size, that was another in an otherwise fitting call is a
    symbol: its third value will be a hit. So is an int of Python state that was two others: many a one is there in
    two values, or decides what is computed. ``ints``: whether ints among the arguments are like floats: those that
    another program has as symbols."""
    here = dict(zip([s.path for s in inputs.slots], inputs.leaves, strict=True))
    varying: set[str] = set()
    dims: dict[str, frozenset[int]] = dict(inputs.sizes)
    places: dict[Any, Place] = {}
    others: Counter[Any] = Counter()
    kinds = {float, int} if ints else {float}
    for program in programs:
        found = _varying(program, inputs, here, sizes, kinds)
        if found is not None:
            varying |= found[0]
            dims |= {path: dims.get(path, frozenset()) | own for path, own in found[1].items() if own}
            places |= {place.identity: place for place in found[2]}
            others.update(place.identity for place in found[3])
            places |= {place.identity: place for place in found[3] if others[place.identity] >= _OTHER_INTS}
    leaves = [Symbolic(v) if s.path in varying else v for s, v in zip(inputs.slots, inputs.leaves, strict=True)]
    return evolve(inputs, leaves=tuple(leaves), sizes=dims, state=_numbers(places.values(), set(here)))


def _numbers(places: Iterable[Place], taken: set[str]) -> tuple[tuple[State, Place, Symbolic], ...]:
    """Numbers of Python state as symbols, each under a name of its own."""
    found: list[tuple[State, Place, Symbolic]] = []
    for place in places:
        name = next(n for i in itertools.count(1) if (n := place.name if i == 1 else f"{place.name}#{i}") not in taken)
        taken.add(name)
        value = place.read()
        found.append((State(name, type(value)), place, Symbolic(value)))
    return tuple(found)


_Varying = tuple[set[str], dict[str, frozenset[int]], list[Place], list[Place]]
_OTHER_INTS = 2
"""So many other values an int of Python state has had when it becomes a symbol."""


def _may_hold(place: Place | None, kind: type) -> TypeGuard[Place]:
    """Whether a place holds a number of this type, and something else can stand there for it while a function is
    traced."""
    return place is not None and place.is_writable and type(place.read()) is kind


def _varying(
    program: Program, inputs: Inputs, here: Mapping[str, Any], sizes: bool, kinds: Collection[type]
) -> _Varying | None:
    """The floats, the dimensions and the numbers of Python state in which a call differs from those a program is
    for, and that program's symbols; then the ints of Python state in which it differs. None if they differ in other
    things."""
    numbers = {p for p, v in here.items() if type(v) in kinds}
    specs = dict(zip(program.key.paths, program.key.leaves, strict=True))
    found = {p for p, spec in specs.items() if isinstance(spec, DynamicSpec)} & numbers
    dims = {p: _symbolic(spec, here.get(p)) for p, spec in specs.items()} if sizes else {}
    places = [place for slot, place in program.facts.numbers if type(place.read()) is slot.kind]
    own = {slot.path for slot, place in program.facts.numbers if place in places}
    ints: list[Place] = []
    for difference in why_not(program, inputs):
        place = difference.place
        if difference.where in numbers:
            found.add(difference.where)
        elif _may_hold(place, float):
            places.append(place)
        elif _may_hold(place, int):
            ints.append(place)
        elif (
            difference.where not in own
            and difference.about != "sizes"
            and not (difference.about and dims.get(difference.where))
        ):
            return None
    return found, dims, places, ints


def _symbolic(spec: LeafSpec, now: Any) -> frozenset[int]:
    """The dimensions of a tensor that a program has as symbols, or that are others now; none of 0 or 1, which mean
    another program."""
    if not isinstance(spec, TensorSpec) or not isinstance(now, Tensor) or len(spec.shape) != now.dim():
        return frozenset()
    pairs = zip(spec.shape, now.shape, strict=True)
    return frozenset(d for d, (was, size) in enumerate(pairs) if (isinstance(was, str) or was != size) and size > 1)
