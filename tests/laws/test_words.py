"""A seeded tenth of the words of length one and two of ``words.py``, and some of length three.

``python -m tests.laws.words LENGTH`` runs all.
"""

import random

import pytest
import torch

from .words import COMPILED, cases, differs, oracle

SHORT = list(cases(2))
LONG = list(cases(3))[len(SHORT) :]
MENDED = [(("grad", "jacfwd", "jvp"), "detached", 1)]
CASES = [*MENDED, *random.Random(4).sample(SHORT, len(SHORT) // 10), *random.Random(5).sample(LONG, 30)]


@pytest.mark.sweep(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("word", "name", "at"), CASES, ids=lambda v: "∘".join(v) if isinstance(v, tuple) else str(v))
def test_a_word_of_transforms(word, name, at):
    assert differs(word, name, at) is None


def test_the_law_can_fail(monkeypatch):
    """It sees a wrong result, a word that raises where eager PyTorch does not, and one that compiles in each call."""
    case = ("grad",), "smooth", 0
    assert differs(*case) is None
    assert not isinstance(oracle(*case[:2]), Exception)
    right = COMPILED["grad"]
    monkeypatch.setitem(COMPILED, "grad", lambda f, randomness: lambda x: right(f, randomness)(x) * 2)
    assert "made" in differs(*case)
    monkeypatch.setitem(COMPILED, "grad", lambda f, randomness: (c := right(f, randomness), lambda x: c(x) * 2)[1])
    assert differs(*case) == "WRONG"
    monkeypatch.setitem(COMPILED, "grad", lambda f, randomness: lambda x: x.no_such_method())
    assert differs(*case).startswith("AttributeError")
    monkeypatch.setitem(COMPILED, "grad", lambda f, randomness: torch.func.grad(lambda x: f(x).sum()))
    assert differs(*case) == "AssertionError: no program ran"
