"""Calls of a graph, and their values, as one reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, dtype
from torch.fx import Node

from .graph_primitives import scalar
from .symbolic.sizes import hint
from .symbolic.torch_sizes import size_text
from .torch_private.operators import is_operator
from .torch_private.tensors import is_wrapper_subclass

_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip


def type_now(value: Any) -> str:
    """``type_text``, with what symbolic sizes are in the call that is compiled."""
    return type_text(value, hint)


def type_text(value: Any, size_of: Callable[[Any], object] = size_text) -> str:
    """``f32[3, 4]`` for a tensor; dtype and sizes."""
    if isinstance(value, Tensor):
        short = str(value.dtype).removeprefix("torch.")
        kind = f"{type(value).__name__} " if is_wrapper_subclass(value) else ""
        return f"{kind}{_SHORT.get(short, short)}[{', '.join(str(size_of(n)) for n in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(type_text(v, size_of) for v in value)})"
    return "float" if isinstance(value, SymFloat) else "int" if isinstance(value, SymInt) else type(value).__name__


def call_text(node: Node, name: Callable[[Node], str] = lambda n: n.name) -> str:
    """``aten.mm(x, w)``: the call of a node as one reads it."""
    if node.target is scalar:
        values = {symbol: _argument_text(value, name) for symbol, value in node.kwargs.items()}
        return re.sub(r"\b[A-Za-z_]\w*\b", lambda found: values.get(found[0], found[0]), str(node.args[0]))
    args = [_argument_text(a, name) for a in node.args]
    args += [f"{k}={_argument_text(v, name)}" for k, v in node.kwargs.items()]
    return f"{target_text(node.target)}({', '.join(args)})"


def target_text(target: Any) -> str:
    """``aten.mm`` for ``aten.mm.default``; other overloads are spelt out."""
    text = str(target) if is_operator(target) else getattr(target, "__name__", str(target))
    return text.removesuffix(".default")


def _argument_text(value: Any, name: Callable[[Node], str]) -> str:
    if isinstance(value, Node):
        return name(value)
    if hasattr(value, "fx"):  # a body of control flow
        return str(value.name)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument_text(v, name) for v in value)}]"
    return size_text(value) if isinstance(value, (dtype, torch.device, torch.SymInt)) else repr(value)
