"""Views that are no combination of slices, and memory that overlaps itself: eager PyTorch is the oracle."""

import pytest
import torch
import torch.nn.functional as F
from laws.programs import Case, difference, require_as_eager, run

import funcgrad as fg
from funcgrad.capture.views import Geometry, steps_between, take


def plain():
    return (torch.arange(8.0) / 5,)


def tracked():
    return ((torch.arange(8.0) / 5).requires_grad_() * 1,)


def part():
    return ((torch.arange(8.0) / 5)[2:6],)


def windows():
    return (torch.arange(8.0).as_strided((3, 2), (1, 1)),)


def expanded():
    return (torch.arange(4.0).expand(2, 4),)


def interlocked():
    base = torch.arange(12.0)
    return base.as_strided((2, 2), (3, 2)), base.as_strided((2, 2), (5, 3))


def expanded_by_history():
    return (torch.arange(4.0, requires_grad=True).expand(2, 4),)


def overlapping():
    base = torch.arange(12.0)
    return base.as_strided((2, 2), (1, 1)), base.as_strided((4,), (3,))


def assert_like_eager(f, make):
    """Results, gradients, inputs in data and metadata, or the error: at the first call and at the second."""
    case, compiled = Case(make, f), fg.jit(f)
    expected = run(case, lambda f: f)
    for _ in range(2):
        assert difference(expected, found := run(case, lambda f: compiled)) is None
        assert (found.error is None) == (expected.error is None), found.error


WRITES = {
    "rows that interlock": lambda x: x.as_strided((2, 2), (1, 2)).mul_(2),
    "of a slice": lambda x: x[1:].as_strided((2, 2), (1, 2)).mul_(2),
    "its part": lambda x: x.as_strided((2, 2), (1, 2))[0].mul_(2),
    "a row of windows": lambda x: x.as_strided((2, 3), (1, 1))[0].mul_(2),
    "scattered": lambda x: x.as_strided((2, 2), (2, 3), 1).mul_(2),
    "first elements": lambda x: x.unfold(0, 3, 1)[:, 0].mul_(2),
    "apart": lambda x: x.unfold(0, 2, 2).mul_(2),
    "a row of what is expanded": lambda x: x.expand(2, 8)[0].mul_(2),
    "a part of what is expanded": lambda x: x.expand(2, 8)[:, 1:][:1].mul_(2),
    "strides changed": lambda x: x.as_strided_((4,), (2,)).mul_(2),
}


@pytest.mark.parametrize("make", [plain, tracked])
@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views_that_are_no_slices(name, make):
    def f(x):
        WRITES[name](x)
        return x.sin(), x[1:]

    assert_like_eager(f, make)


def test_infinities_written_through_an_expanded_view_stay_what_they_are():
    def f(x):
        x.mul_(torch.inf).expand(2, 8)[0].mul_(2)
        return (x * 1,)

    assert_like_eager(f, lambda: (torch.arange(1.0, 9.0),))


def test_a_slice_knows_strides_from_where_it_begins():
    def f(x):
        x.as_strided((2, 2), (1, 2)).mul_(2)
        return (x.as_strided((3,), (1,), 3) * 1,)

    assert_like_eager(f, part)


FILLS = {
    "zeros": lambda x: x.expand(2, 8)[:, 1:].zero_(),
    "windows": lambda x: x.unfold(0, 3, 1)[:2].zero_(),
    "one value": lambda x: x.unfold(0, 3, 1).copy_(x.mean()),
    "where a mask says so": lambda x: x.expand(2, 8).masked_fill_(x.expand(2, 8) > 0.5, 3),
    "where one of two masks does": lambda x: x.expand(2, 8).masked_fill_(torch.tensor([[True], [False]]), 3),
    "in windows where a mask says so": lambda x: x.unfold(0, 3, 1).masked_fill_(x.unfold(0, 3, 1) > 1.1, 3),
    "at a mask": lambda x: x.expand(2, 8).__setitem__(x.expand(2, 8) > 0.5, 3.0),
    "at an index": lambda x: x.expand(2, 8).__setitem__(torch.tensor([0]), 3.0),
    "along an index": lambda x: x.expand(2, 8).index_fill_(0, torch.tensor([0]), 3.0),
    "by itself": lambda x: (e := x.expand(2, 8)).copy_(e),
    "by its element": lambda x: x.fill_(x[1]),
    "expanded, by a number": lambda x: x.expand(2, 8).fill_(3),
    "expanded, by a tensor": lambda x: x.expand(2, 8).fill_(x.mean()),  # eager PyTorch copies it, and raises
    "windows, by a tensor": lambda x: x.unfold(0, 3, 1).fill_(x.mean()),
    "by its element, masked": lambda x: x.masked_fill_(x > 0.5, x[1]),
    "by its element, indexed": lambda x: x.index_fill_(0, torch.tensor([2, 3]), x[1]),
    "by its element, at a mask": lambda x: x.__setitem__(x > 0.5, x[0]),
}


