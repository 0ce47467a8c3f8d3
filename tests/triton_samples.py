"""Functions whose kernels are of every form and kind, and small arguments for them."""

import torch
import torch.nn.functional as F


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def softmax_and_layer_norm(p, target):
    return ((F.layer_norm(torch.softmax(p["x"], -1), p["w"].shape, p["w"], p["b"]) - target) ** 2).mean()


def pairwise(x):
    d = x[:, None] - x[None]
    return (1 / ((d * d).sum(-1) + torch.eye(len(x)))).sum()


def chain(x):
    for _ in range(3):
        x = torch.exp(-(torch.tanh(torch.sin(x)) ** 2))
        x = torch.cos(torch.log1p(torch.sigmoid(x) ** 2))
    return x.sum()


def guarded(x):
    padded = F.pad(x, (2, 3, 1, 2), value=1.5)
    return (torch.cat([padded[1:], padded[:1].flip(1) * 2]).cos() * torch.tril(padded)).sum()


def column_totals(x):
    return (torch.softmax(x, 1).sum(0) ** 2).sum() + x.amax(0).sum() + x.prod(1).sum() + (x * x).sum(0).sin().sum()


def cross_entropy(p, x, y):
    return F.cross_entropy(F.gelu(x @ p["w"] + p["b"]), y)


def words(p, i, y):
    return F.cross_entropy((F.embedding(i, p["table"]).cumsum(1) * p["w"])[:, :4], y) + p["table"][i, y].sin().sum()


GRADIENTS = {
    "softmax and layer norm": (
        softmax_and_layer_norm,
        {"x": randn(3, 20), "w": randn(20), "b": randn(20)},
        randn(3, 20),
    ),
    "pairwise": (pairwise, randn(9, 3)),
    "chain": (chain, randn(70)),
    "guarded": (guarded, randn(3, 7)),
    "column totals": (column_totals, randn(19, 9)),
    "cross entropy": (cross_entropy, {"w": randn(6, 10), "b": randn(10)}, randn(9, 6), torch.arange(9)),
    "words": (words, {"table": randn(7, 10), "w": randn(10)}, torch.tensor([3, 0, 3, 6]), torch.tensor([1, 0, 2, 3])),
    "one number": (lambda x: x.sin() * x, torch.tensor(0.3)),
    "one row": (lambda x: torch.softmax(x, 0)[3] + x.var(), randn(40)),
    "double": (lambda x: (x * 0.1).sigmoid().pow(2.3).log().sum() + x.logsumexp(0).sum(), randn(6, 5).double()),
    "views": (lambda x: (x.mT.reshape(4, 9)[:, ::2] * x[0, 1]).relu().sum(), randn(6, 6)),
}


def lookups(x, i, j):
    found = x[i].sin().sum(1), x[:, j], x[i[j], j] * 2, x[i[j] - 6], x.T[:, i, None].amax(0), x[i[:1]], x[-1, j]
    return (
        *found,
        x.gather(1, i[:, None] % 5),
        x.take(i * 4),
        F.embedding(j, x).exp(),
        torch.cat([x, x * 2])[i + 6],
        torch.arange(9)[j - 5],
    )


def scans(x):
    forth = (
        x.sin().cumsum(1).exp() * x,
        x.cumsum(0),
        x.cumprod(1),
        x.cummax(1),
        x.cummin(0),
        torch.ones_like(x).cumsum(1),
    )
    return *forth, x.flip(1).cumsum(1).flip(1).sum(1), (x - x.amax(1, True)).cumsum(1).amax(1), x.cumsum(1).cumsum(1)


def places(x):
    return x.max(1), x.min(0), x.argmin(0), x.argmax(), x.argmax(1, True) * 2


def scatters(x, i, source):
    one = i[:, None] % 5
    put = x.sin().scatter(1, one, source), x.scatter_add(0, one, source * 2), x.scatter_reduce(1, one, source, "amax")
    rows = x.index_add(0, i, source, alpha=3), x.index_copy(0, i, source), x.index_fill(1, i % 5, 2.0)
    elements = x.index_put((i, i % 5), source[:, 0]), torch.zeros(6).index_put((i,), source[:, 1], accumulate=True)
    return *put, *rows, *elements, x.index_put((i % 5,), source, accumulate=True)


def draws(x):
    whole = torch.randint(0, 1000, (9,)), torch.randint(-(2**62), 2**62, (9,))
    return F.dropout(x, 0.4), torch.rand(6, 5), torch.rand(3, dtype=torch.float64), torch.randn(7), *whole


FORWARD = {
    "lookups": (lookups, randn(6, 5), torch.tensor([3, 0, 5, 2]), torch.tensor([1, 3, 0])),
    "scans": (scans, randn(5, 11)),
    "places": (places, randn(5, 11).round()),
    "scatters": (scatters, randn(6, 5), torch.tensor([3, 0, 5, 2]), randn(4, 5)),
}
"""What is put twice, without being added up, is in no order on a GPU: there is none of it."""
