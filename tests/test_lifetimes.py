"""Liveness of what a sequence of moments uses: from the first use to the last."""

from hypothesis import given
from hypothesis import strategies as st

from funcgrad.lifetimes import Lifetimes

USES = st.lists(st.lists(st.sampled_from("abcdef"), max_size=5), max_size=8)


@given(USES, st.sets(st.sampled_from("abcdef")))
def test_what_is_used_dies_once_at_its_last_use_unless_it_is_lasting(uses, lasting):
    lives = Lifetimes.of(uses, lasting)
    used = set().union(*uses)
    assert lives.first == {t: min(i for i, things in enumerate(uses) if t in things) for t in used}
    assert lives.last == {t: max(i for i, things in enumerate(uses) if t in things) for t in used}
    assert sorted((t, i) for i, dying in enumerate(lives.dying) for t in dying) == sorted(
        (t, lives.last[t]) for t in used - lasting
    )


def test_what_dies_at_one_moment_dies_in_the_order_in_which_it_is_used():
    assert Lifetimes.of([["c", "a", "c", "b"], ["a"]]).dying == (("c", "b"), ("a",))
