"""Checkpoint regions and policies: eager PyTorch's numbers, fewer bytes kept, and every op run as often as the
partition says."""

import functools
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from functions import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import funcgrad as fg
from funcgrad.partition.partition import partition
from funcgrad.philox import philox
from funcgrad.tags import Tag, tags_of
from funcgrad.trees import flatten

POLICIES = ("nothing_saveable", "dots_with_no_batch_dims_saveable", "dots_saveable", "everything_saveable")


def leaves_of(tree):
    return [t.requires_grad_() for t in flatten(tree)[0] if isinstance(t, torch.Tensor) and t.is_floating_point()]


def differentiate(f, args, wrt, seed=3):
    torch.manual_seed(seed)
    return torch.autograd.grad(f(*args), wrt, allow_unused=True)


class CountCalls(TorchDispatchMode):
    """How often each op runs, by name."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────


def block(x, w, v):
    h = F.layer_norm(x, x.shape[-1:])
    return x + F.dropout(F.gelu(h @ w).sin() @ v, 0.2)


def attention(x, w, v):
    q, k = (x @ w).view(4, 2, 4, 8).transpose(1, 2), (x @ v[:, :16] @ w[:16]).view(4, 2, 4, 8).transpose(1, 2)
    return x + fg.checkpoint_name(F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.1) @ q, "mixed").transpose(
        1, 2
    ).reshape(x.shape)


WEIGHTS = [torch.randn(32, 32) * 0.2 for _ in range(6)]


def net(weights, x, around=lambda b: b):
    for i in range(0, len(weights), 2):
        x = around(block if i != 2 else attention)(x, weights[i], weights[i + 1])
    return x.square().mean()


def net_inputs():
    return [w.clone().requires_grad_() for w in WEIGHTS], torch.linspace(-1, 1, 8 * 32).view(8, 32)


AROUND = {
    "nothing": fg.checkpoint,
    "torch": lambda b: lambda *args: checkpoint(b, *args, use_reentrant=False),
    "named policy": lambda b: fg.checkpoint(b, policy="dots_saveable"),
    "names": lambda b: fg.checkpoint(b, fg.checkpoint_policies.save_only_these_names("mixed")),
    "not these": lambda b: fg.checkpoint(b, fg.checkpoint_policies.save_anything_except_these_names("mixed")),
    "list": lambda b: fg.checkpoint(b, [torch.ops.aten.mm.default]),
    "both": lambda b: fg.checkpoint(
        b,
        fg.checkpoint_policies.save_from_both_policies(
            fg.checkpoint_policies.dots_with_no_batch_dims_saveable,
            fg.checkpoint_policies.save_any_names_but_these("other"),
        ),
    ),
    "nested": lambda b: fg.checkpoint(
        lambda *args: fg.checkpoint(b, "everything_saveable")(*args) * 1.5, "nothing_saveable"
    ),
    "everything": lambda b: fg.checkpoint(b, "everything_saveable"),
}


@pytest.mark.parametrize(
    ("how", "backend", "again"), [("torch", "c", 3), ("torch", "aten", 3), ("names", "aten", 3), ("nested", "aten", 0)]
)
def test_philox_draws_the_same_numbers_again(how, backend, again):
    """With ``rng="philox"`` a draw is computed again, too: as two halves and as one program, the gradients are those
    without regions."""
    args = net_inputs()
    f = functools.partial(net, around=AROUND[how])
    plain = functools.partial(net, around=lambda b: lambda *a: b(*a) * 1.5) if how == "nested" else net
    expected = differentiate(fg.jit(plain, rng="philox", backend="aten"), args, args[0])
    c = fg.jit(f, rng="philox", backend=backend)
    torch.testing.assert_close(differentiate(c, args, args[0]), expected)
    partition = c.program(*args).partition
    # none where the policy saves everything
    assert sum(n.target is philox for n in partition.backward.fx.nodes) == again
    assert [s.why for s in partition.saved if str(s.slot) == "seed(cpu)"] == (
        ["what forward drew is made of it again"] if again else []
    )
    torch.manual_seed(3)
    torch.testing.assert_close(tuple(fg.grad_compiled(f, rng="philox", backend=backend)(*args)), expected)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("how", AROUND)
def test_gradients_under_checkpoint_are_those_of_eager(how):
    """Compiled as two halves and as one program; in eager PyTorch, too. The generator is left where eager leaves it."""
    args = net_inputs()
    f = functools.partial(net, around=AROUND[how])
    plain = functools.partial(net, around=lambda b: lambda *a: b(*a) * 1.5) if how == "nested" else net
    expected, after = differentiate(plain, args, args[0]), torch.rand(2)
    torch.testing.assert_close(differentiate(f, args, args[0]), expected)
    for backend in ("aten", "c") if how in ("torch", "names", "nested") else ("aten",):
        assert_rounded(differentiate(fg.jit(f, backend=backend), args, args[0]), expected)
        torch.testing.assert_close(torch.rand(2), after)
        torch.manual_seed(3)
        whole = fg.grad_compiled(f, backend=backend)(*args)
        assert_rounded(tuple(whole), tuple(expected))
        torch.testing.assert_close(torch.rand(2), after)


MODELS = [
    "mlp",
    *[name for name in CASES if any(word in name for word in ("attention", "norm", "conv", "lstm", "gru", "pool",
    "cross", "embed"))]
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in MODELS if n in CASES][:12])
def test_gradients_are_equal_under_each_policy_and_saved_bytes_are_ordered(name):
    f, make = CASES[name]
    args = make()
    wrt = leaves_of(args[0])
    expected = differentiate(f, args, wrt)
    saved = []
    for policy in POLICIES:
        c = fg.jit(f, policy=policy, backend="aten")
        assert_rounded(differentiate(c, args, wrt), expected)
        saved.append(c.saved(*args).nbytes)
    assert saved == sorted(saved)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_graphs_under_random_policies(data):
    """Chains of ops in nested regions, each with a policy of its own, against the same without any: eager PyTorch,
    or one seed."""
    ops = {
        "sin": torch.sin, "exp": lambda x: (x * 0.1).exp(), "mm": lambda x: x @ x.t() * 0.1 @ x, "relu": F.relu,
        "drop": lambda x: F.dropout(x, 0.3),
        "norm": lambda x: F.layer_norm(x, (6,)), "where": lambda x: torch.where(x > 0, x, x * 0.1),
        "t": lambda x: x.t().t(),
        "inplace": lambda x: x.clone().mul_(2).add_(x),
    }  # fmt: skip
    chunks = data.draw(st.lists(st.lists(st.sampled_from(list(ops)), min_size=1, max_size=4), min_size=1, max_size=4))
    policies = [data.draw(st.sampled_from([*POLICIES, None, "none at all"])) for _ in chunks]
    outer = data.draw(st.sampled_from([None, *POLICIES]))
    rng = data.draw(st.sampled_from(["eager", "philox"]))

    def f(x, checkpointed=True):
        for chunk, policy in zip(chunks, policies, strict=True):

            def region(x, chunk=chunk):
                for op in chunk:
                    x = ops[op](x)
                return x

            x = fg.checkpoint(region, policy)(x) if checkpointed and policy != "none at all" else region(x)
        return x.sin().sum()

    x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
    plain = functools.partial(f, checkpointed=False)
    expected = differentiate(plain if rng == "eager" else fg.jit(plain, rng=rng, backend="aten"), (x,), [x])
    c = fg.jit(f, policy=outer, backend="aten", rng=rng)
    assert_rounded(differentiate(c, (x,), [x]), expected)
    torch.manual_seed(3)
    assert_rounded([fg.grad_compiled(f, policy=outer, backend="aten", rng=rng)(x)], expected)


# ── how often, and how much ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["plain", "torch", "named policy", "names"])
def test_no_op_runs_twice_unless_the_partition_says_so(how):
    args = net_inputs()
    f = net if how == "plain" else functools.partial(net, around=AROUND[how])
    for c, run in (
        (c := fg.jit(f, backend="aten"), lambda c=c: differentiate(c, args, args[0])),
        (c := fg.grad_compiled(f, backend="aten"), lambda c=c: c(*args)),
    ):
        run()
        with CountCalls() as counted:
            run()
        program = c.program(*args)
        nodes = {n.name: n for n in program.joint.graph.fx.nodes if n.op == "call_function"}
        expected = Counter(str(n.target) for n in nodes.values())
        again = Counter(str(nodes[a.name].target) for a in program.partition.again)
        assert (not again) == (how == "plain")
        for op in ("mm", "bernoulli.p", "native_layer_norm", "gelu", "sin", "bmm", "_softmax"):
            name = f"aten.{op}" if "." in op else f"aten.{op}.default"
            assert expected[name], name
            # an op may run in its in-place form
            packet, _, overload = name.rpartition(".")
            assert counted.calls[name] + counted.calls[f"{packet}_.{overload}"] == expected[name] + again[name], name


def measured_bytes(c, args):
    """Storages that live from forward to backward besides inputs and outputs."""
    c(*args)
    known = {t.untyped_storage().data_ptr() for t in flatten(args)[0]}
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = c(*args)
    known.add(out.untyped_storage().data_ptr())
    return sum(size for place, size in kept.items() if place not in known)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_the_table_adds_up_to_the_measured_bytes(backend):
    args = net_inputs()
    measured = []
    for policy in ("nothing_saveable", "dots_saveable", "everything_saveable"):
        c = fg.jit(net, policy=policy, backend=backend)
        measured.append(measured_bytes(c, args))
        saved = c.saved(*args)
        assert sum(v.nbytes for v in saved) == saved.nbytes == pytest.approx(measured[-1], rel=0.02)
    assert measured == sorted(measured) and measured[0] < measured[2]
    memory = c.memory(*args)
    assert memory.saved_bytes == saved.nbytes
    generator = torch.get_rng_state().nbytes  # kept for a second derivative
    assert memory.predicted_peak + generator == pytest.approx(memory.measured_peak, rel=0.02)


def test_the_table_says_what_from_where_why_and_the_cost_of_not_saving():
    x, w = torch.randn(8, 16, requires_grad=True), torch.ones(16, 4)
    saved = fg.jit(lambda x, w: F.dropout((x @ w).tanh(), 0.5).sum(), backend="aten").saved(x, w)
    by_name = {v.name: v for v in saved}
    assert (
        by_name["saved(tanh)"].shape == (8, 4)
        and by_name["saved(tanh)"].dtype == "float32"
        and by_name["saved(tanh)"].nbytes == 128
    )
    assert by_name["saved(tanh)"].again == 2 * 8 * 16 * 4 + 20 * 8 * 4
    assert by_name["w"].nbytes == 0 and "alive anyway" in by_name["w"].why
    assert any(v.again == math.inf for v in saved)  # the draw
    text = str(saved)
    assert "test_checkpoint.py" in text and "not possible" in text and "128 B" in text
    assert "<table>" in saved._repr_html_()


def test_views_of_inputs_are_not_copied():
    w = torch.randn(64, 64, requires_grad=True)
    c = fg.jit(lambda x, w: ((x @ w[:32, :32].t()).relu() @ w[32:, :32]).sum(), backend="c")
    saved = c.saved(torch.randn(4, 32), w)
    assert {v.name for v in saved if v.nbytes == 0} == {"x", "w"}
    assert saved.nbytes <= 2 * 4 * 32 * 4


def test_cost_counts_products_and_bytes():
    cost = fg.jit(lambda a, b: a @ b, backend="aten").cost(torch.randn(64, 32), torch.randn(32, 16))
    assert cost.flops == 2 * 64 * 32 * 16
    assert cost.bytes_moved == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert cost.roofline_seconds > 0


def test_recomputing_keeps_little_alive_at_a_time():
    """Blocks computed again one at a time, when backward comes to them: also where one program runs both passes."""
    weights = [w.clone() for w in WEIGHTS * 2]
    x = torch.randn(256, 32)
    peaks = {}
    for name, around in (("all", lambda b: b), ("again", fg.checkpoint)):
        c = fg.grad_compiled(functools.partial(net_of_blocks, around=around), backend="c")
        c(weights, x)
        peaks[name] = c.memory(weights, x)
    assert peaks["again"].predicted_peak < 0.6 * peaks["all"].predicted_peak
    assert peaks["again"].measured_peak < 0.6 * peaks["all"].measured_peak


def net_of_blocks(weights, x, around):
    for i in range(0, len(weights), 2):
        x = around(block)(x, weights[i], weights[i + 1])
    return x.square().mean()


@pytest.mark.parametrize("rng", ["eager", "philox"])
@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_euler_homogeneity_with_dropout(policy, rng):
    """A ReLU net is homogeneous of degree 1 in each layer: the sum of gradient times weight is the loss, for the
    masks drawn in forward."""
    weights = [(torch.randn(16, 16) / 4).requires_grad_() for _ in range(4)]

    def loss(weights, x):
        for w in weights:
            x = F.dropout(F.relu(x @ w), 0.3)
        return x.sum()

    x = torch.rand(8, 16)
    for backend in ("aten", "c"):
        value = fg.jit(loss, policy=policy, backend=backend, rng=rng)(weights, x)
        for w, g in zip(weights, torch.autograd.grad(value, weights), strict=True):
            torch.testing.assert_close((w * g).sum(), value)
        value, grads = fg.value_and_grad_compiled(loss, policy=policy, backend=backend, rng=rng)(weights, x)
        for w, g in zip(weights, grads, strict=True):
            torch.testing.assert_close((w * g).sum(), value)


# ── rules and conflicts ──────────────────────────────────────────────────────────────────────────────────────────


def selective(policy):
    return functools.partial(create_selective_checkpoint_contexts, policy)


def test_policies_of_torch_are_translated():
    answers = {
        torch.ops.aten.mm.default: CheckpointPolicy.MUST_SAVE, torch.ops.aten.sin.default: CheckpointPolicy.PREFER_SAVE,
        torch.ops.aten.exp.default: CheckpointPolicy.MUST_RECOMPUTE,
    }  # fmt: skip

    def policy(ctx, op, *args, **kwargs):
        # torch 2.11 has no op_output
        assert not ctx.is_recompute and isinstance(getattr(ctx, "op_output", x), torch.Tensor)
        return answers.get(op, CheckpointPolicy.PREFER_RECOMPUTE)

    def f(x):
        return checkpoint(
            lambda x: (x @ x).sin().exp().tanh().cos(), x, use_reentrant=False, context_fn=selective(policy)
        ).sum()

    x = torch.randn(4, 4, requires_grad=True)
    program = fg.jit(f).program(x)
    flags = {n.name: tags_of(n).flags for n in program.joint.graph.fx.nodes}
    assert flags["mm"] == Tag.MUST_SAVE and flags["sin"] == Tag.NONE
    assert flags["exp"] == Tag.MUST_RECOMPUTE and flags["tanh"] == Tag.PREFER_RECOMPUTE
    assert flags["cos"] == Tag.MUST_SAVE  # it leaves the region
    assert "exp" in {a.name for a in program.partition.again}
    assert "saved(exp)" not in {str(k.slot) for k in program.partition.saved}


def test_a_policy_that_demands_a_draw_again_names_both_reasons():
    always = lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_RECOMPUTE  # noqa: E731
    drop = lambda x: F.dropout(x.exp(), 0.5)  # noqa: E731
    f = lambda x: checkpoint(drop, x, use_reentrant=False, context_fn=selective(always)).sum()  # noqa: E731
    with pytest.raises(fg.PartitionError, match=r"(?s)a second draw would be another one.*says MUST_RECOMPUTE"):
        fg.jit(f)(torch.randn(4, requires_grad=True))
    # drawn from a seed, it is the same
    partition = fg.jit(f, rng="philox").program(torch.randn(4, requires_grad=True)).partition
    assert {str(k.slot) for k in partition.saved} == {"seed(cpu)", "x"} and any(
        "philox" in a.name for a in partition.again
    )


def test_writes_in_a_region_happen_once():
    """Eager PyTorch updates the running statistics twice, as it runs the region again; compiled, they are those of
    the function itself."""
    norms = [torch.nn.BatchNorm1d(4) for _ in range(2)]
    x = torch.randn(8, 4, requires_grad=True)
    norms[0](x.sin()).exp().sum().backward()
    expected, x.grad = x.grad, None
    fg.jit(lambda x: checkpoint(lambda x: norms[1](x.sin()), x, use_reentrant=False).exp().sum())(x).backward()
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norms[1].running_mean, norms[0].running_mean)
    assert norms[1].num_batches_tracked == 1


def test_a_custom_operator_is_never_computed_again():
    calls = []

    @torch.library.custom_op("funcgrad_test_checkpoint::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin()

    noted.register_fake(torch.empty_like)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    noted.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].cos(), setup_context=keep)
    c = fg.jit(lambda x: fg.checkpoint(lambda x: noted(x * 2).exp())(x).sum(), backend="aten")
    x = torch.randn(4, requires_grad=True)
    c(x)
    calls.clear()
    (found,) = torch.autograd.grad(c(x), x)
    torch.testing.assert_close(found, (2 * x).sin().exp() * (2 * x).cos() * 2)
    assert calls == [1]
    node = next(n for n in c.program(x).joint.graph.fx.nodes if "noted" in str(n.target))
    assert "an operator of funcgrad_test_checkpoint" in tags_of(node).reason(Tag.MUST_SAVE)


def test_contexts_of_ones_own_are_refused():
    class Own:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    f = lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=lambda: (Own(), Own())).sum()  # noqa: E731
    with pytest.raises(
        fg.UnsupportedTransformError, match=r"create_selective_checkpoint_contexts(.|\n)*test_checkpoint.py"
    ):
        fg.grad_compiled(f)(torch.randn(3))


@pytest.mark.parametrize("value", ["save_only_these_names", "dots", 3, [], [1], torch.ops.aten.mm])
def test_what_is_no_policy(value):
    for make in (lambda: fg.jit(torch.sin, policy=value), lambda: fg.checkpoint(torch.sin, value)):
        with pytest.raises(fg.OptionError, match="is no checkpoint policy"):
            make()
    with pytest.raises(fg.ArgumentError):
        fg.checkpoint(3)
    with pytest.raises(fg.ArgumentError):
        fg.checkpoint_name(torch.ones(2), 3)


def test_a_policy_speaks_of_a_named_value_as_of_any_other():
    """What only names a value is another call; a policy is asked about the call that made it."""
    w, x = torch.randn(8, 8), torch.randn(4, 8)

    def products(policy, named):
        def block(h):
            y = h @ w
            return torch.tanh(fg.checkpoint_name(y, "y") if named else y).sin()

        def loss(x):
            for _ in range(3):
                x = fg.checkpoint(block, policy=policy)(x)
            return x.sum()

        compiled = fg.value_and_grad_compiled(loss, backend="aten")
        compiled(x)
        with CountCalls() as counted:
            compiled(x)
        return sum(n for name, n in counted.calls.items() if ".mm." in name)

    policies = fg.checkpoint_policies
    only, but, of_mm = (
        policies.save_only_these_names("y"),
        policies.save_anything_except_these_names("y"),
        [torch.ops.aten.mm.default],
    )
    assert products("dots_saveable", True) == products("dots_saveable", False) == products(of_mm, True) == 6
    assert (products(only, True), products(only, False)) == (6, 9)
    assert (products("nothing_saveable", True), products("nothing_saveable", False)) == (9, 9)
    assert products(but, True) == 6  # of y: tanh(y) may be saved


def test_under_transforms_of_torch_func():
    f = lambda x: fg.checkpoint(lambda x: fg.checkpoint_name(x.sin(), "s").exp())(x).sum()  # noqa: E731
    x = torch.randn(3, 2)
    expected = x.sin().exp() * x.cos()
    torch.testing.assert_close(torch.func.grad(f)(x), expected)
    torch.testing.assert_close(torch.vmap(torch.func.grad(f))(x), expected)
    torch.testing.assert_close(fg.jit(torch.vmap(torch.func.grad(f)))(x), expected)
    torch.testing.assert_close(
        fg.grad_compiled(lambda x: fg.grad_compiled(f)(x).sum())(x), (x.cos() ** 2 - x.sin()) * x.sin().exp()
    )


def test_what_eager_does_not_keep_may_be_written_to_before_backward():
    """Computing a value again from an input would read what was written to it since; so it is kept."""
    x, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    for backend in ("aten", "c"):
        out = fg.jit(lambda x, b: (((x + b) * 2).relu() ** 2).sum(), backend=backend)(x, b)
        expected = torch.autograd.grad((((x + b) * 2).relu() ** 2).sum(), b)
        with torch.no_grad():
            b.add_(1)
        torch.testing.assert_close(torch.autograd.grad(out, b), expected)


def test_known_choices_are_used_again():
    args = net_inputs()
    program = fg.jit(functools.partial(net, around=fg.checkpoint)).program(*args)
    again = partition(program.joint, known=sorted(program.partition.kept))
    assert [k.slot for k in again.saved] == [k.slot for k in program.partition.saved]
    assert again.again == program.partition.again
