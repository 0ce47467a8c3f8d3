"""Programs that read values of tensors, as random ones found them: eager PyTorch is the oracle, step by step."""

import contextlib
import copy
import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from test_reads import BACKENDS
from test_state import X
from test_state_mended import run

import funcgrad as fg
from funcgrad.transforms import pure

Y = torch.tensor([0.3, -0.7, 1.2])

SCRIPTS = {
    # what PyTorch refuses in C++, called by a mode, or Python does in C: as in eager PyTorch, with what was written
    # before
    "a tensor is no number": ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x * int(x)", "call(); call()"),
    "a number of a tensor after a read": (
        "d = {}\ndef f(x):\n    d[bool((x > 0).any())] = x * 2\n    return x * int(d.get(True))",
        "call(); call()",
    ),
    "an object without a length": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x * len(torch.float32)",
    "call(); call()"),
    "a root of a negative number": ("w = torch.zeros(())\nk = -1.0\ndef f(x):\n    w.add_(1)\n    return x * "
                                    "math.sqrt(k)", "call(); k = -4.0; call()"),
    "a mask of another shape": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x[torch.zeros(2) > 1]",
    "call(); call()"),
    "an unknown keyword": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return torch.ones_like(x, none=1)",
    "call(); call()"),
    "infinity is no whole number": (
        "n = 0\ninf = torch.tensor(float('inf'))\ndef f(x):\n    global n\n    n += 1\n    return x * int(inf)",
        "call(); call()",
    ),
    "nan is no whole number": (
        "n = 0\nd = {'v': torch.tensor(2.0)}\ndef f(x):\n    d['calls'] = d.get('calls', 0) + 1\n"
        "    return x * int(d['v'])",
        "call(); d['v'].fill_(3); call(); d['v'].fill_(float('nan')); call(); d['v'].fill_(1)",
    ),
    "a complex number is no whole number": (
        "w = torch.zeros(())\nz = torch.tensor(2 + 1j)\ndef f(x):\n    w.add_(1)\n    return x * int(z)",
        "call(); call(); z.fill_(3); call()",
    ),
    "an index that was read": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x * x[int((x > 0).sum()) + "
                               "1]", "call(); call()"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_does_what_it_does_in_eager(case):
    source, script = ("import math\n" + SCRIPTS[case][0], SCRIPTS[case][1])
    assert run(source, script, lambda f: fg.jit(f, backend="aten")) == run(source, script, lambda f: f)


def test_a_gradient_that_pytorch_refuses_has_written_what_it_wrote_before():
    def f(x):
        y = x.exp()
        y.mul_(2)
        seen.add_(1)
        return y.sum()

    seen = torch.zeros(())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fg.grad_compiled(f, backend="aten")(X)
    assert seen == 1


@BACKENDS
def test_names_of_arguments_are_no_names_of_python(backend):
    """Printed expressions call ``bool``, which is a dtype, too, and functions of ``math``."""

    def of_modules(math_, scale):
        return math_ * math.sqrt(math_.sum().item() + 10) * (3 if math_.sum().item() else 2) + scale

    def of_types(x):
        return (x * (3 if round(x.sum().item(), 1) else 2)).to(torch.bool)

    space = {"m": math}
    exec(
        "def f(math, bool):\n    return math * m.sqrt(math.sum().item() + 10) * (3 if math.sum().item() else 2) + bool",
        space,
    )
    for f, arguments in ((of_modules, (Y,)), (space["f"], (Y,)), (of_types, ())):
        compiled = fg.jit(f, backend=backend)
        for k in (1.0, 2.0, 3.0):
            assert_rounded(compiled(X * k, *arguments), f(X * k, *arguments))
        assert compiled.cache_info().misses == 2


class ReadsItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * 3 if x.sum() > 0 else g * 5) + x[x > 0].sum()


def test_what_backward_reads_of_an_argument_is_read_when_it_runs():
    """The caller may write to it before: that forward checks it already, the partition refused."""
    f = lambda x: x * ReadsItsInput.apply(x).sum()  # noqa: E731
    compiled = fg.jit(f)
    for k in (1.0, -1.0, 2.0, -2.0):
        found = []
        for g in (f, compiled):
            leaf = (X * k).requires_grad_()
            out = g(leaf)
            out.sum().backward()
            found.append((out, leaf.grad))
        assert_rounded(*found)


