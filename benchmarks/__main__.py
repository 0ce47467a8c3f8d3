"""Print every table: ``python -m benchmarks [dispatch] [memory] [start]``."""

from __future__ import annotations

import platform
import sys

import torch
from rich.console import Console

from . import dispatch, memory, start

TABLES = {"dispatch": dispatch.table, "memory": memory.table, "start": start.table}


def main(names: list[str]) -> None:
    """Measure and print the tables named, or all."""
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    for name in names or TABLES:
        console.print(TABLES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
