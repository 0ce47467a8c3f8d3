"""Random Python programs that read and write state besides tensors: made as text, run in eager PyTorch and compiled, compared, minimised.

A program is a world (source that makes objects), a function that reads and writes some of it and computes with tensors, and a script:
calls of the function, and changes of the world between them. Two worlds are made of one source; one runs in eager PyTorch, in the
other the function is compiled. After every step they must look alike: results, exceptions, all objects, and the generators.
"""

from __future__ import annotations

import ast
import linecache
import os
import random
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import torch

import funcgrad as fg
from funcgrad.transforms.definition import Gradient

from . import python_kinds as kinds
from .python_kinds import Kind
from .python_snapshot import Snapshot, first_difference
from .python_worlds import KINDS

# ── programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Part:
    """A piece of state: its kind, the source that makes it, its name, and how the function gets at it (a key of ``CARRIERS``)."""

    kind: Kind
    number: int
    world: str
    carrier: str

    @property
    def root(self) -> str:
        return self.kind.root.replace("$", str(self.number))

    def inside(self, placed: str, entry: str) -> str:
        """What the function writes for it."""
        if self.carrier == "self":
            return f"self.{self.root}" if placed in ("direct", "loop", "alias", "lambda") and entry in _WITH_SELF else f"host.{self.root}"
        return CARRIERS[self.carrier].replace("@", self.root)

    @property
    def outside(self) -> str:
        """What a change writes for it."""
        return f"host.{self.root}" if self.carrier == "self" else CARRIERS[self.carrier].replace("@", self.root)

    def text(self, template: str, expression: str) -> str:
        return template.replace("@", expression).replace("$", str(self.number))


@attrs.frozen
class Unit:
    """A statement of the function (``@``: the root of a part), or of the script; ``placed`` says where in the function it stands."""

    part: int
    does: str
    template: str
    placed: str = "direct"


@attrs.frozen
class Call:
    """A step of the script that calls the function, so many times."""

    source: str
    times: int = 1


CARRIERS = {
    "global": "@",
    "registry": "REG['@']",
    "hub": "hub.@",
    "nested": "hub.inner['of'].@",
    "function": "get_@()",
    "self": "",
    "argument": "@",
}
"""How the function gets at a part. ``self``: an attribute of the object it is a method of."""

_WITH_SELF = ("method", "decorated method", "module", "callable", "inherited")
ENTRIES = ("function", "function", "closure", "partial", "lambda", "wrapped", "class method", *_WITH_SELF)
PLACED = ("direct", "direct", "direct", "helper", "inner", "loop", "alias", "lambda", "generator", "nested")
TRANSFORMS = ("jit", "jit", "jit", "value_and_grad", "grad")


@attrs.frozen
class Program:
    """Parts, the statements of the function, the script, and how the function is defined, transformed and compiled."""

    parts: tuple[Part, ...]
    units: tuple[Unit, ...]
    steps: tuple[Unit | Call, ...]
    entry: str = "function"
    transform: str = "jit"
    backend: str = "aten"
    result: str = "y"
    number: bool = False
    """Whether the function takes a number, too."""

    def part(self, number: int) -> Part:
        return next(p for p in self.parts if p.number == number)

    @property
    def world(self) -> str:
        """The source of all there is before the function is transformed."""
        lines = [part.world for part in self.parts if part.world]
        by = {carrier: [p.root for p in self.parts if p.carrier == carrier] for carrier in CARRIERS}
        fields = {carrier: ", ".join(f"{n}={n}" for n in names) for carrier, names in by.items()}
        if by["registry"]:
            lines.append(f"REG = dict({fields['registry']})")
        if by["hub"] or by["nested"]:
            inner = f"inner={{'of': types.SimpleNamespace({fields['nested']})}}"
            lines.append(f"hub = types.SimpleNamespace({', '.join(filter(None, [fields['hub'], inner]))})")
        lines += [f"def get_{n}(): return {n}" for n in by["function"]]
        return "\n".join(lines)

    @property
    def text(self) -> str:
        return f"{self.world}\n{self._function()}"

    @property
    def script(self) -> list[str]:
        """The source of each step."""
        return [s.source if isinstance(s, Call) else self.part(s.part).text(s.template, self.part(s.part).outside) for s in self.steps]

    @property
    def bystanders(self) -> set[str]:
        """The names of parts that the function does not mention."""
        used = {unit.part for unit in self.units}
        parts = [p for p in self.parts if p.number not in used and p.carrier == "global"]
        return {name for part in parts for name in _names(part.world)}

    def _function(self) -> str:
        helpers, body = [], ["y = x * 1.0"]
        for i, unit in enumerate(self.units):
            part = self.part(unit.part)
            expression = part.inside(unit.placed, self.entry)
            placed = "helper" if "global " in unit.template and unit.placed not in ("helper", "inner") else unit.placed
            alias = unit.placed == "alias"
            text = part.text(unit.template, f"o{i}" if alias else expression)
            made, stands = _place(placed, text, i, f"o{i} = {expression}\n" if alias else "")
            helpers += made
            body.append(stands)
        if self.number:
            body.append("y = y * k if k != 3 else y.sin()")
        loss = "y.sin().sum()"
        body.append(f"return {self.result}" if self.transform == "jit" else f"return {loss}")
        extra = ", k=2" if self.number else ""
        arguments = "".join(f", {part.root}" for part in self.parts if part.carrier == "argument")
        return "\n".join([*helpers, _define(self.entry, body, extra, arguments, [p.root for p in self.parts if p.carrier == "self"])])

    @property
    def arguments(self) -> str:
        """Objects that each call is given."""
        return "".join(f", {part.root}" for part in self.parts if part.carrier == "argument")


