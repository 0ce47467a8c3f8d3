"""All that is refused, one row each: a call, the error it raises, and the same as the fix of that error says, which
works.

A row is read by ``test_errors.py``. What stands in ``fixed`` is written as ``fix`` of the error says, and must agree
with eager PyTorch; where nothing stands, the same function is called with other arguments, options, or in other
surroundings.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import pickle
import queue
import random
import tempfile
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._inductor.fx_passes.post_grad  # has operators
import torch.distributed as dist
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint
from turns import in_turn

import funcgrad as fg
from funcgrad.errors import Refusal
from funcgrad.refusals import memory, random_numbers, tracing

Make = Callable[[], tuple[Any, ...]]


@frozen
class Row:
    """One thing that is refused: ``transform(f, **options)(*args())`` raises ``kind``, in whose message ``says``
    stands, and whose ``where`` is a line of this file, unless another is named here. The fix is that call with what
    stands in the four last fields."""

    name: str
    kind: type[fg.FuncgradError]
    says: str
    f: Any
    args: Make
    fixed: Any = None
    fixed_args: Make | None = None
    fixed_options: dict[str, Any] | None = None
    fixed_around: Callable[[], Any] | None = None
    transform: Callable[..., Any] = fg.jit
    options: dict[str, Any] = field(factory=dict)
    around: Callable[[], Any] = contextlib.nullcontext
    where: str | None = "line"
    before: Make | None = None
    """Arguments of a call that is not refused, and comes first."""
    calls: Callable[[Any, tuple[Any, ...]], Any] = lambda c, args: c(*args)
    """How the compiled function is called."""
    refusal: Refusal[fg.FuncgradError] | None = None
    """The row of the package's table; None for a mistake of the caller's."""
    anew: bool = False
    """Whether ``f`` makes the function: it behaves otherwise the second time it is called."""


def ones(*shape: int) -> Make:
    return lambda: (torch.ones(*shape or (3,)),)


def numbers() -> tuple[Tensor]:
    return (torch.tensor([0.5, -1.5, 2.5]),)


def leaf() -> tuple[Tensor]:
    return (torch.tensor([0.5, -1.5, 2.5], requires_grad=True),)


def computed() -> tuple[Tensor]:
    return (leaf()[0] * 1,)


def view() -> tuple[Tensor]:
    return (torch.arange(4.0, requires_grad=True)[1:],)


def two() -> tuple[Tensor, Tensor]:
    return torch.tensor([0.5, -1.5, 2.5]), torch.tensor([1.0, 2.0, 3.0])


def total(x: Tensor) -> Tensor:
    return x.sum()


def doubled(x: Tensor) -> Tensor:
    return x * 2


def undifferentiated(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """No transform: what is called is of funcgrad itself."""
    return f


def twice(c: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A gradient of a gradient."""
    (first,) = torch.autograd.grad(c(*args).sum(), args[0], create_graph=True)
    return torch.autograd.grad(first.sum(), args[0])[0]


