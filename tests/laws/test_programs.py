"""Random programs that alias and mutate do in a compiled function what they do in eager PyTorch: the first ones, on every run.

``make fuzz`` runs more of them, on all cores.
"""

import pytest

from .programs import report

EACH = 50


@pytest.mark.parametrize("first", range(0, 500, EACH))
def test_random_programs_do_what_eager_does(first):
    found = [text for seed in range(first, first + EACH) if (text := report(seed)) is not None]
    assert not found, "\n\n".join(found)
