"""The spine: from a call of a compiled function to its result, stage by stage.

A call runs the first program that fits (``ProgramCache.find``, one printed function each); ``Compiled.compile`` is the
table of contents of everything that happens when none does.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ..backends.aten import AtenBackend
from ..backends.backend import Backend
from ..capture.facts import Inputs, Symbolic, observe
from ..capture.origins import Origin, scalar_constants
from ..capture.tagging import tag_joint
from ..capture.trace import active_trace, require_plain
from ..errors import ArgumentError, RetraceError, UnsupportedTransformError
from ..graphs import verify
from ..layers.layer import plan_layers
from ..options import ENVIRONMENT, Options
from ..partition.partition import fingerprint, partition
from ..runtime.cache import CacheInfo, ProgramCache
from ..runtime.call import MISS, build_call, print_call
from ..runtime.key import Ambient, CallKey, StaticSpec, TensorSpec, aliasing, explain, spec_of
from ..runtime.program import Program, unchanged, watch_modules
from ..runtime.stages import Stages, log
from ..runtime.store import Store, digest
from ..slots import Arg
from ..torch_private import foreign_trace_active, is_transform_wrapper, outside_transforms
from ..trees import LEAF, Node, Tree, flatten
from .definition import Definition, name_of
from .halves import differentiable, graphs_to_run, outs_to_run, pullback_of, trace_joint

_STORE = Store(ENVIRONMENT.cache_dir)

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
    memory, static values, and the ambient state (grad mode, autocast, …). Thread-safe.
    """

    def __init__(self, definition: Definition, options: Options) -> None:
        self._definition = definition
        self._options = options
        self._cache = ProgramCache()
        self._lock = threading.RLock()
        self.__name__ = name_of(definition.root)
        self.__doc__ = getattr(definition.root, "__doc__", None)
        self.__wrapped__ = definition.root

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._cache.find(args, kwargs)
        return result if result is not MISS else self._miss(args, kwargs)

    def __repr__(self) -> str:
        return f"<funcgrad {type(self._definition).__name__.lower()} of {self.__name__}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method binds like a function."""
        return self if instance is None else _Bound(self, instance)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program for a call with these arguments; compiles it if needed, runs nothing."""
        with self._lock:
            inputs = self._inputs(args, kwargs)
            for program in self._cache.programs:
                if not self._why_not(program, inputs):
                    return program
            return self._compile_and_keep(inputs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As in JAX: ``c.lower(*args).compile()`` is ``c.program(*args)``."""
        return Lowered(lambda: self.program(*args, **kwargs))

    def cache_info(self) -> CacheInfo:
        """Hits, misses, bound and size of the program cache, as ``functools.lru_cache`` reports them."""
        return self._cache.info()

    def explain_miss(self, *args: Any, **kwargs: Any) -> str:
        """Why a call with these arguments would compile: the differences to the nearest program. Says so if it would not."""
        inputs = self._inputs(args, kwargs)
        if not self._cache.programs:
            return f"{self.__name__} has not been compiled yet"
        reasons = min((self._why_not(p, inputs) for p in self._cache.programs), key=len)
        return "\n".join(reasons) if reasons else "a program fits: this call would not compile"

    # ── a miss ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        if active_trace() is not None or foreign_trace_active(tensors):
            return self._definition(*args, **kwargs)  # inside another trace a compiled function is inlined
        with self._lock, outside_transforms():
            result = self._cache.find(args, kwargs)  # another thread may have compiled it meanwhile
            if result is MISS:
                program = self._compile_and_keep(self._inputs(args, kwargs))
                result = program.run(args, kwargs)
                assert result is not MISS, f"a fresh program does not fit its own arguments:\n{program.call}"
        return result

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """The arguments taken apart. A static argument is one leaf, whatever it is."""
        static = {i % len(args) if -len(args) <= i < len(args) else i for i in self._options.static_argnums}
        out_of_range = [i for i in static if i >= len(args) or i < 0]
        if out_of_range:
            raise ArgumentError(
                f"static_argnums names position {out_of_range[0]}, but {self.__name__} was called with {len(args)} positional arguments",
                fix="name positions of arguments that every call passes",
            )
        leaves: list[Any] = []
        paths: list[str] = []
        children: list[Tree] = []
        names = self._definition.argument_names(len(args))
        for i, (name, arg) in enumerate(zip(names, args, strict=True)):
            own, tree, own_paths = ([arg], LEAF, [name]) if i in static else flatten(arg, name)
            leaves, paths, children = leaves + own, paths + own_paths, [*children, tree]
        for name, arg in kwargs.items():
            own, tree, own_paths = flatten(arg, name)
            leaves, paths, children = leaves + own, paths + own_paths, [*children, tree]
        for leaf, path in zip(leaves, paths, strict=True):
            self._check(leaf, path)
        n = len(args)
        positional = Node(tuple, tuple(f"[{i}]" for i in range(n)), None, tuple(children[:n]))
        keywords = Node(dict, tuple(f"[{k!r}]" for k in kwargs), tuple(kwargs), tuple(children[n:]))
        both = Node(tuple, ("[0]", "[1]"), None, (positional, keywords))
        return Inputs(tuple(names), tuple(leaves), tuple(map(Arg, paths)), both)

    def _check(self, leaf: Any, path: str) -> None:
        """Refuse, before anything runs, a leaf that can be no input."""
        if isinstance(leaf, Tensor) and is_transform_wrapper(leaf):
            raise UnsupportedTransformError(
                f"{self!r} was called inside a torch.func transform (vmap, grad, jvp, …)",
                where=path,
                fix=f"apply the transform to {self.__name__} itself and compile the result",
            )
        if isinstance(leaf, Tensor):
            require_plain(leaf, path)
        spec_of(leaf, path)

    def _key(self, inputs: Inputs, captured: Sequence[tuple[str, Any]]) -> CallKey:
        paths = tuple(slot.path for slot in inputs.slots)
        leaves = tuple(spec_of(leaf, path) for leaf, path in zip(inputs.leaves, paths, strict=True))
        tensors = [leaf for leaf in inputs.leaves if isinstance(leaf, Tensor)] + [t for _, t in captured]
        specs = tuple((name, TensorSpec.of(t)) for name, t in captured)
        return CallKey(inputs.names, inputs.tree, paths, leaves, specs, aliasing(tensors), Ambient.now())

    def _why_not(self, program: Program, inputs: Inputs) -> list[str]:
        """Why a program does not fit: differences of the keys, and of what the function closes over."""
        lines: list[str] = []
        captured: list[tuple[str, Any]] = []
        for c in program.facts.captured:
            try:
                captured.append((str(c.slot), c.read()))
            except (AttributeError, KeyError, IndexError, ValueError):
                lines.append(f"{c.slot}: is no longer there")
        if not lines:
            lines += explain(program.key, self._key(inputs, captured))
        values = {slot.path: leaf for slot, leaf in zip(inputs.slots, inputs.leaves, strict=True)}
        lines += [] if lines else program.joint.broken_guards(values)
        for constant in program.watched:
            now = constant.origin.read()
            if type(now) is not type(constant.value) or now != constant.value:
                lines.append(f"{constant.origin.name}: was {constant.value!r}, now {now!r}")
        for module in program.modules:
            if isinstance(module.origin, Origin) and module.origin.read() is not module.module:
                lines.append(f"{module.origin.name}: is another module")
            for name, value in module.attributes.items():
                if module.module.__dict__.get(name) != value:
                    lines.append(f"{module.origin.name}.{name}: was {value!r}, now {module.module.__dict__.get(name)!r}")
        return lines

    def _compile_and_keep(self, inputs: Inputs) -> Program:
        reasons = [self._why_not(p, inputs) for p in self._cache.programs]
        nearest = min(reasons, key=len) if reasons else ["it has not been compiled yet"]
        if _no_retrace.get():
            raise RetraceError(
                f"{self!r} would compile inside no_retrace(): " + "; ".join(nearest), fix="call it once before, with arguments like these"
            )
        log(1, f"compiling {self.__name__}: {'; '.join(nearest)}")
        program = self._compile(self._floats_that_vary(inputs))
        self._cache.add(program)
        log(2, program.key)
        log(3, program.joint)
        return program

    def _floats_that_vary(self, inputs: Inputs) -> Inputs:
        """A float that had another value in an otherwise fitting call becomes a symbol, so that its third value is a hit."""
        varying: set[str] = set()
        here = dict(zip([s.path for s in inputs.slots], inputs.leaves, strict=True))
        for program in self._cache.programs:
            before = dict(zip(program.key.paths, program.key.leaves, strict=True))
            symbols = {p for p, spec in before.items() if not isinstance(spec, (TensorSpec, StaticSpec))}
            changed = {line.split(": value was")[0] for line in self._why_not(program, inputs)}
            floats = {p for p, v in here.items() if type(v) is float and v and math.isfinite(v)}  # symbols know no -0.0, inf, nan
            if changed <= floats:
                varying |= changed | (symbols & floats)
        leaves = [Symbolic(v) if s.path in varying else v for s, v in zip(inputs.slots, inputs.leaves, strict=True)]
        return evolve(inputs, leaves=tuple(leaves))

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────

    def _compile(self, inputs: Inputs) -> Program:
        """flatten → key → observe → layers → capture → tag → partition → lower → schedule → emit → build."""
        definition, grad, backend = self._definition, torch.is_grad_enabled(), _choose_backend(self._options)
        baked = scalar_constants(definition.root)
        stages = Stages(self.__name__)
        with stages.progress():
            with stages("observe"):
                facts = observe(definition, inputs, grad, definition.root)
                key = self._key(inputs, [(str(c.slot), c.read()) for c in facts.captured])
                modules = watch_modules(facts, definition.root)
            with stages("layers"):
                layers = plan_layers(tuple(device for device, _ in key.ambient.autocast), not grad and not definition.splits)
            with stages("capture"):
                joint = trace_joint(definition, inputs, facts, grad)
            with stages("tag"):
                joint = tag_joint(joint)
                verify(joint.graph)
            with stages("partition"):
                name = digest(fingerprint(joint))
                known = _STORE.get(name)
                split = partition(joint, known)
                if known is None:
                    _STORE.put(name, sorted(split.kept))
            with stages("lower"):
                graphs = graphs_to_run(definition, facts, joint, split)
                kernels = tuple(backend.lower(graph) for graph in graphs)
            with stages("schedule"):
                schedules = tuple(backend.schedule(k) for k in kernels)
            with stages("emit"):
                sources = tuple(backend.emit(s) for s in schedules)
            with stages("build"):
                runnables = [backend.build(source) for source in sources]
                kernel = runnables[0]
                if facts.differentiable:
                    pullback = Compiled(pullback_of(definition, inputs, facts), evolve(self._options, static_argnums=()))
                    kernel = differentiable(inputs, facts, joint, graphs, runnables, pullback)
                watched, modules = unchanged(baked, modules)
                call = print_call(key, facts, layers, joint, kernel, outs_to_run(joint), definition.root, watched, modules)
                run = build_call(call)
        return Program(
            self.__name__, key, facts.released(), watched, modules, layers, joint, split, kernels, schedules, sources, call, run,
            stages.seconds,
        )  # fmt: skip


def _choose_backend(options: Options) -> Backend:
    """The backend an option names; the environment may name one for ``"auto"``."""
    name = ENVIRONMENT.backend or "auto" if options.backend == "auto" else options.backend
    return {"auto": AtenBackend, "aten": AtenBackend}[name]()


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

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__func__, name)
        return (lambda *args, **kwargs: value(self.__self__, *args, **kwargs)) if callable(value) else value
