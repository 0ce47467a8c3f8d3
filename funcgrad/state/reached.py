"""What can be reached from a value: the objects, classes and containers it brings along, each with a copy of what it
held."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import decimal
import enum
import functools
import gc
import inspect
import io
import threading
import types
import weakref
from collections.abc import Callable, Set
from typing import Any

import numpy as np
import torch
from torch import SymFloat, SymInt, Tensor

from .. import refusals
from ..subclasses import is_traced
from ..torch_private.modules import HOOKS_OF_ALL_MODULES
from ..torch_private.tensors import is_wrapper_subclass
from .buffers import BUFFERS, held_by, is_buffer
from .caches import Cache, results_of
from .found import Found, NotLookedInto
from .guards import Guard, Met, members_said
from .homes import Homes
from .hooks import APPLIED, can_be_hooked, hook, says_what_it_has, special_names
from .impure import GENERATORS, Generator, is_iterator, levels_of, refuse_iterator
from .names import (
    CONSTRUCTORS,
    HOOK_TABLES,
    TABLES,
    asked_by_properties,
    assigned_by,
    attributes_of,
    found_on,
    is_installed,
    is_library,
    is_of_trace,
    item_name,
    joined,
    members_of,
    package_of,
    slots_of,
    special_methods_of,
    taken_apart,
)
from .not_looked_into import CLOSED, HOLD_STATE, NOT_WATCHED, OF_ATTRIBUTES, WEAK, WRITES, is_inert
from .output import keeps
from .places import MISSING, Place
from .settings import DECIMALS
from .values import PLAIN, TORCH_PLAIN, compared_fields, copied, holds_symbols, holds_tensors, length_of, shape_of

AT_MOST = 20_000
"""Items of a container that is watched."""
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_EMPTY: dict[Any, Any] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


class Reached(Homes):
    """Looks into what is reached."""

    def _value(self, place: Place, value: Any) -> None:
        """A value was read, or may have been, at a place."""
        if self._is_in_backward:
            self.read_in_backward.add(place.identity)
        if isinstance(value, (SymFloat, SymInt)):  # an input
            return
        if isinstance(value, Tensor):
            self.tensors.setdefault(place.identity, (place, value))
            self._attributes(Place("slot", place, "__dict__", place.name), value)
            return
        if is_iterator(value):
            raise refuse_iterator(place.name)  # before it goes on
        if (holds_tensors(value) or holds_symbols(value)) and place.kind != "itself":
            self._structure(place, value)
            return
        # what is registered changes the dict, which is watched itself
        if not (place.kind == "item" and place.key in HOOK_TABLES):
            self._guard(Guard.of(place, value))
        self.see(value, place.name)

    def _attributes(self, place: Place, tensor: Tensor) -> None:
        """What the function sets of a tensor that lives at a place, it sets in each call of the one that lives there
        then; what it reads of it, no hook hears of."""
        met = self._meet_attributes(tensor, place.name)
        if met is None or id(met.container) in self._places:
            return
        self._places[id(met.container)] = [place]
        for name, value in met.before.items():
            if not name.startswith("_") and name != "persistent":
                self._value(Place("item", place, name, joined(place.name, name)), value)

    def _meet_attributes(self, tensor: Tensor, name: str) -> Met | None:
        """What a tensor that can be reached has been given: before the function runs, as nobody hears of what it is
        given then."""
        if is_wrapper_subclass(tensor):
            return None
        own = vars(tensor)
        return self.met.setdefault(id(own), Met(own, dict(own), name, tensor))

    def _structure(self, place: Place, value: Any) -> None:
        """A container of tensors: another one of this structure will do, as a function may make a new one on each
        call."""
        if any(place.is_below(other) for other in self._places.get(id(value), ())):
            self._guard(Guard.of(place, value))  # it holds itself
            return
        self._guard(Guard(place, shape_of(value), "shape"))
        self._meet(value, place.name)
        if not isinstance(value, tuple):
            self.met.setdefault(id(value), Met(value, copied(value), place.name))
        self._places.setdefault(id(value), []).append(place)
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            self._value(Place("item", place, key, item_name(place.name, key)), item)

    def see(self, value: Any, name: str) -> None:
        """A value can be reached: whatever is read of it is to be noticed."""
        if isinstance(value, decimal.Decimal):
            self._guard(Guard.of_library(DECIMALS.place, DECIMALS.value))
        if isinstance(value, Tensor):
            if not is_traced(value):
                self._meet_attributes(value, name)
            return
        if type(value) in PLAIN or isinstance(value, (*TORCH_PLAIN, SymFloat, SymInt, Found)):
            return
        is_fixed = isinstance(value, (*PLAIN, np.generic, enum.Enum)) and not isinstance(value, NOT_WATCHED)
        if is_fixed and is_library(type(value)):
            return
        if id(value) in self._known:
            self._named_also(value, name, ())
            return
        self._meet(value, name)
        if isinstance(value, GENERATORS):
            self._generators.append(Generator.of(value, name))
            self._besides(value, name)
            return
        for kinds, follow in _FOLLOW:
            if isinstance(value, kinds):
                follow(self, value, name)
                return
        if keeps(value):
            return
        if isinstance(value, enum.Enum):
            self._class(type(value), type(value).__name__)
            self._namespace(value, name)
        elif type(value).__flags__ & (1 << 9):
            self._instance(value, name)
        elif attributes_of(value) is not None:
            self._namespace(value, name)
        elif hasattr(value, "__wrapped__"):
            self.see(value.__wrapped__, name)
        elif not isinstance(value, C_FUNCTIONS) and not is_inert(type(value)):
            self.unwatched[id(value)] = value, name

    def _named_also(self, value: Any, name: str, above: tuple[Any, ...]) -> None:
        """Something known has this name, too, and so has what it holds, if it is a container (``above``: those that it
        is in)."""
        if name in self._names[id(value)] or any(value is own for own in above):
            return
        self._names[id(value)].append(name)
        if isinstance(value, type):
            self._made(value)
        held = self._late.get(id(value))
        for key, item in held.items if held is not None and held.of is None else ():
            if isinstance(item, (dict, list, tuple, set, collections.deque)) and id(item) in self._known:
                self._named_also(item, item_name(name, key), (*above, value))

    def _argument(self, value: Any, name: str) -> None:
        """An argument that is no tensor: containers, and classes whose values compare by their fields, are part of
        the key."""
        if isinstance(value, (dict, list, tuple)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._argument(item, item_name(name, key))
        elif names := compared_fields(type(value)):
            self._class(type(value), name)
            for field in names:
                self._argument(getattr(value, field), joined(name, field))
        else:
            self.see(value, name)

    def _method(self, method: types.MethodType, name: str) -> None:
        self.see(method.__self__, "self" if not name else name.rpartition(".")[0] or "self")
        self.see(method.__func__, name)

    def _cache(self, cache: Any, name: str) -> None:
        """A function that keeps its results: those of the trace are no others'."""
        self.caches.append(Cache.of(cache, name))
        self._besides(cache, name)
        self.see(cache.__wrapped__, name)
        for result in results_of(cache):
            self.see(result, f"{name}()")
            if isinstance(result, Tensor):  # the same one as long as it is kept
                self._value(Place("itself", result, None, f"{name}()"), result)

    def _weak(self, reference: weakref.ReferenceType[Any], name: str) -> None:
        """What a weak reference leads to: a program that reads it holds it."""
        if (value := reference()) is not None:
            self.see(value, f"{name}()")
            if not isinstance(value, (Tensor, type, types.FunctionType, types.ModuleType)):
                self.told[name.partition("[")[0]] = WEAK

    def _proxy_of(self, proxy: Any, name: str) -> None:
        """What a ``weakref.proxy`` leads to."""
        with contextlib.suppress(ReferenceError, AttributeError):
            self.see(proxy.__repr__.__self__, name)
            self.told[name] = WEAK

    def _memory(self, view: memoryview, name: str) -> None:
        """A view of what something else holds."""
        with contextlib.suppress(ValueError):  # it was released
            self.see(view.obj, f"{name}.obj")

    def _context(self, context: contextvars.Context, name: str) -> None:
        """A context in which functions run: what is read there of its variables."""
        self.met[id(context)] = Met(context, dict(context), name)
        self._guard(Guard.contents(context, [*context], name))
        for variable, value in context.items():
            self._value(Place("item", context, variable, f"{name}[{variable.name}]"), value)

    def _factory(self, container: collections.defaultdict[Any, Any], name: str) -> None:
        """What makes the items that are missing."""
        place = Place("slot", container, "default_factory", joined(name, "default_factory"))
        self.slots.setdefault((id(container), "default_factory"), (place, place.read()))
        self._value(place, place.read())

    def _bound(self, method: Any, name: str) -> None:
        """A method of a C object, ``log.append``: what it is bound to."""
        if isinstance(method.__self__, torch.Generator):
            raise refusals.KNOWS_OLD_METHOD(name, where=name)
        stream = method.__self__ if isinstance(method.__self__, io.IOBase) else None
        if stream is not None and not is_buffer(stream) and method.__name__ == "write":
            self.told[name] = WRITES
        of_class = isinstance(method.__self__, type) and not issubclass(method.__self__, torch.autograd.Function)
        if not (of_class or isinstance(method.__self__, types.ModuleType)):  # apply, in torch 2.15
            self._value(Place("slot", method, "__self__", name.removesuffix(f".{method.__name__}")), method.__self__)

    def _partial(self, partial: functools.partial[Any], name: str) -> None:
        self.see(partial.func, name)
        self._value(Place("slot", partial, "args", joined(name or "partial", "args")), partial.args)
        self._container(partial.keywords, joined(name, "keywords"))
        self.whole.add(id(partial.keywords))
        self._besides(partial, name)

    def _class(self, kind: type, name: str) -> None:
        for c in [*kind.__mro__, *type(kind).__mro__]:  # type: ignore[misc]
            if not is_library(c) and c not in self.classes:
                self.classes[c] = members_said(c)
                if not is_installed(c):
                    self.special[c] = special_names(c)
                    self._guard(Guard.of(Place("slot", c, "__bases__", f"{c.__name__}.__bases__"), c.__bases__))
                for member in c.__dict__:
                    self._having.setdefault(member, []).append(c)
                self._members_of(c, self._said)
                self._made(c)
        if not is_library(kind) and issubclass(kind, torch.autograd.Function):
            for method in APPLIED:
                c, defined = found_on(kind, method)
                if c is not None and not (is_library(c) or is_installed(c)):
                    self._guard(Guard.of(Place.on_class(c, method), defined))
                self.see(getattr(kind, method), f"{kind.__name__}.{method}")

    def _class_itself(self, kind: type, name: str) -> None:
        self._direct.add(kind)
        self._class(kind, name)
        for meta in inspect.getmro(type(kind)):
            for method, function in special_methods_of(meta) if not is_library(meta) else ():
                self._special_method(meta, method, function)
        self._made(kind)

    def _made(self, kind: type) -> None:
        """Where code does more with a class than to look at it, it may make objects: what their special methods read
        is read."""
        if kind in self._making or not (kind in self._direct or self._makes_by_type):
            return
        names = {taken_apart(name)[0] for name in self._names.get(id(kind), ())}
        own = [c for c in kind.__mro__ if not (is_library(c) or is_installed(c))]
        makes_itself = any(
            isinstance(v, classmethod) and name in self._said for c in own for name, v in c.__dict__.items()
        )
        if not (makes_itself or self._makes_by_type or names & self._used or names - self._looked_at):
            return
        self._making.add(kind)
        for c in own:
            for method, function in special_methods_of(c):
                self._special_method(c, method, function)

    @property
    def _makes_by_type(self) -> bool:
        """Whether code may make objects of the class of one that it has."""
        return not self._used.isdisjoint(("type", "__class__"))

    def _special_method(self, kind: type, name: str, function: types.FunctionType) -> None:
        if name == "__repr__" and not self._makes_texts:  # it only shows an object
            self._unshown.append((kind, function))
            return
        if name != "__getattribute__":  # its hook may stand there
            place = Place.on_class(kind, name)
            self._guard(Guard.of(place, kind.__dict__[name]))
        self.see(function, f"{kind.__name__}.{name}")

    def _members_of(self, kind: type, names: Set[str]) -> None:
        """What may be read through a class (``super().forward``, ``Config.scale``): before it runs, or is written
        to."""
        for name, member in members_of(kind, names):
            self.see(member, f"{kind.__name__}.{name}")

    def _array(self, array: np.ndarray[Any, Any], name: str) -> None:
        """Of an array of objects it is compared which ones they are."""
        if array.size > AT_MOST and array.dtype.hasobject:
            self.unwatched[id(array)] = array, name
            return
        self.met[id(array)] = Met(array, array.copy(), name)
        self._guard(Guard.contents(array, self.met[id(array)].before, name))
        for at, item in np.ndenumerate(array) if array.dtype == object else ():
            self.see(item, item_name(name, at[0] if len(at) == 1 else at))
        if type(array) is not np.ndarray:
            self._besides(array, name)

    def _error(self, error: BaseException, name: str) -> None:
        self._instance(error, name)
        place = Place("slot", error, "args", joined(name, "args"))
        self.slots.setdefault((id(error), "args"), (place, error.args))
        self._value(place, error.args)

    def _not_watched(self, value: Any, name: str) -> None:
        self.unwatched[id(value)] = value, name

    def _buffer(self, buffer: Any, name: str) -> None:
        if not is_buffer(buffer):
            self.unwatched[id(buffer)] = buffer, name
            self._instance(buffer, name)
            return
        self.met[id(buffer)] = Met(buffer, held_by(buffer), name)

    def _proxy(self, proxy: types.MappingProxyType[Any, Any], name: str) -> None:
        self._guard(Guard.contents(proxy, dict(proxy), name))
        for key, value in proxy.items():
            self.see(value, f"{name}[{key!r}]")

    def _view(self, view: Any, name: str) -> None:
        """A view of a dict: all that this holds is read by it, under no key."""
        held = next(iter(gc.get_referents(view)))
        if "__module__" in held:  # of a class, which alone writes to it
            self._proxy(view.mapping, name)
        else:
            self._container(held, joined(name, "mapping"))
            self.whole.add(id(held))

    def _variable(self, variable: contextvars.ContextVar[Any], name: str) -> None:
        place = Place("context", variable, MISSING, name)
        value = place.read()
        self.cells[id(variable)] = place, value
        if value is not MISSING:
            self._value(place, value)
        else:
            self._guard(Guard.absent(place))
            self.see(variable.get(None), name)

    def _any_container(self, container: Any, name: str) -> None:
        self._container(container, name)
        if isinstance(container, collections.defaultdict):
            self._factory(container, name)
        if package_of(type(container)) not in ("builtins", "collections") or attributes_of(container) is not None:
            self._instance(container, name)

    def _instance(self, value: Any, name: str) -> None:
        kind = type(value)
        if package_of(kind) in CLOSED and kind is not threading.local:
            for place in levels_of(value, name):
                self._guard(Guard.of_library(place, place.read()))
            if hasattr(value, "__wrapped__"):  # a compiled function: what is in it is inlined
                self.see(value.__wrapped__, name)
            if hasattr(value, "rules"):  # a custom_vjp or custom_jvp
                self._value(Place("slot", value, "rules", joined(name, "rules")), value.rules)
            if own := attributes_of(value) if package_of(kind) != "funcgrad" else None:
                made, asked = assigned_by(kind, frozenset(CONSTRUCTORS)), asked_by_properties(kind)
                self._not_looked_into.append(NotLookedInto(kind, own, name, made, asked))
                self._of_closed(self._not_looked_into[-1], self._said)
            return
        own = attributes_of(value)
        if own is None and kind.__module__ in HOLD_STATE:
            self.unwatched[id(value)] = value, name
        is_said = not says_what_it_has(kind) or getattr(value, "__dict__", None) is own
        # it may be another; a threading.local has one for each thread
        if own is not None and (not is_library(kind) or kind is threading.local) and is_said:
            self._guard(Guard.of(Place("slot", value, "__dict__", joined(name, "__dict__")), own))
        if not is_library(kind) or isinstance(value, torch.nn.Module):
            self._guard(Guard(Place("type", value, None, f"type of {name or kind.__name__}"), kind, "is"))
        if self._is_closed or not can_be_hooked(kind) or (held := hook(kind)) is None:
            if package_of(kind) != "torch":
                self._besides(value, name)
            return
        self._hooks.append(held)
        if own is not None:
            self.met.setdefault(id(own), Met(own, dict(own), name, value))
        for slot in slots_of(kind):
            place = Place("slot", value, slot, joined(name, slot))
            self.slots.setdefault((id(value), slot), (place, place.read()))
        self._class(kind, name)
        if isinstance(value, torch.nn.Module):
            self._special_of_modules(kind)
            for table in HOOK_TABLES:
                self._container(value.__dict__[table], joined(name, table))
            for table, hooks in HOOKS_OF_ALL_MODULES.items():
                if id(hooks) not in self._late:
                    self._container(hooks, table)
            for table in TABLES:  # written to by what no hook hears of
                if (held_there := value.__dict__.get(table)) is not None:
                    self.met.setdefault(id(held_there), Met(held_there, dict(held_there), joined(name, table)))
        self._special_methods(kind)

    def _besides(self, value: Any, name: str) -> None:
        """What an object, of whose attributes no hook hears, was given besides what it is, and what its class says."""
        if attributes_of(value) is not None:
            self._namespace(value, name)
        if not is_library(kind := type(value)):
            self._class(kind, name)
            self._special_methods(kind)

    def _special_methods(self, kind: type) -> None:
        """What runs for an object where no code mentions it."""
        for c in kind.__mro__:
            for method, function in special_methods_of(c) if not is_library(c) else ():
                if method not in CONSTRUCTORS and not (method in OF_ATTRIBUTES and is_installed(c)):
                    self._special_method(c, method, function)

    def _special_of_modules(self, kind: type) -> None:
        """What calls modules, and keeps their parameters, may be replaced for all of them."""
        for c in kind.__mro__[: kind.__mro__.index(torch.nn.Module) + 1]:
            if is_library(c):
                self.special.setdefault(c, special_names(c))
        for method in ("__call__", "__getattr__", "__setattr__"):
            place = Place.on_class(torch.nn.Module, method)
            if not is_of_trace(place.read()):
                self._value(place, place.read())

    def _of_closed(self, closed: NotLookedInto, said: Set[str]) -> None:
        """What code asks by its name of an object into which nobody looks, and what the caller has put there."""
        own, written = closed.attributes, said & self._sets
        if not written and said.isdisjoint(own) and said.isdisjoint(closed.asked):
            return  # as for most, and a large library has thousands of functions
        by_properties = frozenset[str]().union(*(closed.asked[name] for name in closed.asked.keys() & said))
        for attribute in (written - closed.made) | (own.keys() & (said | by_properties)):
            place = Place("item", own, attribute, joined(closed.name, attribute))
            now = own.get(attribute, MISSING)
            if attribute in closed.made:
                self._guard(Guard.of_library(place, now))
                self.see(now, place.name)
                continue
            self.slots.setdefault((id(own), attribute), (place, now))
            if now is not MISSING:
                self._value(place, now)

    def _namespace(self, value: Any, name: str) -> None:
        """An object whose class takes no hook (``SimpleNamespace``, a function): the attributes that are mentioned."""
        own = attributes_of(value)
        assert own is not None
        if own and isinstance(value, types.FunctionType):  # it may be given another
            self._guard(Guard.of(Place("slot", value, "__dict__", joined(name, "__dict__")), own))
        self._meet(own, name)
        met = Met(own, dict(own), name, value)
        self.met.setdefault(id(own), met)
        self._late.setdefault(id(own), met)
        for attribute, child in list(own.items()):
            if attribute in self._said and is_iterator(child):
                raise refuse_iterator(joined(name, attribute))
            if attribute != "__wrapped__":
                self.see(child, joined(name, attribute))

    def _container(self, container: Any, name: str) -> None:
        self._known.setdefault(id(container), container)
        names = self._names.setdefault(id(container), [])
        if name not in names:
            names.append(name)
        if id(container) in self._late:
            return
        if id(container) in self.met:  # the attributes of an object, or a container whose place is looked into anew
            self._late[id(container)] = self.met[id(container)]
        elif length_of(container) > AT_MOST:
            self.unwatched[id(container)] = container, name
            return
        else:
            self.met[id(container)] = self._late[id(container)] = Met(container, copied(container), name)
        had = self._late[id(container)].before  # not what the run made: that is stored
        for key, value in list(had.items() if isinstance(had, dict) else enumerate(had)):
            self.see(value, item_name(name, key))


_FOLLOW: tuple[tuple[Any, Callable[[Reached, Any, str], None]], ...] = (
    (weakref.ProxyTypes, Reached._proxy_of),
    (NOT_WATCHED, Reached._not_watched),
    (BaseException, Reached._error),
    (types.MethodType, Reached._method),
    ((functools.partial, functools.partialmethod), Reached._partial),
    ((types.BuiltinMethodType, types.MethodWrapperType), Reached._bound),
    (type, Reached._class_itself),
    (weakref.ReferenceType, Reached._weak),
    (types.MappingProxyType, Reached._proxy),
    (VIEWS, Reached._view),
    (contextvars.ContextVar, Reached._variable),
    (contextvars.Context, Reached._context),
    (memoryview, Reached._memory),
    (np.ndarray, Reached._array),
    (BUFFERS, Reached._buffer),
    (CONTAINERS, Reached._any_container),
    (functools._lru_cache_wrapper, Reached._cache),
)
"""What is looked at of a value, by its type; the first that fits."""
