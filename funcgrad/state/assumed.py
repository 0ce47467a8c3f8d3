"""What is assumed of Python state that no hook heard of: guarded when the function has run, and all code that it
reached is known."""

from __future__ import annotations

import abc
import collections
import inspect
import io
import operator
import sys
import types
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import evolve
from torch import Tensor

from .buffers import is_buffer
from .caches import entries_of, results_of
from .code import SAID_OF_THEMSELVES, Mentions, mentions, together
from .guards import Guard, Met, members_said
from .hooks import can_be_hooked
from .impure import is_iterator, refuse_iterator
from .lines import is_users
from .mentioned import Mentioned
from .names import (
    CONSTRUCTORS,
    among,
    asked_by_properties,
    assigned_by,
    found_on,
    grown_by,
    is_callers_own,
    is_data,
    is_installed,
    is_installed_file,
    is_library,
    is_replaced,
    item_name,
    item_of,
    joined,
    members_of_protocol,
    only_grows,
    taken_apart,
    uses_of,
)
from .places import MISSING, Place
from .reached import CONTAINERS
from .settings import ARRAY_TEXTS
from .uses import ANY, Use, grown_arguments
from .values import holds_symbols, holds_tensors, is_plain, shape_of

_OF_ITEMS = ("__getitem__", "__missing__")
_FIRST = {"appendleft", "extendleft", "insert"}
"""Methods that put items before those that are there."""
_READS = {"getvalue", "getbuffer", "read", "readline", "readlines", "seek", "tell", "truncate"}
"""Methods that tell what a stream holds, or change it."""
_ASK_BY_TEXT = {"hasattr", "getattr"}
_MOST_KEPT = 64
"""Results of a ``functools.lru_cache`` that are watched."""


