"""``copy.deepcopy`` of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import refusals
from ..state.lines import user_line
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass, storage_id
from .captures import GradientsMatter
from .questions import HAS_ATTRIBUTES, IS_VIEW, set_by_function
from .trace import Trace

_NO_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
    "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
    "see https://github.com/pytorch/pytorch/pull/103001"
)
"""What PyTorch says."""


def deep_copied(trace: Trace, tensor: Tensor, memo: Any) -> Tensor:
    """A leaf in memory of its own. Refused of what holds more than that, all of which eager PyTorch copies: memory that
    it shares, a gradient, attributes."""
    if trace.ignores_requires_grad:
        raise GradientsMatter
    if is_wrapper_subclass(tensor) or is_transform_wrapper(tensor):
        raise _refused()
    tracks = tensor.requires_grad
    named = trace.lineage.named(tensor)
    if trace.questions.history(named, named) is not None:
        raise RuntimeError(_NO_LEAF)
    with trace.lifter:
        gradient = named.grad if tracks else None
    is_parameter = isinstance(named, nn.Parameter)
    with without_function_modes(), torch.no_grad():
        made = tensor.detach().clone()
    attributes = {name for name in set_by_function(named) if name != "_is_param"}
    if gradient is not None or attributes or _shares(trace, tensor) or made.stride() != tensor.stride():
        raise _refused()
    return nn.Parameter(made, tracks) if is_parameter else made.requires_grad_(tracks)


def _shares(trace: Trace, tensor: Tensor) -> bool:
    """Whether others may look at the memory of a tensor, or it at more than its own."""
    lineage, known = trace.lineage, trace.stand_ins()
    root, steps, _ = lineage.path(tensor, lambda t: id(lineage.named(t)) in known, True)
    if steps or lineage.named(root) is not lineage.named(tensor):
        return True
    real = trace.reals.get(id(lineage.named(tensor)))
    if real is None:
        return False
    trace.questions.ask(real, IS_VIEW)
    others = [other for other in trace.reals.values() if other is not real and not is_transform_wrapper(other)]
    return real._is_view() or trace.questions.ask(real, HAS_ATTRIBUTES) or storage_id(real) in map(storage_id, others)


def _refused() -> Exception:
    return refusals.ASKS_WHAT_CHANGES("for a deep copy of a tensor", "write x.detach().clone()", where=user_line())
