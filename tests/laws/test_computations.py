"""A seeded sample of the random computations; ``python -m tests.laws.computations N`` runs as many as one wants."""

from __future__ import annotations

import pytest

from .computations import check, generate


@pytest.mark.parametrize("seed", range(16))
def test_gradients_are_eager_pytorchs(seed):
    found = check(seed)
    assert found is None, f"{found}\n{generate(seed).text}"
