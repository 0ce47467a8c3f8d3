"""What a backward pass reads of Python state is as it is when that runs, as in eager PyTorch."""

from __future__ import annotations

import contextlib

import pytest
import torch

import funcgrad as fg

F = torch.nn.functional


class State(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.last = None
        self.set(2.0)

    def set(self, value):
        self.k = value
        self.w = torch.tensor([value, value + 1])
        self.items = [value]
        self.table = {"k": value}


def function(backward, forward=lambda x, s: x * 3):
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(x, s):
            return forward(x, s)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])
            ctx.s = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return backward(g, ctx.s, *ctx.saved_tensors), None

    return lambda x, s: Made.apply(x, s).sum()


def hooked(x, s):
    y = x * 2
    y.register_hook(lambda g: g * s.k)
    return (y**2).sum()


def unpacked(x, s):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * s.k):
        return (x**2).sum()


def stores(x, s):
    s.last = x * 2
    s.n += 1
    return x * 3


def by_module(x, s):
    linear = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    linear.register_full_backward_hook(lambda m, i, o: (i[0] * s.k,))
    return linear(x).sum()


FUNCTIONS = {
    "an attribute": function(lambda g, s, x: g * s.k),
    "an attribute that forward reads": function(lambda g, s, x: g * 2 * x * s.k, lambda x, s: x * x * s.k),
    "a tensor": function(lambda g, s, x: g * s.w),
    "a tensor that forward reads": function(lambda g, s, x: g * s.w, lambda x, s: x * s.w),
    "an item": function(lambda g, s, x: g * s.items[0] + x * s.table["k"]),
    "what forward stores": function(lambda g, s, x: g * s.last * s.n, stores),
    "in a hook": hooked,
    "in a hook of saved tensors": unpacked,
    "in a hook of a module": by_module,
}
OF_PLAIN_AUTOGRAD = {"in a hook of saved tensors", "in a hook of a module"}
STEPS = [(2.0, 2.0), (2.0, 3.0), (3.0, 2.0), (4.0, 5.0)]
"""The state in the call, and in the backward pass."""


def leaf():
    return torch.tensor([1.0, 2.0], requires_grad=True)


def between(call, s):
    for now, then in STEPS:
        x = leaf()
        s.set(now)
        loss = call(x, s)
        s.set(then)
        loss.backward()
        yield loss, x.grad


def in_a_kept_graph(call, s):
    x = leaf()
    loss = call(x, s)
    for value in (2.0, 3.0, 2.0):
        s.set(value)
        loss.backward(retain_graph=True)
        yield x.grad.clone()


def twice(call, s):
    for _ in range(2):
        x = leaf()
        s.set(2.0)
        loss = call(x, s)
        s.set(3.0)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        yield g
        s.set(4.0)
        if g.requires_grad:
            yield torch.autograd.grad((g**2).sum(), x, allow_unused=True)


def two_calls(call, s):
    for _ in range(3):
        x = leaf()
        sum([call(x * 1, s), call(x * 2, s)]).backward()
        yield x.grad


def captured(call, s):
    for now, then in STEPS:
        x = leaf()
        s.set(now)
        loss = call(x, s) * 2
        s.set(then)
        with fg.compiled_autograd(backend="aten") if call.is_compiled else contextlib.nullcontext():
            loss.backward()
        yield x.grad


def written_within_the_pass(call, s):
    """A hook that runs before the backward pass of the function."""
    for value in (3.0, 5.0, 3.0):
        x = leaf()
        s.set(2.0)
        loss = call(x, s) * 2
        loss.register_hook(lambda g, value=value: s.set(value))
        with fg.compiled_autograd(backend="aten") if call.is_compiled else contextlib.nullcontext():
            loss.backward()
        yield x.grad


def at_a_level(call, s):
    tensor = torch.tensor([7.0, 8.0])

    def changed(x):
        loss = call(x, s)
        s.k, s.w = 7.0, tensor
        return loss * 1

    for _ in range(3):
        s.set(2.0)
        yield torch.func.grad(changed)(torch.tensor([1.0, 2.0]))


def of_a_pullback(call, s):
    tensors = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])

    def changed(x):
        _, pull = torch.func.vjp(lambda v: call(v, s), x)
        s.k, s.w = 3.0, tensors[0]
        (g,) = pull(torch.ones(()))
        s.k, s.w = 4.0, tensors[1]
        return (g**2).sum()

    for _ in range(2):
        s.set(2.0)
        yield torch.func.grad(changed)(torch.tensor([1.0, 2.0]))


