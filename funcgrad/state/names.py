"""What Python objects are called by a reader, where their attributes are, and whose code they belong to."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import logging
import os
import re
import sys
import threading
import types
import typing
from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor

from .code import Mentions, mentions
from .hooks import HEAP_TYPE, module_of, unhooked
from .places import MISSING

LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "funcgrad", "builtins", "attr", "attrs"}
"""Packages whose code is not looked into: what it keeps to itself is no part of a program."""
RUN_BY_TRACING = LIBRARIES | {"torchgen", "sympy", "mpmath", "typing_extensions"}
"""Those whose code runs while a program is made, whatever the function does."""
_HAVE_OBJECTS = ("torch", "numpy", "funcgrad", "builtins", "typing")
"""Those of whose classes objects stand in modules of libraries."""
_SITES = (
    *(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")),
    os.path.dirname(os.path.dirname(torch.__file__)),
)
"""What the path of an installed file holds: environments lie on top of one another, each with a directory of its
own."""
HOOK_TABLES = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
"""Where a module keeps its hooks: dicts that are nearly always empty."""
_IS_HOOK = re.compile(rf".*\.({'|'.join(HOOK_TABLES)})\[\d+\]")
TABLES = ("_parameters", "_buffers", "_modules")
"""Where a module keeps what it reads by ``__getattr__``."""


def is_hook_of_module(name: str) -> bool:
    """Whether a place of this name is one of the hooks that a module keeps."""
    return _IS_HOOK.fullmatch(name) is not None


def package(module: str | None) -> str:
    """The package a module belongs to."""
    return (module or "").partition(".")[0]


def looks_for_itself(reader: types.FrameType) -> bool:
    """Whether it is code of torch's, or of ours, that reads the ``__dict__`` of an object, and tells nobody of it.
    ``dir(module)`` tells."""
    is_own = package(reader.f_globals.get("__name__")) in ("torch", "funcgrad")
    return is_own and reader.f_code is not torch.nn.Module.__dir__.__code__


_MAKE_CLASSES = {"builtins": builtins, "abc": abc}


def package_of(kind: type) -> str:
    """The package of a class; none of one that was made by code without a module (``exec``, a metaclass), which Python
    takes for one of those who make classes."""
    module = module_of(kind)
    made_by = _MAKE_CLASSES.get(module)
    may_lack_one = made_by is not None and kind.__flags__ & HEAP_TYPE and not hasattr(made_by, kind.__name__)
    return "" if may_lack_one and not _has_module(kind) else package(module)


def _has_module(kind: type) -> bool:
    """Whether a function of a class is of a module: the class may say that it is of another. Hooks are not its own."""
    modules = (f.__globals__.get("__name__") for f in vars(kind).values() if isinstance(f, types.FunctionType))
    return any(package(name) not in ("", "builtins", "funcgrad") for name in modules)


def is_library(kind: type) -> bool:
    """Whether a class is of a package whose code is not looked into."""
    return package_of(kind) in LIBRARIES


def is_of_library(value: Any, module: types.ModuleType) -> bool:
    """Whether a value that stands in a module of a library is its own, of which nothing is read that may change."""
    if isinstance(value, types.FunctionType):  # not by its __module__, which functools.wraps copies
        return package(value.__globals__.get("__name__")) in LIBRARIES
    if isinstance(value, (functools.partial, types.MethodType)):
        return False
    if isinstance(value, (Tensor, dict, list, set, collections.deque, types.SimpleNamespace, logging.Filterer)):
        return False
    kind = value if isinstance(value, type) else type(value)
    of_objects = {*_HAVE_OBJECTS, package(module.__name__)}
    if kind is not value and package_of(kind) not in of_objects and attributes_of(value) is not None:
        return False  # of a class of the standard library: a mock
    return is_library(kind)


def is_of_trace(value: Any) -> bool:
    """Whether something stands in a library while some thread traces: what it replaces is there again on each
    call."""
    made_in = value.__globals__.get("__name__") if isinstance(value, types.FunctionType) else module_of(type(value))
    return package(made_in) == "funcgrad"


@functools.cache
def is_installed_file(path: str) -> bool:
    """Whether a source file is of an installed package."""
    return any(site in path for site in _SITES)


def is_installed_function(function: types.FunctionType) -> bool:
    """Whether a function is of an installed package: of generated code (a dataclass's), by the module it is in."""
    path = function.__code__.co_filename
    if path.startswith("<"):
        path = str(function.__globals__.get("__file__", ""))
    return is_installed_file(path)


def is_installed(kind: type) -> bool:
    """Whether a class is of an installed package, whose functions nobody exchanges."""
    module = sys.modules.get(module_of(kind))
    return is_installed_file(str(getattr(module, "__file__", "")))


def is_callers_own(value: types.FunctionType | type) -> bool:
    """Whether a function or a class is of no package, neither a library's nor an installed one."""
    if isinstance(value, type):
        return not (is_library(value) or is_installed(value))
    return package(value.__globals__.get("__name__")) not in LIBRARIES and not is_installed_function(value)


def members_of_protocol(kind: type) -> Set[str]:
    """The names that ``isinstance`` looks for in an object, of which Python has no public list before 3.13; special
    methods are their class's."""
    protocols = [c for c in kind.__mro__ if getattr(c, "_is_protocol", False)]
    names = {name for c in protocols for name in (*vars(c), *vars(c).get("__annotations__", {}))}
    return {name for name in names if not name.startswith(("__", "_abc_"))} - vars(typing.Protocol).keys()


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The ``__dict__`` of an object, without asking its class."""
    try:
        own = value.__dict__ if isinstance(value, threading.local) else object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return own if isinstance(own, dict) else None


def brought_along(function: types.FunctionType) -> list[Any]:
    """What a function closes over, and the defaults of its arguments."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def found_on(kind: type, name: str) -> tuple[type | None, Any]:
    """The class, of those a class inherits from, that defines a name, and what it defines."""
    for c in kind.__mro__:
        if name in c.__dict__:
            return c, c.__dict__[name]
    return None, None


def among(names: Set[str], kind: type) -> list[str]:
    """Which of these names a class has itself. Thousands may be asked for: an intersection would go through all."""
    return [name for name in kind.__dict__ if name in names]


def is_data(name: str, kind: type) -> bool:
    """Whether a class keeps data under a name, and no method that Python calls itself. What those of installed packages
    say of themselves stays."""
    is_said = name in ("__match_args__", "__annotations__", "__dataclass_fields__")
    return not name.startswith("__") or (is_said and not is_installed(kind))


def members_of(kind: type, names: Set[str]) -> Iterator[tuple[str, Any]]:
    """What may be read through a class by these names: functions, those of properties and the like, and, but of
    installed packages, other objects than descriptors of Python's."""
    for name in among(names, kind):
        member = kind.__dict__[name]
        for part in parts_of_member(member):
            yield name, part
        is_container = isinstance(member, (dict, list, tuple, set, frozenset, collections.deque))
        is_value = not (is_library(type(member)) and hasattr(type(member), "__get__"))
        is_value |= isinstance(member, functools.partialmethod)
        if is_value and is_data(name, kind) and (is_container or not is_installed(kind)):
            yield name, member


def parts_of_member(member: Any) -> list[types.FunctionType]:
    """The functions that a member of a class is: itself, a method's, those of a property and the like."""
    accessors = (member.fget, member.fset, member.fdel) if isinstance(member, property) else ()
    parts = (getattr(member, "__func__", getattr(member, "func", member)), *accessors)
    return [part for part in parts if isinstance(part, types.FunctionType)]


CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__class_getitem__")
"""Special methods that run where an object is made of a class, or another class."""


def special_methods_of(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The special methods that a class defines itself."""
    for name, member in list(kind.__dict__.items()):
        function = unhooked(kind) if name == "__getattribute__" else getattr(member, "__func__", member)
        is_special = name.startswith("__") or name == "_missing_"  # of an enum
        if is_special and isinstance(function, types.FunctionType):
            yield name, function


def assigned_by(kind: type, names: frozenset[str]) -> frozenset[str]:
    """The attributes that methods of these names write to which a class inherits from a library, whose code is not
    looked into: ``training``, for ``eval``."""
    found: set[str] = set()
    pending, known = set(names), set[str]()
    while pending:
        known |= pending
        methods = [found_on(kind, name) for name in sorted(pending)]
        said = [
            mentions(m.__code__)
            for c, m in methods
            if c is not None and is_library(c) and isinstance(m, types.FunctionType)
        ]
        pending = set[str]().union(*(own.attributes for own in said)) - known
        found.update(*(own.assigned for own in said))
    return frozenset(found)


def asked_by_properties(kind: type) -> dict[str, frozenset[str]]:
    """The attributes that properties ask for, which a class inherits from a library, by their names."""
    found: dict[str, frozenset[str]] = {}
    of = (property, types.DynamicClassAttribute)  # the second: of an enum
    for name, member in ((n, m) for c in kind.__mro__ for n, m in c.__dict__.items() if isinstance(m, of)):
        if isinstance(member.fget, types.FunctionType):
            found[name] = found.get(name, frozenset()) | mentions(member.fget.__code__).attributes
    return found


def slots_of(kind: type) -> list[str]:
    """The attributes of a class's instances that no dict holds; those of C types are read alone (``complex.real``)."""
    own = [c for c in kind.__mro__ if c.__flags__ & HEAP_TYPE]
    members = dict[str, Any]()
    for c in own:
        members = vars(c) | members  # a property may stand before a slot of the same name
    return [name for name, value in members.items() if isinstance(value, types.MemberDescriptorType)]


def joined(name: str, attribute: str) -> str:
    """What a reader writes for an attribute."""
    return f"{name}.{attribute}" if name else attribute


def item_of(container: Any, key: Any) -> Any:
    """An item of a container, or ``MISSING``."""
    try:
        return container[key]
    except (KeyError, IndexError, TypeError):
        return MISSING


def item_name(name: str, key: Any) -> str:
    """What a reader writes for an item of a container."""
    if isinstance(key, Tensor):
        return f"{name}[{type(key).__name__} of {list(key.shape)}]"
    base, _, last = name.rpartition(".")
    if last in TABLES or name in TABLES:  # a reader knows a child by its name alone
        return joined(base, str(key))
    return f"{name}[{key!r}]"


_KEY = re.compile(r"\[('[^'\\]*'|-?\d+)\]$")


def taken_apart(name: str) -> tuple[str, tuple[Any, ...] | None]:
    """``self.cfg['a'][0]`` is the name ``cfg`` and the keys ``("a", 0)``; None for keys that are no plain constants."""
    keys: list[Any] = []
    while (match := _KEY.search(name)) is not None:
        keys.insert(0, match[1][1:-1] if match[1].startswith("'") else int(match[1]))
        name = name[: match.start()]
    return name.rpartition(".")[2], None if name.endswith(("]", ")")) else tuple(keys)


def uses_of(name: str, said: Mentions) -> set[str] | None:
    """What is done with the container or number that a reader calls ``name``; None where code may reach it in a way
    not known."""
    base, path = taken_apart(name)
    if path is None or base not in said.uses or (said.by_name and base in said.strings):
        return None
    return {
        "read" if then in ("look", "give") else then for use in said.uses[base] if (then := use.at(path)) is not None
    }


def is_replaced(name: str, said: Mentions) -> bool:
    """Whether code may give the attribute or variable that a reader calls ``name`` another value than one that counts
    on."""
    base, path = taken_apart(name)
    return not path and base in said.replaced


def only_grows(name: str, said: Mentions) -> bool:
    """Whether code only adds to the container that a reader calls ``name``, or puts another one in its place."""
    uses = uses_of(name, said)
    return uses is not None and "grow" in uses and uses <= {"grow", "store"}


def grown_by(name: str, said: Mentions) -> set[str]:
    """The methods by which code adds to the container that a reader calls ``name``."""
    base, path = taken_apart(name)
    grown = [use for use in said.uses.get(base, ()) if path is not None and use.at(path) == "grow"]
    return {method for use in grown for method in use.by or ()}


def steps_of(name: str, said: Mentions) -> set[tuple[type, Any] | None]:
    """The constants by which code increases, in place, the number that a reader calls ``name``, with their types."""
    base, path = taken_apart(name)
    return {use.by for use in said.uses.get(base, ()) if path is not None and use.at(path) == "count"}
