"""Random Python programs that read and write state besides tensors: made by a seed, and made smaller where they go
wrong."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence

import attrs

from . import python_kinds as kinds
from .python_kinds import Kind
from .python_running import Outcome, check, in_eager, run
from .python_source import CARRIERS, ENTRIES, OVER, PLACED, TRANSFORMS, WITH_SELF, Call, Part, Program, Unit
from .python_worlds import KINDS

# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _number_reads(kind: Kind) -> Iterator[tuple[str, ...]]:
    """Groups of expressions for numbers."""
    for o, a in kind.attributes:
        yield tuple(_at(t, o, a) for t in (*kinds.ATTRIBUTE_READS, *kinds.DICT_ATTRIBUTE_READS))
    for o, a in kind.slots:
        yield tuple(_at(t, o, a) for t in kinds.ATTRIBUTE_READS)
    for places, templates in (
        (kind.dicts, kinds.DICT_READS),
        (kind.lists, kinds.LIST_READS),
        (kind.sets, kinds.SET_READS),
    ):
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
    "writes": {
        "dicts": kinds.DICT_WRITES,
        "lists": kinds.LIST_WRITES,
        "sets": kinds.SET_WRITES,
        "tensors": kinds.TENSOR_WRITES,
    },
    "changes": {
        "dicts": kinds.DICT_CHANGES,
        "lists": kinds.LIST_CHANGES,
        "sets": kinds.SET_CHANGES,
        "tensors": kinds.TENSOR_CHANGES,
    },
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
"""Statements that store a tensor with its history, which a gradient stores without: the comparison would end there."""
_STORES_TENSOR = re.compile(r"\b[xy]\b")
"""Statements that may store a tensor, which at a level of torch.func is a wrapper of that level."""


def _is_stored_otherwise(template: str, transform: str) -> bool:
    return (
        transform != "jit" and (_STORES_TENSOR if transform in OVER else _STORES_HISTORY).search(template) is not None
    )


_DONE = (
    ("reads",),
    ("reads",),
    ("writes",),
    ("reads", "writes"),
    ("writes", "reads"),
    ("reads", "reads"),
    ("reads", "writes", "reads"),
)
"""What a program does with a part."""


def generate(seed: int, of: Sequence[Kind] = KINDS) -> Program:
    """The program of a seed, of these kinds of state."""
    r = random.Random(seed)
    chosen = r.choices(of, [k.weight for k in of], k=r.choice([1, 1, 1, 2, 2, 3, 4]))
    entry = r.choice(ENTRIES)
    transform = (
        "jit" if entry == "decorated method" or any(kind.keeps_history for kind in chosen) else r.choice(TRANSFORMS)
    )
    parts = []
    for number, kind in enumerate(chosen):
        carriers = [*list(CARRIERS)[:-2], "global", "global", "global", *(["self"] * 5 if entry in WITH_SELF else [])]
        if r.random() < 0.05 and transform == "jit":
            carriers = ["argument"]
        parts.append(
            Part(kind, number, kind.world.replace("$", str(number)), r.choice(carriers) if kind.world else "global")
        )
    program = Program(tuple(parts), (), (Call("result = call(A)"),), entry, transform,
    r.choice(["aten", "aten", "aten", "c"]),
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
        if template is None or (does == "writes" and _is_stored_otherwise(template, program.transform)):
            continue
        if does == "changes":
            unit = Unit(part.number, does, template)
            candidate = attrs.evolve(program, steps=(*program.steps, unit))
            candidate = (
                candidate if r.random() < 0.3 else attrs.evolve(candidate, steps=(*candidate.steps, _call(r, program)))
            )
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
    if program.transform == "jit" and r.random() < 0.15:
        twice = x == "R" and r.random() < 0.7
        return Call(f"{call}\nbackward_twice(result, R)" if twice else f"{call}\nbackward(result)")
    return Call(call, 14 if r.random() < 0.05 else 1)


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
            try:
                now = check(candidate)
            except Exception:  # without one of its lines a class of the program's cannot be looked at
                continue
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
        steps = tuple(
            attrs.evolve(s, source=s.source.replace(given, "")) if isinstance(s, Call) and given else s for s in steps
        )
        yield attrs.evolve(
            program, parts=rest, units=tuple(u for u in program.units if u.part != part.number), steps=steps
        )
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
            yield attrs.evolve(
                program, parts=(*program.parts[:i], attrs.evolve(part, carrier="global"), *program.parts[i + 1 :])
            )
    for i, unit in enumerate(program.units):
        if unit.placed != "direct":
            yield attrs.evolve(
                program, units=(*program.units[:i], attrs.evolve(unit, placed="direct"), *program.units[i + 1 :])
            )
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
            yield attrs.evolve(
                program, parts=(*program.parts[:i], attrs.evolve(part, world=text), *program.parts[i + 1 :])
            )


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