WAYS = [between, in_a_kept_graph, twice, two_calls, captured, written_within_the_pass, at_a_level, of_a_pullback]


def observed(way, f, make, closes=False):
    torch.manual_seed(0)
    s = State()
    made = make((lambda x: f(x, s)) if closes else f)

    def call(x, s):
        return made(x) if closes else made(x, s)

    call.is_compiled = make is not plain
    return list(way(call, s)), (s.k, s.w, s.n, s.last)


def plain(f):
    return f


def compiled(f):
    return fg.jit(f, backend="aten")


OF_TORCH_FUNC = (at_a_level, of_a_pullback)  # where eager PyTorch differentiates no function of plain autograd


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (n, way)
        for n in FUNCTIONS
        for way in WAYS
        if not (n in OF_PLAIN_AUTOGRAD and way in OF_TORCH_FUNC) and (n, way) != ("what forward stores", of_a_pullback)
    ],
)
def test_it_is_read_when_the_pass_runs(name, way):
    f = FUNCTIONS[name]
    torch.testing.assert_close(observed(way, f, compiled), observed(way, f, plain))


def test_what_forward_stores_for_a_backward_pass_that_is_differentiated_at_a_level_is_refused():
    """The pullback runs forward once more, and takes back what that stores."""
    with pytest.raises(fg.UnsupportedTransformError, match="differentiated by its graph"):
        observed(of_a_pullback, FUNCTIONS["what forward stores"], compiled)


@pytest.mark.parametrize("way", [twice, two_calls, at_a_level])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in OF_PLAIN_AUTOGRAD])
def test_of_an_object_that_is_no_argument(name, way):
    f = FUNCTIONS[name]
    torch.testing.assert_close(observed(way, f, compiled, closes=True), observed(way, f, plain, closes=True))


def test_a_function_that_stores_a_tensor_and_runs_once_more_at_a_level():
    """What it stores is taken back then; what its backward pass reads is what is there when that runs."""

    def made(wrap):
        s = State()

        def f(x):
            s.last = x.detach() * 2
            return hooked(x, s)

        call = wrap(f)

        def changed(x):
            s.k = 2.0
            y = call(x)
            s.k = 3.0
            return y

        return changed

    x, own = torch.tensor([1.0, 2.0]), leaf()
    torch.testing.assert_close(torch.func.grad(made(compiled))(x), torch.func.grad(made(plain))(x))
    made(compiled)(own).backward()
    torch.testing.assert_close(own.grad, 8 * own.detach() * 3)


def test_a_function_that_adds_a_tensor_to_a_set_is_not_run_once_more_at_a_level():
    """Which one of a set it is, nobody knows there; so its graph runs, with what was read when it was made."""
    found = set()

    def f(x):
        found.add(x.detach() * 2)
        return hooked(x, State())

    with pytest.raises(fg.UnsupportedTransformError, match="reads Python state that has changed since the call"):
        torch.func.grad(compiled(f))(torch.tensor([1.0, 2.0]))


class Swapped:
    """Two tensors that each call lets change places, read in a backward pass that reads the gradient it is given."""

    def __init__(self):
        self.a, self.b = (torch.tensor([1.0, n], requires_grad=True) for n in (2, 5))
        state = self

        class Read(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * state.a.detach() * (1 if g.sum() > 0 else 3)

        self.read = Read.apply

    def __call__(self, x):
        y = self.read(x * self.a) * self.b
        self.a, self.b = self.b, self.a
        return y.sum()


@pytest.mark.parametrize("between", [lambda s: None, lambda s: setattr(s, "a", torch.ones(2, requires_grad=True))])
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_tensors_that_changed_places(again, between):
    found = []
    for way in (lambda f: f, fg.jit):
        state = Swapped()
        compiled, seen = way(state.__call__), []
        for sign in (1, -1):
            x = torch.tensor([0.5, -0.7], requires_grad=True)
            y = compiled(x)
            between(state)
            first = torch.autograd.grad(y * sign, [x, state.b], create_graph=again)
            second = torch.autograd.grad((first[0] ** 2).sum(), [state.b]) if again else ()
            seen += [y.detach(), *first, *second, state.a, state.b]
        found.append(seen)
    torch.testing.assert_close(*found)


class Adjoint(torch.autograd.Function):
    """As differential equations are solved backwards: backward evaluates a layer again, reads values, and asks for
    gradients with respect to the parameters that forward has saved."""

    @staticmethod
    def forward(ctx, layer, x, *parameters):
        ctx.layer = layer
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, g):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            of_x, *found = torch.autograd.grad(ctx.layer(x), (x, *parameters), g, allow_unused=True)
        scale = 2 if of_x.abs().sum() > 0.3 else 1
        found = [torch.full_like(p, 7.0) if own is None else own * scale for own, p in zip(found, parameters)]
        return None, of_x * scale, *found


