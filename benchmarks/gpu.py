"""The workloads on a CUDA device: ``python -m benchmarks.gpu [--only NAME] [--no-compile]``. Says so where there is no
such device.

funcgrad runs Triton kernels there. Results are compared with torch.func's on the same device; matrices are multiplied
in full precision.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console

import funcgrad as fg

from .contestants import Call
from .steady import Result, available, checked, failures, table
from .workload import Workload
from .workloads import WORKLOADS

_REASON = 320  # characters
_ROUNDS = 20
_TURN = 0.02
"""Seconds of calls that are queued before they are waited for."""


def run(workload: Workload, contestants: Sequence[str], device: torch.device) -> Result:
    """Check and time one workload. A contestant that raises or disagrees is in ``fails``, with the reason."""
    inputs = fg.tree_map(lambda t: t.to(device), workload.inputs(False))
    calls, differences, fails = checked(workload, contestants, inputs, after=lambda: torch.cuda.synchronize(device))
    reasons = {name: why[:_REASON] for name, why in fails.items()}
    return {
        "name": workload.name,
        "threads": 0,
        "seconds": medians(calls, device),
        "difference": differences,
        "fails": reasons,
    }


def medians(calls: Mapping[str, Call], device: torch.device) -> dict[str, float]:
    """Median seconds a call, in turns: each queues calls for about ``_TURN`` seconds, and waits for the last one."""
    counts = {name: max(1, round(_TURN / max(_timed(call, 3, device), 1e-6))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            times[name].append(_timed(call, counts[name], device))
    return {name: statistics.median(t) for name, t in times.items()}


def _timed(call: Callable[[], Any], calls: int, device: torch.device) -> float:
    call()  # what ran before has left its own data in the caches
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Measure the workloads named, or all, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="workloads with this in their name, may be repeated"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"there is no CUDA device that torch {torch.__version__} can use: nothing was measured")
    device, console = torch.device("cuda", torch.cuda.current_device()), Console(width=150)
    console.print(f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}")
    results: list[Result] = []
    for workload in WORKLOADS:
        if any(part in workload.name for part in arguments.only or [""]):
            results.append(run(workload, available(True, arguments.no_compile), device))
            times = ", ".join(f"{name} {seconds * 1e6:,.0f}" for name, seconds in results[-1]["seconds"].items())
            console.print(f"{workload.name}, µs: {times}", style="dim", highlight=False)
    if results:
        shown = table(results)
        shown.title = f"{torch.cuda.get_device_name(device)}, µs a call (median); n× is peer ÷ funcgrad"
        console.print(shown, *failures(results), sep="\n")


if __name__ == "__main__":
    main()
