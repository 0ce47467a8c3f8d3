"""Objects of which each call may bring another one: a configuration that is replaced, a state that is made anew, a
batch that is an object and no pytree.

What is read of an object is guarded at the object itself, a constant of the printed call. Where another program was for
another object of its type, a name stands for that constant, which each call binds to what lives there: all guards,
reads and writes are then of the object of the call. What is known of an object besides what it holds is which one it
is; so no two may be one that were two, and none may be another one that the function meets.
"""

from __future__ import annotations

import collections
import gc
import itertools
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from attrs import evolve, frozen
from torch.distributions import Distribution, Transform

from .given import OF_ITEMS
from .guards import Guard
from .hooks import can_be_hooked, says_what_it_has
from .names import attributes_of, is_library, item_name, slots_of
from .places import Constant, Place
from .values import PLAIN, holds_tensors, is_plain, shape_of

_CONTAINERS = (dict, list, set, collections.deque, collections.OrderedDict, types.SimpleNamespace)
_TABLES = [name for name, held in vars(torch.nn.Module()).items() if isinstance(held, dict)]
_LEADS_ON_GUARDED = (type, types.ModuleType, types.FunctionType, types.CodeType, torch.Tensor, str, bytes, int, float)
_BUILTIN = (list, tuple, set, frozenset, collections.deque)
_DEEP = 8
_READABLE = ("item", "slot", "cell", "class", "default")
"""Kinds of places that raise what a miss is where nothing is there."""


Accept = Callable[[Any], bool]


@frozen(eq=False)
class Renewed:
    """An object of the call that was compiled, and where each call finds another one: a place, or the path of an
    argument."""

    at: Place | str
    value: Any

    @property
    def name(self) -> str:
        return str(self.at)


def may_be_another(was: Any, now: Any) -> bool:
    """Whether an object is another one of the same type, of which a program reads what it holds alone."""
    kind = type(was)
    if was is now or kind is not type(now):
        return False
    # what it is, nobody can change, so nothing guards it but which one it is
    if isinstance(was, (*PLAIN, np.generic)) or (isinstance(was, collections.deque) and was.maxlen != now.maxlen):
        return False
    if kind in _CONTAINERS:
        return True
    if issubclass(kind, tuple):  # those of plain values are compared as they are
        return holds_tensors(was)
    if kind is types.FunctionType:  # a closure that is made anew
        return _made_of(was) == _made_of(now)
    is_own = not is_library(kind) or issubclass(kind, (torch.nn.Module, Distribution, Transform))
    has_own = attributes_of(was) is not None or bool(slots_of(kind))
    return is_own and has_own and can_be_hooked(kind) and not says_what_it_has(kind)  # its attributes are read


def _made_of(function: types.FunctionType) -> tuple[Any, ...]:
    """What two functions have in common that differ in what they close over alone."""
    names = function.__name__, function.__qualname__, function.__module__, function.__doc__  # which nothing guards
    globals_, defaults = id(function.__globals__), len(function.__defaults__ or ())
    return function.__code__, globals_, defaults, id(function.__kwdefaults__), names


def parts_of(value: Any) -> Iterator[tuple[Any, str]]:
    """What is found at an object itself, with what Python reads it by: the object, what holds its attributes, the
    tables of a module, the cells of a function."""
    yield value, ""
    if (attributes := attributes_of(value)) is not None:
        yield attributes, ".__dict__"
        for table in _TABLES if isinstance(value, torch.nn.Module) else ():
            if isinstance(attributes.get(table), dict):
                yield attributes[table], f".__dict__[{table!r}]"
    for i, cell in enumerate(value.__closure__ or () if isinstance(value, types.FunctionType) else ()):
        yield cell, f".__closure__[{i}]"


