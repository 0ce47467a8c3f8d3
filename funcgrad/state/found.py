"""What was found of Python state so far: what is known, what it held when it was met, and the guards on the way to
it."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from typing import Any

from attrs import frozen
from torch import Tensor

from .caches import Cache
from .guards import Guard, Met
from .impure import Generator, global_generators
from .lines import reading_line
from .places import Place
from .settings import SETTINGS, Setting


@frozen(eq=False)
class NotLookedInto:
    """An object of a class of a library's: the dict of its ``attributes``, those that its constructors ``made``, and
    those that its properties ask for, by their names."""

    kind: type
    attributes: dict[str, Any]
    name: str
    made: frozenset[str]
    asked: Mapping[str, frozenset[str]]


class Found:
    """What was reached so far, and the guards on the way to it."""

    _ran: set[types.CodeType] | None = None
    """What code ran; None: nobody has heard of it."""
    _is_closed = _is_in_backward = False
    _sets: frozenset[str] = frozenset()
    """The attributes that code writes to which was reached."""
    _makes_texts = False
    """Whether code of the caller's that was reached may make a text of an object."""

    def __init__(self) -> None:
        self._guards: dict[Any, Guard] = {}
        self._names: dict[int, list[str]] = {}
        self._known: dict[int, Any] = {}
        self._read: set[tuple[int, str]] = set()
        self._late: dict[int, Met] = {}
        self._codes: dict[types.CodeType, types.FunctionType] = {}
        self._functions: list[types.FunctionType] = []
        self._hooks: list[type] = []
        self.tensors: dict[Any, tuple[Place, Tensor]] = {}
        self.assigned: dict[Any, tuple[Place, Tensor]] = {}
        """Places that code may store a tensor to, and that hold the one they held: where it is an input, that may
        have been stored."""
        self.met: dict[int, Met] = {}
        self.given: dict[int, Any] = {}
        """The containers among the arguments, of which each call brings others; by identity."""
        self.given_items: list[Met] = []
        self.given_slots: list[tuple[Place, Any]] = []
        self.globals: dict[tuple[int, str], tuple[Place, Any]] = {}
        self.cells: dict[int, tuple[Place, Any]] = {}
        self.classes: dict[type, dict[str, Any]] = {}
        self.special: dict[type, frozenset[str]] = {}  # the names of the special methods of classes
        self._having: dict[str, list[type]] = {}
        """The classes that have a member of this name themselves."""
        self.slots: dict[tuple[int, str], tuple[Place, Any]] = {}
        self.settings = {setting: setting.place.read() for setting in SETTINGS}
        """Those of the process that code may set."""
        self._versions: dict[str, Setting] = {}
        """Of files, by their paths."""
        self.unwatched: dict[int, tuple[Any, str]] = {}
        self.written: set[int] = set()
        """The identities of containers that were written to."""
        self.replaced: set[Any] = set()
        """Of containers whose contents a program stores (with ``"items"``: that are guarded one by one), and of the
        places of single values it stores: what they were is guarded."""
        self.moved: set[int] = set()  # the identities of what was there before, and is stored: a program is for these
        self.stored: list[tuple[Place, Any]] = []
        """Attributes of which no hook hears that were written to, with what was there."""
        self.first: list[Any] | None = None
        """What the first run wrote, where that is to happen on each call."""
        self.unmentioned: set[tuple[int, str]] = set()
        """Attributes that were read where no code mentions them: ``dataclasses.asdict``, ``operator.attrgetter``, a
        pattern."""
        self.whole: set[int] = set()
        """Of dicts all of which is read where no code mentions it: arguments that a function brings along."""
        self._generators: list[Generator] = []
        self._of_everybody = global_generators()
        self._direct: set[type] = set()
        """Classes that are reached as values themselves."""
        self._making: set[type] = set()  # those of which objects may be made
        self._used: set[str] = set()
        self._looked_at: set[str] = set()
        """Names that code uses, and those that it looks at."""
        self._unshown: list[tuple[type, types.FunctionType]] = []  # what would run to make texts of a class's objects
        self._pending: list[tuple[types.FunctionType, str]] = []
        self._said: set[str] = set()
        self.numbers: dict[Any, tuple[Place, Any]] = {}
        """Numbers that are inputs, and where they live."""
        self._tuples: dict[Any, tuple[Place, Any]] = {}
        self.tuples_put: dict[Any, list[Any]] = {}
        """Where tuples live that hold such numbers; by the identity of the place, those that stood there in a run."""
        self.stand_ins: dict[Any, list[Any]] = {}
        """By the identity of such a place, what stood there for the number, in one of the runs."""
        self.stood_in: dict[int, tuple[Any, Any]] = {}
        """By identity, what stood for such a number in one of the runs, and the number."""
        self._looked_into: set[tuple[int, frozenset[str], bool]] = set()
        """Modules, each with the names that were looked for; modules mention each other in circles."""
        self.caches: list[Cache] = []
        self.asks_caches = False  # whether one of them was asked in the run
        self.heard: dict[str, list[str]] = {}
        """The lines from which attributes were read, by what a reader calls these."""
        self.variables = dict(os.environ)
        """The environment, which may be written to."""
        self.shown: set[str] = set()  # the lines that asked for the text of a tensor
        self.hooked: set[str] = set()
        """The lines that registered hooks on leaves, which outlive the call."""
        self.outside: set[str] = set()
        """What was done with files, processes and the network, with the lines."""
        self.told: dict[str, str] = {}
        """What is told of things by their names, where code uses them."""
        self._own_modules: list[tuple[types.ModuleType, str]] = []  # those that are no library's
        self._not_looked_into: list[NotLookedInto] = []
        self._libraries: dict[int, tuple[types.ModuleType, str]] = {}
        """Modules of libraries that code has as values (``self.F = torch.nn.functional``), each with a name."""
        self._flags: dict[int, tuple[Any, str]] = {}
        """What keeps flags of torch's, each with a name."""
        self.ran_in_backward: set[types.CodeType] | None = set()
        """The code that is no library's and runs in a backward pass; None as above."""
        self.read_in_backward: set[Any] = set()
        """The identities of places of which hooks hear that a backward pass reads them, and of objects."""
        self.failed_in_backward = False
        """Whether a backward pass has raised, so that nobody knows what else it reads."""
        self._places: dict[int, list[Place]] = {}

    def release(self) -> None:
        """Let go of all that was met: a watch is a ring of references, and lives until the next garbage collection."""
        for held in (
            self._guards,
            self._known,
            self._late,
            self.tensors,
            self.met,
            self.given,
            self.given_items,
            self.given_slots,
            self.globals,
            self.cells,
            self.classes,
            self.special,
            self._having,
            self.slots,
        ):
            held.clear()
        for more in (
            self._places,
            self._codes,
            self._functions,
            self.numbers,
            self.tuples_put,
            self.stand_ins,
            self.stood_in,
            self.unwatched,
            self.assigned,
        ):
            more.clear()

    def _meet(self, value: Any, name: str) -> None:
        self._known.setdefault(id(value), value)
        self._names.setdefault(id(value), [name])

    def _name(self, value: Any) -> str:
        return self._names[id(value)][0]

    def _hear(self, name: str) -> None:
        """What a reader calls ``name`` is read now."""
        if (line := reading_line()) is not None:
            self.heard.setdefault(name, []).append(line)

    def _guard(self, guard: Guard) -> None:
        if self._is_in_backward:
            self.read_in_backward.add(guard.place.identity)
        self._guards.setdefault((guard.how == "absent" or guard.place.kind == "itself", guard.place.identity), guard)
