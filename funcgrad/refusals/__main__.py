"""Prints ``docs/refusals.md``: ``python -m funcgrad.refusals > docs/refusals.md``."""

from __future__ import annotations

import re

from . import REFUSALS


def page() -> str:
    """All refusals, by the class of their errors."""
    lines = ["# What a trace refuses, and what to do instead", ""]
    lines += ["Printed by `python -m funcgrad.refusals`; `errors.md` has a section for each class."]
    for kind in sorted({row.kind for row in REFUSALS.values()}, key=lambda kind: kind.__name__):
        lines += ["", f"## {kind.__name__}", ""]
        lines += [
            f"- {_open(row.what)}\n  **Instead:** {_open(row.fix)}" for row in REFUSALS.values() if row.kind is kind
        ]
    return "\n".join(lines) + "\n"


def _open(text: str) -> str:
    """A text with an ellipsis for what differs from case to case."""
    return re.sub(r"\{\d(!r)?\}", "…", text).replace("*", r"\*")


if __name__ == "__main__":
    print(page(), end="")
