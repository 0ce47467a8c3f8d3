"""Programs in files: what ``save`` writes does in another process what the compiled function does here."""

import dataclasses
import gc
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves

import funcgrad as fg


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    name: str = "train"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


def seeded(*sizes, grad=False, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def loss(params, x, *, scale=1.0):
    return scale * (torch.tanh(x @ params["w"] + params["b"]) ** 2).mean()


PARAMS = {"w": seeded(4, 3), "b": seeded(3, seed=1)}


def in_place(x, y):
    x.mul_(2)
    y.add_(x[0])
    return x, y.view(-1), x.sum()


def branches(x):
    y = x * 2
    return y.sum() if x.sum() > 0 else y.abs().sin()


def chosen(x, i):
    return x[i].tanh()


def scanned(x):
    def step(carry, row):
        carry = torch.tanh(carry + row)
        return carry, carry * 2

    return torch._higher_order_ops.scan(step, torch.zeros(x.shape[1]), x)


def conditional(x):
    return torch.cond(x.sum() > 0, lambda v: v.sin() * 2, lambda v: v.cos(), (x,))


def statistics(batch):
    return Batch(batch.x - batch.x.mean(0), batch.name), {"std": batch.x.std(0), "kind": batch.name}


def drawn(x):
    return x * torch.rand_like(x) + torch.randn(3)


def solved(a, b):
    return torch.linalg.solve(a @ a.T + torch.eye(3), b)


CALLS = {
    "gradient": (fg.grad_compiled(loss), lambda: (PARAMS, seeded(5, 4))),
    "value and gradient": (fg.value_and_grad_compiled(loss), lambda: (PARAMS, seeded(5, 4))),
    "with a backward pass": (fg.jit(lambda x, y: (x @ y).tanh()), lambda: (seeded(3, 4, grad=True), seeded(4, 2))),
    "of a view": (fg.jit(lambda x: (x[1:], x.mul_(2)[0])), lambda: (seeded(3, 2),)),
    "complex": (fg.jit(lambda x: torch.fft.fft(x).abs()), lambda: (seeded(8, grad=True),)),
    "aten": (fg.grad_compiled(loss, backend="aten"), lambda: (PARAMS, seeded(5, 4))),
    "triton": (fg.jit(loss, backend="triton"), lambda: (PARAMS, seeded(5, 4))),
    "in place": (fg.jit(in_place), lambda: (seeded(2, 3), seeded(3))),
    "one tensor twice": (fg.jit(lambda x, y: x.add_(1) * y), lambda: (seeded(3),) * 2),
    "a path": (fg.jit(branches), lambda: (seeded(4).abs(),)),
    "an index": (fg.jit(chosen), lambda: (seeded(4, 2), torch.tensor([3, 0]))),
    "scan": (fg.jit(scanned), lambda: (seeded(4, 2),)),
    "cond": (fg.jit(conditional), lambda: (seeded(4),)),
    "containers": (fg.jit(statistics), lambda: (Batch(seeded(4, 2)),)),
    "draws": (fg.jit(drawn), lambda: (seeded(4, 3),)),
    "draws by a key": (fg.jit(drawn, rng="philox"), lambda: (seeded(4, 3),)),
    "a system": (fg.jit(solved), lambda: (seeded(3, 3), seeded(3, seed=1))),
    "vmap": (fg.vmap_compiled(loss, (None, 0)), lambda: (PARAMS, seeded(6, 5, 4))),
    "hessian": (fg.hessian_compiled(loss), lambda: (PARAMS, seeded(5, 4))),
    "static": (fg.jit(lambda x, n: x.repeat(n), static_argnums=1), lambda: (seeded(3), 2)),
}


def leaves_of(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if not dataclasses.is_dataclass(leaf)] + [
        leaf
        for own in torch.utils._pytree.tree_leaves(value)
        if dataclasses.is_dataclass(own)
        for leaf in vars(own).values()
    ]


def outcome(call, args):
    """Results, then what arguments hold, then gradients of the arguments that require grad."""
    torch.manual_seed(3)
    leaves, given = leaves_of(call(*args)), [v for v in leaves_of(args) if isinstance(v, torch.Tensor)]
    tracked = [v for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad and not v.is_leaf]
    asked = [v for v in given if v.requires_grad]
    gradients = torch.autograd.grad(sum(v.sum() for v in tracked), asked) if tracked and asked else ()
    return [v.detach() if isinstance(v, torch.Tensor) else v for v in (*leaves, *given, *gradients)]


ELSEWHERE = """
import pickle, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import torch, funcgrad as fg
import test_archive  # the classes of arguments
folder = Path({folder!r})
found = {{}}
for name, args in pickle.loads((folder / "args").read_bytes()).items():
    program = fg.load(folder / f"{{name}}.fg")
    found[name] = test_archive.outcome(program, args)
(folder / "found").write_bytes(pickle.dumps(found))
"""


def in_another_process(folder, arguments):
    (folder / "args").write_bytes(pickle.dumps(arguments))
    text = ELSEWHERE.format(tests=str(Path(__file__).parent), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return pickle.loads((folder / "found").read_bytes())


def test_programs_do_elsewhere_what_they_do_here(tmp_path):
    expected, arguments = {}, {}
    for name, (compiled, make) in CALLS.items():
        compiled.program(*make()).save(tmp_path / f"{name}.fg")
        expected[name], arguments[name] = outcome(compiled, make()), make()
    found = in_another_process(tmp_path, arguments)
    for name, values in expected.items():
        assert len(values) == len(found[name]), name
        for a, b in zip(values, found[name], strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name


@pytest.fixture
def there_and_back(tmp_path):
    def go(compiled, *args, **kwargs):
        compiled.program(*args, **kwargs).save(tmp_path / "program.fg")
        return fg.load(tmp_path / "program.fg")

    return go


def test_a_module_is_trained_as_it_is(there_and_back):
    model, x = net(), seeded(6, 4)
    loaded = there_and_back(fg.jit(model), x)
    assert {"0.weight", "1.running_mean"} <= loaded.tensors.keys()
    ours = [t for t in loaded.tensors.values() if t.requires_grad]
    optimisers = [torch.optim.SGD(ours, 0.1), torch.optim.SGD(model.parameters(), 0.1)]
    for step in range(3):
        for call, optimiser in zip((loaded, model), optimisers, strict=True):
            torch.manual_seed(step)
            optimiser.zero_grad()
            call(x).square().mean().backward()
            optimiser.step()
    for name, t in model.state_dict().items():
        torch.testing.assert_close(loaded.tensors[name], t, rtol=1e-4, atol=1e-5)


def test_what_it_assumes_of_python_is_said(there_and_back):
    config = {"temperature": 0.5}
    loaded = there_and_back(fg.jit(lambda x: x / config["temperature"]), seeded(3))
    config["temperature"] = 2.0
    assert torch.equal(loaded(seeded(3)), seeded(3) / 0.5)
    assert ("config['temperature']", "0.5") in loaded.assumes
    assert "temperature" in str(loaded) and "<details" in loaded._repr_html_()


def test_a_number_of_python_state_is_as_it_was(there_and_back):
    class Schedule:
        rate = 0.1

    schedule = Schedule()
    step = fg.jit(lambda x: x * schedule.rate)
    for schedule.rate in (0.1, 0.2, 0.3):
        step(seeded(3))
    loaded = there_and_back(step, seeded(3))
    schedule.rate = 7.0
    torch.testing.assert_close(loaded(seeded(3)), seeded(3) * 0.3)


def test_sizes_that_vary(there_and_back):
    compiled = fg.jit(lambda x, w: torch.softmax(x @ w, -1), dynamic=True)
    loaded = there_and_back(compiled, seeded(5, 4), seeded(4, 3, grad=True))
    for n in (2, 7, 11):
        x, w = seeded(n, 4), seeded(4, 3, grad=True)
        y, z = loaded(x, w), torch.softmax(x @ w, -1)
        torch.testing.assert_close(y, z)
        torch.testing.assert_close(*(torch.autograd.grad(v.square().sum(), w) for v in (y, z)))
    with pytest.raises(fg.ArgumentError, match="not for this call"):
        loaded(seeded(5, 6), seeded(4, 3, grad=True))


def test_sizes_that_were_read(there_and_back):
    compiled = fg.jit(lambda x: x[x > 0].cumsum(0))
    for seed in range(4):
        compiled(seeded(12, seed=seed))
    loaded = there_and_back(compiled, seeded(12, seed=3))
    x = seeded(12, seed=3)
    assert torch.equal(loaded(x), x[x > 0].cumsum(0))


def test_a_gradient_for_one_of_several_results(there_and_back):
    def f(x, y):
        return x.sin(), (x * y).cos().t()

    x, y = seeded(3, 2, grad=True), seeded(3, 2, grad=True, seed=1)
    loaded = there_and_back(fg.jit(f), x, y)
    for i in (0, 1):
        ours, eager = (torch.autograd.grad(call(x, y)[i].sum(), (x, y), allow_unused=True) for call in (loaded, f))
        assert [v is None for v in ours] == [v is None for v in eager]
        for a, b in zip(ours, eager, strict=True):
            a is None or torch.testing.assert_close(a, b)


def test_gradients_of_leaves(there_and_back):
    params = {name: t.clone().requires_grad_() for name, t in PARAMS.items()}
    loaded = there_and_back(fg.grad_compiled(loss), params, seeded(5, 4))
    found, expected = loaded(params, seeded(5, 4)), torch.func.grad(loss)(params, seeded(5, 4))
    for name in params:
        torch.testing.assert_close(found[name], expected[name])
    with pytest.raises(fg.ArchiveError, match="differentiated once"):
        found["w"].sum().backward()


def test_what_is_donated_is_gone(there_and_back):
    loaded, x = there_and_back(fg.jit(lambda x: x * 2 + 1, donate_argnums=0), seeded(300)), seeded(300)
    assert torch.equal(loaded(x), seeded(300) * 2 + 1)
    with pytest.raises(fg.DonationError):
        x.sum()


def test_a_wrong_index_is_eager_pytorchs_error(there_and_back):
    loaded = there_and_back(fg.jit(chosen), seeded(4, 2), torch.tensor([3, 0]))
    with pytest.raises(IndexError, match="out of bounds"):
        loaded(seeded(4, 2), torch.tensor([4, 0]))


def test_another_call_says_what_differs(there_and_back):
    loaded = there_and_back(fg.grad_compiled(loss), PARAMS, seeded(5, 4), scale=2.0)
    for args, kwargs, said in [
        ((PARAMS, seeded(6, 4)), {"scale": 2.0}, r"x: shape was \(5, 4\), now \(6, 4\)"),
        ((PARAMS, seeded(5, 4)), {"scale": 3.0}, "scale: value was 2.0, now 3.0"),
        ((PARAMS, seeded(5, 4)), {}, "structure"),
        ((PARAMS, seeded(5, 4).double()), {"scale": 2.0}, "dtype"),
    ]:
        with pytest.raises(fg.ArgumentError, match=said):
            loaded(*args, **kwargs)
    with torch.no_grad(), pytest.raises(fg.ArgumentError, match="grad mode"):
        loaded(PARAMS, seeded(5, 4), scale=2.0)


def test_another_path_says_what_was_read(there_and_back):
    loaded = there_and_back(fg.jit(branches), seeded(4).abs())
    with pytest.raises(fg.ArgumentError, match="Python read True of a tensor, now it is False"):
        loaded(-seeded(4).abs())


def test_a_second_derivative_is_refused(there_and_back):
    x = seeded(3, grad=True)
    loaded = there_and_back(fg.jit(lambda x: x.sin().sum()), x)
    (first,) = torch.autograd.grad(loaded(x), x)
    assert torch.allclose(first, x.cos())
    with pytest.raises(fg.ArchiveError, match="differentiated once"):
        torch.autograd.grad(loaded(x), x, create_graph=True)


def test_no_file_of_ours(tmp_path, monkeypatch):
    (tmp_path / "other").write_bytes(b"PK..")
    with pytest.raises(fg.ArchiveError, match="no program"):
        fg.load(tmp_path / "other")
    fg.jit(torch.sin).program(seeded(3)).save(tmp_path / "program.fg")
    before = (tmp_path / "program.fg").read_bytes()
    monkeypatch.setattr(torch, "__version__", "3.7.0")
    with pytest.raises(fg.ArchiveError, match=r"torch 2.*here is .*torch 3\.7"):
        fg.load(tmp_path / "program.fg")
    seen = []
    with pytest.raises(fg.ArchiveError, match="seen"):
        fg.jit(lambda x: seen.append(1) or x.sin()).program(seeded(3)).save(tmp_path / "program.fg")
    assert (tmp_path / "program.fg").read_bytes() == before and len(list(tmp_path.iterdir())) == 2


# ── what no file can hold ────────────────────────────────────────────────────────────────────────────────────────

COUNTED = []
HELD = {"leaf": torch.ones(3, requires_grad=True)}
HELD["computed"] = HELD["leaf"] * 2
WHOLE = torch.arange(6.0)
PARTS = [WHOLE[:3], WHOLE[3:]]
OWN = torch.Generator()
LINEAR = nn.Linear(3, 2)


class Unready(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("not yet")


def reads_gradient(x):
    return x * HELD["leaf"].grad


@pytest.mark.parametrize(
    ("says", "f", "args"),
    [
        ("COUNTED", lambda x: (COUNTED.append(1), x * 2)[1], ()),
        ("called", lambda x: (print("called"), x * 2)[1], ()),
        ("kept", lambda x, kept: (kept.append(x), x * 2)[1], ([],)),
        ("m is a Linear, which is known by which object", lambda x, m: m(x), (LINEAR,)),
        ("Python that no trace sees", lambda x: fg.pure_callback(torch.sin, x, x), ()),
        ("share memory", lambda x: x + PARTS[0] * PARTS[1], ()),
        ("has a history", lambda x: x * HELD["computed"], ()),
        ("reads .*grad", reads_gradient, ()),
        ("generator of this process", lambda x: x + torch.rand(3, generator=OWN), ()),
        ("tensor subclass", lambda x, y: x * y, (TwoTensor(torch.ones(3), torch.ones(3)),)),
        ("backward pass raises ValueError", lambda x, y: Unready.apply(x * y), (torch.ones(3, requires_grad=True),)),
    ],
    ids=lambda v: v.replace(" ", "-") if isinstance(v, str) else None,
)
def test_what_no_file_can_hold(says, f, args, tmp_path):
    HELD["leaf"].grad = torch.ones(3)
    program = fg.jit(f).program(torch.ones(3), *args)
    with pytest.raises(fg.ArchiveError, match=says) as caught:
        program.save(tmp_path / "program.fg")
    assert caught.value.fix and not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 asks loggers and imports while it traces backward")
def test_what_the_garbage_collector_calls_is_not_of_the_backward_pass(tmp_path):
    """It may run at any time: a program whose backward pass reads no Python state was one whose does."""
    called, thresholds = [], gc.get_threshold()

    def hear(phase, info):
        called.append(phase)

    gc.callbacks.append(hear)
    gc.set_threshold(20, 1000, 1000)
    try:
        program = fg.jit(lambda x: x * HELD["computed"]).program(torch.ones(3))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(hear)
    assert called
    with pytest.raises(fg.ArchiveError, match="has a history"):
        program.save(tmp_path / "program.fg")


def test_a_class_that_is_not_there(tmp_path, monkeypatch):
    fg.jit(statistics).program(Batch(seeded(3, 2))).save(tmp_path / "program.fg")
    monkeypatch.delattr(sys.modules[__name__], "Batch")
    with pytest.raises(fg.ArchiveError, match="Batch"):
        fg.load(tmp_path / "program.fg")


def test_a_class_of_a_function_has_no_name(tmp_path):
    @dataclasses.dataclass
    class Pair:
        x: torch.Tensor

    with pytest.raises(fg.ArchiveError, match="Pair"):
        fg.jit(lambda p: p.x * 2).program(Pair(seeded(3))).save(tmp_path / "program.fg")


@pytest.mark.parametrize(
    "f",
    [lambda x: x.sort(0), lambda x: x.max(0), torch.linalg.qr, lambda x: {"top": x.topk(2)}],
    ids=["sort", "max", "qr", "topk in a dict"],
)
def test_a_named_tuple_of_torchs(f, tmp_path):
    """What makes one is a function that has no name."""
    x = seeded(5, 4)
    fg.jit(f).program(x).save(tmp_path / "program.fg")
    found, expected = fg.load(tmp_path / "program.fg")(x), f(x)
    assert type(found) is type(expected)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(expected))
