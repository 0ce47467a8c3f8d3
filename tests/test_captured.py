"""Tensors a function closes over are inputs by reference: updates in place and rebindings are seen, wherever they
live."""

import functools
import types
import weakref

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg
from funcgrad.trees import flatten

WEIGHT = torch.ones(3)
SCALE = 2.0
MODEL = torch.nn.Linear(3, 2)
TABLE = {"a": [torch.ones(3)], "b": (torch.ones(3),)}


def check(f, x, change, *, compiles=True):
    """Same result as eager before and after ``change``; the change compiles again, or does not."""
    c = fg.jit(f)
    torch.testing.assert_close(c(x), f(x))
    change()
    torch.testing.assert_close(c(x), f(x))
    assert c.cache_info().misses == (2 if compiles else 1)
    torch.testing.assert_close(c(x), f(x))


X = torch.randn(3)


def test_closure_cell():
    w = torch.ones(3)

    def f(x):
        return x * w

    def rebind():
        nonlocal w
        w = torch.full((3,), 5.0)

    check(f, X, rebind, compiles=False)  # another tensor of the same kind: the same program reads it


def test_in_place_update():
    w = torch.ones(3)
    check(lambda x: x * w, X, lambda: w.mul_(3), compiles=False)


def test_global(monkeypatch):
    check(lambda x: x * WEIGHT, X, lambda: monkeypatch.setitem(globals(), "WEIGHT", torch.zeros(3)), compiles=False)


def test_global_of_a_helper(monkeypatch):
    def helper(x):
        return x * WEIGHT

    check(lambda x: helper(x) + 1, X, lambda: monkeypatch.setitem(globals(), "WEIGHT", torch.zeros(3)), compiles=False)


def test_default_argument():
    def f(x, w=torch.ones(3)):
        return x * w

    check(f, X, lambda: setattr(f, "__defaults__", (torch.zeros(3),)), compiles=False)


def test_container():
    check(
        lambda x: x * TABLE["a"][0] + TABLE["b"][0],
        X,
        lambda: TABLE["a"].__setitem__(0, torch.zeros(3)),
        compiles=False,
    )


def test_bound_self():
    class Model:
        def __init__(self):
            self.w = torch.ones(3)

        def f(self, x):
            return x * self.w

    m = Model()
    check(m.f, X, lambda: setattr(m, "w", torch.zeros(3)), compiles=False)


def test_module_parameter_and_layer():
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    check(m, X, lambda: setattr(m[0], "weight", torch.nn.Parameter(torch.zeros(4, 3))), compiles=False)
    check(lambda x: m(x), X, lambda: m.__setitem__(0, torch.nn.Linear(3, 4)))  # another module object


def test_another_shape_compiles():
    w = [torch.ones(3)]
    check(lambda x: (x * w[0]).sum(), X, lambda: w.__setitem__(0, torch.ones(())))


def test_it_is_gone():
    holder = {"w": torch.ones(3)}
    c = fg.jit(lambda x: x * holder["w"] if "w" in holder else x)
    c(X)
    del holder["w"]
    torch.testing.assert_close(c(X), X)


