"""Which numbers of a call are symbols of its program: sizes, floats and ints, among the arguments and in Python state,
that were others in an otherwise fitting call."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeGuard

from attrs import evolve, frozen
from torch import Tensor

from ..capture.inputs import Inputs, Symbolic
from ..slots import State
from ..state.places import Place
from ..state.unread import KINDS, Unread, is_unread, value_of
from ..torch_private.tensors import is_wrapper_subclass
from .key import DynamicSpec, LeafSpec, TensorSpec
from .miss_reasons import captured_by, differences_to, objects_of
from .program import Program


def with_objects(inputs: Inputs, programs: Iterable[Program]) -> Inputs:
    """The inputs, with the objects, of Python state and among the arguments, that were others of their types in other
    calls: the third will be a hit."""
    found = {own.at if isinstance(own.at, str) else own.at.identity: own
             for program in programs for own in objects_of(program, inputs, every=True).renewed}  # fmt: skip
    return evolve(inputs, renewed=tuple(own for at, own in found.items() if at not in inputs.static))


def with_sizes_as_symbols(inputs: Inputs) -> Inputs:
    """The inputs, with the sizes of all tensors as symbols, but for those of 0 and 1, which mean another program."""
    tensors = [(slot.path, t) for slot, t in inputs.tensors if not is_wrapper_subclass(t)]
    dims = {path: frozenset(d for d, n in enumerate(t.shape) if n > 1) for path, t in tensors}
    return evolve(inputs, sizes=_where_first({path: own for path, own in dims.items() if own}, inputs))


def _where_first(dims: Mapping[str, frozenset[int]], inputs: Inputs) -> dict[str, frozenset[int]]:
    """Symbols for the sizes of a tensor that is given several times stand where it is given first."""
    first = {id(t): slot.path for slot, t in reversed(inputs.tensors)}
    again = {slot.path for slot, t in inputs.tensors if first[id(t)] != slot.path}
    return {path: own for path, own in dims.items() if path not in again}


Symbol = tuple[str, int | None]
"""What may be traced as a symbol: a float, by its path, or a size, by the path of the tensor and the dimension (``~d``:
the stride along dimension ``d``)."""


def written(symbol: Symbol) -> str:
    """What it is, as Python."""
    path, d = symbol
    return path if d is None else f"{path}.shape[{d}]" if d >= 0 else f"{path}.stride({~d})"


def varying_symbols(inputs: Inputs) -> set[Symbol]:
    """The symbols that stand in the place of numbers of a call."""
    floats = {(slot.path, None) for slot, leaf in inputs.dynamic if isinstance(leaf, Symbolic)}
    return floats | {(path, d) for path, dims in inputs.sizes.items() for d in dims}


_FEW = 8
"""So many symbols are left out one by one."""


def symbol_sets_to_try(symbols: Collection[Symbol]) -> list[frozenset[Symbol]]:
    """All symbols; where the function does not trace with them, those to try next; in the end none."""
    floats = frozenset(s for s in symbols if s[1] is None)
    everything = frozenset(symbols)
    one_less = [everything - {s} for s in sorted(symbols, key=str)] if len(symbols) <= _FEW else []
    return [*dict.fromkeys([everything, *one_less, floats, everything - floats, frozenset[Symbol]()])]


def inputs_to_try(symbolic: Inputs, symbols: Collection[Symbol]) -> list[Inputs]:
    """What to trace, one after the other, until the function traces: the inputs with these symbols, the same with ints
    that are no sizes, and with fewer."""
    found = [without_symbols(symbolic, varying_symbols(symbolic) - kept) for kept in symbol_sets_to_try(symbols)]
    first = evolve(found[0], may_be_sizes=False)
    return [found[0], first, *found[1:]] if found[0].has_symbols_for_sizes else found


def as_read(inputs: Inputs, read: Collection[str]) -> Inputs:
    """The inputs, with the texts that the function was not to read, and did."""
    pairs = zip(inputs.slots, inputs.leaves, strict=True)
    leaves = tuple(value_of(v) if is_unread(v) and slot.path in read else v for slot, v in pairs)
    return evolve(inputs, leaves=leaves)


def without_symbols(inputs: Inputs, gone: Collection[Symbol]) -> Inputs:
    """The inputs, with the values of some symbols in their places."""
    pairs = zip(inputs.slots, inputs.leaves, strict=True)
    leaves = tuple(v.value if isinstance(v, Symbolic) and (slot.path, None) in gone else v for slot, v in pairs)
    sizes = {path: frozenset(d for d in dims if (path, d) not in gone) for path, dims in inputs.sizes.items()}
    state = tuple(number for number in inputs.state if (number[0].path, None) not in gone)
    return evolve(inputs, leaves=leaves, sizes={path: dims for path, dims in sizes.items() if dims}, state=state)


def with_symbols(
    inputs: Inputs, programs: Iterable[Program], sizes: bool, given_ints: bool = False, read: Collection[str] = ()
) -> Inputs:
    """The inputs, where a float, or (if ``sizes``) a size, that was another in an otherwise fitting call is a
    symbol: its third value will be a hit. So is an int, of Python state or among the arguments, that was two others:
    many a one is there in two values, or decides what is computed. ``given_ints``: whether ints among the arguments are
    like floats: those that another program has as symbols. A text that was another one the function is not to read, but
    for those that it has ``read``."""
    here = dict(zip([s.path for s in inputs.slots], inputs.leaves, strict=True))
    varying, texts = set[str](), set[str]()
    dims: dict[str, frozenset[int]] = dict(inputs.sizes)
    places: dict[Any, Place] = {}
    others: Counter[Any] = Counter()
    for program in programs:
        found = _varying(program, inputs, here, sizes)
        if found is not None:
            varying |= found.given
            texts |= found.texts
            dims |= {path: dims.get(path, frozenset()) | own for path, own in found.dims.items() if own}
            places |= {place.location: place for place in found.places}  # one that is reached twice is one number
            others.update(place.identity for place in found.int_places)
            others.update(found.given_ints)
            places |= {place.location: place for place in found.int_places if others[place.identity] >= _OTHER_INTS}
            varying |= {path for path in found.given_ints if given_ints or others[path] >= _OTHER_INTS}
    varying.difference_update(inputs.static)
    texts.difference_update(inputs.static, read)
    leaves = [
        Symbolic(v) if s.path in varying else Unread(v, s.path) if s.path in texts else v
        for s, v in zip(inputs.slots, inputs.leaves, strict=True)
    ]
    state = _numbers(places.values(), set(here))
    return evolve(inputs, leaves=tuple(leaves), sizes=_where_first(dims, inputs), state=state, may_be_sizes=sizes)


def _numbers(places: Iterable[Place], taken: set[str]) -> tuple[tuple[State, Place, Symbolic], ...]:
    """Numbers of Python state as symbols, each under a name of its own."""
    found: list[tuple[State, Place, Symbolic]] = []
    for place in places:
        name = next(n for i in itertools.count(1) if (n := place.name if i == 1 else f"{place.name}#{i}") not in taken)
        taken.add(name)
        value = place.read()
        found.append((State(name, type(value)), place, Symbolic(value)))
    return tuple(found)


@frozen
class _Varying:
    """What a call has other than a program: floats (``given``) and ``texts`` among the arguments, floats in Python
    state (``places``), dimensions, and that program's symbols; then ints that the program is for."""

    given: set[str]
    texts: set[str]
    dims: dict[str, frozenset[int]]
    places: list[Place]
    given_ints: set[str]
    int_places: list[Place]


