"""The pipeline: from a call of a compiled function to its result, stage by stage.

A call runs the first program that fits (``ProgramCache.run_first_fit``, one printed function each);
``Programs._compile`` is the table of contents of everything that happens when none does.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any

from attrs import evolve
from torch import Tensor

from .. import refusals
from ..backends.backend import Runnable
from ..capture.floats import NotSymbolicError
from ..capture.inputs import Inputs
from ..capture.source_location import is_of_function, user_line_of
from ..capture.tape import RaisedByValues
from ..errors import RetraceError, is_of_first_call
from ..executable import Executable, build_all, partition_joint
from ..generators import outside_own_draws
from ..graph_primitives import Path, PathMiss, has_symbols, known_now
from ..inside import set_to
from ..layers.stack import outer_signature, with_subclasses
from ..levels import outside_levels
from ..options import ENVIRONMENT, Options, log
from ..runtime.cache import ProgramCache, kept_by_module, leaves_path, path_after
from ..runtime.call import MISS, print_call
from ..runtime.captured import CapturedCall
from ..runtime.check import require_same
from ..runtime.donation import donation_of, with_donations
from ..runtime.halves import AT_MOST, warn_of_many
from ..runtime.key import aliasing
from ..runtime.miss_reasons import captured_by, objects_of, why_not
from ..runtime.on_path import first_float, other_path, require_on_path
from ..runtime.program import Program
from ..runtime.recompiles import Recompiles, note_first
from ..runtime.varying import (
    Symbol,
    as_read,
    inputs_to_try,
    varying_symbols,
    with_objects,
    with_sizes_as_symbols,
    with_symbols,
    written,
)
from ..slots import Signature
from ..stages import Stages
from ..state.places import Place
from ..state.unread import read_of
from ..symbolic.sizes import SizeError
from ..torch_private.modes import modes_entered, outside_dispatch_modes, saved_as_they_are
from .arguments import take_apart
from .capturing import capture_call
from .definition import Definition, definition_line, name_of
from .eager_calls import EagerCalls
from .paths import PathsLeft, paths_to_try, with_numbers
from .peel import Printed

_ATTEMPTS = 4
"""How often a call compiles before it is said that its program does not fit it."""

_no_retrace: ContextVar[bool] = ContextVar("funcgrad_no_retrace", default=False)


@contextlib.contextmanager
def no_retrace() -> Iterator[None]:
    """Inside, a call that would have to compile raises ``RetraceError``, which says which part of its key differed."""
    with set_to(_no_retrace, True):
        yield


class Programs(abc.ABC):
    """The programs of one definition: found by a call's key, compiled where none fits, run. ``Compiled`` says what a
    call is under the transforms of torch.func, and where a program's kernel must be differentiable."""

    def __init__(self, definition: Definition, options: Options) -> None:
        self._definition = definition
        self._options = options
        self._derived = OrderedDict[Any, Programs]()
        self.at_level: Programs | None = None  # what is called at levels of autograd
        self.peels: list[Printed] = []  # calls at levels, printed
        self.reverse_rules: dict[Any, Any] = {}  # how a pure function passes levels of reverse mode (nodes.py)
        self.of_outer_levels: tuple[Place, ...] = ()
        """Where what the function closes over of an outer transform lives: under vmap, it is given by value."""
        self._cache = ProgramCache()
        self._compile_lock = threading.RLock()
        self._effects_lock = threading.RLock()
        self._recompiles = Recompiles()
        self._why_static = ""
        self._paths_left = PathsLeft()
        self._not_symbolic: set[tuple[Symbol, Any]] = set()
        self._texts_read: frozenset[str] = frozenset()
        """The paths of the texts among the arguments that the function may read, where calls bring others."""
        self._no_sizes: set[Any] = set()
        """By what shares memory, where the function does not trace with numbers as sizes."""
        self.__name__ = name_of(definition.root)
        self._eager_calls = EagerCalls(self.__name__)
        self.__doc__ = getattr(definition.root, "__doc__", None)
        self.__wrapped__ = definition.root
        self.__module__ = getattr(definition.root, "__module__", type(self).__module__)
        self.__qualname__ = getattr(definition.root, "__qualname__", self.__name__)

    @abc.abstractmethod
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call under whatever transforms run."""

    def run_first_fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a call, whatever transforms run, of a program that is there; ``MISS`` where there is none."""
        return self._cache.run_first_fit(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a call, whatever transforms run."""
        result = self._cache.run_first_fit(args, kwargs)
        return result if result is not MISS else self._miss(args, kwargs)

    @abc.abstractmethod
    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that no program fits."""

    @abc.abstractmethod
    def _kernel(self, found: CapturedCall, made: Executable) -> Runnable:
        """What the layers stand around."""

    @abc.abstractmethod
    def compiled_of(self, definition: Definition, options: Options) -> Programs:
        """Another definition, compiled."""

    @property
    def definition(self) -> Definition:
        """What is compiled, in plain PyTorch."""
        return self._definition

    def derived(self, key: Any, make: Callable[[], Definition], of_results: bool = False) -> Programs:
        """The compiled function of a definition made of this one's, once. ``of_results``: there may be one for each
        choice of results that backward comes from, and of a kind (the beginning of ``key``) a few are kept."""
        found = self._derived.get(key)
        if found is None:
            definition = make()
            # at a level the arguments are the same
            options = self._options if definition.at_level else self._options.of_derived
            found = self._derived.setdefault(key, self.compiled_of(definition, options))
            if of_results:
                halves = [k for k in list(self._derived) if k[0] == key[0]]
                warn_of_many(len(halves), self.__name__)
                for oldest in halves[:-AT_MOST]:
                    self._derived.pop(oldest, None)
        else:
            with contextlib.suppress(KeyError):  # another thread may have dropped it since
                self._derived.move_to_end(key)
        return found

    # ── a miss ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _compile_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that no program fitted, by a new one; by eager PyTorch, where the call is none for a
        program."""
        compiled, read = 0, dict[int, Any]()
        # what the function reads (a gradient, an attribute) other threads may have changed since
        while compiled < _ATTEMPTS:
            known, met = self._cache.misses, list[Path]()
            try:
                result = self._cache.run_first_fit(args, kwargs, met)
            except Exception as error:
                if not self._may_be_caught(error):
                    raise
                break
            if result is MISS:
                # it is held while a program is made, and not while one runs: that may wait for other threads
                with self._compile_lock:
                    if self._cache.misses != known:
                        continue  # another thread has made one
                    path = with_numbers(met[0], read)
                    self._paths_left.require_own(path, args)
                    made = self._program_or_error(args, kwargs, path)
                if made is None:
                    return self._definition(*args, **kwargs)
                if isinstance(made, RaisedByValues):
                    break
                if isinstance(made, Exception):
                    return self._rerun_eagerly(made, args, kwargs, path)
                program = made
                try:
                    result = program.run(args, kwargs)
                # kernels round otherwise than what the path was found with: what they read is known now
                except PathMiss:
                    continue
                except Exception as error:
                    if not self._may_be_caught(error):
                        raise
                    break
                compiled += 1
            if result is not MISS:
                return result
        else:
            raise AssertionError(f"a fresh program does not fit its own arguments:\n{program.call}")
        result = self._definition(*args, **kwargs)  # which may catch what was raised
        self._eager_calls.caught()
        return result

    def _may_be_caught(self, error: Exception) -> bool:
        """Whether eager PyTorch may make a call that a program has begun and raised in, as the function may catch
        that: nothing has happened."""
        programs = self._cache.programs
        has_happened = any(program.joint.calls_opaque for program in programs)
        return self._definition.replays and not has_happened and any(p.may_be_caught(error) for p in programs)

    def _program_or_error(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path
    ) -> Program | Exception | RaisedByValues | None:
        """A program for a call in which Python reads ``path`` first. Or why eager PyTorch makes this call instead: what
        the function raised while it was traced; ``RaisedByValues``, what an operator raised for the values of this
        call (a singular matrix); what says that this call makes a parameter, or another leaf, which the next one
        finds; None, where programs are there for as many paths as may be."""
        with outside_levels():
            inputs = take_apart(self._definition, self._options, args, kwargs)
            if path and self._definition.replays:  # a derivative of a program has no other way to run
                reading = (program for program in self._cache.programs if program.joint.reads)
                paths = [program.joint.reads for program in reading if not why_not(program, inputs)]
                if self._eager_calls.on_too_many_paths(paths):
                    return None
            try:
                return self._compile_and_keep(inputs, path)
            except RaisedByValues as raised:
                if self._definition.replays:
                    return raised
                raise raised.__cause__ or raised from None
            except PathMiss as miss:
                self._paths_left.note(path, args, miss)
                raise
            except Exception as error:
                if self._definition.replays and (is_of_function(error) or is_of_first_call(error)):
                    return error
                raise

    def _rerun_eagerly(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> Any:
        """The function raised ``error`` while it was traced: eager PyTorch raises the caller's own, and leaves what was
        written, and drawn, before it. Where it raises none, its result is that of the call if there is a reason for the
        difference: it is a first call (``Refusal.is_first``), or was traced on a path that kernels found, which round
        otherwise. Else the trace was wrong: ``TraceError``."""
        result = self._definition(*args, **kwargs)
        if is_of_first_call(error):
            self._eager_calls.first(error)
            return result
        if path:
            self._eager_calls.lost_path(error)
            return result
        raise refusals.RAISES_IN_TRACE(type(error).__name__, error, where=user_line_of(error)) from error

    def _program_for(self, inputs: Inputs) -> Program:
        """The program of a call with these inputs; compiles it if needed."""
        path: Path = ()
        others: list[Program] = []
        while True:
            program = self._program_on(inputs, path, others)
            try:
                require_on_path(program, self._outer(program), inputs)
            except PathMiss as miss:
                path = path_after(program, miss)
                others.append(program)
            else:
                return program

    def _program_on(self, inputs: Inputs, path: Path, others: Collection[Program]) -> Program:
        """The program of a call with these inputs in which Python reads this first, none of ``others``, which were
        tried; compiles it if needed. A float that is read is a symbol of what is compiled, if the function can work on
        it: kernels round otherwise than PyTorch, which has found it."""
        for program in self._cache.programs:
            if program not in others and not (leaves_path(program.joint.reads, path) or why_not(program, inputs)):
                return program
        program = self._compile_and_keep(inputs, path)
        at = first_float(program)
        while at is not None:
            own = path_after(program, PathMiss(at, program.joint.reads[at].value))
            program = self._compile_and_keep(inputs, own)
            at = first_float(program, at + 1)
        return program

    def _compile_and_keep(self, inputs: Inputs, path: Path) -> Program:
        if path:
            nearest = f"Python reads {path[-1]!r} of a value, which is another path"
        else:
            nearest = "; ".join(self._nearest(inputs) or ["it has not been compiled yet"])
        if _no_retrace.get():
            raise RetraceError(
                f"{self!r} would compile inside no_retrace(): {nearest}",
                fix="call it once before, with arguments like these",
            )
        log(1, f"compiling {self.__name__}: {nearest}")
        if not self._cache.misses and self._definition.replays:
            note_first(type(self._definition).__name__, self._definition.root, self.__name__)
        if path:  # there is a program for these sizes and this state, that reads something else
            self._recompiles.note_path(self.__name__, self._cache.programs)
        else:
            self._recompiles.note(self.__name__, self._cache.programs, inputs, self._options, self._why_static)
        # what programs write meanwhile would be taken for what the function does
        with self._effects_lock, modes_entered(), outside_own_draws(), outside_dispatch_modes(), saved_as_they_are():
            program = self._compile_on_path(inputs, path)
        self._cache.add(program, kept_by_module(inputs.leaves))
        log(2, program.key)
        log(3, program.joint)
        log(4, program.kernels)
        return program

    def _compile_on_path(self, inputs: Inputs, path: Path) -> Program:
        """Compile for calls in which Python reads this first. A number that was another one before is a symbol, if
        the function can work on it; what it decides is checked in the program."""
        if not self._definition.at_level:  # there, what is read of objects is read again for each derivative
            inputs = with_objects(inputs, self._cache.programs)
        attempts = [path]
        if self._options.dynamic is not False and self._options.numerics == "fast":
            known = [program.joint.reads for program in self._cache.programs]
            attempts = paths_to_try(path, known, self._options.memory_budget is None)
        if has_symbols(path):
            attempts.append(tuple(map(known_now, path)))
        for attempt in attempts[:-1]:
            try:
                return self._compile_with_symbols(inputs, attempt)
            except (NotSymbolicError, SizeError) as error:
                log(1, f"{self.__name__} does not trace with symbols for what Python reads ({error})")
        return self._compile_with_symbols(inputs, attempts[-1])

    def _compile_with_symbols(self, inputs: Inputs, path: Path) -> Program:
        """Compile with symbols for the floats and the sizes that vary, or for all sizes if they are asked for; where
        the function cannot work on symbols, with their values."""
        dynamic, programs = self._options.dynamic, self._cache.programs
        if dynamic is False or self._options.numerics != "fast":
            return self._compile(inputs, path)
        sizes = self._options.memory_budget is None  # programs with one are for known sizes
        start = with_sizes_as_symbols(inputs) if dynamic and sizes else inputs
        given_ints = not self._definition.replays
        symbolic = with_symbols(start, programs, sizes, given_ints, self._texts_read)
        while symbolic.unread:
            try:
                return self._first_that_traces(symbolic, inputs, path)
            # by any error: what takes a text, and is given what stands for one, raises errors of its own
            except Exception as error:
                read = read_of(symbolic.leaves) or symbolic.unread
                log(1, f"{self.__name__} reads {', '.join(sorted(read))} ({error})")
                self._texts_read |= read
                symbolic = as_read(symbolic, read)
        return self._first_that_traces(symbolic, inputs, path)

    def _first_that_traces(self, symbolic: Inputs, inputs: Inputs, path: Path) -> Program:
        """Compile with as many of these symbols as the function can work on."""
        shared = self._shared(inputs)
        symbols = varying_symbols(symbolic)
        symbols -= {symbol for symbol, where in self._not_symbolic if where == shared}
        if shared in self._no_sizes:
            symbolic = evolve(symbolic, may_be_sizes=False)
        for attempt in inputs_to_try(symbolic, symbols):
            kept = varying_symbols(attempt)
            try:
                program = self._compile(attempt, path)
            except (NotSymbolicError, SizeError) as error:
                if not kept:
                    raise
                names = ", ".join(map(written, sorted(kept, key=str)))
                self._why_static = str(error).partition("\nException raised from")[0]  # where in torch's C++
                log(1, f"{self.__name__} does not trace with symbols for {names} ({self._why_static})")
            else:
                self._not_symbolic |= {(symbol, shared) for symbol in symbols - kept}
                if kept == symbols and symbolic.may_be_sizes and not attempt.may_be_sizes:
                    self._no_sizes.add(shared)
                return program
        raise AssertionError("the last attempt has no symbols")

    def _shared(self, inputs: Inputs) -> Any:
        """How what a call is given, and what the function closes over, shares memory: today, it need not tomorrow."""
        programs = self._cache.programs
        captured = captured_by(programs[0], inputs, objects_of(programs[0], inputs)) if programs else []
        tensors = [*inputs.tensors, *captured]
        return aliasing([tensor for _, tensor in tensors if isinstance(tensor, Tensor)], anyhow=None)

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────

    def _compile(self, inputs: Inputs, path: Path) -> Program:
        """Trace the call to a joint graph and plan the layers around it (``capture_call``); compile the graph
        (``partition_joint``, ``build_all``); print the one function that checks, runs and repacks (``print_call``)."""
        stages = Stages(self.__name__)
        with stages.running():
            found = capture_call(self._definition, inputs, self._options, stages, path)
            if self._options.donate_argnums and not self._definition.at_level:
                found = with_donations(found, self._options)
            parts = partition_joint(found.joint, self._options, stages, definition_line(self._definition.root))
            # at a level, its kernel is compiled where it is called
            made = parts.unbuilt if self._definition.at_level else build_all(parts, stages)
            if ENVIRONMENT.verify and made.runnables:
                require_same(made.graphs, made.runnables, found.values, parts.backend)
            with stages("print"):
                layers = with_subclasses(found.layers, made.joint, made.graphs[0].signature, found.facts.differentiable)
                donation = donation_of(found, made, self._options)
                around = found.around(layers, made.joint)
                call = print_call(around, self._kernel(found, made), self._effects_lock, donation)
                misfits = _misfits(self._definition, self._options)
                program = Program.of(self.__name__, around.released(), layers, made, call, stages.seconds, misfits)
                if made.joint.sizes is not None:
                    made.joint.sizes.close()
                return program

    def _nearest(self, inputs: Inputs) -> list[str]:
        """The fewest differences to any program; of one whose key fits, what Python reads otherwise."""
        programs = self._cache.programs
        reasons = [list(map(str, why_not(p, inputs))) or other_path(p, self._outer(p), inputs) for p in programs]
        return min(reasons, key=len, default=[])

    def _outer(self, program: Program) -> Signature:
        """What a program takes and gives as the caller knows it."""
        return outer_signature(program.facts, self._definition.out_slot)


def _misfits(
    definition: Definition, options: Options
) -> Callable[[Program, tuple[Any, ...], dict[str, Any]], list[str]]:
    """Why a program does not fit a call. It does not know the compiled function: a module has programs of which
    nobody else knows, by that function's cache, and neither may keep the other."""

    def ask(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return list(map(str, why_not(program, take_apart(definition, options, args, kwargs))))

    return ask