def once(c: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A gradient."""
    return torch.autograd.grad(c(*args).sum(), args[0])[0]


ROWS: list[Row] = []


def row(name: str, refusal: Refusal[fg.FuncgradError], f: Any, args: Make, says: str = "", **more: Any) -> None:
    ROWS.append(Row(name, refusal.kind, says, f, args, refusal=refusal, **more))


def mistake(name: str, kind: type[fg.FuncgradError], says: str, f: Any, args: Make, **more: Any) -> None:
    """What is wrong with a call, or an option, itself."""
    ROWS.append(Row(name, kind, says, f, args, **more))


# ── arguments, and what is to be differentiated ──────────────────────────────────────────────────────────────────


class Incomparable:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        raise ValueError("ask me not")

    __hash__ = None  # type: ignore[assignment]


def ring() -> tuple[Any]:
    held: list[Any] = [torch.ones(3)]
    held.append(held)
    return (held,)


ARGUMENT = fg.ArgumentError
mistake(
    "argnums out of range",
    ARGUMENT,
    "1 positional argument",
    total,
    numbers,
    transform=fg.grad_compiled,
    options={"argnums": 1},
    fixed_options={"argnums": 0},
)
mistake(
    "argnums names one twice",
    ARGUMENT,
    "twice",
    lambda x, y: (x * y).sum(),
    two,
    transform=fg.grad_compiled,
    options={"argnums": (0, -2)},
    fixed_options={"argnums": (0, 1)},
    where=None,
)
mistake(
    "argnums is no position",
    ARGUMENT,
    "argnums=()",
    total,
    numbers,
    transform=fg.grad_compiled,
    options={"argnums": ()},
    fixed_options={"argnums": (0,)},
    where=None,
)
mistake(
    "static_argnums out of range",
    ARGUMENT,
    "position 2",
    lambda x, n: x * n,
    lambda: (torch.ones(3), 2),
    options={"static_argnums": 2},
    fixed_options={"static_argnums": 1},
    where=None,
)
mistake(
    "donate_argnums out of range",
    ARGUMENT,
    "donate_argnums names position 1",
    lambda x: x * 2,
    lambda: (torch.ones(3),),
    options={"donate_argnums": 1},
    fixed_options={"donate_argnums": ()},
    where=None,
)
mistake(
    "a position that is static and donated",
    ARGUMENT,
    "both name position 1",
    lambda x, n: x * n,
    lambda: (torch.ones(3), 2),
    options={"donate_argnums": 1, "static_argnums": -1},
    fixed_options={"static_argnums": -1},
    where=None,
)
mistake(
    "a donation without use",
    fg.DonationError,
    "no result",
    lambda x: x.sum(),
    lambda: (torch.ones(300),),
    options={"donate_argnums": 0, "donate": "strict"},
    fixed_options={},
    where="x",
)
mistake(
    "a NumPy array",
    ARGUMENT,
    "NumPy ndarray",
    doubled,
    lambda: (np.ones(3),),
    fixed_args=lambda: (torch.from_numpy(np.ones(3)),),
    where="x",
)
mistake("no function", ARGUMENT, "must be a function", torch.ones(3), ones(), fixed=total, where=None)
mistake(
    "a static value that does not compare",
    ARGUMENT,
    "cannot be compared",
    lambda x, box: x * 2,
    lambda: (torch.ones(3), Incomparable(2)),
    before=lambda: (torch.ones(3), Incomparable(2)),
    fixed_args=lambda: (torch.ones(3), {"x": 2}),
    where=None,
)
mistake(
    "a name for a checkpoint that is none",
    ARGUMENT,
    "takes a name",
    lambda x: fg.checkpoint_name(x * 2, 3),
    numbers,
    fixed=lambda x: fg.checkpoint_name(x * 2, "attention"),
    where=None,
)
mistake(
    "an integer to differentiate",
    fg.NonDifferentiableArgumentError,
    "has no gradient",
    lambda x: (x * 1.0).sum(),
    lambda: (torch.arange(3),),
    transform=fg.grad_compiled,
    fixed_args=lambda: (torch.arange(3).float(),),
    where="x",
)
mistake(
    "an integer among others to differentiate",
    fg.NonDifferentiableArgumentError,
    "n is an int",
    lambda x, n: x.sum() * n,
    lambda: (torch.ones(3), 2),
    transform=fg.grad_compiled,
    options={"argnums": (0, 1)},
    fixed_options={"argnums": (0,)},
    where="n",
)
mistake(
    "a loss that is no scalar",
    fg.NonScalarOutputError,
    "float32 tensor of shape [3]",
    doubled,
    numbers,
    transform=fg.grad_compiled,
    fixed=lambda x: doubled(x).sum(),
)
mistake(
    "no pair where has_aux says so",
    fg.AuxError,
    "has_aux=True",
    total,
    numbers,
    transform=fg.grad_compiled,
    options={"has_aux": True},
    fixed=lambda x: (x.sum(), x * 2),
)
mistake(
    "a container that holds itself",
    fg.ContainerError,
    "holds itself",
    lambda a: a[0] * 2,
    ring,
    fixed_args=lambda: ([torch.ones(3)],),
    where="a[1]",
)
mistake(
    "a result that holds itself",
    fg.ContainerError,
    "holds itself",
    lambda x: ring()[0],
    numbers,
    fixed=lambda x: ring()[0][:1],
    where="result[1]",
)
mistake(
    "an object that holds tensors",
    fg.ContainerError,
    "no pytree",
    lambda box: box.x * 2,
    lambda: (types.SimpleNamespace(x=torch.ones(3)),),
    fixed=lambda box: box["x"] * 2,
    fixed_args=lambda: ({"x": torch.ones(3)},),
    where="box",
)
mistake(
    "a set of tensors",
    fg.ContainerError,
    "no pytree",
    lambda given: next(iter(given[1])) * 2,
    lambda: (types.SimpleNamespace(x={torch.ones(3)}),),
    fixed=lambda given: given[0] * 2,
    fixed_args=lambda: ([torch.ones(3)],),
    where="given",
)
mistake(
    "a static argument that holds tensors",
    fg.ContainerError,
    "static argument",
    lambda x, ys: x * ys[0],
    lambda: (torch.ones(3), [torch.ones(3)]),
    options={"static_argnums": 1},
    fixed_options={},
    where="ys",
)
mistake(
    "trees of other structure",
    fg.TreeMismatchError,
    "a dict of ['w']",
    lambda a, b: fg.tree_map(torch.add, a, b),
    lambda: ({"w": torch.ones(3)}, [torch.ones(3)]),
    transform=undifferentiated,
    where="tree",
    fixed_args=lambda: ({"w": torch.ones(3)}, {"w": torch.ones(3)}),
)


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────


def option(name: str, wrong: Any, right: Any, what: str, **more: Any) -> None:
    mistake(
        f"the option {name}={wrong!r}",
        fg.OptionError,
        what,
        total,
        numbers,
        options={name: wrong},
        fixed_options={name: right},
        where=None,
        **more,
    )


option("backend", "cuda", "aten", "backend='cuda'")
option("dynamic", "yes", None, "dynamic='yes'")
option("rng", "mersenne", "philox", "rng='mersenne'")
option("numerics", "exact", "eager", "numerics='exact'")
option("memory_budget", "much", "512MiB", "memory_budget='much'")
option("backward_autocast", [1], [{"device_type": "cpu", "dtype": torch.bfloat16}], "backward_autocast=")
option("policy", "dots", "dots_saveable", "policy='dots'")
option("static_argnums", "x", (), "names no positions")
option("donate_argnums", "x", (), "names no positions")
option("donate", "always", "strict", "donate='always'")
mistake(
    "an option that is none",
    fg.OptionError,
    "'bakend'",
    total,
    numbers,
    options={"bakend": "c"},
    fixed_options={"backend": "c"},
    where=None,
)
mistake(
    "options that exclude each other",
    fg.OptionError,
    "its own",
    total,
    numbers,
    options={"numerics": "eager", "backend": "c"},
    fixed_options={"numerics": "eager"},
    where=None,
)


# ── values that are not known while the function is traced ───────────────────────────────────────────────────────


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def chooses(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


CONTROL, SHAPE = fg.DataDependentControlFlowError, fg.DataDependentShapeError
NO_READS = {"reads": "error"}
OPAQUE = fg.opaque(lambda x: None, like=None)
row("if", tracing.ASKED_FOR_VALUE, branches, numbers, fixed=chooses, options=NO_READS)
row(
    "if, in a gradient",
    tracing.ASKED_FOR_VALUE,
    lambda x: branches(x).sum(),
    numbers,
    transform=fg.grad_compiled,
    fixed=lambda x: torch.where(x.sum() > 0, x.sin(), x.cos()).sum(),
    options=NO_READS,
)
row(
    "item()",
    tracing.ASKED_FOR_VALUE,
    lambda x: x * x.max().item(),
    numbers,
    fixed=lambda x, m: x * m,
    fixed_args=lambda: (*numbers(), 2.5),
    options=NO_READS,
)
row(
    "tolist()",
    tracing.ASKED_FOR_VALUE,
    lambda x: x * x.tolist()[0],
    numbers,
    fixed=lambda x, m: x * m,
    fixed_args=lambda: (*numbers(), 0.5),
    options=NO_READS,
)
row(
    "a number in a text",
    tracing.ASKED_FOR_VALUE,
    lambda x: (x * 2, f"{x.max():.2f}"),
    numbers,
    fixed=lambda x, text: (x * 2, text),
    fixed_args=lambda: (*numbers(), "2.50"),
    options=NO_READS,
)
row(
    "if, in a branch",
    tracing.VALUE_KNOWN_LATER,
    lambda x: torch.cond(x.sum() > 0, branches, torch.neg, (x,)),
    numbers,
    fixed=lambda x: torch.cond(x.sum() > 0, chooses, torch.neg, (x,)),
)
STEP = fg.opaque(lambda x: x * 2, like=lambda x: x)
row(
    "a distribution of what an opaque call computes",
    tracing.VALUE_OF_CALLBACK,
    lambda x: torch.distributions.Normal(STEP(x), 1.0, validate_args=True).log_prob(x),
    numbers,
    fixed=lambda x: torch.distributions.Normal(STEP(x), 1.0, validate_args=False).log_prob(x),
    says="a value that callback computes",
)
row(
    "a mask of what an opaque call computes",
    tracing.SIZE_OF_CALLBACK,
    lambda x: x[STEP(x) > 0].sum(),
    numbers,
    fixed=lambda x, doubled: x[doubled > 0].sum(),
    fixed_args=lambda: (*numbers(), STEP(*numbers())),
)
row("numpy()", tracing.ASKED_FOR_ARRAY, lambda x: x * np.max(x.numpy()), numbers, fixed=lambda x: x * x.max())
row(
    "the size of a storage",
    tracing.STORAGE_SIZE,
    lambda x: x * x.untyped_storage().nbytes(),
    numbers,
    fixed=lambda x: x * (x.numel() * x.element_size()),
)
row(
    "an element of a storage",
    tracing.ASKED_FOR_MEMORY,
    lambda x: x * x.untyped_storage()[0],
    numbers,
    fixed=lambda x: x * x[0],
    says="the storage of a tensor",
)
row(
    "DLPack",
    tracing.ASKED_FOR_MEMORY,
    lambda x: torch.from_dlpack(x) * 2,
    numbers,
    fixed=lambda x: x * 2,
    says="DLPack",
)
row(
    "a mask",
    tracing.SIZE_OF_VALUES,
    lambda x: x[x > 0].sum(),
    numbers,
    fixed=lambda x: torch.where(x > 0, x, 0).sum(),
    options=NO_READS,
)
row(
    "nonzero",
    tracing.SIZE_OF_VALUES,
    lambda x: x[x.nonzero()[:, 0]].sum(),
    numbers,
    fixed=lambda x, at: x[at].sum(),
    fixed_args=lambda: (*numbers(), torch.arange(3)),
    options=NO_READS,
)
row(
    "a draw that decides, after an opaque call",
    tracing.CALL_BEFORE_DRAWN_READ,
    lambda x: (OPAQUE(x), x * 2 if torch.rand(()) < 2 else x)[1],
    numbers,
    fixed=lambda x: [x * 2 if torch.rand(()) < 2 else x, OPAQUE(x)][0],
)
row(
    "least squares",
    tracing.SIZE_OF_SOLUTION,
    lambda a, b: torch.linalg.lstsq(a, b).solution,
    lambda: (torch.eye(3), torch.ones(3, 1)),
    fixed=lambda a, b: torch.linalg.pinv(a) @ b,
    options=NO_READS,
    says="linalg_lstsq",
)


# ── other transforms ─────────────────────────────────────────────────────────────────────────────────────────────

FILL = fg.opaque(lambda a, b: (a.fill_(1.0), None)[1], like=None, writes=0)
TRANSFORM = fg.UnsupportedTransformError


def scales_by_a_hidden(y: Tensor) -> Tensor:
    hidden = weakref.ref(y)
    scaled: Tensor = fg.jit(lambda factor: (factor * hidden()).sum())(2.0)
    return scaled


def counts_in(total: Tensor) -> Callable[[Tensor], Tensor]:
    return fg.jit(lambda x: (total.add_(x.sum().detach()), (x * x).sum())[1])


row(
    "a captured tensor of vmap",
    tracing.OF_OUTER_TRANSFORM,
    torch.vmap(scales_by_a_hidden),
    ones(2, 3),
    transform=undifferentiated,
    fixed=fg.jit(torch.vmap(lambda y: (2.0 * y).sum())),
)
row(
    "a pullback of eager PyTorch at a point that requires grad",
    tracing.PULLBACK_OF_HISTORY,
    lambda x: fg.jit(torch.func.vjp(torch.exp, x)[1])(torch.ones(3)),
    leaf,
    transform=undifferentiated,
    fixed=lambda x: fg.jit(fg.vjp_compiled(torch.exp, x)[1])(torch.ones(3)),
)
row(
    "a buffer that each sample writes to",
    memory.SHARED_BY_SAMPLES,
    lambda x: torch.vmap(torch.func.grad(counts_in(torch.zeros(()))))(x),
    ones(2, 3),
    transform=undifferentiated,
    where=None,
    fixed=fg.jit(torch.vmap(torch.func.grad(lambda x: (x * x).sum()))),
)
row(
    "a method of a generator that was taken before",
    random_numbers.KNOWS_OLD_METHOD,
    lambda x: (SEEDS(3), x + torch.rand(3, generator=GENERATOR))[1],
    numbers,
    where="SEEDS",
    fixed=lambda x: (GENERATOR.manual_seed(3), x + torch.rand(3, generator=GENERATOR))[1],
)
row(
    "a seed that nobody knows",
    random_numbers.SEEDED_UNTOLD,
    lambda x: (torch.seed(), x + torch.rand(3))[1],
    numbers,
    fixed=lambda x: (torch.manual_seed(7), x + torch.rand(3))[1],
)


def forks(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        x = x + torch.rand(3)
    return x


row(
    "a fork of the generator",
    random_numbers.STATE_OF_PHILOX,
    forks,
    numbers,
    options={"rng": "philox"},
    fixed_options={"rng": "eager"},
)
row(
    "normal_ with gaps",
    random_numbers.NORMAL_WITH_GAPS,
    lambda x: x[:, ::2].normal_(),
    ones(6, 8),
    fixed=lambda x: x[:, ::2].copy_(torch.randn(6, 4)),
)
row(
    "a draw that philox has no rule for",
    random_numbers.NO_PHILOX_RULE,
    lambda x: torch.poisson(x.abs()),
    numbers,
    options={"rng": "philox"},
    fixed_options={"rng": "eager"},
)
row(
    "whole numbers beyond philox",
    random_numbers.DRAW_TOO_WIDE,
    lambda x: torch.randint(-(2**62), 2**62 + 7, (3,)) * x,
    numbers,
    options={"rng": "philox"},
    fixed_options={"rng": "eager"},
)
row(
    "a context_fn of its own",
    tracing.CHECKPOINT_CONTEXTS,
    lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (torch.no_grad(), torch.no_grad())),
    leaf,
    fixed=lambda x: checkpoint(
        torch.sin,
        x,
        use_reentrant=False,
        context_fn=functools.partial(
            torch.utils.checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.sin.default]
        ),
    ),
)


row(
    "linearize inside",
    tracing.CALLS_LINEARIZE,
    lambda x: torch.func.linearize(torch.sin, x)[1](x),
    numbers,
    fixed=lambda x: fg.linearize_compiled(torch.sin, x)[1](x),
)


def draws_in_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * torch.rand_like(x), lambda x: x * 2, (x,))


def draws_outside_of_it(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x, r: x * r, lambda x, r: x * 2, (x, torch.rand_like(x)))


row(
    "a draw in a branch",
    random_numbers.BODY_DRAWS,
    draws_in_a_branch,
    leaf,
    fixed=draws_outside_of_it,
    calls=once,
    says="a branch of torch.cond draws",
)


def returns_its_own_leaf(x: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.ones(3).requires_grad_()
    return made, made * x


row(
    "a leaf it made",
    tracing.RETURNS_OWN_LEAF,
    returns_its_own_leaf,
    numbers,
    fixed=lambda x, made: (made, made * x),
    fixed_args=lambda: (*numbers(), torch.ones(3, requires_grad=True)),
    where=None,
)


def adds_to_the_gradient(x: Tensor, w: Tensor) -> Tensor:
    w.grad = torch.ones(3)
    return (x**3).sum() * w.detach().sum()


row(
    "a second derivative beside a gradient",
    tracing.SECOND_DERIVATIVE_OF_GRADIENT,
    adds_to_the_gradient,
    lambda: (*leaf(), torch.ones(3, requires_grad=True)),
    calls=twice,
    where="the backward pass that is differentiated (create_graph=True)",
    fixed=lambda x, w: (x**3).sum() * w.detach().sum(),
)
OWN_LEAF = torch.full((3,), 0.5, requires_grad=True)


class BackwardWithin(torch.autograd.Function):
    """Its backward pass adds to the gradient of a leaf by one of its own."""

    @staticmethod
    def forward(ctx, x, then):
        ctx.then = then
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if ctx.then == "reads a value" and grad.sum() < -1e9:
            return -grad, None
        if ctx.then != "returns it":
            with torch.enable_grad():
                (OWN_LEAF * 2).sum().backward()
        return grad * 2 if ctx.then != "asks" else grad + OWN_LEAF.grad, None


def backward_within(then):
    return lambda x: BackwardWithin.apply(x if then == "reads a value" else x * OWN_LEAF, then).sum()


row(
    "a gradient that backward adds to and asks for",
    tracing.ACCUMULATED_AND_ASKED,
    backward_within("asks"),
    leaf,
    calls=once,
    fixed=backward_within("returns it"),
)
row(
    "a gradient of what backward alone uses",
    tracing.ACCUMULATES_UNKNOWN,
    backward_within("reads a value"),
    leaf,
    calls=once,
    fixed=backward_within("adds"),
)


# ── what is another thing in each call ───────────────────────────────────────────────────────────────────────────

IMPURE, TRACE = fg.ImpureFunctionError, fg.TraceError
GENERATOR = torch.Generator()
SEEDS = GENERATOR.manual_seed
NUMPY = np.random.default_rng(0)
COUNT = itertools.count()
TURNS = [0]
KEPT: dict[str, Any] = {}


def drawn_from() -> torch.Generator:
    generator = torch.Generator()
    torch.rand(3, generator=generator)
    return generator


row(
    "random.random()",
    random_numbers.DRAWS_ELSEWHERE,
    lambda x: x * random.random(),
    numbers,
    fixed=lambda x: x * torch.rand(()),
    where="random",
    says="draws from random",
)
row(
    "np.random",
    random_numbers.DRAWS_ELSEWHERE,
    lambda x: x * NUMPY.random(),
    numbers,
    fixed=lambda x, k: x * k,
    fixed_args=lambda: (*numbers(), 0.25),
    where="NUMPY",
)
row(
    "random.seed()",
    random_numbers.SEEDS_ELSEWHERE,
    lambda x: (random.seed(3), x * 2)[1],
    numbers,
    fixed=lambda x: x * 2,
    where="random",
)
row(
    "an iterator",
    tracing.ITERATES,
    lambda x: x * next(COUNT),
    numbers,
    fixed=lambda x, n: x * n,
    fixed_args=lambda: (*numbers(), 2),
    where="COUNT",
)
row(
    "an own generator",
    random_numbers.GENERATOR_OF_PHILOX,
    lambda x: x + torch.rand(3, generator=GENERATOR),
    numbers,
    options={"rng": "philox"},
    fixed=lambda x: x + torch.rand(3, generator=GENERATOR.manual_seed(0)),
    fixed_options={"rng": "eager"},
)
row(
    "a copy of a generator",
    random_numbers.GENERATOR_COPIED,
    lambda x: x + torch.rand(3, generator=drawn_from().clone_state()),
    numbers,
    fixed=lambda x: x + torch.rand(3, generator=GENERATOR.manual_seed(0)),
)


def other_branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x[:2] * 2, lambda x: x * 1, (x,))


row(
    "branches of other sizes",
    tracing.BRANCH_TYPES,
    other_branches,
    numbers,
    fixed=lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 1, (x,)),
)
row(
    "a view that would copy",
    tracing.VIEW_WILL_NOT_DO,
    lambda x: x.t().view(-1),
    ones(2, 3),
    fixed=lambda x: x.t().reshape(-1),
    says="view",
)


# ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────────

MUTATION, ALIAS = fg.MutationError, fg.AliasContractError
WEIGHT = nn.Parameter(torch.ones(3))


def inference() -> tuple[Tensor]:
    with torch.inference_mode():
        return (torch.arange(3.0),)


def writes(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum()


def writes_a_clone(x: Tensor) -> Tensor:
    x = x.clone()
    x.mul_(2)
    return x.sum()


def restrides_and_gives(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x.data = torch.ones(3)
    return x.detach().sum()


def gives(x: Tensor) -> Tensor:
    x.data = torch.ones(3)
    return x.sum()


def sets(x: Tensor) -> Tensor:
    x.set_(torch.ones(3))
    return x.sum()


def detaches(x: Tensor) -> Tensor:
    x.detach_()
    x.mul_(WEIGHT)
    return x.sum()


def runs_backward_of_weight(x: Tensor) -> Tensor:
    (HOOKED[0] * HOOKED[0]).sum().backward()
    return x.sum()


def asks_for_the_gradient(x: Tensor) -> Tensor:
    return x.detach() * torch.autograd.grad((x * x).sum(), x)[0]


def hooked(x: Tensor) -> tuple[Tensor]:
    x.register_hook(lambda g: g * 2)
    return (x,)


HOOKED = hooked(*leaf())


def hook_outside(x: Tensor) -> Tensor:
    return x.detach() * torch.autograd.grad((x * x).sum(), x)[0] * 2


def registers(x: Tensor) -> Tensor:
    x.register_post_accumulate_grad_hook(lambda p: None)
    return x * 2


def registers_in_backward(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: x.register_hook(lambda h: h * 10) and None)
    return y * 2


class RegistersByValue:
    """Nobody sees what its hook does before it runs: it reads a value that comes in then."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self.weight = torch.ones(3, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        y = x * self.weight
        y.register_hook(self.hook)
        return y * 2

    def hook(self, g: Tensor) -> None:
        if g.sum() > 0:
            self.handles.append(self.weight.register_hook(lambda h: h * 10))


def hooked_once() -> tuple[Tensor]:
    (x,) = leaf()
    handle = x.register_hook(lambda g: (handle.remove(), g * 7)[1])
    return (x,)


def runs_its_backward(x: Tensor) -> Tensor:
    (x * x).sum().backward()
    return x.detach() * 2


def retained() -> tuple[Tensor]:
    (x,) = computed()
    x.retain_grad()
    return (x,)


def keeps_its_gradient(x: Tensor) -> Tensor:
    x.retain_grad()
    return x * 2


def fills_windows(x: Tensor) -> Tensor:
    x.unfold(0, 2, 1).mul_(2)
    return x.sum()


def shifts(x: Tensor) -> Tensor:
    x[1:].copy_(x[:-1])
    return x * 1


def adds_below_an_array(x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    t = torch.zeros(3)
    array = of(t).numpy()[1:]
    t += 1
    return x * t * (2.0 + float(array[0]))


def adds_shifted(x: Tensor) -> Tensor:
    x[1:].addmv_(torch.eye(2), x[:-1])
    return x * 1


def adds_a_shifted_copy(x: Tensor) -> Tensor:
    x[1:].addmv_(torch.eye(2), x[:-1].clone())
    return x * 1


def puts_into_a_queue(x: Tensor, results: Any) -> Tensor:
    results.put(x * 2)
    return x


def appends_to_a_list(x: Tensor, results: Any) -> Tensor:
    results.append(x * 2)
    return x


def stores_into_one_of_two(a: dict[str, Any], b: dict[str, Any]) -> None:
    a["h"] = b["x"] * 2


def one_twice() -> tuple[Any, ...]:
    state = {"x": torch.ones(3)}
    return state, state


def sets_an_attribute(x: Tensor) -> Tensor:
    x.mine = 3
    return x * 2


def resizes(x: Tensor) -> Tensor:
    return (x * 2)[1:].resize_(10)[:2] * 1


def resizes_and_tracks(x: Tensor, w: Tensor) -> Tensor:
    return x.resize_(10).copy_(w)[:2] * 1


def writes_around(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.as_strided((2,), (1,), 0).mul_(2)
    return x.sum()


def writes_to_all(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[:2].mul_(2)
    return x[1:].sum()


def switches_off(w: Tensor, x: Tensor) -> Tensor:
    w.requires_grad_(False)
    return (w * 2).sum() + x.sum()


def transposes_and_switches(x: Tensor) -> Tensor:
    x.t_()
    x.requires_grad_()
    return x * 2


def switches_and_transposes(x: Tensor) -> Tensor:
    x.requires_grad_()
    return x.t() * 2


row("a write to a leaf", memory.WRITES_INTO_LEAF, writes, leaf, fixed=writes_a_clone)
row("a write to a view of a leaf", memory.WRITES_INTO_LEAF, writes, view, fixed=writes_a_clone)
row(
    "a write to a parameter",
    memory.WRITES_INTO_LEAF,
    lambda x: (WEIGHT.mul_(2), x * WEIGHT)[1],
    numbers,
    fixed=lambda x: x * WEIGHT.clone().mul_(2),
)
row("a write in a gradient", memory.WRITES_INTO_LEAF, writes, numbers, transform=fg.grad_compiled, fixed=writes_a_clone)
row("a write to an inference tensor", memory.INFERENCE_TENSOR, writes, inference, fixed_args=ones(), where="x")
row(
    "a write that requires grad, to memory that overlaps itself",
    memory.OVERLAPS_ITSELF_TRACKED,
    lambda x: x.mul_(WEIGHT[0]).sum(),
    lambda: (torch.ones(5).as_strided((3, 2), (1, 1)),),
    fixed=lambda x: x.clone().mul_(WEIGHT[0]).sum(),
)
row(
    "other memory of a view that requires grad, and other sizes",
    memory.OTHER_MEMORY,
    restrides_and_gives,
    lambda: ((torch.ones(4, requires_grad=True) * 1)[1:],),
    fixed=lambda x: x.copy_(torch.ones(3)).sum(),
    where="x",
    says="writes to it, or changes its sizes, a view that requires grad",
)
row(
    "other memory of other sizes, with a history",
    memory.MEMORY_OF_OTHER_KIND,
    lambda x, y: (setattr(x, "data", y), x * 2)[1],
    lambda: (*leaf(), torch.ones(4)),
    fixed=lambda x, y: (setattr(x, "data", y), x.detach() * 2)[1],
)
row(
    "other memory of a subclass",
    memory.MEMORY_OF_OTHER_CLASS,
    lambda x, y: (setattr(x, "data", y), x.a * 2)[1],
    lambda: (pair(), torch.ones(2, 3)),
    fixed=lambda x, y: y * 2,
)
row(
    "set_ that is tracked, twice",
    memory.HISTORY_GIVEN,
    lambda x: (x.set_(WEIGHT * 2), x.set_(WEIGHT * 3), 1)[2],
    ones(),
    fixed=lambda x: (setattr(x, "data", WEIGHT.detach() * 2), setattr(x, "data", WEIGHT.detach() * 3), 1)[2],
)
row(
    "set_ of what others share a history with",
    memory.HISTORY_REUSED,
    lambda x: (lambda z: (z[1:].set_(x.detach()), z * 2)[1])(x * 2),
    leaf,
    fixed=lambda x: (lambda z: (setattr(z[1:], "data", x.detach()), z * 2)[1])(x * 2),
)
row(
    "set_ of a storage",
    memory.STORAGE_GIVEN,
    lambda x: x.set_(torch.ones(4).untyped_storage()).sum(),
    ones(),
    fixed=lambda x: x.set_(torch.ones(4)).sum(),
)
_FILE = io.BytesIO()
torch.save(torch.ones(3), _FILE)
row(
    "torch.load",
    memory.STORAGE_GIVEN,
    lambda x: x * torch.load(io.BytesIO(_FILE.getvalue())),
    ones(),
    fixed=lambda x, loaded=torch.load(io.BytesIO(_FILE.getvalue())): x * loaded,
)
row(
    "other memory in two ways",
    memory.MEMORY_IN_TWO_WAYS,
    lambda x: (x.set_(torch.ones(3)), gives(x))[1],
    ones(),
    fixed=sets,
)
row(
    "detach_ and a write",
    memory.DETACHED_AND_WRITTEN,
    detaches,
    ones(),
    fixed=lambda x: (x.detach() * WEIGHT).sum(),
    where="x",
    says="detaches x",
)
row(
    "resize_ into what lies around",
    memory.RESIZED_AROUND,
    resizes,
    lambda: (torch.arange(3.0),),
    fixed=lambda x: torch.cat([(x * 2)[1:], torch.zeros(8)])[:2] * 1,
)
row(
    "resize_ of an argument, into which what is tracked is written",
    memory.RESIZED_AROUND,
    resizes_and_tracks,
    lambda: (torch.arange(3.0), torch.ones(10, requires_grad=True)),
    fixed=lambda x, w: w[:2] * 1,
    where="x",
)
row(
    "resize_ of what was given",
    memory.RESIZES_GIVEN,
    lambda x: (x.set_(torch.ones(3)), x.resize_(5).zero_(), x.sum())[2],
    ones(),
    fixed=lambda x: x.set_(torch.zeros(5)).sum(),
)
row(
    "backward to a leaf with a hook, in a gradient",
    memory.HOOKED_GRADIENT_OF_INPUT,
    runs_backward_of_weight,
    ones(),
    transform=fg.grad_compiled,
    fixed=total,
    where="HOOKED[0]",
    says="hooks of it would have to run",
)
row(
    "the gradient of what is computed, with a hook",
    memory.HOOKS_OF_INPUT,
    asks_for_the_gradient,
    lambda: hooked(*computed()),
    fixed=hook_outside,
    fixed_args=leaf,
)
row("a hook on a gradient", memory.ACCUMULATE_HOOK, registers, leaf, fixed=doubled)
row(
    "a hook that registers one",
    memory.HOOK_IN_BACKWARD,
    registers_in_backward,
    leaf,
    calls=once,
    fixed=lambda x: (x.register_hook(lambda h: h * 10), x * 4)[1],
)
row("a hook that registers one by value", memory.HOOK_IN_BACKWARD, RegistersByValue(), leaf, calls=once, fixed=doubled)
row(
    "a hook that removes itself",
    memory.REMOVES_HOOK,
    runs_its_backward,
    hooked_once,
    fixed_args=lambda: hooked(*leaf()),
)
row("retain_grad inside", memory.RETAINED_OUTSIDE, keeps_its_gradient, computed, fixed=doubled, fixed_args=retained)
row(
    "a write to windows",
    memory.OVERLAPS_ITSELF,
    fills_windows,
    ones(),
    fixed=lambda x: (x.clone().unfold(0, 2, 1) * 2).sum() * 0 + x.sum(),
)
row("a write that reads where it writes", memory.WRITES_WHAT_IT_READS, adds_shifted, numbers, fixed=adds_a_shifted_copy)
row(
    "a write below an array",
    memory.WRITES_BELOW_ARRAY,
    lambda x: adds_below_an_array(x, lambda t: t),
    numbers,
    fixed=lambda x: adds_below_an_array(x, torch.clone),
)
row(
    "a store into an argument",
    memory.STORES_INTO_ARGUMENT,
    puts_into_a_queue,
    lambda: (torch.ones(3), queue.SimpleQueue()),
    fixed=appends_to_a_list,
    fixed_args=lambda: (torch.ones(3), []),
    where="results …[0]",
)
row(
    "a store into an argument that is another, too",
    memory.STORES_INTO_SHARED,
    stores_into_one_of_two,
    one_twice,
    fixed_args=lambda: ({"x": torch.ones(3)}, {"x": torch.ones(3)}),
    where="a",
)
LAST = [torch.ones(3)]
row(
    "an argument that Python state holds, compared",
    memory.COMPARES_CONTAINERS,
    lambda batch: batch[0] * (2 if batch is LAST else 3),
    lambda: (LAST,),
    fixed_args=lambda: ([torch.ones(3)],),
    where="LAST",
)
row(
    "an attribute of an argument",
    memory.SETS_ATTRIBUTE,
    sets_an_attribute,
    numbers,
    fixed=lambda x: (x * 2, 3),
    where="x",
)
row(
    "requires_grad off below a view",
    memory.SWITCHED_OFF_BASE,
    switches_off,
    lambda: (lambda w: (w, w[1:]))(torch.ones(3, requires_grad=True)),
    fixed=lambda w, x: (w * 2).sum() + x.sum(),
    fixed_args=lambda: (lambda w: (w, w[1:]))(torch.ones(3)),
)
row(
    "requires_grad after t_",
    memory.SWITCHED_TOO_LATE,
    transposes_and_switches,
    ones(2, 3),
    fixed=switches_and_transposes,
)
row(
    "a write to a storage",
    memory.STORAGE_CHANGED,
    lambda x: (x.untyped_storage().fill_(0), x * 2)[1],
    numbers,
    fixed=lambda x: (x.zero_(), x * 2)[1],
)
row(
    "share_memory_",
    memory.MEMORY_MOVED,
    lambda x: x.share_memory_() * 2,
    numbers,
    fixed=doubled,
    fixed_args=lambda: (numbers()[0].share_memory_(),),
)
row(
    "memory around a tensor",
    memory.AROUND_A_VIEW,
    writes_around,
    lambda: (torch.arange(4.0)[1:].requires_grad_(),),
    fixed=writes_to_all,
    fixed_args=lambda: (torch.arange(4.0).requires_grad_(),),
)
row(
    "memory of two dtypes",
    memory.SHARED_AT_ODDS,
    lambda a, b: (a.add_(1), (a.sum() + b.sum()))[1],
    lambda: (lambda base: (base[:4], base.view(torch.int32)[2:]))(torch.zeros(8)),
    where="a",
    fixed_args=lambda: (lambda base: (base[:4], base.view(torch.int32)[2:].clone()))(torch.zeros(8)),
    says="different dtypes",
)


# ── Python state that is written ─────────────────────────────────────────────────────────────────────────────────

STATE = types.SimpleNamespace(made=None)
LINES: list[str] = []
LOGGER = logging.Logger("refused", logging.INFO)
LOGGER.addHandler(type("Lines", (logging.Handler,), {"emit": lambda self, record: LINES.append(record.getMessage())})())
BY_TENSOR: dict[Tensor, Tensor] = {}
MADE = [0.0]


def stores(what: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        STATE.made = what(x)
        return x * 2

    return f


def part() -> list[Any]:
    return [1]


def uses_what_it_stores(x: Tensor) -> Tensor:
    MADE[0] = nn.Parameter(torch.ones(3))
    return x * MADE[0]


def has_a_gradient(x: Tensor) -> nn.Parameter:
    made = nn.Parameter(torch.ones(3))
    (made * x).sum().backward()
    return made


row(
    "a lock is stored",
    memory.STORES_OBJECT,
    stores(lambda x: threading.Lock()),
    numbers,
    fixed=stores(lambda x: x),
    where="STATE.made",
    says="stores a new lock",
)
row(
    "one of several views is written to",
    memory.WRITES_INTO_ONE_OF_VIEWS,
    lambda x: (y := x * 1, y.chunk(2)[0].mul_(2), y.sum())[2],
    numbers,
    transform=fg.grad_compiled,
    fixed=lambda x: (y := x * 1, y[:2].mul_(2), y.sum())[2],
)
row(
    "a log comes to what the function uses",
    memory.OUTPUT_WRITES,
    lambda x: (LOGGER.info("a"), x * len(LINES))[1],
    numbers,
    fixed=lambda x: (LOGGER.info("a"), x * 2)[1],
    where="LINES",
)
row(
    "the id of an argument is stored",
    memory.STORES_OBJECT,
    stores(id),
    numbers,
    fixed=stores(lambda x: x),
    where="STATE.made",
    says="tells which tensor it was given",
)
row(
    "an argument is stored as a key",
    memory.STORES_OBJECT,
    lambda x: BY_TENSOR.setdefault(x, x * 2),
    numbers,
    fixed=stores(lambda x: x),
    where="BY_TENSOR",
    says="a key that tells which tensor it was given",
)
row(
    "a parameter it makes in each call is stored, and used",
    memory.STORES_OWN_LEAF,
    uses_what_it_stores,
    numbers,
    fixed_around=torch.no_grad,
    where="stored(MADE[0])",
)
row(
    "a gradient of a parameter it makes and stores",
    memory.STORES_WITH_GRADIENT,
    stores(has_a_gradient),
    numbers,
    fixed=stores(lambda x: has_a_gradient(x).grad),
    where="stored(STATE.made)",
)
row(
    "a ring is stored",
    memory.STORES_OBJECT,
    stores(lambda x: ring()[0]),
    numbers,
    fixed=stores(lambda x: ring()[0][:1]),
    where="STATE.made[1]",
    says="a container that holds itself",
)


# ── tensors and operators ────────────────────────────────────────────────────────────────────────────────────────


class Tagged(Tensor):
    pass


SPARSE = torch.eye(3).to_sparse()


LEAF = torch.ones(3, requires_grad=True)


@torch.jit.script
def scripted_product(a, b):
    return a * b


TENSOR = fg.UnsupportedTensorError
row(
    "a sparse argument",
    tracing.NOT_DENSE,
    total,
    lambda: (torch.eye(3).to_sparse(),),
    fixed_args=lambda: (torch.eye(3).to_sparse().to_dense(),),
    where="x",
    says="torch.sparse_coo",
)
row(
    "a subclass that is no wrapper",
    tracing.SUBCLASS_WITHOUT_FLATTEN,
    total,
    lambda: (torch.ones(3).as_subclass(Tagged),),
    fixed_args=lambda: (torch.ones(3).as_subclass(Tagged).as_subclass(Tensor),),
    where="x",
    says="Tagged",
)
row(
    "a leaf that TorchScript uses",
    tracing.LEAF_PAST_PYTHON,
    lambda x: scripted_product(x, LEAF).sum(),
    lambda: (torch.ones(3),),
    fixed=lambda x: (x * LEAF).sum(),
)
row(
    "a sparse tensor it closes over",
    tracing.NOT_DENSE,
    lambda x: (x * SPARSE).to_dense(),
    ones(3, 3),
    fixed=lambda x, s: x * s,
    fixed_args=lambda: (torch.ones(3, 3), SPARSE.to_dense()),
    says="torch.sparse_coo",
)
row(
    "a sparse tensor it makes",
    tracing.MAKES_SPARSE,
    lambda x: x.to_sparse().to_dense() * 2,
    numbers,
    fixed=doubled,
    says="makes a sparse tensor",
)
row(
    "a sparse gradient",
    tracing.MAKES_SPARSE,
    lambda w: F.embedding(torch.tensor([0, 2]), w, sparse=True).sum(),
    ones(3, 2),
    transform=fg.grad_compiled,
    fixed=lambda w: F.embedding(torch.tensor([0, 2]), w, sparse=False).sum(),
    says="sparse",
)
row(
    "a quantized tensor it makes",
    tracing.MAKES_SPARSE,
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    numbers,
    fixed=lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    says="a quantized tensor",
)
row(
    "a nested tensor it makes",
    tracing.MAKES_SPARSE,
    lambda x: torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0),
    numbers,
    fixed=lambda x: nn.utils.rnn.pad_sequence([x, x[:2]], batch_first=True),
    says="a nested tensor",
)
row(
    "the history of an argument",
    tracing.HISTORY_OF_INPUT,
    lambda x: x * len(x.grad_fn.next_functions),
    computed,
    fixed=lambda x, n: x * n,
    fixed_args=lambda: (*computed(), 2),
)
row(
    "_base",
    tracing.BASE_OF_INPUT,
    lambda x: x._base * 2,
    lambda: (torch.ones(4)[1:],),
    fixed=lambda x, base: base * 2,
    fixed_args=lambda: (lambda base: (base[1:], base))(torch.ones(4)),
)
row(
    "a comparison with _base",
    tracing.BASE_OF_INPUT,
    lambda v, x: x * 2 if v._base is x else x * 3,
    lambda: (lambda base: (base[1:], base))(torch.ones(4)),
    fixed=lambda v, x, is_view: x * 2 if is_view else x * 3,
    fixed_args=lambda: (lambda base: (base[1:], base, True))(torch.ones(4)),
)
row(
    "whether two tensors are one memory",
    tracing.ASKS_WHAT_CHANGES,
    lambda x, y: x * 2 if x.is_set_to(y) else x * 3,
    lambda: (lambda x: (x, x))(torch.ones(3)),
    fixed=lambda x, y: x * 2 if x is y else x * 3,
)
row(
    "the hooks of a tensor",
    tracing.ASKS_WHAT_CHANGES,
    lambda x: x * 2 if x._backward_hooks else x * 3,
    lambda: hooked(*leaf()),
    fixed=lambda x, is_hooked: x * 2 if is_hooked else x * 3,
    fixed_args=lambda: (*hooked(*leaf()), True),
)
row(
    "the address of a tensor",
    tracing.ASKS_WHAT_CHANGES,
    lambda x: x * (x.data_ptr() % 2),
    numbers,
    fixed=lambda x, odd: x * odd,
    fixed_args=lambda: (*numbers(), 0),
)
row(
    "a pickle",
    tracing.ASKS_WHAT_CHANGES,
    lambda x: pickle.loads(pickle.dumps(x)) * 2,
    numbers,
    fixed=lambda x: x.clone() * 2,
)
row(
    "a hook on what it returns",
    memory.HOOK_ON_RESULT,
    lambda x: (x.register_hook(lambda g: g * 2), x)[1],
    leaf,
    fixed=lambda x: (x.register_hook(lambda g: g * 2), x.view_as(x))[1],
)
row(
    "while_loop_stack_output",
    tracing.NOT_COMPILED,
    lambda x: torch.ops.higher_order.while_loop_stack_output(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x), ()
    )[1],
    numbers,
    fixed=lambda x: scan(lambda y, i: (y * 2, y * 2), x, torch.arange(3))[1],
    says="while_loop_stack_output",
)


@contextlib.contextmanager
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


row(
    "a collective",
    tracing.EFFECT_BY_TOKEN,
    lambda x: (y := x * 2, dist.all_reduce(y))[0],
    numbers,
    fixed=lambda x: fg.opaque(lambda t: (dist.all_reduce(t), t)[1], like=lambda t: t)(x * 2),
    around=group,
    fixed_around=group,
    says="c10d.allreduce_",
)
row(
    "a callback without a derivative",
    tracing.OPAQUE_WITHOUT_DERIVATIVE,
    lambda x: fg.pure_callback(np.sin, x, x).sum(),
    numbers,
    transform=fg.grad_compiled,
    fixed=lambda x: fg.pure_callback(
        np.sin, x, x, vjp=lambda args, out, cotangents: (cotangents * args[0].cos(),)
    ).sum(),
    says="differentiated in reverse mode, and nothing says",
)
row(
    "a callback without a tangent",
    tracing.OPAQUE_WITHOUT_DERIVATIVE,
    lambda x: torch.func.jvp(lambda x: fg.pure_callback(np.sin, x, x), (x,), (x,)),
    numbers,
    fixed=lambda x: torch.func.jvp(
        lambda x: fg.pure_callback(np.sin, x, x, jvp=lambda args, out, t: t[0] * args[0].cos()), (x,), (x,)
    ),
    says="differentiated in forward mode, and nothing says",
)
row(
    "a callback of samples",
    tracing.OPAQUE_WITHOUT_BATCH,
    lambda x: torch.vmap(lambda x: fg.pure_callback(np.sin, x, x))(x),
    numbers,
    fixed=lambda x: torch.vmap(lambda x: fg.pure_callback(np.sin, x, x, vmap_method="sequential"))(x),
)
row(
    "a tensor that a callback closes over",
    tracing.OPAQUE_CLOSES_OVER,
    lambda x: fg.pure_callback(lambda: x.numpy(), x),
    numbers,
    fixed=lambda x: fg.pure_callback(lambda a: a.numpy(), x, x),
)
row(
    "an opaque call that writes to shared memory",
    memory.OPAQUE_ALIASED_WRITE,
    lambda x: (y := x * 1, FILL(y, y[:1]), y)[2],
    numbers,
    fixed=lambda x: (y := x * 1, FILL(y, y[:1].clone()), y)[2],
)
mistake(
    "an opaque call that writes and says nothing of its result",
    ARGUMENT,
    "does not say how its result looks",
    lambda x: fg.opaque(FILL.function, writes=0)(x, x),
    numbers,
    fixed=lambda x: fg.opaque(np.sin, like=lambda x: x)(x),
)
row(
    "a program of an opaque call that says nothing of its result",
    tracing.OPAQUE_UNKNOWN,
    lambda x: fg.jit(lambda x: fg.opaque(np.sin)(x)).program(x)(x),
    numbers,
    fixed=lambda x: fg.jit(lambda x: fg.opaque(np.sin, like=lambda x: x)(x)).program(x)(x),
    transform=undifferentiated,
)
mistake(
    "a result that is no tensor's like",
    ARGUMENT,
    "does not say how a result looks",
    lambda x: fg.pure_callback(np.sin, 2.0, x),
    numbers,
    fixed=lambda x: fg.pure_callback(np.sin, x, x),
)
mistake(
    "a callback of another size",
    fg.OpaqueCallError,
    "and like says",
    lambda x: fg.pure_callback(lambda a: a.numpy().sum(), x, x),
    numbers,
    fixed=lambda x: fg.pure_callback(lambda a: a.numpy().sum(), x.sum(), x),
)
row(
    "a while_loop in a gradient",
    tracing.WHILE_IN_REVERSE,
    lambda x: torch.while_loop(lambda y: y.abs().sum() < 100, lambda y: (y * 2,), (x,))[0].sum(),
    numbers,
    transform=fg.grad_compiled,
    fixed=lambda x: functools.reduce(lambda y, _: torch.where(y.abs().sum() < 100, y * 2, y), range(20), x).sum(),
)
row(
    "a body that writes to what it is given",
    memory.BODY_WRITES,
    lambda x: scan(lambda c, y: (c.add_(y), c.clone()), torch.zeros(()), x)[1],
    numbers,
    fixed=lambda x: scan(lambda c, y: (c + y, c + y), torch.zeros(()), x)[1],
)
row(
    "a carry of another type",
    tracing.CARRY_CHANGES,
    lambda x: scan(lambda c, y: (c + y, c * y), torch.tensor(0), x)[1],
    numbers,
    fixed=lambda x: scan(lambda c, y: (c + y, c * y), torch.tensor(0.0), x)[1],
)
row(
    "a number as a carry",
    tracing.NO_TENSOR,
    lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1],
    numbers,
    fixed=lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1],
    says="a carried input of while_loop is 0",
)
row(
    "a result of a body that is no tensor",
    tracing.BODY_RETURNS_NO_TENSOR,
    lambda x: scan(lambda c, y: (c + y, 3.0), torch.zeros(()), x)[1],
    numbers,
    fixed=lambda x: scan(lambda c, y: (c + y, torch.full_like(y, 3.0)), torch.zeros(()), x)[1],
    says="returns 3.0, which is no tensor",
)
row(
    "a number that while_loop is to carry",
    tracing.LOOP_RETURNS_NO_TENSOR,
    lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, 2.0), (torch.tensor(0), x.sum()))[1],
    numbers,
    fixed=lambda x: torch.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, torch.tensor(2.0)), (torch.tensor(0), x.sum())
    )[1],
)
row(
    "a condition that is the same after each step",
    tracing.CONDITION_IS_CONSTANT,
    lambda x: torch.while_loop(lambda i, y: 1 < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1],
    numbers,
    fixed=lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1],
)
row(
    "a condition of many bools",
    tracing.CONDITION_TYPE,
    lambda x: torch.while_loop(lambda y: y.abs() < 100, lambda y: (y * 2,), (x,))[0],
    numbers,
    fixed=lambda x: torch.while_loop(lambda y: (y.abs() < 100).any(), lambda y: (y * 2,), (x,))[0],
)
row(
    "philox in a loop",
    random_numbers.BODY_DRAWS_PHILOX,
    lambda x: scan(lambda c, y: (c + y, y * torch.rand_like(y)), torch.zeros(()), x)[0],
    numbers,
    options={"rng": "philox"},
    fixed_options={"rng": "eager"},
)
row(
    "branches of other numbers",
    tracing.BRANCHES_DISAGREE,
    lambda x: torch.cond(x.sum() > 0, lambda x: (x, 1), lambda x: (x * 2, 2), (x,)),
    numbers,
    fixed=lambda x: torch.cond(
        x.sum() > 0, lambda x: (x * 1, torch.tensor(1)), lambda x: (x * 2, torch.tensor(2)), (x,)
    ),
    says="one branch of torch.cond returns 1",
)


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────

