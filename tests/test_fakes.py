"""Results on fake tensors that are made of earlier ones are what PyTorch's own fake tensors would have said; so are
views of functional tensors that are taken the short way."""

import contextlib
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from op_samples import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import funcgrad as fg
from funcgrad.capture import fake_tensor_cache
from funcgrad.capture.fake_tensor_cache import Results
from funcgrad.torch_private.fakes import FakeTensor, FakeTensorMode, is_known_by_kinds, is_known_look, on_fakes
from funcgrad.torch_private.tensors import dispatch_bits

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def looks_of(out):
    """All there is to know about fake tensors."""

    def look(v):
        memory = v.storage_offset(), v.untyped_storage().nbytes()
        return v.dtype, v.shape, v.stride(), *memory, v.device, v.requires_grad, dispatch_bits(v), vars(v)

    return [look(v) if isinstance(v, FakeTensor) else v for v in tree_leaves(out)]


class Asking(TorchDispatchMode):
    """Asks for each call's result twice, so that the second is made of the first, and once of PyTorch; ``differ``
    are the calls for which they are not the same."""

    def __init__(self, mode):
        super().__init__()
        self.results, self.differ = Results(mode), []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        looks = is_known_look(op)
        if not looks and not is_known_by_kinds(op):
            return op(*args, **kwargs)
        first, again, expected = (
            self.results(op, args, kwargs),
            self.results(op, args, kwargs),
            on_fakes(op, args, kwargs),
        )
        seen = [
            v.untyped_storage()._cdata for v in tree_leaves((first, again, args, kwargs)) if isinstance(v, FakeTensor)
        ]
        made = [v.untyped_storage()._cdata for v in tree_leaves(again) if isinstance(v, FakeTensor)]
        own = all(memory == args[0].untyped_storage()._cdata if looks else seen.count(memory) == 1 for memory in made)
        if not own or type(again) is not type(expected) or looks_of(again) != looks_of(expected):
            self.differ.append((op, looks_of(again), looks_of(expected)))
        return first


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(fake_tensor_cache, "makers", {})


def known():
    """How many kinds of calls have a result that is made of an earlier one."""
    return sum(make is not None for make in fake_tensor_cache.makers.values())


@pytest.mark.parametrize("letters", [LETTERS[i : i + 9] for i in range(0, 26, 9)])
@pytest.mark.filterwarnings("ignore")
def test_of_every_operator_of_the_database(letters):
    for info in op_db:
        if info.name.split(".")[-1].strip("_")[0].lower() not in letters:
            continue
        for dtype in {torch.float32, torch.int64} & info.supported_dtypes("cpu"):
            for sample in itertools.islice(info.sample_inputs("cpu", dtype), 1):
                mode = FakeTensorMode()
                asking = Asking(mode)
                # what fake tensors, or torch, cannot do, they say before there is a result
                with contextlib.suppress(Exception):
                    args = tree_map_only(torch.Tensor, mode.from_tensor, (sample.input, sample.args, sample.kwargs))
                    with mode, asking:
                        info.op(args[0], *args[1], **args[2])
                assert not asking.differ, info.name
    assert known() > 100


def test_the_kind_of_a_call():
    """What changes a result changes the kind: the default dtype, the type of a number, the strides."""
    mode, add = FakeTensorMode(), torch.ops.aten.add.Tensor
    results = Results(mode)
    with mode:
        ints, floats = torch.ones(3, 4, dtype=torch.int64), torch.ones(4, 3)
        assert results(add, (ints, 1), {}).dtype == torch.int64
        assert results(add, (ints, 1.0), {}).dtype == torch.float32
        assert results(add, (ints, True), {}).dtype == torch.int64
        torch.set_default_dtype(torch.float64)
        try:
            assert results(add, (ints, 1.0), {}).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert results(add, (floats, floats), {}).stride() == (3, 1)
        assert results(add, (floats.t(), floats.t()), {}).stride() == (1, 3)
        assert results(add, (floats.t().contiguous(), floats.t()), {}).stride() == (4, 1)


