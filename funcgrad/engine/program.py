"""A captured backward pass, and the programs it was compiled to: one for each order of its nodes and kind of its
inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from ..autograd_state import versions_of_saved
from ..capture.floats import NotSymbolicError
from ..errors import FuncgradError, UncompiledBackwardWarning, UnsupportedTensorError
from ..executable import Executable, compile_joint
from ..graph_primitives import all_of, guard_holds
from ..options import Options, log
from ..runtime.key import ambient
from ..show.parts import Doc
from ..show.shown import Several, Shown
from ..stages import Stages
from ..state.lines import user_line, warn
from ..subclasses import Wrapping, inner_tensors
from ..symbolic.sizes import SizeError
from ..torch_private.autograd import any_autocast
from ..torch_private.tensors import looks_like, looks_like_in
from .calls import Look
from .inlined import Inlinable, floats_of, with_calls, written_by
from .looks import Looks
from .lowering import Lowered, lower
from .page import names_of_callers, page
from .placement import Order, Reached, Walk, is_seen, placed
from .record import Recorder
from .replay import Replay
from .run import Run, Symbolic, has_wrapped, memory_ids
from .statements import Kind, Statement
from .tokens import Ref

_NAMED = 4
"""Differences of two runs that are named."""

_AT_MOST = 64
"""Orders of a graph, and programs of an order, that are kept: the first that was made goes first."""


@frozen(eq=False)
class Made:
    """A program for runs like one. ``fits`` says of the tensors, the sizes that are not symbols, and the rest,
    whether a run is."""

    executable: Executable
    lowered: Lowered
    symbolic: Symbolic
    looks: Looks
    seconds: float
    fits: Callable[[Run], bool]
    wrappings: Mapping[int, Wrapping]
    """How the inputs that are wrapper subclasses are made."""

    @property
    def title(self) -> str:
        """What it is for, in a line."""
        free = sum(map(len, self.symbolic.dims.values()))
        return f"inputs like {', '.join(self.looks.inputs)}" + (f"; {free} of their sizes are symbols" if free else "")

    def __call__(self, run: Run) -> list[Any]:
        inputs, lowered = run.inputs, self.lowered
        hooks = [*run.hooks, *[inputs[i] for i in lowered.objects]] if lowered.objects else run.hooks
        hooks = [*hooks, versions_of_saved([inputs[i] for i in lowered.watched])] if lowered.watched else hooks
        taken = [inputs[i] for i in lowered.takes]
        values = [hooks, run.packed, *([t for v in taken for t in inner_tensors(v)] if self.wrappings else taken)]
        if self.symbolic.alone:
            values += [torch.empty(0, run.sizes[k]) for k in self.symbolic.alone]
        if lowered.numbers:
            values += [run.number(place) for place in lowered.numbers.values()]
        inputs.clear()
        taken.clear()
        found = self.executable.runnables[0](values)
        results = [None if i is None else found[i] for i in lowered.outputs]
        for i, wrapping in lowered.wrapped:
            results[i] = wrapping.build(iter(found[lowered.outputs[i] :]))
        return results


@define(eq=False)
class Variant:
    """The statements in one order."""

    statements: list[Statement]
    replay: Replay
    walk: Walk | None
    programs: dict[Options, list[Made]] = field(factory=dict)
    refused: str | None = None
    inlines: bool = True
    """Whether regions are part of its graphs."""
    sparse: frozenset[Ref] = frozenset()
    """Which gradients are sparse, as far as is known."""
    learnt: dict[Any, Mapping[int, tuple[Look | None, ...]]] = field(factory=dict)
    """How what the caller's Python returned looked, by the kind of run."""

    @property
    def made(self) -> tuple[Made, ...]:
        """Its programs, in the order they were made."""
        return tuple(made for found in self.programs.values() for made in reversed(found))


