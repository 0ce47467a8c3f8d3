"""What a function asks of a tensor besides its values, dtype, sizes and strides: where it lies, whether it is a view,
its attributes.

A stand-in answers as the real tensor does, and the question becomes part of the key: a tensor of which the answer is
another one is for another program. What a program cannot know (an address, a version counter) is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from attrs import define, field, frozen
from torch import SymInt, Tensor, nn

from .. import refusals
from ..autograd_state import has_history
from ..slots import Arg, Captured
from ..state.code import compares_with_object
from ..state.lines import is_users, user_line
from ..subclasses import is_traced
from ..torch_private.fakes import without_modes
from ..torch_private.functional import FunctionalTensor
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import (
    ASKS_BASE,
    ASKS_HISTORY,
    ASKS_HOOKS,
    ASKS_VERSION,
    is_transform_wrapper,
    is_wrapper_subclass,
)
from .listeners import Listeners
from .source_location import asked_by_us

_BY_ANYBODY = {Tensor.data_ptr, Tensor.__reduce_ex__}
"""What is refused of libraries' code, too."""


_OF_STAND_INS = {"elem", "_is_param", "_inference_mode_base"}
"""Attributes that stand-ins have themselves."""


class _Absent:
    def __repr__(self) -> str:
        return "absent"

    def __reduce__(self) -> str:
        return "ABSENT"  # the one of its module


ABSENT = _Absent()
"""The value of an attribute that a tensor does not have."""

IS_PARAMETER = "type({}).__name__"
"""What is asked by ``isinstance(x, nn.Parameter)``."""
_HISTORY = "{0}.grad_fn and {0}.grad_fn.name()"
_METHODS = ("storage_offset", "is_shared", "is_pinned", "_is_view", "is_inference")
_PROPERTIES = ("is_leaf", "retains_grad", "output_nr")
IS_HOOKED = "bool({0}._backward_hooks or {0}._post_accumulate_grad_hooks)"
QUESTIONS: dict[Any, str] = {
    **{getattr(Tensor, name): f"{{}}.{name}()" for name in _METHODS},
    **{getattr(Tensor, name).__get__: f"{{}}.{name}" for name in _PROPERTIES},
    torch.is_inference: "{}.is_inference()",
    ASKS_BASE: "{}._base is None",
    ASKS_HOOKS: IS_HOOKED,
    ASKS_HISTORY: _HISTORY,
}
"""Functions that ask something of a tensor, each with the question as Python over it."""

IS_VIEW = "{}._is_view()"
_OF_THE_REAL = {
    "{}.retains_grad", "{}.output_nr", "{}.is_shared()", "{}.is_pinned()", "{}.is_inference()", IS_VIEW,
    "{}._base is None",
}  # fmt: skip
"""Questions that a stand-in is not like the real tensor in."""
HAS_ATTRIBUTES = "bool({}.__dict__)"
_ATTRIBUTES = "tuple({}.__dict__)"
_ATTRIBUTE = "{{}}.__dict__.get({!r}, absent)"
HOOKS = "tuple(dict({0}._backward_hooks or ()).values())"
HOOKS_AFTER = "tuple(dict({0}._post_accumulate_grad_hooks or ()).values())"
_OFFSET = "{}.storage_offset()"
_ROOM = "{0}.untyped_storage().nbytes() // {0}.element_size() - {0}.storage_offset()"
HAS_MOVED = "not {0}.is_inference() and {0}._version > 0"
_UNKNOWABLE = {
    Tensor.data_ptr: (
        "the address of a tensor (data_ptr())",
        "compare tensors with `is`; ask for addresses outside of the function",
    ),
    ASKS_VERSION: ("the version counter of a tensor (_version)", "ask for it outside of the function"),
    Tensor.is_set_to: (
        "whether two tensors are one memory (is_set_to())",
        "compare tensors with `is`, or their untyped_storage() with ==",
    ),
    Tensor.__reduce_ex__: (
        "for a tensor to be copied by the copy module, or pickled (torch.save)",
        "write x.clone(), or x.detach(); save it outside of the function",
    ),
}


_HOOKS = "for the hooks of a tensor (_backward_hooks)", "ask for them outside of the function"


@frozen(eq=False)
class _History:
    """Stands for the ``grad_fn`` of an input: the graph it belongs to lies outside, and is another one in the next
    call."""

    known_as: str

    @staticmethod
    def called(name: str | None) -> _History | None:
        return None if name is None else _History(name)

    def name(self) -> str:
        return self.known_as

    def __getattr__(self, name: str) -> Any:
        raise refusals.HISTORY_OF_INPUT(name, where=user_line())


