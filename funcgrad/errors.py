"""Every error funcgrad raises. One root; each class is named for the fault and says what, where, what to do.

A class also derives from the builtin a torch user would catch. ``docs/errors.md`` has a section per class
(wrong code, why, right code); a house test keeps the two in step.
"""

from __future__ import annotations

from typing import Any, Generic, TypeGuard, TypeVar

from attrs import frozen


class FuncgradError(Exception):
    """Root of all errors raised by funcgrad.

    ``what`` happened, ``where`` in the caller's code (``file:line in function``, or an argument's path),
    and ``fix``: what to do about it. The message is the three, in that order.
    """

    refusal: Refusal[FuncgradError] | None = None
    """The row of ``refusals`` that says it; None for what is wrong with a call, an option, or funcgrad itself."""

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if fix:
            lines.append(f"  to fix: {fix}")
        lines.append(f"  more: docs/errors.md#{type(self).__name__.lower()}")
        super().__init__("\n".join(lines))


Error_co = TypeVar("Error_co", bound=FuncgradError, covariant=True)


@frozen(eq=False)
class Refusal(Generic[Error_co]):
    """Something that a trace refuses: the error, what it says, and what to do, with places for what differs
    (``{0}``). ``is_first``: of a first call alone, which is made in eager PyTorch where it can be, and leaves what the
    next ones find: it makes a parameter, registers a hook, fills a cache, or finds out how the result of an opaque
    call looks."""

    kind: type[Error_co]
    what: str
    fix: str
    is_first: bool = False

    def __call__(self, *of: object, where: str | None = None) -> Error_co:
        """The error of one case."""
        error = self.kind(self.what.format(*of), where=where, fix=self.fix.format(*of))
        error.refusal = self
        return error


def is_of_first_call(error: object) -> TypeGuard[FuncgradError]:
    """Whether an error is a refusal of a first call alone (``Refusal.is_first``)."""
    return isinstance(error, FuncgradError) and error.refusal is not None and error.refusal.is_first


class OptionError(FuncgradError, ValueError):
    """An option has no such name or value, or asks for what this version does not do."""


class NonScalarOutputError(FuncgradError, RuntimeError):
    """The function to differentiate returned something else than one floating-point scalar tensor."""


class NonDifferentiableArgumentError(FuncgradError, TypeError):
    """An argument to differentiate holds a leaf that has no gradient: an integer or bool tensor, a Python value."""


class ArgumentError(FuncgradError, TypeError):
    """``argnums`` or ``static_argnums`` name no positional argument of this call, or an argument has no use as an
    input."""


class CustomDerivativeError(FuncgradError, TypeError):
    """A rule of ``custom_vjp`` or ``custom_jvp`` is missing, or returned something else than it must."""


class AuxError(FuncgradError, TypeError):
    """``has_aux=True``, but the function did not return a pair ``(output, aux)``."""


class ContainerError(FuncgradError, TypeError):
    """An argument or a result of a class that is no pytree holds tensors."""


class TreeMismatchError(FuncgradError, ValueError):
    """Two pytrees that must have one structure differ; ``where`` is the path of the first difference."""


class DataDependentControlFlowError(FuncgradError, RuntimeError):
    """The function asked for the *value* of a tensor while it was traced (``.item()``, ``if tensor:``,
    ``float(t)``)."""


class DataDependentShapeError(FuncgradError, RuntimeError):
    """An operation's output *shape* depends on tensor values (``nonzero``, boolean indexing, ``unique``)."""


class CapturedTransformError(FuncgradError, RuntimeError):
    """The function closes over a tensor that belongs to an enclosing transform level, and that cannot be found again
    from the function."""

    place: Any = None
    """Where that tensor lives (``Place``), if the function has read it there."""


class UnsupportedTransformError(FuncgradError, RuntimeError):
    """A compiled function was called inside a transform for which it has no rule yet."""


class ImpureFunctionError(FuncgradError, RuntimeError):
    """A function draws from a generator that is not torch's, or goes on with an iterator: what it got would be the
    same on each call."""


