"""Functions that are named anew in each call of a transform: ``jvp_compiled(lambda p: loss(p, x), primals, tangents)``.

What is compiled of a function is kept for those last named. Another closure of the same code has other values in its
cells alone: these become arguments (closure conversion), and so all of them share programs. The same goes for
``functools.partial``. Modules and other objects stay what they are: Python state, which is watched.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen

from ..capture.trace import active_trace
from ..options import Options
from .compiled import Compiled
from .definition import Definition

Fn = Callable[..., Any]

_KEPT = 64
"""Of so many functions what is compiled is kept."""


@frozen(slots=False)
class _Converted:
    """A function without the data it brings. ``like``: one that has some; ``inner``: what it brings that is such a
    function itself (``torch.func.grad(lambda p: ...)``). What is no data, a module, is part of what it is made of."""

    made_of: tuple[Any, ...]
    inner: tuple[tuple[Any, _Converted], ...]
    like: Any = field(eq=False)

    def of(self, brought: Mapping[Any, Any]) -> Fn:
        """The function that brings these."""
        return self._with({**brought, **{name: own.of(brought[name]) for name, own in self.inner}})

    @functools.cached_property
    def root(self) -> Fn:
        """One that brings no data."""
        if isinstance(self.like, functools.partial):
            return self.like.func
        data = {name for name, value in _brought_by(self.like).items() if _is_data(value)}
        return self._with(dict.fromkeys(data, _NOTHING) | {name: own.root for name, own in self.inner})

    def _with(self, values: Mapping[Any, Any]) -> Fn:
        like = self.like
        values = {**_brought_by(like), **values}
        if isinstance(like, functools.partial):
            n = len(like.args)
            return functools.partial(like.func, *list(values.values())[:n], **dict(list(values.items())[n:]))
        cells = (types.CellType() if v is _NOTHING else types.CellType(v) for v in values.values())
        made = types.FunctionType(like.__code__, like.__globals__, like.__name__, like.__defaults__, tuple(cells))
        made.__qualname__ = like.__qualname__
        return made


_NOTHING = object()
_PLAIN = (torch.Tensor, int, float, complex, str, type(None), torch.dtype, torch.device)


def _is_data(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether a value is another one in each call as data are: tensors, numbers and texts, and containers of these; not
    one that holds itself."""
    if isinstance(value, _PLAIN):
        return True
    if id(value) in within or not (type(value) is dict or isinstance(value, (list, tuple))):
        return False
    items = value.values() if isinstance(value, dict) else value
    return all(_is_data(item, (*within, id(value))) for item in items)


def _brought_by(f: Any) -> dict[Any, Any]:
    """What a function brings, by the names of its variables, or by where a partial function passes it. Raises
    ``ValueError`` where a variable is not bound yet."""
    if isinstance(f, functools.partial):
        return {**dict(enumerate(f.args)), **f.keywords}
    return {name: c.cell_contents for name, c in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)}


def _converted(f: Any, within: tuple[Any, ...] = ()) -> tuple[_Converted, dict[Any, Any]] | None:
    """What is left of a function without the data that it brings, and these; None where it has more than its code
    says, or writes to its variables. ``within``: the functions that bring it."""
    if type(f) is functools.partial and not vars(f):
        made_of: tuple[Any, ...] = (f.func,)
    elif type(f) is types.FunctionType and not (f.__kwdefaults__ or vars(f).keys() - {"__wrapped__"}):
        made_of = f.__code__, id(f.__globals__), tuple(map(id, f.__defaults__ or ())), f.__name__, f.__qualname__
        is_one_for_all = within and not (f.__closure__ and "<locals>" in f.__qualname__)
        if is_one_for_all or not _stored(f.__code__).isdisjoint(f.__code__.co_freevars):
            return None
    else:
        return None
    try:
        values = _brought_by(f)
    except ValueError:
        return None
    within = (*within, f)
    inner = {
        name: own
        for name, v in values.items()
        if not any(v is other for other in within) and (own := _converted(v, within)) is not None
    }
    brought = {
        name: inner[name][1] if name in inner else v for name, v in values.items() if name in inner or _is_data(v)
    }
    others = tuple((name, id(v)) for name, v in values.items() if name not in brought)
    return _Converted((*made_of, others), tuple((name, own) for name, (own, _) in inner.items()), f), brought


@functools.lru_cache(1024)
def _stored(code: types.CodeType) -> frozenset[str]:
    """The variables of closures that code gives other values, nested code included."""
    own = (s.argval for s in dis.get_instructions(code) if s.opname in ("STORE_DEREF", "DELETE_DEREF"))
    return frozenset(own).union(*(_stored(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


@frozen(eq=False)
class Closure(Definition):
    """A definition of a function that is given, before its arguments, what it brings."""

    definition_of: Callable[[Fn], Definition]
    function: _Converted

    @property
    def root(self) -> Fn:
        return self.function.root

    def __call__(self, brought: Any, *args: Any, **kwargs: Any) -> Any:
        return self.definition_of(self.function.of(brought))(*args, **kwargs)

    def argument_names(self, n: int) -> list[str]:
        return ["closure", *self.definition_of(self.function.like).argument_names(n - 1)]


@functools.lru_cache(_KEPT)
def _kept(definition_of: Callable[[Fn], Definition], f: Fn, options: Options) -> Compiled:
    return Compiled(definition_of(f), options)


@functools.lru_cache(_KEPT)
def _kept_converted(
    definition_of: Callable[[Fn], Definition], f: _Converted, brings: bool, options: Options
) -> Compiled:
    return Compiled(Closure(definition_of, f) if brings else definition_of(f.like), options)


def compiled_once(definition_of: Callable[[Fn], Definition], f: Fn, options: Options) -> Fn:
    """What is compiled of ``f``, by a definition of it. A trace sees through it: there closures stay what they are."""
    found = None if active_trace() is not None else _converted(f)
    if found is None:
        return _kept(definition_of, f, options)
    converted, brought = found
    compiled = _kept_converted(definition_of, converted, bool(brought), options)
    return functools.partial(compiled, brought) if brought else compiled
