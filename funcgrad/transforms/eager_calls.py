"""Calls of a compiled function that eager PyTorch makes, as no program can: why they are, counted, and what who calls
again and again is told."""

from __future__ import annotations

from collections.abc import Sequence

from ..capture.source_location import user_line_of
from ..errors import FuncgradError, ReadsWarning, RecompileWarning
from ..graph_primitives import Read
from ..options import log
from ..state.lines import warn
from .paths import differs

_PATHS = 16
"""So many paths through a function, by values that Python reads, have programs; calls that take others run in eager
PyTorch."""

_AGAIN = 16
"""So many calls for one of the other reasons are enough for a warning."""

_TOO_MANY_PATHS = (
    "{} reads values of tensors, and took more than {} paths by what they are, the last of them in eager PyTorch: {}. "
    "Compute with tensors "
    "there (torch.where, torch.cond), print tensors and not what is read of them, or let the value be an argument."
)
_LOST_PATH = (
    "{} reads values of tensors that rounding decides, which kernels do otherwise than eager PyTorch: on the path "
    "they found, it raises {} "
    '({}). This call ran in eager PyTorch; compile with numerics="eager", or in double precision.'
)
_FIRST_AGAIN = (
    "{} has run in eager PyTorch in {} calls, each of which is refused as no later one should be, the last one as {}"
    "{}. To fix: {}."
)
_CAUGHT_AGAIN = (
    "{} has caught what an operation raised for the values it was given in {} calls, each of which ran in eager "
    "PyTorch. Ask for what makes it raise first (torch.linalg.cholesky_ex, an index that is compared with the size)."
)


class EagerCalls:
    """Those of the function ``name``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._caught = self._firsts = self._lost_paths = 0
        self._is_warned_of_paths = False

    def caught(self) -> None:
        """The function has caught what an operation raised for the values of a call."""
        self._caught += 1
        log(1, f"{self._name} has run in eager PyTorch: it caught what an operation raised")
        if self._caught == _AGAIN:
            warn(_CAUGHT_AGAIN.format(self._name, _AGAIN), ReadsWarning)

    def first(self, error: FuncgradError) -> None:
        """A call was refused as a first one alone is (``Refusal.is_first``)."""
        self._firsts += 1
        log(1, f"{self._name} has run in eager PyTorch: {error.what}")
        if self._firsts == _AGAIN:
            where = f" ({error.where})" if error.where else ""
            warn(_FIRST_AGAIN.format(self._name, _AGAIN, error.what, where, error.fix), RecompileWarning)

    def lost_path(self, error: Exception) -> None:
        """On the path that kernels found, the function raises this where it is traced, and runs in eager PyTorch."""
        self._lost_paths += 1
        warn(_LOST_PATH.format(self._name, type(error).__name__, user_line_of(error)), ReadsWarning)

    def on_too_many_paths(self, paths: Sequence[Sequence[Read]]) -> bool:
        """Whether these, which have programs, are as many as may be; says so once."""
        if len(paths) + self._lost_paths < _PATHS:
            return False
        if not self._is_warned_of_paths:
            self._is_warned_of_paths = True
            lines = dict.fromkeys(str(read.where) for reads in paths for read in reads if differs(read, paths))
            warn(_TOO_MANY_PATHS.format(self._name, _PATHS, ", ".join(lines)), ReadsWarning)
        return True
