"""Texts of tensors and of symbolic numbers (``repr(x)``, ``print(x)``, ``print(f"{v:.3f}")``).

What is only printed, or logged, is an effect: the number, or the tensor as it is there, is an output of the program, of
which the text is written in each call. Any other text is a read of values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs import type_text
from ..state.lines import user_frame, user_line
from ..state.output import is_kept
from ..state.shown import AnyLook, Look, NumberLook, ShownValue, is_shown, mark
from ..state.watch import Watch
from ..torch_private.fakes import fake_below, without_modes
from ..torch_private.levels import transforms_or_duals
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_wrapper_subclass
from .questions import Questions
from .reads import Reads


class Texts:
    """Those of one run. ``is_read``: whether a text in the place where the run is may be one of values."""

    def __init__(self, reads: Reads, questions: Questions, is_read: Callable[[], bool]) -> None:
        self._reads, self._questions, self._is_read = reads, questions, is_read
        self.shown: list[ShownValue] = []
        """The tensors, as they are there, and numbers that are printed, and logged."""

    def of(self, original: Tensor, tensor: Tensor | None, watch: Watch | None) -> str:
        """The text of a tensor, or what stands for it where it is printed; its type where nobody knows its values, and
        then ``watch`` is told the line that asks. ``original``: what the function has, of which ``tensor`` is what the
        trace knows."""
        text = None if tensor is None else self._known(original, tensor)
        if text is None and watch is not None and (line := user_line()) is not None:
            watch.shown.add(line)
        return f"traced {type_text(original)}" if text is None else text

    def _known(self, original: Tensor, tensor: Tensor) -> str | None:
        if (fake := self._fake(tensor)) is None:
            return None
        look = Look(self._knows(original, tensor), original is tensor and isinstance(original, nn.Parameter))
        if (text := self._shown(tensor, look, type_text(fake))) is not None:
            return text
        contents = self._reads.contents(fake)
        if contents is None:
            return None
        with without_modes(), without_function_modes():
            shape = tuple(map(int, fake.shape)) if contents == "[]" else (1,)
            return look.text(torch.empty(shape, dtype=fake.dtype, device=fake.device), contents)

    def of_item(self, tensor: Tensor | None, how: str) -> str | None:
        """What stands for the text of the number in a tensor where it is only printed, or logged."""
        fake = None if tensor is None or isinstance(tensor, nn.Parameter) else self._fake(tensor)
        return None if fake is None else self._shown(tensor, NumberLook("__format__", (how,)), type_text(fake))

    def of_number(self, number: Any, method: str, args: tuple[str, ...]) -> str | None:
        """The same of a number."""
        look = NumberLook(method, args)
        return self._shown(number, look, type(number.node.hint).__name__) if self._is_read() else None

    def _fake(self, tensor: Tensor) -> Tensor | None:
        """The fake of a tensor whose text may be one of values."""
        is_wrapped = is_wrapper_subclass(tensor) or transforms_or_duals()
        return None if is_wrapped or not self._is_read() else fake_below(tensor)

    def _shown(self, value: Any, look: AnyLook, text: str) -> str | None:
        """What stands for a text where it is only printed, or logged; ``text`` where nobody has the value."""
        if not is_shown(user_frame(sys._getframe(2)), is_kept):
            return None
        if isinstance(value, Tensor):
            with torch.no_grad():
                value = value.detach().clone()
        self.shown.append((value, look))
        return mark(len(self.shown) - 1, text)

    def _knows(self, original: Tensor, tensor: Tensor) -> str | None:
        """What a text says of autograd."""
        name = self._questions.history(original, tensor)
        return f"grad_fn=<{name}>" if name else "requires_grad=True" if tensor.requires_grad else None
