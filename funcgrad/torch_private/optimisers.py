"""Functions of PyTorch's optimisers that make a number of a loss."""

import inspect
import types

from torch.optim import LBFGS
from torch.optim.lr_scheduler import ReduceLROnPlateau

CONVERTING: tuple[types.FunctionType, ...] = tuple(
    map(
        inspect.unwrap,  # type: ignore[arg-type]
        (LBFGS.step, LBFGS._directional_evaluate, ReduceLROnPlateau.step, ReduceLROnPlateau._reduce_lr),
    )
)
"""They call ``float``, and keep or compare what it makes."""
