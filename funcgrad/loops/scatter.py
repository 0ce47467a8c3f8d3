"""Scatter: elements put, or added, where numbers say that are not known before the kernels run."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from .gather import Numbers, found_along
from .index import Index, at_axis
from .values import Value, axes_of, made


@frozen(eq=False)
class Scatter(Value):
    """``into``, where the elements of ``arg`` are put, one after the other: each at ``where``, in terms of
    ``axes_of(arg.shape)`` and of the axes in ``found``, which are as those of a ``Gather``.

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
    """Elements of ``arg`` put into a value: along each of its dimensions at an index in terms of
    ``axes_of(arg.shape)``, or at whole numbers of this shape."""
    index, numbers = found_along(into.shape, where)
    return made(Scatter, into.shape, into.dtype, into, arg, index, numbers, kind)  # type: ignore[no-any-return]


def in_order(value: Scatter) -> tuple[int, int]:
    """The dimensions of ``value.arg``, of those larger than 1, along which elements may be put in one place: from
    the first of them to the end of the last. Along the others each element is put elsewhere."""
    dims = [axis for axis, n in zip(axes_of(value.arg.shape), value.arg.shape, strict=True) if n != 1]
    together = [i for i, axis in enumerate(dims) if not any(w == at_axis(axis) + w.const for w in value.where)]
    first = min(together, default=max(0, len(dims) - 1))
    return first, max((i + 1 for i in together), default=first)