NORMS = {
    "BatchNorm": (lambda: torch.nn.BatchNorm1d(3), (4, 3)), "LayerNorm": (lambda: torch.nn.LayerNorm(3), (4, 3)),
    "InstanceNorm": (lambda: torch.nn.InstanceNorm1d(3), (4, 3, 5)),
    "GroupNorm": (lambda: torch.nn.GroupNorm(1, 3), (4, 3, 5)),
}  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("name", NORMS)
def test_what_is_normalised_is_read(name, backend):
    """The check comes first of all that runs, before what else the call that normalises returns is taken from it."""
    make, size = NORMS[name]

    def f(module, x):
        y = module(x)
        y = y * 2 if y[0].flatten()[0] > 0 else y * 3  # a sum would be rounding alone
        return (y[y > 0.5] ** 2).sum()

    torch.manual_seed(0)
    eager = make()
    own = copy.deepcopy(eager)
    compiled = fg.jit(f, backend=backend)
    for _ in range(4):
        x = torch.randn(size)
        found = []
        for g, module in ((compiled, own), (f, eager)):
            leaf = x.clone().requires_grad_()
            out = g(module, leaf)
            out.backward()
            found.append((out.detach(), leaf.grad, *module.buffers()))
        assert_rounded(*found)


def test_what_is_printed_says_bool_of_python():
    compiled = fg.jit(lambda x: x.to(torch.bool) * (2 if x.sum().item() else 3), backend="aten")
    for k in (1.0, 2.0):
        compiled(X * k)
    source = str(compiled.program(X * 3).sources[0])
    assert re.search(r"\bbool\(", source) and "dtype=_bool" in source


def test_the_whole_part_of_a_number_is_a_path_not_the_number():
    f = lambda x: x * {1: 2.0}.get(int(x.max()), 1.5)  # noqa: E731
    compiled = fg.jit(f, backend="aten")
    for k in (1.25, 2.5, 1.5, 1.75, 2.25, -0.5):
        assert torch.equal(compiled(torch.full((3,), k)), f(torch.full((3,), k)))
    assert compiled.cache_info().misses == 4  # the first, and one for each whole part
    for g in (f, compiled):
        with pytest.raises(ValueError, match="NaN"):
            g(torch.full((3,), math.nan))


@pytest.mark.filterwarnings("error::funcgrad.ReadsWarning")
def test_a_number_that_kernels_round_otherwise_takes_two_programs():
    """The program for a number that a kernel read was made for what eager PyTorch rounds it to: it fitted no call,
    fifteen times."""
    f = lambda x: x * {0.3: 2.0}.get(x.sum().item() * 0.1, 1.5) + len(str(x.sum().item()))  # noqa: E731
    compiled = fg.jit(f)
    for seed in range(4):
        x = torch.rand(1000, generator=torch.Generator().manual_seed(seed))
        before = compiled.cache_info().misses
        found, exact = compiled(x), f(x)
        assert (found - exact).abs().max() < 6  # the length of a text
        assert compiled.cache_info().misses - before <= 3


@BACKENDS
@pytest.mark.filterwarnings("error::funcgrad.ReadsWarning")
def test_the_one_element_of_a_tensor_with_dimensions_is_a_number(backend):
    """A check compared the number with the list of it: its program was for no call."""
    f = lambda x: x * 2 if x.argmax(0, keepdim=True).item() == 1 else x * (3 if x[:1] > 0 else 4)  # noqa: E731
    compiled = fg.jit(f, backend=backend)
    for x in [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 2.0], [-1.0, 1.0, 2.0]]:
        assert torch.equal(compiled(torch.tensor(x)), f(torch.tensor(x)))
    assert compiled.cache_info().misses <= 4


@BACKENDS
def test_what_was_written_into_a_part_of_memory_is_read(backend):
    """The run that finds out what is read, and written, had memory there that nobody had written to."""
    seen = []

    def f(x):
        a, b, _ = torch.unsafe_split(x * 2, 2, 1)
        b.exp_().add_(a)
        seen.append(b.sum().item())
        if 5 < b.sum() < 7:
            x.mul_(3)
        return x * round(b.sum().item())

    compiled = fg.jit(f, backend=backend)
    for _ in range(2):
        x, own = torch.arange(6.0).view(1, 6) / 5, torch.arange(6.0).view(1, 6) / 5
        assert_rounded((compiled(own), own), (f(x), x))
        assert_rounded(seen[-1], seen[-2])


