"""Batches of any size by two programs: batching rules where sizes are symbols."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from transformed import F64, OPTIONS, data, same

import funcgrad as fg

W = torch.linspace(-1, 1, 4, dtype=F64)
K = torch.linspace(-1, 1, 6, dtype=F64).view(2, 1, 3)
AT = torch.tensor([[0, 1, 1, 2]])


def norms(x):
    running = W + 2
    return (
        F.layer_norm(x, (4,), W, W), F.group_norm(x, 2, W, W), F.rms_norm(x, (4,), W), F.instance_norm(x.T[None]),
        F.batch_norm(x, None, None, W, W, training=True), F.batch_norm(x, W, running, W, W),
    )  # fmt: skip


def images(x):
    image = x.view(-1, 1, 2, 2)
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    return (
        F.avg_pool2d(padded, 2), F.max_pool2d(padded, 2), F.adaptive_avg_pool2d(padded, 3), F.pad(x, (1, 1), "reflect"),
        F.adaptive_max_pool2d(padded, 3), F.unfold(padded, 2), F.pixel_shuffle(x.view(-1, 4, 1, 1), 2),
        F.avg_pool1d(x, 2), F.conv1d(x[:, None], K), F.fold(x.view(-1, 4, 1), 2, 2),
    )  # fmt: skip


def resized(x):
    image = x.view(-1, 1, 2, 2)
    return (
        *(F.interpolate(x[:, None], scale_factor=2, mode=mode) for mode in ("nearest", "linear")),
        *(F.interpolate(image, size=3, mode=mode) for mode in ("nearest", "bilinear", "bicubic")),
        F.grid_sample(torch.ones_like(image[:1]), image[:1], align_corners=False),
        F.grid_sample(image.sin(), image, align_corners=False),
    )


def indexed(x):
    n = x.shape[0]
    at, first = AT.expand(n, 4), torch.zeros(n, dtype=torch.long)
    return (
        x.new_zeros(n, 6).scatter_reduce(1, at, x, "amax"), x.new_zeros(3, 4).index_add(0, first, x),
        F.embedding(first, x, padding_idx=0), F.embedding(x.argsort(0), x), x.index_select(0, first),
        x.unfold(1, 2, 1), (x @ x.T).diagonal(1), torch.zeros(n, n, dtype=F64).diagonal_scatter(x[:, 0]),
        torch.linalg.cross(x[:, :3], x[:, 1:]),
    )  # fmt: skip


def attended(x):
    q, mask = x[None, None], torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    return tuple(
        F.scaled_dot_product_attention(q, q.cos(), q.sin(), **how)
        for how in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": x @ x.T})
    )


def activated(x):
    return (
        F.gelu(x), F.gelu(x, approximate="tanh"), F.glu(x), F.kl_div(x.log_softmax(1), x.softmax(0), reduction="sum"),
        x.quantile(0.3, 0), F.triplet_margin_loss(x, x + 1, x * 2), x.renorm(2, 0, 1.0),
        torch.linalg.solve(x.T @ x + 3 * torch.eye(4, dtype=F64), x.T),
    )  # fmt: skip


def written(x):
    y, z = x.clone(), torch.zeros_like(x)
    y[:, 0] = y[:, 1] * 2
    z[:, 1:] = x[:, 1:].sin()
    z[0] += 1.0
    t = x.sin()
    t.T.add_(1.0)
    return y.mul_(x), z, t.cos(), F.pad(x[None], (1, 1), mode="circular"), x.as_strided((2, 2), (4, 1)).sin()


def total(f):
    return lambda *args: sum(t.sin().sum() for t in f(*args))


FUNCTIONS = [norms, images, resized, indexed, attended, activated, written]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["value", "grad"])
def test_batches_of_any_size(f, mode):
    """And with the strides that eager PyTorch gives."""
    f = f if mode == "value" else func.grad(total(f))
    compiled = fg.vmap_compiled(f, **OPTIONS)
    for n in (2, 5, 7):
        x = data(n, 3, 4, seed=n)
        found, wanted = compiled(x), func.vmap(f)(x)
        same(found, wanted)
        assert mode == "grad" or [t.stride() for t in found] == [t.stride() for t in wanted]
    assert compiled.cache_info().misses == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("f", [norms, indexed, attended, written], ids=lambda f: f.__name__)
def test_samples_of_any_size(f):
    """The batch is always the same."""
    gradient = func.grad(total(f))
    compiled = fg.vmap_compiled(gradient, **OPTIONS)
    for n in (2, 5, 7):
        x = data(3, n, 4, seed=n)
        same(compiled(x), func.vmap(gradient)(x))
    assert compiled.cache_info().misses == 2


def misses(compiled):
    """The most of any function that was made of it."""
    every = [compiled]
    for p in every:
        every += [*p._derived.values(), *filter(None, [p.at_level])]
    return max(p.cache_info().misses for p in every)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 7)

    def forward(self, tokens):
        return self.head(self.layer(self.tokens(tokens)))


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3), nn.LayerNorm(3),
    )  # fmt: skip


def batch_of_tokens(n):
    tokens = torch.arange(n * 5).view(n, 5) * 3 % 7
    return tokens, tokens.flip(0)


def batch_of_images(n):
    return data(n, 1, 6, 6, seed=n), torch.arange(n) % 3


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "make, batch, requires", [(Transformer, batch_of_tokens, True), (network, batch_of_images, False)]
)
def test_gradients_of_each_sample_of_a_network(make, batch, requires):
    """Whose parameters may require grad, though second derivatives of attention are not implemented."""
    net = make().double().eval()
    parameters = {k: p if requires else p.detach() for k, p in net.named_parameters()}

    def loss(p, x, y):
        return F.cross_entropy(func.functional_call(net, p, (x[None],)).flatten(0, -2), y.reshape(-1))

    compiled = fg.grad_compiled(loss, **OPTIONS)
    for n in (2, 5, 7):
        wanted = func.vmap(func.grad(loss), (None, 0, 0))(parameters, *batch(n))
        same(func.vmap(compiled, (None, 0, 0))(parameters, *batch(n)), wanted)
    assert misses(compiled) == 2


@pytest.mark.parametrize("trains", [False, True])
def test_ensembles_over_batches_of_any_size(trains):
    """Statistics are those of each."""
    nets = [network().double().train(trains) for _ in range(3)]
    parameters, buffers = func.stack_module_state(nets)
    parameters = {k: p.detach() for k, p in parameters.items()}

    def loss(p, b, x, y):
        return F.cross_entropy(func.functional_call(nets[0], (p, b), (x,)), y)

    compiled = fg.vmap_compiled(func.grad(loss), (0, 0, None, None), **OPTIONS)
    for n in (2, 5, 7):
        ours, theirs = copy.deepcopy(buffers), copy.deepcopy(buffers)
        same(
            compiled(parameters, ours, *batch_of_images(n)),
            func.vmap(func.grad(loss), (0, 0, None, None))(parameters, theirs, *batch_of_images(n)),
        )
        same(ours, theirs)
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("trains", [False, True])
def test_a_jacobian_of_a_batch_norm_lies_as_in_eager_pytorch(trains):
    def f(x, weight):
        return F.batch_norm(x, *((None, None) if trains else (W, W + 2)), weight, training=trains)

    compiled = fg.jacrev_compiled(f, (0, 1), **OPTIONS)
    for n in (3, 5, 7):
        found, wanted = compiled(data(n, 4), W + 2), func.jacrev(f, (0, 1))(data(n, 4), W + 2)
        same(found, wanted)
        assert [t.stride() for t in found] == [t.stride() for t in wanted]
    assert compiled.cache_info().misses == 2


def test_statistics_that_samples_share_are_not_written_to():
    running = W.clone(), W + 2

    def f(x):
        return torch.batch_norm(x, None, None, *running, True, 0.1, 1e-5, False)

    for run in (func.vmap(f), fg.vmap_compiled(f, dynamic=True, **OPTIONS)):
        with pytest.raises(RuntimeError, match="updated in place"):
            run(data(2, 3, 4))
    same(running, (W, W + 2))
