"""What functions of torch, and of ``math``, are in a trace."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import refusals
from ..graphs import tensors_in, type_text
from ..inside import having
from ..state.conversions import TypeOf
from ..state.lines import HERE, TORCH, is_users, user_line
from ..state.restart import Restart
from ..torch_private.autograd import forward_jacobian, is_below_autograd
from ..torch_private.fakes import FAKES
from ..torch_private.patches import NO_HOOK, is_folded
from .captures import GradientsMatter, LeavesInferenceMode
from .control_calls import cond
from .fast_paths import FAST_PATHS
from .gradients import noting_accumulated, require_not_of_leaf, takes_gradient
from .math_functions import of_math
from .optimiser_steps import steps_of_optimisers
from .questions import ABSENT
from .regions import checkpointed
from .torch_patches import Replacement, set_
from .trace import Trace

_AS_THEY_ARE = object()
"""The backend by which operators that take functions are not compiled."""


_OF_TYPES = TypeOf.__call__.__code__
_BY = {"__dict__": ("__dict__", "vars")}
"""How code asks for an attribute, but by its name."""


def _asks_for(name: str, code: types.CodeType) -> bool:
    """Whether code that is not torch's, nor ours, asks for an attribute: what is written in C asks for it, too."""
    if code is not _OF_TYPES and code.co_filename.startswith((HERE, TORCH)):
        return False
    return any(by in code.co_names or by in code.co_consts for by in _BY.get(name, (name,)))


def _of_function(name: str, answer: Callable[[Any], Any]) -> Replacement:
    """What is the function's to ask by this name of a tensor, and a library's to have as it is."""

    def look(as_it_is: Callable[[Any], Any], tensor: torch.Tensor) -> Any:
        return answer(tensor) if _asks_for(name, sys._getframe(2).f_code) else as_it_is(tensor)

    return look


def _lacks(tensor: torch.Tensor) -> Any:
    raise AttributeError("elem", name="elem", obj=tensor)  # so the attributes are asked that are the tensor's own


