"""``custom_vjp`` and ``custom_jvp``: functions whose derivatives the caller gives, JAX's, over pytrees of tensors.
What a call does: ``rules.py``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, CustomDerivativeError
from ..state.lines import user_line
from ..torch_private.levels import levels_of_reverse_mode, tracking_level, transform_active
from ..trees import flatten, unflatten
from .decorator import OMITTED, Decorated, applied
from .definition import argument_names, definition_line, is_under_reverse, name_of
from .packed import Packed, leaves_like, pack
from .rules import JvpFunction, RuledCall, VjpFunction, not_differentiable, results_of

Fn = Callable[..., Any]


def custom_vjp(f: Any = OMITTED, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """``f`` with a reverse-mode derivative of the caller's; ``jax.custom_vjp``.

    ``f.defvjp(fwd, bwd)``: ``fwd(*args)`` takes the arguments of ``f`` and returns ``(out, residuals)``,
    ``bwd(*nondiff, residuals, cotangents)`` a tuple with a cotangent for each argument that is not in
    ``nondiff_argnums``. Arguments, results and residuals are pytrees; what is no tensor in them is passed on as it is.
    ``cotangents`` has the structure of ``out``, a cotangent that of its argument; ``None`` stands for zeros, and for
    what integers and Python values have. Keyword arguments are bound to positions.

    ``f`` itself runs where nothing is differentiated, ``fwd`` elsewhere. The derivative of a result is what ``bwd``
    says, in reverse mode of any order; that of residuals is the derivative of ``fwd``, and forward mode over reverse
    mode is that of ``fwd``, too. Forward mode alone has no rule. A tensor that ``f`` closes over must not require grad.
    Without ``f`` it is a decorator: ``@fg.custom_vjp(nondiff_argnums=(1,))``.

    A call raises ``CustomDerivativeError`` for rules that are missing or do not fit, ``NonDifferentiableArgumentError``
    where an argument of ``nondiff_argnums`` is differentiated, and ``UnsupportedTransformError`` for forward mode.
    """
    nondiff = _positions(nondiff_argnums)
    return applied(lambda f: CustomVjp(f, nondiff), f)


def custom_jvp(f: Any = OMITTED, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """``f`` with a forward-mode derivative of the caller's, from which reverse mode follows; ``jax.custom_jvp``.

    ``f.defjvp(rule)``: ``rule(*nondiff, primals, tangents)`` returns ``(out, tangent_out)``, linear in ``tangents``, a
    tuple with a tangent of the structure of each argument that is not in ``nondiff_argnums`` (zeros where nothing is
    differentiated, 0.0 for a Python float, ``None`` for integers and other values). ``f.defjvps(*rules)`` has a rule
    for each argument, ``rule(tangent, out, *primals)``, or ``None`` for zero. Keyword arguments are bound to positions.
    Without ``f`` it is a decorator: ``@fg.custom_jvp(nondiff_argnums=(1,))``.

    A call raises ``CustomDerivativeError`` for rules that are missing or do not fit, and
    ``NonDifferentiableArgumentError`` where an argument of ``nondiff_argnums`` is differentiated.
    """
    nondiff = _positions(nondiff_argnums)
    return applied(lambda f: CustomJvp(f, nondiff), f)


def _positions(nondiff_argnums: Any) -> tuple[int, ...]:
    found = (nondiff_argnums,) if type(nondiff_argnums) is int else nondiff_argnums
    if isinstance(found, (tuple, list)) and all(type(i) is int for i in found) and len(set(found)) == len(found):
        return tuple(found)
    raise ArgumentError(f"nondiff_argnums={nondiff_argnums!r}", fix="pass an int, or a tuple of ints, each once")


def bound_by_position(function: Fn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, those with a default, too."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except ValueError:  # a function in C without a signature
        if not kwargs:
            return args
        raise ArgumentError(
            f"{name_of(function)} has no signature that says which arguments {', '.join(kwargs)} are",
            where=user_line(),
            fix="pass them by position: rules take positional arguments",
        ) from None
    bound.apply_defaults()
    if bound.kwargs:
        raise ArgumentError(
            f"{', '.join(bound.kwargs)} of {name_of(function)} can be passed by keyword alone",
            where=definition_line(function),
            fix="let the function take it by position: rules take positional arguments",
        )
    return bound.args


class _Custom(Decorated):
    """A function with rules; ``rules`` are the function and they, ``None`` where one is not given yet."""

    rules: tuple[Any, ...]
    definer = ""
    """How a rule is given, for messages."""

    def __init__(self, f: Fn, nondiff: tuple[int, ...]) -> None:
        functools.update_wrapper(self, f, updated=())  # type: ignore[arg-type]
        self.function = f
        self.nondiff = nondiff

    @property
    def name(self) -> str:
        """What the function is called."""
        return name_of(self.function)

    def __repr__(self) -> str:
        return f"<funcgrad {type(self).__name__} of {self.name}>"

    def _call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[RuledCall, list[Tensor]]:
        if any(rule is None for rule in self.rules):
            raise CustomDerivativeError(
                f"{self.name} has no rule for its derivative",
                where=user_line(),
                fix=f"define it before the first call: {self.definer}",
            )
        args = bound_by_position(self.function, args, kwargs)
        n = len(args)
        nondiff = tuple(i % n if -n <= i < n else n for i in self.nondiff)
        if n in nondiff:
            raise ArgumentError(
                f"nondiff_argnums={self.nondiff}, but {self.name} was called with {n} arguments",
                where=user_line(),
                fix="name positions of arguments that every call passes",
            )
        tensors: list[Tensor] = []
        packed = tuple(
            pack(arg, tensors, name) for name, arg in zip(argument_names(self.function, n), args, strict=True)
        )
        tracks = torch.is_grad_enabled()
        level = max(map(tracking_level, tensors), default=-1) if tracks else -1
        levels = levels_of_reverse_mode() if transform_active() else None
        call = RuledCall(self.rules, packed, nondiff, tracks, levels, sys.maxsize if is_under_reverse() else level)
        for place in call.fixed if tracks else ():
            if tracking_level(tensors[place.index]) >= 0:
                raise not_differentiable(call, place)
        return call, tensors


class CustomVjp(_Custom):
    """See ``custom_vjp``."""

    definer = "f.defvjp(fwd, bwd)"

    def __init__(self, f: Fn, nondiff: tuple[int, ...]) -> None:
        super().__init__(f, nondiff)
        self.rules = f, None, None

    def defvjp(self, fwd: Fn, bwd: Fn) -> None:
        """Say how the function is differentiated (``custom_vjp``)."""
        self.rules = self.function, fwd, bwd

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call, tensors = self._call_of(args, kwargs)
        return results_of(VjpFunction.apply(call, *tensors))  # type: ignore[no-untyped-call]


class CustomJvp(_Custom):
    """See ``custom_jvp``."""

    definer = "f.defjvp(rule)"

    def __init__(self, f: Fn, nondiff: tuple[int, ...]) -> None:
        super().__init__(f, nondiff)
        self.rules = f, None

    def defjvp(self, rule: Fn) -> Fn:
        """Say how the function is differentiated (``custom_jvp``); a decorator."""
        self.rules = self.function, rule
        return rule

    def defjvps(self, *rules: Fn | None) -> None:
        """Say how the function is differentiated, argument by argument (``custom_jvp``)."""
        if self.nondiff:
            raise ArgumentError(
                "defjvps has a rule for each argument, and takes no nondiff_argnums", fix="f.defjvp(rule)"
            )
        self.rules = self.function, functools.partial(_sum_of_rules, self, rules)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call, tensors = self._call_of(args, kwargs)
        return results_of(JvpFunction.apply(call, *tensors))  # type: ignore[no-untyped-call]


def _sum_of_rules(
    of: CustomJvp, rules: Sequence[Fn | None], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    if len(rules) != len(primals):
        raise CustomDerivativeError(
            f"{of.name} was called with {len(primals)} arguments, and defjvps has {len(rules)} rules",
            where=definition_line(of.function),
            fix="give one rule for each argument, None where the derivative is zero",
        )
    out = of(*primals)
    leaves, tree, _ = flatten(out)
    total: list[Any] = [None for _ in leaves]
    for rule, tangent in zip(rules, tangents, strict=True):
        if rule is not None and tangent is not None:
            own = leaves_like(Packed(tree, ()), rule(tangent, out, *primals), rule, "a tangent")
            total = [b if a is None else a if b is None else a + b for a, b in zip(total, own, strict=True)]
    return out, unflatten(total, tree)