class TestPythonValues:
    def test_closure_global_and_default(self, monkeypatch):
        k = 2.0

        def f(x, d=1.0):
            return x * k * SCALE * d

        def rebind():
            nonlocal k
            k = 3.0

        check(f, X, rebind)
        check(f, X, lambda: monkeypatch.setitem(globals(), "SCALE", 7.0))
        check(f, X, lambda: setattr(f, "__defaults__", (9.0,)))

    def test_nan_is_itself(self, monkeypatch):
        monkeypatch.setitem(globals(), "SCALE", float("nan"))

        def f(x, k=float("nan")):
            return x.nan_to_num(SCALE) + k

        c = fg.jit(f)
        for _ in range(2):
            assert c(X).isnan().all()
        monkeypatch.setitem(globals(), "SCALE", float("nan"))
        c(X)
        assert c.cache_info().misses == 1

    @pytest.mark.parametrize(
        ("before", "after"),
        [(0.0, -0.0), (-0.0, 0.0), ((1,), (1.0,)), ([0.0], [-0.0]), (1, True), ({"k": 1}, {"k": 1.0})],
    )
    def test_equal_values_that_are_not_the_same(self, before, after, monkeypatch):
        monkeypatch.setitem(globals(), "SCALE", before)
        c = fg.jit(lambda x: x * flatten(SCALE)[0][0])
        x = torch.arange(1, 4)
        for value in (before, after):
            monkeypatch.setitem(globals(), "SCALE", value)
            for _ in range(2):
                expected = x * flatten(value)[0][0]
                assert c(x).dtype == expected.dtype and torch.equal(c(x).signbit(), expected.signbit())
        assert c.cache_info().misses == 2

    def test_training_flag_and_plain_attributes(self):
        m = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()
        c = fg.jit(m)
        torch.testing.assert_close(c(X), m(X))
        m.train()
        torch.manual_seed(0)
        found = c(X)
        torch.manual_seed(0)
        torch.testing.assert_close(found, m(X))
        m[1].p = 0.0
        torch.testing.assert_close(c(X), m(X))

    def test_a_function_that_counts_its_traces_compiles_once(self):
        traces = 0

        def f(x):
            nonlocal traces
            traces += 1
            return x * 2

        c = fg.jit(f)
        for _ in range(3):
            c(X)
        assert c.cache_info().misses == 1


def test_gradients_reach_captured_parameters():
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
    expected = torch.autograd.grad(m(X).sum(), list(m.parameters()))
    c = fg.jit(lambda x: m(x).sum())
    for _ in range(2):
        found = torch.autograd.grad(c(X), list(m.parameters()))
        torch.testing.assert_close(found, expected)


def test_gradients_reach_parameters_given_to_a_custom_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, (g * x).sum()

    w = torch.nn.Parameter(torch.tensor(2.0))
    f = lambda x: (Scale.apply(x, w) * w).sum()  # noqa: E731
    expected = torch.autograd.grad(f(X), w)
    torch.testing.assert_close(torch.autograd.grad(fg.jit(f)(X), w), expected)


def test_training_with_an_in_place_optimizer():
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, y = torch.randn(16, 3), torch.randn(16, 1)
    losses = []
    for i, m in enumerate(models):
        loss = lambda x, y, m=m: F.mse_loss(m(x), y)  # noqa: E731
        step = fg.jit(loss) if i else loss
        optimizer = torch.optim.Adam(m.parameters(), lr=0.01)
        history = []
        for _ in range(5):
            optimizer.zero_grad()
            value = step(x, y)
            value.backward()
            optimizer.step()
            history.append(value.detach())
        losses.append(torch.stack(history))
    torch.testing.assert_close(losses[1], losses[0])


def test_a_captured_tensor_among_the_results():
    w = torch.nn.Parameter(torch.ones(3))
    out = fg.jit(lambda x: (x * w, w))(X)
    assert out[1] is w
    out[1].sum().backward()
    torch.testing.assert_close(w.grad, torch.ones(3))


def test_an_unresolved_capture_warns_and_reads_the_object():
    ones = torch.ones(3)
    hidden = weakref.ref(ones)

    def f(x):
        return x * hidden()

    with pytest.warns(fg.UnresolvedCaptureWarning, match=r"f32\[3\].*test_captured.py"):
        torch.testing.assert_close(fg.jit(f)(X), X)


def test_a_program_does_not_keep_the_first_tensors_alive():
    import gc

    w = torch.ones(3)
    x = torch.randn(3)
    f = lambda x: (x * w).sum()  # noqa: E731
    c = fg.grad_compiled(f)
    c(x)
    watch = weakref.ref(x)
    del x
    gc.collect()
    assert watch() is None
    watch = weakref.ref(w)
    w = torch.zeros(3)
    gc.collect()
    assert watch() is None


