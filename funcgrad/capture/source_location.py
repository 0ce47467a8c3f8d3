"""Where in the caller's code something happened."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ..errors import FuncgradError
from ..state.lines import HERE, TORCH, is_user_file, short_name
from ..state.names import RUN_BY_TRACING, package

_ON_BEHALF = (
    "<frozen abc>",
    *(os.path.join(HERE, "state", name) for name in ("shown.py", "output.py", "warned.py", "conversions.py")),
)
"""What asks for a class, or for a text, on behalf of who looks at it."""

_PASSED_ON = tuple(
    os.path.join(*file)
    for file in (
        ("capture", "floats.py"), ("capture", "traced_sizes.py"), ("capture", "torch_patches.py"),
        ("capture", "replacements.py"),
        ("capture", "modes.py"), ("capture", "storage_mutation.py"), ("capture", "reads.py"),
        ("capture", "sized_calls.py"), ("capture", "number_calls.py"),
        ("capture", "math_functions.py"), ("state", "hooks.py"),
    )
)  # fmt: skip
"""Where errors are raised that are the function's: what a float divided by 0.0 is, a symbolic one is, too; an
attribute that lacks; and where PyTorch, or Python, is called for the function, and may raise in C."""
_DEFINITIONS = os.path.join("transforms", "definition.py")
"""What a transform means: it runs the backward pass of the function's, which PyTorch may refuse."""


def asked_by_us(depth: int = 2) -> bool:
    """Whether funcgrad's own code, ``depth`` frames up, makes the call that is looked at, not the function."""
    return sys._getframe(depth).f_code.co_filename.startswith(HERE)


def asked_by_library(depth: int = 2) -> bool:
    """Whether torch's code, or funcgrad's, ``depth`` frames up, asks something of an object, and not the function."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename in _ON_BEHALF:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith((HERE, TORCH))


def called_by_us(depth: int = 2) -> bool:
    """Whether funcgrad's own code calls the function of torch's that runs ``depth`` frames up."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(HERE)


def is_called_by(function: Callable[..., Any], depth: int = 1) -> bool:
    """Whether funcgrad's own code, from ``depth`` frames up, is called by this function of torch's."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return frame.f_code is function.__code__  # type: ignore[attr-defined,no-any-return]


def user_line_of(error: BaseException) -> str | None:
    """``file:line in function: source`` of the caller's innermost line an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    if not frames:
        return None
    last = frames[-1]
    return f"{short_name(last.filename)}:{last.lineno} in {last.name}: {last.line}"


def is_defect(error: BaseException) -> bool:
    """Whether an error is none of the function's, nor of PyTorch's, nor one that has a name: funcgrad's own code
    raised it. A ``RuntimeError`` is PyTorch's: funcgrad raises it where PyTorch would, in its words."""
    if isinstance(error, (FuncgradError, RuntimeError)):
        return False
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(HERE) and not files[-1].endswith(_PASSED_ON)


def is_of_function(error: BaseException) -> bool:
    """Whether an error is the function's own, or PyTorch's in it: it came out of the caller's code, and is not what
    a trace refuses."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = any(package(frame.f_globals.get("__name__", "torch")) not in RUN_BY_TRACING for frame in frames)
    own = own or any(frame.f_code.co_filename.endswith(_DEFINITIONS) for frame in frames)
    return own and not isinstance(error, FuncgradError) and not is_defect(error)
