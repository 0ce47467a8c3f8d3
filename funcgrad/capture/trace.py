"""One run of a function on functional fake tensors, recorded as an fx graph or only watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import torch
from torch import Tensor, fx

from .. import refusals
from ..autograd_state import renew_history
from ..errors import FuncgradError, GraphError, is_of_first_call
from ..graph_primitives import Path, has_sizes
from ..graphs import type_text
from ..inside import having
from ..levels import below_levels
from ..options import BackwardAutocast, Randomness
from ..slots import Cotangent, Input, Late, Slot
from ..state.hooks import unheard
from ..state.lines import user_line
from ..state.output import Printed, keeping, put_out_again
from ..state.places import Place
from ..state.watch import Watch
from ..state.written import Written
from ..subclasses import Wrapping, inner_tensors, is_traced, parts
from ..tags import Tag, tag
from ..torch_private.fakes import FakeTensor, fake_mode_of, is_bare_functional, silence_where, without_modes
from ..torch_private.functional import FunctionalTensor, from_functional, replace_value, to_functional
from ..torch_private.levels import alive, is_dead, outside_transforms
from ..torch_private.modes import TorchFunctionMode, without_function_modes
from ..torch_private.tensors import is_transform_wrapper, is_zero_tensor, level_of, storage_id, unwrap_transform
from .autocast import backward_under
from .captures import GradientsMatter, Lifted, detached, detached_part, require_traceable
from .error_translation import named_error
from .floats import NotSymbolicError
from .lineage import Lineage
from .listeners import Listeners
from .questions import Questions
from .random_operators import Draws
from .reads import Reads
from .recorder import Recorder
from .source_location import is_defect
from .stale_grad_metadata import Forgotten
from .tensor_hooks import TensorHooks
from .texts import Texts
from .torch_patches import Replacement, replacing
from .writes import Writes

_active: ContextVar[Trace | None] = ContextVar("funcgrad_trace", default=None)


def active_trace() -> Trace | None:
    """The trace that is running in this thread, if any: a compiled function called inside it is inlined."""
    return _active.get()


silence_where(lambda: active_trace() is not None)


class Trace(Recorder):
    """The inputs, the captured tensors and (if ``record``) the graph of one run.

    Make one (``with_modes``), ``input`` the arguments, ``run`` the function on them, then ask for ``result`` of each
    output.
    """

    lifter: TorchFunctionMode
    """Inside, a real tensor in a call is replaced by the input that stands for it."""
    replacements: Mapping[str, Replacement]
    """What functions of torch are while the function runs."""

    def __init__(
        self,
        *,
        record: bool,
        backward_autocast: BackwardAutocast,
        rng: Randomness,
        stand_in_for: Callable[[Tensor], Tensor] | None = None,
        path: Path | None = None,
        may_be_sizes: bool = False,
    ) -> None:
        """``stand_in_for`` makes a stand-in for a real tensor met inside the function; without it, meeting one is an
        error. ``path``: what Python reads first of values; None where it may not read any. ``may_be_sizes``: whether
        ints that are symbols may be sizes."""
        super().__init__(record=record, expects_sizes=may_be_sizes or (path is not None and has_sizes(path)))
        self._backward_autocast = backward_autocast
        self.lineage = Lineage()
        self.pullback: str | None = None
        """Whether a graph that was recorded outside runs, and of what (see ``pullbacks.py``)."""
        self.saved_outside = dict[int, Tensor]()
        """What such a graph saved, and, by what they wrap, tensors of levels that have ended: no variable holds it."""
        self.writes = Writes(self.lineage, first_run=stand_in_for is not None)
        self.reads = Reads(self, path, may_be_sizes)
        self.draws = Draws(self, self.reads, rng, first_run=stand_in_for is not None)
        self._stand_in_for = stand_in_for
        self.captured: dict[int, Lifted] = {}
        self.wrappings: dict[Slot, Wrapping] = {}
        self.late: list[Slot] = []
        self.rereads: dict[int, tuple[Input, Tensor]] = {}
        self.reals: dict[int, Tensor] = {}
        self.inputs: set[int] = set()
        self.memory_around: dict[int, int] = {}
        """How many elements of the memory that inputs lie in (``around.py``) a function needs that writes, or sizes
        them, beyond their own, by the identity of the real tensor. ``looked_around``: the same of one that looks at
        them (``x[0].as_strided((2,), (1,))``), which matters where anything there is written to."""
        self.looked_around: dict[int, int] = {}
        self.asked_for_gradient = list[Tensor]()
        self.given_gradient = list[Tensor]()
        self.asked_in_backward, self.accumulated_in_backward = dict[int, str](), set[int]()
        """For the gradients of which leaves the backward pass asks, and to which it adds, by a pass within it."""
        self.switched = list[tuple[Tensor, bool]]()
        self.switched_with: dict[int, list[Tensor]] = {}
        """What is to require grad as soon as an input does, by its identity: what stands for it to its views that
        are inputs, too."""
        self.in_one_memory: dict[int, int] = {}
        """By their identity, one of those that share their memory outside: in the trace where one is written to."""
        self.storages: dict[int, Any] = {}
        """What the function was given as the storages of tensors: one for each, as in eager PyTorch."""
        self.hooked: dict[int, str | None] = {}
        """Where the function registers hooks on what stands for inputs."""
        self.hooks = TensorHooks()
        self.listeners = Listeners()
        self.forgotten = Forgotten()
        self.differentiates = False
        """Whether a backward pass of the function's own has run (``.backward()``, ``torch.autograd.grad``)."""
        self.backward_begins: Callable[[], None] = lambda: None
        self.asked_for_gradients: Callable[[Sequence[Any], Sequence[Any]], None] = lambda outputs, targets: None
        """Called before a ``torch.autograd.grad`` of the function's."""
        self.backward_is_done: Callable[[bool, bool, Sequence[Any]], None] = lambda keeps, creates, targets: None
        """Called around a ``.backward()`` of the function's; ``targets``: its ``inputs``."""
        self.questions = Questions(lambda: self.reals, self.listeners)
        self.texts = Texts(self.reads, self.questions, lambda: not (self.runs_at_level or self.bodies.given))
        self.symbols.floats.shown = self.texts.of_number
        self.checks: str | None = None
        self.inside_subclass = False
        self.watch: Watch | None = None  # of Python state; the recorded run compares with what the dry run met
        self.printed: list[Printed] = []  # and logged, and warned of
        self.runs_again = False
        """Whether a pullback has run the function again: what that writes to Python state happened when it was
        called."""
        self.numbers_put: Sequence[tuple[Place, Any, Any]] = ()
        """Where it has put symbols for numbers of Python state, what was there, and these."""
        self.given_anew = set[Any]()
        """The identities of the places from which each call takes tensors that it gives by value."""
        self.copies: Sequence[tuple[Tensor, Tensor]] = ()
        """Captured tensors that a function which runs again writes to, and the copies it is given instead."""
        self.ignores_requires_grad = False
        """Whether stand-ins require no grad where the real tensors do, since grad mode is off."""
        self.enables_grad_itself = False  # whether it is a gradient that is traced, which switches grad mode on itself
        self.at_level = 0
        """The level of autograd the program is for (0: none): what it closes over may be of that level, and of those
        it lies in."""
        self.runs_at_level = False
        """Whether the program is for a level of torch.func: the dry run and the recorded run read the same there."""
        self.varying: frozenset[str] = frozenset()
        """Where the function returns, or stores, numbers that are others for other sizes, which are no symbols in
        this run."""
        self.plays: tuple[str, object] | None = None
        """The node of a captured backward pass that is played, by name."""
        self.is_split = False
        """Whether the backward pass through what the function returns is traced, too, as a program of its own."""
        self.is_as_torch_func = False
        """Whether a backward pass runs as a transform of torch.func would run it."""
        self._depth = 0

    # ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def input(self, slot: Slot, real: Tensor, requires_grad: bool, dims: Collection[int] = ()) -> Tensor:
        """A functional fake of ``real`` (sizes, strides, dtype, device) that is an input of the graph under
        ``slot``; its sizes along ``dims`` are symbols."""
        functional = self._symbolic_stand_in(slot, real, dims) if dims else self.plain_stand_in(real)
        self._enter(slot, functional)
        return functional.requires_grad_(requires_grad)

    def _enter(self, slot: Slot, functional: Tensor) -> list[Slot]:
        """Make a tensor of the trace an input of the graph; a wrapper subclass goes in as its inner tensors."""
        self._note_wrapping(slot, functional)
        entered = parts(slot, functional)
        for own, inner in entered:
            fake = from_functional(inner)
            self.reads.tape.forget(fake)  # it may have been made like another tensor
            self._placeholder(own, fake)
        return [own for own, _ in entered]

    def _note_wrapping(self, slot: Slot, value: Any) -> None:
        wrapping = Wrapping.of(value)
        if wrapping is not None:
            self.wrappings[slot] = wrapping

    def plain_stand_in(self, real: Tensor) -> Tensor:
        """A functional fake of ``real`` that requires no grad; of a wrapper subclass, a subclass of functional
        fakes."""
        require_traceable(real, None)
        wrapping = Wrapping.of(real)
        if wrapping is not None:
            inner = [self.plain_stand_in(t) for t in inner_tensors(real)]
            with without_function_modes(), outside_transforms(), self.fakes, self.functional, torch.no_grad():
                return wrapping.build(iter(inner)).requires_grad_(False)
        # f may meet its first captured tensor in the middle of a vmap of its own
        with without_function_modes(), outside_transforms():
            with without_modes():
                fake = self.fakes.from_tensor(detached(real), static_shapes=True)
            self._give(fake, real)
            with self.fakes, self.functional, torch.no_grad():
                return to_functional(fake)

    def _symbolic_stand_in(self, slot: Slot, real: Tensor, dims: Collection[int]) -> Tensor:
        require_traceable(real, None)
        with without_function_modes(), outside_transforms(), without_modes():
            fake = self.symbols.tensor(str(slot), detached_part(real), dims)
        self._give(fake, real)
        with self.fakes, self.functional, torch.no_grad():
            return to_functional(fake)

    def _give(self, fake: Tensor, real: Tensor) -> None:
        """What Python reads of a fake is read of the real tensor; of one of a vmap's, which is another one in each
        sample, of none."""
        value = below_levels(real)
        if value is not None:
            self.reads.tape.give(fake, value)

    def bind(self, real: Tensor, functional: Tensor, where: str | None = None) -> None:
        """From now on ``functional`` stands for ``real``, wherever the function meets it."""
        self.captured[id(real)] = Lifted(real, functional, where)

    def stands_for(self, value: Any, real: Tensor) -> bool:
        """Whether a value of the trace is what stands for a real tensor, wherever the function meets it."""
        if self.reals.get(id(value)) is real:  # an argument: that it is captured, too, is what is noted
            self.lift(real)
        return id(real) in self.captured and self.captured[id(real)].functional is value

    @contextlib.contextmanager
    def binding(
        self, pairs: Sequence[tuple[Tensor, Tensor]], copies: Sequence[tuple[Tensor, Tensor]] = ()
    ) -> Iterator[None]:
        """Inside, other tensors stand for these real ones; ``copies``: those among them that are written to."""
        outer, self.copies = self.copies, copies
        before = {id(real): self.captured.get(id(real)) for real, _ in pairs}
        for real, own in pairs:
            self.bind(real, own)
        try:
            yield
        finally:
            self.copies = outer
            self.captured = {key: known for key, known in (self.captured | before).items() if known is not None}

    def cotangent(self, out: Slot, value: Tensor) -> Tensor:
        """A new input: the incoming gradient of an output, in a dense layout. It starts the backward pass."""
        slot = Cotangent(out)
        if not isinstance(value, FunctionalTensor):
            functional = self._subclass_cotangent(value)
            self.late += self._enter(slot, functional)
            return functional
        own = from_functional(value)  # under the trace's modes: it may replay views, which must be recorded
        with without_modes(), self.fakes:
            fake = torch.empty_like(own)
        with self.fakes, self.functional, torch.no_grad():
            functional = to_functional(fake)
        self.late.append(slot)
        self._placeholder(slot, fake)
        return functional

    def _subclass_cotangent(self, value: Tensor) -> Tensor:
        """Its own class says how a gradient is made (a DTensor's is no partial sum); none of that is recorded."""
        with having(self, graph=None), torch.no_grad():
            like = torch.empty_like(value)
            return like.__coerce_tangent_metadata__() if hasattr(like, "__coerce_tangent_metadata__") else like

    def reread(self, touched: Tensor) -> None:
        """The caller's Python touches, in backward, the memory of an input: from here on it holds what it holds *then*.

        Between forward and backward the caller may write to it; and a backward that runs twice sees what the first one
        wrote.
        """
        for inner in inner_tensors(touched):
            self._reread(inner)

    def _reread(self, touched: Tensor) -> None:
        slot, functional = self.rereads.pop(storage_id(touched), (None, None))
        if slot is None or functional is None:
            return
        with outside_transforms():  # a backward of the caller's may touch it in the middle of a vjp of its own
            with without_modes(), self.fakes:
                own = from_functional(functional)
                fake = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device=own.device)
            self.late.append(Late(slot))
            node = self._placeholder(Late(slot), fake)
            if node is not None:
                tag(node, Tag.MUST_BE_IN_BACKWARD, "read when backward runs, as eager PyTorch reads it")
            replace_value(functional, fake)

    def mark_start_of_backward(self, tensor: Tensor) -> Tensor:
        """What is computed from ``tensor`` belongs to the backward pass."""
        for inner in inner_tensors(tensor) if self.graph is not None else ():
            node = self.result(inner)
            node.meta["where"] = None  # no line of the caller's says this
            tag(
                node, Tag.MUST_BE_IN_BACKWARD, "the gradient of the result with respect to itself: backward starts here"
            )
        return tensor

    @contextlib.contextmanager
    def nesting(self) -> Iterator[bool]:
        """Entered by every definition as it is called; True for the one that is being traced, False for one it
        calls."""
        with having(self, _depth=self._depth + 1):
            yield self._depth == 1

    def symbolic_number(self, slot: Slot, value: float) -> Any:
        """A symbolic float or int as an input: comparisons on it become guards, arithmetic on it becomes scalar
        expressions."""
        symbol = self.symbols.floats.symbol(str(slot), value)
        node = self._placeholder(slot, symbol)
        if node is not None:
            self.symbol_is(symbol.node.text, node)
        return symbol

    def is_view_here_alone(self, tensor: Tensor) -> bool:
        """Whether a tensor may be none that autograd knows to be a view but in this trace: it looks otherwise since
        (``t_``); or it stands for an input in the run that is recorded."""
        named = self.lineage.named(tensor)
        return self.graph is not None or (named is not tensor and not self.reals.get(id(named), named)._is_view())

    def lift(self, real: Tensor) -> Tensor:
        """The stand-in for a real tensor met inside the function."""
        if is_zero_tensor(real):  # made by forward mode, for a tangent that nothing depends on
            with self.functional:
                return torch.zeros(real.shape, dtype=real.dtype, device=real.device)
        if id(real) not in self.captured:
            if self._stand_in_for is None:
                raise refusals.CAPTURE_IN_TWO_RUNS(type_text(real), where=user_line())
            require_traceable(real, user_line())
            self.questions.require_no_base(real)
            if self.pullback is not None:
                self.saved_outside[id(real)] = real
            self.bind(real, self._stand_in_for(real), user_line())
            self.bodies.entered(self.captured[id(real)].functional)
        return self.captured[id(real)].functional

    def operand(self, value: Any) -> Any:
        """What a call is made with: the tensors of the trace for real ones."""
        if isinstance(value, Tensor):
            known, traced = value, is_traced(value)
            if traced:
                value = self.lineage.current(value)
            if traced and any(fake_mode_of(inner) not in (None, self.fakes) for inner in inner_tensors(value)):
                raise refusals.TENSOR_LEFT_BEHIND(type_text(value), where=user_line())
            if traced or isinstance(value, FakeTensor) or is_bare_functional(value):
                value = self._read_now(value)
            elif is_transform_wrapper(value) and id(value) not in self.captured:
                value = self._own_level(value)
            else:
                value = self._read_now(self.lineage.current(self.lift(value)))
            return self.bodies.met(known, value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, (Tensor, list, tuple)) for v in value):
            items = [self.operand(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def _read_now(self, value: Tensor) -> Tensor:
        self.forgotten.require_whole([value])
        if self.rereads and self.current_pass == "backward" and is_traced(value):
            self.reread(value)
        return value

    def _own_level(self, wrapper: Tensor) -> Tensor:
        """A wrapper made by a transform inside the function wraps our tensors, or zeros of forward mode; one from
        outside a real one."""
        inner = unwrap_transform(wrapper)
        if isinstance(inner, FakeTensor) or is_traced(inner) or is_bare_functional(inner) or is_zero_tensor(inner):
            return wrapper
        if is_dead(wrapper):
            own = alive(wrapper)
            self.saved_outside[id(own)] = wrapper
            return self.operand(own)  # type: ignore[no-any-return]
        if self.at_level and level_of(wrapper) <= self.at_level:
            return self._read_now(self.lineage.current(self.lift(wrapper)))
        error = refusals.OF_OUTER_TRANSFORM(type_text(inner), where=user_line())
        place = self.watch.places_of([wrapper]).get(id(wrapper)) if self.watch else None
        error.place = self.watch.from_root(place) if place and self.watch else None
        raise error

    def stand_ins(self) -> set[int]:
        """The identities of what stands for inputs and captured tensors."""
        return self.inputs | {id(lifted.functional) for lifted in self.captured.values()}

    def is_own(self, tensor: Tensor) -> bool:
        """Whether the function made a tensor, and what it is a view of."""
        root = self.lineage.root(tensor)
        return is_traced(root) and id(root) not in self.stand_ins() and not self.lineage.is_unknown(root)

    def stand_in(self, value: Tensor) -> Tensor:
        """A tensor of the function's result as one of the trace: it may have returned a real one, or made a subclass
        of one."""
        if not is_traced(value):
            return self.lift(value)
        for inner in inner_tensors(value):
            if not is_traced(inner):
                self.lift(inner)
        return value

    def named(self, value: Any) -> Any:
        """A leaf of the result as the tensor the function knows it by."""
        return self.lineage.named(self.stand_in(value)) if isinstance(value, Tensor) else value

    def function_operand(self, value: Any) -> Any:
        """An argument of ``autograd.Function.apply``, which no torch-function mode sees."""
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or is_transform_wrapper(value):
            return value
        operand = self.lineage.current(self.stand_in(value))
        if self.graph is None:
            self.forgotten.handed_to_python(operand)
        elif self.writes.custom_functions == 1:
            renew_history(operand)
        return operand

    def current(self, value: Any) -> Any:
        """What a leaf of the result has become (see ``Lineage.current``)."""
        return self.lineage.current(value) if isinstance(value, Tensor) else value

    # ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the function under the modes; errors that come from tracing get their funcgrad name.

        What it runs of the caller's, it runs inside ``lifter``; and in a copy of the context, as no variable of it can
        be unset.
        """
        return copy_context().run(self._run, function, args, kwargs)

    def _run(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        token = _active.set(self)
        try:
            with (
                keeping(self.printed),
                replacing(self.replacements),
                torch.autograd.set_multithreading_enabled(False),
                self.symbols.followed(),
                self.fakes,
                self.tracer,
                self.functional,
            ):
                result = function(*args, **kwargs)
            if self.refused is not None:
                raise self.refused  # the function caught it, and went on as if the value were not to be had
            self.draws.require_settled()
            return result
        except Exception as error:
            is_named = isinstance(error, (FuncgradError, NotSymbolicError))
            named = error if is_named else named_error(error, self.reads.allowed, self.reads.callback)
            if named is None and isinstance(self.refused, FuncgradError):  # C++ made another error of it
                named = self.refused
            if self.symbols and not isinstance(named, (GraphError, NotSymbolicError)) and not is_defect(error):
                # the values say whether it is for symbols alone
                raise NotSymbolicError(f"{type(error).__name__}: {error}") from error
            refuses = isinstance(named, FuncgradError) and self.graph is None and not is_of_first_call(named)
            if refuses or self.writes.have_happened:
                put_out_again(self.printed)  # it may say why
            if named is None or named is error:
                raise
            raise named from error
        finally:
            self.reads.release()
            _active.reset(token)

    def written(self) -> Written:
        """What the function has written to Python state by now."""
        assert self.watch is not None
        reals = {id(lifted.functional): lifted.real for lifted in self.captured.values()} | self.reals
        # what is looked at to compare it (keys of dicts may be tensors), the function has not read
        with unheard(), without_function_modes():
            said, shown = self.watch.said, self.texts.shown
            return Written(
                self.watch, said, lambda t: reals.get(id(t), t), self.varying, self.printed, shown, self.inputs
            )

    def text_of(self, tensor: Tensor, how: str | None = None) -> str | None:
        known = None if is_bare_functional(tensor) else self.operand(tensor)
        if how is not None:
            return self.texts.of_item(known, how)
        if self.ignores_requires_grad:
            raise GradientsMatter
        return self.texts.of(tensor, known, self.watch)

    def late_nodes(self) -> dict[Slot, fx.Node]:
        """The inputs that are read again in backward, each with its node."""
        return {slot.of: self.placeholder_of[slot] for slot in self.late if isinstance(slot, Late)}

    @contextlib.contextmanager
    def backward_pass(self) -> Iterator[None]:
        """What is recorded inside belongs to a backward pass."""
        self.writes.forward_is_done()
        with having(self, current_pass="backward"), backward_under(self._backward_autocast):
            yield

    def result(self, value: Any) -> Any:
        """What the graph returns for one leaf of the function's result: a node, or the constant itself."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._scalar_node(value)
        if not isinstance(value, Tensor):
            return value
        fake = from_functional(self.stand_in(value))
        if is_zero_tensor(fake) and not self.knows(fake):  # a look at zeros of forward mode, taken anew
            zeros = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).zero_()
            fake = from_functional(zeros)
        return self.node(fake)

    def results(self, slot: Slot, value: Any) -> dict[Slot, Any]:
        """What the graph returns for the value of one output slot: a wrapper subclass comes out as its inner
        tensors."""
        if not isinstance(value, Tensor):
            return {slot: self.result(value)}
        tensor = self.stand_in(value)
        self._note_wrapping(slot, tensor)
        return {own: self.result(inner) for own, inner in parts(slot, tensor)}
