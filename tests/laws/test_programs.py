"""Random programs that alias and mutate do in a compiled function what they do in eager PyTorch: the first ones, on
every run.

``make fuzz`` runs more of them, on all cores.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

import funcgrad as fg

from .programs import KINDS, STRIDED, report
from .refusals import CEILINGS, STRIDED_CEILINGS, above, reason_of

EACH = 50


@pytest.mark.parametrize("first", range(0, 500, EACH))
def test_random_programs_do_what_eager_does(first):
    require_agreement(first, EACH, KINDS, CEILINGS)


@pytest.mark.parametrize("first", range(0, 100, EACH))
def test_random_programs_with_memory_that_overlaps_itself_do_what_eager_does(first):
    require_agreement(first, EACH, STRIDED, STRIDED_CEILINGS)


def require_agreement(first, n, kinds, ceilings):
    refused = Counter()
    found = [text for seed in range(first, first + n) if (text := report(seed, refused, kinds)) is not None]
    assert not found, "\n\n".join(found)
    assert not above(refused, n, ceilings)


def test_a_reason_given_more_often_than_it_was_is_found():
    (reason, ceiling), *_ = CEILINGS.items()
    usual = round(10_000 * ceiling / 10_000)
    assert not above({reason: usual}, 10_000)
    assert reason in above({reason: 2 * usual}, 10_000)[0]
    assert "a new one" in above({"a new one": 10}, 100)[0]
    assert any("any of them" in line for line in above({reason: sum(CEILINGS.values()) * 2}, 10_000))


def said_by_errors():
    """What the calls of error classes in the package say, without what is filled in."""
    errors = {name for name in vars(fg) if name.endswith("Error")}
    for path in Path(fg.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors and node.args:
                yield "".join(str(part.value) for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))


def test_reasons_are_those_that_refusals_give():
    said = "\n".join(said_by_errors())
    assert [reason for reason in CEILINGS if reason not in said] == []
    assert all(reason_of(f"the function {reason}") == reason for reason in CEILINGS), "one reason hides another"
    assert STRIDED_CEILINGS.keys() == CEILINGS.keys()
