"""The programs of one compiled function, most recently used first.

A program refers to the objects it is for: it is for a module that it was given because it is that very one. Python
frees two that refer to each other, and nobody else to them: a program for a module belongs to the module, and the cache
refers to it weakly.

What a module has so is not among its attributes: ``vars(module)`` is what its user and the function put there, to
count, compare and copy.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen
from torch import nn

from ..graph_primitives import Path, PathMiss, Read, in_any_call, is_same_value
from .call import MISS, Call
from .program import Program

CacheInfo = namedtuple("CacheInfo", "hits misses maxsize currsize")
"""As ``functools.lru_cache`` reports: calls that found a program, calls that compiled, the bound, the programs held."""

_AT_MOST = 64


def leaves_path(reads: Sequence[Read], path: Path) -> bool:
    """Whether a program with these reads is for calls in which Python reads something else first."""
    return not all(is_same_value(read.value, value) for read, value in zip(reads, path, strict=False))


def path_after(program: Program, miss: PathMiss) -> Path:
    """What Python reads first in a call for which a program said that it is for another one."""
    return *(in_any_call(read.value) for read in program.joint.reads[: miss.read]), miss.value


class Kept:
    """The programs that belong to a module; no copy of it has them, and what is loaded of it has None."""

    def __init__(self) -> None:
        self.programs: weakref.WeakKeyDictionary[ProgramCache, list[Program]] = weakref.WeakKeyDictionary()

    def __copy__(self) -> Kept:
        return Kept()

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


_NAME = "_funcgrad_programs"
"""The attribute of the ``OrderedDict`` of a module's forward hooks under which the module has them: an object of its
own, that Python frees with it."""


def kept_by_module(leaves: Sequence[Any]) -> Kept | None:
    """What has the programs of the module among the arguments of a call, those in containers included; of several,
    the last."""
    owner = next(_modules(tuple(reversed(leaves))), None)
    hooks = vars(owner).get("_forward_hooks") if owner is not None else None
    if not isinstance(hooks, OrderedDict):
        return None
    own = vars(hooks)
    if not isinstance(own.get(_NAME), Kept):
        own[_NAME] = Kept()
    return own[_NAME]  # type: ignore[no-any-return]


def _modules(value: Any) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif type(value) in (tuple, list, dict):
        for item in value.values() if type(value) is dict else value:
            yield from _modules(item)


@frozen(eq=False)
class _Entry:
    """The call of a program, the program while it is alive, and what has it if not the cache."""

    call: Call
    program: Callable[[], Program | None]
    kept: Callable[[], Kept | None] = lambda: None


def _while_alive(program: weakref.ref[Program]) -> Call:
    """The call of a program that may be gone."""

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        alive = program()
        return MISS if alive is None else alive.run(args, kwargs)

    return call


class ProgramCache:
    """At most 64 programs; the one used least recently goes first. ``run_first_fit`` runs the first program that fits.

    A list of entries never changes: other threads may be walking it. Who puts a new one in its place holds the lock.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def run_first_fit(self, args: tuple[Any, ...], kwargs: dict[str, Any], met: list[Path] | None = None) -> Any:
        """The result of the program that fits, or ``MISS``. ``met`` is told what Python reads first of values in
        this call, where programs that fit but for that have read it."""
        path: Path = ()
        for i, entry in enumerate(self._entries):
            if path and ((program := entry.program()) is None or leaves_path(program.joint.reads, path)):
                continue
            try:
                result = entry.call(args, kwargs)
            except PathMiss as miss:
                program = entry.program()
                assert program is not None
                if miss.read >= len(path):  # one that leaves the path before says less
                    path = path_after(program, miss)
                continue
            except Exception as error:
                program = entry.program()
                if met is None and program is not None and program.may_be_caught(error):
                    return MISS  # it is asked again
                raise
            if result is not MISS:
                self.hits += 1
                if i:
                    with self._lock:
                        if entry in self._entries:  # not if it had to go meanwhile
                            self._entries = [entry, *(e for e in self._entries if e is not entry)]
                return result
        if met is not None:
            met.append(path)
        return MISS

    def add(self, program: Program, kept: Kept | None = None) -> None:
        """A new program. ``kept``: what has it, if the cache is not to keep it alive."""
        entry = _Entry(program.run, lambda: program)
        if kept is not None:
            kept.programs.setdefault(self, []).append(program)
            entry = _Entry(_while_alive(weakref.ref(program)), weakref.ref(program), weakref.ref(kept))
        with self._lock:
            alive = [entry, *(e for e in self._entries if e.program() is not None)]
            self._entries, too_many = alive[:_AT_MOST], alive[_AT_MOST:]
            self.misses += 1  # last: who knows this number, and finds no program, makes one
        for gone in too_many:
            if (other := gone.kept()) is not None and (oldest := gone.program()) is not None:
                other.programs[self].remove(oldest)

    @property
    def programs(self) -> list[Program]:
        return [program for entry in self._entries if (program := entry.program()) is not None]

    def info(self) -> CacheInfo:
        return CacheInfo(self.hits, self.misses, _AT_MOST, len(self.programs))
