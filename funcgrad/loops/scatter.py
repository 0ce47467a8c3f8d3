"""Scatter: elements put, or added, where numbers say that are not known before the kernels run."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from .gather import Numbers, found_along
from .index import Index
from .values import Value, made


@frozen(eq=False)
class Scatter(Value):
    """``into``, where the elements of ``arg`` are put, one after the other: each at ``where``, in terms of ``axes_of(arg.shape)`` and
    of the axes in ``found``, which are as those of a ``Gather``.

    ``kind``: how one is put to what is there: added (``"sum"``) or another reduction; None: in its place.
    """

    into: Value
    arg: Value
    where: tuple[Index, ...]
    found: Numbers
    kind: str | None

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.into, self.arg, *(number for _, number in self.found))


def scatter(into: Value, arg: Value, where: Sequence[Index | Value], kind: str | None = None) -> Value:
    """Elements of ``arg`` put into a value: along each of its dimensions at an index in terms of ``axes_of(arg.shape)``, or at whole
    numbers of this shape."""
    index, numbers = found_along(into.shape, where)
    return made(Scatter, into.shape, into.dtype, into, arg, index, numbers, kind)  # type: ignore[no-any-return]
