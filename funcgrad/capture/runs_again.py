"""A pass of a compiled function runs once more while another function is traced: the forward pass of a pullback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..state.guards import Guard
from ..state.hooks import unheard
from ..state.state import holding
from ..torch_private.levels import innermost_transform, wrapped_at
from .trace import Trace, active_trace


@contextlib.contextmanager
def running_again(trace: Trace, guards: Sequence[Guard], happened: bool = False) -> Iterator[None]:
    """Around a pass that runs once more: these guards hold. ``happened``: what it writes to Python state happened when
    the function was called, as of the forward pass of a pullback, so that it is taken back: what comes next reads, and
    writes to, what is there now."""
    assert trace.watch is not None
    before, trace.numbers_put = trace.numbers_put, ()
    with contextlib.ExitStack() as stack:
        with unheard():
            changed = stack.enter_context(holding(guards))
            if changed:  # not by the function
                trace.watch.begins_anew()
        try:
            yield
            if happened or changed:
                del trace.printed[:], trace.texts.shown[:]
                with unheard():
                    trace.written().undo()
        finally:
            with unheard():
                if happened or changed:
                    trace.watch.put_back(trace.numbers_put)
                    trace.numbers_put = ()
                stack.close()
    trace.numbers_put = (*before, *trace.numbers_put)
    trace.runs_again = trace.runs_again or happened
    trace.writes.n_again = trace.writes.number_of(trace.inputs)
    if happened or changed:
        with unheard():
            trace.watch.begins_anew()


@contextlib.contextmanager
def copies_at_own_level() -> Iterator[None]:
    """Just inside a level of torch.func of a function that runs again (``Inner.run_pure``): what it writes to are
    copies, and of this level from here on, as no level lets write to what comes from outside of it."""
    trace = active_trace()
    if trace is None or not trace.copies:
        yield
        return
    level = innermost_transform()[1]
    own = [(real, wrapped_at(level, copy)) for real, copy in trace.copies]
    with trace.binding(own, own):
        yield
