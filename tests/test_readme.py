"""The README's Python is run, block after block, as its reader would; what it says of itself holds."""

import re
import statistics
from pathlib import Path

import pytest
import torch

import funcgrad as fg

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(README[: found.start()].count("\n") + 2, found[1]) for found in FENCED.finditer(README)]


@pytest.fixture(scope="module")
def reader():
    """What is defined, and printed, when each block has run, by its first line."""
    state: dict = {}
    seen: dict = {}
    random = torch.get_rng_state()
    torch.manual_seed(0)
    for line, code in BLOCKS:
        said: list = []
        state["print"] = lambda *values, said=said: said.append(values)
        exec(compile("\n" * (line - 1) + code, str(ROOT / "README.md"), "exec"), state)
        seen[line] = (dict(state), said)
    torch.set_rng_state(random)
    return seen


def test_there_are_blocks_and_all_run(reader):
    assert len(BLOCKS) >= 4 and len(BLOCKS) == README.count("```python")
    assert list(reader) == [line for line, _ in BLOCKS]


def test_both_training_loops_learn(reader):
    loops = [said for (_, code), (_, said) in zip(BLOCKS, reader.values(), strict=True) if "optimizer.step()" in code]
    assert len(loops) == 2
    for said in loops:
        values = [value for _, value in said]
        assert len(values) == 4 and values[-1] < 0.8 * values[0]


def test_the_first_gradient_is_that_of_autograd(reader):
    state, _ = next(iter(reader.values()))
    leaves = {name: p.clone().requires_grad_() for name, p in state["params"].items()}
    x = torch.randn(5, 4)
    value, grads = fg.value_and_grad_compiled(state["loss"])(state["params"], x)
    expected = state["loss"](leaves, x)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(tuple(grads.values()), torch.autograd.grad(expected, tuple(leaves.values())))


def test_what_the_table_of_limits_names_is_there():
    named = set(re.findall(r"\b(\w+(?:Error|Warning))\b", README))
    assert len(named) > 8
    assert {name for name in named if not hasattr(fg, name)} == set()


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []


X = torch.arange(1.0, 4.0)


def seeded(x):
    torch.seed()
    return x + torch.rand(3)


REFUSED = [
    ("DataDependentControlFlowError", lambda: fg.jit(lambda x: x if x.sum() > 0 else -x, reads="error")(X)),
    ("DataDependentControlFlowError", lambda: fg.jit(lambda x: x * x.sum().item(), reads="error")(X)),
    ("DataDependentShapeError", lambda: fg.jit(lambda x: x.nonzero(), reads="error")(X)),
    ("DataDependentShapeError", lambda: fg.jit(lambda x: x[x > 1], reads="error")(X)),
    ("ArgumentError", lambda: fg.jit(lambda x: x)(X.numpy())),
    ("UnsupportedTensorError", lambda: fg.jit(lambda x: x.to_dense())(X.to_sparse())),
    ("UnsupportedTransformError", lambda: fg.jit(seeded)(X)),
    ("AliasContractError", lambda: fg.jit(lambda x, y: y.add_(x.sum().int()))(X, X.view(torch.int32))),
    ("MutationError", lambda: fg.jit(lambda x: x.mul_(2))(X.clone().requires_grad_())),
    ("PartitionError", lambda: fg.grad_compiled(lambda x: (x @ x).sin().sum(), memory_budget=8)(torch.randn(64, 64))),
]


@pytest.mark.parametrize(("name", "call"), REFUSED)
def test_what_the_table_of_limits_refuses(name, call):
    limits = README[README.index("## Limits") : README.index("## Speed")]
    assert f"`{name}`" in limits
    with pytest.raises(getattr(fg, name)):
        call()


def test_what_the_table_of_limits_guards():
    """Each change compiles, where the table says so; the third size and the third float do not."""
    c = fg.jit(lambda x, s, n: x * s + n)
    leaf = X.clone().requires_grad_()
    for args, misses in (
        ((X, 1.5, 2), 1), ((X, 2.5, 2), 2), ((X, 3.5, 2), 2), ((X, 3.5, 3), 3), ((X.double(), 3.5, 3), 4),
        ((leaf, 3.5, 3), 5),
    ):  # fmt: skip
        c(*args)
        assert c.cache_info().misses == misses, args
    c = fg.jit(torch.sin)
    for n, misses in ((3, 1), (4, 2), (5, 2), (60, 2), (1, 3)):
        c(torch.ones(n))
        assert c.cache_info().misses == misses, n
    with torch.no_grad():
        c(torch.ones(60))
    assert c.cache_info().misses == 4


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────

PEERS = ("eager", "torch.func", "torch.compile", "jax")


def ratios():
    """By threads and peer: workload → the peer's time ÷ funcgrad's, from the tables at the head of the results."""
    text = (ROOT / "benchmarks" / "results" / "cpu-2-cores.txt").read_text()
    tables = re.findall(r"^┡.*?^├", text, re.MULTILINE | re.DOTALL)[:2]
    found: dict = {(threads, peer): {} for threads in (2, 1) for peer in PEERS}
    for threads, table in zip((2, 1), tables, strict=True):
        for row in re.findall(r"^│(.*)│$", table, re.MULTILINE):
            name, *cells = (cell.strip() for cell in row.split("│"))
            for peer, cell in zip(PEERS, cells[-4:], strict=True):
                if cell.endswith("×"):
                    found[threads, peer][name] = float(cell[:-1].replace(",", ""))
    return found


def rows_of(text):
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {first: rest for first, *rest in rows}


def test_the_means_are_those_of_the_tables():
    mean = statistics.geometric_mean
    chosen = {
        "all": lambda name: True,
        "without the Kalman filter": lambda name: "kalman" not in name,
        "without it and pairwise forces": lambda name: "kalman" not in name and "pairwise" not in name,
        "`workloads.py` alone": lambda name: "held out" not in name,
        "`held_out.py` alone": lambda name: "held out" in name,
        "`held_out.py` without the Kalman filter": lambda name: "held out" in name and "kalman" not in name,
    }
    said = rows_of((ROOT / "benchmarks" / "README.md").read_text())
    for what, is_in in chosen.items():
        columns = [
            [r for name, r in ratios()[threads, peer].items() if is_in(name)] for peer in PEERS for threads in (2, 1)
        ]
        assert said[what] == [f"{mean(column):.2f}" for column in columns], what


def test_the_table_of_the_readme_is_honest():
    columns = [list(ratios()[threads, peer].values()) for peer in ("torch.compile", "jax") for threads in (2, 1)]
    said = rows_of(README)
    assert [float(cell) for cell in said["median"]] == [pytest.approx(statistics.median(c), abs=0.051) for c in columns]
    assert [float(cell) for cell in said["slowest"]] == list(map(min, columns))
    assert said["below 1, of"] == [f"{sum(r < 1 for r in c)} of {len(c)}" for c in columns]
    full = rows_of((ROOT / "benchmarks" / "README.md").read_text())
    assert said["geometric mean of all"] == full["all"][4:]
    assert said["geometric mean without the Kalman filter"] == full["without the Kalman filter"][4:]