RESULT = fg.ResultError


def with_a_note(x: Tensor) -> Tensor:
    y = x * 2
    y.note = x * 3
    return y


row(
    "a set of tensors",
    tracing.RESULT_HIDES_TENSOR,
    lambda x: {x * 2},
    numbers,
    fixed=lambda x: [x * 2],
    where="result",
)
row(
    "an object that is stored, too",
    tracing.RESULT_IS_STORED,
    lambda x: setattr(STATE, "made", made := types.SimpleNamespace(x=x * 2)) or made,
    numbers,
    fixed=lambda x: x * 2,
    where="result",
)
row(
    "a new object",
    tracing.RETURNS_NEW_OBJECT,
    lambda x: (x * 2, {1, 2}),
    numbers,
    fixed=lambda x: (x * 2, [1, 2]),
    where="result[1]",
)
row(
    "a tensor with a tensor as its attribute",
    tracing.ATTRIBUTE_OF_RESULT,
    with_a_note,
    numbers,
    fixed=lambda x: (x * 2, x * 3),
    where="result.note",
)


# ── what two runs do otherwise ───────────────────────────────────────────────────────────────────────────────────


def in_one_run(change: Callable[..., Any]) -> Callable[[], Any]:
    """A function that does something in one of its two runs alone, and looks at what nothing watches to know which
    it is."""
    turn = in_turn(0, 1)

    def f(x: Tensor) -> Any:
        changed = change(x) if turn() else None
        return x * 2 if changed is None else changed

    return f


