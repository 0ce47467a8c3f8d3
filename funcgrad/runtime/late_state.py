"""Whether what a backward half reads of Python state is what it was compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from ..levels import below_levels
from ..slots import Slot
from ..source import Constants, Source, compile_function
from ..state.guards import Guard
from ..state.hooks import APPLIED
from ..state.late import Late, Left
from ..state.places import GONE, GONE_TEXT, Place
from ..state.values import same
from .guard_rows import print_state


@frozen(eq=False)
class LateState:
    """Asked when a backward pass begins."""

    guards_hold: Callable[[], bool]
    numbers: tuple[tuple[int, Place], ...]
    """Inputs that are numbers, and where backward reads them; ``tensors``: the same of tensors."""
    tensors: tuple[tuple[int, Any], ...]
    left: tuple[Place, ...]
    more_than_code: bool
    """Whether it reads anything but the code that runs."""

    @staticmethod
    def of(late: Late, ins: Sequence[Slot]) -> LateState | None:
        """Of a function of these inputs; None where it reads nothing."""
        if not late:
            return None
        return LateState(
            _guards_hold(late),
            tuple((ins.index(slot), place) for slot, place in late.numbers if slot in ins),
            tuple((ins.index(slot), origin) for slot, origin in late.tensors if slot in ins),
            late.left,
            bool(late.numbers or late.tensors or late.left) or not all(map(_is_of_code, late.guards)),
        )

    def is_as_traced(self, inputs: Sequence[Any], given: Sequence[Any], left: Left | None) -> bool:
        """``inputs``: what the program was given; ``given``: weak references to the tensors; ``left``: what was at the
        places to which forward writes, when the call was done."""
        return (
            self.guards_hold()
            and all(same(inputs[i], place.read()) for i, place in self.numbers)
            and all(_read(origin) is given[i]() for i, origin in self.tensors)
            and (left is None or left.is_there())
        )


def _is_of_code(guard: Guard) -> bool:
    """Whether a guard is on which code runs: that of a function, of a ``torch.autograd.Function``, a special method."""
    place = guard.place
    return place.key == "__code__" or guard.how == "special" or (place.kind == "class" and place.key in APPLIED)


def _read(origin: Any) -> Any:
    try:
        value = origin.read()
    except GONE:
        return None
    return below_levels(value) if isinstance(value, Tensor) else None


def _guards_hold(late: Late) -> Callable[[], bool]:
    names: dict[str, Any] = {}
    lines = print_state(late.checked, Constants(names), "return False")
    body = ["try:", *(f"    {line}" for line in (*lines, "pass")), GONE_TEXT, "    return False", "return True"]
    text = "def guards_hold():\n" + "".join(f"    {line}\n" for line in body)
    return compile_function(Source("guards_hold", "python", text, names))  # type: ignore[no-any-return]