class Assumed(Mentioned):
    """What was reached, and what code may have read or written of it."""

    def __init__(self) -> None:
        super().__init__()
        self._together: tuple[Any, Mentions] = (0, 0, 0), Mentions()
        self._ran_together: tuple[Any, Mentions] = (0, 0), Mentions()
        self._texts: set[str] = set()
        self._getters: set[str] = set()
        self._of_protocols: set[str] = set()
        """Texts that were read, which may name attributes; attributes that an ``operator.attrgetter`` reads, or that
        ``isinstance`` looks for; these alone."""
        self._is_running = False

    @property
    def said(self) -> Mentions:
        """What all code that was reached mentions."""
        known = len(self._codes), len(self._texts), len(self._getters)
        if self._together[0] != known:  # asked for after each run
            new = [evolve(mentions(code), assigned=frozenset()) for code in self._codes if code.co_name in CONSTRUCTORS]
            own = together([*(mentions(c) for c in self._codes if c.co_name not in CONSTRUCTORS), *new])
            own = self._with_given(own)
            getters, texts = frozenset(self._getters), frozenset(self._texts if own.by_name else ())
            read = dict.fromkeys(getters, frozenset([Use((), "read")]))
            by_value = Mentions(strings=texts, attributes=getters, uses=read, lacked=getters)
            self._together = known, together([own, by_value])
        return self._together[1]

    def _with_given(self, said: Mentions) -> Mentions:
        """What code mentions, where a container that it gives a function by name is used as that uses its argument:
        if all functions of this name only add to it, and nothing else has it."""
        given = {use.by for uses in said.uses.values() for use in uses if use.then == "give"}
        known = dict[Any, set[Any] | None]()
        for code in self._codes if given else ():
            for i, methods in grown_arguments(code).items():
                had = known.get((code.co_name, i), set())
                known[code.co_name, i] = None if had is None or methods is None else had | {*methods}
        found = {to: known.get(to) for to in given if to is not None and to[0] not in self._misnamed}

        def resolved(use: Use) -> Use:
            methods = found.get(use.by) if use.then == "give" and use.by is not None else None
            return use if methods is None else evolve(use, then="grow", by=tuple(sorted(methods)))

        return evolve(said, uses={name: frozenset(map(resolved, own)) for name, own in said.uses.items()})

    def see(self, value: Any, name: str) -> None:
        """A value can be reached. What an ``operator.attrgetter`` reads, code that calls it may read; of a protocol,
        what asks for it."""
        if isinstance(value, operator.attrgetter):
            self._getters |= {part for names in value.__reduce__()[1] for part in names.split(".")}
        elif isinstance(value, type) and getattr(value, "_is_runtime_protocol", False):
            self._of_protocols |= members_of_protocol(value)
            self._getters |= self._of_protocols
        super().see(value, name)

    def _value(self, place: Place, value: Any) -> None:
        if type(value) is str:
            self._texts.add(value)
        super()._value(place, value)

    def number(self, value: Any) -> Any:
        """The number that a value stands for, or the value."""
        return self.stood_in[id(value)][1] if id(value) in self.stood_in else value

    def _guard_unheard_of(self) -> None:
        """Guard what was mentioned but not heard of."""
        said = self.said
        for key in [key for key, guard in self._guards.items() if not guard.holds()]:  # read after it was written
            del self._guards[key]
        for cache in self.caches if "cache_clear" not in said.attributes else ():
            self._guard_cache(cache.function, cache.name)
        names = said.attributes | said.strings | said.assigned
        own = self._own_mentions()  # packages ask for their own
        of_types = "type" in own.globals or "__class__" in own.attributes or own.past_hooks
        by_name = set(filter(str.isidentifier, own.strings)) if own.by_name else set()
        if own.past_hooks or self._of_protocols:  # from Python 3.12 on isinstance looks for these past hooks
            self._guard_unheard(names if own.past_hooks else self._of_protocols, by_name | self._of_protocols)
        lists = bool(own.globals & {"vars", "dir"} or "__dict__" in own.attributes)
        direct = {c for kind in self._direct for c in (*kind.__mro__, *inspect.getmro(type(kind)))}
        met, classes = 0, 0
        while met < len(self._late) or classes < len(self.classes):  # what is guarded leads to more
            more, kinds = list(self._late.values())[met:], list(self.classes)[classes:]
            met, classes = met + len(more), classes + len(kinds)
            for container in more:
                self._guard_container(container, said, lists)
            for kind in kinds:
                as_value = of_types or kind in direct
                self._guard_class(kind, names, by_name | own.lacked | self._getters if as_value else set())
                if lists and (as_value or "dir" in own.globals) and not is_installed(kind):
                    self._guard_members(kind)
        self._guard_lacking(own, by_name)
        if own.makes_texts and any(isinstance(value, np.ndarray) for value in self._known.values()):
            self._guard(Guard.of_library(ARRAY_TEXTS.place, ARRAY_TEXTS.value))
        self._guard_not_imported()
        self._guard_no_items_of_logs()
        self._guard_libraries()  # by texts that were read meanwhile, too
        for held in [held for held in self.met.values() if is_buffer(held.container)]:
            if id(held.container) in self.replaced or not self.only_grows(held.container):
                self._guard(Guard.contents(held.container, held.before, held.name))
        self._guard_names(own)
        if self.special:
            self._guards["special"] = Guard.special(self.special)
        self._guard_unchanged(said)
        for key, places in self._places.items():
            if (key in self.written and key in self.met) or key in self.moved:  # it must be the very container
                container = self.met[key].container if key in self.met else self._known[key]
                for place in places:
                    self._guards.setdefault(("is", place.identity), Guard(place, container, "is"))
        self._guard_identities()

    def _guard_lacking(self, own: Mentions, by_name: Set[str]) -> None:
        """What code asks by a text of what nobody looks into (``hasattr(logger, "name")``, ``hasattr(builtins,
        "name")``), it must go on to lack."""
        owners: list[tuple[type, dict[str, Any], str]]
        owners = [(types.ModuleType, vars(module), called) for module, called in self._libraries.values()]
        owners += [(closed.kind, closed.attributes, closed.name) for closed in self._not_looked_into]
        for kind, held, called in owners if by_name else ():
            asks = own.uses.get(taken_apart(called)[0], ())
            if any(use.then == "give" and use.by is not None and use.by[0] in _ASK_BY_TEXT for use in asks):
                for name in sorted(by_name - held.keys()):
                    if not hasattr(kind, name):
                        self._guard(Guard.absent(Place("item", held, name, joined(called, name))))

    def _guard_not_imported(self) -> None:
        """A module that code of the caller's would have imported, and that is not there."""
        for name in sorted(set().union(*(mentions(code).imports for code in self._users_codes)) - sys.modules.keys()):
            self._guard(Guard.absent(Place("item", sys.modules, name, f"sys.modules[{name!r}]")))

    def _guard_names(self, own: Mentions) -> None:
        """What functions and classes are called, and say of themselves, where code asks for it: those of the caller's
        in any way (``type(self).__name__``), others by their names."""
        by_text = own.strings if own.by_name else frozenset[str]()
        asked, of_functions = (SAID_OF_THEMSELVES & (by_text | names) for names in (own.attributes, own.of_functions))
        by_names = [pair for chain in own.chains for pair in pairwise(chain) if pair[1] in asked]
        known = {id(value): value for value in (*self._known.values(), *self.classes)} if asked else {}
        for value in known.values():
            if isinstance(value, (types.FunctionType, type)):
                names = {taken_apart(name)[0] for name in self._names.get(id(value), ())}
                known_by = {to for of, to in by_names if of in names}
                others = asked if isinstance(value, type) else of_functions
                for attribute in others if is_callers_own(value) else known_by:
                    place = Place("slot", value, attribute, joined(value.__name__, attribute))
                    if (now := place.read()) is not MISSING:
                        self._guard(Guard.of(place, now))
                        if isinstance(now, dict):
                            self._guard(Guard.contents(now, dict(now), place.name))

    @property
    def compares_identities(self) -> bool:
        """Whether code that was reached, and is not torch's, asks whether two objects are one."""
        return any(mentions(code).compares_identities for code in self._users_codes)

    @property
    def _users_codes(self) -> list[types.CodeType]:
        """The code that was reached and that the caller wrote."""
        return [c for c in self._codes if is_users(c)]

    def _guard_identities(self) -> None:
        """Of containers of tensors there may be others in each call: where one is written to, or code compares
        containers, they are one, or apart, as they were."""
        own = {key: places for key, places in self._places.items() if self._holds_items(key)}
        compares = self.compares_identities
        for place, *others in own.values() if compares else ():
            if others:
                self._guards["one", place.identity] = Guard(place, tuple(others), "one")
        known: list[Place] = []
        for key, (place, *_) in sorted(own.items(), key=lambda item: item[0] not in self.written):
            if known and key not in self.written:
                self._guards["apart", place.identity] = Guard(place, tuple(known), "apart")
            if compares or key in self.written:
                known.append(place)

    def _holds_items(self, key: int) -> bool:
        """Whether it is a container, and not the attributes of a tensor."""
        return key not in self.met or self.met[key].of is None

    def _guard_libraries(self) -> None:
        """What own code may name in modules of libraries that it has as values, and by ``super()`` in their classes:
        somebody may put another there."""
        own = self._own_mentions()
        names = own.attributes | self._getters | (own.strings | self._texts if own.by_name else frozenset[str]())
        at = 0
        while at < len(self._libraries):  # there are modules in modules
            module, called = list(self._libraries.values())[at]
            at += 1
            for name in sorted(n for n in names & vars(module).keys() if not n.startswith("__")):
                if isinstance(value := self._library_member(module, name, joined(called, name)), types.ModuleType):
                    self.see(value, joined(called, name))
        if "super" in own.globals:
            for kind in {c: None for k in self.classes for c in k.__mro__ if is_library(c)}:
                self._library_class(kind, sorted(own.attributes & vars(kind).keys()))

    def _own_mentions(self) -> Mentions:
        """What code mentions that is not of an installed package."""
        return together([mentions(code) for code in self._codes if not is_installed_file(code.co_filename)])

    def _guard_no_items_of_logs(self) -> None:
        """A list of tensors that code only adds to may hold what it will, if it is that list."""
        for key, places in list(self._places.items()):
            held = places[0].read()
            logged = type(held) is list and self.only_grows(held)
            if not logged or ("items", key) in self.replaced or key in self.replaced:
                continue
            items = {
                place.identity
                for place in (*(g.place for g in self._guards.values()), *(p for p, _ in self.tensors.values()))
                if place in places or any(place.is_below(of) for of in places)
            }
            self._guards = {k: guard for k, guard in self._guards.items() if guard.place.identity not in items}
            self.tensors = {k: found for k, found in self.tensors.items() if found[0].identity not in items}
            for place in places:
                self._guard(Guard(place, held, "is"))

    def only_grows(self, held: Any) -> bool:
        """Whether all code that was reached only adds to a buffer or a list, whatever it holds."""
        names = self._all_names(held)
        return bool(names) and any(all(only_grows(name, said) for name in names) for said in self.said_of_contents)

    def only_counts(self, place: Place, said: Mentions) -> bool:
        """Whether all that code does with a number is to count on, by whichever name it reaches what holds it."""
        met, names = self.met.get(id(place.owner)), {place.name}
        if met is not None and met.of is None:
            names |= {item_name(name, place.key) for name in self._all_names(place.owner)}
        uses = [uses_of(name, said) for name in names]
        is_counted = set[str]().union(*(own or {"read"} for own in uses)) == {"count"}
        return is_counted and not any(is_replaced(name, said) for name in names)

    def uses(self, held: Any, name: str) -> bool:
        """Whether code that was reached does anything with a container, or with a name in a dict of attributes or of
        globals."""
        met, said = self.met.get(id(held)), self.said
        if isinstance(held, io.IOBase) and said.attributes.isdisjoint(_READS):
            return False
        if met is None:
            read = any(guard.place.owner is held and guard.place.key == name for guard in self._guards.values())
            return read or (id(held), name) in self.globals
        names = [name] if met.of is not None else [taken_apart(own)[0] for own in self._all_names(held)]
        return not said.uses.keys().isdisjoint(names)

    def grows_at(self, held: Any) -> str | None:
        """Where code adds to a list or a deque to which it only adds: ``"first"``, before its items, ``"last"``, or
        None, at both ends. A deque that is full takes no ``insert``."""
        names, says = self._all_names(held), self.said_of_contents
        methods = set[str]().union(*(grown_by(name, said) for name in names for said in says))
        if not methods & _FIRST:
            return "last"
        is_bounded = isinstance(held, collections.deque) and held.maxlen is not None
        return "first" if methods <= _FIRST and not (is_bounded and "insert" in methods) else None

    def _all_names(self, held: Any) -> list[str]:
        """The names by which code reaches a container: those it had, and those of where it was when it held tensors."""
        return list(dict.fromkeys([*self._names.get(id(held), ()), *(p.name for p in self._places.get(id(held), ()))]))

    @property
    def said_of_contents(self) -> list[Mentions]:
        """Of what is asked how code uses containers, of which no hook hears: of all code that was reached, and, where
        it was noted what ran, of that. Either will do: what has not run has read nothing."""
        return [self.said] if self._ran is None else [self.said, self.said_by_what_ran]

    @property
    def said_by_what_ran(self) -> Mentions:
        """What the code mentions that ran, as far as that was noted."""
        known = len(self._codes), -1 if self._ran is None else len(self._ran)
        if self._ran_together[0] != known:
            self._ran_together = known, self._with_given(together([mentions(code) for code in self._what_ran]))
        return self._ran_together[1]

    @property
    def _what_ran(self) -> list[types.CodeType]:
        return [code for code in self._codes if self._ran is None or code in self._ran]

    def _guard_class(self, kind: type, names: Set[str], by_name: Set[str]) -> None:
        """What is read through a class itself (``Config.scale``, ``super().forward``): of installed packages data
        alone. What its metaclass or its bases have, or may be asked for ``by_name``, it must go on to lack."""
        for name in among(names, kind):
            value = kind.__dict__[name]
            if is_data(name, kind) and (is_plain(value) or isinstance(value, CONTAINERS) or not is_installed(kind)):
                self._value(Place.on_class(kind, name), value)
        if not is_installed(kind) and kind in self._direct and isinstance(kind, abc.ABCMeta):
            self._guard(Guard.registry(kind))
        bases = {name for c in inspect.getmro(kind)[1:] if not is_library(c) for name in among(names, c)}
        for name in (bases | by_name) - kind.__dict__.keys():
            self._guard(Guard.absent(Place.on_class(kind, name)))
        for meta in inspect.getmro(type(kind)):
            for name in () if is_library(meta) else set(among(names, meta)) - kind.__dict__.keys():
                self._guard(Guard.absent(Place.on_class(kind, name)))

    def _guard_members(self, kind: type) -> None:
        """All that a class has, where any of it may be read (``vars(kind)``)."""
        self._guard(Guard.members(kind))
        for name, member in members_said(kind).items():
            if isinstance(member, Tensor):
                self._value(Place.on_class(kind, name), member)

    def _guard_unheard(self, names: Set[str], by_name: Set[str]) -> None:
        """Attributes of objects that may have been read, or asked for ``by_name``, where no hook hears of it."""
        own = [met for met in self.met.values() if met.of is not None and id(met.container) not in self._late]
        held = [
            (Place("item", m.container, k, joined(m.name, k)), m.before.get(k, MISSING))
            for m in own
            for k in sorted(names)
        ]
        held += [(place, before) for place, before in self.slots.values() if place.key in names]
        for place, before in held:
            if before is not MISSING:
                self._value(place, before)
            elif place.key in by_name:
                self._guard(Guard.absent(place))

    def _guard_unchanged(self, said: Mentions) -> None:
        """What code may write to, and left as it was: where it is another, the write is one."""
        assigned = said.sets
        for place, before in self.globals.values():
            self._value(place, before) if before is not MISSING else self._guard(Guard.absent(place))
        own = [met for met in self.met.values() if met.of is not None]
        by_kind = {kind: assigned | assigned_by(kind, said.attributes) for kind in {type(met.of) for met in own}}
        for met in own:
            for name in by_kind[type(met.of)] & met.before.keys():
                self._assigned(Place("item", met.container, name, joined(met.name, name)), met.before[name])
        for place, before in self.slots.values():
            if place.key in assigned:
                self._assigned(place, before)
        for place, before in self.stored:
            if place.key in said.attributes or (said.by_name and place.key in said.strings):
                self._value(place, before) if before is not MISSING else self._guard(Guard.absent(place))

    def _guard_cache(self, cache: Any, name: str) -> None:
        """What a ``functools.lru_cache`` keeps, it must go on to keep."""
        entries = entries_of(cache)
        if len(entries) > _MOST_KEPT:
            self.unwatched[id(entries)] = entries, name
            return
        for key, held in entries.items():
            self._guard(Guard(Place("item", entries, key, f"{name}({key!r})"), held, "is"))
        for result in results_of(cache):
            self.see(result, f"{name}()")

    def _assigned(self, place: Place, before: Any) -> None:
        if before is MISSING or place.identity in self.replaced:
            return
        if isinstance(before, Tensor):
            self.assigned.setdefault(place.identity, (place, before))
        elif not holds_tensors(before) or any(p.location != place.location for p in self._places.get(id(before), ())):
            self._guard(Guard.of(place, before))

    def _guard_container(self, met: Met, said: Mentions, lists: bool) -> None:
        """``lists``: whether code may reach all that an object holds, by no name."""
        container, names = met.container, self._all_names(met.container)
        if id(container) in self._places and id(container) not in self.written:
            return  # it is looked into where it lives: there may be another one
        if met.of is not None and id(container) in self._late and not said.by_name and not can_be_hooked(type(met.of)):
            asked = said.attributes | said.strings
            of_properties = asked_by_properties(type(met.of))  # value, of an enum
            asked = asked.union(*(of_properties[name] for name in of_properties.keys() & asked))
            for name, value in met.before.items():
                if name in asked and name != "__wrapped__":
                    self._value(Place("item", container, name, joined(met.name, name)), value)
            for name in said.lacked - met.before.keys():
                if not hasattr(type(met.of), name):
                    self._guard(Guard.absent(Place("item", container, name, joined(met.name, name))))
            return
        is_whole = id(container) in self.replaced | self.whole
        is_whole |= met.of is not None and "vars" in said.globals  # vars(an_object)["key"]
        is_whole |= lists and any("." in name for name in names)
        known = (self._keys(container, names, own) for own in self.said_of_contents if not is_whole)
        keys = next((own for own in known if own is not None), None)
        if keys is not None and ("items", id(container)) in self.replaced:
            shape = shape_of(met.before, type(container))
            self._guard(Guard(Place("itself", container, None, met.name), shape, "shape"))
            keys = set(range(len(met.before)))
        if keys is not None and not isinstance(container, (set, frozenset)):
            for key in keys:
                place = Place("item", container, key, item_name(met.name, key))
                value = item_of(met.before, key)
                if value is MISSING:
                    if isinstance(container, dict):
                        self._guard(Guard.absent(place))
                    else:
                        self._guard(Guard.contents(container, self._with_numbers(met.before), met.name))
                else:
                    self._value(place, value)
            return
        self._refuse_iterators([met])
        if any(Place("item", container, k, "").identity in self.stand_ins or holds_symbols(v) for k, v in met.items):
            shape = shape_of(met.before, type(container))
            self._guard(Guard(Place("itself", container, None, met.name), shape, "shape"))
            for key, value in met.items:
                self._value(Place("item", container, key, item_name(met.name, key)), value)
            return
        for key, value in met.items:
            if isinstance(value, Tensor) and not isinstance(container, (set, frozenset)):
                self._value(Place("item", container, key, item_name(met.name, key)), value)
        if not isinstance(container, (tuple, frozenset)):  # what is in these cannot be exchanged
            self._guard(Guard.contents(container, self._with_numbers(met.before), met.name))

    def _refuse_iterators(self, containers: Sequence[Met]) -> None:
        """Raise for an iterator in a container that code reads, before the function runs: it would go on."""
        for met in containers:
            found = {key: v for key, v in met.items if is_iterator(v)}
            if not found:
                continue
            said = self.said  # of all code that was reached: asked for where it matters
            keys: Set[Any] | None = said.attributes | said.strings
            if met.of is None:
                keys = self._keys(met.container, self._all_names(met.container), said)
            for key in found:
                if keys is None or key in keys:
                    raise refuse_iterator(item_name(met.name, key) if met.of is None else joined(met.name, key))

    def _refuse_iterators_of_classes(self) -> None:
        said = self.said
        for kind, had in self.classes.items():
            for name in (said.attributes | said.strings) & had.keys():
                if is_iterator(had[name]):
                    raise refuse_iterator(f"{kind.__name__}.{name}")

    def _container(self, container: Any, name: str) -> None:
        super()._container(container, name)
        if self._is_running and id(container) in self._late:
            self._refuse_iterators([self._late[id(container)]])

    def _with_numbers(self, before: Any) -> Any:
        """A copy of a container, with numbers for what stands for them."""
        if isinstance(before, dict):
            return {key: self.number(v) for key, v in before.items()}
        return type(before)(map(self.number, before)) if isinstance(before, (list, collections.deque)) else before

    def _keys(self, container: Any, names: Sequence[str], said: Mentions) -> set[Any] | None:
        """The constant keys by which all code that was reached reads, or replaces items of, a container that has
        these names; None if some reads it otherwise. What was only counted, or added to a list, is found by
        comparison."""
        says = {found_on(type(container), method)[0] for method in _OF_ITEMS} if isinstance(container, dict) else ()
        if not all(c is None or is_library(c) for c in says):
            return None  # a class of the caller's says what an item is
        found: set[Any] = set()
        is_full = isinstance(container, collections.deque) and len(container) == container.maxlen
        grows = isinstance(container, (list, collections.deque)) and (not is_full or id(container) in self.written)
        for name in names:
            base, path = taken_apart(name)
            uses = said.uses.get(base)
            if path is None or not uses or (said.by_name and base in said.strings):
                return None
            for use in uses:
                n = len(path)
                if use.at(path) is None:
                    continue
                if len(use.keys) > n:
                    if use.keys[n] is ANY:
                        return None
                    counts = len(use.keys) == n + 1 and use.then == "count"
                    if not counts or Place("item", container, use.keys[n], "").identity in self.replaced:
                        found.add(use.keys[n])
                elif use.then == "store" and len(use.keys) == n:
                    continue
                elif use.then != "grow" or len(use.keys) < n or not grows:
                    return None
        return found
