"""Compiled autograd, mechanism by mechanism: what is recorded, what the graph holds, where hooks stand, what lives
how long."""

from __future__ import annotations

import contextlib
import copy
import gc
import re
import weakref
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg
from funcgrad.backends.peak import peak_bytes
from funcgrad.engine import region as regions
from funcgrad.engine.placement import verified
from funcgrad.engine.record import Recorder
from funcgrad.engine.statements import Functional, Kind
from funcgrad.engine.tokens import UNLIKELY, Ref, Tokens, refs_in
from funcgrad.torch_private.engine import engine_operators


def captured(loss, **options):
    """What a region captures of one backward pass; in the first one of two, the caller's Python tells what it
    returns."""
    regions.reset()
    with fg.compiled_autograd(**{"backend": "aten", **options}) as region:
        for _ in range(2):
            loss().backward()
    (capture,) = region.captures
    return capture


def graph_of(capture):
    return capture.programs[-1].graphs[0]


def targets(capture):
    return [getattr(n.target, "__name__", str(n.target)) for n in graph_of(capture).fx.nodes if n.op == "call_function"]


def both(program, times=3):
    """What ``program(log)`` returns and logs in eager PyTorch and captured, the same both times and on later runs."""
    logs, found = [], []
    regions.reset()
    for _ in range(1 + times):
        log: list = []
        if found:
            with fg.compiled_autograd(backend="aten") as region:
                found.append(program(log))
        else:
            found.append(program(log))
        logs.append(log)
    for values, log in zip(found[1:], logs[1:], strict=True):
        torch.testing.assert_close(values, found[0])
        assert log == logs[0]
    return region


def leaf(*shape):
    return torch.linspace(0.1, 1, torch.Size(shape).numel()).view(shape).requires_grad_()


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_fail_loudly_when_they_are_read():  # S0-8, S3-25
    tokens = Tokens()
    tensor, size = tokens.tensor(Ref("inputs", 0)), tokens.number(Ref("sizes", 0), int)
    assert tensor.shape == (0, UNLIKELY) and tensor.device.type == "meta"
    with pytest.raises(fg.GraphError, match="named a tensor that it was not given"):
        tokens.refs(tensor + 1)
    with pytest.raises(fg.GraphError, match="computed with a size"):
        tokens.refs(size * 2)
    for read in (int, bool, lambda n: n > 3):
        with pytest.raises(AttributeError):
            read(size)


def test_what_the_engine_names_becomes_references():  # S3-35
    tokens = Tokens()
    tensor, size = tokens.tensor(Ref(3, 1)), tokens.number(Ref("sizes", 2), int)
    scalar = tokens.number(Ref("scalars", 0), float)
    constants = [None, 3, 2.5, True, "sum", torch.float32, torch.device("cpu"), torch.strided]
    assert tokens.refs([tensor, (size, [scalar]), *constants]) == [
        Ref(3, 1),
        (Ref("sizes", 2), [Ref("scalars", 0)]),
        *constants,
    ]
    assert tokens.refs(torch.Size([2, 3])) == (2, 3)


def test_nothing_of_a_token_is_recorded():  # S0-11, S3-13
    capture = captured(lambda: (leaf(3, 4).exp() @ leaf(4, 2)).tanh().sum())

    def plain(value):
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        return not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat))

    assert all(plain(s.args) for s in capture.statements)
    assert str(UNLIKELY) not in str(capture) and not graph_of(capture).fx.find_nodes(op="get_attr")


def test_a_number_that_is_none_is_refused_by_name():  # S3-12
    with pytest.raises(fg.GraphError, match="hands over a bool where a number was expected"):
        Recorder(lambda recorder: None).begin_capture([], [], [True], [], True, False)


# ── what is recorded ─────────────────────────────────────────────────────────────────────────────────────────────


def test_formulas_are_named_once():  # S3-1, S3-3, S3-5
    first = captured(lambda: leaf(3).sin().sum())
    second = captured(lambda: leaf(4, 2).sin().exp().sum())
    for capture in (first, second):
        (formula,) = [s for s in capture.statements if s.name == "SinBackward0"]
        assert formula.run == Functional("SinBackward0") and formula.kind is Kind.PURE
        assert repr(formula.run) == "Functional(name='SinBackward0')"
        assert engine_operators().get(formula.run.name) is not None


def test_formulas_become_the_calls_of_pytorch():  # S3-15
    assert "gelu_backward" in " ".join(targets(captured(lambda: F.gelu(leaf(3, 4)).sum())))
    found = targets(captured(lambda: F.layer_norm(leaf(3, 4), (4,)).sum()))
    assert any("native_layer_norm_backward" in name for name in found)


