"""Where a text goes: whether code does nothing with it but to put it into other texts, and to print, or to log, those.

The question is put to the instructions that follow the one that makes the text: a forward data flow over one basic
block, of one place of the stack.
"""

from __future__ import annotations

import builtins
import dis
import functools
import logging
import string
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from attrs import frozen

from .uses import GLOBAL, stack_use

_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
_BEGINS = (*GLOBAL, *_LOADS, "LOAD_DEREF", "LOAD_CONST")
_PASSED_OVER = ("PRECALL", "CACHE", "KW_NAMES", "PUSH_NULL", "NOP")
_MAKES_OPTIONS = ("BUILD_MAP", "BUILD_CONST_KEY_MAP")
"""What makes the options of a call that has a ``*``, where there is no ``**``."""
_KNOWN = frozenset((
    *_BEGINS, "LOAD_FAST_LOAD_FAST", "LOAD_ATTR", "LOAD_METHOD", "STORE_FAST", "CALL", "CALL_KW", "UNARY_NEGATIVE",
    "BINARY_OP", "BINARY_SUBSCR", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE", "BUILD_STRING",
    "BUILD_TUPLE", "BUILD_LIST",
))  # fmt: skip
"""What may stand between the text and what is done with it."""
_LOOK_AT_LOCALS = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "breakpoint"}
_JUMPS = (*dis.hasjrel, *dis.hasjabs)
_LOGS = ("debug", "info", "warning", "error", "critical", "exception")
_WRITES = ("str", "repr", "format")
_FORMATTER = string.Formatter()


def is_put_out(frame: types.FrameType) -> bool:
    """Whether the text that is asked for in a frame is only printed to standard output, or logged."""
    called = _called_with_text(frame.f_code, frame.f_lasti)
    return bool(called) and all(callee.is_itself(frame) for callee in called)


@frozen
class _Callee:
    """What is called: what an instruction loads, and attributes of that, one of another."""

    begins: str
    name: Any
    attributes: tuple[str, ...]

    @property
    def prints(self) -> bool:
        return self.begins in GLOBAL and self.name == "print" and not self.attributes

    @property
    def logs(self) -> bool:
        return bool(self.attributes) and self.attributes[-1] in _LOGS

    @property
    def writes(self) -> bool:
        return self.begins in GLOBAL and self.name in _WRITES and not self.attributes

    def is_text_of(self, n: int) -> bool:
        """Whether it makes a text of ``n`` texts, which are in it as they are: a method ``format`` of a constant."""
        if self.begins != "LOAD_CONST" or not isinstance(self.name, str) or self.attributes != ("format",) or not n:
            return False
        fields = [(how, conversion) for _, field, how, conversion in _FORMATTER.parse(self.name) if field is not None]
        return all(not (conversion and how) and conversion != "a" for how, conversion in fields)

    def is_itself(self, frame: types.FrameType) -> bool:
        """Whether it is what it is called, in a frame."""
        if self.begins == "LOAD_CONST":
            return True
        found = next((names[self.name] for names in _names_in(frame) if self.name in names), None)
        if self.prints:
            return isinstance(found, types.BuiltinFunctionType)
        if self.writes:
            return found is vars(builtins)[self.name]
        *owners, name = self.attributes
        for attribute in owners:
            # without the caller's Python, which has asked for it itself
            found = vars(found).get(attribute) if hasattr(found, "__dict__") else None
        if isinstance(found, types.ModuleType):
            return vars(found).get(name) is vars(logging)[name]
        return isinstance(found, logging.Logger) and getattr(type(found), name) is getattr(logging.Logger, name)


def _names_in(frame: types.FrameType) -> Iterator[Mapping[str, Any]]:
    yield from (frame.f_locals, frame.f_globals, vars(builtins))


@functools.lru_cache(maxsize=1024)
def _called_with_text(code: types.CodeType, at: int) -> frozenset[_Callee]:
    """What is called with the text that the instruction at an offset makes, by itself or within others, up to what
    puts it out; nothing where something else may be done with it."""
    steps = list(dis.get_instructions(code))
    first = next((i for i, step in enumerate(steps) if step.offset == at), len(steps))
    # what Python 3.11 has specialised calls in the instruction before
    first += first < len(steps) and steps[first].opname == "PRECALL"
    if first == len(steps):
        return frozenset()
    step, flow = steps[first], _Flow(code, steps)
    if step.opname.startswith("CALL"):
        callee, n = _callee(steps, first), step.arg or 0
        if callee is not None and callee.prints:
            return frozenset({callee}) if flow.has_plain_options(first) else frozenset()
        if callee is None or step.opname != "CALL" or not (callee.is_text_of(n) or (callee.writes and n <= 2)):
            return frozenset()
        flow.called.add(callee)
    elif not _formats(step):
        return frozenset()
    return frozenset(flow.called) if flow.is_put_out(first) else frozenset()


