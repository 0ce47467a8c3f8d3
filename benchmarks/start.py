"""The first call in a fresh process, with empty cache folders (cold) and with those an earlier process filled
(warm): by stage, by workload beside torch.compile and jax.jit, and by the length of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .processes import lines

LIMIT = 120.0
"""Seconds a first call may take."""

CONTESTANTS = ("funcgrad", "torch.compile", "jax")

Result = dict[str, Any]
"""``name``; by contestant: ``cold``, ``warm`` (seconds), ``fails`` (why)."""

_CODE = """
import sys, time, json
sys.path.insert(0, "examples")
start = time.perf_counter(); import torch; torch_seconds = time.perf_counter() - start
start = time.perf_counter(); import funcgrad as fg; import_seconds = time.perf_counter() - start
import char_transformer as demo
params = demo.make_params(); tokens = torch.zeros(demo.BATCH, demo.CONTEXT, dtype=torch.int64)
c = fg.value_and_grad_compiled(demo.loss)
start = time.perf_counter(); program = c.program(params, tokens, tokens); total = time.perf_counter() - start
print(json.dumps({"import torch": torch_seconds, "import funcgrad": import_seconds, "compile": total, **program.seconds}))
"""


def table() -> Table:
    """One row per stage, seconds cold and warm (medians of three processes each)."""
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_run(folder))
            warm.append(_run(folder))
    rows = Table(title="First call of the demo's gradient in a fresh process, ms")
    for column in ("", "cold", "warm"):
        rows.add_column(column, justify="right")
    for stage in cold[0]:
        rows.add_row(stage, *(f"{sorted(run[stage] for run in runs)[1] * 1e3:.1f}" for runs in (cold, warm)))
    return rows


def _run(folder: str) -> dict[str, float]:
    env = {**os.environ, "FUNCGRAD_CACHE_DIR": f"{folder}/cache"}
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, env=env, check=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def measure(contestants: Iterable[str], names: Iterable[str], console: Console) -> list[Result]:
    """First calls of the workloads named, each in a fresh process: with empty caches, then with those that left."""
    results = []
    wanted = [name for name in contestants if name in CONTESTANTS]
    for name in names:
        result: Result = {"name": name, "cold": {}, "warm": {}, "fails": {}}
        for contestant in wanted:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    for state in ("cold", "warm"):
                        result[state][contestant] = _first_call(contestant, name, folder)
                except (TimeoutError, ChildProcessError) as error:
                    result["fails"][contestant] = str(error)
        console.print(f"{name}, first call, s: {result['cold']}, warm {result['warm']}", style="dim", highlight=False)
        results.append(result)
    return results


def _first_call(contestant: str, name: str, folder: str) -> float:
    env = {
        "FUNCGRAD_CACHE_DIR": f"{folder}/funcgrad",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    *_, last = lines("benchmarks.first_call", (contestant, name), LIMIT, env=env)
    seconds: float = json.loads(last)
    return seconds


def first_calls(results: Sequence[Result]) -> Table:
    """One row per workload: seconds until the first result, cold and warm, by each contestant."""
    rows = Table(title="First call in a fresh process beyond imports, s")
    rows.add_column("")
    columns = [(contestant, state) for contestant in CONTESTANTS for state in ("cold", "warm")]
    for contestant, state in columns:
        rows.add_column(f"{contestant} {state}", justify="right")
    for result in results:
        cells = [
            f"{result[state][c]:.2f}"
            if c in result[state]
            else f"> {LIMIT:.0f}"
            if "longer" in result["fails"].get(c, "")
            else "—"
            for c, state in columns
        ]
        rows.add_row(result["name"], *cells)
    return rows


def growth() -> Table:
    """One row per length of an unrolled integrator: how many nodes its graph has, and seconds by stage; linear is
    the aim."""
    rows = Table(title="Compiling a Runge-Kutta integrator in a fresh process without caches, s by stage")
    for steps in (5, 10, 20, 40, 50):
        with tempfile.TemporaryDirectory() as folder:
            *_, last = lines(
                "benchmarks.first_call", ("stages", str(steps)), LIMIT, env={"FUNCGRAD_CACHE_DIR": f"{folder}/funcgrad"}
            )
        nodes, seconds = json.loads(last)
        total = sum(seconds.values())
        if not rows.columns:
            for column in ("steps", "nodes", *seconds, "all", "ms a node"):
                rows.add_column(column, justify="right")
        stages = (f"{s:.2f}" for s in seconds.values())
        rows.add_row(str(steps), f"{nodes:,}", *stages, f"{total:.2f}", f"{total * 1e3 / nodes:.2f}")
    return rows
