"""A seeded share of ``words.py``: ``python -m tests.laws.words LENGTH`` runs all."""

import random

import pytest

from .words import cases, differs

CASES = [*(case for case in random.Random(4).sample(list(cases(1)), 40)), *random.Random(5).sample(list(cases(2)), 60)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("word", "name", "at"), CASES, ids=lambda v: "∘".join(v) if isinstance(v, tuple) else str(v))
def test_a_word_of_transforms(word, name, at):
    assert differs(word, name, at) is None
