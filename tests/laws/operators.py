"""``python -m tests.laws.operators KIND [PART/PARTS [SAMPLES [BACKEND]]]``: the operators, modules and optimisers of
PyTorch, compiled.

Each sample of each operator does in a compiled function what it does in eager PyTorch (or torch.func): its value, its
gradient, the gradient of that, forward mode, vmap, the variant that writes to its argument. What differs, or is
refused, stands in ``operator_exceptions.py`` with the reason; what stands there and agrees fails the sweep, so that the
list only shrinks. How much was compared with nothing, since eager PyTorch raises, is counted. ``PART/PARTS``: of so
many parts that one. ``SAMPLES``: at most so many of each operator in each dtype. KIND is one of ``KINDS`` and
``MEMBERS``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, func
from torch.testing import _utils as testing_utils
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import funcgrad as fg

from . import regions
from .members import Case, Check, Pair, backward_of_modules, modules, optimisers
from .numbers import Raised, difference, outcome
from .operator_exceptions import EXCEPTIONS

common_utils.extract_test_fn = lambda: None  # looks through all modules, for each sample, for a TestCase to note it at
testing_utils.freeze_rng_state = torch.random.fork_rng  # puts the generator back where no mode hears of it

REAL, ALL = (torch.float64,), (torch.float64, torch.float32, torch.complex128, torch.bfloat16)
DTYPES = {
    "value": (*ALL, torch.int64), "gradient": ALL, "second": REAL, "forward": REAL, "vmap": REAL, "in-place": REAL,
    "engine": (torch.float64, torch.complex128, torch.bfloat16),
}  # fmt: skip
SEED = 7


# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Sample:
    """A call of an operator as a function of its tensors."""

    op: Callable[..., Any]
    after: Callable[[Any], Any]
    """What makes of the result a function that has a gradient (the absolute values of singular vectors)."""
    leaves: Sequence[Any]
    spec: Any

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(v for v in self.leaves if isinstance(v, Tensor))

    def fresh(self, differentiable: bool = False) -> list[Tensor]:
        """Copies of the tensors, with the same strides, and leaves that require grad where the sample's do."""
        return [_copy(t).requires_grad_(differentiable and t.requires_grad) for t in self.tensors]

    def __call__(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        args, kwargs = tree_unflatten([next(rest) if isinstance(v, Tensor) else v for v in self.leaves], self.spec)
        return self.after(self.op(*args, **kwargs))


def _copy(t: Tensor) -> Tensor:
    if t.layout != torch.strided or t.is_quantized:
        return t.detach().clone()
    span = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    own = t.detach().as_strided((span,), (1,)).clone().as_strided(t.shape, t.stride())
    return torch._neg_view(own.neg()) if t.is_neg() else own.conj_physical().conj() if t.is_conj() else own


def samples_of(info: Any, kind: str, dtype: torch.dtype, most: int | None) -> Iterator[Sample]:
    """The calls that the database makes of an operator, of the variant that a kind is about."""
    differentiable = kind in ("gradient", "second", "engine")
    op = info.inplace_variant if kind == "in-place" else info.op
    torch.manual_seed(0)
    given = outcome(lambda: info.sample_inputs("cpu", dtype, requires_grad=differentiable))
    if isinstance(given, Raised):
        return
    for sample in itertools.islice(given, most):
        if kind == "in-place" and sample.broadcasts_input:
            continue
        after = sample.output_process_fn_grad if kind != "in-place" else lambda result: result
        yield Sample(op, after, *tree_flatten(((sample.input, *sample.args), sample.kwargs)))


def is_suited(info: Any, kind: str, dtype: torch.dtype) -> bool:
    """Whether eager PyTorch has what a kind asks of an operator, in a dtype."""
    backward = dtype in info.supported_backward_dtypes("cpu") and info.supports_autograd
    return dtype in info.supported_dtypes("cpu") and {
        "gradient": backward, "engine": backward, "second": backward and info.supports_gradgrad,
        "forward": info.supports_forward_ad,
        "in-place": info.inplace_variant is not None,
    }.get(kind, True)  # fmt: skip


# ── kinds: what eager PyTorch and what a compiled function does with a sample ────────────────────────────────────────


def seeded(call: Callable[[], Any]) -> Any:
    torch.manual_seed(SEED)
    return outcome(call)


def differentiable(value: Any) -> list[Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, Tensor) and t.requires_grad]


def cotangents(outs: Iterable[Tensor]) -> list[Tensor]:
    """Numbers that are no others for another sum of them."""
    return [
        torch.linspace(0.3, 1.7, t.numel(), dtype=torch.float64).to(t.dtype).view(t.shape) * (1 + i)
        for i, t in enumerate(outs)
    ]


