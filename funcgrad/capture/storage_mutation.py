"""Other memory, and other sizes: what ``x.data = y``, ``x.set_(y)``, ``x.resize_(n)`` and ``out=x`` of other sizes do
to a tensor of the trace; and ``x.t_()``, ``x.unsqueeze_(0)`` and their like.

A functional tensor is not told of it: its sizes would change, and what it computes would not. From then on another
tensor stands for it (``Lineage.give``, ``Lineage.replace``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor

from .. import refusals
from ..autograd_state import bump_version, is_stale, stale_view, version_of, with_history_of, without_derivative
from ..errors import FuncgradError
from ..graphs import type_text
from ..state.lines import user_line
from ..subclasses import Wrapping, inner_tensors, is_traced, with_inner
from ..torch_private.autograd import creation_meta, set_creation_meta
from ..torch_private.fakes import without_modes
from ..torch_private.functional import FunctionalTensor, from_functional
from ..torch_private.modes import TorchDispatchMode, without_function_modes
from ..torch_private.operators import is_pointwise_function, without_overload
from ..torch_private.tensors import is_wrapper_subclass
from ..trees import flatten, tree_map
from .around import with_memory_of
from .scattered import geometry, root_of
from .torch_patches import set_
from .trace import Trace
from .views import Geometry, HowGiven, is_dense
from .writes import one_of, refuse_overlap, refuse_reading, require_apart


def give_data(trace: Trace, original: Any, tensor: Tensor, value: Any, how: HowGiven = "data") -> None:
    """``tensor``, which stands for ``original``, is given the memory of ``value``; it keeps its history."""
    if how == "data" and (value is tensor or _looks_the_same(trace, value, tensor)):
        return  # x.data = x; x.data += y
    if how == "data" and is_wrapper_subclass(tensor) and _kind_of(tensor) == _kind_of(value):
        return  # a wrapper has no data of its own: it keeps its inner tensors
    if not (
        isinstance(tensor, FunctionalTensor) and isinstance(value, FunctionalTensor) and tensor.device == value.device
    ):
        raise refusals.MEMORY_OF_OTHER_CLASS(type_text(tensor), type_text(value), where=user_line())
    if tensor.requires_grad and not (value.is_floating_point() or value.is_complex()):
        raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
    found_anew = tensor._is_view() and tensor.requires_grad and how != "data"  # its history, by how it lies in memory
    forbidden = is_stale(tensor) or (found_anew and creation_meta(tensor).name != "DEFAULT")
    own = original if is_traced(original) else trace.lift(original)
    if trace.lineage.given(own) is not None and trace.lineage.how_given(own).how != how:
        raise refusals.MEMORY_IN_TWO_WAYS(where=user_line())
    for counted in {id(t): t for t in (own, tensor)}.values() if how != "data" else ():
        bump_version(counted)  # what was saved of it, or of what shares its counter, is out of date
    memory = value.data  # a version counter of its own
    with trace.forgotten.unheard():
        by = stale_view(memory, tensor) if forbidden else with_history_of(memory, tensor)
    if how == "data":
        trace.forgotten.given(lambda t: trace.lineage.named(t) is own, f"a tensor {type_text(tensor)}")
    if forbidden:
        trace.forgotten.forbidden(by)
    elif found_anew or (tensor.requires_grad and (tensor.shape, tensor.dtype) != (by.shape, by.dtype)):
        trace.forgotten.misfits(by, f"a tensor {type_text(tensor)}")
    trace.lineage.give(own, by, memory, how)
    if id(own) not in trace.inputs:
        # it keeps the version counter it shares with what it was a view of, or what was saved of it
        trace.writes.link([tensor, by])
        if not forbidden and (tensor._is_view() or any(view._is_view() for view in trace.lineage.views_of(tensor))):
            trace.forgotten.parted(tensor, by, trace.lineage.version_taken(tensor), f"a tensor {type_text(tensor)}")
    trace.writes.spread_versions()


def _kind_of(tensor: Tensor) -> Any:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _looks_the_same(trace: Trace, value: Any, tensor: Any) -> bool:
    """Whether a value is a look at a tensor, as that looks itself."""
    if not (is_traced(value) and is_traced(tensor)):
        return False
    same: bool = trace.lineage.path(value, lambda t: t is tensor, True)[0] is tensor
    return same and geometry(trace.lineage, value) == geometry(trace.lineage, tensor)


def _set(trace: Trace, original: Any, tensor: Tensor, source: Any = None, *more: Any) -> Any:
    if more or (source is not None and not isinstance(source, Tensor)):
        raise refusals.STORAGE_GIVEN(where=user_line())
    # in later runs, inputs are leaves
    if trace.graph is None and tensor.requires_grad and torch.is_grad_enabled():
        _require_writable(tensor)
    source = tensor.new_empty(0) if source is None else source
    if source.dtype != tensor.dtype:
        raise RuntimeError(f"Could not set tensor of type {source.dtype} to a tensor of type {tensor.dtype}")
    if not torch.is_grad_enabled() or not (source.requires_grad or tensor.requires_grad):
        if source is tensor:
            bump_version(tensor)  # and nothing else
        else:
            give_data(trace, original, tensor, source, "set_")
        return original
    own = original if is_traced(original) else trace.lift(original)
    of_input = tensor._is_view() and id(own) not in trace.inputs
    of_input = of_input and id(trace.lineage.path(tensor, lambda t: id(t) in trace.inputs)[0]) in trace.inputs
    if trace.enables_grad_itself or trace.lineage.given(own) is not None or of_input:
        raise refusals.HISTORY_GIVEN(where=user_line())
    if trace.graph is None:
        _ = source.grad_fn  # raises where autograd forbids to use it
        trace.forgotten.severed(tensor, f"a tensor {type_text(tensor)}")
    memory = source.data
    for counted in {id(t): t for t in (own, tensor)}.values():
        bump_version(counted)
    trace.lineage.give(own, without_derivative(memory), memory, "set_, tracked")
    trace.writes.spread_versions()
    return original


class _AllowedError(Exception):
    """Autograd lets a write go on to its operator."""


class _Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, *_: Any) -> Any:
        raise _AllowedError


def _require_writable(tensor: Tensor) -> None:
    """Raises as autograd does before it writes, to what it takes for a leaf: also a view, if nobody asked for its
    history since its base got one. To ask for ``is_leaf`` would be to ask for that."""
    with contextlib.suppress(_AllowedError), _Looking():  # type: ignore[no-untyped-call]
        tensor.zero_()


def _resize(trace: Trace, original: Any, tensor: Tensor, *size: Any, **more: Any) -> Any:
    shape = torch.Size(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)
    if tensor.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    if shape == tensor.shape and not more:
        return original
    return _with_sizes(trace, original, tensor, shape, **more)


def _with_sizes(trace: Trace, original: Any, tensor: Tensor, shape: torch.Size, **more: Any) -> Any:
    """The same without a look at whether it requires grad: under no_grad, kernels do so to what ``out=`` names."""
    if not more and shape.numel() <= tensor.numel() and is_dense(tensor):
        restride(trace, Tensor.as_strided_, original, [tensor, shape, _contiguous(shape)], {})
        return original
    if trace.lineage.given(original) is not None:
        raise refusals.RESIZES_GIVEN(where=user_line())
    room = _room(trace, tensor)
    look = Geometry(shape, tuple(_contiguous(shape)), geometry(trace.lineage, tensor).offset, tensor.dtype)
    if trace.graph is None and not more and (tensor.numel() or room):
        with_memory_of(trace, tensor, look)
    root = root_of(trace.lineage, tensor)
    if not more and is_dense(root) and look.end <= Geometry.of(root).end:
        restride(trace, Tensor.as_strided_, original, [tensor, shape, _contiguous(shape)], {})
        return original
    if tensor.requires_grad:
        raise refusals.OUT_REQUIRES_GRAD(where=user_line())
    inside = is_traced(original) and id(original) not in trace.inputs and trace.lineage.source(tensor) is not None
    if more or inside or not is_dense(tensor) or room > tensor.numel():
        raise refusals.RESIZED_AROUND(where=user_line())
    own = original if is_traced(original) else trace.lift(original)
    views = [view for view in trace.lineage.views_of(own) if trace.lineage.named(view) is view]
    trace.forgotten.left_behind(views, f"a tensor {type_text(own)}")
    order = sorted(range(tensor.dim()), key=lambda d: tensor.stride(d), reverse=True)
    flat = tensor.clone().permute(order).reshape(-1)  # as it lies in memory; its views are no views of the tensor
    if shape.numel() > flat.numel():
        flat = torch.cat([flat, flat.new_zeros(shape.numel() - flat.numel())])
    give_data(trace, original, tensor, flat[: shape.numel()].clone().view(shape), "set_" if tensor.numel() else "data")
    return original


def _room(trace: Trace, tensor: Tensor) -> int | SymInt:
    """How many elements its memory holds from the first one of a tensor on."""
    given, _, _ = trace.lineage.path(tensor, lambda t: id(t) in trace.inputs, through=True)
    before = geometry(trace.lineage, tensor).offset - geometry(trace.lineage, given).offset
    if id(given) in trace.inputs:
        return trace.questions.room(given) - before
    return given.numel() - before if is_dense(given) else tensor.numel()


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return strides[: len(shape)]


def _resize_as(trace: Trace, original: Any, tensor: Tensor, like: Tensor, **more: Any) -> Any:
    return _resize(trace, original, tensor, *like.shape, **more)


RESTRIDES = {
    getattr(owner, name): getattr(torch.Tensor, name.removesuffix("_"))
    for owner in (torch.Tensor, torch)
    for name in ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "detach_")
    if hasattr(owner, name)
}
"""Functions that change how their argument looks, and the views that look so."""


def restride(trace: Trace, func: Any, original: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
    """A tensor that changes how it looks (``t_``) is replaced by a view that looks so.

    Autograd goes by the view a tensor was taken as; a functional tensor that looks otherwise than it was taken breaks
    it.
    """
    tensor = args[0]
    own = original if is_traced(original) else trace.lift(original)
    if _looks_as_it_did(func, *args, **kwargs):
        bump_version(tensor)
        trace.writes.spread_versions()
        return original  # type: ignore[no-any-return]
    if id(tensor) in trace.lineage.switched_on:
        raise refusals.VIEW_SWITCHED_AND_RESTRIDED(where=user_line())
    first = trace.graph is None  # in later runs, it may be changed
    if first and func is Tensor.detach_ and own._is_view():
        return func(own)  # type: ignore[no-any-return] # raises
    # autograd lets nobody read it from now on
    forbidden = tensor._is_view() and creation_meta(tensor).name != "DEFAULT"
    if first:
        _require_allowed(func, tensor, *args[1:], **kwargs)
    with torch.set_grad_enabled(not forbidden or torch.is_grad_enabled()):
        by = RESTRIDES[func](*args, **kwargs)
    if by is not tensor:
        if forbidden:
            set_creation_meta(by, creation_meta(tensor))
        if first and func is not Tensor.detach_:
            real, views = trace.reals.get(id(own), own), functools.partial(trace.lineage.views_of, own)
            trace.forgotten.restrided(func, real, own, tensor, by, views)
        trace.lineage.replace(own, by, torch.is_grad_enabled())
        for inner, now in zip(with_inner(own)[1:], with_inner(by)[1:], strict=True):
            if now is not inner and trace.lineage.source(now) is None:
                raise _its_own_way(func, tensor)  # it copies
            if now is not inner:
                trace.lineage.replace(inner, now, torch.is_grad_enabled())
    if func is not Tensor.detach_:
        bump_version(tensor)
        trace.writes.spread_versions()
    return original  # type: ignore[no-any-return]


def _require_allowed(func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
    """Raises where a tensor may not be changed so: as eager PyTorch, or where the class of a wrapper subclass makes of
    it something else than the view that is to stand for it."""
    is_wrapper = is_wrapper_subclass(tensor)
    if func is Tensor.detach_ or not (torch.is_grad_enabled() or is_wrapper):
        return  # autograd does not look
    if not is_wrapper:
        _require_writable(tensor)
    probe = tensor.view_as(tensor)
    if probe._is_view() and tensor._is_view():
        set_creation_meta(probe, creation_meta(tensor))
    # the memory of a stand-in ends where it does
    in_place = func is Tensor.as_strided_ and not is_wrapper
    func(probe, *((probe.shape, probe.stride()) if in_place else args), **kwargs)
    if is_wrapper and _looks_of(probe) != _looks_of(RESTRIDES[func](tensor, *args, **kwargs)):
        raise _its_own_way(func, tensor)


def _its_own_way(func: Any, tensor: Tensor) -> FuncgradError:
    return refusals.RESTRIDES_ITS_OWN_WAY(
        type(tensor).__name__, func.__name__, func.__name__.removesuffix("_"), where=user_line()
    )


def _looks_of(tensor: Tensor) -> Any:
    """What there is to see of a tensor without its values: its sizes, and those of what it is made of."""
    own = [(t, t.__tensor_flatten__()[1] if is_wrapper_subclass(t) else None) for t in with_inner(tensor)]  # type: ignore[attr-defined]
    return [(type(t), t.shape, t.stride(), t.storage_offset(), context) for t, context in own]


def _looks_as_it_did(func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Whether a call leaves the sizes and strides of a tensor as they are (``x.t_()`` of one dimension) and autograd
    does not follow it: it counts as a write, and changes nothing."""
    if func is Tensor.detach_ or (torch.is_grad_enabled() and tensor.requires_grad):
        return False
    wrapping, fakes = Wrapping.of(tensor), [from_functional(inner) for inner in inner_tensors(tensor)]
    with without_modes(), without_function_modes(), torch.no_grad():
        own = fakes[0] if wrapping is None else wrapping.build(iter(fakes))
        by = RESTRIDES[func](own, *args, **kwargs)
    return bool((by.shape, by.stride(), by.storage_offset()) == (own.shape, own.stride(), own.storage_offset()))


