"""Functions of PyTorch's, of its optimisers above all, that make a number of what they read or are given."""

import inspect
import types

from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad
from torch.optim import LBFGS
from torch.optim.lr_scheduler import ReduceLROnPlateau

_CLIPPING = "_get_total_norm", "clip_grad_norm_", "_clip_grads_with_norm_", "clip_grad_value_"

CONVERTING: tuple[types.FunctionType, ...] = tuple(
    map(
        inspect.unwrap,  # type: ignore[arg-type]
        (
            LBFGS.step,
            LBFGS._directional_evaluate,
            ReduceLROnPlateau.step,
            ReduceLROnPlateau._reduce_lr,
            _BatchNorm.forward,
            *(getattr(clip_grad, name) for name in _CLIPPING if hasattr(clip_grad, name)),
        ),
    )
)
"""They call ``float``, and keep or compare what it makes."""
