"""The spine: from a call of a compiled function to its result, stage by stage.

A call runs the first program that fits (``ProgramCache.find``, one printed function each); ``Compiled.compile`` is the
table of contents of everything that happens when none does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ..backends.backend import Runnable
from ..backends.choose import choose_backend
from ..capture.draws import narrow
from ..capture.facts import Facts, require_sizes_may_vary
from ..capture.floats import NotSymbolicError
from ..capture.inner import Inner
from ..capture.inputs import Inputs, read_all
from ..capture.lifted import GradientsMatter
from ..capture.observe import observe
from ..capture.origins import Origin
from ..capture.tagging import tag_joint
from ..capture.trace import active_trace
from ..checkpoint_policies import policy_of
from ..errors import AutocastWarning, RecompileWarning, RetraceError
from ..generators import outside_own_draws
from ..graphs import Graph, verify
from ..layers.stack import inner_signature, inner_values, outer_signature, plan_layers, with_subclasses, writing_below
from ..levels import level_of_call, outside_levels
from ..options import ENVIRONMENT, Options, log
from ..partition.order import in_less_memory
from ..partition.partition import Partition
from ..partition.saved import SavedValues, saved_values
from ..partition.steps import with_steps
from ..rewrites import logged
from ..runtime.cache import CacheInfo, ProgramCache
from ..runtime.call import MISS, build_call, print_call
from ..runtime.check import require_same
from ..runtime.figures import Cost, MemoryUse, cost_of, measured_peak, predicted_peak
from ..runtime.fit import Symbol, key_of, symbols_in, why_not, with_sizes_as_symbols, with_symbols, without_symbols
from ..runtime.key import aliasing, with_sizes
from ..runtime.program import Program
from ..runtime.stages import Stages
from ..sizes import SizeError
from ..state.watch import Watch
from ..subclasses import inner_tensors
from ..torch_private import foreign_trace_active, is_legacy_batched, modes_entered, transforms_or_duals
from ..trees import flatten_arguments
from .arguments import take_apart
from .definition import Definition, Untracked, name_of
from .halves import differentiable, graphs_to_run, pullback_of, pure_of, trace_joint
from .levels import call_under_legacy_vmap, call_under_transforms
from .peel import Printed
from .splitting import split_joint

_ATTEMPTS = 4
"""How often a call compiles before it is said that its program does not fit it."""

_LOWERED = 4
"""Graphs whose kernels are kept while a program is compiled: those whose peaks are compared last are those that run."""

_AUTOCAST_UNSAID = (
    "{} is differentiated while autocast is on: the backward of a custom autograd.Function will not see it. "
    'Say backward_autocast="off" if that is meant, or "same_as_forward".'
)

_CHANGES = 3
"""How often one value of Python state may be another before a call compiles with a warning."""

_CHANGES_AGAIN = (
    "{} compiles for the {}th time, since a value it reads is another in each call ({}). Pass it as an argument, where a float becomes a "
    "symbol, keep it in a tensor, or let what depends on it be done outside."
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

    One program is kept for each call key: structure, dtypes, devices, sizes, strides, ``requires_grad``, which inputs share
    memory, static values, and the ambient state (grad mode, autocast, …).

    Thread-safe: one thread at a time compiles, others that find no program wait for it; programs run side by side, but for those that
    write to tensors of the caller's or to Python state: what one of them reads, computes and writes back is one step to the others, and
    to the thread that compiles.
    """

    def __init__(self, definition: Definition, options: Options, at_level: bool = False) -> None:
        self._definition = definition
        self._options = options
        self._at_level = at_level
        self._derived: dict[Any, Compiled] = {}
        self.peels: list[Printed] = []  # calls under vmap, printed
        self.passages: dict[Any, Any] = {}  # how a pure function passes levels of reverse mode (nodes.py)
        self.of_outer_levels: tuple[Origin, ...] = ()
        """Where what the function closes over of an outer transform lives: under vmap, it is given by value."""
        self._cache = ProgramCache()
        self._lock = threading.RLock()
        self._effects = threading.RLock()
        self._changes: Counter[str] = Counter()
        self._not_symbolic: set[tuple[Symbol, Any]] = set()
        self.__name__ = name_of(definition.root)
        self.__doc__ = getattr(definition.root, "__doc__", None)
        self.__wrapped__ = definition.root
        self.__module__ = getattr(definition.root, "__module__", type(self).__module__)
        self.__qualname__ = getattr(definition.root, "__qualname__", self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
            options = self._options if at_level else evolve(self._options, static_argnums=())  # at a level the arguments are the same
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
        """What stands in a module (or in a class of it) under its function's name, as decorated functions do, is pickled by that name."""
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
        """What a call with these arguments keeps for its backward pass: bytes, shape, dtype, line, reason, and the cost of computing it
        again instead. Runs nothing. Of a gradient, which runs as one program: what lives on from its forward part to its backward part,
        where that computes anything again (elsewhere the order of the program alone decides)."""
        program = self.program(*args, **kwargs)
        return saved_values(self.__name__, program.joint, program.partition)

    def memory(self, *args: Any, **kwargs: Any) -> MemoryUse:
        """Bytes that a call takes above what is there before: runs it once, with its backward pass if it has one, on copies of what it
        reads, so that it writes to nothing, and draws nothing from the generators."""
        program = self.program(*args, **kwargs)
        inputs = take_apart(self._definition, self._options.static_argnums, args, kwargs)
        measured = measured_peak(program, outer_signature(program.facts, self._definition.out_slot), inputs)
        return MemoryUse(self.__name__, program.partition.saved_bytes, predicted_peak(program.schedule), measured)

    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """Operations, bytes moved, and the time both need at least on this machine. Does not run the function."""
        return cost_of(self.program(*args, **kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As in JAX: ``c.lower(*args).compile()`` is ``c.program(*args)``."""
        return Lowered(lambda: self.program(*args, **kwargs))

    def cache_info(self) -> CacheInfo:
        """Hits, misses, bound and size of the program cache, as ``functools.lru_cache`` reports them."""
        return self._cache.info()

    def explain_miss(self, *args: Any, **kwargs: Any) -> str:
        """Why a call with these arguments would compile: the differences to the nearest program. Says so if it would not."""
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
        compiled = 0
        while compiled < _ATTEMPTS:  # what the function reads (a gradient, an attribute) other threads may have changed since
            known = self._cache.misses
            result = self._cache.find(args, kwargs)
            if result is MISS:
                with self._lock:  # it is held while a program is made, and not while one runs: that may wait for other threads
                    if self._cache.misses != known:
                        continue  # another thread has made one
                    with outside_levels():
                        program = self._compile_and_keep(take_apart(self._definition, self._options.static_argnums, args, kwargs))
                compiled += 1
                result = program.run(args, kwargs)
            if result is not MISS:
                return result
        raise AssertionError(f"a fresh program does not fit its own arguments:\n{program.call}")

    def _compile_and_keep(self, inputs: Inputs) -> Program:
        nearest = "; ".join(self._nearest(inputs) or ["it has not been compiled yet"])
        if _no_retrace.get():
            raise RetraceError(
                f"{self!r} would compile inside no_retrace(): {nearest}", fix="call it once before, with arguments like these"
            )
        log(1, f"compiling {self.__name__}: {nearest}")
        self._note_change(inputs)
        with self._effects, modes_entered(), outside_own_draws():  # what programs write meanwhile would be taken for what the function does
            program = self._compile_with_symbols(inputs)
        self._cache.add(program)
        log(2, program.key)
        log(3, program.joint)
        log(4, program.kernels)
        return program

    def _note_change(self, inputs: Inputs) -> None:
        """Warn, once, of one value of Python state that is another in each of several calls."""
        by_program = [(program.facts.symbols, why_not(program, inputs)) for program in self._cache.programs]
        symbols = frozenset[str]().union(*(own for own, _ in by_program))
        alone: dict[str, str] = {}
        for own, found in by_program:
            name = found[0].where if found and {(d.where, d.about) for d in found} == {(found[0].where, "state")} else ""
            if name and (name in own or name not in symbols):  # programs from before it was a symbol say nothing about that
                alone.setdefault(name, str(found[0]))
        for name, reason in alone.items():
            self._changes[name] += 1
            if self._changes[name] == _CHANGES:
                warnings.warn(_CHANGES_AGAIN.format(self.__name__, _CHANGES + 1, reason), RecompileWarning, stacklevel=2)

    def _compile_with_symbols(self, inputs: Inputs) -> Program:
        """Compile with symbols for the floats and the sizes that vary, or for all sizes if they are asked for; where the function cannot
        work on symbols, with their values."""
        dynamic, programs = self._options.dynamic, self._cache.programs
        if dynamic is False or self._options.numerics != "fast":
            return self._compile(inputs)
        sizes = self._options.memory_budget is None and not self._at_level  # these are for known sizes
        start = with_sizes_as_symbols(inputs) if dynamic and sizes else inputs
        symbolic = with_symbols(start, programs, sizes, ints=not self._definition.replays)
        shared = aliasing([tensor for _, tensor in inputs.tensors])  # what shares memory today need not tomorrow
        symbols = symbols_in(symbolic)
        symbols -= {symbol for symbol, where in self._not_symbolic if where == shared}
        for kept in _fewer(symbols):
            attempt = without_symbols(symbolic, symbols_in(symbolic) - kept)
            try:
                program = self._compile(attempt)
            except (NotSymbolicError, SizeError) as error:
                if not kept:
                    raise
                names = ", ".join(path if d is None else f"{path}.shape[{d}]" for path, d in sorted(kept, key=str))
                log(1, f"{self.__name__} does not trace with symbols for {names} ({error})")
            else:
                self._not_symbolic |= {(symbol, shared) for symbol in symbols - kept}
                return program
        raise AssertionError("the last attempt has no symbols")

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────

    def _observe(self, inputs: Inputs) -> tuple[Definition, bool, Facts, Watch]:
        """What a dry run shows; of which definition, whether gradients matter outside of it, and the watch over Python state."""
        definition, grad = self._definition, torch.is_grad_enabled()

        def observed() -> tuple[Facts, Watch]:
            rng, replays = self._options.rng, definition.replays
            level = level_of_call() if self._at_level else 0
            return observe(definition, inputs, grad, definition.root, definition.splits, definition.out_slot, rng, replays, level)

        try:
            return definition, grad, *observed()
        except GradientsMatter:
            definition, grad = Untracked(definition), True
            return definition, grad, *observed()

    def _compile(self, inputs: Inputs) -> Program:
        """flatten → key → observe → layers → capture → tag → partition → lower → schedule → emit → build."""
        stages = Stages(self.__name__)
        with stages.progress():
            with stages("observe"):
                definition, grad, facts, watch = self._observe(inputs)
                captured = read_all(facts.captured, dict(inputs.dynamic))
                key = key_of(inputs, list(captured.items()), facts)
                if inputs.sizes:
                    require_sizes_may_vary(facts)
            with stages("layers"):
                if key.ambient.autocast and self._options.backward_autocast is None and (facts.differentiable or not definition.splits):
                    warnings.warn(_AUTOCAST_UNSAID.format(self.__name__), AutocastWarning, stacklevel=2)
                devices = tuple(device for device, _ in key.ambient.autocast)
                outer = outer_signature(facts, definition.out_slot)
                layers = plan_layers(outer, facts, devices, not grad and not definition.splits)
                if self._at_level:
                    layers = writing_below(layers, dict([*inputs.tensors, *captured.items()]))
                inner = Inner(
                    definition, inputs.released(), facts.released(), inner_signature(outer, layers), definition.out_slot, definition.splits,
                    definition.root, self._options.backward_autocast, policy_of(self._options.policy), self._options.rng,
                )  # fmt: skip
            with stages("capture"):
                joint, refused = trace_joint(definition, inner, inner_values(outer, layers, inputs, facts), grad, watch)
                watch.release()
                key = with_sizes(key, joint.sizes)
                backend = choose_backend(self._options, joint.graph)
                joint = evolve(joint, graph=logged(f"for the {backend.name} backend", joint.graph, backend.prepare))
            with stages("tag"):
                fuses, limited = backend.fuses and definition.splits and facts.differentiable, self._options.memory_budget is not None
                joint = tag_joint(narrow(with_steps(joint, keep=not limited), fuses or limited))
                verify(joint.graph)
            with stages("partition"):
                lowered = functools.lru_cache(_LOWERED)(backend.lower)
                scheduled = functools.lru_cache(_LOWERED)(lambda graph: backend.schedule(lowered(graph)))

                @functools.cache
                def peak_of(graphs: tuple[Graph, ...]) -> int:
                    return predicted_peak([scheduled(graph) for graph in graphs])

                def graphs_of(split: Partition) -> tuple[Graph, ...]:
                    return in_less_memory(tuple(graphs_to_run(definition, inner, joint, split, refused)), peak_of)

                split = split_joint(joint, definition, self._options, backend, fuses, lambda split: peak_of(graphs_of(split)))
                graphs = graphs_of(split)
            own = () if self._at_level else graphs  # at a level, its kernel is compiled where it is called
            with stages("lower"):
                kernels = tuple(lowered(graph) for graph in own)
            with stages("schedule"):
                schedules = tuple(scheduled(graph) for graph in own)
            with stages("emit"):
                sources = tuple(backend.emit(s) for s in schedules)
            with stages("build"):
                runnables = [backend.build(source) for source in sources]
                if ENVIRONMENT.verify and not self._at_level:
                    values = inner_values(outer, layers, inputs, facts)
                    require_same(graphs, runnables, dict(zip(inner.signature.ins, values, strict=True)), backend)
                options = evolve(self._options, static_argnums=())
                if self._at_level:
                    pure = pure_of(inner, joint, graphs, definition.root, key.ambient.autocast)
                    kernel: Runnable = Compiled(pure, options)
                elif facts.differentiable:
                    before = [slot for layer in layers for slot in layer.before]
                    product = pullback_of(inner, joint, definition.root)
                    pullback = Compiled(product, options)
                    kernel = differentiable(
                        inner, joint, graphs, runnables, pullback, product.active, refused, key.ambient.autocast, before
                    )
                else:
                    kernel = runnables[0]
                layers = with_subclasses(layers, joint, graphs[0].signature, facts.differentiable)
                examples = [*inputs.leaves, *captured.values()]
                call = print_call(key, examples, facts, outer, layers, joint, kernel, definition.root, self._effects, grad)
                run = build_call(call)
                if joint.sizes is not None:
                    joint.sizes.close()
        return Program(
            self.__name__, key, facts.released(), layers, joint, split, kernels, schedules,
            tuple(itertools.chain(*sources)), call, run, stages.seconds,
        )  # fmt: skip


_FEW = 8
"""So many symbols are left out one by one."""


def _fewer(symbols: Collection[Symbol]) -> list[frozenset[Symbol]]:
    """All symbols; where the function does not trace with them, those to try next; in the end none."""
    floats = frozenset(s for s in symbols if s[1] is None)
    everything = frozenset(symbols)
    one_less = [everything - {s} for s in sorted(symbols, key=str)] if len(symbols) <= _FEW else []
    return [*dict.fromkeys([everything, *one_less, floats, everything - floats, frozenset[Symbol]()])]


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