@frozen(eq=False)
class Now:
    """What a call brings in the places of objects that a program was compiled with (``objects``, by their
    identities)."""

    objects: dict[int, Any] = attrs.field(factory=dict)
    renewed: list[Renewed] = attrs.field(factory=list)
    """The same, for a program of this call."""

    @staticmethod
    def find(guards: Iterable[Guard], brought: Brought, pairs: Mapping[str, tuple[Any, Any]], accept: Accept) -> Now:
        """``brought``: the objects of which a program with these ``guards`` is for any; ``accept``: of which else. Of
        arguments (``pairs``, by path) what the program has, and what the call."""
        found = Now()
        for own in brought.renewed:
            at = own.at if isinstance(own.at, str) else found.place(own.at)
            now = pairs[at][1] if isinstance(at, str) else at.read()
            if type(now) is type(own.value):
                found._put(at, own.value, now)
        for path, (was, now) in pairs.items():
            if id(was) not in found.objects and may_be_another(was, now) and accept(now):
                found._put(path, was, now)
        pending = [own for guard in guards for own in one_by_one(guard) if own.how == "is"]
        known = -1
        while known < len(found.renewed):  # what they hold are others, too
            known = len(found.renewed)
            for guard in pending:
                place = found.place(guard.place)
                known_of = id(guard.value) in found.objects or guard.place.kind not in _READABLE
                if known_of or not accept(now := place.read()):
                    continue
                if may_be_another(guard.value, now) or found._refers_to_same(guard.value, now):
                    found._put(place, guard.value, now)
        return found

    def _put(self, at: Place | str, was: Any, now: Any) -> None:
        for (own, _), (other, _) in zip(parts_of(was), parts_of(now), strict=True):
            self.objects[id(own)] = other
        self.renewed.append(Renewed(at, now))

    def _refers_to_same(self, was: Any, now: Any) -> bool:
        """Whether these are weak references to one object, as the call has it: to what they are found in."""
        are_references = isinstance(was, weakref.ReferenceType) and isinstance(now, weakref.ReferenceType)
        return are_references and id(was()) in self.objects and self.of(was()) is now()

    def of(self, value: Any) -> Any:
        return self.objects.get(id(value), value)

    def place(self, place: Place) -> Place:
        """Where the call reads what the program read at a place."""
        owner = self.place(place.owner) if isinstance(place.owner, Place) else self.of(place.owner)
        key = self.of(place.key)
        return place if owner is place.owner and key is place.key else evolve(place, owner=owner, key=key)

    def one_by_one(self, guards: Iterable[Guard]) -> Iterator[Guard]:
        """Guards, those on the contents of such containers item by item: the objects in them may be others, too."""
        return apart_from(guards, self.objects)

    def guard(self, guard: Guard) -> Guard:
        """What is asked of the call."""
        place, value = self.place(guard.place), self.of(guard.value) if guard.how == "is" else guard.value
        return guard if place is guard.place and value is guard.value else evolve(guard, place=place, value=value)


def apart_from(guards: Iterable[Guard], parts: Collection[int]) -> Iterator[Guard]:
    """Guards, item by item those on the contents of a container that is among what each call brings (``parts``, by
    identity), or holds something of it."""
    for guard in guards:
        is_copy = guard.how != "is" and issubclass(type(guard.value), (*_BUILTIN, Mapping))  # its class may say another
        held = guard.value.values() if is_copy and isinstance(guard.value, Mapping) else guard.value
        if id(guard.place.owner) in parts or (is_copy and any(id(item) in parts for item in held)):
            yield from one_by_one(guard)
        else:
            yield guard


def one_by_one(guard: Guard) -> list[Guard]:
    """Of a guard on the contents of a container of objects, those on which these are."""
    held, owner = guard.value, guard.place.owner
    if guard.how.removeprefix("like ") not in ("items", "entries") or not isinstance(owner, OF_ITEMS):
        return [guard]
    pairs = list(held.items() if isinstance(owner, dict) else enumerate(held))
    if all(is_plain(value) or isinstance(value, torch.Tensor) for _, value in pairs):
        return [guard]
    found = [evolve(guard, value=shape_of(held, type(owner)), how="shape")]
    for key, value in pairs:
        found += _of_item(Place("item", owner, key, item_name(guard.place.name, key)), value)
    return found


def _of_item(place: Place, value: Any) -> Iterator[Guard]:
    """The guards on what a container held in a place; of a tuple, which may be another one, those on its items, too."""
    is_tensor = isinstance(value, torch.Tensor)
    yield Guard(place, type(value), "a tensor") if is_tensor else Guard.of(place, value)
    if isinstance(value, tuple) and not is_plain(value):
        yield Guard(place, shape_of(value), "shape")
        for i, item in enumerate(value):
            yield from _of_item(Place("item", place, i, item_name(place.name, i)), item)


def items_of(guards: Iterable[Guard], parts: Collection[int]) -> Iterator[Any]:
    """Of what a container holds, and of what is referred to weakly, it is known which objects they are. ``parts``: of
    what each call brings others, by identity."""
    for guard in (g for g in guards if id(g.value) not in parts):
        if isinstance(guard.value, weakref.ref) or (
            guard.how != "is" and isinstance(guard.value, (*_BUILTIN, Mapping))
        ):
            yield from _within(guard.value, 0)


def reached_unguarded(renewed: Sequence[Renewed], guards: Iterable[Guard]) -> set[int]:
    """The identities of what these objects lead to by steps that nothing is known of."""
    known = {id(g.value) for g in guards if g.how == "is"} | Brought(renewed).parts
    functions: list[Any] = [own.value for own in renewed if isinstance(own.value, types.FunctionType)]
    known |= {id(names) for f in functions for names in (f.__globals__, f.__builtins__)}  # the same of each (_made_of)
    return {id(inner) for inner in _led_to(renewed, known) if not isinstance(inner, _LEADS_ON_GUARDED)}


def may_lead_to(renewed: Sequence[Renewed], values: Iterable[Any]) -> bool:
    """Whether any of these values may be found by one of the objects: in it, by whatever steps, or in a table of which
    it may be a key."""
    wanted = set(map(id, values))
    are_keys = any(type(own.value).__hash__ is not None for own in renewed)
    return bool(wanted) and (are_keys or any(id(inner) in wanted for inner in _led_to(renewed, frozenset())))


