"""Functions that are named anew in each call of a transform: ``jvp_compiled(lambda p: loss(p, x), primals, tangents)``.

What is compiled of a function is kept for those last named. Another closure of the same code has other values in its
cells alone: these become arguments (closure conversion), and so all of them share programs. The same goes for
``functools.partial``.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

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
    """A function without the values it brings. ``like``: one that has some; ``inner``: those of its variables that are
    such functions themselves (``torch.func.grad(lambda p: ...)``)."""

    made_of: tuple[Any, ...]
    inner: tuple[tuple[str, _Converted], ...]
    like: Any = field(eq=False)

    def of(self, brought: Mapping[str, Any]) -> Fn:
        """The function that brings these."""
        if isinstance(self.like, functools.partial):
            return functools.partial(self.like.func, *brought["args"], **brought["keywords"])
        inner = {name: own.of(brought[name]) for name, own in self.inner}
        return self._with_cells(types.CellType(inner.get(name, value)) for name, value in brought.items())

    @functools.cached_property
    def root(self) -> Fn:
        """One that brings nothing."""
        if isinstance(self.like, functools.partial):
            return self.like.func
        inner = {name: own.root for name, own in self.inner}
        names = self.like.__code__.co_freevars
        return self._with_cells(types.CellType(*([inner[name]] if name in inner else [])) for name in names)

    def _with_cells(self, cells: Iterable[types.CellType]) -> Fn:
        like = self.like
        made = types.FunctionType(like.__code__, like.__globals__, like.__name__, like.__defaults__, tuple(cells))
        made.__qualname__ = like.__qualname__
        return made


def _converted(f: Any, within: tuple[Any, ...] = ()) -> tuple[_Converted, dict[str, Any]] | None:
    """What is left of a function without the values that it brings, and these; None where it has more than its code
    says, or writes to its variables. ``within``: the functions whose variable it is."""
    if type(f) is functools.partial and not vars(f):
        return _Converted((f.func,), (), f), {"args": f.args, "keywords": f.keywords}
    if type(f) is not types.FunctionType or f.__kwdefaults__ or vars(f).keys() - {"__wrapped__"} or f in within:
        return None
    if within and not (f.__closure__ and "<locals>" in f.__qualname__):  # one for all calls
        return None
    if not frozenset(_stored(f.__code__)).isdisjoint(f.__code__.co_freevars):
        return None
    try:
        values = dict(zip(f.__code__.co_freevars, [c.cell_contents for c in f.__closure__ or ()], strict=True))
    except ValueError:  # not bound yet
        return None
    inner = {name: own for name, v in values.items() if (own := _converted(v, (*within, f))) is not None}
    made_of = f.__code__, id(f.__globals__), tuple(map(id, f.__defaults__ or ())), f.__name__, f.__qualname__
    brought = {name: inner[name][1] if name in inner else value for name, value in values.items()}
    return _Converted(made_of, tuple((name, own) for name, (own, _) in inner.items()), f), brought


@functools.lru_cache(1024)
def _stored(code: types.CodeType) -> tuple[str, ...]:
    """The variables of closures that code gives other values, nested code included."""

    def of(code: types.CodeType) -> Iterator[str]:
        yield from (s.argval for s in dis.get_instructions(code) if s.opname in ("STORE_DEREF", "DELETE_DEREF"))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield from of(inner)

    return tuple(of(code))


@frozen(eq=False)
class _OfConverted(Definition):
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
def _kept_like(definition_of: Callable[[Fn], Definition], f: _Converted, options: Options) -> Compiled:
    return Compiled(definition_of(f.like), options)


@functools.lru_cache(_KEPT)
def _kept_converted(definition_of: Callable[[Fn], Definition], f: _Converted, options: Options) -> Compiled:
    return Compiled(_OfConverted(definition_of, f), options)


def compiled_once(definition_of: Callable[[Fn], Definition], f: Fn, options: Options) -> Fn:
    """What is compiled of ``f``, by a definition of it. A trace sees through it: there closures stay what they are."""
    found = None if active_trace() is not None else _converted(f)
    if found is None:
        return _kept(definition_of, f, options)
    converted, brought = found
    if not brought:
        return _kept_like(definition_of, converted, options)
    return functools.partial(_kept_converted(definition_of, converted, options), brought)