@pytest.mark.parametrize("between", ["nothing", "rebound"])
def test_a_parameter_that_forward_saved_and_backward_reads_is_one_leaf(between):
    def gradients(way):
        torch.manual_seed(0)
        layer, seen = torch.nn.Linear(2, 2), []
        compiled = way(lambda x: Adjoint.apply(layer, x, *layer.parameters()).square().mean())
        for size in (3, 3, 5):
            x, then = torch.randn(size, 2, requires_grad=True), list(layer.parameters())
            y = compiled(x)
            if between == "rebound":
                layer.weight = torch.nn.Parameter(layer.weight.detach() * 1.5)
            y.backward()
            seen += [x.grad, *(p.grad for p in then)]
            with torch.no_grad():
                for p in layer.parameters():
                    p.mul_(0.9).grad = None
        return seen

    torch.testing.assert_close(gradients(fg.jit), gradients(lambda f: f))


# ── the memory of what was passed ────────────────────────────────────────────────────────────────────────────────

READS = {
    "a product": (lambda x, w: x * w, (3, 4), (3, 4)),
    "a product with a view": (lambda x, w: x * w.t(), (4, 3), (3, 4)),
    "a product with a row": (lambda x, w: x * w[1], (4,), (3, 4)),
    "a product with what is detached": (lambda x, w: x * w.detach() + w, (3, 4), (3, 4)),
    "a variable and a view of it": (lambda x, w: x * w * w.view(3, 4).sin(), (3, 4), (3, 4)),
    "what is computed again": (lambda x, w: (x * w.exp()).sin() * w.sin(), (3, 4), (3, 4)),
    "matrices": (torch.mm, (3, 4), (4, 5)),
    "batches of matrices": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "batches of matrices and a matrix": (torch.matmul, (2, 3, 4), (4, 5)),
    "an einsum": (lambda x, w: torch.einsum("ij,jk->ik", x, w), (3, 4), (4, 5)),
    "linear": (F.linear, (3, 4), (5, 4), (5,)),
    "linear of batches": (F.linear, (2, 3, 4), (5, 4), (5,)),
    "linear twice": (lambda x, w, b: F.linear(F.relu(F.linear(x, w, b)), w, b), (3, 4), (4, 4), (4,)),
    "a convolution": (F.conv2d, (2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    "two convolutions": (
        lambda x, w, b: F.conv2d(F.relu(F.conv2d(x, w, b, padding=1)), w, b), (2, 4, 6, 6), (4, 4, 3, 3), (4,)
    ),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (5, 4), (4,), (4,)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (5, 4), (4,), (4,)),
    "an activation with a parameter": (F.prelu, (5, 4), (4,)),
}  # fmt: skip


def other_values(t, other):
    t.data = other


def other_strides(t, other):
    t.data = other.t().contiguous().t() if other.dim() == 2 else other


def another_dtype(t, other):
    t.data = other.double()


def another_size(t, other):
    t.data = torch.cat([other, other])


def the_same_memory(t, other):
    t.data = t.data.flip(0).t() if t.dim() == 2 else t.data[:1]


def set_without_autograd(t, other):
    with torch.no_grad():
        t.set_(other)


def through_data(t, other):
    t.data.set_(other)


MOVES = [
    other_values, other_strides, another_dtype, another_size, the_same_memory, set_without_autograd, through_data
]  # fmt: skip


def gradients_after(call, shapes, move, i, grad):
    torch.manual_seed(0)
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    y = call(*given)
    move(given[i], torch.arange(given[i].numel(), dtype=torch.float32).view(given[i].shape) + 2)
    try:
        return grad(y, given)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
@pytest.mark.parametrize("name", READS)
def test_memory_given_between_the_passes_is_read_where_eager_reads_it(name, move):
    """A saved variable is what it is when backward runs; a view of it that was saved stays where it is."""
    function, *shapes = READS[name]

    def grad(y, given):
        return torch.autograd.grad(y, given, torch.ones_like(y))

    compiled = fg.jit(function)
    for i in range(len(shapes)):
        expected = gradients_after(function, shapes, move, i, grad)
        found = gradients_after(compiled, shapes, move, i, grad)
        if name == "two convolutions" and isinstance(found, fg.MutationError):
            continue  # backward reads a copy of it, channels last
        assert type(found) is type(expected), (i, found, expected)
        if not isinstance(expected, RuntimeError):
            torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda m, i=i: f"{i}: {m}")


