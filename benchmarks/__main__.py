"""Print the tables: ``python -m benchmarks [steady] [dispatch] [memory] [start] [transforms] [engine] [frontier]``.

``--help`` lists what can be left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from attrs import asdict
from rich.console import Console

from . import dispatch, engine, frontier, memory, start, steady, transforms
from .integrator import integrator

TABLES = ("dispatch", "memory", "start", "steady")
NAMED = (*TABLES, "transforms", "engine", "frontier")


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "tables", nargs="*", metavar="table", help=f"of {', '.join(NAMED)} (default: all but the last three)"
    )
    parser.add_argument(
        "--threads", type=int, action="append", metavar="N", help="steady, engine: may be repeated (default: 1 and 2)"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="steady, start, transforms, engine, frontier: workloads with this in their name, may be repeated",
    )
    parser.add_argument(
        "--beside",
        action="append",
        choices=("aot_eager", "inductor"),
        help="frontier: backends of torch.compile (both)",
    )
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile, which takes 10 to 40 s a workload at first"
    )
    parser.add_argument("--json", metavar="FILE", help="write what was measured of the workloads")
    parser.add_argument(
        "--plot", metavar="FILE", help="steady, frontier: draw the ratios (png or svg; needs matplotlib)"
    )
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in NAMED:
            parser.error(f"there is no table {name!r}; there are {', '.join(NAMED)}")
    return arguments


def main() -> None:
    """Measure and print the tables named, or all."""
    arguments = read_arguments()
    console = Console(width=None if Console().is_terminal else 150)
    console.print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    tables, contestants = arguments.tables or TABLES, steady.available(arguments.no_jax, arguments.no_compile)
    names = [w.name for w in (*steady.ALL, integrator(40)) if any(part in w.name for part in arguments.only or [""])]
    measured: dict[str, list[Any]] = {}
    for module in (dispatch, memory):
        if module.__name__.rpartition(".")[2] in tables:
            console.print(module.table())
    if "dispatch" in tables:
        console.print(dispatch.layers_table(), dispatch.guards_table(), sep="\n")
    if "memory" in tables:
        console.print(memory.workloads_table())
    if "start" in tables:
        console.print(start.table(), start.growth(), sep="\n")
        measured["start"] = start.measure(contestants, names, console)
        console.print(start.first_calls(measured["start"]), *steady.failures(measured["start"]), sep="\n")
    if "steady" in tables:
        measured["steady"] = []
        for threads in arguments.threads or (1, 2):
            results = steady.measure(threads, contestants, [n for n in names if n != integrator(40).name], console)
            console.print(steady.table(results), *steady.failures(results), sep="\n")
            measured["steady"] += results
    if "transforms" in tables:
        for threads in arguments.threads or (1, 2):
            console.print(transforms.table(transforms.available(contestants), arguments.only or [""], threads, console))
    if "engine" in tables:
        for threads in arguments.threads or (1, 2):
            torch.set_num_threads(threads)
            console.print(engine.table(arguments.only or [""], beside=not arguments.no_compile))
    if "frontier" in tables:
        spots = [
            s
            for c in arguments.beside or ("aot_eager", "inductor")
            for s in frontier.measure(c, arguments.only or [""], console)
        ]
        console.print(frontier.table(spots))
        measured["frontier"] = [asdict(s) for s in spots]
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"torch": torch.__version__, "cores": os.cpu_count(), **measured}, indent=1) + "\n"
        )
    if arguments.plot and (measured.get("steady") or measured.get("frontier")):
        plot = importlib.import_module(".plot", __package__)
        if measured.get("steady"):
            plot.save(measured["steady"], arguments.plot)
        else:
            plot.save_frontier(spots, arguments.plot)


if __name__ == "__main__":
    main()