def _names(source: str) -> Iterator[str]:
    """What a source defines."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _place(placed: str, text: str, i: int, alias: str) -> tuple[list[str], str]:
    """What stands before the function, and what in it, for a statement."""
    function = f"def part{i}(y, x):\n{textwrap.indent(text, '    ')}\n    return y"
    if placed == "helper":
        return [function], f"y = part{i}(y, x)"
    if placed == "inner":
        return [], f"{function}\ny = part{i}(y, x)"
    if placed == "nested":
        return [f"def outer{i}():\n{textwrap.indent(function, '    ')}\n    return part{i}"], f"y = outer{i}()(y, x)"
    if placed == "loop":
        return [], f"for turn in range(2):\n{textwrap.indent(text, '    ')}"
    if placed == "generator":
        made = f"@contextlib.contextmanager\ndef part{i}(y, x):\n{textwrap.indent(text, '    ')}\n    yield y"
        return [made], f"with part{i}(y, x) as y:\n    y = y.tanh()"
    if placed == "lambda" and re.fullmatch(r"y = [^\n]*", text):
        return [], f"y = (lambda y, x: {text[4:]})(y, x)"
    return [], alias + text


def _define(entry: str, body: list[str], extra: str, arguments: str, attributes: list[str]) -> str:
    """The function, and ``call``, the transformed function."""
    lines = textwrap.indent("\n".join(body), "    ")
    takes = f"x{arguments}{extra}"
    hosts = "\n".join(f"        self.{a} = {a}" for a in attributes)
    init = "    def __init__(self):\n        super().__init__()\n" + hosts
    if entry in _WITH_SELF:
        name = {"module": "forward", "callable": "__call__"}.get(entry, "f")
        method = textwrap.indent(f"def {name}(self, {takes}):\n{lines}", "    ")
        base = "(nn.Module)" if entry == "module" else ""
        head = "    @transform\n" if entry == "decorated method" else ""
        made = f"class Host{base}:\n{init}\n{head}{method}\n"
        if entry == "inherited":
            made += "class Sub(Host):\n    def f(self, *args, **kwargs): return super().f(*args, **kwargs)\nhost = Sub()\n"
        else:
            made += "host = Host()\n"
        called = {"module": "transform(host)", "callable": "transform(host)", "decorated method": "lambda *a, **k: host.f(*a, **k)"}
        return f"{made}call = {called.get(entry, 'transform(host.f)')}"
    hub = f"class Host:\n{init}\n    pass\nhost = Host()\n" if attributes else ""
    if entry == "closure":
        inner = textwrap.indent(f"def f({takes}):\n{lines}", "    ")
        return f"{hub}def outer():\n    calls = []\n{inner}\n    return f\ncall = transform(outer())"
    if entry == "class method":
        method = textwrap.indent(f"def f(cls, {takes}):\n{lines}", "    ")
        return f"{hub}class Space:\n    @classmethod\n{method}\ncall = transform(Space.f)"
    function = f"{hub}def f({takes}):\n{lines}\n"
    if entry == "partial":
        return f"{hub}def f(unused, {takes}):\n{lines}\ncall = transform(functools.partial(f, 1.5))"
    if entry == "lambda":
        return f"{function}call = transform(lambda *a, **k: f(*a, **k))"
    if entry == "wrapped":
        wrapper = "def twice(g):\n    @functools.wraps(g)\n    def run(*args, **kwargs): return g(*args, **kwargs)\n    return run\n"
        return f"{function}{wrapper}call = transform(twice(f))"
    return f"{function}call = transform(f)"


# ── making them ──────────────────────────────────────────────────────────────────────────────────────────────────


def _number_reads(kind: Kind) -> Iterator[tuple[str, ...]]:
    """Groups of expressions for numbers."""
    for o, a in kind.attributes:
        yield tuple(_at(t, o, a) for t in (*kinds.ATTRIBUTE_READS, *kinds.DICT_ATTRIBUTE_READS))
    for o, a in kind.slots:
        yield tuple(_at(t, o, a) for t in kinds.ATTRIBUTE_READS)
    for places, templates in ((kind.dicts, kinds.DICT_READS), (kind.lists, kinds.LIST_READS), (kind.sets, kinds.SET_READS)):
        for place in places:
            yield tuple(_at(t, place) for t in templates)
    if kind.numbers:
        yield kind.numbers
        yield kind.numbers


def _at(template: str, place: str, attribute: str = "") -> str:
    """A template for a place: what is left of it is ``@`` for the root."""
    return (template.replace("%", attribute) if attribute else template).replace("@", place)


_TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "reads": {"dicts": kinds.DICT_STATEMENTS, "lists": kinds.LIST_STATEMENTS, "tensors": kinds.TENSOR_READS},
    "writes": {"dicts": kinds.DICT_WRITES, "lists": kinds.LIST_WRITES, "sets": kinds.SET_WRITES, "tensors": kinds.TENSOR_WRITES},
    "changes": {"dicts": kinds.DICT_CHANGES, "lists": kinds.LIST_CHANGES, "sets": kinds.SET_CHANGES, "tensors": kinds.TENSOR_CHANGES},
}
_OF_ATTRIBUTES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "reads": ((), ()),
    "writes": (kinds.ATTRIBUTE_WRITES, kinds.DICT_ATTRIBUTE_WRITES),
    "changes": (kinds.ATTRIBUTE_CHANGES, kinds.DICT_ATTRIBUTE_CHANGES),
}


def _statements(kind: Kind, does: str) -> Iterator[tuple[str, ...]]:
    """Groups of statements of a kind: ``reads``, ``writes``, or ``changes``."""
    table = _TABLES[does]
    for places, templates in table.items():
        for place in getattr(kind, places):
            yield tuple(_at(t, place) for t in templates)
    both, with_dict = _OF_ATTRIBUTES[does]
    for o, a in kind.attributes if both else ():
        yield tuple(_at(t, o, a) for t in (*both, *with_dict))
    for o, a in kind.slots if both else ():
        yield tuple(_at(t, o, a) for t in both)
    if getattr(kind, does):
        yield getattr(kind, does)
        yield getattr(kind, does)


def _draw(r: random.Random, kind: Kind, does: str) -> str | None:
    """A statement of a kind."""
    numbers = list(_number_reads(kind)) if does == "reads" else []
    groups = list(_statements(kind, does))
    if not numbers and not groups:
        return None
    if numbers and (not groups or r.random() < 0.65):
        place = r.choice(r.choice(numbers))
        return r.choice(kinds.NUMBER_USES).replace("@", place)
    return r.choice(r.choice(groups))


_STORES_HISTORY = re.compile(r"(= [xy]$|\([xy]\)$|, y\]$)", re.MULTILINE)
"""Statements that store a tensor with its history, of which a gradient makes no promise."""


_DONE = (("reads",), ("reads",), ("writes",), ("reads", "writes"), ("writes", "reads"), ("reads", "reads"), ("reads", "writes", "reads"))
"""What a program does with a part."""


def generate(seed: int) -> Program:
    """The program of a seed."""
    r = random.Random(seed)
    chosen = r.choices(KINDS, [k.weight for k in KINDS], k=r.choice([1, 1, 1, 2, 2, 3, 4]))
    entry = r.choice(ENTRIES)
    transform = "jit" if entry == "decorated method" or any(kind.keeps_history for kind in chosen) else r.choice(TRANSFORMS)
    parts = []
    for number, kind in enumerate(chosen):
        carriers = [*list(CARRIERS)[:-2], "global", "global", "global", *(["self"] * 5 if entry in _WITH_SELF else [])]
        if r.random() < 0.05 and transform == "jit":
            carriers = ["argument"]
        parts.append(Part(kind, number, kind.world.replace("$", str(number)), r.choice(carriers) if kind.world else "global"))
    program = Program(tuple(parts), (), (Call("result = call(A)"),), entry, transform, r.choice(["aten", "aten", "aten", "c"]),
                      r.choice(kinds.RESULTS), r.random() < 0.1)  # fmt: skip
    program = attrs.evolve(program, steps=(Call(f"result = call(A{program.arguments})"),))
    for part in parts:
        for does in r.choice(_DONE):
            program = _extended(r, program, part, does)
    if r.random() < 0.1:
        kind = r.choice([k for k in KINDS if k.world])
        parts.append(Part(kind, len(parts), kind.world.replace("$", str(len(parts))), "global"))  # a bystander
        program = attrs.evolve(program, parts=tuple(parts))
    for _ in range(r.randint(2, 7)):
        if r.random() < 0.55:
            program = _extended(r, program, r.choice(parts), "changes")
        else:
            program = attrs.evolve(program, steps=(*program.steps, _call(r, program)))
    return attrs.evolve(program, steps=(*program.steps, _call(r, program), _call(r, program))[-9:])


def _extended(r: random.Random, program: Program, part: Part, does: str) -> Program:
    """With one more statement, or step, that runs in eager PyTorch (one in ten may raise)."""
    for _ in range(6):
        template = _draw(r, part.kind, does)
        if template is None or (program.transform != "jit" and does == "writes" and _STORES_HISTORY.search(template)):
            continue
        if does == "changes":
            unit = Unit(part.number, does, template)
            candidate = attrs.evolve(program, steps=(*program.steps, unit))
            candidate = candidate if r.random() < 0.3 else attrs.evolve(candidate, steps=(*candidate.steps, _call(r, program)))
        else:
            unit = Unit(part.number, does, template, r.choice(PLACED))
            candidate = attrs.evolve(program, units=(*program.units, unit))
        seen = run(candidate, in_eager)
        errors = [seen.setup] if seen.setup else [step.error for step in seen.steps if step.error]
        if not errors or (not seen.setup and r.random() < 0.1):
            return candidate
    return program


def _call(r: random.Random, program: Program) -> Call:
    x = r.choices("ABCR", [6, 2, 1, 2])[0]
    more = f", {r.choice(['2', '3', 'k=2.5', '1', 'k=4.5'])}" if program.number and r.random() < 0.5 else ""
    call = f"result = call({x}{program.arguments}{more})"
    if program.transform == "jit" and r.random() < 0.1:
        return Call(f"{call}\nbackward(result)")
    return Call(call, 14 if r.random() < 0.05 else 1)


# ── running them ─────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Seen:
    """What one step of the script shows, or one of its calls."""

    step: int = 0
    error: str | None = None
    refused: str | None = None
    crashed: str | None = None
    world: Any = None
    before: Any = None
    """The world before the step, where it was refused."""
    generators: Any = None
    compiles: int = 0
    key: Any = None
    """What it called, and all that was there before it."""


@attrs.define
class Run:
    """What the script shows, step by step, up to the first that is refused or crashes."""

    steps: list[Seen] = attrs.Factory(list)
    warnings: list[str] = attrs.Factory(list)
    setup: str | None = None


_INPUTS = """
A, B, C = torch.tensor([0.3, -0.7, 1.2]), torch.tensor([1.1, 0.4, -0.2]), torch.tensor([[0.3, -0.7, 1.2], [0.1, 0.2, 0.3]])
R = torch.tensor([0.3, -0.7, 1.2], requires_grad=True)
"""
_PRELUDE = compile(kinds.PRELUDE + _INPUTS, "prelude.py", "exec")
_OWN = re.compile(r"(world|const|fuzz_import_)\d*$").match
_MESSAGES = (ValueError, AssertionError, KeyError, NameError, AttributeError, NotImplementedError, RecursionError, SystemError)
"""What a program raises itself, and what it never should; the words of PyTorch's errors on stand-ins may be others."""