def test_sums_of_gradients_are_statements():  # S0-10, S3-34
    def loss():
        x = leaf(3)
        y = x.sin()
        return (y * y.exp() + y.cos() + x).sum()

    capture = captured(loss)
    assert [s.kind for s in capture.statements].count(Kind.SUM) == 3
    assert sum("add" in name for name in targets(capture)) == 3

    def program(log):
        x = leaf(3)
        y = x.sin()
        y.register_hook(lambda g: log.append(g.sum().item()))
        (y * y.exp() + y.cos() + x).sum().backward()
        return [x.grad]

    both(program)


def test_captures_have_numbers():  # S3-8
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        leaf(3).sin().sum().backward()
        leaf(3).cos().sum().backward()
        leaf(3).sin().sum().backward()
    assert [c.name for c in region.captures] == ["backward0", "backward1"]
    assert [(e.what, e.graph) for e in region.events] == [
        ("captured", 0), ("compiled", 0), ("ran", 0), ("captured", 1), ("compiled", 1), ("ran", 1), ("ran", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_stages_begin_and_end(fails):  # S3-18
    seen = []
    regions.reset()
    x = torch.randn(4, 4, requires_grad=True)
    with fg.watch_compile(lambda event: seen.append((event.function, event.stage, event.seconds is None))):
        if fails:
            with fg.compiled_autograd(), pytest.warns(fg.UncompiledBackwardWarning):
                torch.sparse.mm(torch.eye(4).to_sparse(), x).sum().backward()
        else:
            with fg.compiled_autograd():
                x.exp().sum().backward()
    began = [(name, stage) for name, stage, begins in seen if begins]
    assert began == [(name, stage) for name, stage, begins in seen if not begins]
    assert {name for name, _ in began} == {"backward0"} and (len(began) > 3) != fails


def test_where_a_call_comes_from():  # S3-16, S3-17
    capture = captured(lambda: leaf(3).sin().exp().sum())
    nodes = [n for n in graph_of(capture).fx.nodes if n.op == "call_function"]
    assert all(re.fullmatch(r"\w+ \(\d+\)", n.meta["where"]) for n in nodes)
    assert {n.meta["where"].split()[0] for n in nodes} == {
        "SumBackward0",
        "ExpBackward0",
        "SinBackward0",
        "AccumulateGrad",
    }


def test_what_a_number_is_part_of_the_engines_key_is_warned_of():
    """PyTorch's engine makes another graph of each exponent: so many programs of one function are a mistake of
    somebody's."""
    regions.reset()
    with (
        fg.compiled_autograd(backend="aten") as region,
        pytest.warns(fg.RecompileWarning, match="captured 5 times") as said,
    ):
        for exponent in range(2, 12):
            leaf(3).pow(exponent + 0.5).sum().backward()
    assert len(said) == 1 and len(region.captures) == 10


# ── custom functions ─────────────────────────────────────────────────────────────────────────────────────────────


class OfTwo(torch.autograd.Function):
    """Says which of its inputs want a gradient."""

    log: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x, y):
        return x * 2 + y * 3

    @staticmethod
    def backward(ctx, g):
        OfTwo.log.append(ctx.needs_input_grad)
        return g * 2 if ctx.needs_input_grad[0] else None, g * 3 if ctx.needs_input_grad[1] else None


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_views_written_to_by_a_function_of_two(wanted):  # S0-9, S3-33
    """What a view of a base is written over with has gradients of its own: of those of its inputs that want one."""

    def program(log):
        x, y = leaf(3), leaf(4).requires_grad_(wanted[1])
        base = torch.zeros(4, 4) + leaf(4, 4).sum() * wanted[0]
        base.t()[1:4, 2].copy_(OfTwo.apply(x if wanted[0] else x.detach(), y[:3]))
        base[0:2, 1:].mul_(y[1:]) if wanted[1] else base[0:2, 1:].mul_(2)
        (base * base).sum().backward()
        log.extend(OfTwo.log)
        OfTwo.log.clear()
        return [x.grad, y.grad]

    both(program)


class OfTheWrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.new_ones(5)


def test_a_gradient_of_the_wrong_shape_raises_as_in_eager():  # S3-31
    said = []
    for region in (None, fg.compiled_autograd(backend="aten")):
        x = leaf(3)
        y = OfTheWrongShape.apply(x).sum()
        with pytest.raises(
            RuntimeError, match="Function OfTheWrongShapeBackward returned an invalid gradient at index 0 - got"
        ) as caught:
            if region is None:
                y.backward()
            else:
                with region:
                    y.backward()
        said.append(str(caught.value))
        assert x.grad is None
    assert said[0] == said[1]


# ── hooks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_of_python_stay_though_nobody_reads_what_they_return():  # S3-7, S3-53
    def loss():
        x = leaf(3)
        y = x.sin()
        y.register_hook(lambda g: None)
        y.grad_fn.register_hook(lambda made, given: None)
        x.register_post_accumulate_grad_hook(lambda p: None)
        return y.exp().sum()

    capture = captured(loss)
    called = " ".join(n.name for n in graph_of(capture).fx.nodes if n.op == "call_function")
    assert "tensor_hook" in called and "post_hook" in called and "after_store" in called


def test_what_nobody_reads_is_not_computed():  # S3-54
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        for n in (3, 5):
            x = leaf(n, 4)
            F.layer_norm(x, (4,)).mean(0).sum().backward()
    (capture,) = region.captures
    assert len(capture.programs) == 2
    nodes = [n for n in graph_of(capture).fx.nodes if n.op == "call_function" and "accumulate" not in n.name]
    assert any(getattr(n.target, "__name__", "") == "size" for n in nodes) and all(n.users for n in nodes)


def test_each_kind_of_hook_on_a_leaf_in_order():  # S3-45, S3-48
    """Hooks on the tensor, on the node that collects its gradient, before and after, and after the sum."""

    def program(log):
        w = leaf(3)
        collects = torch.autograd.graph.get_gradient_edge(w).node
        w.register_post_accumulate_grad_hook(lambda p: log.append(("after the sum", p.grad.sum().item())))
        w.register_hook(lambda g: log.append(("tensor", g.sum().item())) or g * 2)
        collects.register_prehook(
            lambda grads: log.append(("before the node", grads[0].sum().item())) or (grads[0] * 3,)
        )
        collects.register_hook(lambda made, given: log.append(("after the node", len(made), w.grad is not None)))
        w.register_post_accumulate_grad_hook(lambda p: log.append(("again", p.grad.sum().item())))
        w.exp().sum().backward()
        return [w.grad]

    both(program)


def test_a_block_is_one_call():  # S3-49
    def loss():
        x = leaf(3)
        x.register_hook(lambda g: g * 2)
        x.register_post_accumulate_grad_hook(lambda p: None)
        return (x.exp() * leaf(3)).sum()

    names = [n.name for n in graph_of(captured(loss)).fx.nodes if "accumulate" in n.name]
    assert "tensor_hook_and_accumulate_grad_and_after_store" in names and len(names) == 2


def test_an_order_in_which_something_is_read_before_it_is_made():  # S3-46
    capture = captured(lambda: leaf(3).sin().exp().sum())
    reading = next(s for s in capture.statements if any(isinstance(r.of, int) for r in refs_in(s.args)))
    with pytest.raises(fg.GraphError, match=r"stands before .* is made"):
        verified([reading, *(s for s in capture.statements if s is not reading)])


def test_gradients_are_added_up_as_soon_as_they_are_there():  # S0-5, S3-43
    """A hook in the middle of a backward pass sees the gradients of the layers behind it, also where a compiled
    function is on the way."""
    middle = fg.jit(lambda x, w: torch.tanh(x @ w), backend="aten")

    def program(log):
        torch.manual_seed(0)
        ws = [torch.randn(4, 4, requires_grad=True) for _ in range(4)]
        x = torch.ones(2, 4) @ ws[0]
        x = middle(x, ws[1])
        x.register_hook(lambda g: log.append([w.grad is not None for w in ws]))
        x = middle(x @ ws[2], ws[3])
        ws[2].register_post_accumulate_grad_hook(lambda p: log.append([w.grad is not None for w in ws]))
        x.sum().backward()
        return [w.grad for w in ws]

    region = both(program)
    order = [n.name for n in graph_of(region.captures[0]).fx.nodes if n.op == "call_function"]
    sums = [i for i, name in enumerate(order) if "accumulate_grad" in name]
    assert (
        len(sums) >= 3
        and any("mm" in name for name in order[sums[0] :])
        and any("mm" in name for name in order[sums[1] :])
    )


# ── what lives how long ──────────────────────────────────────────────────────────────────────────────────────────


def test_one_unpacked_tensor_at_a_time():  # S3-37
    def program(log):
        alive = weakref.WeakSet()

        def unpack(packed):
            log.append(len(alive))
            found = packed.clone()
            alive.add(found)
            return found

        x = leaf(5)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
            y = x
            for _ in range(6):
                y = y.sin()
        y.sum().backward()
        return [x.grad]

    region = both(program)
    assert region.captures[0].programs
    seen: list = []
    with fg.compiled_autograd(backend="aten"):
        program(seen)
    assert max(seen) <= 1


def test_what_forward_saved_is_freed_after_its_last_reader():  # S3-58
    def program(log):
        x = leaf(4)
        first = x.exp()
        second = first.exp()
        third = second.exp()
        seen = [weakref.ref(t) for t in (first, second, third)]
        first.register_hook(lambda g: log.append([ref() is not None for ref in seen]))
        x.register_hook(lambda g: log.append([ref() is not None for ref in seen]))
        total = third.sum()
        del first, second, third
        total.backward()
        return [x.grad]

    both(program)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", ["layers", "convolutions", "recurrent"])
def test_the_peak_is_no_higher_than_in_eager(case):
    torch.manual_seed(0)
    nn = torch.nn
    model, x = {
        "layers": lambda: (nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU()))),
        torch.randn(128, 64)),
        "convolutions": lambda: (nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        torch.randn(4, 8, 32, 32)),
        "recurrent": lambda: (nn.GRU(64, 128), torch.randn(20, 16, 64)),
    }[case]()  # fmt: skip

    def step():
        model.zero_grad(set_to_none=True)
        out = model(x)
        (out[0] if isinstance(out, tuple) else out).square().mean().backward()

    def peak(backend):
        with fg.compiled_autograd(backend=backend) if backend else contextlib.nullcontext():
            step(), step()
            return peak_bytes(step)

    eager = peak(None)
    for backend in ("aten", "c"):
        assert peak(backend) <= eager * 1.01 + 1024


