"""The modes of a trace, from the caller down: ``Lifter`` (a torch-function mode above autograd: a real tensor the
function closes over is replaced by an input of the trace) · autograd · functionalisation · ``Tracer`` (records each op)
· fake tensors. The tracer is our own, not ``make_fx``'s: it records at a quarter of the cost and keeps symbolic scalars
as expressions instead of nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..autograd_state import family_of, is_untold, renew_history
from ..graph_primitives import require_false, require_of_autograd, require_true
from ..graphs import tensors_in, type_text
from ..inside import having
from ..state.conversions import asking_globals
from ..state.hooks import unheard
from ..state.lines import user_line
from ..subclasses import is_traced
from ..torch_private.autograd import is_of_level, running_node, running_node_name, running_pass
from ..torch_private.fakes import FakeTensor
from ..torch_private.functional import (
    TRACER_SLOT,
    NoReplays,
    from_functional,
    functionalising,
    make_functional_mode,
    view_kind,
)
from ..torch_private.levels import CUSTOM_FUNCTION, custom_function_at_level
from ..torch_private.modes import TorchDispatchMode, TorchFunctionMode
from ..torch_private.operators import method_of, writes_inputs
from ..torch_private.tensors import ASKS_VERSION, is_transform_wrapper, is_zero_tensor
from ..trees import flatten
from .callbacks import hook_called
from .captures import GradientsMatter, require_dense_results
from .control_calls import CALLS
from .gradients import (
    ask_for_gradient,
    drop_gradient_kept,
    gradient_kept,
    require_forward,
    require_no_hooks,
    require_own,
    switch,
    where_gradients_arrive,
)
from .ints import without_ints
from .math_functions import quotient_of
from .number_calls import with_symbols
from .outside import (
    BACKWARD_CHECKS,
    FAKE_RESULTS,
    PHASE_CHECKS,
    REWRITES,
    VALUE_CHECKS,
    require_compiled_operator,
    require_fitting_values,
)
from .pullbacks import is_recorded, run_pullback, with_saved
from .questions import QUESTIONS, refuse_unknowable
from .reads import BY_MASK, READS, READS_LATER, TAKES_DATA, asks_for_value, makes_sizes
from .replaced_functions import original_of
from .replacements import replacements_of
from .source_location import asked_by_us, called_by_us
from .storage_mutation import GIVES, RESTRIDES, call_with_out, give_data, restride
from .storages import STORAGES, require_memory_in_place, storage_of
from .torch_patches import set_
from .trace import Trace
from .traced_sizes import seen
from .unfunctional import unfunctional
from .zero_tensors import ZeroTensors

_SWITCHES = {Tensor.requires_grad_, Tensor.retain_grad}
"""Methods that change how autograd treats a tensor."""


WRITES = {
    getattr(Tensor, name)
    for name in dir(Tensor)
    if name == "__setitem__"
    or (name.startswith("__i") and hasattr(Tensor, f"__{name[3:]}"))
    or (name.endswith("_") and not name.endswith("__"))
} - _SWITCHES
"""Methods that write to their tensor."""


_ASKS_GRAD = getattr(Tensor, "requires_grad").__get__  # noqa: B009 a descriptor
_ABOUT_GRADIENTS = {_ASKS_GRAD, *(getattr(Tensor, name).__get__ for name in ("grad_fn", "is_leaf"))}

_TEXTS = {Tensor.__repr__, Tensor.__format__}
_ASKED_IN_BACKWARD = torch.ops.aten.allclose.default, torch.ops.aten.diagonal.default


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Below functionalisation: sees each functional ATen call with fake tensors, records it, and passes it on.

    It takes the slot torch keeps for tracers; ``tracer.tensor_tracker`` is what functionalisation asks of whoever
    stands there.
    """

    supports_higher_order_operators = True

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = TRACER_SLOT
        self._trace = trace
        self.tracer = self
        self._phase_checked: object = None
        self.tensor_tracker = NoReplays()
        self.enable_thunkify = False  # asked for where a subclass with symbolic sizes is made (a jagged tensor)

    def __sym_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **(kwargs or {}))
        return (
            self._trace.symbols.floats.exact(out, quotient_of(func, args)) if isinstance(out, torch.SymFloat) else out
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # torch asks each time a tensor is wrapped
        out = self._dispatch(func, args, kwargs)
        self._trace.bodies.made(args, out)
        return out

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The fake result of an ATen call, which is recorded where this run records (``Recorder.record``)."""
        kwargs = kwargs or {}
        trace = self._trace
        if func is not torch.ops.aten.lift_fresh.default and func is not torch.ops.aten.lift_fresh_copy.default:
            args = [self._stand_in(a) for a in args]
        if func is torch.ops.aten._local_scalar_dense.default and trace.checks is not None:
            trace.require(require_false, args[0], trace.checks)
            return False
        if func in _ASKED_IN_BACKWARD and self._is_checked(func, args, kwargs):
            return True
        require_compiled_operator(func)
        if func is torch.ops.aten.index_put.default and trace.graph is None:
            with trace.fakes:
                require_fitting_values(*args[:3])
        try:
            drawn = trace.draws(func, args, kwargs)
            if drawn is not NotImplemented:
                return drawn
            if func in BY_MASK and (out := trace.reads.by_places(func, args)) is not NotImplemented:
                return out
            if func in FAKE_RESULTS:
                with trace.fakes:
                    out = FAKE_RESULTS[func](*args, **kwargs)
            elif asks_for_value(func):
                return trace.reads.answer(func, args, kwargs)
            elif makes_sizes(func, args, kwargs):
                return trace.reads.sized(func, args, kwargs)
            else:
                out = trace.on_fakes(func, args, kwargs)
        except READS_LATER as error:
            trace.refused = error
            raise
        require_dense_results(func, tensors_in(out))
        trace.reads.tape.note(func, args, kwargs, out)
        if trace.graph is not None:
            trace.record(func, args, kwargs, out)
        return out

    def _is_checked(self, func: Any, args: Sequence[Any], kwargs: Any) -> bool:
        """Whether a node of autograd asks this only to raise, which the program does when it runs. A node of
        eigenvectors is to ask it, before it goes on."""
        trace, node = self._trace, running_node()
        name, now = trace.plays or (running_node_name(), (running_pass(), node))
        if func is not torch.ops.aten.diagonal.default:
            if (message := BACKWARD_CHECKS.get(name)) is not None:
                with self:
                    trace.require(require_true, torch.isclose(*args, **kwargs).all(), message)
            return message is not None
        if (message := PHASE_CHECKS.get(name)) is None or self._phase_checked == now:
            return False
        self._phase_checked = now
        with trace.functional:  # which is off while it dispatches a call
            at_level = node is not None and is_of_level(node)
        if args[0].is_complex() and not trace.is_as_torch_func and not at_level:
            with self:
                imaginary = torch.view_as_real(args[0].diagonal(0, -2, -1))[..., 1]
                close = torch.isclose(imaginary, torch.zeros_like(imaginary), 1e-2, 1e-2)
                trace.require(require_of_autograd, close.all(), message)
        return False

    def _stand_in(self, value: Any) -> Any:
        """A real tensor that came by a way the lifter does not see (``autograd.Function.apply``) is an input, too."""
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor) and is_zero_tensor(value):  # forward mode's
            op = torch.ops.aten.zeros.default
            args = (list(value.shape),)
            kwargs = {"dtype": value.dtype, "device": value.device}
            out = self._trace.on_fakes(op, args, kwargs)
            if self._trace.graph is not None:
                self._trace.record(op, args, kwargs, out)
            return out
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor) and not is_transform_wrapper(value):
            if value.requires_grad and torch.is_grad_enabled() and not self._trace.writes.custom_functions:
                error = refusals.LEAF_PAST_PYTHON(type_text(value), where=user_line())
                self._trace.refused = error  # TorchScript makes another one of it
                raise error
            with self._trace.functional:  # which is off while it dispatches a call
                return from_functional(self._trace.lift(value))
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            return type(value)(self._stand_in(v) for v in value)
        return value


_DETACHES = {Tensor.detach: "detach", torch.detach: "detach", Tensor.data.__get__: "data"}  # type: ignore[attr-defined]
"""What stops gradients, by how ``Graph.run`` does it again."""


class Lifter(TorchFunctionMode):
    """Above autograd: replaces each real tensor in a call by the trace's input that stands for it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = original_of(func)
        # torch's own code, below it (a higher-order operator's backward); a subclass's class is not above autograd
        if not functionalising() or self._trace.inside_subclass:
            return func(*args, **(kwargs or {}))
        if func is CUSTOM_FUNCTION:
            with self:  # the caller's code again: what it calls is lifted, and so is what its backward calls
                return custom_function_at_level(func, tuple(map(self._trace.operand, args)), kwargs or {})
        method = method_of(func)
        if method is Tensor.set_:
            method = set_  # while any trace runs, what stands there asks first which thread it is in
        if method in RESTRIDES or method in GIVES or method in _SWITCHES:
            func = method  # said by the operator's name, it means the same
        if func in _TEXTS and (text := self._text(func, *args)) is not None:
            return text
        if func in _ABOUT_GRADIENTS and is_recorded(args[0]):
            return func(*args)
        if self._trace.ignores_requires_grad:
            self._require_no_gradients(func)
        original = args[0] if args else None
        self._hear_of(func, original)
        about_gradient = getattr(func, "__self__", None) is Tensor.grad or func is Tensor.retain_grad
        if about_gradient and (found := self._about_gradient(func, original)) is not None:
            return found
        given = kwargs or {}
        if func is torch.autograd.grad and (found := self._gradients(*args, **given)) is not NotImplemented:
            return found
        args = [self._trace.operand(a) for a in args]
        kwargs = {k: self._trace.operand(v) for k, v in given.items()}
        args[:1] = where_gradients_arrive(self._trace, func, args[:1])
        if self._trace.symbols.floats.ints:
            args, kwargs = without_ints(func, args, kwargs, self._trace.reads.as_size)
        if (
            func in QUESTIONS
            and (answer := self._trace.questions.answer(func, original, args[0])) is not NotImplemented
        ):
            return answer
        if (method in WRITES or method in RESTRIDES) and is_traced(args[0]):
            self._before_write(args[0])
        if func in STORAGES and is_traced(args[0]):
            return self._storage(func, args[0])
        if func is Tensor.register_post_accumulate_grad_hook:
            require_own(self._trace, args[0])
        if func in _ABOUT_GRADIENTS:
            tracked = self._trace.questions.requires_grad(args[0], func == _ASKS_GRAD)
            if tracked is not NotImplemented:
                return tracked
        if self._trace.keeps_detached:
            args = self._differentiated(func, args)
        if func is Tensor.register_hook:
            args, kwargs = [args[0], self._hook(args[0], *args[1:], **kwargs)], {}
        require_memory_in_place(func)
        if func in CALLS and (found := CALLS[func](self._trace, *args, **kwargs)) is not NotImplemented:
            return found
        require_compiled_operator(func)
        if func in RESTRIDES and is_traced(args[0]):
            return restride(self._trace, func, original, args, kwargs)
        if func is Tensor.requires_grad_ or (
            getattr(func, "__self__", None) is Tensor.requires_grad and func.__name__ == "__set__"
        ):
            on = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
            if self._trace.graph is not None and args[0].requires_grad == on and not (on and is_untold(args[0])):
                return original  # the dry run found that it may be said; a leaf that is written to is none here
            switch(self._trace, original, args[0], on)
        if getattr(func, "__self__", None) is Tensor.data and func.__name__ == "__set__":
            return give_data(self._trace, original, *args)
        if func in GIVES and is_traced(args[0]):
            return GIVES[func](self._trace, original, *args, **kwargs)
        if func in READS and (found := self._trace.reads.read(func, *args, **kwargs)) is not NotImplemented:
            return found
        if func in TAKES_DATA:
            args = self._trace.reads.with_data(func, args)
        self._trace.checks = VALUE_CHECKS.get(func)
        try:
            if kwargs.get("out") is not None:
                out = call_with_out(self._trace, func, given["out"], args, kwargs)
            else:
                call = REWRITES.get(func, func)
                out = with_symbols(func, args, kwargs, call) if self._trace.symbols else call(*args, **kwargs)
            if self._trace.symbols:  # of inputs, or read of tensors
                out = seen(out)
            self._trace.writes.spread_versions()
            if self._trace.graph is None:
                self._trace.forgotten.used((*args, *kwargs.values()), out)
            if isinstance(out, Tensor) and is_traced(given.get("out")) and out is self._trace.current(given["out"]):
                return given["out"]
            return original if isinstance(out, Tensor) and args and out is args[0] else out  # x += 1 is one object
        except (RuntimeError, TypeError) as error:
            if func in READS:
                self._trace.refused = error
            raise
        finally:
            self._trace.checks = None

    def _differentiated(self, func: Any, args: list[Any]) -> list[Any]:
        """The arguments of a call in a graph that transforms may differentiate: what stops gradients is recorded there,
        and what has a derivative of its own noted."""
        if func is Tensor.register_hook or func is Tensor.detach_:
            self._trace.has_own_rule(f"Tensor.{func.__name__}")
        return [self._trace.recorded_detached(args[0], _DETACHES[func])] if func in _DETACHES else args

    def _text(self, func: Any, tensor: Tensor, how: str = "") -> str | None:
        """The text of a tensor; None where it is that of a number in it, and is read."""
        if func is Tensor.__repr__:
            return self._trace.text_of(tensor)
        kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else Tensor
        if not tensor.dim() and kind is Tensor:
            return self._trace.text_of(tensor, how)
        if how:
            raise TypeError(f"unsupported format string passed to {kind.__name__}.__format__")
        with self:
            return str(tensor)

    def _before_write(self, written: Tensor) -> None:
        if torch.is_grad_enabled() and id(family_of(written)) in self._trace.lineage.with_history:
            raise refusals.WRITES_INTO_LEAF(where=user_line())
        if not self._trace.writes.custom_functions and self._trace.is_view_here_alone(written):
            renew_history(written)

    def _hook(self, tensor: Tensor, hook: Callable[[Tensor | None], Any]) -> Callable[[Tensor | None], Any]:
        """What is registered on a tensor in the place of a hook."""
        named = self._trace.lineage.named(tensor)
        if id(named) in self._trace.stand_ins():
            require_forward(self._trace)
            self._trace.hooked[id(named)] = user_line()
        self._trace.lineage.hooked(tensor)
        self._trace.listeners.is_hooked(tensor)
        if self._trace.hooks.is_registered_opaque(hook):
            return hook_called(hook, user_line())

        @functools.wraps(hook)
        def called(gradient: Tensor | None) -> Any:
            found, passages = hook(gradient), self._trace.passages
            return found if passages is None else passages.as_gradient(self._trace.operand(found))

        return called

    def _gradients(self, outputs: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        """``torch.autograd.grad`` through a graph that was recorded outside; ``NotImplemented`` for any other."""
        found = run_pullback(self._trace, outputs, inputs, *rest, **options)
        if found is NotImplemented and self._trace.graph is None:
            targets = flatten(inputs)[0]
            require_no_hooks(self._trace, targets)
            if not called_by_us(3):
                self._trace.asked_for_gradients(flatten(outputs)[0], targets)
        return found

    def _about_gradient(self, func: Any, original: Any) -> Tensor | None:
        """``x.grad`` is asked for, or set; it is given if it is that of before ``x`` came to look otherwise."""
        reads = func.__name__ == "__get__"
        ask_for_gradient(self._trace, original, reads, func is Tensor.retain_grad)
        if isinstance(original, Tensor) and reads:
            return gradient_kept(self._trace, original)
        if isinstance(original, Tensor) and func.__name__ == "__set__":
            drop_gradient_kept(self._trace, original)
        return None

    def _hear_of(self, func: Any, original: Any) -> None:
        """Refuse what no program can know of a tensor; note who asks for its length."""
        if func != ASKS_VERSION or not self._trace.is_own(original):  # which counts as eager PyTorch's does
            refuse_unknowable(func)
        watch = self._trace.watch
        if (
            func is Tensor.__len__
            and self._trace.graph is None
            and watch is not None
            and (space := asking_globals()) is not None
        ):
            watch.measuring.append(space)

    def _require_no_gradients(self, func: Any) -> None:
        """Raise ``GradientsMatter`` where the function's own code asks for what a stand-in does not say, or switches
        grad mode on."""
        asks = func in _ABOUT_GRADIENTS and not asked_by_us(3)
        if asks or (torch.is_grad_enabled() and not self._trace.enables_grad_itself):
            raise GradientsMatter

    def _storage(self, func: Any, tensor: Tensor) -> Any:
        """The storage of a tensor, which may be that of an input, or of a captured tensor."""
        lineage, trace = self._trace.lineage, self._trace
        known = trace.stand_ins()
        root, _, _ = lineage.path(tensor, lambda t: id(lineage.named(t)) in known, True)
        of = id(lineage.named(root))
        made = storage_of(func, tensor, of in known, trace.in_one_memory.get(of))
        return trace.storages.setdefault(hash(made), made) if func is Tensor.untyped_storage else made


def with_modes(trace: Trace) -> Trace:
    """The trace, with the modes under which it runs, and what functions of torch are in it."""

    def before(op: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        return trace.writes.before(op, with_saved(trace, op, args), kwargs)

    zeros = ZeroTensors(trace)

    def intercept(op: Any, args: Any, kwargs: Any) -> Any:
        answer = zeros.answer(op, args, kwargs)
        return unfunctional(trace, op, args, kwargs) if answer is NotImplemented else answer

    def note(op: Any, args: Any, kwargs: Any, out: Any) -> None:
        trace.lineage.note(op, args, kwargs, out)
        zeros.note(args, out)

    rules = intercept, before, note, trace.writes.after
    trace.functional = make_functional_mode(*rules, functools.partial(_of_wrappers, trace), unheard)
    trace.tracer, trace.lifter, trace.replacements = Tracer(trace), Lifter(trace), replacements_of(trace)
    return trace


def _of_wrappers(trace: Trace, op: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
    """An op of wrapper subclasses: which of them it looks at or writes to, autograd and the caller know by the outer
    tensor."""
    with having(trace, inside_subclass=True):
        out = call()
    if view_kind(op) is not None:
        trace.lineage.note(op, args, kwargs, out)
    elif writes_inputs(op):
        trace.writes.note(op, args, kwargs)
    return out
