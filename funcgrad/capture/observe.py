"""Observing: the dry run is begun anew where it meets what it should have known from the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..state.output import put_out_again
from ..state.restart import Known, Restart
from ..state.watch import Watch
from .dry_run import DryRun, Surroundings
from .facts import Facts


def observe(function: Callable[..., Any], root: Callable[..., Any], around: Surroundings) -> tuple[Facts, Watch]:
    """Run ``function`` once on fakes and write down what it does; and the watch over Python state, for the run that is
    recorded. ``root`` is the caller's function, where captured tensors are looked for.

    Raises ``MutationError`` or ``AliasContractError`` for what cannot be carried out, ``GradientsMatter`` where
    ``around.grad`` must be True.
    """
    known, saved, once = Known(), dict[int, Tensor](), None
    while True:
        dry, after = DryRun(around, known, saved), None
        try:
            facts = dry.trace.run(dry.run, (function, root), {})
            if once is not None or not dry.trace.printed or dry.watch.filled is None:
                put_out_again(once or (), dry.trace.printed)
                return facts, dry.watch
            once = dry.trace.printed  # what a cached function prints, it prints once
        except Restart as met:
            known, after = known | met.more, met.after
        finally:
            dry.release()
        if after is not None:
            after()
