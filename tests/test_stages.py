"""Every stage can be looked at, run and timed; a slow compilation shows that it is alive."""

import gc
import re
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from functions import CASES

import funcgrad as fg
from funcgrad.errors import GraphError
from funcgrad.graphs import verify
from funcgrad.torch_private import functional

X = torch.randn(5, 4)
P = {"w": torch.randn(4, 3), "b": torch.randn(3)}


def loss(p, x):
    return (torch.tanh(x @ p["w"] + p["b"]) ** 2).mean()


@pytest.fixture(scope="module")
def program():
    return fg.value_and_grad_compiled(loss).program(P, X)


def stages(program):
    names = ("key", "facts", "layers", "joint", "partition", "kernels", "schedule", "sources", "call")
    found = {"program": program}
    for name in names:
        value = found[name] = getattr(program, name)
        found |= {f"{name}[{i}]": one for i, one in enumerate(value if isinstance(value, tuple) else ())}
    return found


def block(p, x):
    """A transformer block: attention, a perceptron, layer norms and residuals."""
    h = F.layer_norm(x, x.shape[-1:], p["w1"], p["b1"])
    q, k, v = (t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in (h @ p["qkv"]).chunk(3, -1))
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~mask, -float("inf"))
    x = x + (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2) @ p["proj"]
    return (x + F.gelu(F.layer_norm(x, x.shape[-1:], p["w2"], p["b2"]) @ p["up"]) @ p["down"]).square().mean()