def test_regions_in_a_row_leave_no_cycle():
    model = torch.nn.Linear(4, 4)
    for _ in range(2):
        with fg.compiled_autograd(backend="aten"):
            model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
    kept = weakref.ref(model.weight)
    gc.collect()
    gc.disable()
    try:
        del model
        assert kept() is None
    finally:
        gc.enable()


# ── how gradients lie ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_lie_as_in_eager(layout, backend):  # S3-42, S3-68
    torch.manual_seed(0)
    own = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ConvTranspose2d(8, 4, 3)).to(
        memory_format=layout
    )
    x = torch.randn(2, 3, 9, 9).to(memory_format=layout)
    results = []
    for region in (None, fg.compiled_autograd(backend=backend)):
        model, t = copy.deepcopy(own), leaf(4)
        loss = model(x).square().mean() + t.expand(3, 4).sum() + t.view(2, 2).t().cumsum(0).sum()
        if region is None:
            loss.backward()
        else:
            with region:
                loss.backward()
        results.append([(p.grad.stride(), p.grad.clone()) for p in (*model.parameters(), t)])
    for (strides, found), (wanted, expected) in zip(*results, strict=True):
        assert strides == wanted
        torch.testing.assert_close(found, expected)


# ── surroundings ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_autocast_keeps_no_stale_weights():  # S3-14
    def program(log):
        w = leaf(4, 4)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                y = (torch.ones(2, 4) @ w).tanh() @ w
            y.float().sum().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
        return [w.detach(), w.grad]

    both(program)


