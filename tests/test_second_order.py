"""Functions that write to what derivatives need: of second order, and where the caller writes between forward and
backward."""

import pytest
import torch
from closeness import assert_rounded
from torch import nn

import funcgrad as fg


def weight(n=4):
    return (torch.arange(float(n)) / 5 + 0.1).requires_grad_()


def computed():
    w = weight()
    return [w], [w * 1]


def with_buffer():
    w = weight()
    return [w], [w, torch.arange(4.0) + 1]


def a_leaf():
    w = weight()
    return [w], [w]


def matrix():
    w = weight(6)
    return [w], [w.view(2, 3) * 1]


def overlapping():
    w = weight(8)
    base = w * 1
    return [w], [base[:5], base[3:]]


def tracked(x):
    x.mul_(2)
    return x.exp() * x


def counted(x, b):
    b.add_(1)
    return x * x * b.exp()


def averaged(x, b):
    b.copy_(b * 0.9 + x.detach() * 0.1)
    return x * x * b


def transposed(x):
    x.t_()
    return x.exp() * x


def decayed(x):
    with torch.no_grad():
        x.mul_(0.9)
    return x**3


def through_an_overlap(x, y):
    x.mul_(2)
    return x.sin() * x, y * y


TWICE = {
    "tracked": (tracked, computed), "buffer": (counted, with_buffer), "average": (averaged, with_buffer),
    "transposed": (transposed, matrix), "decayed": (decayed, a_leaf), "overlap": (through_an_overlap, overlapping),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_the_second_derivative_of_what_overwrites_its_inputs(name):
    f, make = TWICE[name]
    results = []
    for function in (f, fg.jit(f)):
        leaves, inputs = make()
        outs = function(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        first = torch.autograd.grad(sum((o * o).sum() for o in outs), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
        results.append([*outs, *first, *second, *inputs])
    assert_rounded([t.detach() for t in results[1]], [t.detach() for t in results[0]])


class Product(torch.autograd.Function):
    """Its backward pass reads inputs, not what forward computed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


def hooked(x, y):
    z = x * 2
    z.register_hook(lambda g: g * y)
    return z.sin()


@pytest.mark.parametrize(
    "f", [Product.apply, lambda x, y: Product.apply(x.sin(), y) * x, hooked], ids=["product", "of sin", "hooked"]
)
@pytest.mark.parametrize("backend", ["c", "aten"])
def test_what_backward_reads_of_the_inputs_is_there_for_the_second_derivative(f, backend):
    results = []
    for function in (f, fg.jit(f, backend=backend)):
        x, y = (torch.linspace(a, 2, 5).requires_grad_() for a in (0.1, 1))
        first = torch.autograd.grad(function(x, y), (x, y), torch.ones(5), create_graph=True, allow_unused=True)
        second = torch.autograd.grad(sum((g * g).sum() for g in first if g is not None), (x, y), allow_unused=True)
        results.append([*first, *second])
    for found, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, expected)


def penalised(transform, make):
    torch.manual_seed(0)
    critic = make()
    x = torch.arange(15.0).sin().view(5, 3).requires_grad_()  # of two rows batch norm leaves no gradient
    (g,) = torch.autograd.grad(transform(lambda x: critic(x))(x).sum(), x, create_graph=True)
    ((g.norm(dim=1) - 1) ** 2).mean().backward()
    return [x.grad, *(p.grad for p in critic.parameters()), *critic.buffers()]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh()),
    ],
    ids=["spectral norm", "batch norm"],
)
def test_a_gradient_penalty_of_a_module_with_buffers(make):
    torch.testing.assert_close(penalised(fg.jit, make), penalised(lambda f: f, make), rtol=1e-3, atol=1e-4)


def test_a_copy_is_kept_only_of_what_is_overwritten_and_needed():
    def kept(f, make):
        out = fg.jit(f)(*make()[1])
        return (out[0] if isinstance(out, tuple) else out).grad_fn.program.at.copied

    assert kept(counted, with_buffer) == (1,)
    assert kept(lambda x, b: (b.add_(1), x * x)[1], with_buffer) == ()
    assert kept(lambda x, b: x * b, with_buffer) == ()


# ── the caller writes between forward and backward ───────────────────────────────────────────────────────────────


def write_first(x, *rest):
    x.detach().add_(1)


def write_second(x, y):
    y.add_(1)


def nothing(*inputs):
    pass


def unrelated(x, b):
    b.copy_(x.detach())
    return x * 2


BETWEEN = {
    "saved as it was written": (lambda x: (x.mul_(2), x * x)[1], computed, write_first),
    "written, not saved": (lambda x: (x.mul_(2), x * 3)[1], computed, write_first),
    "buffer": (lambda x, b: (b.mul_(2), x * b)[1], with_buffer, write_second),
    "buffer left alone": (lambda x, b: (b.mul_(2), x * b)[1], with_buffer, nothing),
    "buffer through data": (lambda x, b: (b.data.mul_(2), x * b)[1], with_buffer, write_second),
    "part of a buffer": (lambda x, b: (b[1:].mul_(2), x[:2] * b[:2])[1], with_buffer, write_second),
    "what was copied into a buffer": (
        lambda x, b: (lambda z: (b.copy_(z), x * z)[1])(x.detach() * 2),
        with_buffer,
        write_second,
    ),
    "unrelated": (unrelated, with_buffer, write_second),
    "overlap": (lambda x, y: (x.mul_(2), x * x + y.sum())[1], overlapping, write_first),
    "overlap left alone": (lambda x, y: (x.mul_(2), x * x + y.sum())[1], overlapping, nothing),
    "transposed": (lambda x: (x.t_(), x.mul_(2), x * x)[2], matrix, write_first),
    "transposed and left alone": (lambda x: (x.t_(), x.mul_(2), x * x)[2], matrix, nothing),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_write_between_forward_and_backward_is_noticed_where_eager_notices_it(name):
    f, make, write = BETWEEN[name]
    results = []
    for function in (f, fg.jit(f)):
        leaves, inputs = make()
        out = function(*inputs)
        write(*inputs)
        try:
            out.sum().backward()
            results.append([leaf.grad for leaf in leaves])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            results.append("raises")
    if isinstance(results[0], str) or isinstance(results[1], str):
        assert results[0] == results[1]
    else:
        assert_rounded(results[1], results[0])


OVER = {
    "sigmoid": lambda x: x.sigmoid().view(-1),
    "softmax": lambda x: x.softmax(1).unsqueeze(0),
    "beside": lambda x: (lambda h: (h.t(), h.sin()))(x * 2),
    "part, detached": lambda x: (lambda h: (h.detach()[1:], h.sin()))(x * 2),
    "of nothing saved": lambda x: (lambda h: (h[1:], x.sin()))(x * 2),
}


@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("backend", ["c", "aten"])
def test_a_write_to_a_view_of_what_is_saved_is_noticed(name, backend):
    results = []
    for f in (OVER[name], fg.jit(OVER[name], backend=backend)):
        x = torch.linspace(0, 1, 16).view(4, 4).requires_grad_()
        outs = f(x)
        outs = outs if isinstance(outs, tuple) else (outs,)
        with torch.no_grad():
            outs[0].mul_(2)
        try:
            outs[-1].sum().backward()
            results.append(x.grad)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            results.append("raises")
    assert (results[0] == "raises") == (results[1] == "raises") == (name != "of nothing saved")
    if name == "of nothing saved":
        torch.testing.assert_close(results[1], results[0])


def derivatives(f, x, *args):
    """The first and the second one; where there is no second one, None."""
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((f(x, *args) * torch.arange(1.0, 4.0)).sum(), x, create_graph=True)
    return first, torch.autograd.grad((first * 2).sum(), x, allow_unused=True)[0]


@pytest.mark.parametrize(
    "f", [torch.abs, torch.relu, lambda x: x.abs() * 3 + x.sign(), lambda x: torch.linalg.vector_norm(x, 1) * x]
)
def test_a_derivative_that_is_zero_everywhere(f):
    """PyTorch's is a tensor without memory."""
    x = torch.tensor([[-1.0, 0.5, 2.0], [3.0, -0.2, 0.0]])
    for found, expected in zip(derivatives(fg.jit(f), x), derivatives(f, x), strict=True):
        assert (found is None) == (expected is None) and (expected is None or torch.allclose(found, expected))


@pytest.mark.parametrize("times", [3, 4])
@pytest.mark.parametrize("f", [lambda x: x * x, lambda x: x.detach() * x, lambda x: x.detach().t() * x])
def test_a_higher_derivative_that_is_zero_everywhere_in_forward_mode(f, times):
    """PyTorch asks that a tangent lies as its primal does, also where it is zeros that stand nowhere."""
    x, wanted, found = torch.linspace(-1, 1, 4, dtype=torch.float64).view(2, 2), f, f
    for _ in range(times):
        wanted, found = torch.func.jacfwd(wanted), torch.func.jacfwd(found)
    torch.testing.assert_close(fg.jit(found, backend="aten")(x), wanted(x))
    torch.testing.assert_close(
        fg.jacfwd_compiled(torch.func.jacfwd(torch.func.jacfwd(f)), backend="aten")(x),
        torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(f)))(x),
    )


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_read_again_where_the_result_depends_on_them(training):
    x, mean, var = torch.randn(5, 3), torch.randn(3), torch.rand(3) + 0.5

    def f(x, mean, var):
        return torch.ops.aten._native_batch_norm_legit.default(x, None, None, mean, var, training, 0.1, 1e-5)[0] ** 2

    expected, found = (derivatives(g, x, mean.clone(), var.clone()) for g in (f, fg.jit(f, backend="aten")))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_a_check_of_a_backward_pass_is_made_when_it_runs(backend):
    """PyTorch asks whether a loss of complex singular vectors depends on their phase, and raises if it does."""
    x = torch.randn(3, 3, dtype=torch.complex128)

    def loss(x, part):
        u, s, v = torch.linalg.svd(x)
        return ((u.abs() if part else u.real) * s).sum() + v.abs().sum()

    found = []
    for f in (loss, fg.jit(loss, backend=backend)):
        leaf = x.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="depends on this phase term"):
            torch.autograd.grad(f(leaf, False), leaf)
        (first,) = torch.autograd.grad(f(leaf, True), leaf, create_graph=True)
        found += [first, torch.autograd.grad(first.abs().sum(), leaf)[0]]
    assert torch.allclose(found[0], found[2]) and torch.allclose(found[1], found[3])


