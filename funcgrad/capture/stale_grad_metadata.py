"""Sizes changed under ``no_grad`` (``x.t_()``): autograd does not hear of it, and goes on with a gradient of other sizes.

In eager PyTorch such a backward fails, or is wrong without a word where the matrix is square. A program is refused that would need one.
No such tensor is a view, as autograd finds its history when asked for, nor a leaf nobody has used so far; nor is it one that got
more dimensions of size one in front, which a gradient may have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..autograd_state import has_history, is_leaf
from ..errors import MutationError
from ..graphs import tensors_in, type_text
from .source_location import user_line


class Forgotten:
    """What was used so that a gradient may come back to it, and what must not be any more, in the dry run."""

    def __init__(self) -> None:
        self._used: dict[int, Tensor] = {}
        self._errors: dict[int, MutationError] = {}

    def used(self, args: Iterable[Any], out: Any) -> None:
        """Write down that ``out`` was computed from ``args``. Raises ``MutationError`` if one of them was forgotten."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(out)):
            for tensor in (t for a in args for t in tensors_in(a)):
                self.require_known(tensor)
                self._used[id(tensor)] = tensor

    def handed_to_python(self, operand: Tensor) -> None:
        """Write down that a custom ``autograd.Function`` got a tensor, which it may look at in backward."""
        self.used([operand], operand)
        if torch.is_grad_enabled():
            self._used[id(operand)] = operand

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """What is used inside, the trace itself uses."""
        before = dict(self._used)
        yield
        self._used = before

    def is_used(self, known: Callable[[Tensor], bool]) -> bool:
        """Whether a gradient may come back to what was computed of a tensor that is ``known``."""
        return any(map(known, self._used.values()))

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor's history is of other sizes than it has."""
        return id(tensor) in self._errors

    def require_known(self, tensor: Tensor) -> None:
        """Raises ``MutationError`` where autograd would go on with a gradient of other sizes than the tensor's."""
        if id(tensor) in self._errors:
            raise self._errors[id(tensor)]

    def restrided(self, func: Any, real: Tensor, own: Tensor, tensor: Tensor, by: Tensor, views: Callable[[], Iterable[Tensor]]) -> None:
        """``tensor``, which is what ``own`` looks like, looks like ``by`` from now on; ``real`` is what that stands for.

        Autograd finds the history of its ``views`` again when asked for: it goes by the sizes that their base has then.
        """
        if torch.is_grad_enabled():
            self.used([tensor], by)
            return
        more = by.dim() - tensor.dim()
        fits = more >= 0 and by.shape == (1,) * more + tuple(tensor.shape) and by.stride()[more:] == tensor.stride()
        used = real.requires_grad and is_leaf(real) and self._used.keys() & {id(own), id(tensor)}
        computed = not real._is_view() and own.requires_grad and has_history(own)
        error = self._errors.get(id(tensor))
        if error is None and (used or (computed and not fits)):
            error = MutationError(
                f"the function changes the sizes of a tensor {type_text(own)} that was computed or used, under no_grad ({func.__name__})",
                where=user_line(),
                fix="do it in grad mode or before, or take the view: autograd would go on with a gradient of other sizes",
            )
        if error is not None:
            self._errors |= dict.fromkeys([id(by), *(id(view) for view in views() if has_history(view))], error)
        if used:  # what was computed from it is still there
            self.require_known(by)
