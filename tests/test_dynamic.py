"""Sizes as symbols: one program for all of them, and the numbers of eager PyTorch at each."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from op_samples import ROWS, is_pointwise, variants
from test_op_table import together
from torch import Tensor
from torch.utils._pytree import tree_leaves

import funcgrad as fg


def perceptron(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.tanh(x @ p["w"] + p["b"])
    return F.cross_entropy(hidden @ p["v"], y)


def softmax_and_norm(x: Tensor, y: Tensor) -> Tensor:
    return (F.layer_norm(x.softmax(-1), x.shape[-1:]) * y).var()


def chain(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y.exp()).sigmoid().sum()


def pairwise(x: Tensor, y: Tensor) -> Tensor:
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return (-d).exp().sum() + d.amax(0).sum()


def attention(x: Tensor, y: Tensor) -> Tensor:
    q, k = x.view(x.shape[0], 2, -1).transpose(0, 1), y.view(y.shape[0], 2, -1).transpose(0, 1)
    out = (q @ k.transpose(-1, -2) / 3).softmax(-1) @ k
    return out.transpose(0, 1).reshape(x.shape[0], -1).square().mean()


def pieces(x: Tensor, y: Tensor) -> Tensor:
    a, b = torch.cat([x, y], -1).chunk(2, -1)
    return (a * b[:, :1]).cumsum(0).std() + F.pad(x, (1, 2)).roll(1, 0).sum() + x.flip(0)[1:].max()


def looked_up(x: Tensor, y: Tensor) -> Tensor:
    at = torch.arange(x.shape[0]) % y.shape[0]
    return (y[at] * x).mean() + x.new_zeros(x.shape).index_add(0, at, x).square().sum()


def batch_norm(x: Tensor, y: Tensor) -> Tensor:
    return (F.batch_norm(x, None, None, training=True) * y).square().mean()


FUNCTIONS = softmax_and_norm, chain, pairwise, attention, pieces, looked_up, batch_norm
CASES: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in FUNCTIONS}
BATCHES = (3, 4, 12, 33, 700)


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", CASES)
def test_one_program_for_all_batches(name: str, backend: str) -> None:
    function = CASES[name]
    compiled = fg.grad_compiled(function, argnums=(0, 1), dynamic=True, backend=backend)
    for n in BATCHES:
        x, y = torch.randn(n, 6), torch.randn(n, 6)
        assert_rounded(compiled(x, y), torch.func.grad(function, argnums=(0, 1))(x, y))
    assert compiled.cache_info().misses == 1, compiled.explain_miss(torch.randn(9, 6), torch.randn(9, 6))


def test_parameters_and_labels() -> None:
    compiled = fg.grad_compiled(perceptron, dynamic=True)
    for n, width in ((4, 8), (9, 8), (300, 40)):
        p = {"w": torch.randn(7, width), "b": torch.randn(width), "v": torch.randn(width, 5)}
        args = p, torch.randn(n, 7), torch.randint(5, (n,))
        assert_rounded(compiled(*args), torch.func.grad(perceptron)(*args))
    assert compiled.cache_info().misses == 1


def c_text(compiled: Any, *args: Tensor) -> str:
    return "\n".join(s.text for s in compiled.program(*args).sources if s.language == "c")


def test_a_row_of_symbolic_length_is_added_up_in_single_precision_many_columns_at_a_time() -> None:
    compiled = fg.jit(lambda x: x.exp().sum(-1), dynamic=True, backend="c")
    for columns in (2, 7, 2047, 2048, 2049, 5000, 3_000_000):
        x = torch.randn(2, columns)
        torch.testing.assert_close(compiled(x), x.double().exp().sum(-1).float(), rtol=2e-6, atol=0)
    assert compiled.cache_info().misses == 1
    assert re.search(r"float a0 = 0;\n *#pragma omp simd .*reduction\(\+:a0\)", c_text(compiled, x))


def test_rows_of_symbolic_axes_are_counted_on() -> None:
    def turned(x: Tensor) -> Tensor:
        return x.permute(2, 0, 3, 1).contiguous().sin()

    compiled = fg.jit(turned, dynamic=True, backend="c")
    for shape in ((2, 3, 4, 5), (5, 2, 3, 7), (30, 40, 50, 20), (2, 2, 2, 2), (7, 3, 200, 9)):
        x = torch.randn(shape)
        assert_rounded(compiled(x), turned(x))
    assert compiled.cache_info().misses == 1
    assert "if (row == next)" in c_text(compiled, x)


def test_tensors_of_symbolic_sizes_are_compared_quickly_and_wholly() -> None:
    def summed(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sin().sum(0)

    compiled = fg.jit(summed, dynamic=True, backend="c")
    ones = torch.randn(4, 5)
    assert_rounded(compiled(ones, ones + 1), summed(ones, ones + 1))
    assert "if not seen(" in compiled.program(ones, ones + 1).call.text
    assert "# int" not in str(compiled.program(ones, ones + 1).sources), (
        "kernels take symbols: sizes that nobody reads are not computed"
    )
    wide = torch.randn(7, 9)
    for x, y in (
        (wide, wide + 1), (wide, wide.t().contiguous().t()), (wide[:, ::2], ones[:1].expand(7, 5)),
        (wide.double(), wide + 1),
        (wide, wide[:1] + 1), (wide, torch.nn.Parameter(wide + 1)), (wide, wide),
    ):  # fmt: skip
        assert_rounded(compiled(x, y), summed(x, y))
    with pytest.raises(RuntimeError, match="must match the size"):
        compiled(wide, wide[:3])
    before = compiled.cache_info().misses
    compiled(torch.randn(11, 13), torch.randn(11, 13))
    assert compiled.cache_info().misses == before


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_number_where_a_tensor_was_given_twice(dynamic: bool) -> None:
    compiled = fg.jit(lambda x, y: x * y, dynamic=dynamic, backend="aten")
    x = torch.randn(3)
    for y in (x, 2.0, x, x + 1, None):
        if y is None:
            with pytest.raises(TypeError):
                compiled(x, y)
        else:
            torch.testing.assert_close(compiled(x, y), x * y)


def test_many_conditions_are_asked_once_of_the_same_sizes() -> None:
    def added(*tensors: Tensor) -> Tensor:
        return torch.stack([t.sin().sum() for t in tensors]).sum()

    compiled = fg.jit(added, dynamic=True, backend="c")
    for sizes in (range(2, 12), range(3, 13), range(2, 12), range(1, 11), range(7, 17)):
        tensors = [torch.randn(n) for n in sizes]
        assert_rounded(compiled(*tensors), added(*tensors))
    assert compiled.cache_info().misses == 2, "a size of 1 is known"
    call = compiled.program(*tensors).call
    assert "if sizes not in fits:" in call.text
    assert call.names["fits"] == {tuple(range(2, 12)), tuple(range(3, 13)), tuple(range(7, 17))}
    for n in range(1000):
        call.names["fits"].add((n,))
    assert len(call.names["fits"]) < 1000


def test_a_size_is_a_symbol_at_its_second_value() -> None:
    compiled = fg.grad_compiled(softmax_and_norm, argnums=(0, 1))
    for n in (3, 4, 5, 60):
        x, y = torch.randn(n, 20), torch.randn(n, 20)
        assert_rounded(compiled(x, y), torch.func.grad(softmax_and_norm, argnums=(0, 1))(x, y))
    assert compiled.cache_info().misses == 2
    key = compiled.program(x, y).key
    assert [leaf.shape[1] for leaf in key.leaves] == [20, 20]  # the other dimension stays what it is
    compiled(torch.randn(1, 20), torch.randn(1, 20))  # a size of 1 is broadcast
    assert compiled.cache_info().misses == 3


class Settings:
    """What a function sets up in its first call."""

    kind = None

    def __init__(self) -> None:
        self.found: dict[str, float] = {}


@pytest.mark.parametrize("how", ["an attribute", "an item", "a tensor"])
def test_sizes_that_vary_beside_what_the_first_call_sets_up_are_symbols(how: str) -> None:
    settings = Settings()

    def f(x: Tensor, y: Tensor) -> Tensor:
        if how == "an attribute" and settings.kind is None:
            settings.kind = "mean"
        if how == "an item" and "scale" not in settings.found:
            settings.found["scale"] = 2.5
        if how == "a tensor" and not hasattr(settings, "weight"):
            settings.weight = torch.ones(4)
        return (x * getattr(settings, "weight", 2)).sum() * settings.found.get("scale", 1) + y.sum()

    compiled = fg.jit(f)
    for n in (2, 3, 2, 5, 7):
        x, y = torch.randn(n, 4), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    assert compiled.cache_info().misses == 2


def test_static_sizes_stay_static() -> None:
    compiled = fg.grad_compiled(chain, dynamic=False)
    for n in (3, 4, 5):
        compiled(torch.randn(n), torch.randn(n))
    assert compiled.cache_info().misses == 3


def test_a_program_is_for_the_sizes_with_which_branches_are_the_same() -> None:
    def longer(x: Tensor) -> Tensor:
        return (x.sin() if x.shape[0] > 10 else x.cos()).sum()

    compiled = fg.grad_compiled(longer, dynamic=True)
    for n in (3, 7, 10, 11, 30, 4):
        x = torch.randn(n)
        assert_rounded(compiled(x), torch.func.grad(longer)(x))
    assert compiled.cache_info().misses == 2
    assert "<= 10" in compiled.program(torch.randn(5)).call.text
    short = fg.grad_compiled(longer, dynamic=True)
    short(torch.randn(3))
    assert "no longer holds" in short.explain_miss(torch.randn(30))


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_two_halves_and_second_derivatives(backend: str) -> None:
    def layer(x: Tensor, w: Tensor) -> Tensor:
        return F.layer_norm(torch.relu(x @ w), (5,)).softmax(-1)

    compiled = fg.jit(layer, dynamic=True, backend=backend)
    for n in (3, 4, 50):
        x, w, g = torch.randn(n, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True), torch.randn(n, 5)
        firsts = [torch.autograd.grad((f(x, w) * g).sum(), (x, w), create_graph=True) for f in (compiled, layer)]
        assert_rounded(*firsts)
        assert_rounded(*(torch.autograd.grad((first[1] ** 2).sum(), x)[0] / n for first in firsts))
        late = torch.randn(5, n).t()  # a gradient that lies otherwise
        assert_rounded(*(torch.autograd.grad(f(x, w), (x, w), late) for f in (compiled, layer)))
    assert compiled.cache_info().misses == 1


@pytest.mark.parametrize("rng", ["eager", "philox"])
def test_modules_with_buffers_and_dropout(rng: str) -> None:
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    )
    other = copy.deepcopy(net)
    compiled = fg.jit(lambda x: net(x).square().mean(), dynamic=True, rng=rng)
    plain = fg.jit(lambda x: other(x).square().mean(), dynamic=False, rng=rng)
    for n in (3, 5, 64):
        x = torch.randn(n, 6)
        for f in (compiled, plain):
            torch.manual_seed(n)
            f(x).backward()
        assert_rounded([p.grad for p in net.parameters()], [p.grad for p in other.parameters()])
        assert_rounded(list(net.buffers()), list(other.buffers()))
    assert compiled.cache_info().misses == 1


def test_transforms_inside() -> None:
    def one(w: Tensor, x: Tensor) -> Tensor:
        return (torch.tanh(x @ w) ** 2).sum()

    per_sample = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))
    compiled = fg.jit(per_sample, dynamic=True)
    w = torch.randn(6, 3)
    for n in (3, 5, 64):
        x = torch.randn(n, 6)
        assert_rounded(compiled(w, x), per_sample(w, x))
    assert compiled.cache_info().misses == 1


def test_inputs_that_share_memory_have_sizes_that_are_known() -> None:
    def overlapping(x: Tensor, y: Tensor) -> Tensor:
        y.mul_(2)
        return x.sum()

    compiled = fg.jit(overlapping)
    for n in (3, 4, 5):
        one, other = torch.arange(40.0), torch.arange(40.0)
        assert_rounded(compiled(one[: n + 1], one[1 : n + 1]), overlapping(other[: n + 1], other[1 : n + 1]))
        assert_rounded(one, other)


def test_a_view_of_an_input_is_returned_at_every_size() -> None:
    compiled = fg.jit(lambda x: (x[1:], x.sin()))
    for n in (3, 4, 5):
        x = torch.randn(n)
        view, _ = compiled(x)
        assert view.data_ptr() == x[1:].data_ptr()
        assert view.shape == (n - 1,)


LOOKS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "rows": (lambda x: (x[1:], x[:-1], x[-1], x.sin()), 2),
    "columns": (lambda x: (x[:, 1], x[:, None], x.t(), x.unbind(1)), 2),
    "of a result": (lambda x: ((y := x.sin()), y[1:], y.detach()), 2),
    "of parts of a result": (lambda x: x.sin().chunk(2, 1), 2),
    "of a captured tensor": (lambda x: (TABLE.t(), TABLE[2:], x.sin()), 2),
    "written to": (lambda x: (x.mul_(2)[1:], x.t()), 2),
    "by a size": (lambda x: (x.sin(), x[len(x) // 2], TABLE[: len(x)]), 5),
    "of a size": (lambda x: (x.sin(), x.view(len(x), 2, 2)), 5),
    "by parts": (lambda x: x.sin().chunk(2), 5),
}
TABLE = torch.arange(80.0).view(20, 4)


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("grad", [False, True])
def test_views_that_no_size_decides_are_taken_at_every_size(name: str, grad: bool) -> None:
    """A program per size: a view was one of known sizes, whatever it took."""
    f, programs = LOOKS[name]
    compiled = fg.jit(f)
    for n in (4, 6, 8, 10, 12):
        x, y = (torch.arange(4.0 * n).view(n, 4) for _ in range(2))
        x, y = ((t.requires_grad_() * 1 if grad else t) for t in (x, y))
        found, want = tree_leaves(compiled(x)), tree_leaves(f(y))
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(a, b)
            assert (a.stride(), a.storage_offset(), a.requires_grad) == (
                b.stride(),
                b.storage_offset(),
                b.requires_grad,
            )
        assert shared(x, found) == shared(y, want)
    assert compiled.cache_info().misses <= programs


def shared(x: Tensor, found: list[Tensor]) -> list[bool]:
    """Who shares memory with whom."""
    pointers = [t.untyped_storage().data_ptr() for t in (x, TABLE, *found)]
    return [a == b for a, b in itertools.combinations(pointers, 2)]


def assert_one_program_for_sizes(f: Callable[[Tensor], Tensor]) -> None:
    """After the first size, one program serves all."""
    compiled = fg.jit(f)
    for n in (2, 3, 4, 5):
        x = torch.randn(n, 4)
        assert_rounded(compiled(x), f(x))
    assert compiled.cache_info().misses == 2


VALIDATED: dict[str, Callable[[Tensor], Tensor]] = {
    "a scale": lambda x: torch.distributions.Normal(x, 1.0).log_prob(x).sum(),
    "probabilities": lambda x: torch.distributions.kl_divergence(
        torch.distributions.Normal(x, x.exp()), torch.distributions.Normal(torch.zeros_like(x), torch.ones_like(x))
    ).sum(),
    "a label": lambda x: torch.distributions.Categorical(logits=x).log_prob(torch.zeros(len(x))).sum(),
    "a covariance": lambda x: torch.distributions.MultivariateNormal(x, torch.eye(4)).log_prob(x).sum(),
    "a mask": lambda x: x.sum() if torch.ones(x.shape[:1]).all() else x,
}


@pytest.mark.parametrize("name", VALIDATED)
def test_what_is_asked_of_a_constant_that_is_the_same_at_every_size_leaves_no_guard(name: str) -> None:
    """``torch.distributions`` validates arguments that were expanded to the size of others."""
    assert_one_program_for_sizes(VALIDATED[name])


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "all of a mask": lambda x: x if (m := torch.ones(x.shape, dtype=torch.long)).sum() == m.numel() else -x,
    "not all of a mask": lambda x: x if (m := torch.ones(x.shape, dtype=torch.bool)).sum() < m.numel() else -x,
    "of a mask that was one of floats": lambda x: (
        x if (m := torch.ones(x.shape).to(torch.bool)).sum() == m.numel() else -x
    ),
    "a size in a tensor": lambda x: x * torch.tensor(len(x)).item(),
    "counted": lambda x: x * torch.ones(x.shape, dtype=torch.bool).sum().item(),
    "filled": lambda x: x if (torch.full((3,), len(x)) == len(x)).all() else -x,
    "as a size": lambda x: x[torch.arange(torch.full((), len(x)).item() - 1)],
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_a_constant_is_filled_with_is_known_at_every_size(name: str) -> None:
    """A mask of ones is compared with how many they are, as transformers does it."""
    assert_one_program_for_sizes(COUNTED[name])


def test_a_mask_that_is_drawn_in_place_is_drawn_at_every_size() -> None:
    """As residual blocks are dropped, one of each sample (timm's ``drop_path``)."""

    def f(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.5)

    assert_one_program_for_sizes(f)


BY_SIZE: dict[str, Callable[[Tensor], Any]] = {
    "summed": lambda x: torch.ones(x.shape[:1]).sum() > 3,
    "counted": lambda x: (torch.arange(len(x)) < 4).all(),
    "filled": lambda x: (torch.full((2,), len(x)) < 4).all(),
    "added": lambda x: (torch.ones(x.shape) + len(x) < 5).all(),
    "viewed": lambda x: torch.ones(x.shape).view(-1).sum() > 12,
    "spread": lambda x: (torch.arange(4.0).expand(x.shape).cumsum(0) < 10).all(),
    "wrapped around": lambda x: torch.full((), 253 + len(x)).to(torch.uint8).item() < 9,
    "summed in eight bits": lambda x: (
        torch.full(x.shape[:1], 100, dtype=torch.uint8).sum(dtype=torch.uint8).item() > 99
    ),
    "summed in single precision": lambda x: torch.ones(x.shape[:1]).sum().item() > 3,
    "rounded": lambda x: torch.full((), 2**24 + len(x), dtype=torch.float32).long().item() % 2 == 1,
    "none of none": lambda x: torch.full((0, 2), len(x)).any() or len(x) > 3,
    "after a mask": lambda x: torch.ones(x.shape[:1]).all() and torch.ones(x.shape[:1]).sum() > 3,
}


@pytest.mark.parametrize("name", BY_SIZE)
def test_what_is_asked_of_a_constant_that_a_size_decides_is_its_answer_at_that_size(name: str) -> None:
    asked = BY_SIZE[name]

    def f(x: Tensor) -> Tensor:
        return x.sin() if asked(x) else x.cos()

    compiled = fg.jit(f)
    for n in (2, 3, 4, 5, 6, 2):
        x = torch.randn(n, 4)
        assert_rounded(compiled(x), f(x))


def test_a_budget_is_for_sizes_that_are_known() -> None:
    compiled = fg.grad_compiled(chain, dynamic=True, memory_budget=1.0)
    for n in (300, 500):
        compiled(torch.randn(n), torch.randn(n))
    assert compiled.cache_info().misses == 2


@pytest.mark.long
@pytest.mark.parametrize("op", ROWS, ids=str)
def test_a_row_of_the_op_table_on_symbolic_sizes(op: Any) -> None:
    for call in itertools.islice(variants(op), 5):
        f, tensors = together(op, [call])
        compiled = fg.jit(f, backend="c", dynamic=True)
        sizes = [tensors]
        if is_pointwise(op):
            sizes.append([torch.cat([t] * 5) if t.dim() else t for t in tensors])
        for given in sizes:
            if runs(f, given) and "empty" not in str(op):
                limit = 1e-2 if any(t.dtype in (torch.float16, torch.bfloat16) for t in given) else 1e-4
                torch.testing.assert_close(compiled(*given), f(*given), rtol=limit, atol=limit, equal_nan=True)


def runs(f: Callable[..., Any], given: list[Tensor]) -> bool:
    """Whether eager PyTorch runs it."""
    try:
        f(*given)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.bool], ids=str)
