"""What code leads to: the cells, defaults and globals of a function, and what it names in modules, found by the names
that the code mentions (``code``), as no hook hears of them; functions by following these names.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Set
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .code import Mentions, mentions, together, with_nested
from .conversions import is_stand_in, own_names
from .guards import Guard, Met
from .impure import is_iterator
from .names import (
    LIBRARIES,
    found_on,
    is_installed_file,
    is_installed_function,
    is_library,
    is_of_library,
    is_of_trace,
    joined,
    package,
)
from .places import MISSING, Place
from .reached import C_FUNCTIONS, Reached
from .renamed import original
from .settings import Setting, flag_of, keeps_flags, names_of_flags, settings_of
from .values import holds_symbols, holds_tensors

_OF_PYTHON = frozenset(vars(builtins))
_STREAMS = {"stdin", "stdout", "stderr"}
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


def _put_on_tensors(names: Set[str]) -> list[str]:
    """Those of some names that are methods which somebody has given the class of all tensors."""
    members = [(name, vars(Tensor)[name]) for name in names & vars(Tensor).keys()]
    return sorted(name for name, v in members if isinstance(v, types.FunctionType) and not is_of_library(v, torch))


def _roots(function: types.FunctionType, said: Mentions) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """What code names by itself or by attributes of it: a value, and these names; the first is that of the value."""
    aliases = dict(said.aliases)
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for names in sorted(said.chains):
        root = names[0]
        value = sys.modules.get(aliases.get(root, root)) if root in aliases or root in said.imports else None
        if value is None and root in held:
            value = Place("cell", held[root], None, root).read()
        elif value is None:
            value = function.__globals__.get(root)
        yield value, names


def _misnamed(function: types.FunctionType, said: Mentions) -> Iterator[str]:
    """The names by which code means anything but one function of that name, whose code is looked into."""
    code = function.__code__
    named = {name: function.__globals__.get(name) for name in said.globals}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        named[name] = Place("cell", cell, None, name).read()
    for name, value in named.items():
        is_plain = isinstance(value, types.FunctionType) and value.__code__.co_name == name
        if not is_plain or package(value.__globals__.get("__name__")) in LIBRARIES:  # type: ignore[union-attr]
            yield name
    yield from said.stored.union(*(own.co_cellvars for own in with_nested(code)))


def _is_module_of_library(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and package(value.__name__) in LIBRARIES


class Mentioned(Reached):
    """Looks into functions and modules."""

    _misnamed: Set[str] = frozenset()
    """Names by which code means anything but one function of that name."""
    _names_at_will = False
    """Whether code may mean attributes whose names stand nowhere."""

    def see(self, value: Any, name: str) -> None:
        """A value can be reached."""
        if keeps_flags(value):
            self._keeps_flags(value, name)
        if isinstance(value, types.ModuleType):
            if package(value.__name__) in LIBRARIES:
                self._libraries.setdefault(id(value), (value, name))
            self._own_module(value, name)
        elif isinstance(value, types.FunctionType) and id(value) not in self._known:
            self._meet(value, name)
            self._reach(value, name)
        elif value is vars(builtins):  # whose names code mentions
            pass
        elif value is sys.modules:  # all that the process has imported: by this name, nobody knows what is read of it
            self.unwatched[id(value)] = value, name
        else:
            super().see(value, name)

    def _reach(self, function: types.FunctionType, name: str) -> None:
        """A function can be reached: it is looked into."""
        self._pending.append((function, name))
        if len(self._pending) == 1:  # one after the other: code that mentions code goes deep
            for own, called in self._pending:
                self._function(own, called)
            self._pending.clear()

    def _function(self, function: types.FunctionType, name: str) -> None:
        code = original(function.__code__)
        said, is_library_code = mentions(code), package(function.__globals__.get("__name__")) in LIBRARIES
        own = not is_installed_function(function)
        if not is_library_code:
            self._used |= said.used
            self._looked_at.update(said.uses)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            place = Place("cell", cell, None, variable)
            value = place.read()
            self.cells.setdefault(id(cell), (place, value))
            if isinstance(value, types.ModuleType):  # looked into below
                self._guard(Guard.of(place, value))
            elif not own and isinstance(value, types.FunctionType) and is_installed_function(value):
                self.see(value, variable)  # a decorator's: of installed packages, data is guarded, not functions
            elif value is not MISSING and variable != "__class__":
                self._value(place, value)
            elif own and value is MISSING:  # it is filled later
                self._guard(Guard.absent(place))
        if hasattr(function, "__wrapped__"):
            self.see(function.__wrapped__, name)
            self._namespace(function, name)
        if is_library_code:
            return
        if function.__defaults__:
            self._defaults(function, function.__defaults__, own)
        if code.co_kwonlyargcount:
            given = function.__kwdefaults__
            self._guard(
                Guard.of(Place("slot", function, "__kwdefaults__", f"keyword defaults of {function.__name__}"), given)
            )
            self.whole.add(id(given))
            if given:
                self.met.setdefault(id(given), Met(given, dict(given), joined(name, "__kwdefaults__")))
        for key, default in (function.__kwdefaults__ or {}).items():
            self._value(Place("item", function.__kwdefaults__, key, key), default)
        if own:
            self._guard(Guard.of(Place("slot", function, "__code__", f"code of {function.__name__}"), code))
        if own or vars(function).keys() != {"__wrapped__"}:
            self._namespace(function, name)
        self._codes[code] = function
        self._functions.append(function)
        if own and said.makes_texts and not self._makes_texts:
            self._makes_texts = True
            for kind, shows in self._unshown:
                self._special_method(kind, "__repr__", shows)
        new = (said.attributes | said.strings | said.assigned) - self._said  # setters and deleters run, too
        self._said |= new
        self._sets |= said.sets
        self._names_at_will |= said.by_name or said.set_by_name
        for owner, called in self._flags.values():
            self._flags_of(owner, called, new)
        for closed in list(self._not_looked_into) if new else ():
            self._of_closed(closed, new)
        for name in new & self._having.keys():
            for kind in list(self._having[name]):
                self._members_of(kind, {name})
        for of_own, called in list(self._own_modules):
            self._members_of_module(of_own, called, new)
        for kind in (self.classes.keys() if self._makes_by_type else self._direct) - self._making:
            self._made(kind)
        by_name = (
            said.strings if "globals" in said.globals and "globals" not in function.__globals__ else frozenset[str]()
        )
        for variable in sorted(said.stored.union(s for s in by_name if s.isidentifier() and not s.startswith("__"))):
            place = Place("item", function.__globals__, variable, variable)
            self.globals.setdefault((id(function.__globals__), variable), (place, place.read()))
        self._misnamed |= set(_misnamed(function, said))
        for variable in sorted(said.globals):
            place = Place("item", function.__globals__, variable, variable)
            if variable in function.__globals__ and not is_stand_in(variable, function.__globals__[variable]):
                self._mentioned(place, said, own)
                continue
            if own or not hasattr(builtins, variable):
                self._guard(Guard.absent(place))
            if hasattr(builtins, variable) and variable not in _OF_PYTHON:
                self._mentioned(Place("item", vars(builtins), variable, variable), said, own)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if isinstance(held := Place("cell", cell, None, variable).read(), types.ModuleType):
                self._module(held, said, variable, own)
        if own:
            self._of_libraries(function, said)
        self._settings(function, said)
        for module in sorted(said.modules):
            if module in sys.modules:
                self._imported(module, said, own)

    def _imported(self, name: str, said: Mentions, own: bool) -> None:
        """A module that code imports."""
        place, module = Place("item", sys.modules, name, name), sys.modules[name]
        if not isinstance(module, types.ModuleType):  # anything may stand there
            self._value(place, module)
            return
        if package(name) not in LIBRARIES:
            self._guard(Guard.of(place, module))
        self._module(module, said, name, own)

    def imported(self, module: types.ModuleType, name: str) -> None:
        """A module was not there before the function imported it, and is now."""
        if package(name) in LIBRARIES:
            return
        self._own_module(module, name)
        for code, function in list(self._codes.items()):
            if any(f".{name}".endswith(f".{own}") for own in mentions(code).modules):
                self._imported(name, mentions(code), not is_installed_function(function))

    def _defaults(self, function: types.FunctionType, defaults: tuple[Any, ...], own: bool) -> None:
        """Defaults of own functions may be exchanged; those that are tensors are read from where they live."""
        names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(defaults) :]
        if any(map(holds_tensors, defaults)) or any(map(is_iterator, defaults)):
            for i, (name, value) in enumerate(zip(names, defaults, strict=True)):
                self._value(Place("default", function, i, name), value)
            return
        place = Place("slot", function, "__defaults__", f"defaults of {function.__name__}")
        if own and holds_symbols(defaults):
            self.slots.setdefault((id(function), "__defaults__"), (place, defaults))
            self._structure(place, defaults)
        elif own:
            self._guard(Guard.of(place, defaults))
        for name, value in zip(names, defaults, strict=True):
            self.see(value, name)

    def _mentioned(self, place: Place, said: Mentions, own: bool) -> None:
        """A name that code mentions: of installed packages data is guarded, not functions."""
        value = place.read()
        if isinstance(value, types.ModuleType):
            if own:
                self._guard(Guard.of(place, value))
            self._module(value, said, place.name, own)
        elif value is sys.modules:
            self._guard(Guard.of(place, value))
            self._loaded(said, place.name, own)
        elif isinstance(value, type):
            if own and not is_library(value):
                self._guard(Guard.of(place, value))
            self.see(value, place.name)
        elif not own and is_iterator(value):  # it numbers what the package makes
            self.unwatched[id(value)] = value, place.name
        elif own or not isinstance(value, (*_FUNCTIONS, *C_FUNCTIONS)):
            self._value(place, value)
        else:
            self.see(value, place.name)

    def _of_libraries(self, function: types.FunctionType, said: Mentions) -> None:
        """What the caller's own code names in modules of libraries (``torch.nn.functional.relu``): somebody may put
        another there. What libraries name among themselves is theirs."""
        for value, (called, *names) in _roots(function, said):
            for name in names:
                if not _is_module_of_library(value):
                    break
                value = self._library_member(value, name, called := joined(called, name))
            else:
                if _is_module_of_library(value):
                    self.see(value, called)
            if isinstance(value, type) and is_library(value):  # nn.Linear.forward(module, x)
                self._library_class(value, names[-1:])
                self._may_be_given(value, said.sets)
        self._library_class(Tensor, _put_on_tensors(said.attributes))

    def _settings(self, function: types.FunctionType, said: Mentions) -> None:
        """The settings of the process for which code asks, or that it sets, in the caller's own and in installed
        packages."""
        for value, (called, *names) in _roots(function, said):
            for name in names:
                owner, called = value, joined(called, name)
                self._setting(flag_of(owner, name, called))
                value = vars(owner).get(name) if _is_module_of_library(owner) else None
                if isinstance(owner, type) and is_library(owner):
                    value = getattr(found_on(owner, name)[1], "__func__", None)
            for setting in settings_of(value):
                self._setting(setting)
            if keeps_flags(value):
                self._keeps_flags(value, called)

    def _keeps_flags(self, owner: Any, called: str) -> None:
        """A module of torch's that keeps flags is reached: code may ask for any that it names, or set it."""
        if id(owner) not in self._flags:
            self._flags[id(owner)] = owner, called
            self._flags_of(owner, called, self._said)

    def _flags_of(self, owner: Any, called: str, names: Set[str]) -> None:
        for name in names | (names_of_flags(owner) if self._names_at_will else set()):
            self._setting(flag_of(owner, name, joined(called, name)))

    def _setting(self, setting: Setting | None) -> None:
        if setting is None:
            return
        if setting.met is not None:
            setting.met()
        if (value := setting.place.read()) is not MISSING:
            self._guard(Guard.of_library(setting.place, value))
            if setting.put is not None:
                self.settings.setdefault(setting, value)

    def _library_member(self, module: types.ModuleType, name: str, called: str) -> Any:
        """What stands in a module of a library, guarded; ``MISSING`` where it is what a trace has put there."""
        place = Place("item", vars(module), name, called)
        value = place.read()
        is_stream = module is sys and name in _STREAMS  # effects look these up on each call
        if value is MISSING or is_stream or is_of_trace(value):
            return MISSING
        if value is sys.modules or is_of_library(value, module):  # what code names of the first, it is asked for
            self._guard(Guard.of(place, value))
        else:
            self._value(place, value)
        return value

    def _library_class(self, kind: type, names: Iterable[str]) -> None:
        """Functions that a class of a library defines: somebody may put others there."""
        for name in names:
            c, defined = found_on(kind, name)
            if c is not None and not name.startswith("__") and not is_of_trace(getattr(defined, "__func__", defined)):
                place = Place.on_class(c, name)
                if isinstance(defined, types.FunctionType):
                    self._value(place, defined)
                else:
                    self._guard(Guard.of(place, defined))

    def _may_be_given(self, kind: type, names: Iterable[str]) -> None:
        """Attributes that code may give a class of a library: ``Normal.has_rsample = False``."""
        for name in names:
            if not name.startswith("__"):
                place = Place.on_class(kind, name)
                self.slots.setdefault((id(kind), name), (place, place.read()))

    def _loaded(self, said: Mentions, called: str, own: bool) -> None:
        """``sys.modules``: of these, those that are named. An installed package asks what there is to work with."""
        if not own:
            return
        for name in sorted(said.strings & sys.modules.keys()):
            self._guard(Guard.of(Place("item", sys.modules, name, f"sys.modules[{name!r}]"), sys.modules[name]))
            self._module(sys.modules[name], said, name, own)
        if any(not use.keys for use in said.uses.get(called.rpartition(".")[2], ())):
            self.unwatched[id(sys.modules)] = sys.modules, called

    def _module(self, module: types.ModuleType, said: Mentions, name: str, own: bool) -> None:
        if module is sys and "modules" in said.attributes:
            self._loaded(said, "sys.modules", own)
        if package(module.__name__) not in LIBRARIES:
            self._own_module(module, name)
            for attribute in sorted(said.sets) if id(vars(module)) not in self.met else ():  # an installed package's
                place = Place("item", vars(module), attribute, joined(name, attribute))
                self.globals.setdefault((id(vars(module)), attribute), (place, place.read()))
            own_name = name.rpartition(".")[2]
            lacking = {after for chain in said.chains for of, after in pairwise(chain) if of == own_name}
            lacking |= said.strings if said.by_name else set()
            for attribute in sorted(filter(str.isidentifier, lacking - vars(module).keys())):
                self._guard(Guard.absent(Place("item", vars(module), attribute, f"{name}.{attribute}")))
            if said.by_name:
                said = together([said, Mentions(attributes=said.strings)])
            names = said.attributes | said.globals
            if (id(module), names, own) in self._looked_into:
                return
            self._looked_into.add((id(module), names, own))
            for attribute in sorted(names & vars(module).keys()):
                if not attribute.startswith("__"):
                    self._mentioned(Place("item", vars(module), attribute, f"{name}.{attribute}"), said, own)

    def _own_module(self, module: types.ModuleType, name: str) -> None:
        """A module of the caller's own, which may be written to."""
        if (
            package(module.__name__) in LIBRARIES
            or is_installed_file(str(getattr(module, "__file__", "")))
            or id(vars(module)) in self.met
        ):
            return
        self._known[id(vars(module))] = vars(module)
        self._names[id(vars(module))] = [name]
        self.met[id(vars(module))] = self._late[id(vars(module))] = Met(
            vars(module), own_names(vars(module)), name, module
        )
        if "__getattr__" in vars(module):
            place = Place("item", vars(module), "__getattr__", joined(name, "__getattr__"))
            self._value(place, place.read())
        self._own_modules.append((module, name))
        self._members_of_module(module, name, self._said)

    def _members_of_module(self, module: types.ModuleType, name: str, names: Set[str]) -> None:
        """What of a module code may come to by one of these names, whoever gives it the module."""
        for attribute in sorted(names & vars(module).keys()):
            self.see(vars(module)[attribute], joined(name, attribute))
