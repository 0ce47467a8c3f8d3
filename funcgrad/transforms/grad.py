"""The public gradient transforms and ``jit``: signatures of torch.func, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..options import make_options
from .compiled import Compiled
from .definition import Gradient, Plain


def grad_compiled(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any) -> Compiled:
    """Gradients of a scalar function, compiled; ``torch.func.grad`` with a program behind it.

    ``f(*args, **kwargs)`` returns a 0-d floating-point tensor, or ``(loss, aux)`` with ``has_aux``. The result takes the same
    arguments and returns the gradients with respect to the positional arguments ``argnums``: the structure, dtypes and
    devices of that argument (a tuple of them for a tuple of ``argnums``), with ``has_aux`` the pair ``(grads, aux)``.
    A leaf the loss does not depend on gets zeros. What ``f`` writes to (other arguments, buffers, captured tensors) is written
    to, as in eager PyTorch. Keyword arguments are options (``fg.Options``).

    Raises ``NonScalarOutputError``, ``NonDifferentiableArgumentError``, ``ArgumentError``, ``AuxError``, and while tracing
    ``DataDependentControlFlowError``, ``MutationError``, ``UnsupportedTensorError``. Nothing is changed when it raises.
    """
    return _compiled(Gradient(_callable(f), _argnums(argnums), has_aux, ("grads",)), options)


def value_and_grad_compiled(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any) -> Compiled:
    """As ``grad_compiled``, returning ``(value, grads)``, with ``has_aux`` ``((value, aux), grads)`` (JAX's order)."""
    return _compiled(Gradient(_callable(f), _argnums(argnums), has_aux, ("value", "grads")), options)


def grad_and_value_compiled(f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any) -> Compiled:
    """As ``grad_compiled``, returning ``(grads, value)``, with ``has_aux`` ``(grads, (value, aux))`` (torch.func's order)."""
    return _compiled(Gradient(_callable(f), _argnums(argnums), has_aux, ("grads", "value")), options)


def jit(f: Callable[..., Any], **options: Any) -> Compiled:
    """``f`` compiled: the same results, the same writes to arguments and captured tensors (data, sizes, version counters), the
    same aliasing of outputs; differentiable by ``.backward()`` and ``torch.autograd.grad`` to any order.

    ``f`` takes and returns pytrees of tensors. Where an input (or a captured parameter) requires grad and grad mode is on,
    forward and backward are compiled together and run as two programs. Keyword arguments are options (``fg.Options``).

    Raises, while tracing, ``MutationError`` for what cannot be carried out (a new tensor stored in a container or a module,
    ``set_``, ``.grad =``), ``AliasContractError``, ``DataDependentControlFlowError``, ``UnsupportedTensorError``. What eager
    PyTorch forbids is refused before anything is changed. A second derivative of a function whose own writes it needs the
    old values of raises ``MutationError``.
    """
    return _compiled(Plain(_callable(f)), options)


def _compiled(definition: Gradient | Plain, options: dict[str, Any]) -> Compiled:
    return Compiled(definition, make_options(options))


def _callable(f: Any) -> Callable[..., Any]:
    if not callable(f):
        raise ArgumentError(f"the first argument must be a function, got a {type(f).__name__}", fix="pass the function, not its result")
    function: Callable[..., Any] = f
    return function


def _argnums(argnums: Any) -> int | tuple[int, ...]:
    if isinstance(argnums, int) and not isinstance(argnums, bool):
        return argnums
    if isinstance(argnums, (tuple, list)) and argnums and all(type(i) is int for i in argnums):
        return tuple(argnums)
    raise ArgumentError(f"argnums={argnums!r}", fix="pass an int, or a tuple of ints with at least one")