def backward(result: Any) -> None:
    """Backward through the tensors of a result."""
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    elif isinstance(result, (list, tuple)):
        for one in result:
            backward(one)
    elif isinstance(result, dict):
        backward(list(result.values()))


Transform = Callable[[Program, Callable[..., Any]], Any]


def run(program: Program, transform: Transform) -> Run:
    """Run a program's script, and write down what can be seen after every step."""
    made: list[tuple[Any, Callable[..., Any]]] = []
    module = types.ModuleType("world")
    space = module.__dict__
    before = dict(os.environ)
    found = Run()
    sys.modules["world"] = module
    filename, text = "world.py", program.text

    def transformed(f: Callable[..., Any]) -> Any:
        made.append((transform(program, f), f))
        return made[-1][0]

    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    def transformed_plainly(f: Callable[..., Any]) -> Any:
        made.append((transform(attrs.evolve(program, transform="jit"), f), f))
        return made[-1][0]

    with warnings.catch_warnings(record=True) as caught, torch.enable_grad():
        warnings.simplefilter("always")
        try:
            _seed()
            exec(_PRELUDE, space)
            known = set(space) - {"A", "B", "C", "R", "SHARED"}
            own = {"transform": transformed, "transform_plainly": transformed_plainly, "backward": backward}
            space |= own
            known |= set(own)
            try:
                exec(compile(text, filename, "exec"), space)
            except Exception as error:
                found.setup = f"{type(error).__name__}: {error}"
                return found
            _run_script(program, space, known, made, found, transform is not in_eager)
        finally:
            sys.modules.pop("world", None)
            for name in [n for n in sys.modules if n.startswith("fuzz_import_")]:
                del sys.modules[name]
            os.environ.clear()
            os.environ.update(before)
    found.warnings = [w.category.__name__ for w in caught if "funcgrad" in w.category.__module__]
    return found


