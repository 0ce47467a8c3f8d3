"""Where backward passes are captured: ``with fg.compiled_autograd() as region: loss.backward()``.

The engine's hook is of the process, and so is the entry of backward passes that is replaced while a region is open.
What belongs to one backward pass (where it starts, what is queued to run at its end) is of its thread. While a captured
graph runs, nothing is captured: a backward pass in a hook runs as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from ..capture.trace import active_trace
from ..errors import FuncgradError, RecompileWarning, UncompiledBackwardWarning
from ..options import Options, log, make_options
from ..show.shown import Several
from ..state.lines import user_line, warn
from ..torch_private.engine import (
    callbacks_into,
    engine_hook,
    forget_engine_graphs,
    in_torchs_own_capture,
    instead_of_engine,
    n_dispatch_modes,
    node_of,
    set_engine_hook,
    without_engine_hook,
)
from ..torch_private.levels import is_mapped, transforms_or_duals
from .placement import Reached, reached
from .program import Captured
from .record import Recorder
from .run import Run

_MOST_EVENTS = 10_000
_TOO_MANY = 5
"""Captures of graphs of the same nodes that are warned of: which of the leaves have a gradient already makes a few."""


@frozen
class Event:
    """Something that a region did: ``what`` is "captured", "called" (a compiled function whose backward half is not
    part of the graph), "compiled", "ran", "replayed" or "left alone", ``graph`` the number of the captured graph,
    None where there is none."""

    number: int
    what: str
    graph: int | None
    why: str = ""

    def __str__(self) -> str:
        graph = "" if self.graph is None else f" backward{self.graph}"
        return f"{self.number}: {self.what}{graph}{': ' if self.why else ''}{self.why}"


@define(eq=False)
class _Pass:
    """A backward pass that Python has started, in its thread."""

    roots: Sequence[Any] | None
    targets: Sequence[Any]
    region: Region
    has_begun: bool = False
    """Whether the engine has begun to tell of it, or to run it: nodes have been given tokens for what was saved."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.now: _Pass | None = None


_here = _Here()
_open: list[Region] = []
_entry = contextlib.ExitStack()
"""What stands in the place of the engine's entry while a region is open."""
_lock = threading.Lock()
_graphs = itertools.count()
_alike: Counter[tuple[str, ...]] = Counter()
"""How many graphs of the same nodes were captured."""
_running = 0