@BACKENDS
def test_what_is_computed_with_a_number_that_was_read_comes_after_the_read(backend):
    """A kernel with the same loops computed it before, and there was no symbol for the number then."""
    table = torch.randn(8, 6)

    def f(x):
        row = table[torch.tensor([1])] * x
        n = (x > 0).sum().item()
        return table[torch.tensor([n])] + row + torch.ones(n, 6).sum(0)

    compiled = fg.jit(f, backend=backend)
    for n in (2, 3, 4, 5):
        x = (torch.arange(6.0) < n) * 2.0 - 1
        assert_rounded(compiled(x), f(x))
    assert compiled.cache_info().misses == 2


class Averaged(torch.nn.Module):
    """A buffer that is another tensor after each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x):
        y = ClippedGradient.apply(x.sin() * self.mean)
        self.mean = self.mean * 0.5 + y.detach().mean()
        return y


class ClippedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / g.norm() if g.norm() > 1 else g * 2


@BACKENDS
def test_what_a_function_rebinds_is_as_it_was_where_backward_runs_it_again(backend):
    """Where backward reads the gradient it is given, or is differentiated, the function runs again: it was refused."""
    found = []
    for transform in (lambda f: f, lambda f: fg.jit(f, backend=backend)):
        model, own = Averaged(), []
        call = transform(model)
        for scale in (0.1, 2.0, 0.3):
            x = X.clone().requires_grad_()
            (call(x) * scale).sum().backward()
            y = X.clone().requires_grad_()
            (first,) = torch.autograd.grad((call(y) * scale).sum(), y, create_graph=True)
            own += [x.grad, first.detach(), torch.autograd.grad(first.sum(), y)[0], model.mean]
        found.append(own)
    assert_rounded(*found)


def test_a_value_that_an_lstm_computes_is_read():
    """The kernel PyTorch computes it with makes a workspace where gradients are on, and none where it was computed
    to be read."""
    model, head = torch.nn.LSTM(3, 4), torch.nn.Linear(4, 1)

    def f(x):
        out, (_, cell) = model(x)
        steps = int((head(out).mean(1) > 0).sum())
        return out[: steps + 1].sum() + cell.sum()

    compiled = fg.jit(f, backend="aten")
    for seed in range(3):
        x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed))
        found = []
        for call in (f, compiled):
            leaf = x.clone().requires_grad_()
            out = call(leaf)
            found.append((out.detach(), *torch.autograd.grad(out, [leaf, *model.parameters()])))
        assert_rounded(*found)


# ── numbers that Python reads in a backward pass ─────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize(
    "made",
    [
        lambda g: g * g.norm().item(),
        lambda g: g / n if (n := g.norm().item()) > 1 else g,
        lambda g: g * min(1.0, 1 / g.norm().item()),
        lambda g: g * int(g.abs().sum().item()),
        lambda g: g * round(g.norm().item(), 1),
        lambda g: g * float(f"{g.norm().item():.2f}"),
    ],
    ids=["times", "where it is large", "at most", "whole part", "rounded", "text"],
)
@pytest.mark.parametrize("how", ["hook", "function"])
def test_a_number_that_is_another_in_each_backward_pass(made, how):
    class Of(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return made(g)

    def f(x):
        y = x * 2 if how == "hook" else Of.apply(x)
        if how == "hook":
            y.register_hook(made)
        return y.sin().sum()

    def gradients(f):
        x = torch.ones(3, requires_grad=True)
        return [torch.autograd.grad(f(x) * (n + 0.7), x)[0] for n in range(4)]

    torch.testing.assert_close(gradients(fg.jit(f, backend="aten")), gradients(f))


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x * x.detach().norm().item()).sum(),
        lambda x: (x * int(x.detach().abs().sum().item() * 3)).sum(),
        lambda x: x[: (x.detach() > 0).sum().item()].square().sum(),
        lambda x: x[x > 0].sin().sum() if (x > 0).any() else x.sum(),
    ],
    ids=["number", "whole part", "size", "mask"],
)
@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones(()))])
def test_a_number_that_is_another_in_each_call_at_a_level(f, transform):
    torch.manual_seed(0)
    xs = torch.randn(5, 4)
    compiled = transform(fg.jit(f, backend="aten"))
    for x in xs:
        torch.testing.assert_close(compiled(x), transform(f)(x))


# ── errors of values, which the function catches ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_a_matrix_that_is_singular_is_caught(backend):
    class Careful:
        def __init__(self):
            self.n, self.log = 0, []

        def __call__(self, matrix):
            self.n += 1
            noise = torch.rand(3)
            for jitter in (0.0, 1e-3, 10.0):
                try:
                    return torch.linalg.cholesky(matrix + jitter * torch.eye(3)) + noise
                except torch.linalg.LinAlgError:
                    self.log.append(jitter)
            return torch.linalg.inv(matrix)

    found = []
    for make in (lambda f: f, lambda f: fg.jit(f, backend=backend)):
        torch.manual_seed(0)
        careful = Careful()
        call = make(careful)
        for scale in (1.0, -0.0005, 1.0, -1.0, 2.0):
            found.append(call(torch.eye(3) * scale))
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            call(torch.tensor([[-99.0, 0, 0], [0, 0, 0], [0, 0, 0]]))
        found.append((careful.n, careful.log, torch.rand(1)))
    torch.testing.assert_close(found[:6], found[6:])


def test_a_view_that_will_not_do_is_caught():
    def flat(x):
        try:
            return x.view(-1)
        except RuntimeError:
            return x.reshape(-1) * 2

    compiled = fg.jit(flat, backend="aten")
    for x in (torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3).t()):
        torch.testing.assert_close(compiled(x), flat(x))


def test_a_class_below_zero_is_refused_as_eager_pytorch_refuses_it():
    compiled = fg.jit(lambda x: F.one_hot(x), backend="aten")
    for values in ([0, 1, 2], [2, 2, 2], [0, 1, 5]):
        assert torch.equal(compiled(torch.tensor(values)), F.one_hot(torch.tensor(values)))
    with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
        compiled(torch.tensor([0, -1, 1]))


def test_an_opaque_call_before_a_singular_matrix_happens_once():
    seen = []
    op = fg.opaque(lambda t: (seen.append(t.sum().item()), t * 2)[1], like=lambda t: t)
    compiled = fg.jit(lambda a: torch.linalg.inv(op(a)))
    for matrix in (torch.eye(2), torch.ones(2, 2), torch.ones(2, 2)):
        with contextlib.suppress(torch.linalg.LinAlgError):
            compiled(matrix)
    assert seen == [2, 4, 4]


@pytest.mark.parametrize("size", [lambda t: int(t.sum()), lambda t: round(t.sum().item())])
def test_a_size_that_is_read_and_becomes_zero_or_less(size):
    compiled = fg.jit(lambda t: torch.zeros(size(t)))
    for n in (1.0, 2.0, 3.0, 0.0):
        assert compiled(torch.full((3,), n)).shape == (3 * n,)
    with pytest.raises(RuntimeError, match="negative"):
        compiled(torch.full((3,), -1.0))


def _constant_on_a_path(x):
    return torch.ones(3) * 2 if (x > 0).all() else x.sin() * (torch.rand(()) + (x > 5).any().item())


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.grad(lambda x: f(x).sin().sum()),
        lambda f: lambda x: torch.func.vjp(f, x)[1](x)[0],
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
        lambda f: lambda x: torch.func.jvp(torch.func.grad(lambda x: f(x).sin().sum()), (x,), (x,))[1],
    ],
    ids=["grad", "vjp", "jvp", "jvp of grad"],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_which_results_depend_on_what_is_differentiated_is_a_matter_of_the_path(transform, gradient):
    """Those of the first path were taken for those of all others: gradients were zeros."""

    def linear_on_a_path(x):
        return x.sum() if (x > 0).all() else x.sin().sum() * torch.rand(())

    eager = torch.func.grad(linear_on_a_path) if gradient else _constant_on_a_path
    compiled = fg.grad_compiled(linear_on_a_path) if gradient else fg.jit(_constant_on_a_path)
    for x in (torch.ones(3), torch.tensor([1.0, -2, 3]), torch.ones(3), torch.tensor([6.0, -2, 3])):
        torch.manual_seed(1)
        expected = transform(eager)(x), torch.rand(())
        torch.manual_seed(1)
        torch.testing.assert_close((transform(compiled)(x), torch.rand(())), expected)


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
        lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sin().sum()),
    ],
    ids=["grad", "jvp", "twice"],
)
def test_a_half_on_another_path_is_traced_once(transform, monkeypatch):
    """It said that it was, by being traced, in each call that took another path than the one before."""

    def f(x):
        y = x.sin() if (x > 0).all() else x.cos() * (2 if x[0] > 0.5 else 3)
        return y.sum() * x[x > 0].numel()

    runs, run = [], pure._run
    monkeypatch.setattr(pure, "_run", lambda *args: (runs.append(1), run(*args))[1])
    compiled, eager = transform(fg.jit(f, backend="aten")), transform(f)
    xs = [torch.tensor(v) for v in ([1.0, 2, 3], [1.0, -2, 3], [0.2, -2, 3], [0.2, -2, -3], [1.0, -2, 4])]
    for again in range(4):
        if again == 3:
            runs.clear()
        for x in (*xs, *xs[::-1]):
            torch.testing.assert_close(compiled(x), eager(x))
    assert not runs


def test_a_derivative_at_a_level_on_more_paths_than_are_kept():
    """A program of a derivative, which eager PyTorch cannot run, has no limit of paths: it ended in an AssertionError."""

    def f(x):
        a, b = x.detach()[:2].tolist()
        y = x * a - b
        with torch.no_grad():
            x.add_(0.5)
        if torch.stack([y.sum(), x.sum()]).max() > 0.537:
            y = y + x
        return y.sin().sum()

    compiled = fg.jit(f, backend="aten")

    def curved(f, x):
        return torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(x)

    ours = torch.tensor([0.3, -0.7, 1.2])
    theirs = ours.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            torch.testing.assert_close(curved(compiled, ours), curved(f, theirs))
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, out: torch.add(x, x, alpha=x.sum(), out=out),
        lambda x, out: torch.addr(out, x[0], x[1], beta=x.min(), alpha=x.max(), out=out),
        lambda x, out: torch.addcmul(x, x, x, value=x.sum(), out=out),
    ],
    ids=["add", "addr", "addcmul"],
)
def test_a_tensor_for_a_number_where_the_result_goes_into_another(f):
    """It was refused: what comes out is found without values."""
    compiled, outs = fg.jit(f, backend="aten"), [torch.ones(3, 3), torch.ones(3, 3)]
    for i in range(4):
        x = torch.arange(9.0).view(3, 3).sin() * (i + 1)
        torch.testing.assert_close(compiled(x, outs[0]), f(x, outs[1]))
        torch.testing.assert_close(*outs)
    assert compiled.cache_info().misses == 2  # the number is a symbol


@pytest.mark.parametrize("order", [1, 2])
def test_a_number_that_is_printed_at_a_level_is_read_in_both_runs(order, capsys):
    """In the recorded run it was not, where the next read was taken for it: ``int`` of a count was that of a sum."""

    def f(x):
        y = x * 1.0
        print(f"{y.sum():.1f}")
        y = y.sin() if int((y > 0.037).sum()) == 2 else y.cos()
        return y.sin().sum()

    def differentiated(g):
        once = torch.func.grad(g)
        return once if order == 1 else torch.func.grad(lambda x: once(x).sum())

    compiled, eager = differentiated(fg.jit(f, backend="aten")), differentiated(f)
    for x in ([0.3, -0.7, 1.2], [0.3, 0.7, 1.2], [1.0, math.inf, -1.0], [-1.0, 0.5, -1.0]):
        found, shown = compiled(torch.tensor(x)), capsys.readouterr().out
        torch.testing.assert_close(found, eager(torch.tensor(x)), equal_nan=True)
        assert shown == capsys.readouterr().out


def test_what_is_joined_before_a_read_in_forward_mode():
    """Where values are looked up, PyTorch cannot be asked for tangents: an internal assertion of its failed."""
    seen = torch.zeros(())

    def f(x):
        k = int(seen) % 2
        y = torch.cat([x * 1.0] * (1 + k))[:3] + k
        return y.roll(int((y > 0.037).nonzero().shape[0]) % 3).sin()

    compiled = fg.jit(f, backend="aten")
    for i, x in enumerate(([0.3, -0.7, 1.2], [0.3, -0.7, 1.2], [0.3, 0.7, 1.2], [-0.3, -0.7, 1.2])):
        x = torch.tensor(x, requires_grad=i == 1)
        torch.testing.assert_close(torch.func.jvp(compiled, (x,), (x,)), torch.func.jvp(f, (x,), (x,)))
