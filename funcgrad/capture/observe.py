"""Observing: the dry run is begun anew where it meets what it should have known from the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..state.output import put_out_again
from ..state.watch import AsksTypes, Converting, RunsUnnoted, Watch
from .captures import RestartTrace
from .dry_run import DryRun, Surroundings
from .facts import Facts
from .tensor_hooks import HooksWrite


def observe(function: Callable[..., Any], root: Callable[..., Any], around: Surroundings) -> tuple[Facts, Watch]:
    """Run ``function`` once on fakes and write down what it does; and the watch over Python state, for the run that is
    recorded. ``root`` is the caller's function, where captured tensors are looked for.

    Raises ``MutationError`` or ``AliasContractError`` for what cannot be carried out, ``GradientsMatter`` where
    ``around.grad`` must be True.
    """
    known: list[Tensor] = []
    themselves: list[Tensor] = []
    saved: dict[int, Tensor] = {}
    memory_around: dict[int, int] = {}
    hooks, once, notes = None, None, False
    converting: Converting = []
    while True:
        dry = DryRun(around, known, themselves, notes, converting)
        dry.trace.saved_outside, dry.trace.around = saved, memory_around
        dry.trace.hooks.begin(hooks)
        after: Callable[[], None] | None = None
        try:
            facts = dry.trace.run(dry.run, (function, root), {})
            if once is not None or not dry.trace.printed or dry.watch.filled is None:
                put_out_again(once or (), dry.trace.printed)
                return facts, dry.watch
            once = dry.trace.printed  # what a cached function prints, it prints once
        except RestartTrace as met:
            known += met.tensors
            themselves += met.tensors if met.itself else ()
            memory_around |= met.around
            after = met.after
        except HooksWrite:
            hooks = ()
        except RunsUnnoted:
            notes = True
        except AsksTypes as asked:
            converting = asked.functions
        finally:
            dry.release()
        if after is not None:
            after()
