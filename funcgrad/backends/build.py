"""From printed source to a function."""

from __future__ import annotations

import itertools
import linecache
import weakref
from typing import Any

from .backend import Source

_numbers = itertools.count()


def compile_function(source: Source) -> Any:
    """The function ``source.name`` that Python source defines. Tracebacks, debuggers and ``inspect.getsource`` show its text."""
    filename = f"<funcgrad {source.name} {next(_numbers)}>"
    namespace = dict(source.names)
    exec(compile(source.text, filename, "exec"), namespace)
    function = namespace[source.name]
    linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
    weakref.finalize(function, linecache.cache.pop, filename, None)
    return function
