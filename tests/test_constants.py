"""Tensors that a function makes of numbers: results that look at one share its memory, as in eager PyTorch, and each
call has memory of its own."""

import types

import pytest
import torch

import funcgrad as fg

W = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
KEPT = types.SimpleNamespace()


def made():
    return torch.tensor([1.0, 2.0, 3.0, 4.0])


def views(x):
    b = made()
    return b.view(2, 2), b, b[None]


def views_alone(x):
    b = made()
    return b[1:], b.view(2, 2).t()


def views_of_many(x):
    b = made()
    return b.split(2)[1], b.unbind()[2], b * x.sum()


def expanded(x):
    return torch.tensor(1.0).expand(x.shape)


def of_a_distribution(x):
    return torch.distributions.Normal(x, 1.0).scale


def used(x):
    b = made()
    return b * W, b.view(2, 2), b[::2]


def written(x):
    b = made()
    c = b.view(2, 2)
    b.mul_(x.sum())
    return b, c


def twice(x):
    b = made()
    return b, b, b.detach(), b.reshape(4, 1)


def two(x):
    b, c = made(), torch.tensor([5.0, 6.0])
    return b[:2], c, torch.stack([c, b[2:]]), c[1:]


def of_complex(x):
    b = torch.tensor([1 + 2j, 3])
    return b.conj(), b.real, b.imag, torch.view_as_real(b)


def by_size(x):
    b = made()
    return b[x.shape[0] - 1 :], b


FUNCTIONS = [
    views, views_alone, views_of_many, expanded, of_a_distribution, used, written, twice, two, of_complex, by_size,
]  # fmt: skip


def memory(t):
    return t.untyped_storage().data_ptr()


def looks(results):
    """The results, and which of them share memory."""
    own = [(t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.tolist()) for t in results]
    return own, [[memory(t) == memory(u) for t in results] for u in results]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_views_of_constants(function):
    compiled, before = fg.jit(function), []
    for n in (2, 2, 3, 4):  # the size is a symbol from the second one on
        expected, found = as_tuple(function(torch.ones(n))), as_tuple(compiled(torch.ones(n)))
        assert looks(found) == looks(expected)
        assert not {*map(memory, found)} & {*map(memory, before)}
        before += found
        for t in found:
            t.detach().zero_() if t.is_contiguous() else None


def test_stored_constants():
    def store(x):
        KEPT.whole = torch.tensor([1.0, 2.0, 3.0])
        KEPT.part = KEPT.whole[:2]
        return KEPT.whole[None]

    compiled = fg.jit(store)
    compiled(torch.ones(2))
    first = KEPT.whole
    result = compiled(torch.ones(2))
    KEPT.whole[0] = 7
    assert (KEPT.part.tolist(), result.tolist(), first.tolist()) == ([7, 2], [[7, 2, 3]], [1, 2, 3])


def test_constants_in_a_derivative():
    def loss(x):
        b = made()
        return (b * x * x).sum(), (b, b.view(2, 2))

    gradient, (whole, part) = fg.grad_compiled(loss, has_aux=True)(torch.ones(4))
    whole[0] = 9
    assert (gradient.tolist(), part.tolist()) == ([2, 4, 6, 8], [[9, 2], [3, 4]])
    x = torch.ones(4, requires_grad=True)
    _, (whole, part) = fg.jit(loss)(x)
    whole[0] = 9
    assert part.tolist() == [[9, 2], [3, 4]]
    mapped, _ = torch.func.vmap(fg.jit(loss))(torch.ones(3, 4))
    assert mapped.tolist() == [10, 10, 10]
