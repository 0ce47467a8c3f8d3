"""Guards on Python state that are compared in C: what is another object is noticed, what is equal fits."""

import collections
import functools
import types

import pytest
import torch
from laws.python_fuzz import examine, over
from torch import nn

import funcgrad as fg
from funcgrad.backends import build
from funcgrad.runtime import guard_rows

X = torch.tensor([1.0, 2.0])


@pytest.fixture
def any_number(monkeypatch):
    """C compares however few they are."""
    monkeypatch.setattr(guard_rows, "FEWEST", 1)


class Scaled:
    by = 2.0

    def __init__(self):
        self.plus = 1.0

    def __call__(self, x):
        return x * self.by + self.plus + getattr(self, "late", 0.0)


def variable():
    by = 2.0

    def scaled(x):
        return x * by

    def other(value):
        nonlocal by
        by = value

    return scaled, other


def of_attribute():
    f = Scaled()
    return f, lambda: setattr(f, "plus", 3.0)


def of_class():
    kind = type("Scaled", (Scaled,), {"by": 2.0})
    return kind(), lambda: setattr(kind, "by", 3.0)


def of_base():
    base = type("Base", (Scaled,), {"by": 2.0})
    return type("Scaled", (base,), {})(), lambda: setattr(base, "by", 3.0)


def absent_in_object():
    f = Scaled()
    return f, lambda: setattr(f, "late", 3.0)


def absent_in_class():
    kind = type("Scaled", (Scaled,), {})
    return kind(), lambda: setattr(kind, "by", 3.0)


def of_type():
    f, part = (lambda x: part(x)), Scaled()
    other = type("Other", (Scaled,), {"__call__": lambda self, x: x - 1})
    return f, lambda: setattr(part, "__class__", other)


def of_attributes():
    part = Scaled()
    return (lambda x: part(x)), lambda: setattr(part, "__dict__", {"plus": 5.0})


def of_code():
    def part(x):
        return x * 2

    return (lambda x: part(x)), lambda: setattr(part, "__code__", (lambda x: x * 3).__code__)


def of_variable():
    f, other = variable()
    return f, lambda: other(3.0)


def of_dict():
    table = {"a": 1.0, "b": 2.0}
    return (lambda x: x * sum(table.values())), lambda: table.update(c=3.0)


def of_order():
    table = {"a": 1.0, "b": 2.0}

    def reordered():
        table["a"] = table.pop("a")

    return (lambda x: x * next(iter(table.values()))), reordered


def of_ordered():
    table = collections.OrderedDict(a=1.0, b=2.0)
    return (lambda x: x * next(iter(table.values()))), lambda: table.move_to_end("a")


def of_registry():
    table = type("Registry", (dict,), {"__iter__": lambda self: iter("b")})(a=1.0, b=2.0)
    return (lambda x: x * sum(table.values())), lambda: dict.update(table, c=3.0)


def of_last():
    table = collections.OrderedDict(a=1.0, b=2.0)
    return (lambda x: x * sum(table.values())), lambda: table.update(b=3.0)


def of_memo():
    @functools.lru_cache
    def by(n, of=1):
        return n + of

    by(2), by(2, of=3)
    return (lambda x: x * by(2) * by(2, of=3)), by.cache_clear


def of_types():
    kinds = {int, float}

    def changed():
        kinds.remove(int)
        kinds.add(str)

    return (lambda x: x * (2 if int in kinds else 3) * len(list(kinds))), changed


def of_nothing():
    table = {}
    return (lambda x: x * (len(table) + 1)), lambda: table.update(c=3.0)


def of_strings():
    names = {"a", "b"}
    return (lambda x: x * (2 if "a" in names else 3) * len(list(names))), lambda: (names.remove("a"), names.add("c"))


def of_hooks():
    f = nn.Linear(2, 2)
    return f, lambda: f.register_forward_hook(lambda module, inputs, result: result * 2)


CHANGES = [
    of_attribute, of_class, of_base, absent_in_object, absent_in_class, of_type, of_attributes, of_code, of_variable,
    of_dict, of_order, of_ordered, of_registry, of_last, of_memo, of_types, of_nothing, of_strings, of_hooks,
]  # fmt: skip


@pytest.mark.parametrize("world", CHANGES)
def test_what_changes_is_noticed(world, any_number):
    function, change = world()
    c = fg.jit(function)
    for _ in range(3):
        torch.testing.assert_close(c(X), function(X))
    assert c.cache_info().misses == 1
    change()
    for _ in range(2):
        torch.testing.assert_close(c(X), function(X))
    assert c.cache_info().misses == 2