class MutationError(FuncgradError, RuntimeError):
    """The function mutates a tensor it was given, which this version does not carry out."""


class AliasContractError(FuncgradError, RuntimeError):
    """Inputs share memory in a way in which a write to it cannot be carried out, or differentiated, as eager PyTorch
    does."""


class VerificationError(FuncgradError, RuntimeError):
    """A compiled program and eager PyTorch do not compute the same (``FUNCGRAD_VERIFY=1``)."""


class BuildError(FuncgradError, RuntimeError):
    """The C compiler did not take what funcgrad printed."""


class OpaqueCallError(FuncgradError, RuntimeError):
    """An opaque call returned something else than was said when it was recorded."""


class UnsupportedTensorError(FuncgradError, RuntimeError):
    """A tensor is of a kind that cannot be traced: a subclass, a sparse or quantized layout."""


class UnsupportedOperatorError(FuncgradError, RuntimeError):
    """The function calls an operator of functions (``while_loop``, ``scan``, ``flex_attention``) that is not
    compiled yet."""


class TraceError(FuncgradError, RuntimeError):
    """Two traces of one function did not agree: it captured other tensors, or returned another structure."""


class GraphError(FuncgradError, RuntimeError):
    """A graph between two stages breaks a promise; the message shows the nodes around the fault. A defect of
    funcgrad."""


class PartitionError(FuncgradError, RuntimeError):
    """No split into forward and backward satisfies the tags; both reasons are named."""


class ResultError(FuncgradError, TypeError):
    """The result holds an object that a compiled call cannot return: a tensor hides in it, or each call would have
    to make it anew."""


class RetraceError(FuncgradError, RuntimeError):
    """A call inside ``fg.no_retrace()`` would have compiled; the message says which part of the key differed."""


class DonationError(FuncgradError, RuntimeError):
    """A tensor is read whose memory a call was given (``donate_argnums``); or, under ``donate="strict"``, a call could
    not make use of one that it was given."""


class CacheTrustError(FuncgradError, RuntimeError):
    """The cache directory is not safe to read programs from: others may write to it."""


class ArchiveError(FuncgradError, RuntimeError):
    """A program cannot be written to a file, or a file holds none that runs here."""


class UnresolvedCaptureWarning(UserWarning):
    """A tensor the function closes over could not be traced back to where it lives; a rebinding would go unnoticed."""


class UnwatchedStateWarning(UserWarning):
    """A function reads Python state of a kind that no guard can watch, or a clock: a change of it is not noticed
    between calls. Or it registers a hook on a leaf that it is given, which would outlive the call."""


class RecompileWarning(UserWarning):
    """A function compiles again and again since one number is another in each call: a value of Python state, an
    argument, a size."""


class ReadsWarning(UserWarning):
    """Python reads values of tensors, and a function took more paths by what they are than programs are made for."""


class UnrolledLoopWarning(UserWarning):
    """A function runs a loop of more than 50 steps in Python: a trace unrolls it, and all of the copies of its body
    are compiled."""


class AutocastWarning(UserWarning):
    """Autocast is on where a gradient is compiled through a custom ``autograd.Function``, and ``backward_autocast``
    does not say whether it is meant for backward, too."""


class DispatchModeWarning(UserWarning):
    """A ``TorchDispatchMode`` of the caller's is on around a call, and does not hear of what kernels compute."""


class LargeBaseWarning(UserWarning):
    """Overlapping inputs are written to, and the tensor they are views of is much larger than they are: all of it is
    copied."""


class UncompiledBackwardWarning(UserWarning):
    """A backward pass inside ``fg.compiled_autograd()`` cannot be traced: it runs statement by statement, as it is."""


class DonationWarning(UserWarning):
    """A call was given tensors (``donate_argnums``) whose memory it could not make use of."""


class MissingCompilerWarning(UserWarning):
    """There is no C compiler on this machine: calls run as ATen, unfused."""
