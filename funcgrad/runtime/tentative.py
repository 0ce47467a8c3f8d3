"""What a call has done before its program says that it is for another one (``PathMiss``), or cannot be made by one,
and how that is taken back."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor

from ..autograd_state import version_of
from ..errors import FuncgradError
from ..generators import Drawn, set_state_of, state_of
from ..graph_primitives import PathMiss
from ..layers.statements import KERNEL
from ..torch_private.autograd import set_versions

_NOT_OF_VALUES = (FuncgradError, torch.OutOfMemoryError)
_OF_VALUES = (IndexError, RuntimeError, ValueError)


def is_of_values(error: Exception) -> bool:
    """Whether the kernel of a program has raised what operators raise for values (an index that is out of bounds, a
    matrix that is singular), which a function may catch in eager PyTorch: nothing has happened by then."""
    if not isinstance(error, _OF_VALUES) or isinstance(error, _NOT_OF_VALUES):
        return False
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith("<funcgrad call "):
            return f"{KERNEL}(" in linecache.getline(frame.f_code.co_filename, line)
    return False


class Tentative:
    """A context: where a path is missed inside, or an operator raises what the function may catch, in eager PyTorch
    (``may_be_caught``), the version counters and ``requires_grad`` of ``tensors`` are what they were, and so are the
    states of what was ``drawn`` from. (Where another thread drew meanwhile, what it drew is drawn again.)"""

    __slots__ = ("_drawn", "_errors", "_required", "_states", "_tensors", "_versions")

    def __init__(self, tensors: Sequence[Tensor], drawn: Sequence[Drawn], may_be_caught: bool) -> None:
        self._tensors, self._drawn = tensors, drawn
        self._errors = (PathMiss, *_OF_VALUES) if may_be_caught else (PathMiss,)

    def __enter__(self) -> None:
        self._versions = tuple([version_of(t) for t in self._tensors])
        self._required = [t.requires_grad for t in self._tensors]
        self._states = [state_of(of) for of in self._drawn]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, self._errors):
            return
        for tensor, required in zip(self._tensors, self._required, strict=True):
            if tensor.requires_grad != required:
                tensor.requires_grad_(required)
        set_versions(tuple(self._tensors), self._versions)
        for of, state in zip(self._drawn, self._states, strict=True):
            set_state_of(of, state)
