"""Scan: what a reduction has come to at each place along a dimension."""

from __future__ import annotations

from attrs import frozen

from .values import Value, made


@frozen(eq=False)
class Scan(Value):
    """``kind`` (sum, prod, max, min) of the elements of ``arg`` up to each place along ``dim``, itself included."""

    kind: str
    arg: Value
    dim: int

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.arg,)


def scan(kind: str, value: Value, dim: int) -> Value:
    """The running ``kind`` along a dimension."""
    dim = dim % len(value.shape) if value.shape else 0
    if not value.shape or value.shape[dim] == 1:
        return value
    return made(Scan, value.shape, value.dtype, kind, value, dim)  # type: ignore[no-any-return]
