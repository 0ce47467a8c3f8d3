"""Texts of tensors that a function does nothing with but to print, or to log, them: each is written when the program
has run, of what the tensor was where it was printed."""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..torch_private.modes import without_function_modes
from ..torch_private.texts import contents_of, text_of
from .code import GLOBAL

_MARK = re.compile("\ue000(\\d+):([^\ue000]*)\ue000")
"""What stands for a text: its number, and the type of the tensor."""
_PLAIN_FORMAT = re.compile(r"(?:[^%]|%%|%[sr]|%[-#0 +\d.]*[diouxXeEfFgGc])*")
"""Where texts go as they are."""

_is_shown: ContextVar[bool] = ContextVar("funcgrad_is_shown", default=False)

_MAKES_MAP = {"BUILD_MAP", "BUILD_CONST_KEY_MAP"}
"""What makes the options of a call that has a ``*``, where there is no ``**``."""


@frozen
class Look:
    """What the text of a tensor says besides values, dtype and device."""

    knows: str | None = None
    is_parameter: bool = False

    def text(self, like: Tensor, contents: str) -> str:
        with torch.inference_mode(False), without_function_modes():
            # no more of it is asked than how it looks
            like = torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)
            text = text_of(like, contents, self.knows)
        return f"Parameter containing:\n{text}" if self.is_parameter else text

    def __call__(self, value: Tensor) -> str:
        """The text of a tensor of a program."""
        with torch.no_grad(), without_function_modes():
            return self.text(value, contents_of(value))


def mark(number: int, kind: str) -> str:
    """What stands for the text of a tensor where it is kept."""
    return f"\ue000{number}:{kind}\ue000"


def numbers_in(text: str) -> list[int]:
    """The tensors whose texts stand in a text that is kept."""
    return [int(number) for number, _ in _MARK.findall(text)]


def without_marks(text: str) -> str:
    """A text with the types of tensors, where their values are not known."""
    return _MARK.sub(lambda found: found[2], text)


def with_texts(text: str, texts: Sequence[str]) -> str:
    """A text with those of tensors, in order."""
    own = iter(texts)
    return _MARK.sub(lambda _: next(own), text)


@contextlib.contextmanager
def formatting(message: Any) -> Iterator[None]:
    """Inside, a message to a logger is formatted, and nothing else done with the texts of tensors in it."""
    token = _is_shown.set(isinstance(message, str) and _PLAIN_FORMAT.fullmatch(message) is not None)
    try:
        yield
    finally:
        _is_shown.reset(token)


def is_shown(frame: types.FrameType, is_kept: Callable[[], bool]) -> bool:
    """Whether the code that asks for the text of a tensor in a frame does nothing but to print it to standard output,
    which ``is_kept``, or to log it."""
    if _is_shown.get():
        return True
    prints = frame.f_globals.get("print", builtins.print)
    return isinstance(prints, types.BuiltinFunctionType) and _prints(frame.f_code, frame.f_lasti) and is_kept()


@functools.lru_cache(maxsize=1024)
def _prints(code: types.CodeType, at: int) -> bool:
    """Whether the instruction at an offset calls ``print`` with no stream."""
    steps = list(dis.get_instructions(code))
    call, before = next(((step, before) for before, step in pairwise(steps) if step.offset == at), (None, None))
    # what Python 3.11 has specialised calls in the instruction before
    where = call.positions if call is not None and call.opname.startswith(("CALL", "PRECALL")) else None
    if call is None or where is None or where.lineno is None:
        return False
    start = where.lineno, where.col_offset
    of_print = [
        step
        for step in steps
        if step.opname in GLOBAL and step.argval == "print" and step.positions is not None
        and (step.positions.lineno, step.positions.col_offset) == start
    ]  # fmt: skip
    names = [name for value in code.co_consts for name in (value if isinstance(value, tuple) else (value,))]
    takes_options = call.opname == "CALL_FUNCTION_EX" and bool((call.arg or 0) & 1)
    are_named = not takes_options or (before is not None and before.opname in _MAKES_MAP)
    return bool(of_print) and "file" not in names and are_named
