"""A compiled function: what the caller calls, and asks for its programs. How those are found and made:
``programs.py``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..backends.backend import Runnable
from ..backends.peak import predicted_peak
from ..capture.captures import LeavesInferenceMode
from ..capture.trace import active_trace
from ..executable import Executable
from ..graph_primitives import PathMiss
from ..options import Options
from ..partition.saved import SavedValues, saved_values
from ..runtime.cache import CacheInfo, path_after
from ..runtime.call import MISS
from ..runtime.captured import CapturedCall
from ..runtime.cost_report import Cost, MemoryUse, cost_of, measured_peak
from ..runtime.explanation import Explanation
from ..runtime.program import Program
from ..subclasses import inner_tensors
from ..torch_private.levels import is_legacy_batched, transforms_or_duals
from ..torch_private.modes import dispatch_mode_active, foreign_trace_active, profiler, profiler_range
from ..torch_private.patches import not_looked_into
from ..trees import flatten_arguments
from .arguments import take_apart
from .autograd_boundary import differentiable, pullback_of, pure_of
from .decorator import name_in_module
from .definition import Definition, Inferring
from .dispatch_modes import tell_of_dispatch_modes
from .levels import call_under_legacy_vmap, call_under_transforms
from .nodes import called_at_level
from .programs import Programs


class Compiled(Programs):
    """A compiled function. Call it like the function it was made from; look at what it does with ``program``.

    One program is kept for each call key: structure, dtypes, devices, sizes, strides, ``requires_grad``, which inputs
    share memory, static values, and the ambient state (grad mode, autocast, …).

    Thread-safe: one thread at a time compiles, others that find no program wait for it; programs run side by side, but
    for those that write to tensors of the caller's or to Python state: what one of them reads, computes and writes back
    is one step to the others, and to the thread that compiles.
    """

    def __init__(self, definition: Definition, options: Options) -> None:
        super().__init__(definition, options)
        self._inferring: dict[bool, Compiled] = {}
        """By grad mode, what is called in place of this in inference mode, where the function leaves that."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if dispatch_mode_active():
            tell_of_dispatch_modes(self.__name__, self._options)
        if profiler._is_profiler_enabled:
            with profiler_range(f"funcgrad: {self.__name__}"):
                return call_under_transforms(self, args, kwargs) if transforms_or_duals() else self.run(args, kwargs)
        if transforms_or_duals():
            return call_under_transforms(self, args, kwargs)
        result = self._cache.run_first_fit(args, kwargs)
        return result if result is not MISS else self._miss(args, kwargs)

    def __repr__(self) -> str:
        return f"<funcgrad {type(self._definition).__name__.lower()} of {self.__name__}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method binds like a function."""
        return self if instance is None else _Bound(self, instance)

    # ── copies: the definition and the options come along, programs stay behind ──────────────────────────────────

    @property
    def _made_of(self) -> Any:
        return self._definition

    def __copy__(self) -> Compiled:
        return type(self)(self._made_of, self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return type(self)(copy.deepcopy(self._made_of, memo), self._options)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return name_in_module(self) or (type(self), (self._made_of, self._options))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def program(self, /, *args: Any, **kwargs: Any) -> Program:
        """The program for a call with these arguments; compiles it if needed, runs nothing."""
        with self._compile_lock:
            inputs = take_apart(self._definition, self._options, args, kwargs)
            try:
                return self._program_for(inputs)
            except LeavesInferenceMode:
                inferring = self._of_inference_mode()
        with torch.inference_mode(False):
            return inferring.program(*args, **kwargs)

    def saved(self, /, *args: Any, **kwargs: Any) -> SavedValues:
        """What a call with these arguments keeps for its backward pass: bytes, shape, dtype, line, reason, and the
        cost of computing it again instead. Runs nothing. Of a gradient, which runs as one program: what lives on
        from its forward part to its backward part, where that computes anything again (elsewhere the order of the
        program alone decides)."""
        program = self.program(*args, **kwargs)
        return saved_values(self.__name__, program.joint, program.partition)

    def memory(self, /, *args: Any, **kwargs: Any) -> MemoryUse:
        """Bytes that a call takes above what is there before: runs it once, with its backward pass if it has one, on
        copies of what it reads, so that it writes to nothing, and draws nothing from the generators."""
        program = self.program(*args, **kwargs)
        inputs = take_apart(self._definition, self._options, args, kwargs)
        others: list[Program] = []
        while True:
            try:
                measured = measured_peak(program, self._outer(program), inputs)
                break
            except PathMiss as miss:  # its kernels round otherwise than PyTorch, by which the path was found
                others.append(program)
                with self._compile_lock:
                    program = self._program_on(inputs, path_after(program, miss), others)
        return MemoryUse(self.__name__, program.partition.saved_bytes, predicted_peak(program.schedule), measured)

    def cost(self, /, *args: Any, **kwargs: Any) -> Cost:
        """Operations, bytes moved, and the time both need at least on this machine. Does not run the function."""
        return cost_of(self.program(*args, **kwargs))

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What the program for a call with these arguments reads, writes and takes for granted, and what would
        compile it again. Runs nothing."""
        return Explanation(self.program(*args, **kwargs))

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """As in JAX: ``c.lower(*args).compile()`` is ``c.program(*args)``, to be called with arguments like these."""
        return Lowered(lambda: self.program(*args, **kwargs))

    def cache_info(self) -> CacheInfo:
        """Hits, misses, bound and size of the program cache, as ``functools.lru_cache`` reports them."""
        return self._cache.info()

    def explain_miss(self, /, *args: Any, **kwargs: Any) -> str:
        """Why a call with these arguments would compile: the differences to the nearest program. Says so if it would
        not."""
        inputs = take_apart(self._definition, self._options, args, kwargs)
        if not self._cache.programs:
            return f"{self.__name__} has not been compiled yet"
        return "\n".join(self._nearest(inputs)) or "a program fits: this call would not compile"

    # ── what programs leave open ─────────────────────────────────────────────────────────────────────────────────

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, _ = flatten_arguments(self._definition.argument_names(len(args)), args, kwargs)
        tensors = [t for leaf in leaves if isinstance(leaf, Tensor) for t in inner_tensors(leaf)]
        if active_trace() is not None or foreign_trace_active(tensors):
            return self._definition(*args, **kwargs)  # inside another trace a compiled function is inlined
        if any(map(is_legacy_batched, tensors)):
            return call_under_legacy_vmap(self, args, kwargs)
        inferring = self._inferring.get(torch.is_grad_enabled()) if torch.is_inference_mode_enabled() else None
        if inferring is None:
            try:
                return self._compile_and_run(args, kwargs)
            except LeavesInferenceMode:
                inferring = self._of_inference_mode()
        with torch.inference_mode(False):
            return inferring.run(args, kwargs)

    def _of_inference_mode(self) -> Compiled:
        """What makes the same calls outside of inference mode: it enters that itself."""
        grad_mode = torch.is_grad_enabled()
        made = Compiled(Inferring(self._definition, grad_mode), self._options)
        return self._inferring.setdefault(grad_mode, made)

    def compiled_of(self, definition: Definition, options: Options) -> Compiled:
        return Compiled(definition, options)

    def _kernel(self, found: CapturedCall, made: Executable) -> Runnable:
        """What the layers stand around: the one program; its halves, as autograd knows them; or a pure function at a
        level."""
        options = self._options.of_derived
        if self._definition.at_level:
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

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Bound:
        return _Bound(self.__func__, copy.deepcopy(self.__self__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Bound, (self.__func__, self.__self__)

    def __eq__(self, other: object) -> bool:
        """Each access makes another one: as Python's methods, they are equal where function and instance are one."""
        same = isinstance(other, _Bound) and self.__func__ is other.__func__ and self.__self__ is other.__self__
        return same if isinstance(other, _Bound) else NotImplemented

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__func__, name)
        return functools.partial(value, self.__self__) if name in _OF_A_CALL else value


_OF_A_CALL = frozenset({"cost", "definition", "explain", "explain_miss", "lower", "memory", "program", "saved"})
"""What is called with the arguments of a call, of which a method's first is the instance."""


not_looked_into(Compiled.__call__)
