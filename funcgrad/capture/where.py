"""Where in the caller's code something happened, and the funcgrad name of what went wrong while tracing."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

import torch

from ..errors import (
    AliasContractError,
    DataDependentControlFlowError,
    DataDependentShapeError,
    FuncgradError,
    MutationError,
    TraceError,
    UnsupportedOperatorError,
    UnsupportedTensorError,
)
from ..state.names import LIBRARIES, package
from ..torch_private import DYNAMO as _DYNAMO
from ..torch_private import DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


_ASKED = "tolist() shouldn't be called on a tensor with unallocated storage", "unsupported format string passed to FunctionalTensor"
"""What PyTorch says where a value is asked for by a way of its own."""
_OURS = LIBRARIES | {"sympy", "mpmath"}
"""Packages whose code runs while a program is made, whatever the function does."""
_PASSED_ON = os.path.join("capture", "floats.py"), os.path.join("state", "hooks.py")
"""Where Python's own errors are raised: what a float divided by 0.0 is, a symbolic one is, too; and an attribute that lacks."""


def is_user_file(filename: str) -> bool:
    """Whether a source file is neither torch's nor funcgrad's."""
    return not filename.startswith((_HERE, _TORCH, "<")) and filename != contextlib.__file__


def asked_by_us(depth: int = 2) -> bool:
    """Whether funcgrad's own code, ``depth`` frames up, makes the call that is looked at, not the function."""
    return sys._getframe(depth).f_code.co_filename.startswith(_HERE)


def short_name(filename: str) -> str:
    """The name of a source file as a reader knows it; the file of a notebook cell has no name worth showing."""
    return "cell" if "ipykernel" in filename else os.path.basename(filename)


def user_line() -> str | None:
    """``file:line in function`` of the innermost frame that is neither torch's nor funcgrad's."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return f"{short_name(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_line_of(error: BaseException) -> str | None:
    """``file:line in function: source`` of the caller's innermost line an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    if not frames:
        return None
    last = frames[-1]
    return f"{short_name(last.filename)}:{last.lineno} in {last.name}: {last.line}"


def is_defect(error: BaseException) -> bool:
    """Whether an error is none of the function's, nor of PyTorch's, nor one that has a name: funcgrad's own code raised it."""
    if isinstance(error, FuncgradError):
        return False
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(_HERE) and not files[-1].endswith(_PASSED_ON)


def is_of_function(error: BaseException) -> bool:
    """Whether an error is the function's own, or PyTorch's in it: it came out of the caller's code, and is not what a trace refuses."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = any(package(frame.f_globals.get("__name__", "torch")) not in _OURS for frame in frames)
    return own and not isinstance(error, FuncgradError) and not is_defect(error)


def not_an_operand(where: str | None) -> FuncgradError:
    """For a body of control flow that comes to a tensor by a way nobody sees: in C, or in a thread of its own."""
    return UnsupportedTensorError(
        "a branch of torch.cond, or the body of a loop, uses a tensor that is not one of its operands, in a call that is not traced",
        where=where,
        fix="name it among the operands: torch.cond(condition, f, g, (x, w))",
    )


def own_generator(op: object, which: str) -> FuncgradError:
    """For a draw from a generator that a program cannot draw from."""
    return UnsupportedTensorError(
        f"{op} draws from a torch.Generator {which}",
        where=user_line(),
        fix='rng="eager", or draw from the default generator' if "philox" in which else "make it outside of the function; seed it inside",
    )


def unsupported_operator(what: str, instead: str, where: str | None = None) -> FuncgradError:
    """For an operator that takes functions, and is not compiled."""
    return UnsupportedOperatorError(
        f"{what}, which is not compiled yet", where=where or user_line(), fix=f"write {instead}, or call it outside of the function"
    )


_NO_OPERAND = "convert all Tensors to FakeTensors first", "Attempting to use FunctionalTensor on its own"
"""What PyTorch says where a branch meets a tensor that it closes over: one from outside, or one that the function computed."""
_NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer of Tensor", "on an invalid python storage")
"""What PyTorch says where a tensor without memory is asked for it."""


def named_error(error: Exception) -> FuncgradError | None:
    """The funcgrad error for an exception that tracing caused, or None for the function's own errors."""
    where = user_line_of(error)
    text = str(error)
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)) or any(said in text for said in _ASKED):
        return DataDependentControlFlowError(
            "the function asked for the value of a tensor (.item(), float(t), if t:, while t:), which is not known while it is traced",
            where=where,
            fix="write `torch.where(condition, a, b)` for a choice between values, `torch.cond(condition, f, g, (x,))` "
            "for a choice between computations, or pass the value as a Python argument",
        )
    if (isinstance(error, RuntimeError) and ".numpy() is not supported" in text) or "Can't call numpy()" in text:
        return DataDependentControlFlowError(
            "the function asked for the values of a tensor as a NumPy array, which are not known while it is traced",
            where=where,
            fix="compute with torch functions, or convert outside of the function",
        )
    if isinstance(error, (AssertionError, RuntimeError)) and any(said in text for said in _NO_OPERAND):
        return not_an_operand(where)
    if isinstance(error, DynamicOutputShapeException):
        return DataDependentShapeError(
            f"the size of the result of {error.func} depends on tensor values, which are not known while tracing",
            where=where,
            fix="torch.linalg.pinv(a) @ b, or torch.linalg.qr and solve_triangular"
            if "lstsq" in str(error.func)
            else "use a form of fixed size: torch.where(mask, x, 0) for x[mask], or compute the indices outside",
        )
    if type(error).__module__.startswith(_DYNAMO) or (isinstance(error, RuntimeError) and "found no compiled frames" in text):
        return unsupported_operator(
            "the function runs what torch compiles itself (torch.compile, flex_attention)", "the same in plain torch functions", where
        )
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return DataDependentControlFlowError(
            "an operation reads the values of a tensor on its way, or asks where they lie, which is not known while it is traced",
            where=where,
            fix="pass the values as Python numbers, compute what depends on them outside, or wrap what reads memory in a "
            "torch.library.custom_op",
        )
    if isinstance(error, ValueError) and "Cannot view a tensor with" in text:  # eager PyTorch raises a RuntimeError
        return TraceError(text, where=where, fix="use reshape(), which copies where a view will not do")
    if isinstance(error, RuntimeError) and "as_strided() is non-compositional" in text:
        return AliasContractError(
            "the function writes to a view of an as_strided view", where=where, fix="take the view by slices, transposes and reshapes"
        )
    if isinstance(error, RuntimeError) and "Attempted to resize a view tensor" in text:
        return MutationError(
            "the function resizes a tensor in place to memory that lies around it (resize_)", where=where, fix="return a new tensor"
        )
    if isinstance(error, RuntimeError) and (
        "leaf Variable that requires grad" in text
        or "is a view and is being modified inplace" in text
        or "mutating a non-functional tensor" in text
    ):
        return MutationError("the function writes into a tensor it was given", where=where, fix="write into a copy: x = x.clone()")
    return None