class TestWhatElseIsNoticed:
    def test_untied_weights(self):
        a, b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        b.weight = a.weight
        m = torch.nn.Sequential(a, b)
        check(m, X, lambda: setattr(b, "weight", torch.nn.Parameter(torch.ones(3, 3))))

    def test_an_appended_layer_and_a_hook(self):
        m = torch.nn.Sequential(torch.nn.Linear(3, 3))
        check(m, X, lambda: m.append(torch.nn.Tanh()))
        check(m, X, lambda: m[0].register_forward_hook(lambda module, args, out: out * 2) and None)

    def test_the_type_of_an_attribute(self):
        class Scale(torch.nn.Module):
            k = None

            def __init__(self):
                super().__init__()
                self.k = 2

            def forward(self, x):
                return x * self.k

        m, x = Scale(), torch.ones(3, dtype=torch.int64)
        check(m, x, lambda: setattr(m, "k", 2.0))

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m.scales.__setitem__(0, 2.0),
            lambda m: m.scales.__setitem__(0, 1),
            lambda m: m.config.update(a=5.0),
            lambda m: setattr(m, "_p", 3.0),
            lambda m: setattr(m, "act", torch.neg),
            lambda m: setattr(m, "forward", types.MethodType(lambda self, x: x * 7, m)),
        ],
    )
    def test_the_state_of_a_module(self, change):
        class Scale(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scales, self.config, self._p, self.act = [1.0], {"a": 1.0}, 1.0, torch.abs

            def forward(self, x):
                return self.act(x * self.scales[0] * self.config["a"] * self._p)

        m = Scale()
        check(m, X, lambda: change(m))
        check(torch.nn.Sequential(m), X, lambda: setattr(m, "forward", torch.tanh))

    def test_a_count_that_a_module_keeps_compiles_once(self):
        class Counted(torch.nn.Module):
            _calls = 0

            def forward(self, x):
                self._calls += 1
                return x * 2

        c = fg.jit(Counted())
        for _ in range(3):
            c(X)
        assert c.cache_info().misses == 1

    def test_functions_dtypes_and_small_containers(self):
        act, dt, config = torch.relu, torch.float32, {"lr": 2.0}

        def f(x):
            return act(x).to(dt) * config["lr"]

        def rebind():
            nonlocal act, dt
            act, dt = torch.tanh, torch.float64

        check(f, X, rebind)
        check(f, X, lambda: config.update(lr=3.0))


@pytest.mark.parametrize("part", ["real", "imag"])
@pytest.mark.parametrize("value", [lambda z: X, lambda z: X * 2, lambda z: 3.0, lambda z: z.imag], ids=range(4))
def test_a_part_of_a_complex_tensor_is_set(part, value):
    def made():
        z = torch.complex(torch.arange(3.0), torch.ones(3))

        def f():
            setattr(z, part, value(z))
            return z * 2

        return z, f

    (expected, f), (found, own) = made(), made()
    compiled = fg.jit(own)
    for _ in range(2):
        torch.testing.assert_close(compiled(), f())
        torch.testing.assert_close(found, expected)
        found.mul_(1j), expected.mul_(1j)


def test_tensors_that_are_swapped_are_refused():
    a, b = torch.zeros(3), torch.nn.Parameter(torch.ones(3))
    a.label = "a"

    def f():
        torch.utils.swap_tensors(a, b)
        return a * 2

    with pytest.raises(fg.MutationError, match="swap_tensors"):
        fg.jit(f)()
    assert a.sum() == 0 and a.label == "a" and not hasattr(b, "label") and type(b) is torch.nn.Parameter


def test_a_dataset_and_a_partial():
    """What datasets hold is read from them; a partial that is compiled itself keeps its arguments."""
    data = torch.utils.data.TensorDataset(torch.ones(3), torch.ones(3))

    def exchange():
        data.tensors = (torch.zeros(3), torch.ones(3))

    check(lambda x: x * data.tensors[0], X, exchange)
    check(lambda x: sum((x * a + b).sum() for a, b in torch.utils.data.DataLoader(data, batch_size=3)), X, exchange)
    weight = torch.ones(3)
    c = fg.jit(functools.partial(torch.mul, weight))
    torch.testing.assert_close(c(X), X)
    weight.mul_(2)
    torch.testing.assert_close(c(X), 2 * X)
    assert c.cache_info().misses == 1