@pytest.mark.filterwarnings("ignore:Use of:UserWarning")
@pytest.mark.parametrize("name", FILLS)
def test_what_fills_elements_that_are_one_in_memory(name):
    def f(x):
        FILLS[name](x)
        return (x.sin(),)

    assert_like_eager(f, plain)


@pytest.mark.parametrize("make", [windows, expanded])
@pytest.mark.parametrize("write", [lambda x: x[0].mul_(2), lambda x: x.zero_(), lambda x: x.detach()[0].add_(1)])
def test_an_input_that_overlaps_itself_is_written_to(write, make):
    def f(x):
        write(x)
        return x.sin(), x[:, 1:]

    assert_like_eager(f, make)


def test_an_expanded_input_with_a_history_is_written_to_under_no_grad():
    def f(x):
        with torch.no_grad():
            x[0].mul_(2)
        return (x.sin(),)

    assert_like_eager(f, expanded_by_history)


@pytest.mark.parametrize("make", [interlocked, overlapping])
@pytest.mark.parametrize("which", [0, 1])
def test_inputs_that_share_memory_by_strides_are_written_to(which, make):
    def f(*inputs):
        inputs[which][0].mul_(2)
        return (inputs[0] + 1, inputs[1].sin())

    assert_like_eager(f, make)


OVERLAPS = {
    "a copy further on": lambda x: x[1:].copy_(x[:-1]),
    "an item further on": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "its transpose": lambda x: (y := x[:4].view(2, 2)).add_(y.t()),
    "index_put_": lambda x: x.index_put_((torch.arange(8).flip(0),), x),
    "index_copy_": lambda x: x.index_copy_(0, torch.arange(8).flip(0), x),
    "index_add_": lambda x: x.index_add_(0, torch.arange(8).flip(0), x),
    "scatter_": lambda x: x.scatter_(0, torch.arange(8).flip(0), x),
    "scatter_add_": lambda x: x.scatter_add_(0, torch.arange(8).flip(0), x),
    "put_": lambda x: x.put_(torch.arange(8).flip(0), x),
    "gather": lambda x: torch.gather(x, 0, torch.arange(8).flip(0), out=x),
    "index_select": lambda x: torch.index_select(x, 0, torch.arange(8).flip(0), out=x),
    "take": lambda x: torch.take(x, torch.arange(8).flip(0), out=x),
    "cat": lambda x: torch.cat([x[4:], x[:4]], out=x),
    "stack": lambda x: torch.stack([x[0], x[1]], out=x[:2]),
    "what is expanded": lambda x: x.expand(2, 8).mul_(2),
    "out of its memory": lambda x: (x * 1).as_strided((9,), (1,)),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_what_eager_forbids_is_forbidden(name):
    (x,) = plain()
    with pytest.raises(RuntimeError) as in_eager:
        OVERLAPS[name](x)
    with pytest.raises(RuntimeError) as compiled:
        fg.jit(lambda x: OVERLAPS[name](x) * 1)(x)
    assert str(compiled.value).split(".")[0] == str(in_eager.value).split(".")[0]
    assert torch.equal(x, *plain())


BY_ORDER = {
    "windows": lambda x: x.unfold(0, 3, 1).mul_(2),
    "several values": lambda x: x.expand(2, 8).__setitem__(torch.tensor([0, 1]), torch.arange(16.0).view(2, 8)),
    "a matrix": lambda x: (y := x[:4].view(2, 2)).addmm_(y, y),
    "a product": lambda x: torch.mm(x[:4].view(2, 2), x[4:].view(2, 2), out=x[2:6].view(2, 2)),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0.5, x),
    "a sum": lambda x: torch.sum(x.view(2, 4), 0, out=x[:4]),
    "a copy between strides": lambda x: x[2::2].copy_(x[:-2:2]),
}


@pytest.mark.filterwarnings("ignore:Use of:UserWarning")
@pytest.mark.parametrize("name", BY_ORDER)
def test_what_depends_on_the_order_is_refused_by_name(name):
    (x,) = plain()
    with pytest.raises(fg.MutationError, match="depends on the order"):
        fg.jit(lambda x: BY_ORDER[name](x) * 1)(x)
    assert torch.equal(x, *plain())