TABLES = [torch.ones(3), torch.ones(3)]


def uses_in_turn() -> Any:
    turn = in_turn(0, 1)
    return lambda x: x * TABLES[turn()]


def leaves_behind(x: Tensor) -> Tensor:
    if LEFT.empty():
        LEFT.put(x * 2)
    kept = LEFT.get()
    LEFT.put(kept)
    return x + kept


LEFT: queue.SimpleQueue[Tensor] = queue.SimpleQueue()


def differs(
    name: str, refusal: Refusal[fg.FuncgradError], change: Callable[..., Any], always: Callable[..., Any], **more: Any
) -> None:
    row(name, refusal, lambda: in_one_run(change), more.pop("args", numbers), fixed=always, anew=True, **more)


differs(
    "a write in one run",
    tracing.WRITE_IN_TWO_RUNS,
    lambda x: (x.add_(1), x * 2)[1],
    lambda x: (x.add_(1), x * 2)[1],
    where="x",
)
differs(
    "other memory in one run", tracing.MEMORY_IN_TWO_RUNS, gives, lambda x: (gives(x), x * 2)[1], where="x", args=ones()
)
differs(
    "a gradient in one run",
    tracing.GRADIENT_IN_TWO_RUNS,
    lambda x: setattr(x, "grad", torch.ones(3)),
    lambda x: (setattr(x, "grad", torch.ones(3)), x * 2)[1],
    where="x",
    args=leaf,
)
differs(
    "a draw in one run",
    random_numbers.DRAW_IN_TWO_RUNS,
    lambda x: x + torch.rand(3),
    lambda x: x + torch.rand(3),
    options={"rng": "philox"},
    fixed_options={},
)
differs("another structure in one run", tracing.STRUCTURE_IN_TWO_RUNS, lambda x: [x * 2], lambda x: [x * 2], where=None)
differs("another number in one run", tracing.RESULT_IN_TWO_RUNS, lambda x: 3, lambda x: 3, where=None)
row(
    "another text in one run",
    tracing.VALUE_IN_TWO_RUNS,
    lambda: (lambda turn: lambda x: (x * 2, turn()))(in_turn("a", "b")),
    numbers,
    anew=True,
    fixed=lambda x: (x * 2, "a"),
    where="result[1]",
)
row(
    "another tensor in one run",
    tracing.CAPTURE_IN_TWO_RUNS,
    uses_in_turn,
    numbers,
    anew=True,
    fixed=lambda x: x * TABLES[0],
)
row(
    "an error where it is traced alone",
    tracing.RAISES_IN_TRACE,
    lambda x: x * {torch.Tensor: 2.0}[(lambda: type)()(x)],
    numbers,
    fixed=lambda x: x * (2.0 if isinstance(x, torch.Tensor) else 1.0),
)
row(
    "a tensor that an earlier trace left",
    tracing.TENSOR_LEFT_BEHIND,
    leaves_behind,
    numbers,
    fixed=lambda x: (x + x * 2, x * 2),
)


