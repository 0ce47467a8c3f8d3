"""Calls that PyTorch makes with the value of a size, said in another way, in which a symbol stays one.

The same is computed: of ``linspace`` and ``lerp`` by their formulas, of ``torch.tensor(n)`` by ``full``, of a pooling
in one dimension by one in two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor
from torch.nn import functional

from ..torch_private.symbols import is_size
from .floats import fixed

_NUMBERS = SymInt, SymFloat, int, float
_OPTIONS = {"dtype", "device", "requires_grad"}


def _are_symbolic(values: Sequence[Any]) -> bool:
    return any(isinstance(v, (SymInt, SymFloat)) for v in values)


def _made_of(data: Any, dtype: torch.dtype | None, device: Any) -> Tensor:
    """A tensor of a number, or of nested lists of them."""
    if isinstance(data, (list, tuple)):
        if dtype is None and not all(isinstance(v, (SymInt, int)) for v in _flat(data)):
            dtype = torch.get_default_dtype()
        return torch.stack([_made_of(v, dtype, device) for v in data])
    if dtype is None:
        dtype = torch.int64 if isinstance(data, (SymInt, int)) else torch.get_default_dtype()
    if dtype.is_floating_point and isinstance(data, (SymFloat, float)):
        # rounded as data is, where full refuses what overflows
        return torch.full((), data, dtype=torch.float64, device=device).to(dtype)  # type: ignore[arg-type]
    return torch.full((), data, dtype=dtype, device=device)


def _flat(data: Any) -> list[Any]:
    return [n for v in data for n in _flat(v)] if isinstance(data, (list, tuple)) else [data]


def _of_data(make: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.tensor`` and the like of sizes, and of what is computed of them."""

    def call(*given: Any, **more: Any) -> Any:
        numbers = _flat(given[-1])
        if not _are_symbolic(numbers) or not all(isinstance(n, _NUMBERS) for n in numbers) or more.keys() - _OPTIONS:
            return make(*given, **more)
        like = (
            {"dtype": given[0].dtype, "device": given[0].device}
            if make is Tensor.new_tensor
            else {"dtype": None, "device": None}
        )
        options = like | {name: value for name, value in more.items() if value is not None}
        made = _made_of(given[-1], options["dtype"], options["device"])
        return made.requires_grad_() if options.get("requires_grad") else made

    return call


def _is_counted(steps: Any, out: Any, *ends: Any) -> bool:
    return (
        is_size(steps) and bool(steps > 1) and out is None and not any(isinstance(v, (Tensor, complex)) for v in ends)
    )


