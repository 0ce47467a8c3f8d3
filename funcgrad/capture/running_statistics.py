"""What modules count and average over calls, at levels of torch.func: it belongs to none of them, and is written once a
call, from the whole batch. Eager torch.func raises: reverse mode for a counter that is captured
(``num_batches_tracked``), vmap for statistics that all samples share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..levels import below_levels
from ..torch_private.levels import outside_transforms, transform_active, unbatched_at, wrapping_level
from ..torch_private.tensors import is_tracked_wrapper, is_transform_wrapper, wrapped_value


def whole_batch(input: Tensor) -> tuple[Tensor, bool]:
    """The samples of all vmaps as one batch ``(N, C, ...)``, outside of all levels; and whether there is any vmap."""
    n_mapped = 0
    while is_transform_wrapper(input):
        if is_tracked_wrapper(input):
            input = wrapped_value(input)
            continue
        below, dim = unbatched_at(wrapping_level(input), input)
        n_mapped += 1
        input = below.movedim(dim or 0, 0)
    return input.flatten(0, n_mapped), n_mapped > 0


def _of_the_whole_batch(normalise: Callable[..., Tensor], trains: bool) -> Callable[..., Tensor]:
    """``batch_norm`` or ``instance_norm``; ``trains``: whether it does, where nothing is said."""

    def normalised(
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = trains,
        *rest: Any,
        **more: Any,
    ) -> Tensor:
        training = more.pop("use_input_stats", training)
        running = running_mean, running_var
        shared = [below_levels(r) for r in running if r is not None]
        if training and transform_active() and shared and all(r is not None for r in shared):
            whole, is_mapped = whole_batch(input)
            if is_mapped:
                with outside_transforms(), torch.no_grad():
                    normalise(whole, *shared, None, None, True, *rest, **more)
                running = None, None
        return normalise(input, *running, weight, bias, training, *rest, **more)

    return normalised


def _counted(counter: Tensor, other: Any, **options: Any) -> Tensor:
    shared = below_levels(counter) if type(other) is int and transform_active() else None
    if shared is None:
        return counter.add_(other, **options)
    with outside_transforms():
        shared.add_(other, **options)
    return counter


RUNNING: dict[Any, Callable[..., Any]] = {
    functional.batch_norm: _of_the_whole_batch(functional.batch_norm, False),
    functional.instance_norm: _of_the_whole_batch(functional.instance_norm, True),
    Tensor.add_: _counted,
    Tensor.__iadd__: _counted,
}