@frozen(eq=False)
class Asked:
    """A question to an input, and the answer; ``again``: what the next run is told, if the answer was the same
    throughout the first."""

    slot: Arg | Captured
    question: str
    answer: Any
    again: Any


def answer_of(question: str, tensor: Tensor) -> Any:
    """What a real tensor answers."""
    with without_modes(), without_function_modes():
        return eval(question.format("t"), {"t": tensor, "absent": ABSENT})


@define(eq=False)
class Questions:
    """The questions of one run. ``known`` are answers by the identity of the tensor the function has, for the run
    after the first."""

    reals: Callable[[], Mapping[int, Tensor]]
    listeners: Listeners
    asked: dict[tuple[int, str], list[Any]] = field(factory=dict)
    """By the identity of the real tensor."""
    known: dict[int, dict[str, Any]] = field(factory=dict)
    bases: set[int] = field(factory=set)
    tracked: dict[int, bool] = field(factory=dict)
    """Of inputs of a run in forward mode, which knows no reverse mode, whether they require grad outside."""

    def answer(self, func: Any, original: Any, stand_in: Any) -> Any:
        """The answer of an input; ``NotImplemented`` for any other tensor, which answers itself."""
        if asked_by_us(3):
            return NotImplemented
        if func == ASKS_HOOKS:
            return self._hooks(original)
        if func == ASKS_HISTORY:
            self.listeners.may_be_hooked(stand_in)
        question = QUESTIONS[func]
        known = self.known.get(id(stand_in), {})
        if question in known:
            if func == ASKS_BASE:
                return None if known[question] else stand_in  # whatever it is, it is no None
            return _History.called(known[question]) if func == ASKS_HISTORY else known[question]
        real = self.reals().get(id(original)) if is_traced(original) else original
        if question == _OFFSET and real is None:
            for other in self.reals().values():  # a view of any of them: where it lies goes by where that lies
                self._note(other, question, NotImplemented)
        if real is None or is_wrapper_subclass(real) or self.known:
            return NotImplemented
        if func == ASKS_HISTORY:  # it may have got one since, in the function
            same = has_history(stand_in) == has_history(real)
            name = self._note(real, question, answer_of(question, real) if same else NotImplemented)
            return _History.called(name) if same else NotImplemented
        if question not in _OF_THE_REAL:
            return NotImplemented if isinstance(now := func(stand_in), SymInt) else self._note(real, question, now)
        answer = self._note(real, question, answer_of(question, real))
        if func != ASKS_BASE:
            return answer
        base = func(real)
        if base is not None:
            if compares_with_object(sys._getframe(2)):
                raise refusals.BASE_OF_INPUT(where=user_line())
            self.bases.add(id(base))
        return base

    def _hooks(self, original: Any) -> Any:
        """The hooks of an input, which its stand-in has only if it has none: they are others in each call."""
        real = self.reals().get(id(original)) if is_traced(original) else original
        if real is None or self.known or not is_users(sys._getframe(3).f_code):
            return NotImplemented
        if self.ask(real, IS_HOOKED):
            raise refusals.ASKS_WHAT_CHANGES(*_HOOKS, where=user_line())
        return NotImplemented

    def requires_grad(self, tensor: Tensor, asks_itself: bool) -> Any:
        """Whether a tensor of such a run requires grad, or is a leaf, as the function asks it (``asks_itself``: by
        ``requires_grad``); ``NotImplemented`` where it says so itself."""
        if not self.tracked or not is_users(sys._getframe(2).f_code):
            return NotImplemented
        if id(tensor) not in self.tracked:
            raise refusals.ASKS_OF_TANGENT(where=user_line())
        return self.tracked[id(tensor)] if asks_itself else NotImplemented

    def history(self, original: Any, stand_in: Tensor) -> str | None:
        """The name of the ``grad_fn`` of a tensor, as its text says it."""
        known = self.known.get(id(stand_in), {})
        real = self.reals().get(id(original)) if is_traced(original) else original
        if _HISTORY in known:
            return None if known[_HISTORY] is None else str(known[_HISTORY])
        with without_function_modes():
            if real is not None and not self.known and has_history(stand_in) == has_history(real):
                name = self._note(real, _HISTORY, answer_of(_HISTORY, real))
            else:
                name = stand_in.grad_fn and stand_in.grad_fn.name()
        return None if name is None else str(name).rpartition("::")[2]

    def attribute(self, tensor: Tensor, name: str) -> Any:
        """The value of an attribute that torch does not know, or ``ABSENT``."""
        if name.startswith("__"):
            return ABSENT
        known = self.known.get(id(tensor), {})
        real = self.reals().get(id(tensor)) if is_traced(tensor) else tensor
        is_asked = real is not None and not self.known
        if name == "_is_param":  # of the class by its name, as ``ask_classes`` notes it
            kind = known.get(IS_PARAMETER)
            if kind is None and is_asked and real is not tensor:
                kind = self.ask(real, IS_PARAMETER)  # type: ignore[arg-type]
            return True if kind == nn.Parameter.__name__ else ABSENT
        question = _ATTRIBUTE.format(name)
        if question in known:
            return known[question]
        if not is_asked:
            return ABSENT
        assert real is not None
        value = real.__dict__.get(name, ABSENT)
        if name == "_is_buffer" or not name.startswith("_") or is_users(sys._getframe(2).f_code):
            self._note(real, question, value)
        return value

    def kind(self, tensor: Tensor) -> type:
        """The class of a tensor of the trace."""
        is_parameter = getattr(tensor, "_is_param", False)  # of an input, ``attribute`` says so
        return nn.Parameter if is_parameter else Tensor

    def attributes(self, tensor: Tensor) -> Mapping[str, Any]:
        """The ``__dict__`` of a tensor of the trace; nothing is written to it."""
        real, known = self.reals().get(id(tensor)), self.known.get(id(tensor), {})
        if real is not None and not self.known:
            names = self.ask(real, _ATTRIBUTES)
            own = {name: self.ask(real, _ATTRIBUTE.format(name)) for name in names}
        else:
            own = {name: known[_ATTRIBUTE.format(name)] for name in known.get(_ATTRIBUTES, ())}
        return MappingProxyType(own | set_by_function(tensor))

    def require_no_base(self, real: Tensor) -> None:
        """What an input is a view of may be compared with None, not computed with: the next call's is another one."""
        if id(real) in self.bases:
            raise refusals.BASE_OF_INPUT(where=user_line())

    def ask(self, real: Tensor, *questions: str) -> Any:
        """Ask a real tensor; the last answer. A call in which it gives others is another program's."""
        with without_function_modes():
            answers = [self._note(real, question, answer_of(question, real)) for question in questions]
        return answers[-1]

    def ask_classes(self, reals: Iterable[Tensor]) -> None:
        """Note of which classes captured tensors are: the function has them themselves, so nobody hears of it where it
        asks."""
        for real in (t for t in reals if not is_wrapper_subclass(t)):
            self.ask(real, IS_PARAMETER)

    def lie(self, reals: Iterable[Tensor]) -> None:
        """Note where in their storages some inputs lie, and how large these are: all of them is looked at. Tensors of a
        level of torch.func have none."""
        for real in (t for t in reals if not is_transform_wrapper(t)):
            self.ask(real, _OFFSET, _ROOM)

    def room(self, stand_in: Tensor) -> int:
        """How many elements the memory of an input holds from its first one on."""
        known = self.known.get(id(stand_in), {})
        return int(known[_ROOM] if _ROOM in known else self.ask(self.reals()[id(stand_in)], _ROOM))

    def _note(self, real: Tensor, question: str, answer: Any) -> Any:
        self.asked.setdefault((id(real), question), []).append(answer)
        return answer

    def of(self, slot: Arg | Captured, real: Tensor) -> Iterator[Asked]:
        """What was asked of one input."""
        for (key, question), answers in self.asked.items():
            if key == id(real):
                same = all(a is answers[0] or a == answers[0] for a in answers)
                yield Asked(slot, question, answer_of(question, real), answers[0] if same else NotImplemented)


def set_by_function(tensor: Tensor) -> dict[str, Any]:
    """The attributes that the function gave a tensor of the trace. What a wrapper subclass has, its class gave it."""
    if not isinstance(tensor, FunctionalTensor):
        return {}
    return {name: value for name, value in vars(tensor).items() if name not in _OF_STAND_INS}


def require_bare(inputs: Mapping[int, Tensor], named: Iterable[tuple[Any, Tensor]]) -> None:
    """Raise ``MutationError`` for an attribute that the function set of an argument, by the identity of the real
    tensor."""
    for slot, real in named:
        for name in set_by_function(inputs[id(real)]) if not is_wrapper_subclass(real) else ():
            raise refusals.SETS_ATTRIBUTE(slot, name, where=str(slot))


def refuse_unknowable(func: Any) -> None:
    """Raise ``UnsupportedTensorError`` for what no program can know of a tensor."""
    if func in _UNKNOWABLE and (func in _BY_ANYBODY or is_users(sys._getframe(3).f_code)):
        what, fix = _UNKNOWABLE[func]
        raise refusals.ASKS_WHAT_CHANGES(what, fix, where=user_line())
