"""What a function's bytecode mentions: names, attributes, and how each of them is used (``uses.py``)."""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import frozen

from .uses import ATTRIBUTE, CELL, CONSTANT, GLOBAL, LOADS, Ahead, Use, subscripts, use_at, without_padding

_IMPORTS = ("IMPORT_FROM", "STORE_", "SWAP", "POP_TOP")
"""What follows ``IMPORT_NAME`` of what is imported."""
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "vars", "asdict", "astuple", "dir"}
_GETTERS = {"attrgetter"}
_TEXTS = {
    "str", "repr", "format", "__format__", "__str__", "__repr__", "format_map", "print", "ascii",
    "array2string", "array_repr", "array_str",
}  # fmt: skip
"""Ways to make a text of a value; ``__format__`` stands for those that are instructions."""
_PAST_HOOKS = {"__getattribute__", "getattr_static", "__get__"}
"""Ways to read an attribute of an object of which its class does not hear."""
_ASK = {
    **dict.fromkeys(("fields", "asdict", "astuple"), "__dataclass_fields__"),
    **dict.fromkeys(("get_type_hints", "get_annotations"), "__annotations__"),
    **dict.fromkeys(("signature", "getfullargspec"), "__signature__"),
    "getdoc": "__doc__",
}
"""Functions of Python's library, and what they ask a class, or a function, for: no code of the caller's says it."""
_SETS_BY_NAME = {"setattr", "delattr", "__setattr__", "__delattr__"}
_LOOK = {"isinstance", "issubclass", "super"}
SAID_OF_THEMSELVES = {"__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "__annotations__"}
"""By functions and classes."""
UNSEEN = {"globals", "locals", "eval", "exec", "input"}
"""Builtins that read what no guard can watch."""


@frozen
class Mentions:
    """What a code object, nested ones included, mentions. ``strings`` are its constants: they may name attributes or
    keys. ``stored`` are globals, ``assigned`` attributes that it writes to."""

    globals: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    strings: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Attributes and variables that it gives another value than one that counts on."""
    uses: Mapping[str, frozenset[Use]] = {}
    used: frozenset[str] = frozenset()
    """Names with which more is done than to look at a class (``isinstance``, ``except``, ``super``, an attribute of
    it)."""
    compared: frozenset[str] = frozenset()
    """Instructions that compare objects by identity (``is``, but for ``is None``, ``in``)."""
    types: frozenset[str] = frozenset()
    """``type``, where code asks for the type of what may be a number, and does more with it than to read an
    attribute of it."""

    of_functions: frozenset[str] = frozenset()
    """What it asks of that which functions say of themselves, too, where it may be a function's."""
    lacked: frozenset[str] = frozenset()
    """Attributes of which it goes on where an object has none of this name (``except AttributeError``)."""
    chains: frozenset[tuple[str, ...]] = frozenset()
    """Names, and modules by import, each with the attributes that are read of it one after the other, if any."""
    aliases: frozenset[tuple[str, str]] = frozenset()
    """Variables, and the modules they are imported from."""
    unseen: frozenset[str] = frozenset()
    """Builtins by which it reads what stands nowhere in it."""

    @property
    def modules(self) -> frozenset[str]:
        """The modules it imports, and what may name one."""
        by_text = {"import_module", "__import__"} & (self.attributes | self.globals)
        return self.imports | self.strings if by_text else self.imports

    @property
    def by_name(self) -> bool:
        """Whether attributes are reached whose names stand nowhere (``getattr(cfg, key)``, ``vars(cfg)``)."""
        return bool(
            (self.globals & _BY_NAME)
            or (self.globals | self.attributes) & _GETTERS
            or "__dict__" in self.attributes
            or self.past_hooks
        )

    @property
    def past_hooks(self) -> bool:
        """Whether attributes may be read where no hook hears of it (``object.__getattribute__(x, "name")``)."""
        return bool((self.globals | self.attributes) & _PAST_HOOKS)

    @property
    def makes_texts(self) -> bool:
        """Whether it may make a text of a value."""
        return bool((self.globals | self.attributes) & _TEXTS)

    @property
    def set_by_name(self) -> bool:
        """Whether attributes are written to whose names are strings."""
        return bool((self.globals | self.attributes) & _SETS_BY_NAME)

    @property
    def sets(self) -> frozenset[str]:
        """The attributes that it may write to."""
        return self.assigned | self.strings if self.set_by_name else self.assigned

    @property
    def compares_objects(self) -> bool:
        """Whether it may decide anything that two objects are one."""
        methods = {"index", "count", "remove"}  # of lists
        return bool(self.compared) or bool(self.attributes & methods) or self.compares_identities

    @property
    def compares_identities(self) -> bool:
        """Whether it is asked whether two objects are one, whatever they hold."""
        by_name = {"is_", "is_not"} & (self.globals | self.attributes)
        return "IS_OP" in self.compared or "id" in self.globals or bool(by_name)


def together(parts: Sequence[Mentions]) -> Mentions:
    """What any of them mentions."""
    uses: dict[str, set[Use]] = {}
    for part in parts:
        for name, own in part.uses.items():
            uses.setdefault(name, set()).update(own)
    merged = {name: frozenset(own) for name, own in uses.items()}
    fields = [field.name for field in attrs.fields(Mentions) if field.name != "uses"]
    return Mentions(**{f: frozenset().union(*(getattr(p, f) for p in parts)) for f in fields}, uses=merged)


def with_nested(code: types.CodeType) -> list[types.CodeType]:
    """The code, and that of all functions and classes that it makes."""
    found = [code]
    for own in found:
        found += [c for c in own.co_consts if isinstance(c, types.CodeType)]
    return found


@functools.lru_cache(maxsize=1 << 16)
def mentions(code: types.CodeType) -> Mentions:
    """What a code object mentions."""
    steps = without_padding(code)
    kinds = ("globals", "imports", "attributes", "stored", "assigned", "used", "compared", "types", "of_functions")
    found: dict[str, set[str]] = {name: set() for name in kinds}
    uses: dict[str, set[Use]] = {}
    counts = Counter[str]()
    formats = any(isinstance(constant, str) and "%" in constant for constant in code.co_consts)
    for at, step in enumerate(steps):
        kind = _kind(step.opname)
        if kind is not None:
            found[kind].add(step.argval)
        if step.opname in ("IS_OP", "CONTAINS_OP") and steps[at - 1].opname not in CONSTANT:
            found["compared"].add(step.opname)
        if step.argval in SAID_OF_THEMSELVES and step.opname in ATTRIBUTE and not _is_of_class(steps, at):
            found["of_functions"].add(step.argval)
        if step.opname.startswith("FORMAT_") or (step.opname == "BINARY_OP" and step.argrepr == "%" and formats):
            found["attributes"].add("__format__")
        if step.opname == "MATCH_CLASS" and step.argval:  # case Config(v)
            found["attributes"].add("__match_args__")
        if step.opname == "MATCH_CLASS" and _is_names(named := steps[at - 1].argval):  # case Config(lr=v)
            found["attributes"].update(named)
            for name in named:
                uses.setdefault(name, set()).add(Use((), "read"))
        if step.argval == "type" and step.opname in GLOBAL and not _reads_of_type(Ahead(steps, at + 1)):
            found["types"].add("type")
        if step.opname in LOADS:
            use = use_at(steps, at)
            uses.setdefault(step.argval, set()).add(use)
            counts[step.argval] += use.then == "count" and not use.keys
            if not _is_looked_at(steps, at):
                found["used"].add(step.argval)
    goes_on = "suppress" in found["globals"] | found["attributes"] or (code.co_exceptiontable and _goes_on(steps))
    lacked = found["attributes"] if goes_on else set[str]()
    by_library = {_ASK[name] for name in _ASK.keys() & (found["globals"] | found["attributes"])}
    found["attributes"] |= by_library
    found["of_functions"] |= by_library
    stores = Counter(step.argval for step in steps if step.opname in _GIVES_VALUE)
    found["replaced"] = {*(stores - counts)}
    texts, unseen = _texts(steps)
    strings = frozenset(c for c in code.co_consts if isinstance(c, str)).union(
        *(c for c in code.co_consts if _is_names(c))
    )
    chains, aliases = _chains(steps)
    own = Mentions(
        **{k: frozenset(v) for k, v in found.items()},
        strings=strings,
        uses={k: frozenset(v) for k, v in uses.items()},
        lacked=frozenset(lacked | by_library),
        chains=chains,
        aliases=aliases,
        unseen=unseen,
    )
    return together([own, *(mentions(c) for c in (*texts, *code.co_consts) if isinstance(c, types.CodeType))])


def _texts(steps: Sequence[dis.Instruction]) -> tuple[list[types.CodeType], frozenset[str]]:
    """The code in texts that stand in other code: ``eval("cfg.lr")``, and ``globals()["cfg"]``, which is ``cfg``; and
    the builtins that are ``UNSEEN`` but there."""
    found, unseen = list[types.CodeType](), set[str]()
    for at, step in enumerate(steps):
        if step.opname not in GLOBAL or step.argval not in UNSEEN:
            continue
        rest = Ahead(steps, at + 1)
        rest = rest.after(1) if rest.ops(0) == "PUSH_NULL" else rest
        is_globals = step.argval == "globals" and rest.ops(0) == "CALL" and rest.value(0) == 0
        rest = rest.after(1) if is_globals else rest
        text, then = rest.value(0), rest.at(1)
        if is_globals:
            is_known = then is not None and subscripts(then) and isinstance(text, str) and text.isidentifier()
        else:
            is_known = step.argval in ("eval", "exec") and isinstance(text, str) and rest.is_call_of_one()
        try:
            if not is_known or rest.ops(0) not in CONSTANT:
                raise SyntaxError
            found.append(compile(str(text), "<string>", "eval" if step.argval != "exec" else "exec"))
        except (SyntaxError, ValueError):
            unseen.add(step.argval)
    return found, frozenset(unseen)


def written_by(code: types.CodeType) -> frozenset[str]:
    """The names under which code writes to Python state: those of containers that it fills among them."""
    said = mentions(code)
    filled = (name for name, uses in said.uses.items() if any(use.then not in ("read", "look", "give") for use in uses))
    return said.stored.union(said.assigned, filled)


@functools.lru_cache(maxsize=1 << 16)
def loads_of(code: types.CodeType) -> frozenset[int]:
    """Where a code object loads attributes by a name that it mentions."""
    return frozenset(step.offset for step in dis.get_instructions(code) if step.opname in ATTRIBUTE)


_STORES = {
    "IMPORT_NAME": "imports",
    "STORE_GLOBAL": "stored",
    "DELETE_GLOBAL": "stored",
    "STORE_ATTR": "assigned",
    "DELETE_ATTR": "assigned",
}


_GIVES_VALUE = {"STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF"}


def _kind(opname: str) -> str | None:
    if opname in GLOBAL:
        return "globals"
    if opname in ATTRIBUTE:
        return "attributes"
    return _STORES.get(opname)


def _chains(steps: Sequence[dis.Instruction]) -> tuple[frozenset[tuple[str, ...]], frozenset[tuple[str, str]]]:
    """``chains`` and ``aliases`` of code."""
    chains, aliases = set[tuple[str, ...]](), set[tuple[str, str]]()
    for at, step in enumerate(steps):
        if step.opname in GLOBAL | CELL or step.opname.startswith("LOAD_FAST"):
            read = itertools.takewhile(lambda s: s.opname in ATTRIBUTE, steps[at + 1 :])
            names = [s.argval for s in read]
            # from Python 3.13 on one step may load two variables
            root = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
            if names or not step.opname.startswith("LOAD_FAST"):
                chains.add((root, *names))
        if step.opname == "IMPORT_NAME":
            taken = list(itertools.takewhile(lambda s: s.opname.startswith(_IMPORTS), steps[at + 1 :]))
            stored = [s.argval for s in taken if s.opname.startswith("STORE_")]
            if steps[at - 1].argval is not None:  # from module import names
                names = [s.argval for s in taken if s.opname == "IMPORT_FROM"]
                chains.update((step.argval, name) for name in names)
                aliases.update((own, f"{step.argval}.{name}") for own, name in zip(stored, names, strict=False))
            elif stored:  # import module.part binds the module, as a name the part
                is_part = "." not in step.argval or taken[0].opname == "IMPORT_FROM"
                aliases.add((stored[0], step.argval if is_part else step.argval.partition(".")[0]))
    return frozenset(chains), frozenset(aliases)


def _goes_on(steps: Sequence[dis.Instruction]) -> bool:
    """Whether a handler of code catches an ``AttributeError``, or what may be one."""
    for at, step in enumerate(steps):
        if step.opname == "PUSH_EXC_INFO" and steps[at + 1].opname == "POP_TOP":  # except:
            return True
        if step.opname == "CHECK_EXC_MATCH":
            kind = vars(builtins).get(steps[at - 1].argval) if steps[at - 1].opname in GLOBAL else None
            if not isinstance(kind, type) or issubclass(AttributeError, kind):
                return True
    return False


def _is_names(constant: object) -> bool:
    return isinstance(constant, (tuple, frozenset)) and all(isinstance(c, str) for c in constant)


def _is_looked_at(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether what is loaded at ``at`` is compared, matched or asked for an attribute, as a class is of which no
    object is made."""
    rest = Ahead(steps, at + 1)
    if rest.ops(0) in {"CHECK_EXC_MATCH", "IS_OP"} | ATTRIBUTE or rest.ops(1) == "MATCH_CLASS":
        return True
    if steps[at].argval == "type" and rest.is_call_of_one():
        rest = rest.after(2)
    if steps[at].argval in ("type", "__class__"):  # compared with what is loaded next, maybe an attribute
        return rest.ops(0) in ATTRIBUTE or any(rest.ops(i) in ("IS_OP", "COMPARE_OP") for i in (1, 2))
    for step in reversed(steps[:at]):
        if step.opname in GLOBAL and step.argval in _LOOK:
            return True
        if not step.opname.startswith(("LOAD_", "PUSH_NULL")):
            break
    return False


def _is_of_class(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether the attribute that is loaded at ``at`` is of ``type(x)``, or of ``x.__class__``."""
    of = steps[at - 1]
    if of.opname != "CALL":
        return bool(of.argval == "__class__")
    loads = itertools.takewhile(lambda step: step.opname.startswith(("LOAD_", "PUSH_NULL")), reversed(steps[: at - 1]))
    return any(step.opname in GLOBAL and step.argval == "type" for step in loads)


def asks_type(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether ``type``, which is loaded at ``at``, is called there, or kept in a variable, or an argument of a call."""
    rest, before = Ahead(steps, at + 1), steps[at - 2].opname if at > 1 else ""
    if "NULL" in steps[at].argrepr:
        return rest.ops(0) not in ATTRIBUTE  # type.__call__(cls, *args)
    if rest.ops(0) in ATTRIBUTE or _compares(rest) or before == "MAKE_FUNCTION":  # a class that is made
        return False
    if rest.ops(0) in ("STORE_FAST", "STORE_DEREF"):
        return True
    for step in reversed(steps[:at]):
        if "NULL" in step.argrepr or step.opname in ("PUSH_NULL", "LOAD_METHOD"):
            return True
        if not step.opname.startswith(("LOAD_", "BUILD_")):
            break
    return False


def asks_type_otherwise(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether more is done with it than that, or to compare it."""
    rest = Ahead(steps, at + 1)
    return not (asks_type(steps, at) or _compares(rest) or rest.ops(1) == "MATCH_CLASS")


def _compares(rest: Ahead) -> bool:
    """Whether what was loaded is compared, with what was loaded before, or is next."""
    return any(rest.ops(i) in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") for i in (0, 1))


def compares_with_object(frame: types.FrameType) -> bool:
    """Whether what a frame loads now is compared by ``is`` with what is not None."""
    steps = without_padding(frame.f_code)
    at = next((i for i, step in enumerate(steps) if step.offset == frame.f_lasti), len(steps))
    rest = Ahead(steps, at + 1)
    while rest.ops(1) in ATTRIBUTE:  # of what it is compared with
        rest = rest.after(1)
    return rest.ops(0) == "IS_OP" or (rest.ops(1) == "IS_OP" and rest.value(0) is not None)


def _reads_of_type(rest: Ahead) -> bool:
    """Whether what follows ``type`` is ``(x).attribute``, or ``(self)``, which is no number."""
    return (
        rest.ops(0).startswith("LOAD_")
        and rest.is_call_of_one()
        and (rest.ops(2) in ATTRIBUTE or rest.value(0) == "self")
    )


def builtins_in(names: frozenset[str], namespace: Mapping[str, object]) -> Iterator[str]:
    """Those of ``names`` that mean the builtin function of that name."""
    yield from (n for n in names if n not in namespace and hasattr(builtins, n))
