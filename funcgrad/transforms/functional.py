"""The public transforms of ``torch.func`` besides the gradients (``grad.py``): their signatures, compiled.

Each is a definition that calls torch.func's own inside the trace, so that all of it is one program: forward mode has
tangents beside primals in one graph, a jacobian shares its forward pass, a hessian is forward over reverse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from attrs import frozen
from torch import Tensor

from ..capture.callbacks import Like
from ..errors import ArgumentError, OptionError
from ..options import make_options
from ..torch_private.tensors import symbolic_zeros
from ..trees import flatten, require_same, tree_map, unflatten
from .chunks import Fitting, in_chunks
from .closures import compiled_once
from .compiled import Compiled
from .containers import as_given, carried, of_given, over_carried
from .decorator import OMITTED, applied
from .definition import (
    Definition,
    Plain,
    argument_names,
    checked_argnums,
    describe,
    has_derivative,
    nesting,
    positions_of,
)
from .forward_jacobians import jacfwd_in_chunks
from .points import mismatches_named, require_leaves, require_no_saved_hooks, require_primals, require_tangents

Fn = Callable[..., Any]
BatchedDraws = Literal["error", "same", "different"]


@frozen(eq=False)
class Transformed(Definition):
    """A transform of torch.func over the caller's function."""

    root: Fn
    transform: Callable[[Fn], Fn]
    names: tuple[str, ...] = ()
    none: bool = True
    """Whether None is a container of nothing; to vmap it is a leaf."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with nesting():
            return of_given(self.transform(over_carried(self.root, self.none)), self.none)(*args, **kwargs)

    def argument_names(self, n: int) -> list[str]:
        return list(self.names[:n]) or argument_names(self.root, n)


def vmap_compiled(
    f: Any = OMITTED,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: BatchedDraws = "error",
    chunk_size: int | Literal["auto"] | None = None,
    **options: Any,
) -> Any:
    """``f`` over a batch, compiled; ``torch.func.vmap`` with a program behind it.

    The result takes the arguments of ``f`` with one more dimension where ``in_dims`` has an int (``None``: the same for
    all samples), and returns its results with one more at ``out_dims``. ``randomness`` says whether samples may draw,
    and draw the ``"same"`` or ``"different"`` numbers: those of eager PyTorch for one seed. ``chunk_size``: so many
    samples at a time, in a loop whose body is compiled once; ``"auto"``: as many as the predicted peak allows, within
    ``memory_budget`` (bytes) or what is free.

    Per-sample gradients are ``fg.vmap_compiled(torch.func.grad(loss), (None, 0))(params, batch)``. Other keyword
    arguments are options (``fg.Options``).

    Raises ``TreeMismatchError`` where ``in_dims`` or ``out_dims`` do not fit, or sizes do not agree, what
    ``torch.func.vmap`` raises for writes of samples into what they share, and what ``fg.jit`` raises.
    """

    of, chosen = functools.partial(_batched, carried(in_dims), carried(out_dims), randomness), make_options(options)
    _check(randomness, None if chunk_size == "auto" else chunk_size)
    if chunk_size == "auto":
        return applied(lambda f: Fitting(functools.partial(of, f), chosen), f)
    return applied(lambda f: Compiled(of(f, chunk_size), chosen), f)


def _batched(in_dims: Any, out_dims: Any, randomness: BatchedDraws, f: Fn, size: int | None) -> Transformed:
    return Transformed(f, functools.partial(_mapped, in_dims, out_dims, randomness, size), none=False)


def _mapped(in_dims: Any, out_dims: Any, randomness: BatchedDraws, size: int | None, f: Fn) -> Fn:
    """``torch.func.vmap`` with its arguments."""
    if size is None:
        mapped = torch.func.vmap(f, in_dims, out_dims, randomness)
    else:
        mapped = in_chunks(f, in_dims, out_dims, randomness, size)

    def call(*args: Any, **kwargs: Any) -> Any:
        with mismatches_named():
            return mapped(*args, **kwargs)

    return call


def jacrev_compiled(
    f: Any = OMITTED,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    **options: Any,
) -> Any:
    """The jacobian of ``f`` by reverse mode, compiled; ``torch.func.jacrev``: one forward pass, and a backward pass
    over a batch of basis vectors of the result (``chunk_size`` of them at a time). For each tensor of the result and
    of the arguments ``argnums``, a tensor of the shape of both, one after the other. Other keyword arguments are
    options (``fg.Options``)."""

    _check(chunk_size=chunk_size)

    how = functools.partial(torch.func.jacrev, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)
    return _jacobian(f, how, argnums, options)


def jacfwd_compiled(
    f: Any = OMITTED,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    randomness: BatchedDraws = "error",
    **options: Any,
) -> Any:
    """The jacobian of ``f`` by forward mode, compiled; ``torch.func.jacfwd``: tangents, a batch of basis vectors of
    the arguments ``argnums`` (``chunk_size`` of them at a time), beside primals in one pass. Result as of
    ``jacrev_compiled``; the better one where ``f`` returns more than it takes."""

    _check(randomness, chunk_size)

    how = functools.partial(
        jacfwd_in_chunks, argnums=argnums, has_aux=has_aux, randomness=randomness, chunk_size=chunk_size
    )
    return _jacobian(f, how, argnums, options)


def hessian_compiled(
    f: Any = OMITTED,
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    **options: Any,
) -> Any:
    """The hessian of ``f``, compiled: forward over reverse in one program (``torch.func.hessian``). ``chunk_size``
    is that of the reverse pass. Other keyword arguments are options (``fg.Options``)."""

    _check(chunk_size=chunk_size)

    inner = functools.partial(torch.func.jacrev, argnums=argnums, has_aux=has_aux, chunk_size=chunk_size)
    outer = functools.partial(torch.func.jacfwd, argnums=argnums, has_aux=has_aux)
    return _jacobian(f, outer, argnums, options, inner)


def _check(randomness: object = "error", chunk_size: object = None) -> None:
    """Raise ``OptionError`` for what is no value of these."""
    if randomness not in get_args(BatchedDraws):
        raise OptionError(f"randomness={randomness!r}", fix=f"one of {', '.join(map(repr, get_args(BatchedDraws)))}")
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise OptionError(f"chunk_size={chunk_size!r}", fix="an int of at least 1, or None for all at once")


def _jacobian(
    f: Any, transform: Callable[..., Fn], argnums: Any, options: dict[str, Any], inner: Callable[..., Fn] | None = None
) -> Any:
    """``transform`` of ``f`` (of what ``inner`` makes of it), for ``argnums`` that name arguments which have
    derivatives."""
    how = functools.partial(_checked, transform, inner, checked_argnums(argnums))
    chosen = make_options(options)
    return applied(lambda f: Compiled(Transformed(f, how), chosen), f)


def _checked(
    transform: Callable[..., Fn], inner: Callable[..., Fn] | None, numbers: int | tuple[int, ...], f: Fn
) -> Fn:
    """A jacobian of torch.func's, or one of another one, whose arguments are checked."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for i in positions_of(numbers, f, len(args)):
            require_leaves(as_given(args[i]), argument_names(f, len(args))[i])
        return transform(f if inner is None else inner(f))(*args, **kwargs)

    return call


