"""The fast paths of torch's transformer modules, which they take in eval mode where no gradient is needed, and not
under a function mode.

With masks they compute something else: a query that may look at nothing is NaN, numbers in a mask count as truth
values, and an encoder that goes over nested tensors leaves zeros where its input is padded. Inside a trace modules do
with masks what they do in eager PyTorch; without masks the results are the same, and the slow path has more to fuse.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

_MASKS = {
    nn.TransformerEncoderLayer.forward.__code__: ("src_mask", "src_key_padding_mask"),
    nn.MultiheadAttention.forward.__code__: ("key_padding_mask", "attn_mask"),
}
_DEVICES = ("cpu", "cuda", "xpu")


FORWARDS = {nn.TransformerEncoder: "encoder"}
"""Modules whose ``forward`` is another in a trace, and the names of what replaces it."""


def _overridden(original: Callable[[Any], bool], args: Any) -> bool:
    """``torch.overrides.has_torch_function``: no, where it is a module with masks that asks."""
    frame = sys._getframe(2)
    has_masks = any(frame.f_locals[name] is not None for name in _MASKS.get(frame.f_code, ()))
    return not has_masks and original(args)


def _encode(
    encode: Callable[..., Tensor],
    self: Any,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    """What an encoder computes, on tensors as they are where eager PyTorch makes nested ones of them, which have no
    padding."""
    layers = SimpleNamespace(layers=self.layers, norm=None, use_nested_tensor=False)
    if src_key_padding_mask is None or not _goes_nested(self, src, mask):
        output = encode(layers, src, mask, src_key_padding_mask, is_causal)
        return output if self.norm is None else self.norm(output)  # type: ignore[no-any-return]
    padded = src_key_padding_mask != 0
    if getattr(self, "mask_check", True):  # whether all padding comes last decides, and is seen when the program runs
        dropped = padded & ~(padded[:, :-1] & ~padded[:, 1:]).any()
    else:
        kept = (~padded).sum(-1, keepdim=True)
        dropped = src_key_padding_mask = torch.arange(padded.shape[1], device=src.device) >= kept
    output = encode(layers, src, mask, src_key_padding_mask, is_causal).masked_fill(dropped.unsqueeze(-1), 0)
    return output if self.norm is None else self.norm(output)  # type: ignore[no-any-return]


def _goes_nested(encoder: Any, src: Tensor, mask: Tensor | None) -> bool:
    """Whether eager PyTorch makes nested tensors of what is not padded, if all padding comes last."""
    first = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(encoder, "use_nested_tensor", False):
        return False
    if (
        first.training
        or src.dim() != 3
        or mask is not None
        or torch.is_autocast_enabled()
        or src.device.type not in _DEVICES
    ):
        return False
    read = [src, first.self_attn.in_proj_weight, first.self_attn.in_proj_bias, *first.self_attn.out_proj.parameters()]
    read += [p for part in (first.norm1, first.norm2, first.linear1, first.linear2) for p in part.parameters()]
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in read))


FAST_PATHS: dict[str, Callable[..., Any]] = {"overridden": _overridden, "encoder": _encode}
"""What replaces ``torch.overrides.has_torch_function`` and the ``FORWARDS``: modules with masks take the path they take
in eager PyTorch."""