def _led_to(renewed: Sequence[Renewed], known: Collection[int]) -> Iterator[Any]:
    """What these objects refer to, and so on, but for what is known, by identity."""
    pending: list[Any] = [part for own in renewed for part, _ in parts_of(own.value)]
    met: set[int] = set()
    while pending:
        for inner in gc.get_referents(pending.pop()):
            if id(inner) not in known and id(inner) not in met:
                met.add(id(inner))
                yield inner
                if not isinstance(inner, _LEADS_ON_GUARDED):
                    pending.append(inner)


def _within(value: Any, depth: int) -> Iterator[Any]:
    if depth < _DEEP and isinstance(value, (*_BUILTIN, Mapping)):
        for item in itertools.chain(value, value.values()) if isinstance(value, Mapping) else value:
            yield from _within(item, depth + 1)
    else:
        yield value() if isinstance(value, weakref.ref) else value


def in_order(renewed: Sequence[Renewed]) -> list[Renewed]:
    """Each once, behind what it is found in."""
    left = list({id(own.value): own for own in reversed(renewed)}.values())[::-1]
    found: list[Renewed] = []
    while left:
        inner = {id(part) for own in left for part, _ in parts_of(own.value)}
        ready = [own for own in left if isinstance(own.at, str) or id(own.at.owner) not in inner]
        if not ready:  # they hold each other
            return found
        found += ready
        left = [own for own in left if own not in ready]
    return found


@frozen(eq=False)
class Brought:
    """The objects that each call brings, of which the function reads. ``others``: the identities of further objects of
    their types, of which each call must bring none."""

    renewed: Sequence[Renewed] = ()
    others: frozenset[int] = frozenset()

    @staticmethod
    def among(renewed: Sequence[Renewed], known: Sequence[Any], held: Sequence[Any]) -> Brought:
        """``known``: all objects that a function met; ``held``: those that containers are known to hold. One that
        shares a part with any of these is the one it is."""
        parts, kinds = Brought(renewed).parts, {type(own.value) for own in renewed}
        met = [v for v in (*(k for k in known if id(k) not in parts), *held) if type(v) in kinds]
        others = frozenset(id(part) for v in met for part, _ in parts_of(v))
        apart = [own for own in renewed if others.isdisjoint(id(part) for part, _ in parts_of(own.value))]
        return Brought(apart, others) if len(apart) == len(renewed) else Brought.among(in_order(apart), known, held)

    @property
    def parts(self) -> frozenset[int]:
        """The identities of what the printed call knows by the names of what a call brings."""
        return frozenset(id(part) for own in self.renewed for part, _ in parts_of(own.value))

    @property
    def arguments(self) -> dict[str, type]:
        """The types of those that are arguments, by path."""
        return {own.at: type(own.value) for own in self.renewed if isinstance(own.at, str)}

    def clashes(self, now: Now) -> Iterator[str]:
        """The names of objects that a call brings that are one with others."""
        parts = [(own.name, id(now.of(part))) for own in self.renewed for part, _ in parts_of(own.value)]
        were = len({id(part) for own in self.renewed for part, _ in parts_of(own.value)})
        times = collections.Counter(identity for _, identity in parts if were == len(parts))
        yield from (name for name, identity in parts if times[identity] > 1 or identity in self.others)

    def lines(
        self, names: Mapping[Renewed, str], constant: Constant, stands: Callable[[Any, str], None], otherwise: str
    ) -> Iterator[str]:
        """Python lines that bind what a call brings to names, and run ``otherwise`` where it is something else.
        ``stands`` says what is printed for an object."""
        texts: dict[int, str] = {}
        for own in self.renewed:
            variable, value = names[own], own.value
            if isinstance(own.at, Place):
                yield f"{variable} = {own.at.look(constant)}"
            yield f"if type({variable}) is not {constant(type(value))}: {otherwise}"
            if isinstance(value, collections.deque):
                yield f"if {variable}.maxlen != {value.maxlen}: {otherwise}"
            if isinstance(value, types.FunctionType):
                yield f"if {constant(_made_of)}({variable}) != {constant(_made_of(value))}: {otherwise}"
            if isinstance(value, weakref.ReferenceType):
                yield f"if {variable}() is not {constant(value())}: {otherwise}"
            for part, attribute in parts_of(value):
                if id(part) in texts:  # two functions close over one variable
                    yield f"if {variable}{attribute} is not {texts[id(part)]}: {otherwise}"
                else:
                    texts[id(part)] = variable + attribute
                    stands(part, variable + attribute)
        identities = ", ".join(f"id({text})" for text in texts.values())
        if len(self.renewed) > 1:
            yield f"if len({{{identities}}}) != {len(texts)}: {otherwise}"
        if self.others:
            yield f"if not {constant(self.others)}.isdisjoint(({identities},)): {otherwise}"

    def leads(self, guard: Guard) -> bool:
        """Whether a guard is on which object lives where each call brings another one."""
        return guard.how == "is" and any(
            isinstance(own.at, Place) and own.at.identity == guard.place.identity for own in self.renewed
        )

    def says(self, guard: Guard) -> bool:
        """Whether a guard holds where these lines do."""
        return self.leads(guard) or (guard.how == "is" and guard.is_outer and id(guard.place.owner) in self.parts)