@pytest.fixture(scope="module", params=["grad", "jit", "symbolic"])
def of_a_block(request):
    d = 32
    matrices = {"qkv": (d, 3 * d), "proj": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    sizes = {name: (d,) for name in ("w1", "b1", "w2", "b2")} | matrices
    p = {name: torch.randn(size, requires_grad=request.param == "jit") / 8 for name, size in sizes.items()}
    c = (fg.jit if request.param == "jit" else fg.value_and_grad_compiled)(block, backend="c")
    program = c.program(p, torch.randn(2, 6, d))
    return c.program(p, torch.randn(3, 6, d)) if request.param == "symbolic" else program


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
    assert all(
        word in str(program) for word in ("facts", "joint", "partition", "kernels", "schedule", "call", "compile time")
    )


def test_the_page_of_a_transformer_block_is_small_and_opens_on_a_summary(of_a_block):
    html = of_a_block._repr_html_()
    assert len(html.encode()) <= 60_000
    assert "<details open" not in html
    unfolded = re.sub(r"(?s)<details>.*</details>", "", html)
    assert len(unfolded) < 4_000
    assert "saved for backward" in unfolded and "aten." not in unfolded


def test_text_fits_a_hundred_columns_and_repr_a_line(of_a_block):
    for name, stage in stages(of_a_block).items():
        wide = [line for line in str(stage).splitlines() if len(line) > 100]
        assert not wide, f"{name}: {wide[0]}"
        assert len(repr(stage)) <= 100 and "\n" not in repr(stage), name


def test_wrapping_loses_nothing(of_a_block):
    """Words of a table go on in the next line; code is continued as C and Python continue a line."""
    joint = of_a_block.joint
    graph = "".join(str(joint).split())
    for node in joint.graph.fx.nodes:
        assert node.op == "output" or all("".join(part) in graph for part in re.findall(r"\w{1,6}", node.name))
    for source in (of_a_block.call, *of_a_block.sources):
        own = source.text.replace(source.prelude, "", 1)
        found = re.sub(r" \\\n +", " ", str(source))
        assert [line.split() for line in own.splitlines() if line.strip()] == [
            line.split() for line in found.splitlines()[1:] if line.startswith("  ") and not line.startswith("  … ")
        ]


def test_a_tuple_of_stages_shows_itself(program):
    for stages_of in (program.kernels, program.schedule, program.sources, program.layers):
        assert isinstance(stages_of, tuple)
        assert stages_of._repr_html_().startswith("<style>")
        assert str(stages_of).count("\n") >= len(stages_of) and len(repr(stages_of)) <= 100
    assert repr(fg.jit(lambda x: x + 1).program(X).layers) == "<no stages>"


def test_the_prelude_is_shown_once_and_folded(of_a_block):
    sources = of_a_block.sources
    assert len([s for s in sources if s.language == "c"]) > 1
    html, text = sources._repr_html_(), str(sources)
    assert html.count("typedef __INT8_TYPE__ int8_t") == 1
    assert "typedef" not in re.sub(r"(?s)<details>.*?</details>", "", html)
    assert "typedef" not in text and "the prelude of every c file" in text
    assert "void k_" in text


def test_wide_drawings_scroll(program):
    html = program.joint._repr_html_()
    assert '<div class="s"><svg' in html
    assert re.search(r"\.funcgrad \.s{[^}]*overflow:auto", html) and re.search(
        r"\.funcgrad svg{[^}]*max-width:none", html
    )


def test_kernels_show_formulas_whole():
    """Each number of the function is in its formulas, with what several read said once."""

    def f(x):
        y = torch.softmax(x * 3.25, -1)
        for i in range(8):
            y = (y * (1.5 + i)).sin() / (y + 0.125 * (i + 1)).exp()
        return y.sum(-1)

    (kernels,) = fg.jit(f, backend="c").program(torch.randn(4, 64)).kernels
    text = " ".join(str(kernels).split())
    assert "…" not in text and "levels" not in text
    for number in ("3.25", *(str(1.5 + i) for i in range(8)), *(str(0.125 * (i + 1)) for i in range(8))):
        assert number in text
    assert text.count("max_columns(") == 1
    assert "x[c0 + 64 * r0] * 3.25" in text


def test_formulas_are_parenthesised_as_they_are_computed():
    (kernels,) = fg.jit(lambda x, y: (x - (y - 2)) * (x * (y + 1)) - x / (y / 3), backend="c").program(X, X + 1).kernels
    assert "(x[r0] - (y[r0] - 2.0)) * (x[r0] * (y[r0] + 1.0)) - x[r0] / (y[r0] / 3.0)" in " ".join(str(kernels).split())


def test_sizes_are_named_by_what_they_are_sizes_of():
    def f(x, y):
        return (x.sin().reshape(-1) * 2 if x.shape[0] < 100 else x.cos().reshape(-1)).sum() + (x @ y).sum()

    c = fg.value_and_grad_compiled(f, backend="c", dynamic=True)
    program = c.program(torch.randn(6, 4), torch.randn(4, 5))
    symbol = re.compile(r"\b(size_)?s\d+\b")
    for name, stage in stages(program).items():
        if name not in ("program", "call") and "source" not in name:
            assert not symbol.search(str(stage)), (name, symbol.search(str(stage)))
            assert not symbol.search(stage._repr_html_().partition("</style>")[2]), name
    assert "float32[x.shape[0], x.shape[1]]" in str(program.key)
    assert "f32[x.shape[0], y.shape[1]]" in str(program.joint)
    assert "r0<(y.shape[1] * x.shape[0])" in str(program.kernels)
    assert "# x.shape[0] < 100" in program.call.text
    for source in program.sources[1:]:
        assert set(re.findall(r"size_s\d+", source.text)) == set(source.sizes) and source.sizes
        assert all(f"{s} is {of}" in str(source) and ".shape[" in of for s, of in source.sizes.items())
    assert c.explain_miss(torch.randn(200, 4), torch.randn(4, 5)) == "x.shape[0]: x.shape[0] < 100 no longer holds"
    missed = c.explain_miss(torch.randn(6, 4), torch.randn(3, 5))
    assert "y.shape[0]" in missed and "x.shape[1]" in missed and not symbol.search(missed)
    with fg.no_retrace(), pytest.raises(fg.RetraceError, match=r"x\.shape\[0\] < 100"):
        c(torch.randn(200, 4), torch.randn(4, 5))


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
    assert "aten.tanh(add)" in text and "test_stages.py:24 in loss" in text and "── backward" in text


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
    """As torch's own mode does, which takes longer (``functional._functionally``)."""

    def recorded():
        args = CASES[f.__name__][1]() if f.__name__ in CASES else (torch.randn(4, 4),)
        graph = fg.value_and_grad_compiled(f, backend="aten").program(*args).joint.graph.fx
        return [(n.name, str(n.target), str(n.args), str(n.meta.get("val"))) for n in graph.nodes]

    found = recorded()
    monkeypatch.setattr(functional, "_functionally", lambda *_: NotImplemented)
    assert found == recorded()


def test_seconds_of_every_stage(program):
    assert list(program.seconds) == [
        "observe", "layers", "capture", "passes", "tag", "partition", "lower", "schedule", "emit", "build", "print",
    ]  # fmt: skip
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


def test_a_program_is_called_as_its_function():
    x = X.clone()
    step = fg.jit(lambda x, *, scale=2.0: x.add_(1).mul(scale) if x.sum() > 0 else x * 3).lower(x.abs()).compile()
    assert torch.equal(step(x.abs()), (x.abs() + 1) * 2)
    for args, kwargs, why in (
        ((x.abs().double(),), {}, "x: dtype was torch.float32, now torch.float64"),
        ((x.abs()[1:],), {}, r"x: shape was \(5, 4\), now \(4, 4\)"),
        ((x.abs(), 1), {}, "positional arguments"),
        ((x.abs(),), {"scale": 2.0}, "keyword arguments"),
        ((-x.abs(),), {}, "Python read True"),
        ((x.abs().requires_grad_(),), {}, "requires_grad was False, now True"),
    ):
        with pytest.raises(fg.ArgumentError, match=why):
            step(*args, **kwargs)
    w = P["w"].clone().requires_grad_()
    of_w = fg.jit(lambda w: (X @ w).tanh().sum())
    program = of_w.program(w)
    program(w).backward()
    assert torch.equal(w.grad, fg.grad_compiled(of_w)(w.detach()))
    assert of_w.cache_info()[:2] == (0, 1)
    with pytest.raises(fg.UnsupportedTransformError, match="call the compiled function"):
        torch.func.vmap(fg.jit(torch.sin).program(X))(X)


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
from funcgrad import stages
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
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, check=True
    )


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
    graphs = run(code, FUNCGRAD_LOG="3").stderr
    assert "aten.mul" in graphs and "kernel0: rows" not in graphs


