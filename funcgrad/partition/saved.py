"""What is kept from forward to backward, as a table: how much, from which line, why, and what computing it again
would take instead."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import frozen
from torch import Tensor

from ..graphs import ancestors, has_effect
from ..joint import Joint
from ..loops.lower import lower
from ..show.parts import Doc, Table, Text
from ..show.shown import Shown
from ..show.units import in_bytes, in_operations
from ..slots import Saved
from .cost import flops
from .partition import Again, Kept, Partition


@frozen
class SavedValue:
    """One value: ``again`` is the number of floating-point operations that compute it from the inputs and the other
    saved values; infinite where it cannot be computed again (a random draw)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    where: str | None
    why: str
    again: float


@frozen(repr=False)
class SavedValues(Shown):
    """A sequence of ``SavedValue``, and what is computed again instead of being saved.

    ``nbytes`` is what a call of the function keeps alive for its backward pass besides its inputs and outputs.
    """

    function: str
    values: tuple[SavedValue, ...]
    again: tuple[Again, ...]

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[SavedValue]:
        return iter(self.values)

    def doc(self) -> Doc:
        header = ("saved", "bytes", "shape", "dtype", "from", "why", "or compute again")
        rows = [
            (v.name, in_bytes(v.nbytes), str(list(v.shape)), v.dtype, v.where or "", v.why, _instead(v))
            for v in self.values
        ]
        again = [(a.name, a.type, a.where or "", a.why) for a in self.again]
        return Doc(
            f"saved by {self.function}: {len(rows)} values, {in_bytes(self.nbytes)}",
            (
                Table(header, tuple(rows), "saved") if rows else Text("nothing is saved"),
                *((Table(("computed again", "type", "from", "why"), tuple(again), "computed again"),) if again else ()),
            ),
        )


def _instead(value: SavedValue) -> str:
    if not value.nbytes:
        return ""
    return "not possible" if value.again == math.inf else in_operations(value.again)


def saved_values(function: str, joint: Joint, split: Partition) -> SavedValues:
    """The table of a partition."""
    lowering = lower(joint.graph)
    nodes = {n.name: n for n in joint.graph.fx.nodes}
    kept = {nodes[name] for name in split.kept}
    slots = dict(joint.graph.given)

    def described(one: Kept) -> SavedValue:
        node = nodes[one.slot.name] if isinstance(one.slot, Saved) else slots[one.slot]
        value = node.meta["val"]
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
        others = kept - {node}
        again = sum(math.inf if has_effect(n) else flops(n, lowering) for n in ancestors([node], others) - others)
        return SavedValue(str(one.slot), shape, dtype, one.nbytes, one.where, one.why, again)

    return SavedValues(function, tuple(map(described, split.saved)), split.again)
