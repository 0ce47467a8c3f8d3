"""Sixty scalar functions of pytrees, from one-liners to small models: what gradients are checked on.

A case is a function and a maker of its arguments; the first argument is what is differentiated.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {}


def case(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function; an int or tuple stands for a random tensor of that shape."""

    def make() -> tuple[Any, ...]:
        torch.manual_seed(len(CASES))
        return tuple(_make(a) for a in args)

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        CASES[f.__name__] = (f, make)
        return f

    return register


def _make(spec: Any) -> Any:
    if isinstance(spec, tuple) and all(isinstance(n, int) for n in spec) and not hasattr(spec, "_fields"):
        return torch.randn(spec)
    if isinstance(spec, int) and not isinstance(spec, bool):
        return torch.randn(spec)
    if isinstance(spec, dict):
        return {k: _make(v) for k, v in spec.items()}
    if isinstance(spec, list):
        return [_make(v) for v in spec]
    return spec() if callable(spec) else spec


def ints(high: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(high, shape)


def positive(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.rand(shape) + 0.5


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any


@attrs.frozen
class Pair:
    left: Any
    right: Any = None


Point = collections.namedtuple("Point", "x y")

# ── elementwise ──────────────────────────────────────────────────────────────────────────────────────────────────


@case((3, 4))
def square(x):
    return (x**2).sum()


@case((3, 4))
def constant_output(x):
    return torch.ones(()) * 2.0


@case((3, 4))
def transcendental(x):
    return (x.sin() * x.cos().exp() + torch.tanh(x) - torch.erf(x)).mean()


@case(positive(5))
def logs(x):
    return (x.log() + x.log1p() + x.sqrt() + x.rsqrt() + x.pow(2.5)).sum()


@case((4, 4))
def gelu_silu(x):
    return (F.gelu(x) + F.silu(x) + F.gelu(x, approximate="tanh") + F.mish(x)).sum()


@case((4, 4))
def relus(x):
    return (F.relu(x) + F.leaky_relu(x, 0.1) + F.elu(x) + F.hardtanh(x) + x.clamp(-0.5, 0.5)).sum()


@case((4, 4))
def where_abs(x):
    return torch.where(x > 0, x * 2, x.abs().sqrt()).sum()


@case((6,), (6,))
def maximum_minimum(x, y):
    return (torch.maximum(x, y) - torch.minimum(x, 2 * y)).pow(3).sum()


@case((2, 3), (3,))
def broadcast(x, y):
    return (x * y + y / (1 + x**2)).sum()


@case(10)
def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@case((4, 3))
def twenty_steps(x):
    return functools.reduce(lambda a, i: torch.sin(a) * 1.1 + math.cos(i), range(20), x).sum()


@case((3,), 2.5)
def python_float(x, k):
    return (x * k).sum() + k


@case((3,), "sum")
def static_string(x, how):
    return getattr(x.exp(), how)()


@case(lambda: torch.randn(4, dtype=torch.float64))
def double(x):
    return (x.exp() / (1 + x.exp())).sum()


@case(lambda: torch.randn(4, 4, dtype=torch.bfloat16))
def bfloat(x):
    return (x * 2 + x.sin()).sum()


@case(lambda: torch.randn(3, 3, dtype=torch.float64))
def mixed_dtypes(x):
    return (x.float() @ torch.ones(3, 3)).double().sum() + (x > 0).sum()


# ── views and indices ────────────────────────────────────────────────────────────────────────────────────────────


@case((3, 4))
def transpose_slice(x):
    return (x.t()[1:, ::2] * 2).sum() + x[0, -1]


@case((2, 3, 4))
def reshape_permute(x):
    return (x.permute(2, 0, 1).reshape(4, 6).cumsum(1) ** 2).sum()


@case((3, 4))
def gather_index(x):
    return x.gather(1, torch.tensor([[0, 1], [2, 3], [1, 1]])).sum() + x[torch.tensor([0, 2])].exp().sum()


@case((5, 3), ints(5, 7))
def embedding(table, i):
    return F.embedding(i, table).tanh().sum()


@case((4, 3), ints(4, 6), (6, 3))
def scatter_add(x, i, y):
    return x.index_add(0, i, y).pow(2).sum()


@case((3, 3))
def stack_cat_split(x):
    a, b, c = x.unbind(0)
    return torch.cat([torch.stack([a, b]), c[None]]).chunk(2, 1)[0].prod()


@case((2, 3))
def pad_roll_flip(x):
    return (F.pad(x, (1, 1, 2, 0)).roll(1, 0).flip(1) * torch.arange(20.0).view(4, 5)).sum()


@case((4, 4))
def triangles(x):
    return (x.tril() @ x.triu()).diagonal().sum() + x.trace()


@case((4,))
def expand_repeat(x):
    return (x.expand(3, 4) * x.repeat(3, 1)).sum() + x.repeat_interleave(2).sum()


@case((4, 4))
def in_place_on_own(x):
    y = x.clone()
    y.mul_(2).add_(1)
    y[0] = 0
    y[:, 1].exp_()
    return y.sum()


@case((3, 4))
def masked(x):
    return x.masked_fill(x < 0, 0.0).sum() + torch.tril(x).sum()


@case((3, 5))
def sort_topk(x):
    return x.sort(1).values[:, 0].sum() + x.topk(2, 1).values.prod()


# ── reductions ───────────────────────────────────────────────────────────────────────────────────────────────────


@case((3, 4))
def reductions(x):
    return x.mean() + x.var() + x.std(1).sum() + x.norm() + x.amax(1).sum() + x.logsumexp(0).sum()


@case((3, 4))
def max_min(x):
    return x.max() - x.min(1).values.sum() + x.max(0)[0].sum()


@case((4, 6))
def softmaxes(x):
    return (F.softmax(x, 1) * F.log_softmax(x, 0)).sum()


@case((4, 6), (6,), (6,))
def layer_norm(x, w, b):
    return F.layer_norm(x, (6,), w, b).pow(3).sum()


@case((4, 6))
def rms_norm(x):
    return F.rms_norm(x, (6,)).sum()


@case((2, 4, 5))
def group_norm(x):
    return F.group_norm(x, 2).exp().sum()


@case((4, 3))
def batch_norm_eval(x):
    return F.batch_norm(x, torch.zeros(3), torch.ones(3)).pow(2).sum()


@case((4, 6))
def cumulative(x):
    return (x.cumsum(1) + x.exp().cumprod(0) + x.logcumsumexp(1)).sum()


@case((0, 3))
def empty(x):
    return x.sum() + 1.0


@case(())
def zero_dimensional(x):
    return x * x.exp()


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@case((4, 6), ints(6, 4))
def cross_entropy(x, y):
    return F.cross_entropy(x, y, label_smoothing=0.1)


@case((4,), (4,))
def regression_losses(x, y):
    return F.mse_loss(x, y) + F.l1_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y)


@case((4,), lambda: torch.rand(4))
def binary(x, y):
    return F.binary_cross_entropy_with_logits(x, y)


@case((4, 3), (4, 3), (4, 3))
def triplet(a, p, n):
    return F.triplet_margin_loss(a, p, n) + F.cosine_similarity(a, p).sum()


@case((4, 3))
def kl(x):
    return F.kl_div(F.log_softmax(x, 1), F.softmax(x * 2, 1), reduction="batchmean")


# ── linear algebra ───────────────────────────────────────────────────────────────────────────────────────────────


@case((3, 4), (4, 5))
def matmul(a, b):
    return (a @ b).tanh().sum()


@case((2, 3, 4), (2, 4, 3))
def batched(a, b):
    return torch.einsum("bij,bjk->", a, b) + torch.bmm(a, b).sum()


@case((4, 4))
def cholesky(x):
    return torch.linalg.cholesky(x @ x.T + 4 * torch.eye(4)).logdet()


@case((3, 3), (3,))
def solve(a, b):
    return torch.linalg.solve(a + 5 * torch.eye(3), b).pow(2).sum()


@case((3, 3))
def eigen(a):
    return torch.linalg.eigvalsh(a + a.T)[-1] + torch.linalg.svdvals(a).sum() + torch.linalg.matrix_exp(a).trace()


@case((6, 2))
def pairwise(x):
    d = (x[:, None] - x[None]).pow(2).sum(-1) + torch.eye(6)
    return (1 / d**3 - 1 / d).sum()


@case((6, 2))
def distances(x):
    return torch.cdist(x, x.detach() + 1).sum()


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


@case({"w": (4, 3), "b": (3,)}, (5, 4))
def dict_mlp(p, x):
    return (torch.tanh(x @ p["w"] + p["b"]) ** 2).mean()


@case([(4, 8), (8, 8), (8, 1)], (5, 4))
def list_mlp(ws, x):
    return functools.reduce(lambda h, w: F.relu(h @ w), ws, x).sum()


@case(lambda: Layer(torch.randn(3, 4), torch.randn(3)), (5, 4))
def dataclass_layer(layer, x):
    return F.linear(x, layer.weight, layer.bias).exp().mean()


@case(lambda: Pair(Point(torch.randn(3), torch.randn(3)), [torch.randn(3), None]), (3,))
def nested_classes(p, x):
    return (p.left.x * x + p.left.y).sigmoid().sum() * p.right[0].sum()


@case(lambda: collections.OrderedDict(a=torch.randn(3), b=torch.randn(3)))
def ordered_dict(p):
    return (p["a"] * p["b"]).sum()


@case({"k": (4, 3, 3, 3), "b": (4,)}, (2, 3, 8, 8))
def convolution(p, x):
    return F.max_pool2d(F.relu(F.conv2d(x, p["k"], p["b"], padding=1)), 2).mean()


@case((2, 3, 8), (5, 3, 3))
def conv_pool_1d(x, k):
    return F.avg_pool1d(F.conv1d(x, k, stride=2), 2).sum() + F.interpolate(x, scale_factor=2.0).sum()


@case((2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).pow(2).sum()


@case({"w": (3, 12), "u": (4, 12), "b": (12,)}, (5, 2, 3))
def gru(p, xs):
    h = torch.zeros(2, 4)
    for x in xs:
        z, r, n = (x @ p["w"] + h @ p["u"] + p["b"]).chunk(3, 1)
        h = torch.lerp(torch.tanh(n * r.sigmoid()), h, z.sigmoid())
    return h.sum()


@case((3,), (4, 3))
def logistic_regression(w, x):
    return F.softplus(-(x @ w) * torch.tensor([1.0, -1, 1, -1])).mean() + 0.1 * w.square().sum()


@case((3, 2), (7, 2))
def mixture(mu, x):
    return -torch.logsumexp(-0.5 * torch.cdist(x, mu).square(), 1).mean()


@case((8,))
def fourier(x):
    return torch.fft.rfft(x).abs().sum()
