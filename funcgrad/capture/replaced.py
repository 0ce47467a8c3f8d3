"""Functions of torch that are others while a trace runs: what a trace cannot see otherwise, or could not carry out.

They are replaced for the whole process, so one trace runs at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.overrides
import torch.utils.checkpoint

from ..errors import UnsupportedTransformError
from ..torch_private import CHECKPOINT_GENERATOR, without_function_modes, without_modes


@contextlib.contextmanager
def replace_cond(replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``torch.cond`` is ours: torch's own starts another tracer, which cannot run within a trace."""
    original = torch.cond
    torch.cond = replacement
    try:
        yield
    finally:
        torch.cond = original


_original_set = torch.Tensor.set_


def set_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.set_`` that tells torch-function modes of it, as every other method does."""
    if torch.overrides.has_torch_function((tensor,)):
        return torch.overrides.handle_torch_function(set_, (tensor,), tensor, *args, **kwargs)
    return _original_set(tensor, *args, **kwargs)


@contextlib.contextmanager
def replace_set() -> Iterator[None]:
    """Inside, a trace hears of ``x.set_(y)``: on a real tensor it would be carried out at once."""
    torch.Tensor.set_ = set_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.Tensor.set_


@contextlib.contextmanager
def apply_with(operand: Callable[[Any], Any], run: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]) -> Iterator[None]:
    """Inside, each custom ``autograd.Function`` is applied by ``run(apply, operands, keywords)``; an operand is ``operand(argument)``."""
    function = torch.autograd.Function
    original = function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return run(original.__get__(None, cls), [*map(operand, args)], kwargs)

    function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        function.apply = original  # type: ignore[method-assign]


@contextlib.contextmanager
def replace_checkpoint(replacement: Callable[..., Iterator[None]]) -> Iterator[None]:
    """Inside, ``torch.utils.checkpoint.checkpoint(f, use_reentrant=False)`` is ours: torch's own would run ``f`` again in backward."""
    original = getattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR)
    setattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR, replacement)
    try:
        yield
    finally:
        setattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR, original)


@contextlib.contextmanager
def generator_kept(on_reseed: Callable[[], None]) -> Iterator[None]:
    """Inside, ``on_reseed`` hears of every ``torch.manual_seed`` and ``torch.set_rng_state``; afterwards the generator is as before.

    Methods of the generator itself cannot be replaced: where it has another state in the end, unheard, ``UnsupportedTransformError``.
    """
    generator = torch.default_generator
    state = generator.get_state()
    with without_modes(), without_function_modes():
        torch.rand((), generator=generator)  # so that to seed it anew is to change it, whatever the seed
        start = generator.get_state()
    names = ("manual_seed", "set_rng_state", "seed")
    originals = {(m, name): getattr(m, name) for m in (torch, torch.random) for name in names}

    heard = False

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal heard
            heard = True
            on_reseed()
            with without_modes(), without_function_modes():
                return function(*args, **kwargs)

        return call

    for (module, name), function in originals.items():
        setattr(module, name, noting(function))
    try:
        yield
        with without_modes(), without_function_modes():
            if not heard and not torch.equal(generator.get_state(), start):
                raise UnsupportedTransformError("the function sets the state of the random generator", fix="seed outside of the function")
    finally:
        for (module, name), function in originals.items():
            setattr(module, name, function)
        generator.set_state(state)