def _run_script(
    program: Program, space: dict[str, Any], known: set[str], made: list[tuple[Any, Any]], found: Run, looks_before: bool
) -> None:
    compiled = [c for c, _ in made if isinstance(c, fg.Compiled)]
    stand_for = {id(c): f for c, f in made}

    def look(without: frozenset[str] = frozenset()) -> Snapshot:
        return _snapshot(Snapshot(_is_own, stand_for), space, known | without)

    times = [step.times if isinstance(step, Call) else 1 for step in program.steps]
    steps = [(i, source) for i, source in enumerate(program.script) for _ in range(times[i])]
    for i, source in steps:
        seen = Seen(i)
        space.pop("result", None)
        misses = sum(c.cache_info().misses for c in compiled)
        before = look() if "call(" in source and looks_before else None
        if before is not None and compiled:
            mentioned = look(frozenset(program.bystanders)) if program.bystanders else before
            seen.key = source, mentioned.ids, [what if not isinstance(what, torch.Tensor) else "" for _, what in mentioned.lines]
        try:
            exec(source, space)
        except fg.FuncgradError as error:
            if isinstance(error, fg.GraphError):  # a defect by its own word
                seen.crashed = f"{type(error).__name__}: {error}"
            seen.refused, seen.before = reason_of(error), before
        except Exception as error:
            seen.error = f"{type(error).__name__}: {error}" if isinstance(error, _MESSAGES) else type(error).__name__
        seen.world, seen.generators = look(), _generators()
        seen.compiles = sum(c.cache_info().misses for c in compiled) - misses
        found.steps.append(seen)
        if seen.refused or seen.crashed:
            return


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _generators() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (numpy[1].tobytes(), *numpy[2:])


