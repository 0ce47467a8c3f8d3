"""Printed Python, and the function it defines."""

from __future__ import annotations

import itertools
import linecache
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from .show.parts import Code, Doc, Text
from .show.shown import Shown

_numbers = itertools.count()
_NAMED = types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type


@frozen(eq=False, repr=False)
class Source(Shown):
    """Printed code, and the objects its free names stand for."""

    name: str
    language: str
    text: str
    names: dict[str, Any]
    prelude: str = ""
    """What stands in ``text`` before what is its own."""
    sizes: Mapping[str, str] = {}
    """What the symbols that ``text`` names are sizes of."""

    def headline(self) -> str:
        return f"{self.name} ({self.language}): {len(self.text.splitlines())} lines"

    def doc(self) -> Doc:
        before, prelude, own = self.text.partition(self.prelude) if self.prelude else ("", "", self.text)
        aside = (Code(prelude, f"the prelude of every {self.language} file"),) if prelude else ()
        sizes = (Text(", ".join(f"{symbol} is {of}" for symbol, of in self.sizes.items())),) if self.sizes else ()
        return Doc(f"{self.name} ({self.language})", (*aside, *sizes, Code((before + own).strip("\n"))))


class Constants:
    """Names for the objects that printed lines refer to, each once."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self._constants = constants
        self._names: dict[int, str] = {}
        self._brought: set[int] = set()

    def __call__(self, value: Any) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = f"constant_{len(self._names)}_{_called(value)}"
            self._constants[self._names[id(value)]] = value
        return self._names[id(value)]

    def stands(self, value: Any, text: str) -> None:
        """Print ``text`` for a value, which a call brings."""
        self._names[id(value)] = text
        self._brought.add(id(value))

    def is_brought(self, value: Any) -> bool:
        """Whether a call brings what stands for it."""
        return id(value) in self._brought


def _called(value: Any) -> str:
    """What a constant is, for who reads its name."""
    if isinstance(value, types.CodeType):
        like = f"code_of_{value.co_name}"
    elif type(value) is dict and isinstance(value.get("__name__"), str):
        like = f"globals_of_{value['__name__']}"
    else:
        like = value.__name__ if isinstance(value, _NAMED) else type(value).__name__
    return re.sub(r"\W+", "_", like).strip("_")


def compile_function(source: Source) -> Any:
    """The function ``source.name`` that Python source defines. Tracebacks, debuggers and ``inspect.getsource`` show
    its text."""
    filename, namespace = _run(source)
    function = namespace[source.name]
    weakref.finalize(function, linecache.cache.pop, filename, None)
    return function


def compile_module(source: Source) -> dict[str, Any]:
    """All that Python source defines, by name. Its text stays known to ``inspect.getsource`` for good."""
    return _run(source)[1]


def _run(source: Source) -> tuple[str, dict[str, Any]]:
    filename = f"<funcgrad {source.name} {next(_numbers)}>"
    # Triton looks for it at once
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    namespace = dict(source.names)
    exec(compile(source.text, filename, "exec"), namespace)
    return filename, namespace
