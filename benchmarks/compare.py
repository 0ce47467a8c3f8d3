"""Two checkouts beside one another, in one run: ``python -m benchmarks.compare OTHER_CHECKOUT [--threads N] [--only
NAME] [--rounds N]``.

Each has a process of its own for each workload, which waits for its turn; turns alternate, so that drift of the machine
hits both alike. A row per workload: µs of a call by both (medians), this ÷ the other (the median of pairs of turns),
and the first calls with empty caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .contestants import contestant
from .measure import seconds_of
from .steady import ALL, find

HERE = Path(__file__).resolve().parents[1]
_TURN = 0.1
"""Seconds of calls in a turn."""


class Side:
    """A process that runs a workload with the package of a checkout; the workloads are those of this one."""

    def __init__(self, checkout: Path, workload: str, threads: int, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.symlink(checkout / "funcgrad", f"{folder}/funcgrad")
        variables = {
            "PYTHONPATH": f"{folder}:{HERE}",
            "FUNCGRAD_CACHE_DIR": f"{folder}/cache",
            "OMP_NUM_THREADS": str(threads),
        }
        command = [sys.executable, "-P", "-m", "benchmarks.compare", "--serve", workload]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        self._process = stack.enter_context(process)
        self.first: float = self._answer()
        self.turns: list[float] = []

    def turn(self) -> None:
        """Time calls for a moment."""
        assert self._process.stdin is not None
        self._process.stdin.write("turn\n")
        self._process.stdin.flush()
        self.turns.append(self._answer())

    def end(self) -> None:
        """Let the process go."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError("the process of a checkout has ended")
        return json.loads(line)


def serve(name: str) -> None:
    """The process of a side: prints the seconds of the first call, then those of a call for each line it is given."""
    workload = find(name)
    call = contestant("funcgrad", workload, workload.inputs(False))
    print(json.dumps(seconds_of(call, 1)), flush=True)
    call()
    calls = max(1, round(_TURN / seconds_of(call, 1)))
    for _ in sys.stdin:
        call()
        print(json.dumps(seconds_of(call, calls)), flush=True)


def compare(other: Path, name: str, threads: int, rounds: int) -> tuple[Side, Side]:
    """Both sides of a workload, measured."""
    with ExitStack() as stack:
        sides = Side(HERE, name, threads, stack), Side(other, name, threads, stack)
        for i in range(rounds):
            for side in sides if i % 2 else reversed(sides):
                time.sleep(0.01)  # threads that wait by spinning take no time of the next
                side.turn()
        for side in sides:
            side.end()
    return sides


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    rows = Table(
        title=f"This checkout beside another one, µs a call (median), {asked.threads} threads; first calls in seconds"
    )
    for column in ("", "this", "other", "this ÷ other", "first call", "other's", "÷"):
        rows.add_column(column, justify="right" if column else "left")
    ratios, firsts = [], []
    console = Console(width=None if Console().is_terminal else 120)
    for workload in ALL:
        if not any(part in workload.name for part in asked.only or [""]):
            continue
        own, others = compare(asked.other.resolve(), workload.name, asked.threads, asked.rounds)
        ratios.append(statistics.median(a / b for a, b in zip(own.turns, others.turns, strict=True)))
        firsts.append(own.first / others.first)
        times = [f"{statistics.median(side.turns) * 1e6:,.1f}" for side in (own, others)]
        rows.add_row(
            workload.name, *times, f"{ratios[-1]:.3f}", f"{own.first:.2f}", f"{others.first:.2f}", f"{firsts[-1]:.2f}"
        )
        console.print(f"{workload.name}: {ratios[-1]:.3f}, first calls {firsts[-1]:.2f}", style="dim", highlight=False)
    rows.add_section()
    rows.add_row(
        "geometric mean",
        "",
        "",
        f"{statistics.geometric_mean(ratios):.3f}",
        "",
        "",
        f"{statistics.geometric_mean(firsts):.2f}",
    )
    console.print(rows)


if __name__ == "__main__":
    main()