def test_options_are_those_of_the_region_in_which_it_began():  # S3-67
    """A region that a hook opens changes nothing of the backward pass that runs."""
    x, other = leaf(3), fg.compiled_autograd(backend="c")

    def hook(g):
        with other, torch.enable_grad():
            leaf(2).sin().sum().backward()

    x.register_hook(hook)
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        for _ in range(2):
            x.grad = None
            x.exp().sum().backward()
    assert region.compiles == 1 and not other.events


def test_sizes_from_the_second_on_need_no_capture_and_no_guard():  # S3-10
    regions.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    with fg.compiled_autograd(backend="aten") as region:
        for n in (2, 3, 4, 5, 6):
            model.zero_grad(set_to_none=True)
            model(torch.ones(n, 8)).sum().backward()
    assert len(region.captures) == 1 and region.compiles == 2
    joint = region.captures[0].programs[1].joint
    assert not joint.guards and "inputs[1].shape[0]" in str(joint)


@pytest.mark.parametrize("inside", [False, True])
def test_a_gradient_is_kept_of_a_result_by_which_none_comes(inside):
    """What ``retain_grad`` registers is C++, which a gradient of None brings down."""
    x = torch.ones(2, 3, requires_grad=True)
    a, b = (x * 2).unbind(0)
    a.retain_grad()
    with fg.compiled_autograd() if inside else contextlib.nullcontext():
        b.sum().backward()
    assert a.grad is None
    torch.testing.assert_close(x.grad, torch.tensor([[0.0] * 3, [2.0] * 3]))