def test_the_log_shows_kernels_and_then_rewrites():
    code = """
    import torch, funcgrad as fg
    def f(w, b, x):
        for _ in range(3):
            x = torch.tanh(x @ w + torch.layer_norm(x, (70,), b, b) @ w)
        return x.sum()
    fg.value_and_grad_compiled(f, backend="c")(torch.ones(70, 70), torch.ones(70), torch.ones(70, 70))
    """
    at = {level: run(code, FUNCGRAD_LOG=level).stderr for level in "45"}
    assert "kernel0: rows" in at["4"]
    assert "is rewritten" not in at["4"]
    assert (
        re.search(r"joint is rewritten: normalised\n  [-+] \w+ = ", at["5"])
        and "  + sub_tensor = aten.sub.Tensor(" in at["5"]
    )
    assert re.search(r"joint is rewritten: sums\n  [-+] \w+ = ", at["5"])


def test_figures_are_in_the_repr():
    c = fg.value_and_grad_compiled(loss)
    assert re.fullmatch(r"<memory of loss: \S+ \w+ saved, peak \S+ \w+, measured \S+ \w+>", repr(c.memory(P, X)))
    assert re.fullmatch(r"<cost of loss: \S+ \w*flop, \S+ \w+, at least \S+ \w+>", repr(c.cost(P, X)))


def test_measuring_prints_nothing():
    """Kineto, behind ``torch.profiler``, says on stderr that it starts."""
    code = "import torch, funcgrad as fg\nfrom funcgrad import stages\nstages._PATIENCE = 600\n"
    code += "fg.grad_compiled(lambda x: (x @ x).sin().sum()).memory(torch.ones(9, 9))"
    done = run(code)
    assert done.stdout == done.stderr == ""


def test_a_wrong_environment_is_named():
    with pytest.raises(subprocess.CalledProcessError) as error:
        run("import funcgrad", FUNCGRAD_LOG="loud")
    assert "FUNCGRAD_LOG='loud'" in error.value.stderr


def test_full_collections_of_garbage_are_rare_while_it_compiles():
    before, seen = gc.get_threshold(), []
    with fg.watch_compile(lambda event: seen.append(gc.get_threshold())):
        fg.jit(lambda x: x * 2, backend="aten")(torch.ones(1))
    assert set(seen) == {(*before[:2], 10 * before[2])} and gc.get_threshold() == before


@pytest.mark.parametrize("sets", [None, (500, 7, 3)])
def test_who_asks_how_often_garbage_is_collected_is_told_what_was_set(sets):
    """And what is set stays."""
    before = gc.get_threshold()

    def f(x):
        if sets is not None:
            gc.set_threshold(*sets)
        return x * gc.get_threshold()[2]

    try:
        c = fg.jit(f, backend="aten")
        for _ in range(3):
            assert c(torch.ones(1)).item() == (sets or before)[2]
            assert gc.get_threshold() == (sets or before)
        assert c.cache_info().misses == (1 if sets is None else 2)
    finally:
        gc.set_threshold(*before)
