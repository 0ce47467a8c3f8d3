"""The public gradient transforms and ``jit``: signatures of torch.func, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from ..options import make_options
from .compiled import Compiled
from .decorator import OMITTED, applied
from .definition import Gradient, Plain, checked_argnums


@overload
def grad_compiled(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Compiled: ...
@overload
def grad_compiled(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Compiled]: ...
def grad_compiled(f: Any = OMITTED, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any) -> Any:
    """Gradients of a scalar function, compiled; ``torch.func.grad`` with a program behind it.

    ``f(*args, **kwargs)`` returns a 0-d floating-point tensor, or ``(loss, aux)`` with ``has_aux``. The result takes
    the same arguments and returns the gradients with respect to the positional arguments ``argnums``: the structure,
    dtypes and devices of that argument (a tuple of them for a tuple of ``argnums``), with ``has_aux`` the pair
    ``(grads, aux)``. A leaf the loss does not depend on gets zeros. What ``f`` writes to (other arguments, buffers,
    captured tensors) is written to, as in eager PyTorch. Keyword arguments are options (``fg.Options``). Without ``f``
    it is a decorator with these options: ``@fg.grad_compiled(argnums=1)``.

    Raises ``NonScalarOutputError``, ``NonDifferentiableArgumentError``, ``ArgumentError``, ``AuxError``, and while
    tracing ``DataDependentControlFlowError``, ``MutationError``, ``UnsupportedTensorError``. Nothing is changed when it
    raises.
    """
    return _gradient(f, argnums, has_aux, ("grads",), options)


@overload
def value_and_grad_compiled(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Compiled: ...
@overload
def value_and_grad_compiled(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Compiled]: ...
def value_and_grad_compiled(
    f: Any = OMITTED, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Any:
    """As ``grad_compiled``, returning ``(value, grads)``, with ``has_aux`` ``((value, aux), grads)`` (JAX's order)."""
    return _gradient(f, argnums, has_aux, ("value", "grads"), options)


@overload
def grad_and_value_compiled(
    f: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Compiled: ...
@overload
def grad_and_value_compiled(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Compiled]: ...
def grad_and_value_compiled(
    f: Any = OMITTED, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, **options: Any
) -> Any:
    """As ``grad_compiled``, returning ``(grads, value)``, with ``has_aux`` ``(grads, (value, aux))`` (torch.func's
    order)."""
    return _gradient(f, argnums, has_aux, ("grads", "value"), options)


@overload
def jit(f: Callable[..., Any], **options: Any) -> Compiled: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], Compiled]: ...
def jit(f: Any = OMITTED, **options: Any) -> Any:
    """``f`` compiled: the same results, the same writes to arguments and captured tensors (data, sizes, version
    counters), the same aliasing of outputs; differentiable by ``.backward()`` and ``torch.autograd.grad`` to any order.

    ``f`` takes and returns pytrees of tensors. Where an input (or a captured parameter) requires grad and grad mode is
    on, forward and backward are compiled together and run as two programs. Keyword arguments are options
    (``fg.Options``). Without ``f`` it is a decorator with these options: ``@fg.jit(dynamic=True)``.

    Raises, while tracing, ``MutationError`` for what cannot be carried out (a new tensor stored in a container or a
    module, ``set_``, ``.grad =``), ``AliasContractError``, ``DataDependentControlFlowError``,
    ``UnsupportedTensorError``. What eager PyTorch forbids is refused before anything is changed. A second derivative of
    a function whose own writes it needs the old values of raises ``MutationError``.
    """
    chosen = make_options(options)
    return applied(lambda f: Compiled(Plain(f), chosen), f)


def _gradient(f: Any, argnums: Any, has_aux: bool, order: tuple[str, ...], options: dict[str, Any]) -> Any:
    positions, chosen = checked_argnums(argnums), make_options(options)
    return applied(lambda f: Compiled(Gradient(f, positions, has_aux, order), chosen), f)