# ── those that are called with the point they are taken at ───────────────────────────────────────────────────────────


@frozen
class _Pushing:
    """The definition of a function in forward mode."""

    has_aux: bool

    def __call__(self, f: Fn) -> Definition:
        return Transformed(f, functools.partial(_pushed, self.has_aux), ("primals", "tangents"))


def _pushed(has_aux: bool, f: Fn) -> Fn:
    """``torch.func.jvp`` with its option, of a point and a direction that are checked."""

    def call(primals: Any, tangents: Any) -> Any:
        require_tangents(f, as_given(primals), as_given(tangents))
        return torch.func.jvp(f, primals, tangents, has_aux=has_aux)

    return call


def jvp_compiled(f: Fn, primals: Any, tangents: Any, has_aux: bool = False, **options: Any) -> Any:
    """``(f(*primals), its Jacobian-vector product with tangents)``, compiled; ``torch.func.jvp``: one program of both.
    ``tangents`` are tensors of the shapes of ``primals``. With ``has_aux`` (``f`` returns ``(out, aux)``): ``(out,
    tangent_out, aux)``.

    What is compiled of ``f`` is kept for the 64 functions last named, and closures of one code share it. Other
    keyword arguments are options (``fg.Options``).
    """
    return compiled_once(_Pushing(has_aux), f, make_options(options))(primals, tangents)