_BASES = {
    "dense": lambda: torch.ones(3, 4),
    "offset": lambda: torch.ones(6, 4)[2:5],
    "transposed": lambda: torch.ones(4, 3).t(),
    "expanded": lambda: torch.ones(4).expand(3, 4),
    "complex": lambda: torch.ones(3, 4, dtype=torch.complex64),
    "conjugated": lambda: torch.ones(3, 4, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(3, 4, dtype=torch.complex64).conj().imag,
    "empty": lambda: torch.ones(3, 4)[:0],
    "symbolic zeros": lambda: torch._efficientzerotensor([3, 4]),
}
_VIEWS = {
    "select": lambda x: x[-1:].select(0, 0) if len(x) else x.select(1, 2),
    "slice": lambda x: x[:, 1::2],
    "diagonal": lambda x: x.diagonal(1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x.expand(2, *x.shape),
    "split": lambda x: x.split([1, 3], 1),
    "unbind": lambda x: x.unbind(1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "detach": lambda x: x.detach(),
    "conj": lambda x: x.conj() if x.is_complex() else x.view_as(x),
    "real": lambda x: torch.view_as_real(x) if x.is_complex() and not x.is_conj() else x.view(x.shape),
    "bits": lambda x: x.view(torch.int32) if x.dtype == torch.float32 and x.stride(-1) == 1 else x[:, None],
}


@pytest.mark.parametrize("base", _BASES)
def test_a_view_of_every_kind(base):
    """Conjugated and negated bits, offsets and memory are those of PyTorch's own; a second trace asks nothing."""
    for view in _VIEWS.values():
        for mode in (FakeTensorMode(), FakeTensorMode()):
            with mode:
                x = _BASES[base]()
                asking = Asking(mode)
                with asking:
                    found = view(x)
                assert not asking.differ
                assert all(v.fake_mode is mode for v in tree_leaves(found) if isinstance(v, FakeTensor))
    assert known() > 8 or base == "symbolic zeros"


def test_views_with_dimensions_of_one_are_those_of_tensors():
    """Also their refusals: PyTorch's fakes take some that tensors do not, and give such dimensions other strides."""
    draw, refused = random.Random(0), 0
    for _ in range(400):
        x = torch.empty([draw.choice([1, 1, 2, 3, 4]) for _ in range(draw.randint(0, 4))])
        x = x.permute(draw.sample(range(x.dim()), x.dim()))
        if x.dim() and draw.random() < 0.3:
            x = x[..., ::2]
        sizes, left = [], x.numel()
        for _ in range(draw.randint(0, 3)):
            sizes.append(draw.choice([n for n in range(1, left + 1) if left % n == 0]))
            left //= sizes[-1]
        sizes.insert(draw.randint(0, len(sizes)), draw.choice([left, -1]))
        try:
            expected = x.view(sizes)
        except RuntimeError as error:
            refused += 1
            with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=str(error)[:60]):
                on_fakes(torch.ops.aten.view.default, (mode.from_tensor(x), sizes), {})
        else:
            with FakeTensorMode() as mode:
                seen = on_fakes(torch.ops.aten.view.default, (mode.from_tensor(x), sizes), {})
            assert (seen.shape, seen.stride()) == (expected.shape, expected.stride())
    assert refused > 10


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_reshaped_batch_of_one_is_laid_out_as_in_eager_pytorch(dynamic):
    """Whether it is in channels_last memory depends on the stride of a dimension of one element."""

    def f(x, r):
        y = x.transpose(-1, -2).reshape(1, r.shape[1], 8, 8) + r
        z = y / 1
        return (
            y,
            F.group_norm(z, 2).exp(),
            F.max_pool2d(z, 2).exp(),
            F.group_norm(y, 2),
            x.transpose(0, 1).reshape(-1, 4),
        )

    c = fg.jit(f, backend="aten", dynamic=dynamic)
    for n in (4, 6, 8):
        x, r = torch.randn(1, 64, n), torch.randn(1, n, 8, 8)
        for got, expected in zip(c(x, r), f(x, r), strict=True):
            torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    if dynamic:
        assert c.cache_info().misses <= 2


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_what_fakes_lay_out_otherwise_can_be_viewed(backend):
    """A transposed batch norm, and losses whose gradient lies otherwise than what they are the gradient of."""

    def f(x, w):
        y = F.batch_norm(x.transpose(1, 2), None, None, training=True)
        z = F.linear(y.transpose(1, 2), w).transpose(1, 2)
        return sum(loss(z, y * 2) for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss)) + F.hardtanh(z).sum()

    c = fg.jit(f, backend=backend)
    x, w = torch.randn(3, 4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    torch.testing.assert_close(c(x, w), f(x, w))
    for got, expected in zip(torch.autograd.grad(c(x, w), (x, w)), torch.autograd.grad(f(x, w), (x, w)), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_truth_values_are_shifted_as_numbers(backend):
    b, n = torch.tensor([True, False]), torch.tensor([3, 5], dtype=torch.int32)
    for f in (lambda: b << 2, lambda: b >> 1, lambda: b << n, lambda: n << b, lambda: n >> b):
        torch.testing.assert_close(fg.jit(f, backend=backend)(), f())


def test_symbolic_zeros_have_no_memory():
    op = torch.ops.aten._efficientzerotensor.default
    for _ in range(2):
        with FakeTensorMode() as mode, Asking(mode) as asking:
            assert torch._is_zerotensor(op([2, 3]))
            assert not asking.differ
    assert known() == 1


def _asked(monkeypatch):
    asked = []
    monkeypatch.setattr(fake_tensor_cache, "on_fakes", lambda op, *rest: (asked.append(op), on_fakes(op, *rest))[1])
    return asked


def test_an_unrolled_loop_asks_once(monkeypatch):
    asked = _asked(monkeypatch)

    def loss(x, steps):
        for _ in range(steps):
            x = x.sin() * x + 1
        return x.sum()

    def count(steps):
        asked.clear()
        fake_tensor_cache.makers.clear()
        fg.grad_compiled(loss, backend="aten").program(torch.randn(5), steps)
        return len(asked)

    assert count(40) == count(20) > 0


def test_a_second_trace_asks_nothing(monkeypatch):
    asked = _asked(monkeypatch)

    def loss(x, w):
        y = (x @ w).view(-1)[1:].to(torch.float64).unsqueeze(0)
        return (y.expand(2, -1) * y.sin()).sum()

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    fg.grad_compiled(loss, backend="aten").program(x, w)
    assert asked
    asked.clear()
    fg.grad_compiled(loss, backend="aten").program(x, w)
    assert not asked


_TAKEN = {
    "of a view that was written to": lambda x: (
        lambda y: (y[:, 1:].mul_(2), y.t()[0].unsqueeze(0) + y.select(1, 1))[1]
    )(x.clone()),
    "written to through a view": lambda x: (lambda y: (y.permute(1, 0)[1].mul_(3), y.diagonal().add_(1), y)[2])(x * 2),
    "of several": lambda x: (lambda y: (y.add_(1), y.split([1, 2], 0)[1] * y.unbind(1)[0][1:, None])[1])(x.clone()),
    "conjugated": lambda x: (lambda z: (z.conj()[0] * z[1:].imag).real + z.conj().imag[1:])(torch.complex(x, x.sin())),
    "returned": lambda x: x[1:].unsqueeze(0).expand(2, -1, -1),
}


@pytest.mark.parametrize("name", _TAKEN)
def test_views_of_functional_tensors(name):
    f = _TAKEN[name]
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    torch.testing.assert_close(fg.jit(f, backend="aten")(x), f(x), rtol=0, atol=1e-12)
    expected = torch.func.grad(lambda x: f(x).sin().sum())(x)
    torch.testing.assert_close(
        fg.grad_compiled(lambda x: f(x).sin().sum(), backend="aten")(x), expected, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_the_mean_of_no_losses(loss):
    x, y = torch.randn(0), torch.randn(0)

    def f(x):
        return getattr(torch.nn.functional, loss)(x, y)

    assert fg.grad_compiled(f)(x).shape == torch.func.grad(f)(x).shape == (0,)
    out, _ = fg.linearize_compiled(f, x)
    assert out.isnan() and f(x).isnan()