def test_memory_given_between_the_passes_in_a_captured_backward():
    def grad(y, given):
        y.sum().backward()
        return [t.grad for t in given]

    def captured(y, given):
        with fg.compiled_autograd(backend="aten"):
            return grad(y, given)

    compiled = fg.jit(torch.mul)
    for move in (lambda t, other: None, other_values, lambda t, other: None):
        expected = gradients_after(torch.mul, [(3,), (3,)], move, 1, grad)
        torch.testing.assert_close(gradients_after(compiled, [(3,), (3,)], move, 1, captured), expected)


def test_memory_that_a_second_derivative_would_read_is_refused():
    x, w = leaf(), leaf()
    y = fg.jit(torch.mul)(x, w)
    w.data = torch.ones(2)
    with pytest.raises(fg.MutationError, match="other memory"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


KEPT = {
    "cleared": "n = kept.get(tag, 0); kept.clear(); kept[tag] = n + 1",
    "deleted": "kept[tag] = kept.get(tag, 0) + 1\n    for other in [*kept]:\n        if other != tag: del kept[other]",
    "popped": "n = kept.pop(tag, 0.5); kept.clear(); kept[tag] = n + 0.5",
    "a list": "rows.append(len(rows) + n[0])\n    if tag == 'q': rows.pop(); rows[:] = [n[0]]",
}


@pytest.mark.parametrize("how", KEPT)
def test_a_backward_pass_of_pytorch_alone_reads_no_python_state(how):
    """PyTorch makes named tuples in it, which was taken for code of the caller's; what the call had written to was
    looked for again then."""

    def run(jit):
        space = {"kept": {}, "rows": [1.0], "n": [2]}
        exec(f"def f(x, tag):\n    {KEPT[how]}\n    return x.sin() * (sum(kept.values()) + sum(rows))", space)
        f, w, seen = jit(space["f"]), torch.ones(3, requires_grad=True), []
        for tag in "pppqpq":
            y = f(torch.ones(2, 3) * w, tag)
            y.sum().backward()
            seen += [y.detach(), w.grad.clone(), {**space["kept"]}, [*space["rows"]]]
        return seen, f

    (found, compiled), (expected, _) = run(fg.jit), run(lambda f: f)
    torch.testing.assert_close(found, expected)
    program = compiled.program(torch.ones(2, 3) * torch.ones(3, requires_grad=True), "p")
    assert not program.facts.state.late


def test_a_tensor_that_the_function_itself_takes_away_is_a_tensor_where_it_runs_again():
    """For a derivative of a derivative; what it was is not known, as nothing was computed with it."""

    class Stats(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("best", torch.ones(3))

    def of(stats):
        def f(x):
            y = x * (2.0 if stats.best is not None else 3.0)
            stats.best = None if stats.best is not None else torch.ones(3)
            return y.sin().sum()

        return f

    def ran(f):
        found = []
        for i in range(5):
            x = torch.linspace(-1, 1 + i, 3, requires_grad=True)
            (g,) = torch.autograd.grad(f(x), x, create_graph=True)
            found += [g.detach(), *torch.autograd.grad(g.sum(), x)]
        return found

    own, eager = Stats(), Stats()
    compiled = fg.jit(of(own), backend="aten")
    torch.testing.assert_close(ran(compiled), ran(of(eager)))
    assert compiled.cache_info().misses == 2 and own.best is None and eager.best is None


def test_a_list_of_tensors_that_the_function_empties_is_as_long_as_it_was_where_it_runs_again():
    def curved(make):
        marks = [torch.tensor(1.5)]

        def f(x):
            y = x * sorted(marks)[0]
            marks.pop()
            return y.sin().sum()

        gradient = make(f)
        found = torch.func.grad(lambda x: gradient(x).sum())(torch.ones(2, requires_grad=True))
        assert not marks
        return found

    torch.testing.assert_close(curved(lambda f: fg.grad_compiled(f, backend="aten")), curved(torch.func.grad))
