"""Sizes and strides of torch's tensors in a trace, as sizes of ours."""

from __future__ import annotations

from typing import Any

from torch import SymInt

from ..torch_private.symbols import shape_environment
from .sizes import plain, sizes_of


def size_text(value: Any) -> str:
    """A size as one reads it; where it is symbolic, in terms of what it is a size of."""
    return sizes_of(shape_environment(value)).text_of(value) if isinstance(value, SymInt) else str(value)


def shape_of(tensor: Any) -> tuple[Any, ...]:
    """The sizes of a tensor of a trace, each a number or a ``Size``."""
    return tuple(map(plain, tensor.shape))


def strides_of(tensor: Any) -> tuple[Any, ...]:
    return tuple(map(plain, tensor.stride()))


def symbols_of(value: SymInt) -> list[str]:
    """The names of all symbols there are where a size of torch's is from."""
    return sizes_of(shape_environment(value)).symbols