# ── other memory, once more ──────────────────────────────────────────────────────────────────────────────────────


def under_no_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.no_grad()(f)


def gives_a_view(x: Tensor, y: Tensor) -> tuple[Tensor]:
    view = x[1:]
    view.data = y
    x.mul_(WEIGHT.sum())
    return (view,)


def views_and_writes(x: Tensor) -> Tensor:
    z = x.data
    with torch.no_grad():
        view = z.t()
    z.copy_(WEIGHT * 2)
    return view


def changes_a_used_leaf(w: Tensor, x: Tensor) -> Tensor:
    y = w * 2
    with torch.no_grad():
        w.t_()
    return y + x


def switches_off_and_writes(x: Tensor) -> Tensor:
    view = x[1:]
    with torch.no_grad():
        view.mul_(2)
    x.requires_grad_(False)
    return (x.add_(1), view * 2)[1]


def writes_in_backward(x: Tensor) -> Tensor:
    made = torch.ones(3).requires_grad_()
    return Writing.apply(made, x)


class Writing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: Tensor, x: Tensor) -> Tensor:
        ctx.x = x
        return made * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.x.add_(1)
        return g * 2, None


class KeepsAndRaises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: str) -> Tensor:
        ctx.order = order
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        if g.ndim != 2 and ctx.order == "first":
            STATE.made = g * 2
        if g.ndim != (2 if ctx.order == "first" else 1):
            raise ValueError("no matrix")
        STATE.made = g * 2
        return g * 2, None


