"""The two modes of a trace: one above autograd that replaces outside tensors, one below functionalisation that
records."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..autograd_state import bump_version, gradient_of, is_leaf, renew_history
from ..errors import CapturedTransformError, MutationError, TraceError
from ..graphs import tensors_in, type_text
from ..state.lengths import asking_globals
from ..subclasses import inner_tensors, is_traced
from ..torch_private.autograd import creation_meta, running_node_name, set_creation_meta
from ..torch_private.fakes import FakeTensor, fake_mode_of, is_bare_functional
from ..torch_private.functional import TRACER_SLOT, FunctionalTensor, NoReplays, from_functional, functionalising
from ..torch_private.levels import CUSTOM_FUNCTION, custom_function_at_level
from ..torch_private.modes import TorchDispatchMode, TorchFunctionMode, without_function_modes
from ..torch_private.operators import method_of
from ..torch_private.tensors import is_transform_wrapper, is_zero_tensor, level_of, unwrap_transform
from ..trees import flatten
from .captures import GradientsMatter, RestartTrace, require_dense_results
from .control_calls import CALLS
from .ints import without_ints
from .math_functions import quotient_of
from .outside import (
    BACKWARD_CHECKS,
    FAKE_RESULTS,
    REWRITES,
    VALUE_CHECKS,
    require_compiled_operator,
    require_fitting_values,
)
from .questions import QUESTIONS, refuse_unknowable
from .reads import BY_MASK, READS, READS_LATER, TAKES_DATA, asks_for_value, makes_sizes
from .sized_calls import OF_SIZES
from .source_location import asked_by_us, user_line
from .storage_mutation import GIVES, call_with_out, give_data
from .storages import STORAGES, require_memory_in_place, storage_of
from .torch_patches import set_
from .traced_sizes import seen

if TYPE_CHECKING:
    from .trace import Trace


RESTRIDES = {
    getattr(owner, name): getattr(torch.Tensor, name.removesuffix("_"))
    for owner in (torch.Tensor, torch)
    for name in ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_", "detach_")
    if hasattr(owner, name)
}
"""Functions that change how their argument looks, and the views that look so."""


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


_ABOUT_GRADIENTS = {getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")}


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
        kwargs = kwargs or {}
        trace = self._trace
        if func is not torch.ops.aten.lift_fresh.default and func is not torch.ops.aten.lift_fresh_copy.default:
            args = [self._stand_in(a) for a in args]
        if func is torch.ops.aten._local_scalar_dense.default and trace.checks is not None:
            trace.require_false(args[0], trace.checks)
            return False
        if (
            func is torch.ops.aten.allclose.default
            and (message := BACKWARD_CHECKS.get(running_node_name())) is not None
        ):
            with self:
                trace.require_true(torch.isclose(*args, **kwargs).all(), message)
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

    def _stand_in(self, value: Any) -> Any:
        """A real tensor that came by a way the lifter does not see (``autograd.Function.apply``) is an input, too."""
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor) and is_zero_tensor(value):  # forward mode's
            op, args, kwargs = (
                torch.ops.aten.zeros.default,
                (list(value.shape),),
                {"dtype": value.dtype, "device": value.device},
            )
            out = self._trace.on_fakes(op, args, kwargs)
            if self._trace.graph is not None:
                self._trace.record(op, args, kwargs, out)
            return out
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor) and not is_transform_wrapper(value):
            return from_functional(self._trace.lift(value))
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
            return type(value)(self._stand_in(v) for v in value)
        return value


class Lifter(TorchFunctionMode):
    """Above autograd: replaces each real tensor in a call by the trace's input that stands for it."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch's own code, below (a higher-order operator's backward); what the class of a subclass does is not above
        # autograd
        if not functionalising() or self._trace.inside_subclass:
            return func(*args, **(kwargs or {}))
        if func is CUSTOM_FUNCTION:
            with self:  # the caller's code again: what it calls is lifted, and so is what its backward calls
                return custom_function_at_level(func, tuple(map(self.stand_in, args)), kwargs or {})
        method = method_of(func)
        if method is Tensor.set_:
            method = set_  # while any trace runs, what stands there asks first which thread it is in
        if method in RESTRIDES or method in GIVES or method in _SWITCHES:
            func = method  # said by the operator's name, it means the same
        if func is Tensor.__repr__:
            return f"traced {type_text(args[0])}"
        if self._trace.heedless:
            self._require_no_gradients(func)
        original = args[0] if args else None
        self._hear_of(func)
        if getattr(func, "__self__", None) is Tensor.grad or func is Tensor.retain_grad:
            self._ask_for_gradient(original, func.__name__ == "__get__", func is Tensor.retain_grad)
            found = (
                self._gradient_kept(original, func.__name__)
                if isinstance(original, Tensor) and is_traced(original)
                else None
            )
            if found is not None:
                return found
        given = kwargs or {}
        if func is torch.autograd.grad and self._trace.graph is None:
            self._require_no_hooks(flatten(args[1] if len(args) > 1 else given["inputs"])[0])
        args = [self.stand_in(a) for a in args]
        kwargs = {k: self.stand_in(v) for k, v in given.items()}
        if self._trace.symbols.floats.ints:
            args, kwargs = without_ints(func, args, kwargs, self._trace.reads.as_size)
        if (
            func in QUESTIONS
            and (answer := self._trace.questions.answer(func, original, args[0])) is not NotImplemented
        ):
            return answer
        if (
            method in WRITES
            and is_traced(args[0])
            and not self._trace.writes.custom_functions
            and self._trace.is_view_here_alone(args[0])
        ):
            renew_history(args[0])
        if func in STORAGES and is_traced(args[0]):
            return storage_of(func, args[0], self._is_over_input(args[0]))
        if func is Tensor.register_post_accumulate_grad_hook:
            self._require_own(args[0])
        if func is Tensor.register_hook and id(self._trace.lineage.named(args[0])) in self._given():
            self._trace.hooked[id(self._trace.lineage.named(args[0]))] = user_line()
        require_memory_in_place(func)
        if func in CALLS:
            return CALLS[func](self._trace, *args, **kwargs)
        require_compiled_operator(func)
        if func in RESTRIDES and is_traced(args[0]):
            return self.restride(func, original, args, kwargs)
        if func is Tensor.requires_grad_ or (
            getattr(func, "__self__", None) is Tensor.requires_grad and func.__name__ == "__set__"
        ):
            on = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
            if self._trace.graph is not None and args[0].requires_grad == on:
                return original  # the dry run found that it may be said; a leaf that is written to is none here
            self._switch(original, args[0], on)
        if getattr(func, "__self__", None) is Tensor.data and func.__name__ == "__set__":
            return give_data(self._trace, original, *args)
        if func in GIVES and isinstance(args[0], FunctionalTensor):
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
                rewritten = OF_SIZES.get(func) if self._trace.symbols else None
                out = (rewritten or REWRITES.get(func, func))(*args, **kwargs)
            if self._trace.symbols:  # of inputs, or read of tensors
                out = seen(out)
            self._trace.writes.spread_versions()
            if self._trace.graph is None:
                self._trace.forgotten.used((*args, *kwargs.values()), out)
            if isinstance(out, Tensor) and is_traced(given.get("out")) and out is self._trace.current(given["out"]):
                return given["out"]
            # one object, whoever asks (x += 1, x is y)
            return original if isinstance(out, Tensor) and args and out is args[0] else out
        except (RuntimeError, TypeError) as error:
            if func in READS:
                self._trace.refused = error
            raise
        finally:
            self._trace.checks = None

    def _hear_of(self, func: Any) -> None:
        """Refuse what no program can know of a tensor; note who asks for its length."""
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
        if asks or (torch.is_grad_enabled() and not self._trace.tracks):
            raise GradientsMatter

    def _ask_for_gradient(self, tensor: Any, reads: bool, retains: bool) -> None:
        """A stand-in has the gradient its real tensor has: if nobody knew that it would be asked for, the run starts
        again."""
        real = self._trace.reals.get(id(tensor), tensor)
        if is_traced(real):
            return
        if not real.is_leaf and (real.retains_grad or retains or (reads and gradient_of(real) is not None)):
            raise MutationError(
                f"the function asks for the gradient of a tensor {type_text(real)} that is computed outside, and has "
                "it retained",
                where=user_line(),
                fix="do it outside: x.retain_grad() before the call",
            )
        if self._trace.current(tensor) is not tensor and not (reads and self._trace.lineage.is_given_alone(tensor)):
            raise MutationError(
                f"the function changes the sizes of a tensor {type_text(real)}, or gives it other memory, and asks "
                "for its gradient",
                where=user_line(),
                fix="ask for the gradient before",
            )
        if not reads and not (real.is_leaf and is_leaf(tensor)):  # what was written to since may be no leaf any more
            self._trace.given_gradient.append(real)
        else:
            self._trace.asked_for_gradient.append(real)
        if (
            self._trace.graph is None
            and real.is_leaf
            and real.grad is not None
            and id(real.grad) not in self._trace.captured
        ):
            raise RestartTrace(real.grad)

    def _gradient_kept(self, tensor: Tensor, how: str) -> Tensor | None:
        """The gradient that a result had before it came to look otherwise, which it still has; to set another takes
        that away."""
        now, others = self._trace.current(tensor), [tensor, *self._trace.lineage.looks(tensor)]
        with without_function_modes():
            for look in (look for look in others if look is not now):
                if how == "__set__":
                    look.grad = None
                elif how == "__get__" and gradient_of(now) is None and (found := gradient_of(look)) is not None:
                    return found
        return None

    def takes_gradient(self, tensor: Tensor) -> None:
        """Autograd takes the gradient of what a custom Function writes to (``mark_dirty``), where that requires
        grad."""
        real = self._trace.reals.get(id(tensor))
        with without_function_modes():
            if real is not None and gradient_of(real) is None:
                self._trace.asked_for_gradient.append(real)
            elif real is not None:
                self._ask_for_gradient(tensor, reads=True, retains=False)

    def _require_no_hooks(self, inputs: Sequence[Any]) -> None:
        """A stand-in has none of the hooks that autograd runs where it comes to the caller's tensor."""
        for tensor in inputs:
            real = self._trace.reals.get(id(tensor), tensor)
            if (
                isinstance(real, Tensor)
                and not is_traced(real)
                and self._trace.questions.has_hooks(real)
                and real._backward_hooks
            ):
                raise MutationError(
                    f"the function asks for the gradient of a tensor {type_text(real)} it was given "
                    "(torch.autograd.grad), and hooks of it "
                    "would have to run",
                    where=user_line(),
                    fix="pass x.detach().requires_grad_(), and do to its gradient what the hook does",
                )

    def _given(self) -> set[int]:
        """The identities of what stands for inputs and captured tensors."""
        return self._trace.inputs | {id(lifted.functional) for lifted in self._trace.captured.values()}

    def _require_own(self, tensor: Tensor) -> None:
        """A hook that runs when a gradient is accumulated into the caller's tensor would be lost: that happens
        outside."""
        if id(self._trace.lineage.named(tensor)) in self._given():
            raise MutationError(
                "the function registers a hook on a tensor it was given (register_post_accumulate_grad_hook)",
                where=user_line(),
                fix="register it outside of the function",
            )

    def _is_over_input(self, tensor: Tensor) -> bool:
        """Whether a tensor looks at the memory of an input, or of a captured tensor."""
        lineage, known = self._trace.lineage, self._given()
        root, _, _ = lineage.path(tensor, lambda t: id(lineage.named(t)) in known, True)
        return id(lineage.named(root)) in known

    def _switch(self, original: Any, tensor: Any, on: bool) -> None:
        """Note an input that is to require grad where it did not, or the other way round."""
        real = original if not is_traced(original) else self._trace.reals.get(id(original))
        named = self._trace.lineage.named(tensor)
        if (
            real is None
            and named is not tensor
            and self._trace.lineage.is_looked_at(named)
            and tensor.requires_grad != on
        ):
            raise _switched_too_late()
        if real is not None and (tensor.requires_grad != on or (real.requires_grad != on and is_leaf(tensor))):
            if named is not tensor:
                raise _switched_too_late()
            if not on and any(other._base is real for other in self._trace.reals.values()):
                raise MutationError(
                    "the function switches requires_grad off (requires_grad_()) of a tensor that another input is a "
                    "view of",
                    where=user_line(),
                    fix="do it outside, before the view is taken",
                )
            if on and real._is_view():
                self._trace.lineage.switched_on(tensor)
            if not on:
                self._trace.lineage.switched_off(tensor)
            self._trace.switched.append((tensor, on))
        if not on and tensor.requires_grad and not tensor._is_view():
            for view in self._trace.lineage.views_of(tensor):
                renew_history(view)  # autograd makes none for it any more, should what it looks at have been written to
        for view in self._trace.switched_with.get(id(tensor), ()):
            view.requires_grad_()

    def restride(self, func: Any, original: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
        """A tensor that changes how it looks (``t_``) is replaced by a view that looks so.

        Autograd goes by the view a tensor was taken as; a functional tensor that looks otherwise than it was taken
        breaks it.
        """
        tensor = args[0]
        if not isinstance(tensor, FunctionalTensor):
            raise MutationError(
                f"the function changes the sizes or the history of a {type(tensor).__name__} in place "
                f"({func.__name__})",
                where=user_line(),
                fix=f"take the view instead: x.{func.__name__.removesuffix('_')}()",
            )
        own = original if is_traced(original) else self._trace.lift(original)
        if self._trace.lineage.is_switched_on(tensor):
            raise MutationError(
                "the function calls requires_grad_() on a view (.backward() inside, .grad =, requires_grad_()), and "
                "changes its sizes",
                where=user_line(),
                fix="take the view instead, or change its sizes outside",
            )
        first = self._trace.graph is None  # in later runs, it may be changed
        if first and func is Tensor.detach_:
            if own._is_view():
                return func(own)  # type: ignore[no-any-return] # raises
        elif first and torch.is_grad_enabled():  # where not, autograd does not look
            probe = tensor.view_as(tensor)  # raises where the tensor itself may not be changed
            if probe._is_view() and tensor._is_view():
                set_creation_meta(probe, creation_meta(tensor))
            func(probe, *args[1:], **kwargs)
        # autograd lets nobody read it from now on
        forbidden = tensor._is_view() and creation_meta(tensor).name != "DEFAULT"
        with torch.set_grad_enabled(not forbidden or torch.is_grad_enabled()):
            by = RESTRIDES[func](*args, **kwargs)
        if by is not tensor:
            if forbidden:
                set_creation_meta(by, creation_meta(tensor))
            if first and func is not Tensor.detach_:
                real, views = self._trace.reals.get(id(own), own), functools.partial(self._trace.lineage.views_of, own)
                self._trace.forgotten.restrided(func, real, own, tensor, by, views)
            self._trace.lineage.replace(own, by, torch.is_grad_enabled())
        if func is not Tensor.detach_:
            bump_version(tensor)
            self._trace.writes.spread_versions()
        return original  # type: ignore[no-any-return]

    def stand_in(self, value: Any) -> Any:
        """What the call is made with: the tensors of the trace for real ones."""
        if isinstance(value, Tensor):
            known, traced = value, is_traced(value)
            if traced:
                value = self._trace.lineage.current(value)
            if traced and any(fake_mode_of(inner) not in (None, self._trace.fakes) for inner in inner_tensors(value)):
                raise TraceError(
                    f"the function uses a tensor ({type_text(value)}) that an earlier trace left behind",
                    where=user_line(),
                    fix="do not keep tensors computed in the function in a cache, a global or an attribute; return "
                    "them (has_aux=True)",
                )
            if traced or isinstance(value, FakeTensor) or is_bare_functional(value):
                value = self._current(value)
            elif is_transform_wrapper(value) and id(value) not in self._trace.captured:
                value = self._own_level(value)
            else:
                value = self._current(self._trace.lineage.current(self._trace.lift(value)))
            return self._trace.bodies.met(known, value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, (Tensor, list, tuple)) for v in value):
            items = [self.stand_in(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def _current(self, value: Tensor) -> Tensor:
        self._trace.forgotten.require_whole([value])
        if self._trace.rereads and self._trace.current_pass == "backward" and is_traced(value):
            self._trace.reread(value)
        return value

    def _own_level(self, wrapper: Tensor) -> Tensor:
        """A wrapper made by a transform inside the function wraps our tensors, or zeros of forward mode; one from
        outside a real one."""
        inner = unwrap_transform(wrapper)
        if isinstance(inner, FakeTensor) or is_traced(inner) or is_zero_tensor(inner):
            return wrapper
        if self._trace.at_level and level_of(wrapper) <= self._trace.at_level:
            return self._current(self._trace.lineage.current(self._trace.lift(wrapper)))
        error = CapturedTransformError(
            f"the function closes over a tensor {type_text(inner)} that belongs to an enclosing torch.func transform",
            where=user_line(),
            fix="let the compiled function be the outermost: compile the transformed function, fg.jit(torch.vmap(f))",
        )
        error.wrapper = wrapper
        raise error


def _switched_too_late() -> MutationError:
    return MutationError(
        "the function gives a tensor other memory, or other sizes, and switches requires_grad (requires_grad_()) of it",
        where=user_line(),
        fix="call requires_grad_() before",
    )