def pulled(f: Callable[..., Any], leaves: list[Tensor], orders: int) -> Any:
    """The result, and gradients of it up to an order."""
    own = [t for t in leaves if t.requires_grad]
    outs: Any = f(*leaves)
    found = [tree_map_only(Tensor, Tensor.detach, outs)]
    for order in range(orders):
        roots = differentiable(outs)
        if not roots:
            break
        outs = torch.autograd.grad(roots, own, cotangents(roots), create_graph=order + 1 < orders, allow_unused=True)
        found.append([None if g is None else g.detach() for g in outs])
    return found


def strides_of(value: Any) -> Any:
    """Results, and how they lie in memory."""
    tensors = [t for t in tree_leaves(value) if isinstance(t, Tensor) and t.layout == torch.strided]
    return value, [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if t.numel() else [] for t in tensors]


def of_value(sample: Sample, backend: str) -> Iterator[Pair]:
    yield (
        (lambda: strides_of(sample(*sample.fresh()))),
        (lambda: strides_of(fg.jit(sample, backend=backend)(*sample.fresh()))),
    )


def of_gradient(sample: Sample, backend: str) -> Iterator[Pair]:
    yield (
        (lambda: pulled(sample, sample.fresh(True), 1)),
        (lambda: pulled(fg.jit(sample, backend=backend), sample.fresh(True), 1)),
    )
    wrt = tuple(i for i, t in enumerate(sample.tensors) if t.requires_grad)

    def loss(*tensors: Tensor) -> Tensor:
        outs = differentiable(sample(*tensors))
        return sum(
            ((t * w).sum().real for t, w in zip(outs, cotangents(outs), strict=True)),
            torch.zeros((), dtype=torch.float64),
        )

    def eager() -> Any:
        leaves = sample.fresh(True)
        value = loss(*leaves)
        return torch.autograd.grad(value, [leaves[i] for i in wrt], allow_unused=True, materialize_grads=True)

    if wrt and all(not t.is_complex() for t in sample.tensors):
        yield eager, lambda: fg.grad_compiled(loss, argnums=wrt, backend=backend)(*sample.fresh())


def of_second(sample: Sample, backend: str) -> Iterator[Pair]:
    yield (
        (lambda: pulled(sample, sample.fresh(True), 2)),
        (lambda: pulled(fg.jit(sample, backend=backend), sample.fresh(True), 2)),
    )


def of_forward(sample: Sample, backend: str) -> Iterator[Pair]:
    constant = sample.fresh()
    places = [i for i, t in enumerate(constant) if t.is_floating_point()]

    def f(*own: Tensor) -> Any:
        tensors = list(constant)
        for i, t in zip(places, own, strict=True):
            tensors[i] = t
        outs = [t for t in tree_leaves(sample(*tensors)) if isinstance(t, Tensor)]
        return tuple(t for t in outs if t.is_floating_point() or t.is_complex())

    def given() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        primals = tuple(sample.fresh()[i] for i in places)
        return primals, tuple(cotangents(primals))

    if places:
        yield (lambda: func.jvp(f, *given())), (lambda: fg.jvp_compiled(f, *given(), backend=backend))


def of_vmap(sample: Sample, backend: str) -> Iterator[Pair]:
    if not sample.tensors:
        return

    def batched(dim: int) -> list[Tensor]:
        first, *others = sample.fresh()
        return [torch.stack([first, first.flip(0) if first.ndim else first], dim), *others]

    for dim in (0, -1):
        dims = (dim, *[None] * (len(sample.tensors) - 1))
        yield (
            lambda dim=dim, dims=dims: func.vmap(sample, dims, randomness="same")(*batched(dim)),
            lambda dim=dim, dims=dims: fg.vmap_compiled(sample, dims, randomness="same", backend=backend)(
                *batched(dim)
            ),
        )
    yield (
        lambda: func.vmap(sample, dims, randomness="same")(*batched(-1)),
        lambda: func.vmap(fg.jit(sample, backend=backend), dims, randomness="same")(*batched(-1)),
    )


def of_in_place(sample: Sample, backend: str) -> Iterator[Pair]:
    def written(make: Callable[[Any], Any]) -> Any:
        tensors = sample.fresh()
        result = make(sample)(*tensors)
        return strides_of((result, tensors)), result is tensors[0]

    def with_history(make: Callable[[Any], Any]) -> Any:
        leaf, *others = sample.fresh()
        leaf.requires_grad_(leaf.is_floating_point())
        x = leaf * 1
        make(sample)(x, *others)
        return x.detach(), torch.autograd.grad(x, leaf, cotangents([x])) if x.requires_grad else None

    for check in (written, with_history):
        yield (
            (lambda check=check: check(lambda f: f)),
            (lambda check=check: check(lambda f: fg.jit(f, backend=backend))),
        )


def of_engine(sample: Sample, backend: str) -> Iterator[Pair]:
    """Two backward passes of one shape: the second is no capture of its own."""

    def gradients(region: Any) -> Any:
        found = []
        with region:
            for _ in range(2):
                leaves = sample.fresh(True)
                roots = differentiable(sample(*leaves))
                if roots:
                    torch.autograd.backward(roots, cotangents(roots))
                found.append([t.grad for t in leaves])
        return found

    def captured() -> Any:
        regions.reset()
        region = fg.compiled_autograd(backend=backend)
        found = gradients(region)
        return found, len(region.captures) <= 1, regions.refusals(region)

    yield (lambda: (gradients(contextlib.nullcontext()), True, "")), captured


