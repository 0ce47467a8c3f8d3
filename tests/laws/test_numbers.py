"""Numbers of Python among tensors do in a compiled function what they do in eager PyTorch: the first random programs,
and some of the calls of PyTorch that take a number. ``python -m tests.laws.numbers 2000`` runs more programs, ``… 0``
every call.
"""

from __future__ import annotations

import pytest

from .numbers import check_case, functions, operators, quietly, report

EACH = 8
_CALLS = (
    "add.Scalar[2]", "clamp.default[1]", "float_power.Tensor_Scalar[1]", "fmod.Scalar[1]", "hardtanh.default[2]",
    "isin.Tensor_Scalar[1]",
    "layer_norm.default[4]", "nan_to_num.default[1]", "pow.Scalar[0]", "pow.Tensor_Scalar[1]", "rsub.Scalar[2]",
    "softplus.default[1]",
    "threshold.default[2]", "threshold_backward.default[2]", "xlogy.Scalar_Self[0]",
)  # fmt: skip


@pytest.mark.parametrize("first", range(0, 32, EACH))
def test_random_programs_of_tensors_and_numbers(first: int) -> None:
    found = [text for seed in range(first, first + EACH) if (text := quietly(lambda: report(seed))) is not None]
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_calls_that_take_a_number(backend: str) -> None:
    cases = [case for case in operators() if case.name in _CALLS]
    assert len(cases) == len(_CALLS)
    found = [text for case in cases if (text := quietly(lambda: check_case(case, backend, 0, 6))) is not None]
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["c", "aten"])
def test_every_call_that_takes_a_number(backend: str) -> None:
    cases = [*operators(), *functions()]
    found = [text for case in cases if (text := quietly(lambda: check_case(case, backend, 1, 12))) is not None]
    assert not found, "\n".join(found)
