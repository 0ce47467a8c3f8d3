"""Steady state: every workload by every contestant, calls interleaved in one process, results checked; a process per
thread count.

``python -m benchmarks.steady THREADS JOBS`` is that process: it prints what it is about to try, and one line of JSON
per workload.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .contestants import NAMES, Call, contestant, difference
from .held_out import HELD_OUT
from .measure import budgeted_medians
from .processes import lines
from .workload import Tree, Workload, jax
from .workloads import WORKLOADS

ALL = (*WORKLOADS, *HELD_OUT)

TOLERANCE = 1e-4
"""Of a result against torch.func, relative to the largest element of each tensor."""

LIMIT = 180.0
"""Seconds a contestant has until its first result is there."""

_TRYING = "trying "

PEERS = NAMES[1:]
Result = dict[str, Any]
"""``name``, ``threads``; by contestant: ``seconds``, ``difference`` from torch.func, ``fails`` (why)."""


def find(name: str) -> Workload:
    """The workload of this name."""
    return next(w for w in ALL if w.name == name)


def measure(threads: int, contestants: Sequence[str], names: Sequence[str], console: Console) -> list[Result]:
    """Measure the workloads named on so many threads, and as many cores, in a process of their own.

    A contestant that is not ready within ``LIMIT`` seconds, or takes the process down, is left out and the rest is done
    again.
    """
    results: list[Result] = []
    without: dict[str, dict[str, str]] = {name: {} for name in names}
    trying = ""
    while left := [name for name in names if name not in {r["name"] for r in results}]:
        jobs = [(name, [c for c in contestants if c not in without[name]]) for name in left]
        try:
            for line in lines("benchmarks.steady", [str(threads), json.dumps(jobs)], LIMIT, threads):
                if line.startswith(_TRYING):
                    trying = line.removeprefix(_TRYING).strip()
                    continue
                result = json.loads(line)
                result["fails"].update(without[result["name"]])
                results.append(result)
                trying = ""
                times = ", ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in result["seconds"].items())
                console.print(f"{result['name']}, {threads} threads, µs: {times}", style="dim", highlight=False)
        except (TimeoutError, ChildProcessError) as error:
            stuck = [name for name in left if name not in {r["name"] for r in results}]
            if stuck and not trying:
                raise
            for name in stuck[:1]:
                without[name][trying] = str(error)
    return results


def run(workload: Workload, contestants: Sequence[str]) -> Result:
    """Check and time one workload in this process. A contestant that raises or disagrees is in ``fails``, with the
    reason."""
    calls, differences, fails = checked(
        workload, contestants, workload.inputs(False), lambda name: print(f"{_TRYING}{name}", flush=True)
    )
    reasons = {name: why.splitlines()[0] for name, why in fails.items()}
    return {"name": workload.name, "seconds": budgeted_medians(calls), "difference": differences, "fails": reasons}


def checked(
    workload: Workload,
    contestants: Sequence[str],
    inputs: tuple[Tree, ...],
    before: Callable[[str], object] = lambda name: None,
    after: Callable[[], object] = lambda: None,
) -> tuple[dict[str, Call], dict[str, float], dict[str, str]]:
    """The calls of the contestants that do not raise, called once; how far each is from torch.func; why one raises
    or disagrees. ``before`` and ``after``: around each of these first calls."""
    torch.compiler.reset()
    expected = contestant("eager" if workload.transform == "plain" else "torch.func", workload, inputs)()
    calls: dict[str, Call] = {}
    differences: dict[str, float] = {}
    fails: dict[str, str] = {}
    for name in contestants:
        if name == "torch.func" and workload.transform == "plain":
            continue  # that is eager
        before(name)
        try:
            call = contestant(name, workload, inputs)
            differences[name] = difference(call(), expected)
            after()
        except Exception as error:
            fails[name] = f"{type(error).__name__}: {str(error).strip()}"
            continue
        calls[name] = call
        if differences[name] > TOLERANCE:
            fails[name] = f"differs from torch.func by {differences[name]:.1e} of the largest element"
    return calls, differences, fails


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
        cells = [
            f"{seconds[n] * 1e6:,.1f}" if n in seconds else "fails" if n in result["fails"] else "—" for n in NAMES
        ]
        cells = [
            f"{c} wrong" if n in seconds and n in result["fails"] else c for n, c in zip(NAMES, cells, strict=True)
        ]
        rows.add_row(
            result["name"] + " (held out)" * (result["name"] in held_out),
            *cells,
            *(_times(ratio(result, peer)) for peer in PEERS),
        )
    rows.add_section()
    for title, some in (
        ("geometric mean", results),
        ("of those held out", [r for r in results if r["name"] in held_out]),
    ):
        if some:
            rows.add_row(title, *("" for _ in NAMES), *(_times(mean_ratio(some, peer)) for peer in PEERS))
    return rows


def failures(results: Sequence[Result]) -> list[str]:
    """One line for each contestant that raised or disagreed."""
    return [f"{r['name']}, {name}: {why}" for r in results for name, why in r["fails"].items()]


def ratio(result: Result, peer: str) -> float | None:
    """A peer's time over funcgrad's; None where either failed."""
    seconds, fails = result["seconds"], result["fails"]
    return (
        None if any(n not in seconds or n in fails for n in (peer, "funcgrad")) else seconds[peer] / seconds["funcgrad"]
    )


def mean_ratio(results: Sequence[Result], peer: str) -> float | None:
    """The geometric mean of the ratios there are."""
    logs = [math.log(r) for result in results if (r := ratio(result, peer)) is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _times(ratio: float | None) -> str:
    return "—" if ratio is None else f"{ratio:.2f}×"


def _main(threads: str, jobs: str) -> None:
    torch.set_num_threads(int(threads))
    for name, contestants in json.loads(jobs):
        print(json.dumps({"threads": int(threads), **run(find(name), contestants)}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
