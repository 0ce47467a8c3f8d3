"""A seeded tenth of the words of length one and two of ``words.py``, and some of length three.

``python -m tests.laws.words LENGTH`` runs all.
"""

import random

import pytest

from .words import cases, differs

SHORT = list(cases(2))
LONG = list(cases(3))[len(SHORT) :]
MENDED = [(("grad", "jacfwd", "jvp"), "detached", 1)]
CASES = [*MENDED, *random.Random(4).sample(SHORT, len(SHORT) // 10), *random.Random(5).sample(LONG, 30)]


@pytest.mark.sweep(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("word", "name", "at"), CASES, ids=lambda v: "∘".join(v) if isinstance(v, tuple) else str(v))
def test_a_word_of_transforms(word, name, at):
    assert differs(word, name, at) is None
