"""The watch: what of Python state a function reads while it runs.

Attributes of objects and modules are heard of by hooks (``hooks``); what no hook hears of is found by what the code mentions
(``reached``). Containers and attributes are copied when they are met, so that what the function wrote can be found and undone
(``effects``).
"""

from __future__ import annotations

import collections
import inspect
import os
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ..errors import UnwatchedStateWarning
from .caches import entries_of, results_of
from .code import Mentions, builtins_in, loads_of, mentions, together
from .guards import MISSING, Guard, Met, Place, holds_tensors, is_plain
from .hooks import can_be_hooked, hooked_environment, listening, unhook
from .impure import Generator, is_iterator, put_back, refuse_iterator, warn_of_clocks
from .names import (
    TABLES,
    assigned_by,
    attributes_of,
    found_on,
    is_installed,
    is_library,
    item_name,
    item_of,
    joined,
    package,
    taken_apart,
)
from .reached import CONTAINERS, Reached


class Watch(Reached):
    """Use as a context manager around what runs code of the caller's; ``finish`` it, then ``guards`` and ``tensors`` say what was read,
    ``met`` what was there.

    ``root``: the function. ``arguments``: those that are no tensors, by name. ``numbers``: see ``put_numbers``.
    """

    def __init__(self, root: Callable[..., Any], arguments: Sequence[tuple[str, Any]], numbers: Sequence[tuple[Place, Any]] = ()) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._root = root
        self._together = 0, Mentions()
        self._is_running = False
        self.put_numbers(numbers)
        try:
            self.see(root, "")
            for name, value in arguments:
                self._argument(value, name)
            self._refuse_iterators(list(self._late.values()))
            self._refuse_iterators_of_classes()
        except BaseException:
            self.close()
            self.take_numbers_back()
            raise

    # ── around the run ───────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Watch:
        self._stack.enter_context(hooked_environment())
        self._stack.enter_context(listening(self))
        self._is_running = True
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def close(self) -> None:
        """Take all hooks away; none is set any more."""
        self._is_closed = True
        while self._hooks:
            unhook(self._hooks.pop())

    def finish(self) -> None:
        """Guard what was mentioned but not heard of, when all code that was reached is known."""
        said = self.said
        for key in [key for key, guard in self._guards.items() if not guard.holds()]:  # read after it was written
            del self._guards[key]
        for cache, name, _ in self.caches if "cache_clear" not in said.attributes else ():
            self._guard_cache(cache, name)
        names = said.attributes | said.strings | said.assigned
        of_types = "type" in said.globals or "__class__" in said.attributes or said.past_hooks
        by_name = set(filter(str.isidentifier, said.strings)) if said.by_name else set()
        if said.past_hooks:
            self._guard_unheard(names, by_name)
        met, classes = 0, 0
        while met < len(self._late) or classes < len(self.classes):  # what is guarded leads to more
            more, kinds = list(self._late.values())[met:], list(self.classes)[classes:]
            met, classes = met + len(more), classes + len(kinds)
            for container in more:
                self._guard_container(container, said)
            for kind in kinds:
                self._guard_class(kind, names, by_name if of_types or kind in self._direct else set())
        self._guard_unchanged(said)
        for key, places in self._places.items():
            if key in self.written and key in self.met:  # what is written to must be the very container
                for place in places:
                    self._guards.setdefault(("is", place.identity), Guard(place, self.met[key].container, "is"))
        self._warn(said)

    def put_numbers(self, numbers: Sequence[tuple[Place, Any]]) -> None:
        """Put what stands for numbers of Python state in their places."""
        for place, stand_in in numbers:
            number = self.number(place.read())
            self.numbers[place.identity] = place, number
            self.stand_ins.setdefault(place.identity, []).append(stand_in)
            self.stood_in[id(stand_in)] = stand_in, number
            place.write(stand_in)

    def number(self, value: Any) -> Any:
        """The number that a value stands for, or the value."""
        return self.stood_in[id(value)][1] if id(value) in self.stood_in else value

    def take_numbers_back(self) -> None:
        """The numbers are in their places again."""
        for place, number in self.numbers.values():
            place.write(number)
        self.numbers.clear()

    @property
    def filled(self) -> str | None:
        """The name of a ``functools.lru_cache`` that keeps something since the function runs."""
        return next((name for cache, name, before in self.caches if entries_of(cache).keys() - before), None)

    def forget(self) -> None:
        """What failed keeps no results."""
        for cache, _, before in self.caches:
            if entries_of(cache).keys() - before:
                cache.cache_clear()

    def put_draws_back(self) -> list[Generator]:
        """The generators that are not torch's and have drawn, as they were before."""
        return put_back(self._generators, self._of_everybody, self.said, self._codes.values())

    @property
    def said(self) -> Mentions:
        """What all code that was reached mentions."""
        if self._together[0] != len(self._codes):  # asked for after each run
            self._together = len(self._codes), together([mentions(code) for code in self._codes])
        return self._together[1]

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(self._guards.values())

    def knows(self, value: Any) -> bool:
        """Whether a value is an object that was there before the run."""
        return id(value) in self._known

    def places_of(self, wanted: Sequence[Tensor]) -> dict[int, Place]:
        """By identity, the first place of each tensor that was read from one that is known, or lies in a container that was met."""
        found: dict[int, Place] = {}
        for place, tensor in self.tensors.values():
            found.setdefault(id(tensor), place)
        missing = {id(t) for t in wanted} - found.keys()
        for met in self.met.values() if missing else ():
            if isinstance(met.container, (dict, list, collections.deque)):
                for key, value in met.before.items() if isinstance(met.before, dict) else enumerate(met.before):
                    if id(value) in missing:
                        name = item_name(met.name, key) if met.of is None else joined(met.name, str(key))
                        found.setdefault(id(value), Place("item", met.container, key, name))
        for kind, had in self.classes.items():
            for name, value in had.items():
                if id(value) in missing:
                    found.setdefault(id(value), Place("class", kind, name, f"{kind.__name__}.{name}"))
        return found

    # ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def got(self, owner: Any, name: str, value: Any) -> None:
        """An attribute was read."""
        if id(owner) not in self._known:
            return
        reader = sys._getframe(2)
        if name == "__dict__" and package(reader.f_globals.get("__name__")) in ("torch", "funcgrad"):
            return
        if reader.f_lasti not in loads_of(reader.f_code):
            self.unmentioned.add((id(owner), name))
        if (id(owner), name) in self._read:
            return
        with listening(None):
            self._read.add((id(owner), name))
            self._got(owner, name, value)

    def lacked(self, owner: Any, name: str) -> None:
        """An attribute was asked for that no dict and no class has; a module may still have it in a table."""
        if id(owner) not in self._known or (id(owner), name) in self._read:
            return
        with listening(None):
            self._read.add((id(owner), name))
            own, shown = attributes_of(owner), joined(self._name(owner), name)
            if name.startswith("__") and name.endswith("__"):
                return
            if own is None:
                self._guard(Guard.absent(Place("slot", owner, name, shown)))
                return
            if isinstance(owner, torch.nn.Module):
                tables = [own[table] for table in TABLES if table in own]
                for table in tables:
                    if name in table:
                        self._value(Place("item", table, name, shown), table[name])
                        return
                for table in tables:
                    self._guard(Guard.absent(Place("item", table, name, shown)))
            self._guard(Guard.absent(Place("item", own, name, shown)))
            self._absent_on_class(type(owner), name, shown)

    def environment(self, key: str) -> None:
        """An environment variable was read."""
        place = Place("environ", os.environ, key, f"os.environ[{key!r}]")
        with listening(None):
            self._guard(Guard.of(place, place.read()))

    def _got(self, owner: Any, name: str, value: Any) -> None:
        own, shown = attributes_of(owner), joined(self._name(owner), name)
        if name == "__dict__":
            self._container(own, shown)
            return
        if name.startswith("__") and name.endswith("__"):
            return
        kind, defined = found_on(type(owner), name)
        if kind is not None and hasattr(type(defined), "__set__"):  # a data descriptor comes before the object's own
            if isinstance(defined, property):
                self._value(Place("class", kind, name, shown), defined)
            elif isinstance(defined, types.MemberDescriptorType):
                self.slots.setdefault((id(owner), name), (Place("slot", owner, name, shown), value))
                self._value(Place("slot", owner, name, shown), value)
        elif own is not None and name in own:
            self._value(Place("item", own, name, shown), own[name])
        elif kind is not None:
            self._on_class(type(owner), kind, name, defined, shown)
            of_library = is_library(kind) and (isinstance(defined, types.FunctionType) or kind is torch.nn.Module)
            if own is not None and (not of_library or name == "forward"):
                self._guard(Guard.absent(Place("item", own, name, shown)))

    def _on_class(self, kind: type, defines: type, name: str, defined: Any, shown: str) -> None:
        """An attribute of a class: what stands before it in the order of inheritance must go on to lack it."""
        if is_library(defines):
            self.see(getattr(defined, "__func__", defined), shown)
            return
        for c in kind.__mro__[: kind.__mro__.index(defines)]:
            if not is_library(c):
                self._guard(Guard.absent(Place("class", c, name, shown)))
        if is_installed(defines) and isinstance(defined, types.FunctionType):
            self.see(defined, shown)
        else:
            self._value(Place("class", defines, name, shown), defined)

    def _absent_on_class(self, kind: type, name: str, shown: str) -> None:
        for c in kind.__mro__:
            if not is_library(c):
                self._guard(Guard.absent(Place("class", c, name, shown)))

    # ── what is guarded when all code is known ───────────────────────────────────────────────────────────────────

    def _guard_class(self, kind: type, names: Set[str], by_name: Set[str]) -> None:
        """What is read through a class itself (``Config.scale``, ``super().forward``): of installed packages data alone. What its
        metaclass or its bases have, or may be asked for ``by_name``, it must go on to lack."""
        for name in names & kind.__dict__.keys():
            value = kind.__dict__[name]
            if not name.startswith("__") and (is_plain(value) or isinstance(value, CONTAINERS) or not is_installed(kind)):
                self._value(Place("class", kind, name, f"{kind.__name__}.{name}"), value)
        if not is_installed(kind):
            self._guard(Guard.of(Place("slot", kind, "__bases__", f"{kind.__name__}.__bases__"), kind.__bases__))
        bases = {name for c in inspect.getmro(kind)[1:] if not is_library(c) for name in names & c.__dict__.keys()}
        for name in (bases | by_name) - kind.__dict__.keys():
            self._guard(Guard.absent(Place("class", kind, name, f"{kind.__name__}.{name}")))
        for meta in inspect.getmro(type(kind)):
            for name in () if is_library(meta) else names & meta.__dict__.keys() - kind.__dict__.keys():
                self._guard(Guard.absent(Place("class", kind, name, f"{kind.__name__}.{name}")))

    def _guard_unheard(self, names: Set[str], by_name: Set[str]) -> None:
        """Attributes of objects that may have been read, or asked for ``by_name``, where no hook hears of it."""
        own = [met for met in self.met.values() if met.of is not None and id(met.container) not in self._late]
        held = [(Place("item", m.container, k, joined(m.name, k)), m.before.get(k, MISSING)) for m in own for k in sorted(names)]
        held += [(place, before) for place, before in self.slots.values() if place.key in names]
        for place, before in held:
            if before is not MISSING:
                self._value(place, before)
            elif place.key in by_name:
                self._guard(Guard.absent(place))

    def _guard_unchanged(self, said: Mentions) -> None:
        """What code may write to, and left as it was: where it is another, the write is one."""
        assigned = said.assigned | (said.strings if said.set_by_name else frozenset())
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

    def _guard_container(self, met: Met, said: Mentions) -> None:
        container, names = met.container, self._names[id(met.container)]
        if met.of is not None and id(container) in self._late and not said.by_name and not can_be_hooked(type(met.of)):
            for name, value in met.before.items():
                if name in said.attributes | said.strings and name != "__wrapped__":
                    self._value(Place("item", container, name, joined(met.name, name)), value)
            return
        keys = self._keys(container, names, said) if id(container) not in self.replaced | self.whole else None
        if keys is not None and ("items", id(container)) in self.replaced:
            self._guard(Guard(Place("itself", container, None, met.name), (type(container), len(met.before)), "shape"))
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
        for key, value in met.items:
            if isinstance(value, Tensor):
                self._value(Place("item", container, key, item_name(met.name, key)), value)
        if not isinstance(container, (tuple, frozenset)):  # what is in these cannot be exchanged
            self._guard(Guard.contents(container, self._with_numbers(met.before), met.name))

    def _refuse_iterators(self, containers: Sequence[Met]) -> None:
        """Raise for an iterator in a container that code reads, before the function runs: it would go on."""
        said = self.said
        for met in containers:
            found = {key: v for key, v in met.items if is_iterator(v)}
            if found and met.of is not None:
                keys: Set[Any] | None = said.attributes | said.strings
            else:
                keys = self._keys(met.container, self._names[id(met.container)], said) if found else None
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
        """The constant keys by which all code that was reached reads, or replaces items of, a container that has these names; None if some
        reads it otherwise. What was only counted, or added to a list, is found by comparison."""
        found: set[Any] = set()
        grows = isinstance(container, (list, collections.deque))
        for name in names:
            base, path = taken_apart(name)
            uses = said.uses.get(base)
            if path is None or not uses or (said.by_name and base in said.strings):
                return None
            for use in uses:
                n = len(path)
                if use.keys[:n] != path[: len(use.keys)]:
                    continue
                if len(use.keys) > n:
                    counts = len(use.keys) == n + 1 and use.then == "count"
                    if not counts or Place("item", container, use.keys[n], "").identity in self.replaced:
                        found.add(use.keys[n])
                elif use.then != "grow" or len(use.keys) < n or not grows:
                    return None
        return found

    def _warn(self, said: Mentions) -> None:
        """Name, once for each function, what no guard can watch."""
        for value, name in self.unwatched.values():
            what = f"{len(value):,} items of {name}" if isinstance(value, CONTAINERS) else f"{name} (a {type(value).__name__})"
            _warn_once(self._root, f"{what} cannot be watched: a change of it between calls is not noticed")
        for method in sorted({"cache_info", "cache_clear"} & (said.attributes | said.strings) if self.caches else ()):
            _warn_once(self._root, f"the function asks for {method}() of a functools.lru_cache: {_OF_CACHES[method]}")
        if "__subclasses__" in said.attributes:
            _warn_once(self._root, _CALLS.format("__subclasses__"))
        warn_of_clocks(self._codes.values())
        namespaces = [function.__globals__ for function in self._codes.values()]
        for space in namespaces[:1]:
            for name in builtins_in(said.unseen, space):
                _warn_once(self._root, _CALLS.format(name))


_CALLS = "the function calls {}(): what it reads by it cannot be watched, and is as it was when it was traced"
_OF_CACHES = {
    "cache_info": "it is as it was when the function was traced",
    "cache_clear": "it is cleared when the function is traced, and not on each call",
}
_MOST_KEPT = 64
"""Results of a ``functools.lru_cache`` that are watched."""

_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _warn_once(root: Any, message: str) -> None:
    """A warning that comes once for each function."""
    function = getattr(root, "__func__", root)
    said = _warned.setdefault(function if isinstance(function, types.FunctionType) else type(function), set())
    if message not in said:
        said.add(message)
        warnings.warn(message, UnwatchedStateWarning, stacklevel=2)
