"""``docs/mechanisms.md`` and ``tests/mechanisms.toml`` name the same ids, and what the second claims is there."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = tomllib.loads((ROOT / "tests" / "mechanisms.toml").read_text())
IDS = re.findall(r"^\| (S\d+-\d+) \|", (ROOT / "docs" / "mechanisms.md").read_text(), re.MULTILINE)


def rows_without_id():
    """Table rows whose first cell is no id: a typing error there would drop a mechanism without a word."""
    rows = re.findall(r"^\| *([^|]*?) *\|", (ROOT / "docs" / "mechanisms.md").read_text(), re.MULTILINE)
    return [cell for cell in rows if cell not in IDS and cell != "id" and set(cell) - set("-: ")]


def source_of(test):
    """The source of ``path::function`` (or ``path::Class::method``) with the comment on its first lines; None if it
    is not there."""
    path, *names = test.split("::")
    file = ROOT / path
    if not file.is_file() or not names:
        return None
    text = file.read_text()
    scope = ast.parse(text)
    for name in names:
        found = [
            n
            for n in scope.body
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and n.name == name
        ]
        if not found:
            return None
        scope = found[-1]
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) or not scope.name.startswith("test"):
        return None
    first = min([scope.lineno, *(d.lineno for d in scope.decorator_list)])
    lines = text.splitlines()
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first - 1 : scope.end_lineno])


def fault(ident, entry):
    """What is wrong with one entry, or None."""
    if entry == {"status": "open"}:
        return None
    if set(entry) == {"not_applicable"}:
        reason = entry["not_applicable"]
        return None if isinstance(reason, str) and reason.strip() else "not_applicable without a reason"
    if set(entry) != {"tests"} or not entry["tests"]:
        return f'must be status = "open", tests = [...] or not_applicable = "reason": {entry}'
    for test in entry["tests"]:
        source = source_of(test)
        if source is None:
            return f"{test} does not exist"
        if not re.search(rf"\b{ident}\b", source):
            return f"{test} does not name {ident}"
    return None


def test_every_mechanism_has_one_entry():
    assert len(IDS) > 100
    assert len(IDS) == len(set(IDS)), "an id stands twice in docs/mechanisms.md"
    assert set(ENTRIES) == set(IDS)
    assert not rows_without_id()


@pytest.mark.parametrize("ident", ENTRIES)
def test_entry(ident):
    assert fault(ident, ENTRIES[ident]) is None


@pytest.mark.parametrize(
    "entry",
    [
        {"status": "done"},
        {},
        {"tests": []},
        {"not_applicable": " "},
        {"tests": ["tests/no_such_file.py::test_x"]},
        {"tests": ["tests/test_mechanisms.py::test_no_such_test"]},
        {"tests": ["tests/test_mechanisms.py::kinds"]},
        {"tests": ["tests/house/test_mechanisms.py::test_entry"]},
    ],
)
def test_a_wrong_entry_is_found(entry):
    assert fault("S2-19", entry) is not None