def _is_own(module: str | None) -> bool:
    return module is not None and _OWN(module) is not None


def _snapshot(snapshot: Snapshot, space: dict[str, Any], known: set[str]) -> Snapshot:
    for name in sorted(space.keys() - known):
        if name not in ("__builtins__", "__name__", "__doc__", "__package__", "__loader__", "__spec__"):
            snapshot.see(name, space[name])
    for name in sorted(os.environ):
        if name.startswith("FUZZ_"):
            snapshot.see(f"os.environ[{name!r}]", os.environ[name])
    return snapshot


ORDERS = {"grad": ("grads",), "value_and_grad": ("value", "grads")}


def in_eager(program: Program, f: Callable[..., Any]) -> Any:
    """What a program's transform means, in eager PyTorch."""
    return f if program.transform == "jit" else Gradient(f, 0, False, ORDERS[program.transform])


def compile_it(program: Program, f: Callable[..., Any]) -> fg.Compiled:
    """The transform itself."""
    make = {"jit": fg.jit, "grad": fg.grad_compiled, "value_and_grad": fg.value_and_grad_compiled}[program.transform]
    return make(f, backend=program.backend)


def reason_of(error: fg.FuncgradError) -> str:
    """The class of a refusal and its first words, without names."""
    words = [re.sub(r"\S*[\d._'\"`(\[:]\S*", "…", w) for w in error.what.split()]
    return f"{type(error).__name__}: {' '.join(words[:5])}"


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Outcome:
    """How a program went: ``agrees``, ``refused``, ``warned`` (differs, but was warned about), ``differs``, ``crashed``."""

    status: str
    reason: str = ""
    detail: str = ""
    step: int = 0
    compiles: int = 0
    worlds: int = 0
    """How many different ones its calls found: what it mentions of them, and its arguments."""
    again: int | None = None
    """The first step that compiled in a world in which an equal call had run."""
    warnings: tuple[str, ...] = ()

    @property
    def sort(self) -> tuple[str, str]:
        """What stays the same while a program is minimised."""
        return ("agrees", "compiles again") if self.status == "agrees" and self.again is not None else (self.status, self.reason)

    @property
    def last(self) -> int:
        """The step that says so."""
        return self.step if self.again is None or self.status != "agrees" else self.again