GIVES: dict[Any, Callable[..., Any]] = {set_: _set, Tensor.resize_: _resize, Tensor.resize_as_: _resize_as}
"""Functions that give their argument other memory."""


_NUMBERS = {"alpha", "beta", "value"}
"""Arguments that are numbers, of which a function reads the value where it is given a tensor."""


def call_with_out(trace: Trace, func: Any, original: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call that writes to what ``out=`` names (``original``, for the caller), which may have other sizes, strides or
    another dtype.

    Raises where eager PyTorch does not cast what is computed.
    """
    # here: fakes are asked what comes out, and know no value
    rest = {k: v.item() if k in _NUMBERS and isinstance(v, Tensor) else v for k, v in kwargs.items() if k != "out"}
    outs = kwargs["out"] if isinstance(kwargs["out"], tuple) else (kwargs["out"],)
    func = without_overload(func)
    if func in _DRAWS or not all(isinstance(out, FunctionalTensor) for out in outs):
        return func(*args, **rest, out=kwargs["out"])
    # here: what functionalisation has put off is recorded
    plain, plain_rest = tree_map(lambda v: from_functional(v) if isinstance(v, FunctionalTensor) else v, (args, rest))
    with without_modes(), without_function_modes(), trace.fakes, torch.no_grad():
        likes = func(*plain, **plain_rest)
    likes = [likes] if isinstance(likes, Tensor) else likes
    if any(out.dtype != like.dtype for out, like in zip(outs, likes, strict=True)):
        _refuse_dtypes(func, args, rest, likes, kwargs["out"])
    named = original if isinstance(original, tuple) else (original,)
    read = flatten((args, rest))[0] if trace.writes.first_run else ()
    looks_first = is_pointwise_function(func)  # whether eager PyTorch looks for overlap before it resizes
    for out, like in zip(outs, likes, strict=True):
        if looks_first and out.shape != like.shape:
            require_apart(func, out, read)
    fitted = tuple(_fit(trace, *one) for one in zip(named, outs, likes, strict=True))
    for out, now in zip(outs, fitted, strict=True):
        if out.numel() < now.numel() or (looks_first and out.shape != now.shape):
            refuse_reading(func, now, read)
    outs = fitted
    refused = torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in flatten((args, rest, outs))[0]
    )
    if refused or all(out.is_contiguous() for out in outs):
        before = list(map(version_of, outs))
        result = func(*args, **rest, out=outs if isinstance(original, tuple) else outs[0])
        missed = [i for i, out in enumerate(outs) if out.numel() and version_of(out) == before[i]]
        # it wrote to what functionalisation takes for another tensor (kron, matrix_rank)
        if missed and func not in _LEAVES_OUT:
            values = func(*args, **rest)
            for i in missed:
                outs[i].copy_([values][i] if isinstance(values, Tensor) else values[i])
        return result
    values = func(*args, **rest)  # its functional form returns strides of its own
    for out, value in zip(outs, [values] if isinstance(values, Tensor) else values, strict=True):
        if trace.writes.first_run:
            refuse_overlap(func, out, flatten((args, rest))[0])
        out.copy_(value)
    return values if isinstance(original, tuple) else outs[0]


def _refuse_dtypes(func: Any, args: Any, rest: Mapping[str, Any], likes: Sequence[Tensor], out: Any) -> None:
    """Raise what a kernel raises that is given other dtypes to write to than those it computes (``mm``), where the
    functional form would go through: it is asked, of one element, where it takes one."""

    def ask(dtypes: Sequence[torch.dtype]) -> None:
        own = tuple(torch.empty(0, dtype=dtype) for dtype in dtypes)
        func(*one_of(args, 0), **{k: one_of(v, 0) for k, v in rest.items()}, out=own if is_tuple else own[0])

    is_tuple = isinstance(out, tuple)
    with without_modes(), without_function_modes(), torch.no_grad():
        try:
            ask([like.dtype for like in likes])
        except Exception:  # a size or an index that one element has not
            return
        ask([t.dtype for t in out] if is_tuple else [out.dtype])


def _fit(trace: Trace, original: Any, out: Tensor, like: Tensor) -> Tensor:
    if not torch.can_cast(like.dtype, out.dtype):
        wide, name = (str(d).removeprefix("torch.").capitalize() for d in (like.dtype, out.dtype))
        raise RuntimeError(f"result type {wide} can't be cast to the desired output type {name}")
    if like.shape == out.shape or (torch.is_grad_enabled() and out.requires_grad):
        return out
    if (
        out.numel()
        or not like.numel()
        or trace.lineage.given(original) is not None
        or trace.lineage.is_looked_at(out)
        or (id(trace.lineage.named(out)) not in trace.inputs and trace.lineage.source(out) is not None)
        or _room(trace, out)
    ):
        if not like.is_contiguous():
            raise refusals.OUT_TRANSPOSED(where=user_line())
        _with_sizes(trace, original, out, like.shape)
    else:
        give_data(trace, original, out, out.new_empty_strided(like.shape, like.stride()))
    return trace.lineage.current(original if is_traced(original) else trace.lift(original))


_LEAVES_OUT = {torch.fft.ihfft2, torch.fft.ihfftn}
"""Of what some calls leave unwritten in eager PyTorch, too (over one dimension)."""

_DRAWS = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial}
