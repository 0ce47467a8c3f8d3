"""What a call has done before its program says that it is for another one (``PathMiss``), or cannot be made by one,
and how that is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..autograd_state import version_of
from ..generators import Drawn, set_state_of, state_of
from ..graph_primitives import PathMiss
from ..torch_private.autograd import set_versions


class Tentative:
    """A context: where a path is missed inside, or a matrix is singular (the function may catch that, in eager
    PyTorch), the version counters and ``requires_grad`` of ``tensors`` are what they were, and so are the states of
    what was ``drawn`` from. (Where another thread drew meanwhile, what it drew is drawn again.)"""

    __slots__ = ("_drawn", "_required", "_states", "_tensors", "_versions")

    def __init__(self, tensors: Sequence[Tensor], drawn: Sequence[Drawn]) -> None:
        self._tensors, self._drawn = tensors, drawn

    def __enter__(self) -> None:
        self._versions = tuple([version_of(t) for t in self._tensors])
        self._required = [t.requires_grad for t in self._tensors]
        self._states = [state_of(of) for of in self._drawn]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (PathMiss, LinAlgError)):
            return
        for tensor, required in zip(self._tensors, self._required, strict=True):
            if tensor.requires_grad != required:
                tensor.requires_grad_(required)
        set_versions(tuple(self._tensors), self._versions)
        for of, state in zip(self._drawn, self._states, strict=True):
            set_state_of(of, state)