def hook_that_stores(x: Tensor) -> Tensor:
    """What it stores is computed in the function, where a value says so that comes in later."""
    y = x * 2
    z = y.detach()
    y.register_hook(lambda g: setattr(STATE, "made", z) if g.sum() > 0 else None)
    return y * 2


row(
    "other memory of what was used",
    memory.MEMORY_AFTER_USE,
    lambda x, y: (lambda z, out: (setattr(z, "data", y), out)[1])(*(lambda z: (z, z * z))(x * 2)),
    lambda: (*leaf(), torch.ones(3)),
    fixed=lambda x, y: (lambda z: (setattr(z, "data", y), z * z)[1])(x * 2),
)
row(
    "other memory of a view, and a write",
    memory.MEMORY_AND_WRITES,
    gives_a_view,
    lambda: (torch.ones(3), torch.ones(2)),
    fixed=lambda x, y: (x.mul_(WEIGHT.sum()), y * 1)[1],
)
row(
    "other memory of a part of unbind",
    memory.MEMORY_OF_STALE_VIEW,
    lambda x, y: (lambda part: (under_no_grad(part.set_)(y), part)[1])(x.unbind(0)[0]),
    lambda: (torch.ones(2, 2, requires_grad=True), torch.ones(2)),
    fixed=lambda x, y: y * 1,
)
row(
    "a view taken under no_grad of what gets a history",
    memory.RETURNS_NO_GRAD_VIEW,
    views_and_writes,
    leaf,
    where="result",
    fixed=lambda x: (lambda z: (z.copy_(WEIGHT * 2), z.t())[1])(x.data),
)
row(
    "out= of another size that requires grad",
    memory.OUT_REQUIRES_GRAD,
    under_no_grad(lambda x, y: torch.mul(y, 2, out=x) * 1),
    lambda: (*leaf(), torch.ones(4)),
    fixed=under_no_grad(lambda x, y: x.copy_(y * 2) * 1),
    fixed_args=lambda: (*leaf(), torch.ones(3)),
)
row(
    "out= of another size, transposed",
    memory.OUT_TRANSPOSED,
    lambda x, y: torch.mul(y.t(), 2, out=x) * 1,
    lambda: (torch.ones(3), torch.ones(2, 3)),
    fixed=lambda x, y: y.t() * 2,
)
row(
    "set_ of a storage, under autograd",
    memory.STORAGE_GIVEN,
    under_no_grad(lambda x: x.set_(torch.ones(4).untyped_storage(), 0, (3,)).sum()),
    ones(),
    fixed=lambda x: x.set_(torch.ones(4)[:3].clone()).sum(),
)
row(
    "sizes of a leaf that was used",
    memory.RESTRIDED_AFTER_USE,
    changes_a_used_leaf,
    lambda: (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)),
    fixed=lambda w, x: (w * 2 + x, w.t())[0],
)
row(
    "a view of a leaf that is none any more",
    memory.SWITCHED_OFF_WITH_VIEW,
    switches_off_and_writes,
    leaf,
    fixed=lambda x: (x.requires_grad_(False), x[1:] * 2)[1],
)
row(
    "a write in a backward pass to its own leaf",
    memory.WRITES_IN_BACKWARD_OF_OWN_LEAF,
    writes_in_backward,
    numbers,
    calls=once,
    where="x",
    fixed=lambda made, x: Writing.apply(made, x),
    fixed_args=lambda: (*leaf(), *numbers()),
)
row(
    "an error in a backward pass that has kept a tensor",
    memory.RAISES_AFTER_WRITE,
    lambda x: KeepsAndRaises.apply(x, "first"),
    leaf,
    calls=once,
    fixed=lambda x: KeepsAndRaises.apply(x, "then"),
)
row(
    "Python state in a backward pass",
    memory.WRITES_STATE_IN_BACKWARD,
    hook_that_stores,
    leaf,
    calls=once,
    where="a hook that reads values, hook_that_stores.<locals>.<lambda>",
    fixed=lambda x: (setattr(STATE, "made", 2 * x.detach()), x * 4)[1],
)


def view_without_grad() -> tuple[Tensor, ...]:
    x = torch.arange(1.0, 4, requires_grad=True)
    with torch.no_grad():
        return x, x[:2]


row(
    "requires_grad_() of a view taken under no_grad",
    memory.SWITCHED_NO_GRAD_VIEW,
    lambda x, v: (v.requires_grad_() * x[:2]).sum(),
    view_without_grad,
    fixed=lambda x, v: (v * x[:2]).sum(),
    fixed_args=lambda: (lambda x, v: (x, v.requires_grad_()))(*view_without_grad()),
)


def taken_before_a_write() -> tuple[Tensor, ...]:
    x = torch.ones(3)
    v = x[:2]
    return x.mul_(2), v