def _linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, out: Any = None, **like: Any) -> Tensor:
    """As PyTorch computes it: from both ends to the middle."""
    kind = dtype or torch.get_default_dtype()
    if not _is_counted(steps, out, start, end) or not kind.is_floating_point:
        return torch.linspace(start, end, steps, **({"dtype": dtype, **like} if out is None else {"out": out}))
    at = torch.arange(
        steps,
        dtype=torch.promote_types(kind, torch.float32),
        **{k: v for k, v in like.items() if k != "requires_grad"},
    )
    step = (end - start) / (steps - 1)
    found = torch.where(at < steps // 2, start + step * at, end - step * (steps - 1 - at)).to(kind)
    return found.requires_grad_() if like.get("requires_grad") else found


def _logspace(
    start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, out: Any = None, **like: Any
) -> Tensor:
    if not _is_counted(steps, out, start, end, base) or (dtype is not None and not dtype.is_floating_point):
        given = {"out": out} if out is not None else {"dtype": dtype, **like}
        return torch.logspace(start, end, steps, base, **given)
    return torch.pow(base, _linspace(start, end, steps, dtype=dtype, **like))


def _triangle(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``triu_indices`` and ``tril_indices``: row by row, as many places as are on this side of a diagonal."""
    is_upper = make is torch.triu_indices

    def call(row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
        numbers = row, col, offset
        if more or not _are_symbolic(numbers) or not all(isinstance(n, (SymInt, int)) for n in numbers):
            return make(row, col, offset, dtype=dtype or torch.int64, device=device, **more)
        ends = torch.arange(row, device=device) + (offset if is_upper else offset + 1)
        ends = ends.clamp(min=0).clamp(max=col)  # where a row ends below, or begins above
        counts = col - ends if is_upper else ends
        before = counts.cumsum(0)
        n = row * col - _places_below(row, col, offset - 1) if is_upper else _places_below(row, col, offset)
        at = torch.arange(n, device=device)
        rows = torch.searchsorted(before, at, right=True)
        columns = at - (before - col if is_upper else before - counts)[rows]
        return torch.stack([rows, columns]).to(dtype or torch.int64)

    return call


_UPPER = _triangle(torch.triu_indices)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Of two."""
    if r != 2 or input.dim() != 1 or not _are_symbolic(input.shape):
        return torch.combinations(input, r, with_replacement)
    n = input.shape[0]
    return torch.stack([input[at] for at in _UPPER(n, n, int(not with_replacement), device=input.device)], 1)


def _places_below(row: Any, col: Any, offset: Any) -> Any:
    """How many places are on a diagonal and below."""
    full = min(max(row + offset + 1 - col, 0), row)  # rows that are below it as a whole
    first = max(-offset, 0)
    part = max(row - full - first, 0)
    return full * col + (part * (2 * (first + offset + 1) + part - 1)) // 2


def _max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *rest: Any, **more: Any
) -> Any:
    """A pooling in two dimensions, of which one is of size 1."""
    if more.get("return_indices", any(rest[1:])) or input.dim() not in (2, 3) or not _are_symbolic(input.shape):
        pool: Any = functional.max_pool1d
        return pool(input, kernel_size, stride, padding, dilation, *rest, **more)
    strides = kernel_size if stride is None or stride == [] else stride
    wide = (1, _one(kernel_size)), (1, _one(strides)), (0, _one(padding)), (1, _one(dilation))
    more.pop("return_indices", None)
    return functional.max_pool2d(input.unsqueeze(-2), *wide, *rest[:1], **more).squeeze(-2)


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _attention(query: Tensor, *given: Any, scale: Any = None, **more: Any) -> Tensor:
    """Scaled before, where the scale is a symbol."""
    attention: Any = functional.scaled_dot_product_attention
    if not isinstance(scale, SymFloat):
        return attention(query, *given, scale=scale, **more)  # type: ignore[no-any-return]
    return attention(query.mul(scale), *given, scale=1.0, **more)  # type: ignore[no-any-return, arg-type]


_DIFFERENTIATED = torch.float32, torch.float64


def _has_history(*tensors: Any) -> bool:
    """Whether derivatives are taken, in C++ with the value of a number, of tensors that lose nothing in another
    order."""
    return all(isinstance(t, Tensor) and t.dtype in _DIFFERENTIATED for t in tensors) and any(
        t.requires_grad for t in tensors
    )


_OF_A_VANISHING_DERIVATIVE = 0, 1, 2, 3
"""Numbers of which PyTorch knows that a derivative of the power vanishes, one to four times differentiated; of a tensor
it masks the first that does, of which the next is nan at zero."""


def _pow(base: Any, exponent: Any, **more: Any) -> Tensor:
    """With a tensor of no dimensions in the place of a number, which its derivatives compute with."""
    tensor, number = (base, exponent) if isinstance(base, Tensor) else (exponent, base)
    if not isinstance(number, SymFloat) or not _has_history(tensor):
        return torch.pow(base, exponent, **more)  # type: ignore[no-any-return]
    if any(number == n for n in _OF_A_VANISHING_DERIVATIVE):
        as_it_is = fixed(number)
        return torch.pow(tensor, as_it_is) if tensor is base else torch.pow(as_it_is, tensor)
    as_tensor = _made_of(number, torch.float64, tensor.device)
    wide = tensor if tensor.dim() else tensor.unsqueeze(0)  # else its dtype would be that of both
    found = torch.pow(wide, as_tensor) if tensor is base else torch.pow(as_tensor, wide)
    return found if tensor.dim() else found.squeeze(0)


def _lerp(start: Any, end: Any, weight: Any, **more: Any) -> Tensor:
    """By its formula, as PyTorch computes it."""
    if not isinstance(weight, SymFloat) or not _has_history(start, end):
        return torch.lerp(start, end, weight, **more)
    by: Any = weight
    found: Tensor = start + by * (end - start) if abs(by) < 0.5 else end - (end - start) * (1 - by)
    return found


def _item(tensor: Tensor, at: Any) -> Any:
    """An item by a size, which is a view by ``select``."""
    taken, rest = _selected(tensor, at)
    return taken[rest] if rest != () else taken


def _set_item(tensor: Tensor, at: Any, value: Any) -> None:
    taken, rest = _selected(tensor, at)
    taken[... if rest == () else rest] = value


def _selected(tensor: Tensor, at: Any) -> tuple[Tensor, Any]:
    """What is left of a tensor where sizes index it, and what else it is indexed by: dimensions are counted from the
    nearer end."""
    items = at if isinstance(at, tuple) else (at,)
    if not any(map(is_size, items)):
        return tensor, items
    dim, rest = 0, list[Any]()
    total = sum(map(_consumed, items))
    for item in items:
        if is_size(item):
            tensor, total = tensor.select(dim, item), total - 1
            continue
        rest.append(item)
        dim += tensor.dim() - total if item is ... else _consumed(item)
    return tensor, tuple(rest)


def _consumed(item: Any) -> int:
    """How many dimensions of a tensor an index takes."""
    if item is None or item is ... or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1


OF_SIZES: dict[Any, Callable[..., Any]] = {
    **{make: _of_data(make) for make in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)},
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.triu_indices: _UPPER,
    torch.tril_indices: _triangle(torch.tril_indices),
    torch.combinations: _combinations,
    functional.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    functional.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _pow),
    Tensor.__rpow__: lambda exponent, base: _pow(base, exponent),
    **dict.fromkeys((torch.lerp, Tensor.lerp), _lerp),
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
}
"""Functions called in another way where sizes are symbols."""