KINDS: dict[str, tuple[Callable[[Sample, str], Iterator[Pair]], str]] = {
    "value": (of_value, "c"), "gradient": (of_gradient, "c"), "second": (of_second, "aten"),
    "forward": (of_forward, "aten"),
    "vmap": (of_vmap, "aten"), "in-place": (of_in_place, "aten"),
    "engine": (of_engine, "aten"),
}  # fmt: skip


MEMBERS: dict[str, Callable[[Check], Iterator[Case]]] = {
    "modules": modules, "engine-modules": backward_of_modules, "optimisers": optimisers,
}  # fmt: skip


# ── the sweep ────────────────────────────────────────────────────────────────────────────────────────────────────────

UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose results are memory that nobody wrote to: only what they look like is compared."""


PAIRS: Counter[str] = Counter()
"""How many pairs of calls were compared, and how many had no oracle: eager PyTorch raises."""


def checked(pair: Pair, looks_alone: bool = False) -> str | None:
    """How two calls differ. What eager PyTorch warns of, a compiled function may, too."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = seeded(pair[0])
    PAIRS["without oracle" if isinstance(expected, Raised) else "compared"] += 1
    if isinstance(expected, Raised):
        return None
    with warnings.catch_warnings(record=True) as says:
        warnings.simplefilter("always")
        found = seeded(pair[1])
    if looks_alone:
        expected, found = tree_map_only(Tensor, torch.zeros_like, (expected, found))
    slow = "There is a performance drop because we have not yet implemented the batching rule"
    if any(slow in str(w.message) for w in says) and not any(slow in str(w.message) for w in said):
        return "falls back to a loop under vmap, where eager PyTorch does not"
    return difference(found, expected)


@frozen
class Limits:
    """How much of a sweep is run."""

    samples: int | None = None
    """At most so many of each operator, in each dtype."""
    dtypes: int | None = None
    """At most so many."""
    backend: str | None = None

    @property
    def is_all(self) -> bool:
        return self.samples is None and self.dtypes is None


Differences = Callable[[Limits], Iterator[str]]


def cases(kind: str) -> Iterator[tuple[str, Differences]]:
    """Names, and what says how an operator (module, optimiser) differs."""
    if kind in MEMBERS:
        yield from ((name, lambda limits, of=of: of(limits.samples)) for name, of in MEMBERS[kind](checked))
    else:
        for info in op_db:
            name = ".".join(part for part in (info.name, info.variant_test_name) if part)
            yield name, lambda limits, info=info: _differences(kind, info, limits)  # type: ignore[misc]


def _differences(kind: str, info: Any, limits: Limits) -> Iterator[str]:
    pairs, backend = KINDS[kind]
    for dtype in DTYPES[kind][: limits.dtypes]:
        if is_suited(info, kind, dtype):
            for sample in samples_of(info, kind, dtype, limits.samples):
                for pair in pairs(sample, limits.backend or backend):
                    text = checked(pair, info.name in UNWRITTEN)
                    if text is not None:
                        yield f"{str(dtype).removeprefix('torch.')}: {text}"


def excepted(kind: str, name: str) -> list[str]:
    """Parts of what may be said of an operator, one of which each thing that is said of it must have."""
    return [one.says for one in EXCEPTIONS if name in one.names(kind)]


def report(kind: str, name: str, differences: Iterable[str], is_all: bool) -> list[str]:
    """What an operator does that is no exception, and (of all samples) the exceptions that are none any more."""
    known = excepted(kind, name)
    met: set[str] = set()
    found: dict[str, str] = {}
    for text in differences:
        reason = next((said for said in known if said in text), None)
        if reason is None:
            found.setdefault(text.split(": ", 1)[-1][:60], text)
        else:
            met.add(reason)
    gone = [f"is an exception no more: {said}" for said in known if is_all and said not in met]
    return [f"{kind} {name}: {text}" for text in (*found.values(), *gone)]


def main(kind: str, part: str = "1/1", samples: str = "", backend: str = "") -> int:
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # calls that raise are meant to
    first, parts = map(int, part.split("/"))
    limits = Limits(int(samples) if samples else None, backend=backend or None)
    counts: Counter[str] = Counter()
    for name, differences in itertools.islice(cases(kind), first - 1, None, parts):
        before = PAIRS["compared"]
        found = report(kind, name, differences(limits), limits.is_all)
        counts["compared with nothing"] += PAIRS["compared"] == before
        counts["differ" if found else "excepted" if excepted(kind, name) else "agree"] += 1
        for text in found:
            print(" ".join(text.split())[:400], flush=True)
    print(dict(counts), dict(PAIRS))
    return int(counts["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
