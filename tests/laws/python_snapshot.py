"""Everything that can be seen of a world of Python objects, as a list of lines that two worlds can be compared by.

An object is named by the path on which it is first met; where it is met again, the line says so. So two worlds whose
snapshots are equal hold equal values and share objects, and the memory of tensors, in the same places.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import inspect
import itertools
import logging
import math
import random
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from funcgrad.runtime.cache import Kept
from funcgrad.torch_private.tensors import is_transform_wrapper

_ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_TENSORS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_NOT_OF_A_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "__qualname__",
"__hash__",
                   "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__attrs_attrs__",
                   "__attrs_props__", "__getstate__",
                   "__setstate__", "_member_map_", "_value2member_map_", "_member_names_", "__abstractmethods__",
                   "_abc_impl"}  # fmt: skip
_HOOKS = ("hooks", "hooks_with_kwargs", "hooks_always_called")
"""Ends of the names of tables whose keys come from a counter of the process."""


@attrs.define
class Snapshot:
    """Lines ``(path, what is there)``; ``ids`` are the objects that were met, but for tensors, in order."""

    own: Callable[[str], bool]
    """Whether a class or module of this module name is looked into."""
    stand_for: Mapping[int, Any] = attrs.Factory(dict)
    """What to see in place of an object, by its id: the function, where a transformed one is."""
    lines: list[tuple[str, Any]] = attrs.Factory(list)
    ids: list[int] = attrs.Factory(list)
    wraps: bool = False
    """Whether there is a tensor of a level of torch.func, whose values are known inside of that alone."""
    _seen: dict[int, tuple[str, Any]] = attrs.Factory(dict)
    _memory: dict[int, str] = attrs.Factory(dict)

    def see(self, path: str, value: Any) -> None:
        """Write down what is at a path."""
        value = self.stand_for.get(id(value), value)
        if isinstance(value, enum.Enum):
            return self._line(path, repr(value))
        if isinstance(value, (*_ATOMS, np.generic)):
            return self._line(path, f"{type(value).__name__} {value!r}")
        if isinstance(value, types.MethodType):
            return self._parts(path, "method", [("__self__", value.__self__), ("__func__", value.__func__)])
        if isinstance(value, types.MappingProxyType):
            return self._parts(path, "mappingproxy", [(f"[{k!r}]", v) for k, v in value.items()])
        if id(value) in self._seen:
            return self._line(path, f"the same as {self._seen[id(value)][0]}")
        self._seen[id(value)] = (path, value)  # kept alive, so that no other object gets its id
        if isinstance(value, Tensor):
            return self._tensor(path, value)
        self.ids.append(id(value))
        head, parts = self._look(path, value)
        self._parts(path, head, parts)

    def _line(self, path: str, what: Any) -> None:
        self.lines.append((path, what))

    def _parts(self, path: str, head: str, parts: Iterable[tuple[str, Any]]) -> None:
        self._line(path, head)
        for name, value in parts:
            self.see(f"{path}{name if name.startswith('[') else f'.{name}'}", value)

    def _tensor(self, path: str, t: Tensor) -> None:
        if type(t) not in _TENSORS:
            return self._line(path, f"a {type(t).__name__}")
        if is_transform_wrapper(t):
            self.wraps = True
            return self._line(path, f"a wrapper of {t.dtype} {list(t.shape)}")
        strides = [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if t.numel() else []
        shared = self._memory.setdefault(t.untyped_storage()._cdata, path)
        requires = f"requires_grad={t.requires_grad} leaf={t.is_leaf}"
        self._line(path, f"{type(t).__name__} {t.dtype} {list(t.shape)} {strides} {requires} memory of {shared}")
        self._line(f"{path} (values)", t.detach().clone())
        if t.is_leaf and t.grad is not None:
            self.see(f"{path}.grad", t.grad)

    def _look(self, path: str, value: Any) -> tuple[str, list[tuple[str, Any]]]:
        """What an object says of itself, and its parts."""
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            return f"ndarray {value.dtype} {value.shape} {value.tolist()}", []
        if isinstance(value, type):
            bases = [base.__name__ for base in value.__bases__]
            return f"class {value.__name__} {bases}", _of_class(value) if self.own(value.__module__) else []
        if isinstance(value, types.ModuleType):
            names = [(k, v) for k, v in vars(value).items() if k[:2] != "__"]
            return f"module {value.__name__}", names if self.own(value.__name__) else []
        if isinstance(value, types.FunctionType):
            return f"function {value.__name__}", _of_function(value) if self.own(value.__module__) else []
        if isinstance(value, dict):
            named = (
                repr(k) if isinstance(k, _ATOMS) and not path.endswith(_HOOKS) else f"key {i}"
                for i, k in enumerate(value)
            )
            # dict.values() does not know the order of an OrderedDict
            values = [dict.__getitem__(value, k) for k in value]
            items = [(f"[{name}]", v) for name, v in zip(named, values, strict=True)]
            strange = [(f"[key {i}].key", k) for i, k in enumerate(value) if not isinstance(k, _ATOMS)]
            return f"{kind} of {len(value)}", [*strange, *items, *self._attributes(value)]
        if isinstance(value, (list, tuple, collections.deque)):
            return f"{kind} of {len(value)}", [*((f"[{i}]", v) for i, v in enumerate(value)), *self._attributes(value)]
        if isinstance(value, (set, frozenset)):
            texts = {id(v): repr(v) if isinstance(v, _ATOMS) else type(v).__name__ + repr(_values(v)) for v in value}
            ordered = sorted(value, key=lambda v: texts[id(v)])
            first = [texts[id(v)] for v in ordered]  # which of equal ones is which, nobody knows
            return f"{kind} of {len(value)}", [(f"[{first.index(texts[id(v)])}]", v) for v in ordered]
        for types_, look in _LOOKS:
            if isinstance(value, types_):
                return kind, look(value)
        if isinstance(value, random.Random):
            return f"Random {hash(value.getstate())}", []
        if isinstance(value, np.random.Generator):
            return f"Generator {value.bit_generator.state}", []
        if isinstance(value, logging.Logger):
            return f"Logger {value.name} {value.level}", []  # its manager knows all loggers of the process
        if isinstance(value, itertools.count):
            return repr(value), []
        if isinstance(value, _BUILTIN):
            return f"{kind} {value.__qualname__}", []
        return f"{kind} object", self._attributes(value)

    def _attributes(self, value: Any) -> list[tuple[str, Any]]:
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = {}
        names = [n for c in type(value).__mro__ if self.own(c.__module__) for n in _slots(c)]
        filled = [(n, _MISSING if type(value) is type else _slot(value, n)) for n in names]
        if not isinstance(own, dict):
            return []
        of_users = [(n, v) for n, v in own.items() if not isinstance(v, Kept)]
        return [*of_users, *((n, v) for n, v in filled if v is not _MISSING)]


def _values(value: Any) -> tuple[Any, ...]:
    """What tells tensors in a set apart: their order is that of their addresses."""
    return (value.requires_grad, value.tolist()) if type(value) is Tensor else ()


_MISSING = object()


def _slots(cls: type) -> list[str]:
    return [n for n, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)]


def _slot(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return _MISSING


def _of_class(cls: type) -> list[tuple[str, Any]]:
    descriptors = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return [(k, v) for k, v in vars(cls).items() if k not in _NOT_OF_A_CLASS and not isinstance(v, descriptors)]


def _of_function(f: types.FunctionType) -> list[tuple[str, Any]]:
    consts = [c for c in f.__code__.co_consts if not isinstance(c, types.CodeType)]
    cells = []
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            cells.append((f"<{name}>", cell.cell_contents))
        except ValueError:
            continue
    own = [("code", f.__code__.co_code), ("names", f.__code__.co_names), ("consts", repr(consts))]
    own += [("defaults", f.__defaults__), ("kwdefaults", f.__kwdefaults__)]
    return [*own, *cells, *f.__dict__.items()]


_LOOKS: tuple[tuple[Any, Callable[[Any], list[tuple[str, Any]]]], ...] = (
    (functools.partial, lambda v: [("func", v.func), ("args", v.args), ("keywords", v.keywords), *v.__dict__.items()]),
    (property, lambda v: [("fget", v.fget), ("fset", v.fset)]),
    ((staticmethod, classmethod), lambda v: [("func", v.__func__)]),
    (functools.cached_property, lambda v: [("func", v.func)]),
    (contextvars.ContextVar, lambda v: [("name", v.name), ("value", v.get(None))]),
    (weakref.ref, lambda v: [("referent", v())]),
    (functools._lru_cache_wrapper, lambda v: [("wrapped", v.__wrapped__)]),
    (types.GeneratorType, lambda v: [("state", inspect.getgeneratorstate(v))]),
)


_WITH_HISTORY, _WITHOUT = "requires_grad=True leaf=False", "requires_grad=False leaf=True"


def first_difference(
    expected: Snapshot, found: Snapshot, names: tuple[str, str] = ("eager", "compiled"), histories: bool = True
) -> tuple[str, str] | None:
    """The path of the first line in which two snapshots differ, and both lines, each after the name of its snapshot.
    ``histories``: that a tensor has none where it is expected to have one is a difference."""
    for a, b in itertools.zip_longest(expected.lines, found.lines, fillvalue=("", "nothing")):
        detached = a[1].replace(_WITH_HISTORY, _WITHOUT) if isinstance(a[1], str) and not histories else a[1]
        if a[0] != b[0] or not (same(a[1], b[1]) or same(detached, b[1])):
            path = a[0] or b[0]
            return path, f"{names[0]}: {a[0]}: {a[1]}\n  {names[1]}: {b[0]}: {b[1]}"
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two lines say the same; tensors, and floats that may have been read of them, do up to rounding."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if isinstance(a, str) and isinstance(b, str) and a[:6] == b[:6] == "float ":
        return a == b or (float(a[6:]) != 0 and math.isclose(float(a[6:]), float(b[6:]), rel_tol=1e-5))
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)
