"""Steady state: every workload by every contestant, calls interleaved in one process, results checked; a process per thread count.

``python -m benchmarks.steady THREADS CONTESTANTS WORKLOAD...`` is that process: it prints one line of JSON per workload.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .contestants import NAMES, contestant, difference
from .held_out import HELD_OUT
from .measure import budgeted_medians
from .workload import Workload, jax
from .workloads import WORKLOADS

ALL = (*WORKLOADS, *HELD_OUT)

TOLERANCE = 1e-4
"""Of a result against torch.func, relative to the largest element of each tensor."""

PEERS = NAMES[1:]
Result = dict[str, Any]
"""``name``, ``threads``; by contestant: ``seconds``, ``difference`` from torch.func, ``fails`` (why)."""


def find(name: str) -> Workload:
    """The workload of this name."""
    return next(w for w in ALL if w.name == name)


def measure(threads: int, contestants: Sequence[str], names: Sequence[str], console: Console) -> list[Result]:
    """Measure the workloads named on so many threads, and as many cores, in a process of their own."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "XLA_FLAGS": flags.strip()}
    command = [sys.executable, "-m", "benchmarks.steady", str(threads), ",".join(contestants), *names]
    results = []
    with cores(threads), subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            results.append(json.loads(line))
            times = ", ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in results[-1]["seconds"].items())
            console.print(f"{results[-1]['name']}, {threads} threads, µs: {times}", style="dim", highlight=False)
    done = [result["name"] for result in results]
    for name in names:
        if name not in done:
            reason = f"the process ended with {process.returncode}, here or before"
            results.append({"name": name, "threads": threads, "seconds": {}, "difference": {}, "fails": dict.fromkeys(contestants, reason)})
    return results


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Run this thread, and processes started from it, on so many cores, where the system can tell."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(workload: Workload, contestants: Sequence[str]) -> Result:
    """Check and time one workload in this process. A contestant that raises or disagrees is in ``fails``, with the reason."""
    torch.compiler.reset()
    inputs = workload.inputs(False)
    expected = contestant("eager" if workload.transform == "plain" else "torch.func", workload, inputs)()
    calls, differences, fails = {}, {}, {}
    for name in contestants:
        if name == "torch.func" and workload.transform == "plain":
            continue  # that is eager
        try:
            call = contestant(name, workload, inputs)
            differences[name] = difference(call(), expected)
        except Exception as error:
            fails[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            continue
        calls[name] = call
        if differences[name] > TOLERANCE:
            fails[name] = f"differs from torch.func by {differences[name]:.1e} of the largest element"
    return {"name": workload.name, "seconds": budgeted_medians(calls), "difference": differences, "fails": fails}


def available(no_jax: bool = False, no_compile: bool = False) -> list[str]:
    """The contestants that are here and wanted."""
    left_out = {"jax": no_jax or jax is None, "torch.compile": no_compile}
    return [name for name in NAMES if not left_out.get(name)]


def table(results: Sequence[Result]) -> Table:
    """One row per workload: µs of a call by each contestant, and how often funcgrad's time goes into each peer's."""
    rows = Table(title=f"Steady state, µs a call (median), {results[0]['threads']} threads; n× is peer ÷ funcgrad")
    for column in ("", *NAMES, *(f"{peer} ÷" for peer in PEERS)):
        rows.add_column(column, justify="right" if column else "left")
    held_out = {w.name for w in HELD_OUT}
    for result in results:
        seconds = result["seconds"]
        cells = [f"{seconds[n] * 1e6:,.1f}" if n in seconds else "fails" if n in result["fails"] else "—" for n in NAMES]
        cells = [f"{c} wrong" if n in seconds and n in result["fails"] else c for n, c in zip(NAMES, cells, strict=True)]
        rows.add_row(
            result["name"] + " (held out)" * (result["name"] in held_out), *cells, *(_times(ratio(result, peer)) for peer in PEERS)
        )
    rows.add_section()
    for title, some in (("geometric mean", results), ("of those held out", [r for r in results if r["name"] in held_out])):
        if some:
            rows.add_row(title, *("" for _ in NAMES), *(_times(mean_ratio(some, peer)) for peer in PEERS))
    return rows


def failures(results: Sequence[Result]) -> list[str]:
    """One line for each contestant that raised or disagreed."""
    return [f"{r['name']}, {r['threads']} threads, {name}: {why}" for r in results for name, why in r["fails"].items()]


def ratio(result: Result, peer: str) -> float | None:
    """A peer's time over funcgrad's; None where either failed."""
    seconds, fails = result["seconds"], result["fails"]
    return None if any(n not in seconds or n in fails for n in (peer, "funcgrad")) else seconds[peer] / seconds["funcgrad"]


def mean_ratio(results: Sequence[Result], peer: str) -> float | None:
    """The geometric mean of the ratios there are."""
    logs = [math.log(r) for result in results if (r := ratio(result, peer)) is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _times(ratio: float | None) -> str:
    return "—" if ratio is None else f"{ratio:.2f}×"


def _main(threads: str, contestants: str, *names: str) -> None:
    torch.set_num_threads(int(threads))
    for name in names:
        print(json.dumps({"threads": int(threads), **run(find(name), contestants.split(","))}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
