"""Nodes, sequence numbers, views and checkpoints of autograd."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.utils.checkpoint import SelectiveCheckpointContext

_BELOW = functools.reduce(
    lambda a, b: a | b,
    (
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        for key in ("ADInplaceOrView", "AutogradFunctionality", "AutogradOther")
    ),
)


_switch_grad: Callable[[bool], None] = torch._C._set_grad_enabled  # type: ignore[attr-defined]


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Inside, autograd hears of nothing: no history, no views, no version counters."""
    return torch._C._ExcludeDispatchKeyGuard(_BELOW)  # type: ignore[no-any-return]


def called_below_autograd(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What a function returns inside of it, with grad mode on."""
    before = torch.is_grad_enabled()
    with torch._C._ExcludeDispatchKeyGuard(_BELOW):
        _switch_grad(True)  # torch.enable_grad costs as much as a small kernel
        try:
            return function(*args)
        finally:
            _switch_grad(before)


_FUNCTIONS = torch.autograd.function


APPLIES: dict[str, tuple[Any, str]] = (
    {
        "apply": (_FUNCTIONS._SingleLevelFunction, "apply"),
        "apply at level": (_FUNCTIONS, "custom_function_call"),
    }
    if isinstance(vars(torch.autograd.Function)["apply"], classmethod)  # 2.11, 2.13
    else {"apply": (torch.autograd.Function, "apply")}  # of C in 2.15
)
"""What ``autograd.Function.apply`` ends with, at no level of torch.func and at one: there, functions are heard of whose
``apply`` somebody has taken before (``square = Square.apply``)."""


def applied_directly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` for code that runs at no level of torch.func, and is given no tensors of levels that ended:
    what the engine's C++ does, without looking for these."""
    return torch._C._FunctionBase.__dict__["apply"].__get__(None, function)  # type: ignore[no-any-return, attr-defined]


@contextlib.contextmanager
def autograd_heard() -> Iterator[None]:
    """Inside, the caller's Python runs as it does outside of ``below_autograd``; grad mode is off until it says
    otherwise."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - _BELOW), torch.no_grad():
        yield


def is_below_autograd() -> bool:
    """Whether autograd hears of nothing now."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)


def running_node() -> object | None:
    """The node of autograd's graph that a backward pass of this thread runs, or whose hooks."""
    return torch._C._current_autograd_node()


def is_of_level(node: Any) -> bool:
    """Whether what a node of eigenvectors has saved is a tensor of a level of torch.func: then it checks nothing."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(node._saved_eigenvectors))


graph_is_kept: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]
"""Whether the backward pass that runs in this thread leaves the graph as it is (``retain_graph``)."""


running_pass: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that runs in this thread; -1 where none does."""


_OF_GRAPHS = (
    "Trying to backward through the graph a second time",
    "modified by an inplace operation",
    "is not implemented",  # derivative for aten::…
)


def is_of_graph(error: BaseException) -> bool:
    """Whether autograd has found that what a graph saved is freed, or was written to, or that a formula is missing:
    whatever the sizes are."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OF_GRAPHS)


def at_end_of_pass(callback: Callable[[], None]) -> None:
    """Call it at the end of the backward pass that runs in this thread; where that fails, let go of it."""
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    engine.queue_callback(callback)


def is_executed(node: Any) -> bool:
    """Whether the backward pass that runs goes on to a node: where gradients are asked for of some tensors, it runs
    what leads to these."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError as error:  # the gradient of a leaf is asked for, which is not added up
        if "A leaf node" not in str(error):
            raise
        return True


any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device."""


def next_sequence_number() -> int:
    """The number the next autograd node will get: ties a forward op to the backward ops it causes."""
    number: int = _get_sequence_nr()
    return number


def running_sequence_number() -> int | None:
    """The number of the autograd node that runs now, or None outside a backward pass."""
    node: Any = running_node()
    return None if node is None else int(node._sequence_nr())


def custom_function_of(node: Any) -> type | None:
    """The ``autograd.Function`` of the caller's whose backward a node of autograd runs; None for any other node."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    function = vars(type(node)).get("_forward_cls")
    # for each level, torch.func makes one that closes over the caller's
    while code := getattr(vars(function).get("backward"), "__code__", None):
        if code.co_freevars != ("autograd_function",):
            break
        function = vars(function)["backward"].__closure__[0].cell_contents
    return function


def is_freed(node: Any) -> bool:
    """Whether a backward pass that does not keep the graph frees something of a node, without which another one
    raises."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        code = getattr(getattr(custom_function_of(node), "backward", None), "__code__", None)
        try:
            return bool(node._raw_saved_tensors) or "saved_tensors" in getattr(code, "co_names", ())  # type: ignore[attr-defined]
        except RuntimeError:  # it was freed
            return True
    # what a C++ extension saves nobody says; a write to a view holds another node
    return type(node).__name__ in ("CppFunction", "CopySlices") or saves_tensors(node)


def saves_tensors(node: Any) -> bool:
    """Whether nodes of its kind save tensors (not those of views, nor of sums)."""
    kind: Any = type(node)
    return issubclass(kind, torch.autograd.function.BackwardCFunction) or _saves_tensors(kind)


@functools.cache
def _saves_tensors(kind: type) -> bool:
    """The same of the kinds that PyTorch has: of a custom function, each may be new."""
    return any(name.startswith("_raw_saved_") for name in dir(kind))


def materializes(function: Any) -> bool:
    """Whether an ``autograd.Function`` that ran outside of a trace is given zeros for a gradient that is undefined. It
    may be told so in its forward, and PyTorch does not say what it was told: one that mentions it takes what comes."""
    return names_in(function).isdisjoint({"set_materialize_grads", "materialize_grads"})


def names_in(function: Any) -> set[str]:
    """What the forward of an ``autograd.Function`` mentions."""
    made = (getattr(f, "__code__", None) for f in (function.forward, function.setup_context))
    return {name for code in made if code is not None for name in code.co_names}


SET_MATERIALIZES = torch.autograd.function.FunctionCtx, "set_materialize_grads"
"""What an ``autograd.Function`` calls to say whether it is given zeros for a gradient that is undefined."""


SETS_SAVED_HOOKS = torch.autograd.graph.saved_tensors_hooks, "__enter__"
"""What sets hooks through which goes what is saved for backward."""


def running_node_name() -> str | None:
    """The name of the autograd node that runs now, or None outside a backward pass."""
    node: Any = running_node()
    return None if node is None else str(node.name())


def creation_meta(tensor: torch.Tensor) -> Any:
    """How a view was made (in grad mode, under no_grad, by an op of several results): decides whether it may be
    written to."""
    return torch._C._autograd._get_creation_meta(tensor)


versions_kept: Callable[[torch.Tensor | tuple[torch.Tensor, ...]], contextlib.AbstractContextManager[Any]] = (
    torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
)
"""Inside, writes to a tensor do not move its version counter."""


set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = (
    torch._C._autograd._unsafe_set_version_counter
)
"""Sets the version counters of some tensors."""


def policy_context(out: Any) -> SelectiveCheckpointContext:
    """What a policy of ``torch.utils.checkpoint`` is told of a call besides the call itself; of its result from 2.13
    on."""
    context = SelectiveCheckpointContext(is_recompute=False)
    if hasattr(context, "op_output"):
        context.op_output = out
    return context


def checkpoint_contexts(args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], tuple[Any, Any]]:
    """The ``context_fn`` in a call of that generator."""
    return kwargs["context_fn"] if "context_fn" in kwargs else args[2]  # type: ignore[no-any-return] # 2.15; 2.11, 2.13


def set_creation_meta(tensor: torch.Tensor, meta: Any) -> None:
    """See ``creation_meta``."""
    torch._C._autograd._set_creation_meta(tensor, meta)


_functorch: Any = torch._C._functorch
_of_functions: Any = torch.autograd.functional
FORWARD_JACOBIAN = torch.autograd.functional, "_jacfwd"
"""By which ``torch.autograd.functional.jacobian`` and ``hessian`` go forward."""


@contextlib.contextmanager
def _requires_grad_allowed() -> Iterator[None]:
    """Inside, ``x.requires_grad_()`` is carried out at a level of torch.func, too."""
    before = _functorch.get_inplace_requires_grad_allowed()
    _functorch.set_inplace_requires_grad_allowed(True)
    try:
        yield
    finally:
        _functorch.set_inplace_requires_grad_allowed(before)


def forward_jacobian(own: Any, func: Any, inputs: Any, strict: bool = False, vectorize: bool = False) -> Any:
    """The same by a level of torch.func: autograd's own vmap, by which PyTorch goes along all directions at once, makes
    tensors of which no other level, and no trace, knows anything."""
    if strict or not vectorize:
        return own(func, inputs, strict, vectorize)  # which is refused
    are_many, inputs = _of_functions._as_tuple(inputs, "inputs", "jacobian")
    outputs_are_many = False

    def outputs_of(*args: Any) -> Any:
        nonlocal outputs_are_many
        with _requires_grad_allowed():  # autograd's own levels allow it: it is how a Hessian goes backward first
            outputs_are_many, outputs = _of_functions._as_tuple(func(*args), "outputs")
        return outputs

    found = torch.func.jacfwd(outputs_of, argnums=tuple(range(len(inputs))))(*inputs)
    return _of_functions._tuple_postprocess([list(of_output) for of_output in found], (outputs_are_many, are_many))