row(
    "requires_grad_() of what was written to, beside a view of it",
    memory.GRADIENT_OF_INPUT,
    lambda x, v: (x.requires_grad_() * 2).sum() + (v * 3).sum(),
    taken_before_a_write,
    says="has a view of it that may have been taken before it was written to",
    where="x",
    fixed=lambda x, v: (x * 2).sum() + (v * 3).sum(),
    fixed_args=lambda: (lambda x, v: (x.requires_grad_(), v))(*taken_before_a_write()),
)
row(
    "requires_grad_() on and off, and a write of what requires grad",
    memory.GRADIENT_OF_INPUT,
    lambda x, y: (y.requires_grad_(), y.requires_grad_(False), y.copy_(x), y * 2)[3],
    lambda: (torch.ones(3, requires_grad=True), torch.ones(3)),
    says="writes to it, a leaf, what requires grad",
    where="y",
    fixed=lambda x, y: (y.copy_(x), y * 2)[1],
)


def keeps_for_its_result(x: Tensor, into: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
    kept: list[Tensor] = [] if into is None else into
    y = x * 2
    y.register_hook(lambda g: kept.append(g))
    return y, kept[:0]


KEPT: list[Tensor] = []
row(
    "a hook that writes to an object of the function's own",
    memory.HOOK_OF_OWN_OBJECT,
    keeps_for_its_result,
    leaf,
    fixed=lambda x: keeps_for_its_result(x, KEPT),
)
row(
    "sizes after another sort of memory",
    memory.RESTRIDED_AND_ASKED,
    lambda x: (x.t_(), x.grad, x.detach() * 2)[2],
    lambda: (torch.ones(2, 3, requires_grad=True),),
    around=torch.no_grad,
    fixed=lambda x: (x.grad, x.t_(), x.detach() * 2)[2],
)


# ── tensor subclasses ────────────────────────────────────────────────────────────────────────────────────────────


def pair(grad: bool = False) -> TwoTensor:
    return TwoTensor(torch.ones(2, 3), torch.zeros(2, 3)).requires_grad_(grad)


class Unequal(TwoTensor):
    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], Incomparable(1)

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, outer_size: Any, outer_stride: Any) -> Any:
        return Unequal(inner["a"], inner["b"])


class Stiff(TwoTensor):
    """Of which ``t_`` does nothing."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, outer_size: Any, outer_stride: Any) -> Any:
        return Stiff(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.ops.aten.t_.default else super().__torch_dispatch__(func, types, args, kwargs)


row(
    "sizes of a subclass in place, which its class does not change",
    memory.RESTRIDES_ITS_OWN_WAY,
    lambda x: x.t_().a + 1,
    lambda: (Stiff(torch.ones(2, 3), torch.zeros(2, 3)),),
    fixed=lambda x: x.t().a + 1,
    says="of a Stiff in place",
)
row(
    "a write to a subclass beside its inner tensor",
    memory.SUBCLASS_SHARES_MEMORY,
    lambda x, y: (x.mul_(2), y * 1)[1],
    lambda: (lambda x: (x, x.a))(pair()),
    where="x",
    fixed_args=lambda: (lambda x: (x, x.a.clone()))(pair()),
)
row(
    "a write to one of several views of a subclass",
    memory.WRITES_INTO_LEAF,
    lambda x: x.mul_(2).a * 1,
    lambda: ((pair(True) * 1).unbind()[0],),
    where="x",
    fixed_args=lambda: ((pair(True) * 1).unbind()[0].clone(),),
)
row(
    "a gradient into an inner tensor",
    tracing.GRADIENT_INTO_INNER,
    lambda x: x.a * 2,
    lambda: (TwoTensor(*(torch.ones(3, requires_grad=True) for _ in range(2))),),
    where="out",
    fixed=lambda a, b: a * 2,
    fixed_args=lambda: tuple(torch.ones(3, requires_grad=True) for _ in range(2)),
)
row(
    "an inner tensor of what is written to",
    memory.RETURNS_OVER_INNER,
    lambda x: (x.mul_(2), x.a)[1],
    lambda: (pair(),),
    where="out",
    fixed=lambda x: (x.mul_(2), x.a.clone())[1],
)
row(
    "torch.cond of a subclass",
    tracing.SUBCLASS_IN_CONTROL_FLOW,
    lambda x: torch.cond(x.a.sum() > 0, torch.sin, torch.cos, (x,)),
    lambda: (pair(),),
    fixed=lambda x: torch.cond(x.a.sum() > 0, torch.sin, torch.cos, (x.a,)),
)
row(
    "metadata that does not compare",
    tracing.FLATTENS_WRONGLY,
    lambda x: x.a * 2,
    lambda: (Unequal(torch.ones(3), torch.ones(3)),),
    where="x",
    fixed_args=lambda: (TwoTensor(torch.ones(3), torch.ones(3)),),
    says="cannot be compared",
)


class Held:
    def __init__(self, x: Any) -> None:
        self.x = x


register_pytree_node(Held, lambda held: ([], held.x), lambda children, context: Held(context))


@torch.library.custom_op("funcgrad_refused::scale_all", mutates_args=("xs",))
def scale_all(xs: list[Tensor]) -> None:
    for x in xs:
        x.mul_(2)


row(
    "an operator that writes to a list",
    tracing.WRITES_TO_LIST,
    lambda x: (scale_all([x]), x * 1)[1],
    numbers,
    fixed=lambda x: x.mul_(2) * 1,
)
row(
    "a context of a pytree with a tensor",
    tracing.CONSTANT_OF_PYTREE,
    lambda x: Held(x * 2),
    numbers,
    fixed=lambda x: [x * 2],
    where="result",
)
row(
    "dropout in a reentrant checkpoint",
    random_numbers.STATE_OF_PHILOX,
    lambda x: checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=True),
    leaf,
    options={"rng": "philox"},
    calls=lambda c, args: (c(*args).sum().backward(), args[0].grad)[1],
    fixed_options={"rng": "eager"},
)
row(
    "a gradient of another class",
    tracing.COTANGENT_DIFFERS,
    lambda x, g: x * 2,
    lambda: (pair(True), torch.ones(2, 3)),
    calls=lambda c, args: torch.autograd.grad(c(*args), args[0], args[1])[0].a,
    where="the backward pass",
    fixed_args=lambda: (pair(True), pair()),
    says="an incoming gradient is a plain tensor",
)


# ── what changes between a forward pass and the backward pass that is differentiated ─────────────────────────────

CONFIG = {"k": 2.0}
LOADED = [torch.tensor([1.0, 2.0, 3.0])]
KINDS = types.SimpleNamespace(kind=types.SimpleNamespace(k=3.0))


def rebinds(c: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A gradient of a gradient; what the function reads is another tensor before it."""
    result = c(*args)
    held, LOADED[0] = LOADED[0], torch.zeros(3)
    try:
        (first,) = torch.autograd.grad(result.sum(), args[0], create_graph=True)
    finally:
        LOADED[0] = held
    return torch.autograd.grad(first.sum(), args[0])[0]


MOVED = torch.tensor([1.0, 2.0, 3.0])