class Captured(Shown):
    """One graph of the autograd engine: it keeps this, and hands it over whenever a graph of the same shape runs
    backward.

    ``statements``: what the engine does, in the order it told; ``programs``: what they were compiled to. ``str()``, and
    in a notebook the object itself, show both: which hook is where, the graph, kernels, and what is kept for it.
    """

    def __init__(self, number: int, recorded: Recorder) -> None:
        statements = recorded.statements
        self.number = number
        self.statements = list(statements)
        self.outputs = recorded.outputs
        self.names = recorded.names
        self.reasons, self.seconds = recorded.reasons, recorded.seconds
        self.is_seen = is_seen(statements)
        self.learns = any(s.may_be_none for s in statements)
        """Whether the caller's Python may return what the engine does not say: the first run of a kind is by
        statements, and tells."""
        self.calls_python = any(s.kind is Kind.CALL and not isinstance(s.run, Inlinable) for s in statements)
        self.has_unpacked = any(s.kind is Kind.CALL and s.likes and not any(s.likes) for s in statements)
        self.stored = [s.args[0].at for s in statements if s.kind is Kind.STORE]
        """The inputs that are leaves to whose ``.grad`` it adds."""
        self.callers: dict[int, str] = {}
        """The caller's functions by the statements that call them: as they were called in the first run."""
        self.runs = 0
        self.saved: int | None = None
        self._written = [s.writes.at for s in statements if s.writes is not None]
        self._regions = [s for s in statements if isinstance(s.run, Inlinable)]
        self._variants: dict[Order | None, Variant] = {}
        self._now: Variant | None = None

    @property
    def name(self) -> str:
        return f"backward{self.number}"

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(self._variants.values())

    @property
    def programs(self) -> Several[Executable]:
        """What it was compiled to, in the order that was done."""
        return Several(made.executable for variant in self.variants for made in variant.made)

    def headline(self) -> str:
        calls = sum(s.kind is Kind.CALL and not isinstance(s.run, Inlinable) for s in self.statements)
        statements = f"{len(self.statements)} statements, {calls} of them calls of Python"
        return f"{self.name}: {statements}, {len(self.programs)} programs"

    def doc(self) -> Doc:
        return page(self)

    # ── order ────────────────────────────────────────────────────────────────────────────────────────────────────

    def variant(self, roots: Sequence[Any] | None, find: Callable[[], Reached | None]) -> Variant:
        """The statements in the order in which eager PyTorch runs them; as the engine tells them where it is not
        known from where the pass starts. What nobody can see keeps the order of the first run."""
        now = self._now
        if now is not None and (not self.is_seen or (roots is not None and now.walk is not None and now.walk(roots))):
            return now
        found = find() if roots is not None else None
        order = None if found is None else found.order
        if order not in self._variants:
            if len(self._variants) == _AT_MOST:
                del self._variants[next(iter(self._variants))]
            statements = with_calls(self.statements if order is None else placed(self.statements, order))
            self.learns = self.learns or any(s.may_be_none for s in statements)
            walk = Walk(found, roots) if found is not None and roots is not None else None
            self._variants[order] = Variant(statements, Replay(statements, self.outputs), walk)
        self._now = self._variants[order]
        return self._now

    # ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, variant: Variant, run: Run, options: Options, note: Callable[[str, str], None]) -> list[Any]:
        """Run it; ``note(what, why)`` is told of what is not a run of a program that is there."""
        self.runs += 1
        if self.runs == 1:
            self.callers = names_of_callers(self.statements, run)
        if torch.is_grad_enabled():  # create_graph
            note("replayed", "the backward pass is itself differentiated (create_graph=True)")
            return variant.replay(run)
        if variant.refused is not None:
            note("replayed", variant.refused)
            return variant.replay(run)
        if self._regions and any_autocast():
            note("replayed", "autocast is on, which a compiled function's backward half does not see")
            return variant.replay(run)
        programs = variant.programs.setdefault(options, [])
        for made in programs:
            if made.fits(run):
                break
        else:
            if self._learns(run) and self._kind(run) not in variant.learnt:
                note("replayed", "what the caller's Python returns is learnt in a first run")
                return self._learnt(variant, run)
            found = self._compile(variant, run, options, note)
            if isinstance(found, Exception):
                results = self._learnt(variant, run)
                self._refuse(variant, found, note)
                return results
            made = found
            programs.insert(0, made)
            del programs[_AT_MOST:]
        return made(run)

    def _learns(self, run: Run) -> bool:
        return self.learns or (self.calls_python and has_wrapped(run))

    def _kind(self, run: Run) -> Any:
        """Of runs alike in this, one tells what the caller's Python returns. Sizes matter to what is unpacked and to
        subclasses."""
        if not self.has_unpacked and not has_wrapped(run):
            return None
        return tuple(run.sizes), tuple((type(v), tuple(v.shape)) for v in run.inputs)

    def _learnt(self, variant: Variant, run: Run) -> list[Any]:
        """Run the statements, and keep how what the caller's Python returned looked."""
        kind = self._kind(run)
        found = variant.replay(run)
        variant.learnt[kind] = variant.replay.looks
        if len(variant.learnt) > _AT_MOST:
            del variant.learnt[next(iter(variant.learnt))]
        return found

    def _compile(
        self, variant: Variant, run: Run, options: Options, note: Callable[[str, str], None]
    ) -> Made | Exception:
        """A program for a run, or why there is none."""
        programs = variant.programs[options]
        attempts = [Symbolic(inlines=variant.inlines)]
        is_fixed = options.dynamic is False or options.memory_budget is not None
        if not (is_fixed or self.has_unpacked or has_wrapped(run)):
            symbolic = _symbolic(programs[0] if programs else None, run, bool(options.dynamic))
            attempts = [*([evolve(symbolic, inlines=variant.inlines)] if symbolic.varies else []), *attempts]
        if variant.inlines and any(floats_of(run.read(s.args[1])) for s in self._regions):
            attempts.append(Symbolic(numbers=False))
        unsymbolic = ""
        stages = Stages(self.name)
        with stages.running():
            for attempt in attempts:
                is_last = attempt is attempts[-1]
                try:
                    with stages("capture"):
                        lowered = self._lowered(variant, run, attempt)
                except (FuncgradError, NotSymbolicError, RuntimeError, TypeError) as error:
                    if is_last:
                        return error
                    unsymbolic = f"; {_what(attempt)} cannot be symbols: {error}"
                    continue
                try:
                    executable = compile_joint(lowered.joint, options, stages, user_line())
                except SizeError as error:
                    if is_last:
                        raise
                    unsymbolic = f"; {_what(attempt)} cannot be symbols: {error}"
                    continue
                looks = Looks.of(run, self.stored)
                self.saved = looks.saved if self.saved is None else self.saved
                note("compiled", _why(programs[0].looks if programs else None, looks) + unsymbolic)
                return self._made(lowered, executable, attempt, run, looks, sum(stages.seconds.values()))
        raise AssertionError("the last attempt neither succeeds nor fails")

    def _lowered(self, variant: Variant, run: Run, symbolic: Symbolic) -> Lowered:
        looks = variant.learnt[self._kind(run)] if self._learns(run) else {}
        return lower(variant.statements, self.outputs, self.names, run, symbolic, looks, variant.sparse, self.name)

    def _refuse(self, variant: Variant, error: Exception, note: Callable[[str, str], None]) -> None:
        """What a run, which has been one of the statements, has told of why there is no program."""
        what = getattr(error, "what", str(error)).splitlines()[0]
        if variant.inlines and self._regions:
            variant.inlines, self.learns = False, True
            note(
                "called",
                f"compiled functions, as their backward halves could not be traced: {type(error).__name__}: {what}",
            )
            note("replayed", "what they return is learnt in a first run")
            return
        if isinstance(error, UnsupportedTensorError) and variant.replay.sparse - variant.sparse:
            variant.sparse = variant.replay.sparse
            note("replayed", "which of its gradients are sparse is learnt in a first run")
            return
        variant.refused = f"it could not be traced: {type(error).__name__}: {what}"
        note("replayed", variant.refused)
        log(1, f"{self.name}: {variant.refused}")
        warn(
            f"a backward pass is run statement by statement, as {variant.refused} ({user_line()})",
            UncompiledBackwardWarning,
        )

    def _made(
        self, lowered: Lowered, executable: Executable, symbolic: Symbolic, run: Run, seen: Looks, seconds: float
    ) -> Made:
        tensors = [run.inputs[i] for i in lowered.takes]
        free = [tuple(symbolic.dims.get(i, ())) for i in lowered.takes]
        looks, takes = looks_like_in(tensors, free), lowered.takes
        wrappings = {i: w for i, v in zip(takes, tensors, strict=True) if (w := Wrapping.of(v)) is not None}
        inner_looks = looks_like([t for i in wrappings for t in inner_tensors(run.inputs[i])])
        state, scalars, sizes = ambient(), tuple(run.scalars), tuple(run.sizes)
        fixed = [(k, n) for k, n in enumerate(sizes) if k not in symbolic.sizes and k not in symbolic.alone]
        equal = [
            (("inputs", i, d), first)
            for i, dims in symbolic.dims.items()
            for d, first in dims.items()
            if (i, d) != first
        ]
        equal += [(("sizes", k, 0), first) for k, first in symbolic.sizes.items()]
        missing = [run.inputs[i].grad is None for i in self.stored]
        memory = self._memory(run, takes)
        known = executable.joint.sizes
        conditions = all_of(executable.joint.conditions)
        fixed_numbers = None if symbolic.numbers else self._numbers(run)
        names = _symbols(known)
        if known is not None:
            known.close()

        def fits(other: Run) -> bool:
            inputs = other.inputs
            if not looks(*[inputs[i] for i in takes]) or ambient() != state or tuple(other.scalars) != scalars:
                return False
            if wrappings:
                if not all(w.fits(Wrapping.of(inputs[i])) for i, w in wrappings.items()):
                    return False
                if not inner_looks(*[t for i in wrappings for t in inner_tensors(inputs[i])]):
                    return False
            found: dict[str, Any] = {}
            if symbolic.varies:
                now = other.sizes
                if any(now[k] != n for k, n in fixed) or any(
                    _size(other, a) != inputs[i].shape[d] for a, (i, d) in equal
                ):
                    return False
                found = {symbol: _size(other, place) for symbol, place in names.items()}
                if any(n < 2 for n in found.values()):
                    return False
            elif tuple(other.sizes) != sizes:
                return False
            if fixed_numbers is not None and self._numbers(other) != fixed_numbers:
                return False
            found |= {symbol: other.number(place) for symbol, place in lowered.numbers.items()}
            if not guard_holds(conditions, **found):
                return False
            if [inputs[i].grad is None for i in self.stored] != missing:
                return False
            return not memory or self._memory(other, takes) == memory

        return Made(executable, lowered, symbolic, seen, seconds, fits, wrappings)

    def _memory(self, run: Run, takes: Sequence[int]) -> list[list[int]]:
        """For each tensor that a hook or a region may write to, the inputs in the same memory."""
        written = [run.inputs[i] for i in self._written]
        for s in self._regions:
            written += written_by(run.read(s.args[1]), s.args[2], run.read)
        lies = {i: memory_ids(run.inputs[i]) for i in takes} if written else {}
        return [
            [i for i, own in lies.items() if not memory.isdisjoint(own)]
            for memory in map(set, map(memory_ids, written))
        ]

    def _numbers(self, run: Run) -> list[str]:
        """The floats that regions have saved: nan is nan, and 0.0 is not -0.0."""
        return [repr(floats_of(run.read(s.args[1]))) for s in self._regions]


