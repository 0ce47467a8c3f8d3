"""What a captured backward pass looks like: its statements in the order they run, which hook is where, what it was
compiled to."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..runtime.execute import Differentiable
from ..show.parts import Doc, Table
from ..show.units import in_bytes, in_seconds
from .inlined import Inlinable
from .run import Run
from .statements import Kind, Statement, short_name
from .tokens import refs_in

_DOES = {Kind.PURE: "", Kind.SUM: "", Kind.STORE: "adds to .grad", Kind.CALL: "calls Python"}


def names_of_callers(statements: Sequence[Statement], run: Run) -> dict[int, str]:
    """By its statement, what each of the caller's functions is called, and the line on which it is defined."""
    called = ((s.number, r) for s in statements if s.kind is Kind.CALL for r in refs_in(s.args) if r.of == "hooks")
    return {number: _name(run.read(ref)) for number, ref in called}


def _name(function: Any) -> str:
    program = getattr(function, "program", None)
    if isinstance(program, Differentiable):
        where = program.why_apart or f"is part of the graph, as aot{program.number}"
        return f"the backward half of {program.name}, which {where}"
    function = getattr(function, "_forward_cls", function)  # the context of an autograd.Function
    function = getattr(function, "backward", function) if isinstance(function, type) else function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    short = name.rpartition("<locals>.")[2]
    return (
        f"{short} ({Path(code.co_filename).name}:{code.co_firstlineno})" if isinstance(code, types.CodeType) else short
    )


def statement_rows(
    statements: Sequence[Statement], nodes: Mapping[int, str], callers: Mapping[int, str]
) -> Iterator[tuple[str, ...]]:
    """Node by node: its name where it begins, then what is done, and what that does besides making a value."""
    last = None
    for s in statements:
        node = nodes.get(s.node, "") if s.node != last else ""
        last = s.node
        parts = ("" if isinstance(s.run, Inlinable) else _DOES[s.kind], callers.get(s.number, ""))
        does = ": ".join(filter(None, parts))
        yield short_name(node), str(s), does


def page(captured: Any) -> Doc:
    """The page of a ``Captured``."""
    parts: list[Any] = [Table(("", ""), tuple(_summary(captured)))]
    for i, variant in enumerate(captured.variants):
        rows = tuple(statement_rows(variant.statements, captured.names, captured.callers))
        title = "statements, in the order they run"
        if len(captured.variants) > 1:
            title += f": of {len(captured.variants)} orders, number {i}"
        parts.append(Doc(title, (Table(("node", "statement", "besides"), rows, "statements"),)))
        for made in variant.made:
            stages = *made.executable.graphs, *made.executable.kernels, *made.executable.schedules
            parts.append(Doc(f"program for {made.title}", tuple(stage.doc() for stage in stages)))
    return Doc(captured.headline(), tuple(parts))


def _summary(captured: Any) -> Iterator[tuple[str, str]]:
    times = [f"captured in {in_seconds(captured.seconds)}"]
    times += [f"compiled in {in_seconds(made.seconds)}" for variant in captured.variants for made in variant.made]
    yield "runs", f"{captured.runs}; {', '.join(times)}"
    yield "adds to", f"the .grad of {len(captured.stored)} leaves"
    yield "hooks and functions", ", ".join(dict.fromkeys(captured.callers.values())) or "none"
    if captured.saved is not None:
        yield "kept by forward", f"{in_bytes(captured.saved)}, the leaves included, in the first run"
    if captured.reasons:
        yield "captured because", "; ".join(captured.reasons)
    refused = list(dict.fromkeys(v.refused for v in captured.variants if v.refused is not None))
    if refused:
        yield "runs statement by statement", "; ".join(refused)
