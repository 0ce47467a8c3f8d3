"""Sizes known at run time: what is computed with them is right wherever the guards they leave hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcgrad.symbolic.polynomials import unknowns
from funcgrad.symbolic.sizes import Size, Sizes, hint

_SIZES = st.integers(2, 40)
_STEPS = st.lists(
    st.tuples(st.sampled_from("+ - * // % < <= == max".split()), st.integers(0, 9), st.integers(0, 9)), max_size=8
)


def run(start: list[Any], steps: list[tuple[str, int, int]]) -> tuple[list[Any], list[bool]]:
    """Numbers made of those given, and what comparing some of them said."""
    found: list[Any] = [*start, 1, 3, 8]
    said: list[bool] = []
    for op, i, j in steps:
        a, b = found[i % len(found)], found[j % len(found)]
        match op:
            case "+":
                found.append(a + b)
            case "-":
                found.append(a - b)
            case "*":
                found.append(a * b if hint(a) * hint(b) < 10**6 else a)
            case "//" | "%":
                if b != 0:
                    found.append(a // b if op == "//" else a % b)
            case "<":
                said.append(bool(a < b))
            case "<=":
                said.append(bool(a <= b))
            case "==":
                said.append(bool(a == b))
            case "max":
                found.append(max(a, b))
    return found, said


@given(st.lists(_SIZES, min_size=2, max_size=2), st.lists(_SIZES, min_size=2, max_size=2), _STEPS)
def test_a_program_on_sizes_is_right_wherever_its_guards_hold(
    hints: list[int], others: list[int], steps: list[Any]
) -> None:
    sizes = Sizes()
    found, said = run([sizes.symbol(f"s{i}", n) for i, n in enumerate(hints)], steps)
    for now in (hints, others):
        values = {f"s{i}": n for i, n in enumerate(now)}
        if not all(eval(guard, {}, values) for guard in sizes.guards):
            assert now is others, f"{sizes.guards} do not hold in the call that was compiled"
            continue
        expected, answers = run(now, steps)
        assert said == answers
        assert [eval(repr(n), {}, values) for n in found] == expected
        # C's division, as none of these is negative
        c = [str(n).replace("/", "//").replace("size_", "") for n in found]
        assert [eval(text, {}, values) for text, n in zip(c, expected, strict=True)] == expected


def test_what_ranges_decide_leaves_no_guard() -> None:
    sizes = Sizes()
    n = sizes.symbol("n", 32)
    assert n != 1 and n * 64 > n and n * n - n > 0 and not n * 3 < 6
    assert (n * 64 + 5) // (n * 64) >= 1
    assert (n * 64) % 64 == 0 and (n * 64) // n == 64 and (n * 6 + 1) % 3 == 1
    assert sizes.guards == ["2 <= n"]


def test_comparisons_narrow_ranges() -> None:
    sizes = Sizes()
    n = sizes.symbol("n", 32)
    assert n * 64 < 10_000 and not n < 10 and n != 64
    assert sizes.guards == ["10 <= n <= 156", "(n + -64) != 0"]
    assert n < 200 and n > 3  # known by now
    assert len(sizes.guards) == 2


def test_comparisons_with_floats() -> None:
    sizes = Sizes()
    n = sizes.symbol("n", 3)
    for limit in (2.5, 3.0, 3.5, math.inf, -math.inf):
        assert (n < limit, n <= limit, n > limit, n >= limit) == (limit > 3, limit >= 3, limit < 3, limit <= 3)


def test_a_size_used_as_a_number_is_fixed() -> None:
    sizes = Sizes()
    n = sizes.symbol("n", 4)
    assert list(range(n)) == [0, 1, 2, 3]
    assert sizes.guards == ["n == 4"]


def test_sizes_of_two_programs_are_different() -> None:
    one, other = Sizes().symbol("n", 4), Sizes().symbol("n", 4)
    assert one != other
    with pytest.raises(TypeError):
        one + other


def test_text() -> None:
    sizes = Sizes()
    n = sizes.symbol("n", 4)
    assert isinstance(n, Size)
    assert str((n * 2 + 1) // 3) == "((size_n * 2 + 1) / 3)"
    assert repr((n * 2 + 1) // 3) == "((n * 2 + 1) // 3)"
    assert f"{n}" == "size_n"


def test_equal_polynomials_are_one_object_and_a_quotient_follows_what_is_learnt_of_its_range() -> None:
    sizes = Sizes()
    n, m = sizes.symbol("n", 6), sizes.symbol("m", 9)
    assert (n + 1) * m is m * n + m and (n - n) == 0 and hash(n * 2) == hash(n + n)
    assert (n // 8).hint == 0 and str(n // 8) == "(size_n / 8)"
    assert n < 8
    assert n // 8 == 0 and isinstance(n // 8, int) and n % 8 is n


_MONOMIALS = st.dictionaries(
    st.lists(st.sampled_from("abcd"), max_size=2, unique=True).map(lambda names: tuple(sorted(names))),
    st.integers(-3, 3).filter(bool),
    max_size=3,
).filter(lambda terms: any(terms))


@given(st.lists(_MONOMIALS, max_size=5), st.fixed_dictionaries({name: _SIZES for name in "abcd"}))
def test_what_symbols_are_follows_from_what_polynomials_are(found: list[dict[Any, int]], sizes: dict[str, int]) -> None:
    values = {
        f"v{i}": sum(by * math.prod(sizes[n] for n in names) for names, by in p.items()) for i, p in enumerate(found)
    }
    known = unknowns(list(zip(found, values, strict=True)))
    assert {name: eval(text, {}, dict(values)) for name, text in known.items()} == {name: sizes[name] for name in known}


def test_a_symbol_is_known_by_a_sum_of_which_the_rest_is_known() -> None:
    values = [({("a",): 1}, "x"), ({("a",): 2, ("b",): 1, (): 3}, "y"), ({("a", "b"): -1, ("b", "c"): 2}, "z")]
    assert unknowns(values) == {
        "a": "x",
        "b": "(y - 3 - x * 2)",
        "c": "((z - x * (y - 3 - x * 2) * -1) // ((y - 3 - x * 2) * 2))",
    }
    assert unknowns([({("a",): 1, ("b",): 1}, "x")]) == {}
