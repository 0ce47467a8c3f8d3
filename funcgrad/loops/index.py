"""Index arithmetic: integers that are affine in loop axes, with division and remainder where a reshape needs them.

Every rule here is exact for the ranges of the axes, so an index that simplifies is the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen


@frozen
class Axis:
    """A loop counter: 0 … size - 1."""

    name: str
    size: int

    @property
    def range(self) -> tuple[int, int]:
        return 0, max(0, self.size - 1)

    def __str__(self) -> str:
        return self.name


@frozen(cache_hash=True)
class Quotient:
    """``of // by``."""

    of: Index
    by: int

    def __str__(self) -> str:
        return f"({self.of}) / {self.by}"


@frozen(cache_hash=True)
class Remainder:
    """``of % by``."""

    of: Index
    by: int

    def __str__(self) -> str:
        return f"({self.of}) % {self.by}"


Atom = Axis | Quotient | Remainder


@frozen(cache_hash=True)
class Index:
    """``const + Σ coefficient · atom``; each atom once, none with coefficient 0."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0
    _range: tuple[int, int] | None = field(init=False, eq=False, repr=False, default=None)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value: found when it is asked for, as most indices are steps to others."""
        found = self._range
        if found is None:
            found = range_among(self, {})
            object.__setattr__(self, "_range", found)
        return found

    def __add__(self, other: Index | int) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.const + other) if other else self
        found = dict(self.terms)
        for atom, by in other.terms:
            found[atom] = found.get(atom, 0) + by
        return _normal(found, self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, by: int) -> Index:
        if by == 1:
            return self
        return Index(tuple((atom, n * by) for atom, n in self.terms), self.const * by) if by else ZERO

    def __floordiv__(self, by: int) -> Index:
        whole, rest = self._split(by)
        low, high = rest.range
        if low // by == high // by:
            return whole + low // by
        return whole + Index(((Quotient(rest, by), 1),))

    def __mod__(self, by: int) -> Index:
        _, rest = self._split(by)
        low, high = rest.range
        if low // by == high // by:
            return rest + -(low // by) * by
        return Index(((Remainder(rest, by), 1),))

    def _split(self, by: int) -> tuple[Index, Index]:
        """``(a, b)`` with ``self == a * by + b``; ``b`` has the terms that ``by`` does not divide, and is never
        negative."""
        rest = Index(tuple((atom, n) for atom, n in self.terms if n % by))
        whole = (self.const + rest.range[0]) // by
        divided = tuple((atom, n // by) for atom, n in self.terms if n % by == 0)
        return Index(divided, whole), rest + (self.const - whole * by)

    @property
    def axes(self) -> frozenset[Axis]:
        """The loop counters it depends on."""
        found: set[Axis] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Axis):
                found.add(atom)
            else:
                found |= atom.of.axes
        return frozenset(found)

    def coefficient(self, axis: Axis) -> int | None:
        """How far one step along ``axis`` goes; None where that differs from step to step."""
        if any(axis in atom.of.axes for atom, _ in self.terms if not isinstance(atom, Axis)):
            return None
        return dict(self.terms).get(axis, 0)

    def __str__(self) -> str:
        terms = [f"{by} * {atom}" if by != 1 else str(atom) for atom, by in self.terms]
        return " + ".join([*terms, *([str(self.const)] if self.const or not terms else [])])


ZERO = Index()

Bound = tuple[Index, int, int]
"""``(i, low, high)``: low <= i < high."""


def at_axis(axis: Axis) -> Index:
    """The counter itself; 0 where it takes one value only."""
    return Index(((axis, 1),)) if axis.size > 1 else ZERO


def _normal(terms: dict[Atom, int], const: int) -> Index:
    for atom, by in list(terms.items()):  # n * (x / n) + x % n = x
        if isinstance(atom, Remainder) and by:
            quotient = Quotient(atom.of, atom.by)
            if terms.get(quotient) == by * atom.by:
                rest = {a: n for a, n in terms.items() if a not in (atom, quotient)}
                return Index(tuple((a, n) for a, n in rest.items() if n), const) + atom.of * by
    return Index(tuple((a, n) for a, n in sorted(terms.items(), key=_order) if n), const)


def _order(term: tuple[Atom, int]) -> str:
    return str(term[0])


def substitute(index: Index, values: Mapping[Axis, Index]) -> Index:
    """The index with other indices in place of its axes."""
    if not index.terms:
        return index
    if is_shifted_axis(index) and not index.const and isinstance(axis := index.terms[0][0], Axis) and axis in values:
        return values[axis]
    new: list[Index] = []
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            new.append(values[atom] if atom in values else at_axis(atom))
        else:
            inside = substitute(atom.of, values)
            new.append(inside // atom.by if isinstance(atom, Quotient) else inside % atom.by)
    return flat(new, [by for _, by in index.terms], index.const)


def flat(indices: Sequence[Index], strides: Sequence[int], offset: int = 0) -> Index:
    """Where in memory an element lies."""
    found: dict[Atom, int] = {}
    for index, stride in zip(indices, strides, strict=True):
        for atom, by in index.terms:
            found[atom] = found.get(atom, 0) + by * stride
        offset = offset + index.const * stride
    return _normal(found, offset)


def unravel(index: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The indices along each dimension of the element of this number, counted in row-major order."""
    found: list[Index] = []
    for size in reversed(shape):
        found.append(index % size if size > 1 else ZERO)
        index = index // max(size, 1)
    return tuple(reversed(found))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def innermost(shape: Sequence[int], strides: Sequence[int | None]) -> int | None:
    """The dimension along which neighbours lie side by side; None where none does."""
    return next((d for d, (n, step) in enumerate(zip(shape, strides, strict=True)) if n != 1 and step == 1), None)


def is_shifted_axis(index: Index) -> bool:
    """Whether it is a loop counter, plus or minus a number."""
    return len(index.terms) == 1 and isinstance(index.terms[0][0], Axis) and index.terms[0][1] == 1


def bounded(index: Index, bounds: Sequence[Bound]) -> tuple[int, int]:
    """The least and the greatest value of an index where all bounds hold, as far as they are on it, or on single
    axes in it."""
    low, high = index.range
    for i, least, end in bounds:
        rest = index - i
        if not rest.terms:
            low, high = max(low, least + rest.const), min(high, end - 1 + rest.const)
    a, b = range_among(index, limits(bounds))
    return max(low, a), min(high, b)


def limits(bounds: Sequence[Bound]) -> dict[Axis, tuple[int, int]]:
    """The least and the greatest value of axes where all bounds hold that are on a single axis."""
    found: dict[Axis, tuple[int, int]] = {}
    for i, least, end in bounds:
        if is_shifted_axis(i) and isinstance(axis := i.terms[0][0], Axis):
            low, high = found.get(axis, axis.range)
            found[axis] = max(low, least - i.const), min(high, end - 1 - i.const)
    return found


def range_among(index: Index, ranges: Mapping[Axis, tuple[int, int]]) -> tuple[int, int]:
    """The least and the greatest value of an index where axes have these ranges, the others their own."""
    low = high = index.const
    for atom, by in index.terms:
        if isinstance(atom, Axis):
            a, b = ranges.get(atom, atom.range)
        elif isinstance(atom, Quotient):
            a, b = (end // atom.by for end in range_among(atom.of, ranges))
        else:
            a, b = 0, atom.by - 1
        low, high = (low + a * by, high + b * by) if by > 0 else (low + b * by, high + a * by)
    return low, high
