"""The watch: what of Python state a function reads while it runs.

Attributes of objects and modules are heard of by hooks (``hooks``); what no hook hears of is found by what the code
mentions (``reached``). Containers and attributes are copied when they are met, so that what the function wrote can be
found and undone (``effects``).

It is one object in nine parts, each a class that knows those before it: what is known (``found``), where it lives
(``homes``), what values bring along (``reached``), what code names (``mentioned``), what is assumed, unwatched, asked
of loggers, and of the environment, and what runs (``running``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from typing import Any

import torch
from attrs import evolve
from torch import SymFloat, SymInt, Tensor

from .. import refusals
from ..errors import ImpureFunctionError
from ..inside import having
from ..trees import Container
from .buffers import holds_now
from .caches import keeps_traced
from .code import loads_of, mentions, with_nested, written_by
from .conversions import Globals, asks_types, asks_types_otherwise, converting, own_names
from .files import hearing_of_files, version_of
from .given import OF_ITEMS, with_parts
from .guards import Guard, Met, members_said
from .hooks import hooked_process, listening, unheard, unhook
from .identities import keyed_by_tensors
from .imports import heard_imports
from .impure import put_back, refuse_draw
from .lines import Lines, user_line
from .names import (
    LIBRARIES,
    TABLES,
    attributes_of,
    brought_along,
    found_on,
    is_installed,
    is_installed_file,
    is_library,
    item_of,
    joined,
    looks_for_itself,
    package,
    slots_of,
)
from .places import MISSING, Place
from .renamed import original
from .running import Running
from .settings import Setting
from .values import copied, same, with_changes

Converting = Sequence[tuple[types.FunctionType, frozenset[str]]]


class Watch(Running):
    """Use as a context manager around what runs code of the caller's; ``finish`` it, then ``guards`` and ``tensors``
    say what was read, ``met`` what was there.

    ``root``: the function. ``arguments``: those that are no tensors, by name. ``numbers``: see ``put_numbers``.
    ``hears_identities``: whether it is heard whose ``id`` is asked, where each call may bring another object.
    """

    def __init__(
        self,
        root: Callable[..., Any],
        arguments: Sequence[tuple[str, Any]],
        numbers: Sequence[tuple[Place, Any]] = (),
        hears_identities: bool = False,
    ) -> None:
        super().__init__(root, hears_identities)
        self.measuring: list[Globals] = []
        """The globals of code that asked for the ``len`` of a tensor."""
        self._stack = ExitStack()
        self.given_tensors: Set[int] = frozenset()
        """By identity, what stands for the tensors that the function is given."""
        self.keys: dict[int, Tensor] = {}
        """By identity, tensors that code of the caller's has looked for, or put somewhere, by which object they are."""
        self.held_ended: dict[int, tuple[Place, Tensor]] = {}  # tensors of levels that have ended, which were read
        self.put_numbers(numbers)
        try:
            self.see(root, "")
            if isinstance(root, torch.nn.Module):
                self.see(root.forward, "forward")
            self.see_arguments(arguments)
            self._guard_libraries()
            self._refuse_iterators(list(self._late.values()))
            self._refuse_iterators_of_classes()
        except BaseException:
            self.close()
            self.take_numbers_back()
            raise

    # ── around the run ───────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Watch:
        self._stack.enter_context(hooked_process())
        self._stack.enter_context(heard_imports())
        self._stack.enter_context(hearing_of_files())
        self._stack.enter_context(listening(self))
        self._stack.enter_context(self.hearing())
        self._is_running = True
        return self

    def __exit__(self, *error: Any) -> None:
        self.asks_caches = self.asks_caches or any(cache.was_asked for cache in self.caches)
        self._stack.__exit__(*error)

    @contextlib.contextmanager
    def in_backward(self) -> Iterator[None]:
        """Around a backward pass: what it reads is heard again."""
        self._read.clear()
        with having(self, _is_in_backward=True), self:
            yield

    def close(self) -> None:
        """Take all hooks away; none is set any more."""
        self._is_closed = True
        while self._hooks:
            unhook(self._hooks.pop())

    def finish(self) -> None:
        """Guard what was mentioned but not heard of, when all code that was reached is known; name what no guard can
        watch."""
        self._guard_unheard_of()
        if self.given_tensors and self._has_id_by_another_name:
            self._refuse_keys(by_address=True)
        self._warn(self.said)

    def put_numbers(self, numbers: Sequence[tuple[Place, Any]]) -> list[tuple[Place, Any, Any]]:
        """Put what stands for numbers of Python state in their places; returns what was there, and what is now."""
        put = [(place, place.read(), stand_in) for place, stand_in in numbers]
        for place in (place.owner for place, _ in numbers if isinstance(place.owner, Place)):
            self._tuples.setdefault(place.identity, (place, place.read()))
        for place, stand_in in numbers:
            _, number = self.numbers.setdefault(place.identity, (place, self.number(place.read())))
            for at in {place.identity, place.location}:  # what is written is found by where it is
                self.stand_ins.setdefault(at, []).append(stand_in)
            if isinstance(stand_in, (SymInt, SymFloat)):  # a plain one may stand anywhere else
                self.stood_in[id(stand_in)] = stand_in, number
            place.write(stand_in)
        for place, _ in numbers:
            while isinstance(place.owner, Place):
                place = place.owner
                for at in {place.identity, place.location}:
                    self.tuples_put.setdefault(at, []).append(place.read())
        return put

    def held_before(self, place: Place, stand_in: Any, was: Any) -> None:
        """What was met while something stood in a place held what was there."""
        met, slot = self.met.get(id(place.owner)), (id(place.owner), place.key)
        if met is not None and item_of(met.before, place.key) is stand_in:
            met.before[place.key] = was
        if slot in self.slots and self.slots[slot][1] is stand_in:  # type: ignore[index]
            self.slots[slot] = (self.slots[slot][0], was)  # type: ignore[index]

    def take_numbers_back(self) -> None:
        """The numbers are in their places again."""
        for place, number in self.numbers.values():
            place.write(number)
        for place, held in self._tuples.values():
            if same(held, place.read()):
                place.write(held)
        self._tuples.clear()
        self.numbers.clear()

    @property
    def filled(self) -> str | None:
        """The name of a ``functools.lru_cache`` that keeps something since the function runs."""
        return next((cache.name for cache in self.caches if cache.was_filled), None)

    @property
    def keeping_traced(self) -> list[tuple[str, frozenset[str]]]:
        """Each ``functools.lru_cache`` that keeps a tensor of the trace, by its name, and under which names its
        function writes to Python state."""
        own = [(c.function, c.name) for c in self.caches if isinstance(c.function.__wrapped__, types.FunctionType)]
        return [(name, written_by(original(c.__wrapped__.__code__))) for c, name in own if keeps_traced(c)]

    def forget(self) -> None:
        """What failed keeps no results."""
        for cache in self.caches:
            cache.forget()

    def put_draws_back(self) -> ImpureFunctionError | None:
        """Generators that are not torch's are as they were before; what refuses one that has drawn, or was seeded."""
        drawn = put_back(self._generators, self._of_everybody, self.said, self._codes.values())
        return refuse_draw(drawn[0], [self._codes[code] for code in self._what_ran]) if drawn else None

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(self._guards.values())

    @property
    def lines(self) -> Lines:
        """Where what was read is read."""
        return Lines(self.heard, tuple(self._codes))

    @property
    def catches(self) -> bool:
        """Whether code that was reached, and is not torch's, has a handler (``try``, ``with``)."""
        return any(code.co_exceptiontable for code in self._users_codes)

    @property
    def reads_past_hooks(self) -> bool:
        """Whether code that ran reads attributes where no hook hears of it, but for those of a class that says itself
        how they are read (``super().__getattribute__(name)``)."""
        ran = self._what_ran
        own = [code for code in ran if code.co_name == "__getattribute__" and "super" in mentions(code).globals]
        return any(mentions(code).past_hooks for code in ran if code not in own)

    @property
    def known(self) -> list[Any]:
        """The objects that can be reached, as far as was looked."""
        return list(self._known.values())

    def whose_identity(self) -> set[int] | None:
        """The identities of objects whose ``id`` was asked; None where code may have asked without being heard."""
        return None if self._has_id_by_another_name else self.identities.asked(self._what_ran)

    @property
    def _has_id_by_another_name(self) -> bool:
        """Whether code has ``id`` as a value: from whom that is asked, nobody hears."""
        return self.has_as_value(id) or any(guard.value is id for guard in self._guards.values())

    def has_as_value(self, function: Any) -> bool:
        """Whether a function that was reached has this one as a default, or closes over it."""
        return any(value is function for own in self._functions for value in brought_along(own))

    def knows(self, value: Any) -> bool:
        """Whether a value is an object that was there before the run."""
        return id(value) in self._known or id(value) in self.given

    def keeps(self, container: Any) -> bool:
        """Whether a container was there before the run, in Python state; a program that returns it is for this one."""
        is_kept = id(container) in self._known and id(container) not in self.given
        if is_kept:
            self.moved.add(id(container))
        return is_kept

    def makes(self, function: types.FunctionType) -> bool:
        """Whether code that was reached makes this function: it was not there before the run."""
        code = original(function.__code__)
        return any(code in with_nested(own)[1:] for own in self._codes)

    def give(self, containers: Iterable[Container]) -> tuple[Container, ...]:
        """Look at what a run stores into the containers among its arguments, which no other run was given."""
        given = tuple(own for container in containers for own in with_parts(container))
        self.given = {id(own.value): own.value for own in given}
        once = {id(own.value): own for own in reversed(given)}.values()  # a call may bring one in several places
        items = (own for own in once if isinstance(own.value, OF_ITEMS))
        self.given_items = [Met(own.value, copied(own.value), own.path) for own in items]
        slots = [(own, name) for own in once if not isinstance(own.value, tuple) for name in slots_of(type(own.value))]
        places = [Place("slot", own.value, name, joined(own.path, name)) for own, name in slots]
        self.given_slots = [(place, place.read()) for place in places]
        return given

    def see_arguments(self, arguments: Iterable[tuple[str, Any]]) -> None:
        """Arguments that are no tensors, by name: of the function, or of one that it runs and that was compiled for
        them."""
        with unheard():
            for name, value in arguments if not self._is_closed else ():
                self._argument(value, name)

    @property
    def asks_types(self) -> bool:
        """Whether code that ran asks for types in a way that only numbers can answer."""
        asking = [code for code in self._what_ran if mentions(code).types]
        if any(asks_types_otherwise(code) or not asks_types(self._codes[code]) for code in asking):
            return True
        return self._has_type_by_another_name

    @property
    def asks_classes(self) -> bool:
        """Whether code that ran may ask of which class a tensor is: by ``isinstance``, of which nobody hears."""
        said = self.said_by_what_ran
        by_name = {"type", "__class__", "Parameter", "Buffer"} & (said.globals | said.attributes | said.strings)
        return bool(by_name) or not self._names.keys().isdisjoint(map(id, (torch.nn.Parameter, torch.nn.Buffer)))

    @property
    def _has_type_by_another_name(self) -> bool:
        """Whether ``type`` was reached as a value; not as one of Python's builtins, which all globals hold."""
        return any("__builtins__" not in name for name in self._names.get(id(type), ()))

    def converting(self, has_numbers: bool) -> Converting:
        """The functions in which ``type`` is asked, and where there are symbols of numbers, ``float`` and ``int``."""
        asking = [(function, frozenset({"type"})) for function in self._functions if asks_types(function)]
        return [*asking, *(converting(self._functions) if has_numbers else ())]

    def put_back(self, put: Sequence[tuple[Place, Any, Any]]) -> None:
        """What ``put_numbers`` has put somewhere goes again, for what was there."""
        for place, had, stand_in in reversed(put):
            for at in {place.identity, place.location}:
                if not _without_last(self.stand_ins[at], stand_in):
                    del self.stand_ins[at]
            if self.number(had) is had:
                self.numbers.pop(place.identity, None)
            place.write(had)

    def begins_anew(self) -> None:
        """What is there now was there before."""
        self._read.clear()
        self._guards = {key: guard for key, guard in self._guards.items() if guard.holds()}
        for tensors in (self.tensors, self.assigned):
            for gone in [key for key, (place, tensor) in tensors.items() if place.read() is not tensor]:
                del tensors[gone]
        for sets in (self.written, self.replaced, self.moved, self.stored):
            sets.clear()
        for met in (self.met, self._late):
            met.update({key: evolve(own, before=_held(own)) for key, own in met.items()})
        for held in (self.globals, self.cells, self.slots):
            held.update({key: (place, place.read()) for key, (place, _) in held.items()})  # type: ignore[attr-defined, misc]
        self.settings, self.variables, self.classes = self._process()

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Around an import, which happens once, in eager PyTorch, and stays: what it changes it has changed before."""
        mets = self.met, self._late
        was = {key: _held(own) for held in mets for key, own in held.items()}
        tables: list[dict[Any, tuple[Place, Any]]] = [self.globals, self.cells, self.slots]  # type: ignore[list-item]
        places = [{key: place.read() for key, (place, _) in table.items()} for table in tables]
        settings, variables, classes = self._process()
        try:
            yield
        finally:
            for held in mets:
                before = {key: with_changes(own.before, was[key], _held(own)) for key, own in held.items()}
                held.update({key: evolve(own, before=before[key]) for key, own in held.items()})
            for table, values in zip(tables, places, strict=True):
                now = {key: (place, place.read()) for key, (place, _) in table.items()}
                table.update({key: own for key, own in now.items() if own[1] is not values[key]})
            settings_now, variables_now, classes_now = self._process()
            self.settings = with_changes(self.settings, settings, settings_now)
            self.variables = with_changes(self.variables, variables, variables_now)
            known = self.classes.items()
            self.classes = {kind: with_changes(own, classes[kind], classes_now[kind]) for kind, own in known}

    def _process(self) -> tuple[dict[Setting, Any], dict[str, str], dict[type, dict[str, Any]]]:
        """The settings, variables of the environment, and what classes have, as they are now."""
        settings = {own: own.place.read() for own in self.settings}
        return settings, dict(os.environ), {kind: members_said(kind) for kind in self.classes}

    # ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def got(self, owner: Any, name: str, value: Any) -> None:
        """An attribute was read."""
        if id(owner) not in self._known:
            return
        reader = sys._getframe(2)
        if name == "__dict__" and looks_for_itself(reader):
            return
        if reader.f_lasti not in loads_of(reader.f_code):
            self.unmentioned.add((id(owner), name))
        if (id(owner), name) in self._read:
            return
        with unheard():
            self._read.add((id(owner), name))
            if self._is_in_backward:
                self.read_in_backward.add(id(owner))
            self._hear(joined(self._name(owner), name))
            self._got(owner, name, value, package(reader.f_globals.get("__name__")) in LIBRARIES)

    def lacked(self, owner: Any, name: str) -> None:
        """An attribute was asked for that no dict and no class has; a module may still have it in a table."""
        if id(owner) not in self._known or (id(owner), name) in self._read:
            return
        with unheard():
            self._read.add((id(owner), name))
            if self._is_in_backward:
                self.read_in_backward.add(id(owner))
            own, shown = attributes_of(owner), joined(self._name(owner), name)
            if name.startswith("__") and name.endswith("__"):
                return
            self._hear(shown)
            if own is None:
                self._guard(Guard.absent(Place("slot", owner, name, shown)))
                return
            if isinstance(owner, torch.nn.Module):
                tables = [own[table] for table in TABLES if table in own]
                for table in tables:
                    if name in table:
                        self._item(table, name, shown)
                        return
                for table in tables:
                    self._guard(Guard.absent(Place("item", table, name, shown)))
            self._guard(Guard.absent(Place("item", own, name, shown)))
            self._absent_on(type(owner).__mro__, name, shown)

    def lacking(self, place: Place, tensor: Tensor) -> Iterator[Guard]:
        """That a tensor that was met at a place goes on to lack what code may ask it for, by texts or where an error
        is caught: of one that the function computes with, its stand-in hears."""
        if (met := self.met.get(id(attributes_of(tensor)))) is None:
            return
        own = self._own_mentions()
        codes = [part for c in self._codes if not is_installed_file(c.co_filename) for part in with_nested(c)]
        names = own.strings if own.by_name else frozenset[str]()
        names |= own.attributes if any(code.co_exceptiontable for code in codes) else frozenset()
        attributes = Place("slot", place, "__dict__", place.name)
        for name in sorted(filter(str.isidentifier, names - met.before.keys())):
            if not hasattr(type(tensor), name):
                yield Guard.absent(Place("item", attributes, name, joined(place.name, name)))

    def asked_identity(self, of: Any) -> None:
        """It was asked which object one is."""
        self.identities.note(of)
        self.require_no_key(of, by_address=True)

    def require_no_key(self, of: Any, by_address: bool = False) -> None:
        """Raise where something is looked for by which object it is, or put somewhere by it (``by_address``: by its
        ``id``): what stands for a tensor that the function is given is in no container of the caller's."""
        if id(of) in self.given_tensors:
            self._refuse_keys(by_address)

    def _refuse_keys(self, by_address: bool) -> None:
        if (name := keyed_by_tensors(self.met.values(), by_address)) is not None:
            raise refusals.KEYED_BY_TENSORS(name, where=user_line())

    def looked_into(self, path: str) -> None:
        """A file was read, or asked for what it is."""
        version = self._versions.setdefault(path, version_of(path))
        self._hear(version.name)
        self._guard(Guard.of(version.place, version.value))

    def done_outside(self, what: str) -> None:
        """Something was done with files, processes or the network, that a guard knows nothing of."""
        self.outside.add(what)

    def _got(self, owner: Any, name: str, value: Any, by_library: bool) -> None:
        own, shown = attributes_of(owner), joined(self._name(owner), name)
        if name == "__dict__" or (name == "__getstate__" and own is not None):
            self._container(own, shown)
            if name == "__getstate__":  # whoever copies it reads all of it, where no hook hears of it
                self.whole.add(id(own))
            return
        if name.startswith("__") and name.endswith("__"):
            return
        kind, defined = found_on(type(owner), name)
        if kind is not None and hasattr(type(defined), "__set__"):  # a data descriptor comes before the object's own
            if isinstance(defined, property):
                self._value(Place("class", kind, name, shown), defined)
            elif isinstance(defined, types.MemberDescriptorType):
                place, before = self.slots.setdefault((id(owner), name), (Place("slot", owner, name, shown), value))
                if self._is_in_backward:
                    self.read_in_backward.add(place.identity)
                if value is before:  # else the run stored it
                    self._value(Place("slot", owner, name, shown), value)
        elif own is not None and name in own:
            self._item(own, name, shown, of_class=kind is not None)
        elif kind is not None:
            self._on_class(type(owner), kind, name, defined, shown)
            # of classes of a library, somebody may replace what the caller's code asks for, and what modules do
            if is_library(kind) and (name == "forward" or not by_library):
                self._library_class(kind, [name])
            of_library = is_library(kind) and (isinstance(defined, types.FunctionType) or kind is torch.nn.Module)
            if own is not None and (not of_library or name == "forward"):
                self._guard(Guard.absent(Place("item", own, name, shown)))

    def _item(self, own: dict[str, Any], name: str, shown: str, of_class: bool = False) -> None:
        """An attribute that a dict holds, unless the run stored it. ``of_class``: a descriptor may have, with what
        it computed."""
        place, met = Place("item", own, name, shown), self.met.get(id(own))
        if self._is_in_backward:
            self.read_in_backward.add(place.identity)
        before = own[name] if met is None else met.before.get(name, MISSING)
        if before is own[name]:
            self._value(place, before)
        elif before is MISSING and of_class:
            self._guard(Guard.absent(place))

    def _on_class(self, kind: type, defines: type, name: str, defined: Any, shown: str) -> None:
        """An attribute of a class: what stands before it in the order of inheritance must go on to lack it."""
        if is_library(defines):
            self.see(getattr(defined, "__func__", defined), shown)
            return
        self._absent_on(kind.__mro__[: kind.__mro__.index(defines)], name, shown)
        if is_installed(defines) and isinstance(defined, types.FunctionType):
            self.see(defined, shown)
        else:
            self._value(Place("class", defines, name, shown), defined)

    def _absent_on(self, classes: Sequence[type], name: str, shown: str) -> None:
        for c in classes:
            if not is_library(c):
                self._guard(Guard.absent(Place("class", c, name, shown)))


def _held(met: Met) -> Any:
    """What a container that was met holds now."""
    return own_names(met.container) if isinstance(met.of, types.ModuleType) else holds_now(met.container)


def _without_last(values: list[Any], value: Any) -> list[Any]:
    """A list that lost the last item that is this very object: a number may have been put somewhere more than once."""
    del values[max(i for i, v in enumerate(values) if v is value)]
    return values
