"""The second half of the spine alone: joint graphs written by hand, which no function was traced for, compiled on
each backend."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

import funcgrad as fg
from funcgrad.backends.aten import AtenBackend
from funcgrad.capture.symbols import Symbols
from funcgrad.executable import compile_joint
from funcgrad.graph_primitives import Opaque, PathMiss, expect
from funcgrad.graphs import Graph, verify
from funcgrad.joint import Joint
from funcgrad.opaque_calls import call_opaque
from funcgrad.options import Options
from funcgrad.runtime.check import require_same
from funcgrad.slots import Arg, Cotangent, Grad, Out, Signature
from funcgrad.symbolic.sizes import SizeError

aten = torch.ops.aten
BACKENDS = ("aten", "c", "triton")


class Written:
    """A graph that is written call by call."""

    def __init__(self) -> None:
        self.fx = fx.Graph()
        self.mode = FakeTensorMode()
        self.symbols = Symbols(self.mode)
        self.ins: list[tuple[object, fx.Node]] = []

    def given(self, slot: object, like: Tensor, symbolic: bool = False) -> fx.Node:
        node = self.fx.placeholder(str(slot).replace("(", "_").replace(")", ""))
        node.meta = {"val": self.symbols.tensor(str(slot), like, [0]) if symbolic else self.mode.from_tensor(like)}
        self.ins.append((slot, node))
        return node

    def call(self, op: object, *args: object, during: str = "forward") -> fx.Node:
        node = self.fx.call_function(op, args)
        values = fx.map_arg(args, lambda n: n.meta["val"])
        with self.symbols.followed():
            node.meta = {"val": None if op is expect else op(*values), "pass": during}
        return node

    def graph(self, outs: dict[object, fx.Node]) -> Graph:
        self.fx.output(tuple(outs.values()))
        placeholders = tuple(slot for slot, _ in self.ins)
        return verify(Graph(Signature(placeholders, tuple(outs)), self.fx, {}, "joint"))


def written_by_hand(hook, symbolic: bool = True) -> Graph:
    """``y = x.sin()``; the program is for calls where an element is above zero; ``hook(y)`` writes to y and returns
    a sum; what y was and what it is are added."""
    g = Written()
    x = g.given(Arg("x"), torch.ones(4, 3), symbolic)
    y = g.call(aten.sin.default, x)
    g.call(expect, g.call(aten.any.default, g.call(aten.gt.Scalar, x, 0.0)), 0, True)
    total, after = call_opaque(g.fx, hook, (y,), (g.mode.from_tensor(torch.zeros(())),), name="hook", writes=(0,))
    both = g.call(aten.add.Tensor, y, after)
    return g.graph({Out("[0]"): both, Out("[1]"): total, Out("[2]"): after})


def doubled(log: list[Tensor]):
    def hook(y: Tensor) -> Tensor:
        log.append(y.clone())
        y.mul_(2)
        return y.sum()

    return hook


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_written_by_hand(backend):
    log: list[Tensor] = []
    joint = Joint.of(written_by_hand(doubled(log), symbolic=backend != "triton"))
    made = compile_joint(joint, Options(backend=backend))
    (run,) = made.runnables
    for n in (4,) if backend == "triton" else (4, 2, 7):
        x = torch.randn(n, 3).abs()
        both, total, after = run(x)
        y = x.sin()
        assert len(log) == 1
        torch.testing.assert_close((log.pop(), both, total, after), (y, 3 * y, 2 * y.sum(), 2 * y))
        expected = joint.run(x)
        torch.testing.assert_close((both, total, after), expected)
        log.clear()
    with pytest.raises(PathMiss) as missed:
        run(-torch.ones(4, 3))
    assert (missed.value.read, missed.value.value, log) == (0, False, [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_python_read_first_is_checked_first(backend):
    """Also where what it read later is known earlier, and by the same kernels: a call is on another path because of the
    first."""
    g = Written()
    x, w = g.given(Arg("x"), torch.ones(4, 4)), g.given(Arg("w"), torch.ones(4, 4))
    early = g.call(aten.any.default, g.call(aten.gt.Scalar, x, 0.0))
    late = g.call(aten.any.default, g.call(aten.gt.Scalar, g.call(aten.mm.default, x, w), 0.0))
    g.call(expect, late, 0, True)
    g.call(expect, early, 1, True)
    g.call(expect, g.call(aten.any.default, g.call(aten.gt.Scalar, x, 1.0)), 2, False)
    made = compile_joint(Joint.of(g.graph({Out("[0]"): g.call(aten.sin.default, x)})), Options(backend=backend))
    (run,) = made.runnables
    one = torch.ones(4, 4)
    torch.testing.assert_close(run(one, one), (one.sin(),))
    for wrong, (read, value) in {
        (-one, one): (0, False), (one, -one): (0, False), (-one, -one): (1, False), (2 * one, one): (2, True),
        (2 * one, -one): (0, False),
    }.items():  # fmt: skip
        with pytest.raises(PathMiss) as missed:
            run(*wrong)
        assert (missed.value.read, missed.value.value) == (read, value)


def test_kernels_check_what_python_reads():
    """No tensor is made for it, and what comes after it does not run on another path."""
    g = Written()
    x = g.given(Arg("x"), torch.ones(64))
    total = g.call(aten.sum.default, x)
    g.call(expect, g.call(aten.gt.Scalar, total, 0.0), 0, True)
    out = g.call(aten.sin.default, g.call(aten.mul.Tensor, x, total))
    made = compile_joint(Joint.of(g.graph({Out("[0]"): out})), Options(backend="c"))
    python, c = (source.text for source in made.sources)
    assert "item" not in python and python.count("joint_launch0(") == 1 and "off_path(failed)" in python
    assert re.search(r"/\* joint_kernel1 \*/\n  if \(\*.*\) return 1;\n  k_.*\n  return 0;", c)


def test_triton_kernels_are_for_known_sizes():
    with pytest.raises(SizeError, match="sizes that are known"):
        compile_joint(Joint.of(written_by_hand(doubled([]))), Options(backend="triton"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_opaque_call_alone_reads_is_not_copied(backend):
    """Its argument in its own memory where nobody else reads it, or the same number; else a copy."""
    seen: list[int] = []
    g = Written()
    x = g.given(Arg("x"), torch.ones(4, 3))
    hook = lambda y: (seen.append(y.data_ptr()), y.add_(1), None)[-1]  # noqa: E731
    (alone,) = call_opaque(g.fx, hook, (g.call(aten.sin.default, x),), (), name="alone", writes=(0,))
    (input_,) = call_opaque(g.fx, hook, (x,), (), name="input", writes=(0,))
    twice = g.call(aten.cos.default, x)
    (shared,) = call_opaque(g.fx, hook, (twice,), (), name="shared", writes=(0,))
    outs = {Out("[0]"): alone, Out("[1]"): input_, Out("[2]"): shared, Out("[3]"): g.call(aten.mul.Tensor, twice, 2.0)}
    made = compile_joint(Joint.of(g.graph(outs)), Options(backend=backend))
    value = torch.randn(4, 3)
    kept = value.clone()
    found = made.runnables[0](value)
    torch.testing.assert_close(found, (kept.sin() + 1, kept + 1, kept.cos() + 1, kept.cos() * 2))
    assert torch.equal(value, kept)
    text = made.sources[0].text
    assert "alone(sin_default)" in text and "input(x.clone())" in text and "shared(cos_default.clone())" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_halves_keep_opaque_calls_in_their_pass_and_order(backend):
    log: list[str] = []

    def saying(name: str):
        return lambda *values: log.append(name)

    g = Written()
    x = g.given(Arg("x"), torch.ones(5))
    cotangent = g.given(Cotangent(Out("")), torch.ones(5))
    y = g.call(aten.sin.default, x)
    call_opaque(g.fx, saying("forward 1"), (y,), (), name="first")
    call_opaque(g.fx, saying("forward 2"), (x,), (), name="second")
    out = g.call(aten.mul.Tensor, y, 3.0)
    call_opaque(g.fx, saying("backward 1"), (cotangent,), (), name="third", during="backward")
    slope = g.call(aten.mul.Tensor, g.call(aten.cos.default, x, during="backward"), 3.0, during="backward")
    gradient = g.call(aten.mul.Tensor, cotangent, slope, during="backward")
    call_opaque(g.fx, saying("backward 2"), (gradient,), (), name="fourth", during="backward")
    joint = Joint.of(g.graph({Out(""): out, Grad(Arg("x")): gradient}), is_split=True)
    made = compile_joint(joint, Options(backend=backend))
    forward, backward = made.runnables
    value, incoming = torch.randn(5), torch.randn(5)
    known = dict(zip(made.graphs[0].signature.outs, forward(value), strict=True)) | {
        Arg("x"): value,
        Cotangent(Out("")): incoming,
    }
    assert log == ["forward 1", "forward 2"]
    torch.testing.assert_close(known[Out("")], value.sin() * 3)
    (found,) = backward([known[slot] for slot in made.graphs[1].signature.ins])
    assert log == ["forward 1", "forward 2", "backward 1", "backward 2"]
    torch.testing.assert_close(found, incoming * value.cos() * 3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["sin", "add", "hook", "write", "mm"]), st.integers(0, 5), st.integers(0, 5)),
        max_size=8,
    )
)
def test_random_graphs_run_opaque_calls_in_order(steps):
    """Whatever is computed around them: each runs once, in the order of the graph, on what its argument held there."""
    for backend in ("aten", "c"):
        log: list[Tensor] = []
        g = Written()
        nodes = [g.given(Arg("x"), torch.ones(3, 3))]

        def hook(v: Tensor) -> Tensor:
            log.append(v.clone())
            return v * 2

        def write(v: Tensor) -> None:
            log.append(v.clone())
            v.mul_(3)

        for kind, i, j in steps:
            a, b = nodes[i % len(nodes)], nodes[j % len(nodes)]
            if kind == "hook":
                nodes += call_opaque(g.fx, hook, (a,), (a.meta["val"].clone(),), name="hook")
            elif kind == "write":
                nodes += call_opaque(g.fx, write, (a,), (), name="write", writes=(0,))
            else:
                op = {"sin": aten.sin.default, "add": aten.add.Tensor, "mm": aten.mm.default}[kind]
                nodes.append(g.call(op, *((a,) if kind == "sin" else (a, b))))
        joint = Joint.of(g.graph({Out(f"[{i}]"): node for i, node in enumerate(nodes[-3:])}))
        x = torch.linspace(-1, 1, 9).view(3, 3)
        expected, wanted = joint.run(x), log.copy()
        log.clear()
        found = compile_joint(joint, Options(backend=backend)).runnables[0](x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(log, wanted)


def test_an_opaque_call_says_what_it_returns():
    with pytest.raises(fg.OpaqueCallError, match=r"round returned \(int64 1-d\) and was to return \(float32 1-d\)"):
        Opaque(lambda x: x.long(), "round", returns=((torch.float32, 1),))(torch.ones(3))


def test_what_runs_once_is_not_verified():
    made = compile_joint(Joint.of(written_by_hand(doubled([]))), Options(backend="aten"))
    with pytest.raises(fg.VerificationError, match="hook is an opaque call, which runs once"):
        require_same(made.graphs, made.runnables, {Arg("x"): torch.ones(4, 3)}, AtenBackend())


def test_an_executable_shows_its_stages():
    made = compile_joint(Joint.of(written_by_hand(doubled([]))), Options(backend="aten"))
    assert repr(made).startswith("<executable: kernels of joint")
    assert "one program" in str(made.partition) and "hook" in str(made)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_opaque_call_was_given_is_not_written_over(backend):
    """It may return it, or hold on to it."""
    seen: list[Tensor] = []
    g = Written()
    x = g.given(Arg("x"), torch.ones(4, 3))
    y = g.call(aten.sin.default, x)
    hook = lambda v: (seen.append(v), v)[1]  # noqa: E731
    (z,) = call_opaque(g.fx, hook, (y,), (y.meta["val"].clone(),), name="hook")
    both = g.call(aten.add.Tensor, y, z)
    last = g.call(aten.mul.Tensor, z, both)
    made = compile_joint(Joint.of(g.graph({Out(""): last})), Options(backend=backend))
    value = torch.randn(4, 3)
    torch.testing.assert_close(made.runnables[0](value), (2 * value.sin() ** 2,))
    torch.testing.assert_close(seen.pop(), value.sin())
