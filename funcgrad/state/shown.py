"""Texts of tensors and numbers that a function does nothing with but to print, or to log, them: each is written when
the program has run, of what the tensor was where it was printed."""

from __future__ import annotations

import logging
import re
import sys
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..inside import set_to
from ..torch_private.modes import without_function_modes
from ..torch_private.texts import contents_of, text_of
from .lines import user_frame
from .text_flow import is_put_out

_MARK = re.compile("\ue000(\\d+):([^\ue000]*)\ue000")
"""What stands for a text: its number, and the type of the tensor."""
_PLAIN_FORMAT = re.compile(r"(?:[^%]|%%|%[sr]|%[-#0 +\d.]*[diouxXeEfFgGc])*")
"""Where texts go as they are."""
_CONVERSION = re.compile(r"%%|%[-#0 +\d.]*[a-zA-Z]")

_formats: ContextVar[types.FrameType | None] = ContextVar("funcgrad_formats", default=None)
"""The frame that has a message formatted, and does nothing else with its text."""


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


@frozen
class NumberLook:
    """How a number is written: by a method of it, with what it is given, or by a conversion of ``%``."""

    method: str
    args: tuple[str, ...] = ()

    def __call__(self, value: float) -> str:
        return str(self.args[0] % value if self.method == "%" else getattr(value, self.method)(*self.args))


AnyLook = Look | NumberLook
ShownValue = tuple[Any, AnyLook]
"""A tensor, or what stands for a number, and how it is written."""


def mark(number: int, kind: str) -> str:
    """What stands for the text of a tensor, or number, where it is kept."""
    return f"\ue000{number}:{kind}\ue000"


def numbers_in(text: str) -> list[int]:
    """The tensors and numbers whose texts stand in a text that is kept."""
    return [int(number) for number, _ in _MARK.findall(text)]


def without_marks(text: str) -> str:
    """A text with the types of tensors and numbers, where their values are not known."""
    return _MARK.sub(lambda found: found[2], text)


def with_texts(text: str, texts: Sequence[str]) -> str:
    """A text with those of tensors and numbers, in order."""
    own = iter(texts)
    return _MARK.sub(lambda _: next(own), text)


def formatted(record: logging.LogRecord) -> str:
    """The message of a record with its arguments; nothing else is done with the texts of tensors and numbers there."""
    message, args = record.msg, record.args
    is_text = isinstance(message, str)
    is_plain = _PLAIN_FORMAT.fullmatch(message) is not None if is_text else _has_text(message) and not args
    with set_to(_formats, user_frame(sys._getframe(1)) if is_plain else None):
        if is_plain and args and isinstance(args, tuple):
            hows = [how for how in _CONVERSION.findall(message) if how != "%%"]
            if len(hows) == len(args):  # else it raises
                texts = [_converted(how, value) for how, value in zip(hows, args, strict=True)]
                own = iter(texts)
                return _CONVERSION.sub(lambda found: "%" if found[0] == "%%" else next(own), message)
        return str(message) if is_plain and not is_text else record.getMessage()


def _has_text(value: Any) -> bool:
    """Whether a value is a tensor, or stands for a number."""
    return isinstance(value, Tensor) or hasattr(type(value), "text_by")


def _converted(how: str, value: Any) -> str:
    if isinstance(value, Tensor) and how[-1] in "diuFfEeGg":
        value = value.item()
    return str(value.text_by(how) if how[-1] not in "sr" and hasattr(type(value), "text_by") else how % (value,))


def is_shown(frame: types.FrameType, is_kept: Callable[[], bool]) -> bool:
    """Whether the code that asks for the text of a tensor, or number, in a frame does nothing but to print it to
    standard output, which ``is_kept``, or to log it."""
    return frame is _formats.get() or (is_put_out(frame) and is_kept())