UNWATCHED = "UnwatchedStateWarning"


def check(program: Program, transform: Transform = compile_it) -> Outcome:
    """Run a program both ways and compare."""
    eager, compiled = run(program, in_eager), run(program, transform)
    if compiled.setup is not None or eager.setup is not None:
        return Outcome("agrees") if compiled.setup == eager.setup else Outcome("crashed", "setup", str(compiled.setup))
    outcome = _compare(eager, compiled)
    if outcome.status == "differs" and UNWATCHED in compiled.warnings:
        outcome = attrs.evolve(outcome, status="warned")
    seen: list[Any] = []
    again = None
    for step in compiled.steps:
        if step.key is not None:
            again = step.step if again is None and step.compiles and step.key in seen else again
            seen += [] if step.key in seen or step.error else [step.key]
    compiles = sum(s.compiles for s in compiled.steps)
    return attrs.evolve(outcome, compiles=compiles, worlds=len(seen), again=again, warnings=tuple(sorted(set(compiled.warnings))))


def _compare(eager: Run, compiled: Run) -> Outcome:
    for a, b in zip(eager.steps, compiled.steps, strict=False):
        outcome = _compare_step(a, b)
        if outcome is not None:
            return attrs.evolve(outcome, step=b.step)
    return Outcome("agrees")


_OF_TORCH = ("RuntimeError", "IndexError", "TypeError", "AssertionError")
"""Errors PyTorch raises for what it cannot compute; on stand-ins it may raise another one of them."""


def _compare_step(a: Seen, b: Seen) -> Outcome | None:
    if b.crashed:
        return Outcome("crashed", b.crashed.split(":")[0], b.crashed)
    if b.refused:
        changed = first_difference(b.before, b.world, ("before", "after")) if b.before is not None else None
        if changed and not a.error:
            return Outcome("differs", "changed by a refused call", f"{b.refused}\n  {changed[1]}")
        return Outcome("refused", b.refused)
    if a.error != b.error:
        what = f"eager: {a.error or 'runs'}\n  compiled: {b.error or 'runs'}"
        if a.error is None:
            return Outcome("crashed", f"raises {(b.error or '').split(':')[0]}", what)
        if b.error is None:
            return Outcome("differs", "does not raise", what)
        if a.error.split(":")[0] not in _OF_TORCH or b.error.split(":")[0] not in _OF_TORCH:
            return Outcome("differs", "other exception", what)
    found = first_difference(a.world, b.world)
    if found:
        path, what = found
        if not path.startswith("result"):
            return Outcome("differs", "state after an exception" if a.error else "state", what)
        return Outcome("differs", "identity of a result" if "the same as" in what else "result", what)
    if a.generators != b.generators:
        which = [n for n, p, q in zip(("torch", "random", "numpy"), a.generators, b.generators, strict=True) if p != q]
        return Outcome("differs", f"generator of {which[0]}", f"the generator of {which[0]} is elsewhere")
    return None