_OTHER_INTS = 2
"""So many programs there are for others when an int becomes a symbol."""


def _may_hold(place: Place | None, kind: type) -> TypeGuard[Place]:
    """Whether a place holds a number of this type, and something else can stand there for it while a function is
    traced."""
    return place is not None and place.is_writable and type(place.read()) is kind


def _varying(program: Program, inputs: Inputs, here: Mapping[str, Any], sizes: bool) -> _Varying | None:
    """In which numbers and dimensions a call differs from those a program is for. None if it differs in other
    things, but for what the program itself writes."""
    numbers = {p for p, v in here.items() if type(v) in (float, int)}
    now = objects_of(program, inputs)
    captured = captured_by(program, inputs, now)
    closed_over = {str(slot): tensor for slot, tensor in captured if str(slot) not in here}
    specs = dict(program.key.captured) | dict(zip(program.key.paths, program.key.leaves, strict=True))
    of_any = {p for p, spec in specs.items() if isinstance(spec, DynamicSpec)}
    found, texts = of_any & numbers, {p for p in of_any if type(here.get(p)) in KINDS}
    dims = {p: _symbolic(spec, here.get(p, closed_over.get(p))) for p, spec in specs.items()} if sizes else {}
    held = [(slot, now.place(place)) for slot, place in program.facts.numbers]
    places = [place for slot, place in held if type(place.read()) is slot.kind]
    own = {slot.path for slot, place in held if place in places}
    int_places: list[Place] = []
    given_ints: set[str] = set()
    for difference in differences_to(program, inputs, now, captured):
        place = difference.place
        if difference.where in numbers:
            (given_ints if type(here[difference.where]) is int else found).add(difference.where)
        elif difference.about == "text":
            texts.add(difference.where)
        elif _may_hold(place, float):
            places.append(place)
        elif _may_hold(place, int):
            int_places.append(place)
        elif (
            difference.where not in own
            and not difference.is_own
            and difference.about != "sizes"
            and not (difference.about and dims.get(difference.where))
        ):
            return None
    return _Varying(found, texts, dims, places, given_ints - found, int_places)


def _symbolic(spec: LeafSpec, now: Any) -> frozenset[int]:
    """The dimensions of a tensor that a program has as symbols, or that are others now; none of 0 or 1, which mean
    another program. Where it has the same sizes, and lies in a larger tensor than it did: its strides (``~d``)."""
    if not isinstance(spec, TensorSpec) or not isinstance(now, Tensor) or len(spec.shape) != now.dim():
        return frozenset()
    pairs = zip(spec.shape, now.shape, strict=True)
    sizes = frozenset(d for d, (was, size) in enumerate(pairs) if (isinstance(was, str) or was != size) and size > 1)
    strides = {~d: pair for d, pair in enumerate(zip(spec.stride, now.stride(), strict=True)) if pair[0] != pair[1]}
    in_order = all(step > 1 and (isinstance(was, str) or was > 1) for was, step in strides.values())
    return sizes or (frozenset(strides) if in_order else sizes)