def moves(c: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A gradient that may be differentiated; what was passed lies in other memory before it."""
    result = c(*args)
    held, MOVED.data = MOVED.data, torch.ones(3)
    try:
        return torch.autograd.grad(result.sum(), args[0], create_graph=True)[0]
    finally:
        MOVED.data = held


row(
    "an argument is given other memory before a gradient that is differentiated",
    memory.OTHER_MEMORY_BEFORE_BACKWARD,
    lambda x, w: x**3 * w,
    lambda: (*leaf(), MOVED),
    calls=moves,
    where="w",
    fixed_args=lambda: (*leaf(), MOVED[:]),
)
row(
    "what it closes over is rebound before a second derivative",
    tracing.REBOUND_BEFORE_BACKWARD,
    lambda x: x**3 * LOADED[0],
    leaf,
    calls=rebinds,
    where="LOADED[0]",
    fixed=lambda x, w: x**3 * w,
    fixed_args=lambda: (*leaf(), torch.tensor([1.0, 2.0, 3.0])),
)


# ── what torch's own libraries, and older versions, have ─────────────────────────────────────────────────────────


class Scaled(Tensor):
    """A wrapper with a number as metadata."""

    @staticmethod
    def __new__(cls, elem: Tensor, scale: int) -> Any:
        return Tensor._make_wrapper_subclass(cls, elem.shape, strides=elem.stride(), dtype=elem.dtype)

    def __init__(self, elem: Tensor, scale: int) -> None:
        self.elem, self.scale = elem, scale

    def __tensor_flatten__(self) -> Any:
        return ["elem"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner: Any, scale: int, size: Any, stride: Any) -> Any:
        return Scaled(inner["elem"], scale)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*(a.elem if isinstance(a, cls) else a for a in args), **(kwargs or {})), args[0].scale)


def changes_metadata(x: Any) -> Tensor:
    x.scale = 5
    return x.elem * 2


def stores_in_one_run() -> Any:
    turn = in_turn(0, 1)

    def f(x: Tensor) -> Tensor:
        if not turn():
            STATE.made = x * 3
        return x * 2

    return f


row(
    "metadata that it changes",
    memory.METADATA_OF_SUBCLASS,
    changes_metadata,
    lambda: (Scaled(torch.ones(3), 2),),
    where="x",
    fixed=lambda x: (5, x.elem * 2),
)
row(
    "a store in one run",
    tracing.STORE_IN_TWO_RUNS,
    stores_in_one_run,
    numbers,
    anew=True,
    fixed=stores(lambda x: x * 3),
    where="STATE.made",
)


def accumulate(x):
    """An operator whose arguments are others in each version of torch."""
    operator = torch.ops.inductor.accumulate_grad_.default
    between = [None] * (len(operator._schema.arguments) - 2)
    return operator(x, *between, x * 2)


row(
    "an operator that changes more than data",
    memory.MORE_THAN_DATA,
    lambda x: (accumulate(x), x * 1)[1],
    leaf,
    fixed=lambda x: x * 1,
    says="sets the gradient",
)


# ── retraces, budgets, builds, graphs ────────────────────────────────────────────────────────────────────────────

mistake(
    "a call that would compile",
    fg.RetraceError,
    "has not been compiled yet",
    doubled,
    numbers,
    around=fg.no_retrace,
    where=None,
    fixed_around=contextlib.nullcontext,
)
mistake(
    "a budget that nothing keeps",
    fg.PartitionError,
    "the smallest found",
    lambda x: (x @ x).sin().exp().sum(),
    ones(64, 64),
    transform=fg.grad_compiled,
    options={"memory_budget": "1KiB"},
    fixed_options={"memory_budget": "1MiB"},
)
mistake(
    "a graph with too few values",
    fg.GraphError,
    "takes 1 values, got 0",
    lambda x: fg.jit(doubled).program(x).joint.run(),
    numbers,
    transform=undifferentiated,
    fixed=lambda x: fg.jit(doubled).program(x).joint.run(x)[0],
    where=None,
)

# ── rules of the caller's for derivatives ────────────────────────────────────────────────────────────────────────


def with_rules(fwd: Any = None, bwd: Any = None, **options: Any) -> Any:
    f = fg.custom_vjp(doubled, **options)
    f.defvjp(fwd or (lambda x: (x * 2, x)), bwd or (lambda x, g: (g * 2,)))
    return f


def with_tangents(rule: Any) -> Any:
    f = fg.custom_jvp(doubled)
    f.defjvp(rule)
    return f


def keyword_alone(x: Tensor, *, k: int) -> Tensor:
    return x * k


def ruled(function: Any) -> Any:
    f = fg.custom_jvp(function)
    f.defjvp(lambda p, t: (f(*p), t[0] * 2))
    return f


CUSTOM, RULED = fg.CustomDerivativeError, with_rules()
TWO_RULES, ONE_RULE = fg.custom_jvp(doubled), fg.custom_jvp(doubled)
TWO_RULES.defjvps(lambda t, out, x: t * 2, None)
ONE_RULE.defjvps(lambda t, out, x: t * 2)


def drawn(x: Tensor, noise: Tensor) -> Tensor:
    return x * noise


def pushed(f: Any) -> Any:
    return lambda x: torch.func.jvp(f, (x,), (x,))[1]


mistake("no rule", CUSTOM, "has no rule for its derivative", fg.custom_vjp(doubled), numbers, fixed=RULED)
mistake("fwd returns no pair", CUSTOM, "returned a tensor, not a pair", with_rules(lambda x: x * 2), leaf, fixed=RULED)
mistake(
    "bwd returns no tuple",
    CUSTOM,
    "not a tuple of 1 cotangents",
    with_rules(bwd=lambda x, g: g * 2),
    leaf,
    fixed=RULED,
    calls=once,
)
mistake(
    "another structure of a cotangent",
    CUSTOM,
    "a cotangent of structure",
    with_rules(bwd=lambda x, g: ([g * 2],)),
    leaf,
    fixed=RULED,
    calls=once,
)
mistake(
    "another shape of a cotangent",
    CUSTOM,
    "as the cotangent of x, which is",
    with_rules(bwd=lambda x, g: (g.sum(),)),
    leaf,
    fixed=RULED,
    calls=once,
)
mistake(
    "a rule that returns no pair",
    CUSTOM,
    "returned a tensor, not a pair",
    pushed(with_tangents(lambda p, t: t[0])),
    numbers,
    fixed=pushed(ruled(doubled)),
)
mistake(
    "a rule that draws",
    CUSTOM,
    "draws random numbers, and runs again",
    pushed(with_tangents(lambda p, t: (p[0] * 2, t[0] * torch.rand(3)))),
    numbers,
    fixed=pushed(ruled(doubled)),
)
mistake(
    "a function with rules closes over what is differentiated",
    CUSTOM,
    "closes over a tensor that is differentiated",
    lambda x: ruled(lambda y: y * x)(torch.ones(3)),
    leaf,
    fixed=lambda x: ruled(doubled)(x),
)
mistake(
    "more rules than arguments",
    CUSTOM,
    "1 arguments, and defjvps has 2 rules",
    pushed(TWO_RULES),
    numbers,
    fixed=pushed(ONE_RULE),
)
row("forward mode of a custom_vjp", tracing.NO_FORWARD_RULE, pushed(RULED), numbers, fixed=pushed(ONE_RULE))
mistake(
    "an argument that rules do not differentiate",
    fg.NonDifferentiableArgumentError,
    "is among its nondiff_argnums",
    with_rules(lambda x: (x * 2, x), lambda x, saved, g: (), nondiff_argnums=0),
    leaf,
    fixed=RULED,
)
mistake(
    "nondiff_argnums is no position",
    ARGUMENT,
    "nondiff_argnums='x'",
    lambda x: fg.custom_jvp(doubled, "x")(x),
    numbers,
    fixed=RULED,
    where=None,
)
mistake(
    "nondiff_argnums out of range",
    ARGUMENT,
    "was called with 1 arguments",
    with_rules(nondiff_argnums=1),
    numbers,
    fixed=RULED,
)
mistake(
    "a keyword of a function with rules",
    ARGUMENT,
    "can be passed by keyword alone",
    lambda x: ruled(keyword_alone)(x, k=2),
    numbers,
    fixed=RULED,
)
mistake(
    "keywords of a function without a signature",
    ARGUMENT,
    "has no signature that says",
    lambda x: ruled(torch.add)(x, other=x),
    numbers,
    fixed=lambda x: ruled(doubled)(x),
)
mistake(
    "defjvps and nondiff_argnums",
    ARGUMENT,
    "takes no nondiff_argnums",
    lambda x: fg.custom_jvp(doubled, 0).defjvps(None),
    numbers,
    fixed=RULED,
    where=None,
)


# ── rows that say another fix ────────────────────────────────────────────────────────────────────────────────────


def backward_and_other_sizes(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.unsqueeze_(0)
    (x * x).sum().backward()
    return x * 1


def gradient_and_other_sizes(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.data.unsqueeze(0)
    leaf = y.requires_grad_()
    return torch.autograd.grad((leaf * leaf).sum(), leaf)[0], y.detach() * 1


row(
    "a gradient, and other sizes",
    memory.GRADIENT_OF_INPUT,
    backward_and_other_sizes,
    leaf,
    fixed=gradient_and_other_sizes,
    where="x",
)
row(
    "the seed of a generator",
    random_numbers.SEED_ASKED_FOR,
    lambda x: x * (torch.initial_seed() % 7),
    numbers,
    fixed=lambda x: (torch.manual_seed(3), x * (torch.initial_seed() % 7))[1],
)


# ── calls of one program ─────────────────────────────────────────────────────────────────────────────────────────────

mistake(
    "a program of another size",
    ARGUMENT,
    "x: shape was (2,), now (3,)",
    lambda x: fg.jit(doubled).program(torch.ones(2))(x),
    numbers,
    fixed=lambda x: fg.jit(doubled)(x),
    transform=undifferentiated,
    where=None,
)
row(
    "a program under vmap",
    tracing.PROGRAM_UNDER_TRANSFORM,
    lambda x: torch.func.vmap(fg.jit(doubled).program(x))(x),
    numbers,
    fixed=lambda x: torch.func.vmap(fg.jit(doubled))(x),
    transform=undifferentiated,
    where=None,
)

mistake(
    "primals that are no arguments",
    ARGUMENT,
    "primals are a float32 tensor of shape [3]",
    lambda x: fg.jvp_compiled(doubled, x, x),
    numbers,
    fixed=lambda x: fg.jvp_compiled(doubled, (x,), (x,)),
    transform=undifferentiated,
)
mistake(
    "a batch dimension that is not there",
    fg.TreeMismatchError,
    "in_dim=5",
    lambda x: fg.vmap_compiled(doubled, in_dims=5)(x),
    numbers,
    fixed=lambda x: fg.vmap_compiled(doubled, in_dims=0)(x),
    transform=undifferentiated,
)


def sine_pulled(x):
    return fg.vjp_compiled(torch.sin, x)[1](torch.ones(3))[0]


row(
    "vjp_compiled in a checkpoint of eager PyTorch",
    tracing.POINT_UNDER_SAVED_HOOKS,
    sine_pulled,
    lambda: (torch.ones(3, requires_grad=True),),
    fixed=fg.jit(sine_pulled),
    transform=fg.checkpoint,
)


# ── programs in files ────────────────────────────────────────────────────────────────────────────────────────────────


def in_a_file(c: Callable[..., Any], *args: Any) -> Any:
    """A program that was saved, and loaded again."""
    with tempfile.TemporaryDirectory() as folder:
        c.program(*args).save(f"{folder}/program")
        return fg.load(f"{folder}/program")


row(
    "saved: an opaque call",
    tracing.NOT_SAVED,
    lambda x: in_a_file(fg.jit(lambda x: fg.pure_callback(torch.sin, x, x)), x)(x),
    numbers,
    fixed=lambda x: torch.sin(in_a_file(fg.jit(doubled), x)(x)),
    transform=undifferentiated,
    where=None,
)
row(
    "loaded: a second derivative",
    tracing.LOADED_DERIVATIVE,
    lambda x: in_a_file(fg.jit(torch.sin), x)(x),
    leaf,
    fixed=lambda x: in_a_file(fg.grad_compiled(lambda x: x.sin().sum()), x.detach())(x.detach()) * x,
    transform=undifferentiated,
    calls=lambda c, args: torch.autograd.grad(c(*args).sum(), args[0], create_graph=True)[0].detach(),
    where="the backward pass",
)
row(
    "loaded: a gradient for one result, of any size",
    tracing.LOADED_NARROWED,
    lambda x: in_a_file(fg.jit(lambda x: (x.sin(), x.cos()), dynamic=True), x)(x)[0],
    leaf,
    fixed=lambda x: in_a_file(fg.jit(lambda x: (x.sin(), x.cos()), dynamic=False), x)(x)[0],
    transform=undifferentiated,
    calls=once,
    where="the backward pass",
)
row(
    "loaded: under vmap",
    tracing.LOADED_UNDER_TRANSFORM,
    lambda x: torch.func.vmap(in_a_file(fg.jit(doubled), x[0]))(x),
    numbers,
    fixed=lambda x: in_a_file(fg.vmap_compiled(doubled), x)(x),
    transform=undifferentiated,
    where=None,
)
mistake(
    "loaded: another size",
    ARGUMENT,
    "x: shape was (2,), now (3,)",
    lambda x: in_a_file(fg.jit(doubled), torch.ones(2))(x),
    numbers,
    fixed=lambda x: in_a_file(fg.jit(doubled), torch.ones(3))(x),
    transform=undifferentiated,
    where=None,
)


_RATES = {torch.ones(1): 2.0}
row(
    "a tensor that is given, looked for by which object it is",
    tracing.KEYED_BY_TENSORS,
    lambda x: x * _RATES.get(x, 1.0),
    numbers,
    fixed=lambda x: x * {"x": 2.0}["x"],
)


def _in_double(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.logsumexp(torch.arange(3), 0)
    torch.set_default_dtype(before)
    return x * y


row(
    "whole numbers added up under a default dtype of the function's own",
    tracing.OWN_DEFAULT_DTYPE,
    _in_double,
    numbers,
    fixed=lambda x: x * torch.logsumexp(torch.arange(3).to(torch.float64), 0),
)


ELSEWHERE = {
    fg.VerificationError: "a defect: what a program computes is not what eager PyTorch does (test_store.py makes one)",
    fg.BuildError: "a matter of the machine: no compiler, or one that fails",
    fg.CacheTrustError: "a matter of the machine: who may write to a folder",
}
"""Classes that no function or argument is the reason of."""
