"""Which ATen operators become loops: writes ``docs/coverage.md`` (``python -m funcgrad.loops.coverage
docs/coverage.md``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..graphs import target_text
from ..torch_private.operators import aten_overloads
from .table import TABLE


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Coverage", "",
        "Made by `python -m funcgrad.loops.coverage docs/coverage.md`. An operator with a row in the op table becomes "
        "loops and is fused;",
        "any other, and a call for which its row says `NotImplemented`, is run by PyTorch. `program.kernels` names "
        "each such call and says",
        "why. Rows know float32, float64, bfloat16, float16, the signed integers, uint8 and bool; empty tensors are "
        "left to PyTorch.", "",
        f"## Operators with a row ({len(TABLE)} overloads)", "",
        "| rows | operators |", "|---|---|",
    ]  # fmt: skip
    by_kind: dict[str, list[Any]] = {}
    for op, rule in TABLE.items():
        by_kind.setdefault(_kind(rule), []).append(op)
    lines += [f"| {kind} | {_listed(ops)} |" for kind, ops in by_kind.items()]
    missing = [op for op in _core() if op not in TABLE]
    lines += ["", f"## Core ATen operators without one ({len(missing)} overloads)", "", _listed(missing), ""]
    return "\n".join(lines)


def _kind(rule: Callable[..., Any]) -> str:
    """What the rows of a module are, as it says itself."""
    written = rule.func if isinstance(rule, partial) else rule
    said, *_ = str(sys.modules[written.__module__].__doc__).splitlines()
    return said.removeprefix("Rows of the op table: ").rstrip(".")


def _listed(overloads: Iterable[Any]) -> str:
    return ", ".join(f"`{op}`" for op in sorted(target_text(op).removeprefix("aten.") for op in overloads))


def _core() -> list[Any]:
    return [op for op in aten_overloads() if torch.Tag.core in op.tags]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
