"""How code uses a value that it loads: found in the instructions that follow.

Items of builtin containers are read without any hook. Where every use of a name subscripts it by constants
(``cfg["lr"]``), only those items are read; where every use grows it (``log.append(x)``), nothing of it is. A pattern
this module does not know means: all of it.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Hashable, Sequence
from typing import Any

from attrs import frozen

_NO_OPERATION = {"CACHE", "EXTENDED_ARG", "PRECALL", "RESUME", "NOP", "NOT_TAKEN"}
GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
CELL = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
LOADS = GLOBAL | ATTRIBUTE | CELL
CONSTANT = {"LOAD_CONST", "LOAD_SMALL_INT"}
_GROWS = {"append", "extend", "appendleft", "extendleft", "add", "update", "write", "writelines"}
_FAR = 32
"""So many instructions before an argument the function is looked for that it is given to."""
ANY = object()
"""A key that is computed."""


@frozen
class Use:
    """One use of a name: the constants it is subscripted by (``ANY``: something computed), then what happens:
    ``"read"``, ``"grow"`` (a container is added to), ``"store"`` (an item is replaced), ``"count"`` (a number is
    increased by a constant in place), ``"look"`` (it is asked for its keys or its length, not for what it holds),
    ``"give"`` (it is an argument of a function, which reads it if nobody knows better)."""

    keys: tuple[Hashable, ...]
    then: str
    by: tuple[Any, ...] | None = None
    """The type of the constant by which is counted, and the constant: 1 is not 1.0. The methods that add to a
    container. The name of the function, and which of its arguments it is."""

    def at(self, path: tuple[Any, ...]) -> str | None:
        """What happens to the item at these keys; None where it is another one."""
        if any(own is not ANY and own != key for own, key in zip(self.keys, path, strict=False)):
            return None
        if self.then == "look" and len(self.keys) < len(path) and isinstance(path[len(self.keys)], str):
            return None  # of a dict, keys are asked for; items of a list are compared
        return self.then if len(self.keys) == len(path) else "read"


@functools.lru_cache(maxsize=1024)  # several ask for those of one code object, one after the other
def without_padding(code: types.CodeType) -> Sequence[dis.Instruction]:
    """The instructions of a code object that do anything."""
    return tuple(i for i in dis.get_instructions(code) if i.opname not in _NO_OPERATION)


def use_at(steps: Sequence[dis.Instruction], at: int, aliases: bool = True) -> Use:
    """How the value that is loaded at ``at`` is used; ``aliases``: by another name, too."""
    keys: list[Hashable] = []
    rest = Ahead(steps, at + 1)
    while (item := rest.item()) is not None:
        key, rest = item
        keys.append(key)
    stored = rest.past_values(1)
    if stored is not None and stored.ops(0) == "STORE_SUBSCR":
        return Use((*keys, rest.key_until(stored)), "store")
    if (
        rest.ops(0) in CONSTANT
        and rest.ops(1) == rest.ops(2) == "COPY"
        and rest.ops(4) in CONSTANT
        and rest.ops(8) == "STORE_SUBSCR"
    ):
        third, by = rest.at(3), _added(rest.value(4), rest.at(5))
        if third is not None and subscripts(third) and by is not None:
            return Use((*keys, _hashable(rest.value(0))), "count", by)
    if rest.ops(0) in ("LOAD_METHOD", "LOAD_ATTR") and rest.value(0) in _GROWS:
        return Use(tuple(keys), "grow", (rest.value(0),))
    if rest.is_put_first():
        return Use(tuple(keys), "grow", ("insert",))
    if not keys and rest.is_extended(str(steps[at].argval)):
        return Use((), "grow", ("extend",))
    if aliases and rest.ops(0) == "STORE_FAST" and (methods := rest.methods_of(str(rest.value(0)))) is not None:
        return Use(tuple(keys), "grow", methods)
    if rest.ops(0) in {"CONTAINS_OP", "TO_BOOL"} | _BRANCHES or (not keys and _is_measured(steps, at)):
        return Use(tuple(keys), "look")
    by = _added(rest.value(0), rest.at(1))
    if not keys and rest.ops(0) in CONSTANT and by is not None:
        store = rest.at(3) if rest.ops(2) == "SWAP" else rest.at(2)
        if store is not None and store.opname.startswith("STORE_") and store.argval == steps[at].argval:
            return Use((), "count", by)
    to = _given_to(steps, at, rest.start)
    return Use(tuple(keys), "read" if to is None else "give", to)


def _given_to(steps: Sequence[dis.Instruction], at: int, end: int) -> tuple[str, int] | None:
    """The name of the function in whose call the value that is loaded at ``at``, and on the stack before ``end``, is
    an argument by position, and which one. None: it is none."""
    if "NULL" in steps[at].argrepr or (end < len(steps) and steps[end].opname in ATTRIBUTE):
        return None  # it is called, or asked for an attribute
    for callee in range(at - 1, max(at - _FAR, 0) - 1, -1):
        step, args = steps[callee], Ahead(steps, callee + 1)
        is_called = "NULL" in step.argrepr or steps[callee - 1].opname == "PUSH_NULL" or args.ops(0) == "PUSH_NULL"
        if step.opname in GLOBAL | CELL and is_called:
            which = args.after(args.ops(0) == "PUSH_NULL").argument_before(end)
            if which is not None:
                return step.argval, which
    return None


@functools.lru_cache(maxsize=1 << 16)
def grown_arguments(code: types.CodeType) -> dict[int, tuple[Any, ...] | None]:
    """The methods by which a function adds to what it is given, for each of its arguments by position; None where it
    may do anything else with it."""
    steps, names = without_padding(code), code.co_varnames[: code.co_argcount]
    all_of = not {"locals", "vars", "eval", "exec"}.isdisjoint(code.co_names)
    return {
        i: None if all_of or name in code.co_cellvars else Ahead(steps, 0).methods_of(name)
        for i, name in enumerate(names)
    }


_BRANCHES = {"POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"}
_CALLS = {"CALL": 2, "CALL_KW": 3}
"""How many places a call takes, besides those of its arguments."""
_TAKES = {
    **dict.fromkeys(("PUSH_NULL", "KW_NAMES"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "UNARY_NEGATIVE", "UNARY_NOT", "STORE_FAST"), 1),
    **dict.fromkeys(("FORMAT_SIMPLE", "CONVERT_VALUE"), 1),
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "FORMAT_WITH_SPEC"), 2),
    "LOAD_SUPER_ATTR": 3,
}
_TAKES_EACH = {"BUILD_STRING": 1, "BUILD_TUPLE": 1, "BUILD_LIST": 1, "BUILD_SLICE": 1, "BUILD_MAP": 2}
"""Those of so many places for each that their argument counts."""


def stack_use(step: dis.Instruction) -> tuple[int | None, int]:
    """How many places of the stack an instruction takes, and how many it leaves; None where it may branch, or nobody
    knows."""
    name, n = step.opname, step.arg or 0
    if name in _CALLS:  # Python 3.11 counts the arguments as taken where it prepares the call
        return n + _CALLS[name], 1
    if name == "FORMAT_VALUE":
        taken = 1 + bool(n & 4)
    elif name in _TAKES_EACH:
        taken = n * _TAKES_EACH[name]
    elif name in _TAKES or name.startswith("LOAD_"):
        taken = _TAKES.get(name, 0)
    else:
        return None, 0
    return taken, taken + dis.stack_effect(step.opcode, step.arg)


@frozen
class Ahead:
    """The instructions from one on."""

    steps: Sequence[dis.Instruction]
    start: int

    def at(self, i: int) -> dis.Instruction | None:
        return self.steps[self.start + i] if self.start + i < len(self.steps) else None

    def ops(self, i: int) -> str:
        step = self.at(i)
        return "" if step is None else step.opname

    def value(self, i: int) -> object:
        step = self.at(i)
        return None if step is None else step.argval

    def is_call_of_one(self) -> bool:
        """Whether a function is called with one argument: ``type(x)``, and not the ``x()`` of ``type(x())``."""
        return self.ops(1) == "CALL" and self.value(1) == 1

    def after(self, n: int) -> Ahead:
        return Ahead(self.steps, self.start + n)

    def item(self) -> tuple[Hashable, Ahead] | None:
        """The key by which an item is taken of what was loaded, and what follows: ``x[key]``,
        ``x.setdefault(key, [])``."""
        is_default = self.ops(0) in ("LOAD_METHOD", "LOAD_ATTR") and self.value(0) == "setdefault"
        key = self.after(1) if is_default else self
        end = key.past_values(1 + is_default)
        if end is None or (step := end.at(0)) is None:
            return None
        last = end.after(-1)
        if is_default:
            is_item = last.ops(0) in ("BUILD_LIST", "BUILD_MAP") and not last.value(0) and step.opname == "CALL"
        else:
            is_item = subscripts(step) and last.ops(0) != "BUILD_SLICE"
        return (key.key_until(last if is_default else end), end.after(1)) if is_item else None

    def key_until(self, end: Ahead) -> Hashable:
        """The key that the instructions up to others compute."""
        return _hashable(self.value(0)) if end.start == self.start + 1 and self.ops(0) in CONSTANT else ANY

    def past_values(self, n: int) -> Ahead | None:
        """What takes the next ``n`` values from the stack, and what was there before; None where it is not these, or
        where there are branches on the way."""
        depth, rest = 0, self
        while (step := rest.at(0)) is not None:
            taken, left = stack_use(step)
            if taken is None or taken > depth:
                break
            depth, rest = depth - taken + left, rest.after(1)
        return rest if depth == n else None

    def argument_before(self, end: int) -> int | None:
        """Which argument of the call for which these instructions compute the arguments is on the stack before
        ``end``; None: that is none, or some are given by name."""
        depth, rest, which = 0, self, None
        while (step := rest.at(0)) is not None:
            if rest.start == end:
                which = depth - 1
            if step.opname == "CALL" and step.arg == depth:
                return which
            taken, left = stack_use(step)
            if taken is None or taken > depth or step.opname == "KW_NAMES":
                return None
            depth, rest = depth - taken + left, rest.after(1)
            if which is not None and depth <= which:
                return None  # something else has taken it
        return None

    def is_put_first(self) -> bool:
        """Whether an item is put before the others of what was loaded: ``x.insert(0, item)``."""
        is_insert = self.ops(0) in ("LOAD_METHOD", "LOAD_ATTR") and self.value(0) == "insert"
        return is_insert and self.ops(1) in CONSTANT and self.value(1) == 0 and self.value(1) is not False

    def is_extended(self, name: str) -> bool:
        """Whether a list that is made there is added in place to what was loaded: ``x += [item]``."""
        by = self.past_values(1)
        if by is None or by.ops(0) != "BINARY_OP" or by.after(-1).ops(0) != "BUILD_LIST":
            return False
        step = by.at(2 if by.ops(1) == "SWAP" else 1)
        is_stored = step is not None and step.opname.startswith("STORE_") and step.argval == name
        return is_stored and getattr(by.at(0), "argrepr", "") == "+="

    def methods_of(self, variable: str) -> tuple[Any, ...] | None:
        """The methods by which code adds to what a local variable holds; None where it does anything else with it."""
        methods = set[Any]()
        for at, step in enumerate(self.steps):
            if "LOAD_FAST" in step.opname:  # from Python 3.13 on one step may store, or load, another one, too
                names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
                *others, last = names[step.opname.startswith("STORE") :]
                use = use_at(self.steps, at, False) if variable == last else None
                if variable in others or (use is not None and (use.then != "grow" or use.keys)):
                    return None
                methods.update(use.by or () if use is not None else ())
        return tuple(sorted(methods))


def _is_measured(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether ``len`` is called of what is loaded at ``at``, which may be an attribute of a variable."""
    before = [step for step in steps[max(at - 3, 0) : at] if step.opname != "PUSH_NULL"]
    while before and (before[-1].opname in ATTRIBUTE or before[-1].opname.startswith("LOAD_FAST")):
        before.pop()
    is_len = bool(before) and before[-1].opname in GLOBAL and before[-1].argval == "len"
    return is_len and Ahead(steps, at).is_call_of_one()


def subscripts(step: dis.Instruction) -> bool:
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")


def _added(constant: Any, step: dis.Instruction | None) -> tuple[type, Any] | None:
    """What an instruction adds in place, if it is a number; that is ``constant``."""
    if (
        step is None
        or step.opname != "BINARY_OP"
        or step.argrepr not in ("+=", "-=")
        or type(constant) not in (int, float)
    ):
        return None
    return type(constant), constant if step.argrepr == "+=" else -constant


def _hashable(value: object) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)
