"""Whether a value that a trace baked in is still the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ..capture.hidden import Itself, equal
from ..state.values import compared_fields


def holds(baked: Any, now: Any) -> bool:
    """Whether a value that a trace baked in is still the same: of the same type and equal, in containers and in the
    fields of dataclasses and attrs classes, too. NaN is NaN, 0.0 is not -0.0."""
    if baked is now:
        return True
    if isinstance(baked, Itself):
        return baked.value is (now.value if isinstance(now, Itself) else now)
    if type(baked) is not type(now):
        return False
    if isinstance(baked, (float, complex, np.generic)):
        return repr(baked) == repr(now)
    if isinstance(baked, (list, tuple)):
        return len(baked) == len(now) and all(map(holds, baked, now))
    if isinstance(baked, dict):
        return holds([*baked.items()], [*now.items()])
    return equal(baked, now) and all(
        holds(getattr(baked, name), getattr(now, name)) for name in compared_fields(type(baked))
    )


def still_answers(was: Any, now: Any) -> bool:
    """Whether the answer to a question is the same: an attribute that is a tensor must be the very tensor."""
    return was is now or (not isinstance(was, Tensor) and holds(was, now))