# ── minimising ───────────────────────────────────────────────────────────────────────────────────────────────────


def minimise(
    program: Program, outcome: Outcome, wholly: bool = True, check: Callable[[Program], Outcome] = check
) -> tuple[Program, Outcome]:
    """The smallest program one gets by leaving things out that still goes wrong in the same way."""
    program = attrs.evolve(program, steps=program.steps[: outcome.last + 1])
    shrinking = True
    while shrinking:
        shrinking = False
        for candidate in (*_smaller(program), *(_trimmed(program) if wholly else ())):
            now = check(candidate)
            if now.sort == outcome.sort:
                program, outcome, shrinking = attrs.evolve(candidate, steps=candidate.steps[: now.last + 1]), now, True
                break
    return program, outcome


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with less: a part, a step, a statement, and plainer ways to write the same."""
    for part in program.parts:
        rest = tuple(p for p in program.parts if p is not part)
        steps = tuple(s for s in program.steps if isinstance(s, Call) or s.part != part.number)
        given = f", {part.root}" if part.carrier == "argument" else ""
        steps = tuple(attrs.evolve(s, source=s.source.replace(given, "")) if isinstance(s, Call) and given else s for s in steps)
        yield attrs.evolve(program, parts=rest, units=tuple(u for u in program.units if u.part != part.number), steps=steps)
    for i in range(len(program.steps) - 1):
        yield attrs.evolve(program, steps=program.steps[:i] + program.steps[i + 1 :])
    for i in range(len(program.units)):
        yield attrs.evolve(program, units=program.units[:i] + program.units[i + 1 :])
    if program.number and not any(re.search(r"\([A-Z], ", s.source) for s in program.steps if isinstance(s, Call)):
        yield attrs.evolve(program, number=False)
    for name, plain in (("transform", "jit"), ("backend", "aten"), ("result", "y"), ("entry", "function")):
        if getattr(program, name) != plain:
            yield attrs.evolve(program, **{name: plain})
    for i, part in enumerate(program.parts):
        if part.carrier not in ("global", "argument"):
            yield attrs.evolve(program, parts=(*program.parts[:i], attrs.evolve(part, carrier="global"), *program.parts[i + 1 :]))
    for i, unit in enumerate(program.units):
        if unit.placed != "direct":
            yield attrs.evolve(program, units=(*program.units[:i], attrs.evolve(unit, placed="direct"), *program.units[i + 1 :]))
    for i, step in enumerate(program.steps):
        if isinstance(step, Call):
            with_a = re.sub(r"call\([BCR]", "call(A", step.source)
            for plain in (Call(with_a, step.times), Call(step.source, min(step.times, 2)), Call(step.source)):
                if plain != step:
                    yield attrs.evolve(program, steps=(*program.steps[:i], plain, *program.steps[i + 1 :]))


def _trimmed(program: Program) -> Iterator[Program]:
    """Programs with one statement less in the source of a part."""
    for i, part in enumerate(program.parts):
        for text in _without_one(part.world):
            yield attrs.evolve(program, parts=(*program.parts[:i], attrs.evolve(part, world=text), *program.parts[i + 1 :]))


def _without_one(source: str) -> Iterator[str]:
    bodies = [n.body for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    for b, body in enumerate(bodies):
        for i in range(len(body)):
            tree = ast.parse(source)
            own = [n.body for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))][b]
            if len(own) > 1:
                del own[i]
                yield ast.unparse(tree)


def shown(program: Program, outcome: Outcome, seed: int) -> str:
    """A program and what is wrong with it, to read."""
    times = [f"for _ in range({s.times}): " if isinstance(s, Call) and s.times > 1 else "" for s in program.steps]
    script = "\n".join(map(str.__add__, times, program.script))
    head = f"# seed {seed}: {outcome.status}, {outcome.reason} ({program.transform}, {program.backend})"
    detail = outcome.detail or f"compiles in a world as before; {outcome.compiles} compiles in {outcome.worlds} worlds"
    return f"{head}\n{program.text}\n\n{script}\n# step {outcome.last + 1}:\n  {detail}".replace("\n\n\n", "\n")
