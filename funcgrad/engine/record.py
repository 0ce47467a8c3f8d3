"""The other side of the autograd engine's hook: an object that is told, call by call, what a backward pass would do.

The engine keeps what comes of it, and hands it new values whenever a graph of the same shape is run backward. So
nothing here may depend on a value, nor on how a tensor looks: all it is given to hold are tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from ..autograd_state import is_leaf
from ..errors import GraphError
from ..runtime.execute import differentiable_of
from ..torch_private.engine import engine_operators, is_traceable
from ..torch_private.modes import TorchDispatchMode
from .inlined import Inlinable, function_of
from .statements import (
    VALIDATE,
    Declared,
    Function,
    Functional,
    Kind,
    Statement,
    added,
    after_store,
    cpp_hook,
    post_hook,
    pre_hook,
    slice_of_base,
    slice_put_back,
    store,
    tensor_hook,
    unpack,
    zeros,
)
from .tokens import Ref, Tokens, refs_in


class _Zeros(TorchDispatchMode):
    """Where an ``autograd.Function`` is given zeros for a result that has no gradient, the engine makes them: of a
    size that is a token."""

    def __init__(self, say: Callable[[Any, Mapping[str, Any]], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._say = say

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._say(args[0], kwargs) if func is torch.ops.aten.zeros.default else func(*args, **(kwargs or {}))


class Recorder:
    """One recording. ``done`` is given it when it ends, and returns what the engine keeps: what to call, and what to
    call it with."""

    def __init__(self, done: Callable[[Recorder], tuple[Callable[..., Any], Any]]) -> None:
        self._done = done
        self._tokens = Tokens()
        self._modes = ExitStack()
        self._node = 0
        self.statements: list[Statement] = []
        self.names: dict[int, str] = {}
        """The names of autograd's nodes, by the numbers the engine gives them."""
        self.outputs: tuple[Any, ...] = ()
        """What the pass returns (``torch.autograd.grad``)."""
        self.reasons: tuple[str, ...] = ()
        """Why none of the graphs that the engine knows would do."""
        self.calls: list[str] = []
        """The compiled regions whose backward halves are calls, each with the reason."""
        self._passes_over = False
        """Whether the pass does not come to a leaf, though the engine does."""
        self.seconds = -time.perf_counter()
        """How long it took."""

    # ── what it is given ─────────────────────────────────────────────────────────────────────────────────────────

    def begin_capture(
        self, inputs: Any, sizes: Any, scalars: Any, origins: Any, accumulate_grad: bool, check_nans: bool
    ) -> Any:
        """Tokens for the tensors, sizes and numbers of a run."""
        number = self._tokens.number
        for value in scalars:
            if type(value) not in (int, float):
                raise GraphError(f"the autograd engine hands over a {type(value).__name__} where a number was expected")
        self._modes.enter_context(_Zeros(self._zeros))
        return (
            "funcgrad",
            [self._tokens.tensor(Ref("inputs", i)) for i in range(len(inputs))],
            [number(Ref("sizes", i), int) for i in range(len(sizes))],
            [number(Ref("scalars", i), type(value)) for i, value in enumerate(scalars)],
        )

    def log_compile_reasons(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)

    def set_node_origin(self, name: str, node: int, context: Any) -> None:
        """What comes next belongs to a node."""
        self._node, self.names[node] = node, name

    def _say(
        self, kind: Kind, name: str, run: Any, args: Sequence[Any], likes: Sequence[Any], **more: Any
    ) -> list[Tensor]:
        s = Statement(len(self.statements), self._node, kind, name, run, tuple(args), tuple(likes), **more)
        self.statements.append(s)
        return [self._tokens.tensor(ref) for ref in s.results]

    def _zeros(self, sizes: Any, options: Mapping[str, Any]) -> Tensor:
        return self._say(Kind.PURE, "zeros", zeros, (self._tokens.refs(list(sizes)), dict(options)), (None,))[0]

    # ── nodes of PyTorch's own ───────────────────────────────────────────────────────────────────────────────────

    def bind_function(self, name: str, function: Any, is_custom: bool, is_traceable: bool) -> str:
        """The engine names a function once in a process, when it first needs it."""
        bound: str = engine_operators().add(name, function, is_custom, is_traceable)
        return bound

    def apply_functional(self, name: str, grads: Any, args: Any, metadata: Sequence[Any]) -> list[Tensor]:
        """A node of PyTorch's own, or of an extension that says it may be traced; any other is an opaque call."""
        kind = Kind.PURE if is_traceable(name) else Kind.CALL
        refs = self._tokens.refs
        args = (refs(list(grads)), *refs(tuple(args)))
        return self._say(kind, name, Functional(name), args, (None,) * len(metadata), may_be_none=kind is Kind.CALL)

    def validate_outputs(self, _: Any, outputs: Sequence[Any], args: Any, metadata: Sequence[Any]) -> Sequence[Any]:
        """The results of a node in the shapes and dtypes of its inputs; an ``autograd.Function`` sees to it itself."""
        if not outputs:
            return outputs
        refs = self._tokens.refs
        given = [refs(v) if v is not None else None for v in outputs]
        last = self.statements[-1] if self.statements else None
        if last is not None and isinstance(last.run, Function) and all(r is None or r.of == last.number for r in given):
            self.statements[-1] = evolve(
                last, args=((tuple(None if r is None else r.at for r in given), refs(tuple(args))), *last.args[1:])
            )
            return outputs
        new = self._say(Kind.PURE, "validate_outputs", VALIDATE, (given, *refs(tuple(args))), (None,) * len(outputs))
        return [None if old is None else token for old, token in zip(outputs, new, strict=True)]

    def accumulate(self, old: Any, new: Any) -> Tensor:
        return self._say(Kind.SUM, "accumulate", added, self._tokens.refs((old, new)), (None,))[0]

    def accumulate_grad(self, variable: Any, *rest: Any) -> Any:
        """``(variable, its gradient now, grad, has_hooks)``; up to 2.11 ``(variable, grad, has_hooks)``. From 2.13
        on, what the leaf's gradient is then is returned: nobody reads it."""
        grad = rest[-2]
        self._say(Kind.STORE, "accumulate_grad", store, self._tokens.refs((variable, grad)), ())
        return self._tokens.tensor(Ref("stored", 0)) if len(rest) > 2 else None

    # ── custom functions, views that were written to ─────────────────────────────────────────────────────────────

    def proxy_call_backward(
        self, inputs: Any, metadata: Sequence[Any], saved: Any, context: int, function: Any, state: Any, opaque: Any
    ) -> tuple[Any, ...]:
        """An ``autograd.Function``: the caller's Python, which nobody looks into; or a region that we have compiled."""
        refs = self._tokens.refs
        likes = [None if m is None else Declared(m[1], m[2], refs(tuple(m[3]))) for m in metadata]
        args = (None, Ref("hooks", context), refs(list(saved)), *refs(tuple(inputs)))
        run, why = function_of([m is not None for m in metadata], function, refs)
        self.calls += [why] if why is not None else []
        new = self._say(
            Kind.CALL, type(function).__name__, run, args, likes, may_be_none=not isinstance(run, Inlinable)
        )
        passed_over = _leaves_passed_over(function, inputs)
        self._passes_over = self._passes_over or bool(passed_over)
        given = enumerate(zip(metadata, new, strict=True))
        return tuple(None if m is None or i - 2 in passed_over else token for i, (m, token) in given)

    def call_copy_slices_prologue(self, inputs: Any, *geometry: Any) -> list[Tensor]:
        refs = self._tokens.refs
        return self._say(
            Kind.PURE, "slice_of_base", slice_of_base, (refs(list(inputs)), *map(refs, geometry)), (None,) * 3
        )

    def call_copy_slices_epilogue(self, needs: Any, whole: Any, found: Any, part: Any) -> list[Tensor]:
        refs = self._tokens.refs
        args = (list(needs), refs(whole), refs(list(found)), refs(part))
        return self._say(Kind.PURE, "slice_put_back", slice_put_back, args, (None,) * len(needs))

    # ── hooks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def unpack_hook(self, hook_id: int, data_id: int) -> Tensor:
        return self._say(
            Kind.CALL, "unpack", unpack, (Ref("hooks", hook_id), Ref("packed", data_id)), (None,), may_be_none=True
        )[0]

    def tensor_pre_hook(self, inputs: list[Any], hook_id: int, i: int) -> list[Any]:
        if inputs[i] is None and self._passes_over and "AccumulateGrad" in self.names[self._node]:
            return inputs
        ref = self._tokens.refs(inputs[i])
        (inputs[i],) = self._hooked("tensor_hook", tensor_hook, (Ref("hooks", hook_id), ref), (ref,))
        return inputs

    def cpp_tensor_pre_hook(self, inputs: list[Any], hook_id: int, i: int) -> list[Any]:
        if inputs[i] is None:  # no gradient comes by: none is kept
            return inputs
        ref = self._tokens.refs(inputs[i])
        (inputs[i],) = self._hooked("retain_grad", cpp_hook, (hook_id, ref), (ref,))
        return inputs

    def pre_hook(self, inputs: Any, hook_id: int) -> list[Any]:
        refs = self._tokens.refs(tuple(inputs))
        return self._hooked("pre_hook", pre_hook, (Ref("hooks", hook_id), refs), refs, may_be_none=True)

    def post_hook(self, outputs: Any, inputs: Any, hook_id: int) -> list[Any]:
        made, given = self._tokens.refs(tuple(outputs)), self._tokens.refs(tuple(inputs))
        return self._hooked("post_hook", post_hook, (Ref("hooks", hook_id), made, given), made, may_be_none=True)

    def _hooked(self, name: str, run: Any, args: Sequence[Any], given: Sequence[Any], **more: Any) -> list[Any]:
        """A hook gives a gradient for each that it is given, and none in the place of one that is undefined."""
        new = self._say(Kind.CALL, name, run, args, given, **more)
        return [None if ref is None else token for ref, token in zip(given, new, strict=True)]

    def post_acc_grad_hook(self, variable: Any, hook_id: int) -> list[Any]:
        ref = self._tokens.refs(variable)
        self._say(Kind.CALL, "after_store", after_store, (Ref("hooks", hook_id), ref), (), writes=ref)
        return [variable]

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def end_capture(self, outputs: Any) -> tuple[Callable[..., Any], Any]:
        self.outputs = tuple(None if v is None else self._tokens.refs(v) for v in outputs)
        self.seconds += time.perf_counter()
        read = set(refs_in([*(s.args for s in self.statements), list(self.outputs)]))
        for s in self.statements:
            if isinstance(s.run, Function):
                s.run.asked = tuple(r in read for r in s.results)
        return self._done(self)

    def close(self) -> None:
        self._modes.close()
        self._tokens.close()


def _leaves_passed_over(ctx: Any, incoming: Sequence[Any]) -> list[int]:
    """The leaves among the inputs of a compiled function to which a pass with these gradients of its outputs does not
    come, though the engine goes on to them."""
    program = differentiable_of(ctx)
    places = () if program is None else program.unreached(incoming)
    return [i for i in places if (given := ctx.given[i]()) is not None and is_leaf(given)]