def test_each_row_compares_what_it_says():
    """In C alone, which a change of anything else would not make look again."""
    part, table, kind = Scaled(), {"a": 1}, type("Kind", (), {})
    of, place = guard_rows.Guard, guard_rows.Place
    function, other = variable()
    rows = [
        of.of(place("item", table, "a", "a"), 1),
        of.absent(place("item", table, "b", "b")),
        of.absent(place("class", kind, "c", "c")),
        of.contents({}, {}, "empty"),
        of.contents({"a": 1}, {"a": 1}, "entries"),
        of.contents(collections.OrderedDict(a=1), {"a": 1}, "ordered"),
        of.contents({"a", int}, {int, "a"}, "members"),
        of.of(place("cell", function.__closure__[0], None, "by"), 2.0),
        of.of(place("type", part, None, "type"), Scaled),
        of.of(place("slot", part, "__dict__", "attributes"), part.__dict__),
        of.of(place("slot", function, "__code__", "code"), function.__code__),
    ]
    several = rows * 4  # enough of them
    found = guard_rows.GuardRows.among(several, lambda value: False)
    tagged = {guard_rows._UNWRITTEN} if guard_rows._has_version_tags() else set()
    assert {row[0] for row in found.rows} == {*range(9), *tagged} and len(found.guards) == len(several)
    assert found.first_that_differs(0) == len(found.rows) and not found.are_broken()
    for k, change in ((1, lambda: table.update(b=1)), (2, lambda: setattr(kind, "c", 1)), (7, lambda: other(7.0))):
        change()
        at = found.of_rows.index(rows[k])
        assert found.first_that_differs(at) == at and found.are_broken()


def test_a_dict_is_looked_into_when_it_was_written_to():
    """Where it has a version tag; and looked into again until all that is guarded of it holds."""
    table = {"a": 1, "b": 2.5, **{f"{n}": n for n in range(40)}}
    guards = [guard_rows.Guard.of(guard_rows.Place("item", table, key, key), value) for key, value in table.items()]
    found = guard_rows.GuardRows.among(guards, lambda value: False)
    n = len(found.rows)
    for _ in range(2):
        assert found.first_that_differs(0) == n
    table["a"] = 7
    for _ in range(2):
        assert found.of_rows[found.first_that_differs(0)] is guards[0] and found.are_broken()
    table["a"] = 1
    assert found.first_that_differs(0) == n
    table["b"] = float("2.5")  # another object, as good
    for _ in range(2):
        assert found.of_rows[found.first_that_differs(0)] is guards[1] and not found.are_broken()
    table["new"] = 3
    assert not found.are_broken()
    del table["a"]
    assert found.are_broken()


def test_a_store_that_python_has_specialised_is_noticed():
    """After some runs of it, Python stores into a dict, or an object, without asking for the key."""
    part, table, kind = Scaled(), {"a": 1.0}, type("Kind", (), {"a": 1.0})

    def put(value):
        part.plus = value
        table["a"] = value
        kind.a = value

    places = [("item", vars(part), "plus"), ("item", table, "a"), ("class", kind, "a")]
    guards = [guard_rows.Guard.of(guard_rows.Place(*place, "place"), 1.0) for place in places]
    for guard in guards:
        found = guard_rows.GuardRows.among([guard] * 40, lambda value: False)
        for value in [1.0, 2.0] * 100:
            put(value)
            assert found.are_broken() == (value != 1.0)


def test_without_version_tags_all_is_compared(monkeypatch):
    monkeypatch.setattr(guard_rows, "_has_version_tags", lambda: False)
    test_a_dict_is_looked_into_when_it_was_written_to()


def test_what_is_equal_fits(any_number):
    """Another object, which only Python knows to be as good."""
    f = types.SimpleNamespace(by=2.5, name="a" * 3)
    c = fg.jit(lambda x: x * f.by * len(f.name))
    for _ in range(4):
        torch.testing.assert_close(c(X), X * 7.5)
        f.by, f.name = float("2.5"), "".join("aaa")
    assert c.cache_info().misses == 1


def test_nothing_needs_a_compiler(monkeypatch, any_number):
    monkeypatch.setattr(build, "compiler", lambda: None)
    guard_rows._compare.cache_clear()
    try:
        f = Scaled()
        c = fg.jit(f, backend="aten")
        torch.testing.assert_close(c(X), X * 2 + 1)
        f.plus = 3.0
        torch.testing.assert_close(c(X), X * 2 + 3)
    finally:
        guard_rows._compare.cache_clear()


def test_a_model_of_many_layers_is_compared_in_c():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    c = fg.jit(model)
    torch.testing.assert_close(c(X), model(X))
    assert "guards on Python state, compared in C" in c.lower(X).compile().call.text
    model[7].register_forward_hook(lambda module, inputs, result: result * 2)
    torch.testing.assert_close(c(X), model(X))
    model[3].train(False)
    model[5].weight = nn.Parameter(torch.ones(2, 2))
    torch.testing.assert_close(c(X), model(X))


def test_random_programs_do_what_eager_does(any_number):
    found = over(examine(seed, "no") for seed in range(300, 308))
    assert not found, "\n".join(found)
