"""``pure_callback`` and ``opaque``: Python that no trace sees, as one call of a program, at each run of it."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from .. import refusals
from ..capture.applied import apply
from ..capture.callbacks import VMAP_METHODS, Callback, Like, Rule, Run, Sizes
from ..capture.derived import Gradients
from ..capture.floats import NotSymbolicError
from ..capture.results import hidden_tensor
from ..capture.trace import active_trace
from ..errors import ArgumentError, OpaqueCallError, OptionError
from ..state.lines import user_line
from ..torch_private.functional import from_functional
from ..torch_private.tensors import storage_id, unwrap_transform
from ..trees import Tree, flatten, unflatten
from .custom import bound_by_position
from .decorator import OMITTED, Decorated, applied
from .definition import argument_names, name_of
from .packed import Packed, Place, leaves_like, pack
from .rules import gradients_of, kind_of, require_like

Fn = Callable[..., Any]
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def pure_callback(
    f: Fn,
    like: Any,
    *args: Any,
    vmap_method: str | None = None,
    vjp: Fn | None = None,
    jvp: Fn | None = None,
    **kwargs: Any,
) -> Any:
    """``f(*args, **kwargs)``, Python that no trace sees (NumPy, SciPy), as one call of the program;
    ``jax.pure_callback``.

    ``f`` is given the tensors themselves, detached, and returns tensors, NumPy arrays or numbers that look like
    ``like``: a pytree of tensors (of which sizes, dtype and device matter; ``torch.empty(..., device="meta")`` is one
    without memory, for a result on the device of the arguments) or of objects with a ``shape`` and a ``dtype``. It
    computes its results and does nothing else: it may not run where nobody reads them, may run again for another call,
    and must not write to its arguments, or later to what it returned.

    ``vmap_method``, as in JAX: ``"sequential"`` calls ``f`` for each sample of a batch, ``"expand_dims"`` once, with a
    dimension of size 1 in front of what has no batch dimension, ``"broadcast_all"`` once, with all arguments of the
    size of the batch.

    ``vjp(args, out, cotangents)`` returns a tuple with a cotangent of each argument, ``jvp(args, out, tangents)`` the
    tangent of the result; ``None`` is zero. They are PyTorch, which is traced, and may call back themselves. Reverse
    mode follows from ``jvp`` alone.

    Raises ``OpaqueCallError`` for a result that is not like ``like``, and ``UnsupportedTransformError`` where it is
    differentiated, or batched, and nothing says how. What ``f`` raises reaches the caller as it is.
    """
    spelled = f"fg.pure_callback({name_of(f)}, like, {', '.join(['*args'] * bool(args) + ['**kwargs'] * bool(kwargs))})"
    return _Opaque(f, like, (), vjp, jvp, vmap_method, True, spelled)(*args, **kwargs)


def opaque(
    f: Any = OMITTED,
    *,
    like: Any = OMITTED,
    writes: int | Sequence[int] = (),
    vmap_method: str | None = None,
    vjp: Fn | None = None,
    jvp: Fn | None = None,
) -> Any:
    """``f`` as Python that no trace sees, with its effects: each call of it is one call of the program, in each run of
    it, in order with the others, never dropped, moved or done twice.

    ``like`` says how its result looks (see ``pure_callback``): a pytree, ``None`` where it returns nothing, or a
    function of the arguments that returns one. Where nothing says it, the first call with arguments of such sizes and
    dtypes does, and the call of a compiled function that it is part of is one of eager PyTorch. ``writes`` are the
    positions of the arguments whose tensors it writes to. ``vmap_method``, ``vjp`` and ``jvp`` are those of
    ``pure_callback``; a function that writes has no derivative.
    Without ``f`` it is a decorator: ``@fg.opaque(like=None)``.

    What ``f`` reads of Python state it reads when it runs, and no program assumes it; of a function that stands in the
    code which is compiled, the names are guarded like all that it mentions. What the function around it writes to
    Python state is there when its call is done, not when ``f`` runs. Where a program would have to run again for a
    derivative (``create_graph=True``, a gradient of a gradient of a compiled function), that is refused.
    """
    places = (writes,) if type(writes) is int else writes

    def made(f: Fn) -> _Opaque:
        if like is OMITTED and (places or vmap_method):
            raise ArgumentError(
                f"fg.opaque({name_of(f)}) does not say how its result looks",
                where=user_line(),
                fix=f"fg.opaque({name_of(f)}, like=None) where it returns nothing, like=lambda x: x where its result "
                "is like its argument",
            )
        if not isinstance(places, (tuple, list)) or not all(type(i) is int for i in places):
            raise ArgumentError(
                f"writes={writes!r}", where=user_line(), fix="pass the position of an argument, or a tuple of positions"
            )
        if places and (vjp or jvp):
            raise OptionError(
                "a function that writes to its arguments is given a derivative",
                where=user_line(),
                fix="let it return what it writes: a result has a derivative",
            )
        return _Opaque(f, like, tuple(places), vjp, jvp, vmap_method, False, f"fg.opaque({name_of(f)}, like=...)")

    return applied(made, f)


class _Opaque(Decorated):
    """A function that no trace sees."""

    def __init__(
        self,
        f: Fn,
        like: Any,
        writes: Sequence[int],
        vjp: Fn | None,
        jvp: Fn | None,
        method: str | None,
        is_pure: bool,
        spelled: str,
    ) -> None:
        if method is not None and method not in VMAP_METHODS:
            raise OptionError(
                f"vmap_method={method!r}", where=user_line(), fix=f"one of {', '.join(map(repr, VMAP_METHODS))}"
            )
        functools.update_wrapper(self, f, updated=())  # type: ignore[arg-type]
        del self.__dict__["__wrapped__"]  # what it reads when it runs no program assumes
        self.rules = tuple(rule for rule in (vjp, jvp, like) if callable(rule) and not isinstance(rule, Tensor))
        self.function, self.like, self.writes, self.vjp, self.jvp = f, like, writes, vjp, jvp
        self.method, self.is_pure, self.spelled = method, is_pure, spelled
        self._known: dict[Any, Any] = {}
        """How the result looked for arguments that looked so, where nothing says it."""

    def __repr__(self) -> str:
        return f"<funcgrad opaque {name_of(self.function)}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        name, where = name_of(self.function), user_line()
        function, args = _by_position(self.function, args, kwargs)
        self._require_no_traced_closure(name, where)
        tensors: list[Tensor] = []
        packed = [pack(arg, tensors, path) for path, arg in zip(argument_names(function, len(args)), args, strict=True)]
        like = self.like(*args) if callable(self.like) and not isinstance(self.like, Tensor) else self.like
        if like is OMITTED:
            function, like = self._seen(function, packed, tensors, name, where)
        tree, looks = _looks(like, tensors, name, where)
        numbers = [leaf for arg in packed for leaf in arg.leaves if isinstance(leaf, _SYMBOLS)]
        written = self._written(packed, tensors, name, where)
        layout = _Layout(name, where, tuple(packed), tree, looks)
        call = Callback(
            "callback" if name == "<lambda>" else name, self.spelled, where, _runs(function, layout), looks,
            tuple(numbers),
            tuple(written), self.is_pure, self.vjp and _pulls(self.vjp, layout), self.jvp and _pushes(self.jvp, layout),
            self.method,
        )  # fmt: skip
        trace = active_trace()
        outs = apply(call, tensors if trace is None else [trace.operand(t) for t in tensors])
        for i, now in zip(written, outs[len(looks) :], strict=True):
            tensors[i].copy_(now)
        return unflatten(list(outs[: len(looks)]), tree)

    def _seen(
        self, function: Fn, packed: Sequence[Packed], tensors: Sequence[Tensor], name: str, where: str | None
    ) -> tuple[Fn, Any]:
        """How the result looked when arguments like these were met last; where they were not, and this is no trace,
        the function is called, and what it returned is what it returns. Raises ``DataDependentShapeError`` in a
        trace."""
        looks = [(tuple(t.shape), t.dtype, t.device) for t in tensors]
        if any(isinstance(n, torch.SymInt) for shape, _, _ in looks for n in shape):
            raise NotSymbolicError(f"nothing says how the result of {name} looks for sizes that are symbols")
        others = [leaf for arg in packed for leaf in arg.leaves if not isinstance(leaf, Place)]
        key = repr((looks, [type(v) if isinstance(v, (float, *_SYMBOLS)) else v for v in others]))
        if key in self._known:
            return function, self._known[key]
        below = [unwrap_transform(t).detach().resolve_conj().resolve_neg() for t in tensors]
        if active_trace() is not None or [tuple(t.shape) for t in below] != [shape for shape, _, _ in looks]:
            raise refusals.OPAQUE_UNKNOWN(name, where=where)
        found = function(*(arg.with_leaves(lambda v: below[v.index] if isinstance(v, Place) else v) for arg in packed))
        leaves, tree, _ = flatten(found)
        results = [v if isinstance(v, Tensor) else torch.as_tensor(v) for v in leaves]
        self._known[key] = unflatten([*map(Like.of, results)], tree)
        return lambda *_: found, self._known[key]

    def _require_no_traced_closure(self, name: str, where: str | None) -> None:
        if active_trace() is None:
            return
        function = getattr(self.function, "__func__", self.function)  # what the object of a method holds is its own
        held = (function.args, function.keywords) if isinstance(function, functools.partial) else function
        if isinstance(held, (tuple, types.FunctionType)) and hidden_tensor(held) is not None:
            raise refusals.OPAQUE_CLOSES_OVER(name, self.spelled, where=where)

    def _written(self, packed: Sequence[Packed], tensors: Sequence[Tensor], name: str, where: str | None) -> list[int]:
        n = len(packed)
        if not all(-n <= i < n for i in self.writes):
            raise ArgumentError(
                f"writes={self.writes}, but {name} was called with {n} arguments",
                where=where,
                fix="name positions of them",
            )
        written = [place.index for i in self.writes for place in packed[i].places]
        lies = [_memory(t) for t in tensors] if written else []
        if any(lies[i] == lies[j] for i in written for j in range(len(lies)) if i != j):
            raise refusals.OPAQUE_ALIASED_WRITE(name, where=where)
        return written


def _by_position(f: Fn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Fn, tuple[Any, ...]]:
    """The function, with the arguments that have no position, and the others by position."""
    if not kwargs:
        return f, args
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except ValueError:  # a function in C without a signature
        bound = None
    rest = kwargs if bound is None else bound.kwargs
    if any(isinstance(leaf, (Tensor, *_SYMBOLS)) for leaf in flatten(rest)[0]):
        return f, bound_by_position(f, args, kwargs)
    return functools.partial(f, **rest) if rest else f, args if bound is None else bound.args


def _memory(tensor: Tensor) -> object:
    trace, below = active_trace(), unwrap_transform(tensor)
    if trace is not None:
        below = from_functional(unwrap_transform(trace.operand(tensor)))
    return storage_id(below)


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _Layout:
    """How the arguments of a call are made of its tensors and numbers, and its result of what it returns."""

    name: str
    where: str | None
    args: tuple[Packed, ...]
    tree: Tree
    looks: tuple[Like, ...]

    def arguments(self, tensors: Sequence[Tensor], numbers: Sequence[Any] = ()) -> tuple[Any, ...]:
        rest = iter(numbers)

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Place):
                return tensors[leaf.index]
            return next(rest) if numbers and isinstance(leaf, _SYMBOLS) else leaf

        return tuple(arg.with_leaves(value) for arg in self.args)

    def result(self, tensors: Sequence[Any]) -> Any:
        return unflatten(list(tensors), self.tree)

    @property
    def packed_result(self) -> Packed:
        """The result as a pytree of places."""
        leaves, _, paths = flatten(self.result(range(len(self.looks))))
        return Packed(self.tree, tuple(Place(i, path) for i, path in zip(leaves, paths, strict=True)))


def _looks(like: Any, tensors: Sequence[Tensor], name: str, where: str | None) -> tuple[Tree, tuple[Like, ...]]:
    """How the results look: of a pytree of tensors, or of what has a shape and a dtype."""
    leaves, tree, paths = flatten(like, is_leaf=lambda v: hasattr(v, "shape") and hasattr(v, "dtype"))
    found = []
    for leaf, path in zip(leaves, paths, strict=True):
        dtype = getattr(leaf, "dtype", None)
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError(
                f"like{path} of {name} is {kind_of(leaf)}, which does not say how a result looks",
                where=where,
                fix="a tensor like the result (of sizes, dtype and device): torch.empty(3, 4), or None for no result",
            )
        device = getattr(leaf, "device", None)
        if device is None or device.type == "meta":
            device = tensors[0].device if tensors else torch.device("cpu")
        found.append(Like(tuple(leaf.shape), dtype, device))
    return tree, tuple(found)


def _runs(f: Fn, layout: _Layout) -> Run:
    """The function, of real tensors and numbers; what it returns is checked."""
    n = sum(len(arg.places) for arg in layout.args)

    def run(values: Sequence[Any], shapes: Sizes) -> list[Tensor]:
        tensors = [t.detach().resolve_conj().resolve_neg() for t in values[:n]]
        found = f(*layout.arguments(tensors, values[n:]))
        leaves, tree, paths = flatten(found)
        if tree != layout.tree:
            raise OpaqueCallError(
                f"{layout.name} returned {tree}, and like says {layout.tree}",
                where=layout.where,
                fix="let both have one structure",
            )
        held = [t.untyped_storage() for t in tensors]
        results = []
        for leaf, look, shape, path in zip(leaves, layout.looks, shapes, paths, strict=True):
            result = leaf if isinstance(leaf, Tensor) else _from_python(leaf, look)
            wanted = evolve(look, shape=tuple(shape))
            if Like.of(result) != wanted:
                raise _unlike(layout, path, result, wanted)
            result = result.detach().resolve_conj().resolve_neg().contiguous()
            shared = any(_share(result.untyped_storage(), storage) for storage in held)
            results.append(result.clone() if shared else result)
            held.append(results[-1].untyped_storage())
        return results

    return run


def _from_python(value: Any, look: Like) -> Tensor:
    """A NumPy array, which has a dtype, or a number of Python, which has none, as a tensor."""
    tensor = torch.as_tensor(value, device=look.device)
    is_number = type(value) in (bool, int, float, complex) and torch.can_cast(tensor.dtype, look.dtype)
    return torch.as_tensor(value, dtype=look.dtype, device=look.device) if is_number else tensor


def _unlike(layout: _Layout, path: str, result: Tensor, like: Like) -> OpaqueCallError:
    found = Like.of(result)
    if (found.shape, found.dtype) == (like.shape, like.dtype):
        return OpaqueCallError(
            f"{layout.name} returned a tensor on {result.device}{path and f' at {path}'}, and like says {like.device}",
            where=layout.where,
            fix=f'return result.to("{like.device}")',
        )
    cast = f"result.to({like.dtype})" if found.shape == like.shape else f"a result of shape {list(like.shape)}"
    return OpaqueCallError(
        f"{layout.name} returned {found}{path and f' at {path}'}, and like says {like}",
        where=layout.where,
        fix=f"return {cast}, or let like be {found}",
    )


def _share(a: torch.UntypedStorage, b: torch.UntypedStorage) -> bool:
    """Whether memory overlaps: that of a NumPy array is another storage over the same bytes."""
    start, other = a.data_ptr(), b.data_ptr()
    return start < other + b.nbytes() and other < start + a.nbytes()


# ── derivatives ──────────────────────────────────────────────────────────────────────────────────────────────────


def _pulls(rule: Fn, layout: _Layout) -> Rule:
    def pulled(tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients) -> Gradients:
        outs = outs[: len(layout.looks)]
        own = [Like.of(out).filled(cotangent) for out, cotangent in zip(outs, cotangents, strict=False)]
        found = rule(layout.arguments(tensors), layout.result(outs), layout.result(own))
        return gradients_of(layout.args, tensors, found, rule)

    return pulled


def _pushes(rule: Fn, layout: _Layout) -> Rule:
    def pushed(tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        given = tuple(arg.tangents(lambda i: Like.of(tensors[i]).filled(tangents[i])) for arg in layout.args)
        found = leaves_like(
            layout.packed_result, rule(layout.arguments(tensors), layout.result(outs), given), rule, "a tangent"
        )
        return [
            require_like(t, Like.of(out), rule, "a tangent of the result") for t, out in zip(found, outs, strict=True)
        ]

    return pushed
