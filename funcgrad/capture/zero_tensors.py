"""Zeros of forward mode where sizes are symbols.

Where a formula of forward mode meets what has no tangent, autograd makes a tensor that stands for zeros and has no
memory (``ZeroTensor``), with which products are zeros and sums are the other one. PyTorch's kernels for them ask in C++
what each size is, which would fix it. So in a trace whose sizes are symbols they are zeros like any others, of which is
noted that they are such, and these rules say what those kernels say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.fakes import without_modes
from ..torch_private.functional import from_functional
from ..torch_private.tensors import is_zero_tensor
from .trace import Trace

_aten: Any = torch.ops.aten
_MADE = _aten._efficientzerotensor.default


class ZeroTensors:
    """The zeros of a trace, by the identity of their fakes: what is written to has another fake from then on."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int, Tensor] = {}

    def answer(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator makes of such zeros, or the zeros that it makes; ``NotImplemented`` where it makes of them
        what it makes of others, or none are there."""
        if op is _MADE:
            return self._zeros(args[0], **kwargs) if self._trace.symbols.may_be_sizes() else NotImplemented
        rule = _RULES.get(op) if self._known or op in _PAST_KERNELS else None
        if rule is None or not any(map(self._is_zero, args[:2])):
            return NotImplemented
        return rule(self, op, args, kwargs)

    def note(self, args: Sequence[Any], out: Any) -> None:
        """What looks at zeros is zeros, too."""
        if self._known and self._is_zero(args[0]):
            for look in out if isinstance(out, (list, tuple)) else [out]:
                self._enter(look)

    def _is_zero(self, value: Any) -> bool:
        fake = from_functional(value) if isinstance(value, Tensor) else None
        return fake is not None and (id(fake) in self._known or is_zero_tensor(fake))

    def _enter(self, zeros: Tensor) -> Tensor:
        fake = from_functional(zeros)
        self._known[id(fake)] = fake  # an id stays unique only while its object lives
        return zeros

    def _zeros(self, sizes: Any, **kind: Any) -> Tensor:
        with self._trace.functional:
            return self._enter(_aten.zeros.default(sizes, **kind))

    def _kind(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The sizes, and the dtype and device, of what an operator would make of other tensors."""
        plain = [from_functional(a) if isinstance(a, Tensor) else a for a in args]
        with without_modes(), self._trace.fakes:
            like = op(*plain, **kwargs)
        return list(like.shape), {"dtype": like.dtype, "device": like.device}

    def _product(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        sizes, kind = self._kind(op, args, kwargs)
        return self._zeros(sizes, **kind)

    def _sum(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        (a, b), (sizes, kind) = args, self._kind(op, args, kwargs)
        if self._is_zero(a) and self._is_zero(b):
            return self._zeros(sizes, **kind)
        factor = kwargs.get("alpha", 1) * (-1 if op is _aten.sub.Tensor else 1)
        with self._trace.functional:
            out: Tensor = _aten._to_copy.default(_aten.expand.default(b if self._is_zero(a) else a, sizes), **kind)
            return out * factor if self._is_zero(a) and factor != 1 else out

    def _quotient(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        if not self._is_zero(args[1]):
            return self._product(op, args, kwargs)
        sizes, kind = self._kind(op, args, kwargs)
        with self._trace.functional:
            out: Tensor = _aten.full.default(sizes, math.nan if self._is_zero(args[0]) else math.inf, **kind)
            return out


_PAST_KERNELS = {_aten.mul.Scalar, _aten.dot.default, _aten.vdot.default}
"""What PyTorch's kernels for zeros let pass, as it sees to them itself."""
_RULES: dict[Any, Callable[[ZeroTensors, Any, Sequence[Any], dict[str, Any]], Tensor]] = {
    _aten.add.Tensor: ZeroTensors._sum,
    _aten.sub.Tensor: ZeroTensors._sum,
    _aten.mul.Tensor: ZeroTensors._product,
    _aten.mul.Scalar: ZeroTensors._product,
    _aten.div.Tensor: ZeroTensors._quotient,
    _aten.dot.default: ZeroTensors._product,
    _aten.vdot.default: ZeroTensors._product,
    _aten.linalg_cross.default: ZeroTensors._product,
    _aten._unsafe_view.default: ZeroTensors._product,
}
