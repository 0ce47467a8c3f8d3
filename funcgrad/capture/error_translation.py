"""The funcgrad error for what went wrong while tracing, in the words of who wrote the function."""

from __future__ import annotations

import re

from .. import refusals
from ..errors import DataDependentControlFlowError, DataDependentShapeError, FuncgradError
from ..state.hooks import module_of
from ..state.lines import user_line
from ..torch_private.fakes import VIEW_WILL_NOT_DO, DataDependentOutputException, DynamicOutputShapeException
from ..torch_private.operators import DYNAMO as _DYNAMO
from ..torch_private.symbols import GuardOnDataDependentSymNode
from .source_location import user_line_of

_ASKED = (
    "tolist() shouldn't be called on a tensor with unallocated storage",
    "unsupported format string passed to FunctionalTensor",
)
"""What PyTorch says where a value is asked for by a way of its own."""


def unsupported_operator(what: str, instead: str, where: str | None = None) -> FuncgradError:
    """For an operator that takes functions, and is not compiled."""
    return refusals.NOT_COMPILED(what, instead, where=where or user_line())


_NO_OPERAND = "convert all Tensors to FakeTensors first", "Attempting to use FunctionalTensor on its own"
"""What PyTorch says where a branch meets a tensor that it closes over: one from outside, or one that the function
computed."""
_NO_TOKEN = "Could not find a token for effect"
"""What PyTorch says where an operator is called whose effect a trace is to order."""
_ONE_OF_VIEWS = re.compile(r"Output \d+ of \w*(Split|Chunk|Unbind)\w* is a view and is being modified inplace")
_NO_HISTORY = "new_fn INTERNAL ASSERT FAILED"
"""What PyTorch says where it is to make the history of a view anew, and what that is a view of requires no grad any
more."""
_NO_MEMORY = ("its data is not allocated yet", "Cannot access data pointer of Tensor", "on an invalid python storage")
"""What PyTorch says where a tensor without memory is asked for it."""


def named_error(error: Exception, may_read: bool = False, callback: str | None = None) -> FuncgradError | None:
    """The funcgrad error for an exception that tracing caused, or None for the function's own errors. ``may_read``:
    whether values may be read that are known. ``callback``: see ``Reads``."""
    named = _named(error)
    if callback is not None and isinstance(named, DataDependentShapeError):
        return refusals.SIZE_OF_CALLBACK(callback, where=named.where)
    if callback is not None and isinstance(named, DataDependentControlFlowError):
        return refusals.VALUE_OF_CALLBACK(callback, where=named.where)
    if may_read and named is not None and named.refusal is refusals.ASKED_FOR_VALUE:
        return refusals.VALUE_KNOWN_LATER(where=named.where)
    return named


def _named(error: Exception) -> FuncgradError | None:
    where = user_line_of(error)
    text = str(error)
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)) or any(
        said in text for said in _ASKED
    ):
        return refusals.ASKED_FOR_VALUE(where=where)
    if (isinstance(error, RuntimeError) and ".numpy() is not supported" in text) or "Can't call numpy()" in text:
        return refusals.ASKED_FOR_ARRAY(where=where)
    if isinstance(error, (AssertionError, RuntimeError)) and any(said in text for said in _NO_OPERAND):
        return refusals.NOT_AN_OPERAND(where=where)
    if isinstance(error, AssertionError) and _NO_TOKEN in text:
        return refusals.EFFECT_BY_TOKEN(text.rsplit(" ", 1)[-1], where=where)
    if isinstance(error, DynamicOutputShapeException):
        refusal = refusals.SIZE_OF_SOLUTION if "lstsq" in str(error.func) else refusals.SIZE_OF_VALUES
        return refusal(error.func, where=where)
    if module_of(type(error)).startswith(_DYNAMO) or (
        isinstance(error, RuntimeError) and "found no compiled frames" in text
    ):
        return unsupported_operator(
            "the function runs what torch compiles itself (torch.compile, flex_attention)",
            "the same in plain torch functions",
            where,
        )
    if isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY):
        return refusals.VALUES_ON_THE_WAY(where=where)
    if isinstance(error, RuntimeError) and VIEW_WILL_NOT_DO in text:
        return refusals.VIEW_WILL_NOT_DO(text, where=where)
    if isinstance(error, RuntimeError) and "as_strided() is non-compositional" in text:
        return refusals.VIEW_OF_AS_STRIDED(where=where)
    if isinstance(error, RuntimeError) and "Attempted to resize a view tensor" in text:
        return refusals.RESIZED_AROUND(where=where)
    if isinstance(error, RuntimeError) and "weakref associated with it" in text:  # the trace's own
        return refusals.MEMORY_MOVED("swap_tensors", where=where)
    if isinstance(error, RuntimeError) and _NO_HISTORY in text:
        return refusals.SWITCHED_OFF_WITH_VIEW(where=where)
    if isinstance(error, RuntimeError) and _ONE_OF_VIEWS.match(text):
        return refusals.WRITES_INTO_ONE_OF_VIEWS(where=where)
    if isinstance(error, RuntimeError) and (
        "leaf Variable that requires grad" in text
        or "is a view and is being modified inplace" in text
        or "mutating a non-functional tensor" in text
    ):
        return refusals.WRITES_INTO_LEAF(where=where)
    return None
