"""How torch writes tensors down."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

_tensor_str: Any = torch._tensor_str
_repr: Any = Tensor.__repr__
_OPENS = "tensor("
_SUFFIX = re.compile(r",\s+(?=\w+=)")


def contents_of(tensor: Tensor) -> str:
    """The values of a tensor, as they stand in its text."""
    return str(_tensor_str._tensor_str(tensor, len(_OPENS))) if tensor.numel() else "[]"


def text_of(like: Tensor, contents: str, knows: str | None) -> str:
    """The text of a tensor with these values, of which no values are asked. ``knows``: what it says of autograd."""
    text = str(_repr(like, tensor_contents=contents))
    if knows is None:
        return text
    opened = _OPENS + contents
    suffixes = [suffix for suffix in _SUFFIX.split(text[len(opened) : -1]) if suffix]
    return str(_tensor_str._add_suffixes(opened, [*suffixes, knows], len(_OPENS), False))


def print_options() -> tuple[tuple[str, Any], ...]:
    """What ``torch.set_printoptions`` has set."""
    return tuple(vars(_tensor_str.PRINT_OPTS).items())


def set_print_options(options: tuple[tuple[str, Any], ...]) -> None:
    """See ``print_options``."""
    vars(_tensor_str.PRINT_OPTS).update(options)
