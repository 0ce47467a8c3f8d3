"""The spine: from a call of a compiled function to its result, stage by stage.

A call runs the first program that fits (``ProgramCache.find``, one printed function each); ``Compiled._compile`` is the
table of contents of everything that happens when none does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from attrs import evolve, frozen
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..backends.backend import Runnable
from ..backends.peak import predicted_peak
from ..capture.capture_sources import Origin
from ..capture.floats import NotSymbolicError
from ..capture.inputs import Inputs
from ..capture.source_location import is_of_function, user_line_of
from ..capture.trace import active_trace
from ..errors import ReadsWarning, RetraceError, TraceError, UnsupportedTensorError
from ..executable import Executable, build_all, partition_joint
from ..generators import outside_own_draws
from ..graph_primitives import Path, PathMiss, has_symbols, known_now
from ..layers.layer import statements_of
from ..layers.stack import outer_signature, with_subclasses
from ..levels import outside_levels
from ..options import ENVIRONMENT, Options, log
from ..partition.saved import SavedValues, saved_values
from ..runtime.cache import CacheInfo, ProgramCache, kept_by_module
from ..runtime.call import MISS, print_call
from ..runtime.captured import CapturedCall
from ..runtime.check import require_same
from ..runtime.cost_report import Cost, MemoryUse, cost_of, measured_peak
from ..runtime.explanation import Explanation
from ..runtime.key import aliasing
from ..runtime.miss_reasons import (
    Symbol,
    fewer,
    symbols_in,
    why_not,
    with_sizes_as_symbols,
    with_symbols,
    without_symbols,
)
from ..runtime.program import Program
from ..runtime.recompiles import Recompiles
from ..stages import Stages
from ..subclasses import inner_tensors
from ..symbolic.sizes import SizeError
from ..torch_private.levels import is_legacy_batched, transforms_or_duals
from ..torch_private.modes import (
    flops_uncounted,
    foreign_trace_active,
    modes_entered,
    profiler,
    profiler_range,
    saved_as_they_are,
)
from ..torch_private.patches import not_looked_into
from ..trees import flatten_arguments
from .arguments import take_apart
from .autograd_boundary import differentiable, pullback_of, pure_of
from .capturing import capture_call
from .definition import Definition, definition_line, name_of
from .levels import call_under_legacy_vmap, call_under_transforms
from .nodes import called_at_level
from .paths import differs, last_with_symbols, with_numbers
from .peel import Printed

_ATTEMPTS = 4
"""How often a call compiles before it is said that its program does not fit it."""

_PATHS = 16
"""So many paths through a function, by values that Python reads, have programs; calls that take others run in eager
PyTorch."""

_TOO_MANY_PATHS = (
    "{} reads values of tensors, and took more than {} paths by what they are, the last of them in eager PyTorch: {}. "
    "Compute with tensors "
    "there (torch.where, torch.cond), or let the value be a Python argument."
)

_LOST_PATH = (
    "{} reads values of tensors that rounding decides, which kernels do otherwise than eager PyTorch: on the path "
    "they found, it raises {} "
    '({}). This call ran in eager PyTorch; compile with numerics="eager", or in double precision.'
)

_no_retrace: ContextVar[bool] = ContextVar("funcgrad_no_retrace", default=False)


@contextlib.contextmanager
def no_retrace() -> Iterator[None]:
    """Inside, a call that would have to compile raises ``RetraceError``, which says which part of its key differed."""
    token = _no_retrace.set(True)
    try:
        yield
    finally:
        _no_retrace.reset(token)


class Compiled:
    """A compiled function. Call it like the function it was made from; look at what it does with ``program``.

    One program is kept for each call key: structure, dtypes, devices, sizes, strides, ``requires_grad``, which inputs
    share memory, static values, and the ambient state (grad mode, autocast, …).

    Thread-safe: one thread at a time compiles, others that find no program wait for it; programs run side by side, but
    for those that write to tensors of the caller's or to Python state: what one of them reads, computes and writes back
    is one step to the others, and to the thread that compiles.
    """

    def __init__(self, definition: Definition, options: Options, at_level: bool = False) -> None:
        self._definition = definition
        self._options = options
        self._at_level = at_level
        self._derived: dict[Any, Compiled] = {}
        self.at_level: Compiled | None = None  # what is called at levels of autograd
        self.peels: list[Printed] = []  # calls under vmap, printed
        self.passages: dict[Any, Any] = {}  # how a pure function passes levels of reverse mode (nodes.py)
        self.of_outer_levels: tuple[Origin, ...] = ()
        """Where what the function closes over of an outer transform lives: under vmap, it is given by value."""
        self._cache = ProgramCache()
        self._lock = threading.RLock()
        self._effects = threading.RLock()
        self._recompiles = Recompiles()
        self._why_static = ""
        self._is_warned_of_paths = False
        self._lost_paths = 0
        self._not_symbolic: set[tuple[Symbol, Any]] = set()
        self.__name__ = name_of(definition.root)
        self.__doc__ = getattr(definition.root, "__doc__", None)
        self.__wrapped__ = definition.root
        self.__module__ = getattr(definition.root, "__module__", type(self).__module__)
        self.__qualname__ = getattr(definition.root, "__qualname__", self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if profiler._is_profiler_enabled:
            with profiler_range(f"funcgrad: {self.__name__}"):
                return call_under_transforms(self, args, kwargs) if transforms_or_duals() else self.run(args, kwargs)
        if transforms_or_duals():
            return call_under_transforms(self, args, kwargs)
        result = self._cache.find(args, kwargs)
        return result if result is not MISS else self._miss(args, kwargs)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a call, whatever transforms run, of a program that is there; ``MISS`` where there is none."""
        return self._cache.find(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As a call, whatever transforms run."""
        result = self._cache.find(args, kwargs)
        return result if result is not MISS else self._miss(args, kwargs)

    @property
    def definition(self) -> Definition:
        """What is compiled, in plain PyTorch."""
        return self._definition

    def derived(self, key: Any, make: Callable[[], Definition], at_level: bool = False) -> Compiled:
        """The compiled function of a definition made of this one's, once."""
        found = self._derived.get(key)
        if found is None:
            # at a level the arguments are the same
            options = self._options if at_level else evolve(self._options, static_argnums=())
            made = Compiled(make(), options, at_level)
            found = self._derived.setdefault(key, made)
        return found

    def __repr__(self) -> str:
        return f"<funcgrad {type(self._definition).__name__.lower()} of {self.__name__}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method binds like a function."""
        return self if instance is None else _Bound(self, instance)

    # ── copies: the definition and the options come along, programs stay behind ──────────────────────────────────

    def __copy__(self) -> Compiled:
        return Compiled(self._definition, self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled(copy.deepcopy(self._definition, memo), self._options)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """What stands in a module (or in a class of it) under its function's name, as decorated functions do, is
        pickled by that name."""
        place: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            place = getattr(place, name, None)
        return self.__qualname__ if place is self else (Compiled, (self._definition, self._options))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program for a call with these arguments; compiles it if needed, runs nothing."""
        with self._lock:
            inputs = take_apart(self._definition, self._options.static_argnums, args, kwargs)
            for program in self._cache.programs:
                if not why_not(program, inputs):
                    return program
            return self._compile_and_keep(inputs)

    def saved(self, *args: Any, **kwargs: Any) -> SavedValues:
        """What a call with these arguments keeps for its backward pass: bytes, shape, dtype, line, reason, and the
        cost of computing it again instead. Runs nothing. Of a gradient, which runs as one program: what lives on
        from its forward part to its backward part, where that computes anything again (elsewhere the order of the
        program alone decides)."""
        program = self.program(*args, **kwargs)
        return saved_values(self.__name__, program.joint, program.partition)

    def memory(self, *args: Any, **kwargs: Any) -> MemoryUse:
        """Bytes that a call takes above what is there before: runs it once, with its backward pass if it has one, on
        copies of what it reads, so that it writes to nothing, and draws nothing from the generators."""
        program = self.program(*args, **kwargs)
        inputs = take_apart(self._definition, self._options.static_argnums, args, kwargs)
        measured = measured_peak(program, outer_signature(program.facts, self._definition.out_slot), inputs)
        return MemoryUse(self.__name__, program.partition.saved_bytes, predicted_peak(program.schedule), measured)

    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """Operations, bytes moved, and the time both need at least on this machine. Does not run the function."""
        return cost_of(self.program(*args, **kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What the program for a call with these arguments reads, writes and takes for granted, and what would
        compile it again. Runs nothing."""
        return Explanation(self.program(*args, **kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As in JAX: ``c.lower(*args).compile()`` is ``c.program(*args)``."""
        return Lowered(lambda: self.program(*args, **kwargs))

    def cache_info(self) -> CacheInfo:
        """Hits, misses, bound and size of the program cache, as ``functools.lru_cache`` reports them."""
        return self._cache.info()

    def explain_miss(self, *args: Any, **kwargs: Any) -> str:
        """Why a call with these arguments would compile: the differences to the nearest program. Says so if it would
        not."""
        inputs = take_apart(self._definition, self._options.static_argnums, args, kwargs)
        if not self._cache.programs:
            return f"{self.__name__} has not been compiled yet"
        return "\n".join(self._nearest(inputs)) or "a program fits: this call would not compile"

    def _nearest(self, inputs: Inputs) -> list[str]:
        """The fewest differences to any program."""
        reasons = [list(map(str, why_not(p, inputs))) for p in self._cache.programs]
        return min(reasons, key=len, default=[])

    # ── a miss ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, _ = flatten_arguments(self._definition.argument_names(len(args)), args, kwargs)
        tensors = [t for leaf in leaves if isinstance(leaf, Tensor) for t in inner_tensors(leaf)]
        if active_trace() is not None or foreign_trace_active(tensors):
            return self._definition(*args, **kwargs)  # inside another trace a compiled function is inlined
        if any(map(is_legacy_batched, tensors)):
            return call_under_legacy_vmap(self, args, kwargs)
        compiled, read = 0, dict[int, Any]()
        # what the function reads (a gradient, an attribute) other threads may have changed since
        while compiled < _ATTEMPTS:
            known, met = self._cache.misses, list[Path]()
            result = self._cache.find(args, kwargs, met)
            if result is MISS:
                # it is held while a program is made, and not while one runs: that may wait for other threads
                with self._lock:
                    if self._cache.misses != known:
                        continue  # another thread has made one
                    path = with_numbers(met[0], read)
                    made = self._program_or_error(args, kwargs, path)
                if made is None:
                    return self._definition(*args, **kwargs)
                if isinstance(made, Exception):
                    return self._raise(made, args, kwargs, path)
                program = made
                try:
                    result = program.run(args, kwargs)
                # kernels round otherwise than what the path was found with: what they read is known now
                except PathMiss:
                    continue
                compiled += 1
            if result is not MISS:
                return result
        raise AssertionError(f"a fresh program does not fit its own arguments:\n{program.call}")

    def _program_or_error(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path
    ) -> Program | Exception | None:
        """A program for a call in which Python reads ``path`` first; or why eager PyTorch is to make this call: what
        the function itself raised while it was traced, a lazy module; None where there are too many paths."""
        with outside_levels():
            inputs = take_apart(self._definition, self._options.static_argnums, args, kwargs)
            if path and self._has_too_many_paths(inputs):
                return None
            try:
                return self._compile_and_keep(inputs, path)
            except Exception as error:
                if self._definition.replays and not self._at_level and is_of_function(error):
                    return error
                if isinstance(error, UnsupportedTensorError) and error.uninitialized is not None:
                    return error
                raise

    def _raise(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> Any:
        """Raise what the function raises: in eager PyTorch, which leaves what was written, and drawn, before. On a
        path that kernels found, which round otherwise, it may raise what it raises in no call: then this call is
        that of eager PyTorch. So is the first call of a lazy module, which makes its parameters."""
        result = self._definition(*args, **kwargs)
        if isinstance(error, UnsupportedTensorError) and error.uninitialized is not None:
            if isinstance(error.uninitialized, Tensor) and is_lazy(error.uninitialized):
                raise error
            log(1, f"{self.__name__} has run in eager PyTorch: it has initialised a lazy module")
            return result
        if path:
            self._lost_paths += 1
            warnings.warn(
                _LOST_PATH.format(self.__name__, type(error).__name__, user_line_of(error)), ReadsWarning, stacklevel=2
            )
            return result
        raise TraceError(
            f"the function raises {type(error).__name__} where it is traced ({error}), and has run in eager PyTorch, "
            "where it raises none",
            where=user_line_of(error),
            fix="let it not depend on what a traced tensor lacks: its type, its memory, attributes of its own",
        ) from error

    def _has_too_many_paths(self, inputs: Inputs) -> bool:
        """Whether programs are there for as many paths as may be; says so once."""
        paths = [
            program.joint.reads
            for program in self._cache.programs
            if program.joint.reads and not why_not(program, inputs)
        ]
        if len(paths) + self._lost_paths < _PATHS:
            return False
        if not self._is_warned_of_paths:
            self._is_warned_of_paths = True
            lines = dict.fromkeys(str(read.where) for reads in paths for read in reads if differs(read, paths))
            warnings.warn(_TOO_MANY_PATHS.format(self.__name__, _PATHS, ", ".join(lines)), ReadsWarning, stacklevel=2)
        return True

    def _compile_and_keep(self, inputs: Inputs, path: Path = ()) -> Program:
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
        self._recompiles.note(self.__name__, self._cache.programs, inputs, self._options, self._why_static)
        # what programs write meanwhile would be taken for what the function does
        with self._effects, modes_entered(), outside_own_draws(), flops_uncounted(), saved_as_they_are():
            program = self._compile_on_path(inputs, path)
        self._cache.add(program, kept_by_module(inputs.leaves))
        log(2, program.key)
        log(3, program.joint)
        log(4, program.kernels)
        return program

    def _compile_on_path(self, inputs: Inputs, path: Path) -> Program:
        """Compile for calls in which Python reads this first. A number that was another one before is a symbol, if
        the function can work on it; what it decides is checked in the program."""
        attempts = [path]
        if path and self._options.dynamic is not False and self._options.numerics == "fast":
            of_sizes = self._options.memory_budget is None and not self._at_level  # these are for known sizes
            last = last_with_symbols(
                path, [program.joint.reads for program in self._cache.programs] if of_sizes else []
            )
            attempts = [path] if last is path[-1] else [(*path[:-1], last), path]
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
        sizes = self._options.memory_budget is None and not self._at_level  # these are for known sizes
        start = with_sizes_as_symbols(inputs) if dynamic and sizes else inputs
        symbolic = with_symbols(start, programs, sizes, ints=not self._definition.replays)
        shared = aliasing([tensor for _, tensor in inputs.tensors])  # what shares memory today need not tomorrow
        symbols = symbols_in(symbolic)
        symbols -= {symbol for symbol, where in self._not_symbolic if where == shared}
        for kept in fewer(symbols):
            attempt = without_symbols(symbolic, symbols_in(symbolic) - kept)
            try:
                program = self._compile(attempt, path)
            except (NotSymbolicError, SizeError) as error:
                if not kept:
                    raise
                names = ", ".join(path if d is None else f"{path}.shape[{d}]" for path, d in sorted(kept, key=str))
                log(1, f"{self.__name__} does not trace with symbols for {names} ({error})")
                self._why_static = str(error)
            else:
                self._not_symbolic |= {(symbol, shared) for symbol in symbols - kept}
                return program
        raise AssertionError("the last attempt has no symbols")

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────

    def _compile(self, inputs: Inputs, path: Path) -> Program:
        """capture → compile → print: a call becomes a joint graph and what stands around it; the graph, kernels;
        both, a flat function."""
        stages = Stages(self.__name__)
        with stages.progress():
            found = capture_call(self._definition, inputs, self._options, self._at_level, stages, path)
            parts = partition_joint(found.joint, self._options, stages, definition_line(self._definition.root))
            # at a level, its kernel is compiled where it is called
            made = parts.unbuilt if self._at_level else build_all(parts, stages)
            if ENVIRONMENT.verify and made.runnables:
                require_same(made.graphs, made.runnables, found.values, parts.backend)
            with stages("print"):
                layers = with_subclasses(found.layers, made.joint, made.graphs[0].signature, found.facts.differentiable)
                call = print_call(
                    found, statements_of(layers, found.outer), made.joint, self._kernel(found, made), self._effects
                )
                program = Program.of(self.__name__, found, layers, made, call, stages.seconds)
                if made.joint.sizes is not None:
                    made.joint.sizes.close()
                return program

    def _kernel(self, found: CapturedCall, made: Executable) -> Runnable:
        """What the layers stand around: the one program; its halves, as autograd knows them; or a pure function at a
        level."""
        options = evolve(self._options, static_argnums=())
        if self._at_level:
            return functools.partial(called_at_level, Compiled(pure_of(found, made), options))
        if not found.facts.differentiable:
            return made.runnables[0]
        product = pullback_of(found, made)
        return differentiable(found, made, Compiled(product, options), product.active, options)


@frozen
class Lowered:
    """What ``Compiled.lower`` returns."""

    compile: Callable[[], Program]


class _Bound:
    """A compiled function bound to an instance, as a method is."""

    def __init__(self, compiled: Compiled, instance: Any) -> None:
        self.__func__ = compiled
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Bound:
        return _Bound(self.__func__, copy.deepcopy(self.__self__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Bound, (self.__func__, self.__self__)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__func__, name)
        return (lambda *args, **kwargs: value(self.__self__, *args, **kwargs)) if callable(value) else value


not_looked_into(Compiled.__call__)