def test_a_tensor_is_compared_with_a_size(dtype: torch.dtype) -> None:
    """A mask is compared with its number of elements: the program was refused by an error of its own."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        n, count = len(x), x.count_nonzero()
        return x == n, n > x, x.cumsum(0) <= n, count == x.numel(), n - 1 != count

    compiled = fg.jit(f, dynamic=True)
    for n in (4, 7, 5, 9):
        x = torch.arange(n).to(dtype)
        assert all(map(torch.equal, compiled(x), f(x)))
    assert compiled.cache_info().misses == 1


class _Cache:
    """What a decoder keeps, as libraries do: tensors in a list, in a dict, and an attribute."""

    def __init__(self):
        self.keys, self.by_name, self.last = [torch.zeros(2, 1, 3), torch.zeros(2, 1, 3)], {}, None


def _with_keys(cache, x):
    cache.keys[0] = torch.cat([cache.keys[0], x], 1)
    cache.keys[1] = torch.cat([cache.keys[1], x * 2], 1)
    return (cache.keys[0] @ cache.keys[1].mT).softmax(-1).sum((1, 2))


def _with_an_attribute(cache, x):
    cache.last = x if cache.last is None else torch.cat([cache.last, x], 1)
    return cache.last.sum((1, 2)) * x.sum()


def _with_a_dict(cache, x):
    old = cache.by_name.get("k")
    cache.by_name["k"] = x if old is None else torch.cat([old, x], 1)
    return cache.by_name["k"][:, -1] * cache.by_name["k"].shape[1]


def _under_one_name(cache, x):
    return (x * cache.keys[0].mean(1, keepdim=True)).sum() + torch.arange(cache.keys[0].shape[1]).sum()


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("step", [_with_keys, _with_an_attribute, _with_a_dict, _under_one_name])
def test_captured_tensors_have_sizes_that_vary(step, backend):
    def run(make):
        cache, found = _Cache(), []
        compiled = make(lambda x: step(cache, x))
        for i in range(8):
            x = torch.full((2, 1, 3), i / 8, requires_grad=True)
            if step is _under_one_name:
                cache.keys[0] = torch.ones(2, i + 2, 3) * i
            y = compiled(x)
            found += [y.detach(), *torch.autograd.grad(y.sum(), x)]
            if step is _with_keys:
                cache.keys[:] = [k.detach() for k in cache.keys]
            cache.last = None if cache.last is None else cache.last.detach()
            cache.by_name.update({k: v.detach() for k, v in cache.by_name.items()})
        return found, cache.keys, compiled

    *expected, _ = run(lambda f: f)
    *found, compiled = run(lambda f: fg.jit(f, backend=backend))
    torch.testing.assert_close(found, expected)
    assert compiled.cache_info().misses <= 4


def test_a_captured_tensor_named_like_an_argument_has_known_sizes():
    def with_table(y):
        return lambda x: (y * 2).sum() * x

    f = with_table(torch.ones(2))
    compiled = fg.jit(lambda y: f(y) + y)
    for n in (2, 3, 4):
        f.__closure__[0].cell_contents = torch.ones(n)
        torch.testing.assert_close(compiled(torch.ones(n)), f(torch.ones(n)) + 1)


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_a_size_that_backward_knows_as_a_part_of_a_sum_is_a_symbol(backend):
    """Of a cache that grows by what each call brings, backward reads what it is with that alone."""
    weight = torch.eye(3).requires_grad_()

    def run(make):
        kept, found = torch.zeros(2, 2, 3), []

        def f(x):
            nonlocal kept
            y = x @ weight
            kept = torch.cat([kept, y.detach()], 1)
            return (y @ kept.mT).softmax(-1) @ kept

        compiled = make(f)
        for i, n in enumerate((3, 5, 4, 7, 3, 6, 9)):
            y = compiled(torch.full((2, n, 3), 1 / (i + 1)))
            found += [y.detach(), *torch.autograd.grad(y.square().sum(), weight)]
        return found, compiled

    expected, _ = run(lambda f: f)
    found, compiled = run(lambda f: fg.jit(f, backend=backend))
    torch.testing.assert_close(found, expected)
    assert compiled.cache_info().misses <= 4