@pytest.mark.parametrize("look", [lambda x: x.expand(2, 8), lambda x: x.as_strided((2, 2), (1, 1))])
def test_a_tracked_write_to_an_input_that_overlaps_itself_is_refused_by_name(look):
    def f(x):
        x[0].mul_(2)
        return (x * 1,)

    x = look(*tracked())
    with pytest.raises(fg.MutationError, match="one in memory, what requires grad"):
        fg.jit(f)(x)


@pytest.mark.parametrize("write", [torch.Tensor.masked_fill_, torch.Tensor.index_fill_, torch.Tensor.cumsum_])
def test_what_is_written_to_in_place_lies_as_it_lay(write):
    args = {"masked_fill_": (torch.tensor(True), 1.0), "index_fill_": (0, torch.tensor([0]), 1.0), "cumsum_": (0,)}[
        write.__name__
    ]
    assert_like_eager(lambda x: (write(x * 1, *args),), lambda: (torch.arange(6.0).view(2, 3).t(),))


BASES = (
    torch.arange(24.0),
    torch.arange(24.0).view(4, 6).t(),
    torch.arange(24.0).view(2, 1, 3, 4).permute(2, 0, 1, 3),
    torch.arange(24.0)[3:20],
)


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{tuple(base.shape)}")
def test_every_look_at_dense_memory_is_a_sequence_of_views(base):
    first = base.storage_offset()
    for shape in [(), (3,), (2, 2), (3, 1, 2), (2, 2, 3)]:
        for strides in [(1, 1, 1), (2, 3, 1), (1, 2, 4), (0, 1, 2), (5, 0, 3)]:
            look = base.as_strided(shape, strides[: len(shape)], first + 1)
            found = take(base, steps_between(Geometry.of(base), Geometry.of(look)))
            assert torch.equal(found, look) and found.storage_offset() == look.storage_offset()
            assert all(a == b for a, b, n in zip(found.stride(), look.stride(), look.shape, strict=True) if n > 1)


def test_an_expanded_tensor_without_elements_is_written_to():
    def f(x):
        x.expand(2, 0).data.add_(1)
        return x

    assert fg.jit(f)(torch.empty(0)).shape == (0,)


@pytest.mark.parametrize(
    "look", [lambda x: x.as_strided((2, 3), (3, 1)), lambda x: x.reshape(-1).resize_(2, 3)], ids=["view", "resized"]
)
def test_a_history_for_what_lies_around_one_of_several_families_is_refused(look):
    """Autograd knows of the memory around it by the family alone that goes in as what it looks at."""

    def f(x, y, z):
        look(z).copy_(y)
        return x * 2

    base = (torch.arange(8.0) / 5).requires_grad_()
    with pytest.raises(fg.AliasContractError, match="memory around a tensor it looks at"):
        fg.jit(f)(base[:5], torch.ones(2, 3, requires_grad=True) * 2, base.detach()[:3])


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.relu_(),
        lambda x: x.abs_(),
        lambda x: x.clamp_(-0.1, 0.4),
        lambda x: x.clamp_(max=0.1),
        lambda x: x.round_(),
        lambda x: x.nan_to_num_(nan=1.0),
    ],
    ids=["relu", "abs", "clamp", "clamp max", "round", "nan_to_num"],
)
@pytest.mark.parametrize("look", [lambda x: x, lambda x: x.unfold(0, 3, 2), lambda x: x.as_strided((3, 2), (1, 1), 1)])
def test_what_is_the_same_however_often_it_is_done_is_done_where_elements_are_one(write, look):
    """In any order, and over again."""

    def f(x, y):
        return write(look(x) if x.dim() == 1 else x).sum(), x * 1, y * 1

    def make():
        base = torch.arange(8.0) / 5 - 0.5
        base[3] = float("nan")
        return base.as_strided((3, 2), (1, 1)) if look(base) is base else base, torch.ones(2)

    require_as_eager(Case(make, f))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1).sin().sum(),  # restrides what it has made
        lambda x: (x * x).squeeze(0).mul_(2).sin().sum(),
        lambda x: F.adaptive_avg_pool2d(x[:, :, None].permute(0, 3, 2, 1), 1).tanh().sum(),
    ],
)
def test_gradients_of_what_is_restrided_or_written_to_whole_serve_all_sizes(f):
    compiled = fg.jit(f, backend="aten")
    for n in (2, 3, 4, 6):
        x = torch.randn(n, 5, 4, dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(found, torch.autograd.grad(f(x), x))
    assert compiled.cache_info().misses == 2