def _compile(compile: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return args[0] if options.get("backend") is _AS_THEY_ARE else compile(*args, **options)


def _apply_function(trace: Trace, kind: Any, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A custom ``autograd.Function`` is applied: no torch-function mode is told."""
    if not issubclass(kind, torch.autograd.Function) or getattr(kind, "records_itself", False):
        return apply(*args, **kwargs)

    def takes(tensor: torch.Tensor) -> None:
        takes_gradient(trace, trace.lineage.named(tensor))

    operands = [*map(trace.function_operand, args)]
    trace.has_own_rule(f"{kind.__name__}.apply")
    out = trace.writes.run_custom_function(apply, operands, kwargs, takes)
    if trace.graph is None:
        trace.forgotten.used(operands, out)
    if trace.at_level:
        trace.lineage.ruled([t for t in tensors_in(out) if all(t is not operand for operand in operands)])
    return out


def replacements_of(trace: Trace) -> dict[str, Replacement]:
    """What functions of torch are in a trace; an operand of a custom ``autograd.Function`` is ``operand(argument)``
    there."""
    draws = trace.draws

    def attribute(original: Callable[..., Any], tensor: torch.Tensor, name: str) -> Any:
        value = trace.questions.attribute(tensor, name)
        return original(tensor, name) if value is ABSENT else value

    def remove_hook(remove: Callable[..., None], handle: Any) -> None:
        require_not_of_leaf(trace, handle)
        remove(handle)

    def run_engine(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if trace.ignores_requires_grad and trace.current_pass == "forward":  # the function's own backward pass
            raise GradientsMatter
        if trace.current_pass == "forward":
            trace.forgotten.require_saved(args[0])
            trace.differentiates = True
        is_backward = kwargs.get("accumulate_grad") and trace.current_pass == "forward"
        if is_backward:
            trace.backward_begins()
        is_nested = kwargs.get("accumulate_grad") and trace.current_pass == "backward"
        # torch takes the mode off while a call it intercepts (autograd.grad) runs
        with trace.lifter, noting_accumulated(trace) if is_nested else contextlib.nullcontext():
            found = original(*args, **kwargs)
        if is_backward:
            _, _, keeps_graph, create_graph, targets = args
            trace.backward_is_done(keeps_graph, create_graph, targets)
        return found

    within = torch.is_inference_mode_enabled()

    def enter_inference_mode(enter: Callable[[Any], None], mode: torch.inference_mode) -> None:
        leaves = within and not mode.mode and torch.is_inference_mode_enabled()
        if leaves and not sys._getframe(2).f_code.co_filename.startswith((HERE, FAKES)):
            raise LeavesInferenceMode
        enter(mode)

    def enter_level(enter: Callable[..., Any], *args: Any) -> Any:
        """Begin a level, or make a tensor, the first argument, one of it."""
        if within:  # there is none at a level
            raise LeavesInferenceMode
        return enter(*map(trace.operand, args[:1]), *args[1:])

    return {
        # torch's own would be compiled by torch; so would others
        "cond": lambda _, *args, **kwargs: cond(trace, *args, **kwargs),
        "operator of functions": lambda _, function, args, kwargs=None: function(*args, **(kwargs or {})),
        "compiler of operators": lambda _: contextlib.nullcontext(_AS_THEY_ARE),
        "compile": _compile,
        # on a real tensor, torch's own would be carried out at once
        "set_": lambda _, *args, **kwargs: set_(*args, **kwargs),
        "apply": lambda apply, *args, **kwargs: _apply_function(trace, apply.__self__, apply, *args, **kwargs),
        "apply at level": lambda call, kind, *args, **kwargs: _apply_function(
            trace, kind, functools.partial(call, kind), *args, **kwargs
        ),
        "set_materialize_grads": trace.listeners.set_materialize_grads,
        "saved hooks": trace.listeners.set_saved_hooks,
        "removed hook": remove_hook,
        # torch's own would run the function again in backward
        "checkpoint": functools.partial(checkpointed, lambda region: having(trace, regions=(*trace.regions, region))),
        "engine": run_engine,
        # torch's own reads the values of the mask
        "causal mask": lambda _, mask, is_causal=None, size=None: is_causal is True,
        "manual_seed": draws.manual_seed,
        "linearize": _no_linearize,
        "inference mode": enter_inference_mode,
        # a program is one range: nobody enters its modules
        "hook of tracker": lambda *_, **how: NO_HOOK,
        "swap": _no_swap,
        "forward jacobian": forward_jacobian,
        "folding": _folded_outside,
        # where no overload of an operator fits, C++ writes its arguments down, and goes on to the next one
        "text": lambda original, tensor, **how: type_text(tensor) if is_below_autograd() else original(tensor, **how),
        "level": enter_level,
        "hash": functools.partial(_hash, trace),
        "own text": lambda _, tensor, **how: trace.text_of(tensor),
        "seed": draws.seed,
        "attribute": attribute,
        "__class__": _of_function("__class__", trace.questions.kind),
        "__dict__": _of_function("__dict__", trace.questions.attributes),
        "elem": _of_function("elem", _lacks),
        **FAST_PATHS,
        **steps_of_optimisers(lambda count: trace.reads.real(count) is not None),
        "generator seed": draws.seed_one,
        "generator set": draws.seed,
        "generator copy": draws.clone,
        "initial seed": draws.initial_seed,
        "get state": draws.get_state,
        "set state": draws.set_state,
        "math": functools.partial(of_math, trace.symbols.floats),
    }


def _hash(trace: Trace, original: Callable[[Any], int], tensor: torch.Tensor) -> int:
    """What stands for a tensor is a key of the function's own containers, and of no other one. Of a captured one it is
    guarded which it is."""
    code = sys._getframe(2).f_code
    if trace.watch is not None and is_users(code):
        for by_address in {False, "hash" in code.co_names}:  # hash(x) is its id
            trace.watch.require_no_key(tensor, by_address)
        trace.watch.keys[id(tensor)] = tensor
    return original(tensor)


def _no_linearize(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise refusals.CALLS_LINEARIZE(where=user_line())


def _no_swap(_: Any, one: Any, other: Any) -> None:
    """Take back what is swapped by then."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    raise refusals.MEMORY_MOVED("swap_tensors", where=user_line())


def _folded_outside(fold: Callable[..., Any], module: Any) -> None:
    """A linear function computes its constants outside of the trace: it keeps them, and nobody's call is the first
    one."""
    if not is_folded(module):
        raise Restart(after=lambda: fold(module))