def test_a_second_derivative_reads_no_environment_variable_that_the_function_does_not(monkeypatch):
    """The comparison of what the function wrote, in the middle of a trace, is not the function's reading."""
    f = fg.jit(lambda x: (x.sin() * x).sum())

    def second():
        x = weight()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0]

    first = second()
    monkeypatch.setenv("FUNCGRAD_OF_ANOTHER", "1")
    monkeypatch.delenv("PATH")
    with fg.no_retrace():
        torch.testing.assert_close(second(), first)


def weighted(y):
    y = torch.view_as_real(y) if y.is_complex() else y
    return (y * torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


PHASES = {
    "eig": lambda x: weighted(torch.linalg.eig(x)[1]),
    "of real": lambda x: weighted(torch.linalg.eig(x.real)[1]),
    "eigh": lambda x: weighted(torch.linalg.eigh(x)[1]),
    "one of two": lambda x: weighted(torch.linalg.eig(x)[1].abs()) + weighted(torch.linalg.eig(x.mH)[1]),
    "abs": lambda x: weighted(torch.linalg.eig(x)[1].abs()) + weighted(torch.linalg.eigh(x)[1].abs()),
    "values": lambda x: weighted(torch.linalg.eig(x)[0]) + weighted(torch.linalg.eigh(x)[0]),
}


def by_engine(f, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


def in_region(f, x):
    x = x.clone().requires_grad_()
    with fg.compiled_autograd():
        f(x).backward()
    return x.grad


def twice(f, x):
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.autograd.grad(first.abs().sum(), x)[0]


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("gradient", [by_engine, in_region, twice, torch.func.grad, fg.grad_compiled])
def test_a_loss_that_depends_on_the_phase_of_eigenvectors(name, gradient):
    """Autograd's engine raises, transforms of torch.func do not."""
    x = torch.randn(2, 3, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    f = PHASES[name]
    compiled = fg.jit(f)

    def found(f, gradient):
        if gradient in (torch.func.grad, fg.grad_compiled):
            return gradient(f)(x)
        try:
            return gradient(f, x)
        except RuntimeError as error:
            return str(error)

    wanted = found(f, {in_region: by_engine, fg.grad_compiled: torch.func.grad}.get(gradient, gradient))
    assert isinstance(wanted, str) == (name not in ("abs", "values") and gradient in (by_engine, in_region, twice))
    for each in (compiled, f) if gradient is in_region else (compiled,):
        again = found(each, gradient)
        if isinstance(wanted, str):
            assert wanted == again
        else:
            torch.testing.assert_close(again, wanted)


def test_the_phase_in_a_backward_pass_of_the_functions_own():
    x = torch.randn(3, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="linalg_eig_backward: The eigenvectors in the complex case"):
        fg.jit(lambda x: by_engine(PHASES["eig"], x))(x)
    own = torch.func.grad(PHASES["eig"])
    torch.testing.assert_close(fg.jit(own)(x), own(x))
    whole = torch.func.vmap(torch.func.grad(PHASES["eig"]))
    torch.testing.assert_close(whole(torch.stack([x, x.mT])), fg.jit(whole)(torch.stack([x, x.mT])))


class Keeps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        self.last = None

    def forward(self, x):
        y = (self.w * x).sin()
        self.last = y
        return (y * y).sum()


def eager_gradient(f):
    return lambda x: torch.autograd.grad(f(x), x, create_graph=True)[0]


@pytest.mark.parametrize("of", ["gradient", "kept", "both"])
@pytest.mark.parametrize(
    "make",
    [
        fg.grad_compiled,
        lambda m: torch.func.grad(fg.jit(m)),
        lambda m: fg.jit(eager_gradient(m)),
        lambda m: eager_gradient(fg.jit(m)),
    ],
    ids=["grad_compiled", "grad of jit", "jit of grad", "create_graph"],
)
def test_what_is_kept_under_a_gradient_is_differentiable(make, of):
    """Under a gradient transform it lost its history, and a sum of both a part of its gradient."""
    compiled, eager = Keeps(), Keeps()
    f, g = make(compiled), eager_gradient(eager)
    for n in (1.0, 2.0):
        found = []
        for module, gradient in ((compiled, f), (eager, g)):
            x = torch.full((3,), n, dtype=torch.float64, requires_grad=True)
            made = {"gradient": gradient(x).sum(), "kept": module.last.sum()}
            total = sum(made.values()) if of == "both" else made[of]
            found.append(torch.autograd.grad(total, (x, module.w)))
        torch.testing.assert_close(*found)


def test_what_is_kept_of_a_gradient_s_own_variable_has_no_history():
    module = Keeps()
    module.w.requires_grad_(False)
    gradient = fg.grad_compiled(module)
    for _ in range(2):
        gradient(torch.ones(3, dtype=torch.float64))
        assert not module.last.requires_grad
    module.w.requires_grad_()
    with torch.no_grad():
        gradient(torch.ones(3, dtype=torch.float64))
    assert not module.last.requires_grad
    gradient(torch.ones(3, dtype=torch.float64))
    (found,) = torch.autograd.grad(module.last.sum(), module.w)
    torch.testing.assert_close(found, module.w.detach().cos())


# ── what is stored under a gradient keeps its history ────────────────────────────────────────────────────────────────


class _Keeps(torch.nn.Module):
    def __init__(self, requires_grad):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]), requires_grad)
        self.last = self.own = None
        self.seen = []

    def forward(self, x):
        y = (x * self.w).sin()
        self.last, self.own = y, (x * x).cos()
        self.seen = [y * 2, {"z": y[0]}]
        return (y * y).sum() + self.own.sum()


