"""Where a captured tensor lives: the chain of cells, globals, attributes and items that leads from the function to it.

Reading the chain again on every call notices a rebinding (``model.weight = other``); the tensor found on the first call
would be stale. The search starts at the function's closure, defaults, globals it names, bound self, and goes through
modules, containers, plain objects and further functions.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..slots import Arg, Captured
from ..state.hooks import module_of
from ..state.names import LIBRARIES, package, package_of

_VISIT_AT_MOST = 200_000
_SCALARS = (bool, int, float, complex, str, type(None))


@frozen(eq=False)
class Origin:
    """A chain from a root object to where a value lives: each step is Python after its parent; ``name`` is what a
    reader writes."""

    root: Any
    steps: tuple[str, ...]
    name: str

    def read(self) -> Any:
        """What lives there now. Raises what the attribute or item access raises where it is gone."""
        value = self.root
        for step in self.steps:
            value = eval(f"value{step}", {"value": value})
        return value


@frozen
class Unresolved:
    """No chain was found."""

    name: str = ""


@frozen
class GradientOf:
    """The ``.grad`` of another input."""

    slot: Arg | Captured


def find_origins(function: Callable[..., Any], wanted: Sequence[object]) -> list[Origin | Unresolved]:
    """For each wanted object (by identity) the shortest chain from ``function`` to it."""
    open_ids = {id(w) for w in wanted}
    found: dict[int, Origin] = {}
    if open_ids:
        for value, steps, name in _walk(function):
            if id(value) in open_ids:
                found[id(value)] = Origin(function, steps, name)
                open_ids.discard(id(value))
                if not open_ids:
                    break
    return [found.get(id(w), Unresolved()) for w in wanted]


def _walk(function: Any) -> Iterator[tuple[Any, tuple[str, ...], str]]:
    """Everything reachable from a function, breadth first, each object once."""
    queue: deque[tuple[Any, tuple[str, ...], str]] = deque([(function, (), "")])
    seen: set[int] = set()
    while queue and len(seen) < _VISIT_AT_MOST:
        value, steps, name = queue.popleft()
        if id(value) in seen or isinstance(value, _SCALARS):
            continue
        seen.add(id(value))
        yield value, steps, name
        if isinstance(value, Tensor):
            continue
        for step, child, shown in _children(value, name):
            queue.append((child, (*steps, step), shown))


# the step as Python after the parent's expression, the child, its name as a reader writes it
_Child = tuple[str, Any, str]


def _children(value: Any, name: str) -> Iterator[_Child]:
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        yield from _of_callable(value)
    elif isinstance(value, torch.nn.Module):
        yield from _of_module(value, name)
    elif isinstance(value, types.ModuleType):
        return  # a whole Python module is reached only through the names a function uses
    elif isinstance(value, dict):
        for key, child in value.items():
            if isinstance(key, (str, int)):
                yield f"[{key!r}]", child, f"{name}[{key!r}]"
    elif isinstance(value, (list, tuple)):
        for i, child in enumerate(value):
            yield f"[{i}]", child, f"{name}[{i}]"
    elif not isinstance(value, type) and module_of(type(value)) != "torch" and package_of(type(value)) != "builtins":
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key, child in attributes.items():
                yield f".__dict__[{key!r}]", child, f"{name}.{key}" if name else f"self.{key}"
        else:
            for key in getattr(type(value), "__slots__", ()):
                if hasattr(value, key):
                    yield f".{key}", getattr(value, key), f"{name}.{key}"


def _of_module(module: torch.nn.Module, name: str) -> Iterator[_Child]:
    prefix = f"{name}." if name else ""
    for table in ("_parameters", "_buffers", "_modules"):
        for key, child in getattr(module, table).items():
            if child is not None:
                yield f".{table}[{key!r}]", child, f"{prefix}{key}"
    for key, child in module.__dict__.items():
        if not key.startswith("_") and not isinstance(child, _SCALARS):
            yield f".__dict__[{key!r}]", child, f"{prefix}{key}"


def _of_callable(function: Any) -> Iterator[_Child]:
    if isinstance(function, types.MethodType):
        yield ".__self__", function.__self__, "self"
        yield ".__func__", function.__func__, ""
    elif isinstance(function, functools.partial):
        yield ".func", function.func, ""
        for i, child in enumerate(function.args):
            yield f".args[{i}]", child, f"partial.args[{i}]"
        for key, child in function.keywords.items():
            yield f".keywords[{key!r}]", child, key
    elif isinstance(function, types.FunctionType):
        code = function.__code__
        for i, (key, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True)):
            try:
                yield f".__closure__[{i}].cell_contents", cell.cell_contents, key
            except ValueError:  # an empty cell: the variable is not bound yet
                continue
        for i, child in enumerate(function.__defaults__ or ()):
            yield (
                f".__defaults__[{i}]",
                child,
                code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) + i],
            )
        for key, child in (function.__kwdefaults__ or {}).items():
            yield f".__kwdefaults__[{key!r}]", child, key
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            yield ".__wrapped__", wrapped, ""
        of_library = package(function.__globals__.get("__name__")) in LIBRARIES  # its globals are nobody's state
        names = set[str]() if of_library else _names(code)
        for key in names:
            if key in function.__globals__:
                child = function.__globals__[key]
                step = f".__globals__[{key!r}]"
                if isinstance(child, types.ModuleType):
                    for attribute in names & child.__dict__.keys():
                        inner = child.__dict__[attribute]
                        if isinstance(inner, (Tensor, torch.nn.Module)):
                            yield f"{step}.__dict__[{attribute!r}]", inner, f"{key}.{attribute}"
                elif not isinstance(child, type):
                    yield step, child, key


def _names(code: types.CodeType) -> set[str]:
    """Global and attribute names a function uses, nested functions included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