def vjp_compiled(f: Fn, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
    """``(f(*primals), vjp_fn)``, compiled; ``torch.func.vjp``: forward has run, ``vjp_fn(cotangents)`` is a second
    program, of what the first one saved, and may be called any number of times, under any transform. With ``has_aux``:
    ``(out, vjp_fn, aux)``.

    What is compiled of ``f`` is kept for the 64 functions last named, and closures of one code share it. Other
    keyword arguments are options (``fg.Options``).
    """
    require_primals(f, primals)
    require_no_saved_hooks("vjp_compiled")
    compiled = f if isinstance(f, Compiled) else compiled_once(Plain, f, make_options(options))
    found: Any = torch.func.vjp(over_carried(compiled, True), *carried(primals, True), has_aux=has_aux)
    out, vjp_fn, *aux = found
    return (*as_given((out, of_given(vjp_fn, True), *aux)),)


def linearize_compiled(f: Fn, *primals: Any, **options: Any) -> Any:
    """``(f(*primals), jvp_fn)``, compiled; ``torch.func.linearize``: ``jvp_fn(*tangents)`` is the Jacobian-vector
    product at ``primals``, a program of the linear part alone, of what the forward pass saved. It may be called any
    number of times, under any transform: ``torch.func.vmap(jvp_fn)`` over basis vectors is a jacobian.

    A linear function is the transpose of its transpose: the program is that of the backward pass, transposed
    (arXiv:2204.10923), with its hooks and the backward passes of custom ``autograd.Function``s, of which forward mode,
    in which torch.func computes this, does not hear. Tangents have the structure, shapes, dtypes and devices of
    ``primals``. A result that has no derivative, an integer tensor or no tensor at all, comes back as torch.func has
    it: as zeros, as it is. What is compiled of ``f`` is kept for the 64 functions last named, and closures of one code
    share it.
    """
    require_primals(f, primals)
    require_no_saved_hooks("linearize_compiled")
    compiled = f if isinstance(f, Compiled) else compiled_once(Plain, f, make_options(options))
    leaves: list[Any] = []
    tree: Any = None

    def differentiable(*primals: Any) -> tuple[list[Tensor], dict[int, Tensor]]:
        nonlocal tree
        leaves[:], tree, _ = flatten(compiled(*as_given(primals)))
        outs = [v for v in leaves if has_derivative(v)]
        rest = {i: v for i, v in enumerate(leaves) if isinstance(v, Tensor) and not has_derivative(v)}
        return outs or [torch.zeros(())], rest  # there is no vjp of nothing

    found: Any = torch.func.vjp(differentiable, *carried(primals, True), has_aux=True)
    outs, vjp_fn, rest = found
    transpose = torch.func.vjp(vjp_fn, tree_map(lambda out: symbolic_zeros(out.shape, out.dtype, out.device), outs))[1]
    others = [rest.get(i, None if has_derivative(v) else v) for i, v in enumerate(leaves)]
    inexact = [has_derivative(v) for v in leaves]

    def result(values: list[Tensor], others: list[Any]) -> Any:
        rest = iter(values)
        return unflatten([next(rest) if has else v for has, v in zip(inexact, others, strict=True)], tree)

    points, structure, _ = flatten(primals)
    expected = list(map(Like.of, points))
    del points

    def jvp_fn(*tangents: Any) -> Any:
        """The Jacobian-vector product with ``tangents``."""
        given, own, paths = flatten(tangents, "tangents")
        require_same(structure, own, "tangents", "tangents and primals have different structure")
        for t, path, wanted in zip(given, paths, expected, strict=True):
            if not isinstance(t, Tensor) or Like.of(t) != wanted:
                like = f"{wanted} on {wanted.device}"
                raise ArgumentError(f"{path} is {describe(t)}", where=path, fix=f"pass what its primal is: {like}")
        zeros = [torch.zeros_like(v) if isinstance(v, Tensor) else v for v in others]
        return result(transpose(carried(tangents, True))[0], zeros)

    leaves.clear()
    return result(outs, others), jvp_fn