STORED_UNDER = {
    "grad": fg.grad_compiled,
    "grad_and_value": fg.grad_and_value_compiled,
    "a gradient of a gradient": lambda f: fg.grad_compiled(lambda x: (fg.grad_compiled(f)(x) ** 2).sum()),
}


@pytest.mark.parametrize("how", STORED_UNDER)
@pytest.mark.parametrize("tracked", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("grad", [True, False])
def test_what_a_gradient_stores_has_the_history_that_the_function_alone_gives_it(how, tracked, computed, grad):
    of_x, of_w = tracked
    found = []
    for transform in (STORED_UNDER[how], lambda f: f):
        m, runs = _Keeps(of_w), []
        call = transform(m)
        leaf = torch.arange(3.0).requires_grad_(of_x)
        sources = [t for t in (leaf, m.w) if t.requires_grad]
        for _ in range(2):
            x = leaf * 1.5 if computed else leaf
            with torch.set_grad_enabled(grad):
                call(x)
            for v in (m.last, m.own, m.seen[0], m.seen[1]["z"]):
                runs.append((v.detach(), v.requires_grad, v.is_leaf))
                if v.requires_grad:
                    runs.append(torch.autograd.grad(v.sum(), sources, retain_graph=True, allow_unused=True))
        found.append(runs)
    torch.testing.assert_close(*found)


def exchanges(x, held):
    y = x * x * held[0] + x**3 * held[1] + x**4 * held[2]
    held[0], held[1] = held[1], held[0]
    return y


def rotates(x, held):
    y = x * x * held[0] + x**3 * held[1] + x**4 * held[2]
    held.append(held.pop(0))
    return y


@pytest.mark.parametrize(
    ("f", "make"), [(exchanges, list), (exchanges, lambda tensors: dict(enumerate(tensors))), (rotates, list)]
)
def test_tensors_that_change_places_are_put_back_for_a_second_derivative(f, make):
    """It was refused: one was put back after the other, each into all places that held what stood in its place."""

    def seen(compile):
        tensors = [torch.full((3,), float(n)) for n in range(2, 5)]
        held = make(tensors)
        called, found = compile(lambda x: f(x, held)), []
        for _ in range(4):
            x = torch.ones(3, requires_grad=True)
            (first,) = torch.autograd.grad(called(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            now = [next(i for i, t in enumerate(tensors) if t is held[key]) for key in range(3)]
            found.append((first.tolist(), second.tolist(), now))
        return found

    assert seen(lambda f: fg.jit(f, backend="aten")) == seen(lambda f: f)


class Centred(nn.Module):
    """A running mean that Python code writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.w = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0) * 0.1)
        return (x - self.mean) * self.w


HVP = {
    "jvp": lambda g, x, v: torch.func.jvp(g, (x,), (v,)),
    "vjp": lambda g, x, v: (lambda found: (found[0], found[1](v)[0]))(torch.func.vjp(g, x)),
    "grad": lambda g, x, v: torch.func.grad(lambda x: (g(x) * v).sum())(x),
}


@pytest.mark.parametrize("way", HVP)
def test_the_gradient_of_a_function_that_writes_to_a_buffer_is_differentiated(way):
    """Where torch.func raises: a level lets write to nothing from outside of it. Once per call, as documented."""
    x, v = torch.randn(4, 3), torch.randn(4, 3)
    ours, theirs = Centred(), Centred()
    found = HVP[way](fg.grad_compiled(lambda x: (ours(x).sin() ** 2).sum()), x, v)
    own = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((theirs(own).sin() ** 2).sum(), own, create_graph=True)
    (product,) = torch.autograd.grad((first * v).sum(), own)
    torch.testing.assert_close(found, product if way == "grad" else (first.detach(), product))
    torch.testing.assert_close(ours.mean, theirs.mean)


def _writes_to_it(x):
    y = x.exp()
    with torch.no_grad():
        x.add_(1)
    return (y * 2 + x.view(-1) * x.detach()).sum()


def _writes_to_a_part(x):
    part = x[1:]
    with torch.no_grad():
        part.mul_(2)
    return (x * x).sum() + part.sin().sum()


AGAIN = {
    "torch.func.grad": lambda g, x: torch.func.grad(lambda x: g(x).sin().sum())(x),
    "a leaf": lambda g, x: (lambda y: torch.autograd.grad(g(y).sin().sum(), y, allow_unused=True)[0])(
        x.requires_grad_()
    ),
    "of a gradient": lambda g, x: fg.grad_compiled(lambda x: g(x).sin().sum(), backend="aten")(x),
    "jvp": lambda g, x: torch.func.jvp(g, (x,), (torch.ones(3),)),
}


@pytest.mark.parametrize("way", AGAIN)
@pytest.mark.parametrize("f", [_writes_to_it, _writes_to_a_part], ids=["it", "a part"])
def test_what_a_gradient_is_of_may_be_written_to_under_no_grad(f, way):
    """It was refused where that requires grad."""
    ours, theirs = torch.tensor([0.3, -0.7, 1.2]), torch.tensor([0.3, -0.7, 1.2])
    compiled = fg.grad_compiled(f, backend="aten")
    for _ in range(2):
        found, wanted = AGAIN[way](compiled, ours), AGAIN[way](torch.func.grad(f), theirs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(ours, theirs)
        ours, theirs = ours.detach(), theirs.detach()


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.view(-1).mul_(2)], ids=["it", "a view of it"])
def test_what_a_gradient_is_of_is_not_written_to_where_grad_mode_is_on(write, tracked):
    x = torch.ones(3, requires_grad=tracked)
    with pytest.raises(fg.MutationError, match="writes into a tensor it was given"):
        fg.grad_compiled(lambda x: (write(x) * x).sum(), backend="aten")(x)
    assert torch.equal(x, torch.ones(3))
