"""Programs run in double precision: rounding is left where a library asks for single precision itself (norms,
losses)."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
