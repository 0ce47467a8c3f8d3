"""Every stage can be looked at, run and timed; a slow compilation shows that it is alive."""

import re
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from functions import CASES

import funcgrad as fg
from funcgrad import torch_private
from funcgrad.errors import GraphError
from funcgrad.graphs import verify

X = torch.randn(5, 4)
P = {"w": torch.randn(4, 3), "b": torch.randn(3)}


def loss(p, x):
    return (torch.tanh(x @ p["w"] + p["b"]) ** 2).mean()


@pytest.fixture(scope="module")
def program():
    return fg.value_and_grad_compiled(loss).program(P, X)


def stages(program):
    names = ("key", "facts", "joint", "partition", "kernels", "schedule", "sources", "call")
    found = {}
    for name in names:
        value = getattr(program, name)
        for i, one in enumerate(value if isinstance(value, tuple) else (value,)):
            found[f"{name}[{i}]" if isinstance(value, tuple) else name] = one
    return found


def test_no_stage_is_written_out_at_length():
    """Expressions share what they are made of: written out in full, a chain of functions would double with each."""

    def length(steps):
        def chain(x):
            for _ in range(steps):
                x = x.sin() * x
            return x.sum()

        program = fg.grad_compiled(chain).program(X)
        return len(repr(program)) + len(repr(program.kernels[0].steps))

    assert length(24) < 2 * length(12)


def test_every_stage_prints_and_draws(program):
    for name, stage in stages(program).items():
        assert str(stage).strip(), name
        html = stage._repr_html_()
        assert 'class="funcgrad"' in html, name
        assert "http" not in html.replace("http://www.w3.org/2000/svg", ""), f"{name} needs the network"
        for tag in ("table", "div", "details", "svg", "section", "tr", "td"):
            assert len(re.findall(f"<{tag}[ >]", html)) == html.count(f"</{tag}>"), (name, tag)
    assert all(word in str(program) for word in ("facts", "joint", "partition", "kernels", "schedule", "call", "compile time"))


def test_html_escapes_what_users_write():
    html = fg.jit(lambda x: {"<script>": x * 2}).program(X)._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_graph_stages_run(program):
    value, grads = fg.value_and_grad_compiled(loss)(P, X)
    found = program.joint.run(P["w"], P["b"], X)
    torch.testing.assert_close(found, (value, grads["w"], grads["b"]))


def test_the_joint_graph_names_what_values_are(program):
    assert str(program.joint.signature) == "(p['w'], p['b'], x) -> (out[0], grad(p['w']), grad(p['b']))"
    text = str(program.joint)
    assert "aten.tanh(add)" in text and "test_stages.py:23 in loss" in text and "── backward" in text


def test_backward_nodes_point_at_the_forward_line(program):
    where = {n.name: n.meta["where"] for n in program.joint.graph.fx.nodes if n.op == "call_function"}
    assert where["tanh_backward"] == where["tanh"]


def of_lazy_elements(x):
    z = torch.complex(x, x.cos())
    return (z.conj().imag.neg() * z.resolve_conj().real).sum() + (z.conj() * z).real.sum()


def of_views_that_are_written_to(x):
    y = x.clone()
    row = y[1:3]
    row.mul_(2)
    y.t()[0].add_(row.sum())
    return torch.cat([y.sin(), row * y[1:3]]).square().sum() + F.interpolate(y[None, None], scale_factor=2).sum()


@pytest.mark.parametrize(
    "f", [*(CASES[name][0] for name in CASES), of_lazy_elements, of_views_that_are_written_to], ids=lambda f: f.__name__
)
def test_the_short_way_through_functionalisation_records_the_same(f, monkeypatch):
    """As torch's own mode does, which takes longer (``torch_private._functionally``)."""

    def recorded():
        args = CASES[f.__name__][1]() if f.__name__ in CASES else (torch.randn(4, 4),)
        graph = fg.value_and_grad_compiled(f, backend="aten").program(*args).joint.graph.fx
        return [(n.name, str(n.target), str(n.args), str(n.meta.get("val"))) for n in graph.nodes]

    found = recorded()
    monkeypatch.setattr(torch_private, "_functionally", lambda *_: NotImplemented)
    assert found == recorded()


def test_seconds_of_every_stage(program):
    assert list(program.seconds) == ["observe", "layers", "capture", "tag", "partition", "lower", "schedule", "emit", "build"]
    assert all(s >= 0 for s in program.seconds.values())


def test_watch_compile():
    events = []
    with fg.watch_compile(events.append):
        fg.jit(lambda x: x * 2)(X)
    assert [e.stage for e in events if e.seconds is None][:3] == ["observe", "layers", "capture"]
    assert all(e.function == "<lambda>" for e in events)
    assert len(events) == 2 * len({e.stage for e in events})


def test_lower_compile_as_in_jax():
    c = fg.grad_compiled(loss)
    assert c.lower(P, X).compile() is c.program(P, X)


def test_cache_info_counts():
    c = fg.jit(lambda x: x + 1)
    assert c.cache_info() == (0, 0, 64, 0)
    c(X), c(X), c(X[:2])
    assert c.cache_info() == (1, 2, 64, 2)


def test_verify_shows_the_nodes_around_a_fault(program):
    graph = fg.grad_compiled(loss).program(P, X).joint.graph
    node = next(n for n in graph.fx.nodes if n.name == "tanh")
    node.target = torch.ops.aten.tanh_.default
    with pytest.raises(GraphError, match=r"(?s)tanh writes to its inputs.*→ %tanh"):
        verify(graph)
    del node.meta["val"]
    with pytest.raises(GraphError, match="no recorded value"):
        verify(graph)


SLOW = """
import time, torch, funcgrad as fg
def slow(x):
    time.sleep(0.8)
    return x * 2
from funcgrad.runtime import stages
stages._PATIENCE = 0.1
fg.jit(slow)(torch.ones(3))
def quick(x):
    return x * 2
stages._PATIENCE = 600
fg.jit(quick)(torch.ones(3))
"""


def run(code, **environment):
    import os

    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, check=True)


def test_a_slow_compilation_shows_progress_and_a_quick_one_does_not():
    done = run(SLOW)
    assert "compiling slow" in done.stderr and "compiled slow in" in done.stderr
    assert "quick" not in done.stderr
    assert done.stdout == ""


def test_the_log_says_why_and_how_long():
    code = "import torch, funcgrad as fg\nc = fg.jit(lambda x: x * 2)\nc(torch.ones(3)); c(torch.ones(4))"
    text = run(code, FUNCGRAD_LOG="1").stderr
    assert "has not been compiled yet" in text and "x: shape was (3,), now (4,)" in text and "capture" in text
    assert "aten.mul" not in text
    assert "aten.mul" in run(code, FUNCGRAD_LOG="3").stderr


def test_measuring_prints_nothing():
    """Kineto, behind ``torch.profiler``, says on stderr that it starts."""
    code = "import torch, funcgrad as fg\nfrom funcgrad.runtime import stages\nstages._PATIENCE = 600\n"
    code += "fg.grad_compiled(lambda x: (x @ x).sin().sum()).memory(torch.ones(9, 9))"
    done = run(code)
    assert done.stdout == done.stderr == ""


def test_a_wrong_environment_is_named():
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("import funcgrad", FUNCGRAD_LOG="loud")
    assert "FUNCGRAD_LOG='loud'" in error.value.stderr