def _why(last: Looks | None, now: Looks) -> str:
    """What a run is that no program is for, beside the run that the last one was made for."""
    if last is None:
        return "a first run"
    found = list(last.differences(now))
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        "; ".join(found[:_NAMED]) + more
        or "what is written to shares other memory, or a number that was saved is another one"
    )


def _size(run: Run, place: tuple[str, int, int]) -> int:
    kind, i, d = place
    return int(run.sizes[i] if kind == "sizes" else run.inputs[i].shape[d])


def _symbols(known: Any) -> dict[str, tuple[str, int, int]]:
    """Where the size that each symbol stands for is found in a run: ``inputs[3].shape[0]``, or
    ``sizes[3].shape[1]``."""
    found: dict[str, tuple[str, int, int]] = {}
    for symbol, origin in (known.origins if known is not None else {}).items():
        path, _, dim = origin.partition(".shape")
        kind, _, i = path.partition("[")
        found[symbol] = (kind, int(i[:-1]), int(dim[1:-1]))
    return found


def _what(symbolic: Symbolic) -> str:
    return "sizes" if symbolic.varies else "numbers"


def _symbolic(last: Made | None, run: Run, every: bool) -> Symbolic:
    """The sizes that were others in the program made last, or were symbols there; ``every``: all of them. Those that
    are equal now, and were equal then, are one symbol. A size of 0 or 1 is none."""
    if last is None and not every:
        return Symbolic()
    shapes = tuple(tuple(v.shape) for v in run.inputs)
    before = shapes if last is None else last.looks.shapes
    sizes = tuple(run.sizes)
    then = sizes if last is None else last.looks.sizes
    first: dict[tuple[int, int], tuple[int, int]] = {}
    dims: dict[int, dict[int, tuple[int, int]]] = {}
    for i, (old, new) in enumerate(zip(before, shapes, strict=True)):
        for d, (a, b) in enumerate(zip(old, new, strict=False) if len(old) == len(new) else ()):
            was = last is not None and d in last.symbolic.dims.get(i, {})
            if (a != b or was or every) and min(a, b) > 1:
                dims.setdefault(i, {})[d] = first.setdefault((a, b), (i, d))
    known: dict[int, tuple[int, int]] = {}
    alone: list[int] = []
    for k, (a, b) in enumerate(zip(then, sizes, strict=True)):
        was = last is not None and (k in last.symbolic.sizes or k in last.symbolic.alone)
        if (a != b or was) and min(a, b) > 1:
            if (a, b) in first:
                known[k] = first[a, b]
            else:
                alone.append(k)
        elif every and (a, b) in first:
            known[k] = first[a, b]
    return Symbolic(dims, known, tuple(alone))
