"""The funcgrad error for what went wrong while tracing, in the words of who wrote the function."""

from __future__ import annotations

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
from ..torch_private.fakes import DataDependentOutputException, DynamicOutputShapeException
from ..torch_private.operators import DYNAMO as _DYNAMO
from ..torch_private.symbols import GuardOnDataDependentSymNode
from .source_location import user_line, user_line_of

_ASKED = (
    "tolist() shouldn't be called on a tensor with unallocated storage",
    "unsupported format string passed to FunctionalTensor",
)
"""What PyTorch says where a value is asked for by a way of its own."""


def not_an_operand(where: str | None) -> FuncgradError:
    """For a body of control flow that comes to a tensor by a way nobody sees: in C, or in a thread of its own."""
    return UnsupportedTensorError(
        "a branch of torch.cond, or the body of a loop, uses a tensor that is not one of its operands, in a call that "
        "is not traced",
        where=where,
        fix="name it among the operands: torch.cond(condition, f, g, (x, w))",
    )


def own_generator(op: object, which: str) -> FuncgradError:
    """For a draw from a generator that a program cannot draw from."""
    return UnsupportedTensorError(
        f"{op} draws from a torch.Generator {which}",
        where=user_line(),
        fix='rng="eager", or draw from the default generator'
        if "philox" in which
        else "make it outside of the function; seed it inside",
    )


def unsupported_operator(what: str, instead: str, where: str | None = None) -> FuncgradError:
    """For an operator that takes functions, and is not compiled."""
    return UnsupportedOperatorError(
        f"{what}, which is not compiled yet",
        where=where or user_line(),
        fix=f"write {instead}, or call it outside of the function",
    )


_NO_OPERAND = "convert all Tensors to FakeTensors first", "Attempting to use FunctionalTensor on its own"
"""What PyTorch says where a branch meets a tensor that it closes over: one from outside, or one that the function
computed."""
_NO_HISTORY = "new_fn INTERNAL ASSERT FAILED"
"""What PyTorch says where it is to make the history of a view anew, and what that is a view of requires no grad any
more."""
_NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer of Tensor", "on an invalid python storage")
"""What PyTorch says where a tensor without memory is asked for it."""


def named_error(error: Exception) -> FuncgradError | None:
    """The funcgrad error for an exception that tracing caused, or None for the function's own errors."""
    where = user_line_of(error)
    text = str(error)
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)) or any(
        said in text for said in _ASKED
    ):
        return DataDependentControlFlowError(
            "the function asked for the value of a tensor (.item(), float(t), if t:, while t:), which is not known "
            "while it is traced",
            where=where,
            fix="write `torch.where(condition, a, b)` for a choice between values, `torch.cond(condition, f, g, (x,))` "
            'for a choice between computations, or pass the value as a Python argument; or leave out reads="error"',
        )
    if (isinstance(error, RuntimeError) and ".numpy() is not supported" in text) or "Can't call numpy()" in text:
        return DataDependentControlFlowError(
            "the function asked for the values of a tensor as a NumPy array, which are not known while it is traced",
            where=where,
            fix="compute with torch functions, or put what converts into a function f of its own, and write "
            "y = fg.pure_callback(f, like, x), with a tensor like that looks like its result",
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
    if type(error).__module__.startswith(_DYNAMO) or (
        isinstance(error, RuntimeError) and "found no compiled frames" in text
    ):
        return unsupported_operator(
            "the function runs what torch compiles itself (torch.compile, flex_attention)",
            "the same in plain torch functions",
            where,
        )
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return DataDependentControlFlowError(
            "an operation reads the values of a tensor on its way, or asks where they lie, which is not known while "
            "it is traced",
            where=where,
            fix="pass the values as Python numbers, compute what depends on them outside, or wrap what reads memory "
            "in a "
            "torch.library.custom_op",
        )
    if isinstance(error, ValueError) and "Cannot view a tensor with" in text:  # eager PyTorch raises a RuntimeError
        return TraceError(text, where=where, fix="use reshape(), which copies where a view will not do")
    if isinstance(error, RuntimeError) and "as_strided() is non-compositional" in text:
        return AliasContractError(
            "the function writes to a view of an as_strided view",
            where=where,
            fix="take the view by slices, transposes and reshapes",
        )
    if isinstance(error, RuntimeError) and "Attempted to resize a view tensor" in text:
        return MutationError(
            "the function resizes a tensor in place to memory that lies around it (resize_)",
            where=where,
            fix="return a new tensor",
        )
    if isinstance(error, RuntimeError) and _NO_HISTORY in text:
        return MutationError(
            "the function switches requires_grad off (requires_grad_()) of a leaf, writes to it, and uses a view that "
            "it took before",
            where=where,
            fix="take the view after requires_grad_(False), or of x.detach()",
        )
    if isinstance(error, RuntimeError) and (
        "leaf Variable that requires grad" in text
        or "is a view and is being modified inplace" in text
        or "mutating a non-functional tensor" in text
    ):
        return MutationError(
            "the function writes into a tensor it was given", where=where, fix="write into a copy: x = x.clone()"
        )
    return None