class _Flow:
    """What becomes of one text in one code object. ``called``: what is called with it."""

    def __init__(self, code: types.CodeType, steps: Sequence[dis.Instruction]) -> None:
        self._code, self._steps = code, steps
        self._variables = set[str]()
        self.called = set[_Callee]()

    def is_put_out(self, at: int) -> bool:
        """Whether a text that lies on the stack after an instruction is only put into others, and put out."""
        above = 0  # of the text, on the stack
        for i, step in enumerate(self._steps[at + 1 :], at + 1):
            if step.is_jump_target or step.opcode in _JUMPS:
                return False
            if step.opname in _PASSED_OVER:
                continue
            taken, left = stack_use(step) if step.opname in _KNOWN else (None, 0)
            if taken is None:
                return False
            if taken <= above:
                above += left - taken
                continue
            if step.opname == "STORE_FAST":
                return self._variable_is_put_out(step.argval)
            if step.opname.startswith("CALL"):
                callee, n = _callee(self._steps, i), (step.arg or 0)
                is_argument = above < n + (step.opname == "CALL_KW")
                if callee is None or not is_argument:
                    return False
                self.called.add(callee)
                if callee.prints or (callee.logs and n == 1):
                    return callee.logs or self.has_plain_options(i)
                if step.opname != "CALL" or not callee.is_text_of(n):
                    return False
            elif step.opname != "BUILD_STRING" and not (above == 0 and _is_plain(step)):
                return False
            above = 0
        return False

    def _variable_is_put_out(self, name: str) -> bool:
        """The same of a text that is stored in a local variable: by all that reads the variable."""
        if name in self._variables:  # a text into which it was put before
            return True
        self._variables.add(name)
        of_it = [(i, s) for i, s in enumerate(self._steps) if s.opname.startswith("LOAD_FAST") and name in _names(s)]
        is_plain = all(step.opname in _LOADS for _, step in of_it) and _LOOK_AT_LOCALS.isdisjoint(self._code.co_names)
        return is_plain and all(self.is_put_out(i) for i, _ in of_it)

    def has_plain_options(self, at: int) -> bool:
        """Whether a call names all options that it has, and no ``file``."""
        constants = self._code.co_consts
        names = [name for value in constants for name in (value if isinstance(value, tuple) else (value,))]
        takes_options = self._steps[at].opname == "CALL_FUNCTION_EX" and bool((self._steps[at].arg or 0) & 1)
        return "file" not in names and (not takes_options or self._steps[at - 1].opname in _MAKES_OPTIONS)


def _names(step: dis.Instruction) -> tuple[Any, ...]:
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _formats(step: dis.Instruction) -> bool:
    """Whether an instruction makes a text of a value that is not formatted again."""
    how = step.arg or 0
    if step.opname == "FORMAT_VALUE":
        return how & 3 == 0 or (how & 3 < 3 and not how & 4)
    return step.opname in ("FORMAT_SIMPLE", "FORMAT_WITH_SPEC") or (step.opname == "CONVERT_VALUE" and how < 3)


def _is_plain(step: dis.Instruction) -> bool:
    """Whether an instruction formats a text as it is."""
    return step.opname == "FORMAT_SIMPLE" or (step.opname == "FORMAT_VALUE" and not step.arg)


def _callee(steps: Sequence[dis.Instruction], at: int) -> _Callee | None:
    """What a call calls, where that is a name, or a constant, and attributes: ``print``, ``log.info``."""
    call = steps[at].positions
    if call is None or call.col_offset is None:
        return None
    own = [
        s
        for s in steps[:at]
        if _start(s.positions) == _start(call) and s.positions != call and s.opname not in _PASSED_OVER
    ]
    found = list(takewhile(lambda s: s.opname.startswith("LOAD"), reversed(own)))
    n = next((i for i, s in enumerate(found) if s.opname in _BEGINS), None)
    if n is None:
        return None
    return _Callee(found[n].opname, found[n].argval, tuple(str(s.argval) for s in reversed(found[:n])))


def _start(where: dis.Positions | None) -> tuple[int | None, ...]:
    return (None,) if where is None else (where.lineno, where.col_offset)
