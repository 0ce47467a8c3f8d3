"""A seeded tenth of the operators, modules and optimisers of PyTorch's own databases, in each kind of sweep, a
sample of each in double precision. ``python -m tests.laws.operators KIND`` runs all samples, in all dtypes."""

from __future__ import annotations

import logging
import random

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from .numbers import Raised, outcome
from .operator_exceptions import EXCEPTIONS
from .operators import KINDS, MEMBERS, Limits, cases, report, samples_of

ONE = Limits(samples=1, dtypes=1, backend="aten")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # calls that raise are meant to
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "level", logging.CRITICAL)
    torch.set_num_threads(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*KINDS, *MEMBERS])
def test_a_tenth_of_the_operators(kind: str) -> None:  # S0-13, S3-30
    every = list(cases(kind))
    chosen = random.Random(kind).sample(every, max(1, len(every) // 10))
    found = [text for name, differences in chosen for text in report(kind, name, differences(ONE), False)]
    assert not found, "\n".join(found)


def test_exceptions_are_of_operators_that_are_there() -> None:
    names = {kind: {name for name, _ in cases(kind)} for kind in (*KINDS, *MEMBERS)}
    unknown = [
        (kind, name) for one in EXCEPTIONS for kind in names for name in one.names(kind) if name not in names[kind]
    ]
    kinds = {kind for one in EXCEPTIONS for kinds in one.of for kind in kinds.split()}
    assert not unknown and kinds <= names.keys()


def test_a_report_says_what_is_no_exception_and_which_exceptions_are_none_any_more() -> None:
    one = next(one for one in EXCEPTIONS if one.names("value"))
    name = one.names("value")[0]
    assert report("value", name, [f"float64: {one.says}"], True) == []
    (said,) = report("value", name, [], True)
    assert "no more" in said and report("value", name, [], False) == []
    assert len(report("value", name, ["float64: 1.0 for 2.0"], False)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_eager_pytorch_does_what_a_kind_of_sweep_compares_with(kind: str) -> None:
    info = next(one for one in op_db if one.name == "mul")
    pairs = [pair for sample in samples_of(info, kind, torch.float64, 3) for pair in KINDS[kind][0](sample, "aten")]
    refused = [found for eager, _ in pairs if isinstance(found := outcome(eager), Raised)]
    assert pairs and not refused
