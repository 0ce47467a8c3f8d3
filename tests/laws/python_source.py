"""Python programs as data, and their source: a world, a function that reads and writes some of it, and a script.

The script calls the function, and changes the world between the calls.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

import attrs

from .python_kinds import Kind


@attrs.frozen
class Part:
    """A piece of state: its kind, the source that makes it, its name, and how the function gets at it (a key of
    ``CARRIERS``)."""

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
            return (
                f"self.{self.root}"
                if placed in ("direct", "loop", "alias", "lambda") and entry in WITH_SELF
                else f"host.{self.root}"
            )
        return CARRIERS[self.carrier].replace("@", self.root)

    @property
    def outside(self) -> str:
        """What a change writes for it."""
        return f"host.{self.root}" if self.carrier == "self" else CARRIERS[self.carrier].replace("@", self.root)

    def text(self, template: str, expression: str) -> str:
        return template.replace("@", expression).replace("$", str(self.number))


@attrs.frozen
class Unit:
    """A statement of the function (``@``: the root of a part), or of the script; ``placed`` says where in the
    function it stands."""

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

WITH_SELF = ("method", "decorated method", "module", "callable", "inherited")
ENTRIES = ("function", "function", "closure", "partial", "lambda", "wrapped", "class method", *WITH_SELF)
PLACED = ("direct", "direct", "direct", "helper", "inner", "loop", "alias", "lambda", "generator", "nested")
OVER = ("mapped", "pushed", "differentiated", "curved", "curved gradient")
"""Transforms of torch.func over a compiled function, and one over a compiled gradient."""
TRANSFORMS = ("jit", "jit", "jit", "jit", "value_and_grad", "grad", *OVER)


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
        return [
            s.source if isinstance(s, Call) else self.part(s.part).text(s.template, self.part(s.part).outside)
            for s in self.steps
        ]

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
        return "\n".join(
            [*helpers, _define(self.entry, body, extra, arguments, [p.root for p in self.parts if p.carrier == "self"])]
        )

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
    if entry in WITH_SELF:
        name = {"module": "forward", "callable": "__call__"}.get(entry, "f")
        method = textwrap.indent(f"def {name}(self, {takes}):\n{lines}", "    ")
        base = "(nn.Module)" if entry == "module" else ""
        head = "    @transform\n" if entry == "decorated method" else ""
        made = f"class Host{base}:\n{init}\n{head}{method}\n"
        if entry == "inherited":
            made += (
                "class Sub(Host):\n    def f(self, *args, **kwargs): return super().f(*args, **kwargs)\nhost = Sub()\n"
            )
        else:
            made += "host = Host()\n"
        called = {
            "module": "transform(host)",
            "callable": "transform(host)",
            "decorated method": "lambda *a, **k: host.f(*a, **k)",
        }
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
        run = "    @functools.wraps(g)\n    def run(*args, **kwargs): return g(*args, **kwargs)\n"
        wrapper = f"def twice(g):\n{run}    return run\n"
        return f"{function}{wrapper}call = transform(twice(f))"
    return f"{function}call = transform(f)"