@define(eq=False)
class Region:
    """Inside, backward passes are captured from the autograd engine, compiled, and run in eager PyTorch's order.

    ``captures``: the graphs that ran, in the order it met them; ``compiles``: how many programs it made; ``events``:
    what it did last, in order; ``explain()``: the same, to read.
    """

    options: Options
    events: deque[Event] = field(factory=lambda: deque(maxlen=_MOST_EVENTS))
    compiles: int = 0
    _met: dict[int, Captured] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=itertools.count)
    _before: _Before = field(init=False)

    @property
    def captures(self) -> Several[Captured]:
        return Several(self._met.values())

    def explain(self) -> str:
        """What the region did, and why; of a long one, what it did last."""
        gone = self.events[0].number if self.events else 0
        first = [f"{gone} events before are gone"] if gone else []
        return "\n".join([*first, *map(str, self.events)]) or "no backward pass has run"

    def note(self, what: str, captured: Captured | None, why: str = "") -> None:
        self.events.append(Event(next(self._numbers), what, None if captured is None else captured.number, why))
        self.compiles += what == "compiled"
        if captured is not None:
            self._met.setdefault(captured.number, captured)
        if what != "ran":
            log(2, self.events[-1])

    def __enter__(self) -> Region:
        if self in _open:
            raise FuncgradError(
                "this region is open already",
                fix="write fg.compiled_autograd() where it is entered: with fg.compiled_autograd() as region",
            )
        with _lock:
            before = set_engine_hook(_recorder)
            self._before = _Before(before, torch.autograd.is_multithreading_enabled(), threading.get_ident())
            torch.autograd.set_multithreading_enabled(False)
            if not _open:
                _entry.enter_context(instead_of_engine(_entered))
            _open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Regions may be left in any order, as those of several threads are: what a region found is found by the one
        opened after it."""
        with _lock:
            later = _open[_open.index(self) + 1 :]
            _open.remove(self)
            before = self._before
            if later:
                later[0]._before = evolve(later[0]._before, hook=before.hook)
            else:
                set_engine_hook(*before.hook)
            own = next((region for region in later if region._before.thread == before.thread), None)
            if own is not None:
                own._before = evolve(own._before, threads=before.threads)
            elif threading.get_ident() == before.thread:
                torch.autograd.set_multithreading_enabled(before.threads)
            if not _open:
                _entry.close()


@frozen
class _Before:
    """What a region found when it was opened: the engine's hook, and, of its thread, whether backward passes have
    several threads."""

    hook: tuple[Any, bool]
    threads: bool
    thread: int


def compiled_autograd(**options: Any) -> Region:
    """Inside ``with fg.compiled_autograd(**options) as region:`` backward passes are captured from the autograd engine,
    compiled like any other joint graph, and run in the order of eager PyTorch, hooks and custom functions included. The
    backward halves of functions that ``fg.jit`` has compiled are parts of that graph.

    A graph that was captured is known when a graph of the same shape runs backward again. What cannot be traced runs
    statement by statement, with an ``UncompiledBackwardWarning``; ``region.explain()`` says what happened. Takes the
    options of ``fg.jit``.
    """
    return Region(make_options(options))


def reset() -> None:
    """Forget all graphs that were captured; numbers start from 0 again.

    Raises ``FuncgradError`` where a region is open.
    """
    global _graphs
    if _open or _running:
        raise FuncgradError(
            "captured graphs are forgotten where no region is open", fix="leave fg.compiled_autograd() first"
        )
    forget_engine_graphs()
    _alike.clear()
    _graphs = itertools.count()


def _left_alone(roots: Sequence[Any]) -> str | None:
    """Why a backward pass runs as it is; None if it is captured."""
    if active_trace() is not None or n_dispatch_modes():
        return "it is part of a trace, or a dispatch mode looks on"
    if torch.is_anomaly_enabled():
        return "anomaly detection looks at each node"
    if transforms_or_duals() or any(isinstance(r, Tensor) and is_mapped(r) for r in roots):
        return "a transform of torch.func runs"
    return None


def _entered(original: Callable[..., Any], roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """The entry of a backward pass: ``(roots, gradients, retain_graph, create_graph, inputs, ...)``."""
    if _running or in_torchs_own_capture():
        with without_engine_hook():  # which a hook may have set anew, by a region of its own
            return original(roots, *args, **kwargs)
    region, before = _open[-1], _here.now
    why = _left_alone(roots)
    if why is not None or any(isinstance(g, Tensor) and is_mapped(g) for g in (args[0] if args and args[0] else ())):
        region.note("left alone", None, why or "the gradients are those of a vmap (is_grads_batched)")
        with without_engine_hook():
            return original(roots, *args, **kwargs)
    targets = args[3] if len(args) > 3 else kwargs.get("inputs", ())
    known = all(not isinstance(t, Tensor) or t.requires_grad for t in (*roots, *targets))  # else the engine raises
    _here.now = _Pass(
        [node_of(r) for r in roots] if known else None, [node_of(t) for t in targets] if known else (), region
    )
    try:
        return original(roots, *args, **kwargs)
    except RuntimeError as error:
        if _here.now.has_begun or _has_run(original, error):
            raise
        why = f"PyTorch's engine does not tell of it: {error}"
    finally:
        _here.now = before
    with without_engine_hook():  # nothing has run; where the error is the caller's own, it is raised again
        found = original(roots, *args, **kwargs)
    region.note("left alone", None, why)
    warn(f"a backward pass is not compiled, as {why} ({user_line()})", UncompiledBackwardWarning)
    return found


def _has_run(original: Callable[..., Any], error: Exception) -> bool:
    """Whether a backward pass that we have heard nothing of has begun to run: in here torch's own may be on, off, or
    know its graph."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return engine_hook() is not _recorder or frame.f_code is not original.__code__  # type: ignore[attr-defined]


def _recorder() -> Recorder:
    _begin()
    return Recorder(_recorded)


def _begin() -> None:
    if _here.now is not None:
        _here.now.has_begun = True


def _recorded(recorder: Recorder) -> tuple[Callable[..., Any], Any]:
    captured = Captured(next(_graphs), recorder)
    nodes = tuple(recorder.names.values())
    _alike[nodes] += 1
    if _alike[nodes] == _TOO_MANY:
        warn(
            f"backward passes of the same {len(nodes)} nodes were captured {_TOO_MANY} times ({user_line()}): a number "
            "that varies (an exponent, an eps, a bound) makes another graph of PyTorch's engine each time, and so do "
            "other hooks; make it a tensor, or leave this backward pass out of fg.compiled_autograd()",
            RecompileWarning,
        )
    if _open:
        _open[-1].note("captured", captured, "; ".join(recorder.reasons))
        for why in recorder.calls:
            _open[-1].note("called", captured, why)
    return _run, captured


def _run(captured: Captured, inputs: Any, sizes: Any, scalars: Any, hooks: Any, packed: Any) -> list[Any]:
    """What the engine calls in the place of running a graph that it has told of."""
    global _running
    here = _here.now
    _begin()
    # where none is open, torch's own has met it in the engine's cache
    region = _open[-1] if _open else compiled_autograd()
    region = region if here is None else here.region
    roots = here.roots if here is not None else None

    def find() -> Reached | None:
        return (
            reached(here.roots, here.targets, captured.names) if here is not None and here.roots is not None else None
        )

    variant = captured.variant(roots, find)
    here = roots = None  # nodes hold what was saved
    queue: list[Callable[[], None]] = []
    with without_engine_hook(), callbacks_into(queue.append):
        _running += 1
        try:
            found = captured(
                variant,
                Run(inputs, sizes, scalars, hooks, packed),
                region.options,
                lambda what, why: region.note(what, captured, why),
            )
            for callback in queue:  # one may queue others
                callback()
        finally:
            _running -= 1
    region.note("ran", captured)
    return found
