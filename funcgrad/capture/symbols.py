"""The symbols of a trace: floats, and sizes of tensors, that a program is given when it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..symbolic.sizes import Sizes, sizes_of
from ..symbolic.torch_sizes import shape_of, strides_of
from ..torch_private.fakes import FakeTensorMode
from ..torch_private.symbolic_rules import install
from ..torch_private.symbols import (
    ShapeEnv,
    expression,
    guard_expressions,
    make_environment,
    symbolic_fake,
    symbolic_shapes,
)
from .floats import Floats, NotSymbolicError


class Symbols:
    """Comparisons on symbols become guards, arithmetic on them becomes expressions."""

    def __init__(self, fakes: FakeTensorMode, expected: bool = False) -> None:
        self._fakes = fakes
        self._env: ShapeEnv | None = None
        self._expected = expected
        """Whether sizes of results will be symbols."""
        self.floats = Floats()
        self.sizes: dict[str, tuple[str, int]] = {}
        """By symbol, the tensor, an input or a result that was read, and the dimension whose size it stands for;
        ``~d``: whose stride, where that follows from no sizes."""

    def _environment(self) -> ShapeEnv:
        # only for symbols: with an environment, values read from tensors would become symbols, too
        if self._env is None:
            self._env = self._fakes.shape_env = make_environment(self.floats.note_line)
        return self._env

    def tensor(self, name: str, real: Tensor, dims: Collection[int]) -> Tensor:
        """A fake of a tensor whose sizes along ``dims`` are symbols: those that are equal now may be others later."""
        fake = self._symbolic(name, real, dims)
        self.known.inputs[name] = shape_of(fake), strides_of(fake)
        return fake

    def result(self, read: int, which: int, real: Tensor, dims: Collection[int]) -> Tensor:
        """The same of a result of an operator whose sizes values decide, of which this is what Python read."""
        fake = self._symbolic(f"read {read}[{which}]", real, dims)
        for size in fake.shape:
            if isinstance(size, torch.SymInt):
                self.known.read(str(expression(size)))
        return fake

    def number(self, text: str, now: int, read: int | None) -> torch.SymInt:
        """A symbol for a number as a size: one that the call is given, or that Python read, or computed of such;
        ``read``: what of that was read last."""
        name = text if read is None else f"read {read} as {text}"
        found: Any = self._symbolic(name, torch.empty(now, 0), (0,)).shape[0]
        symbol = str(expression(found))
        if read is None:
            self.known.given[symbol] = self.known.over_numbers(f"({text})")
        else:
            self.known.read(symbol)
        self.known.origins[symbol] = text
        return found  # type: ignore[no-any-return]

    def _symbolic(self, name: str, real: Tensor, dims: Collection[int]) -> Tensor:
        self._environment()
        fake = symbolic_fake(self._fakes, real, name, dims)
        for d, (size, now) in enumerate(zip(fake.shape, real.shape, strict=True)):
            if isinstance(size, torch.SymInt):
                self._note(expression(size), now, name, d, f"{name}.shape[{d}]")
        for d, (stride, step) in enumerate(zip(fake.stride(), real.stride(), strict=True)):
            if isinstance(stride, torch.SymInt):
                self._note(expression(stride), step, name, ~d, f"{name}.stride({d})")
        return fake

    def _note(self, of: Any, now: int, name: str, dim: int, origin: str) -> None:
        """What a symbol stands for, that is new: another size or stride."""
        if of.is_Symbol and str(of) not in self.sizes:
            self.sizes[str(of)] = name, dim
            self.known.symbol(str(of), now)
            self.known.origins[str(of)] = origin

    def followed(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, operators compute with symbolic sizes, where C++ would fix some."""
        if not self.may_be_sizes():
            return contextlib.nullcontext()
        install()
        return symbolic_shapes()

    def may_be_sizes(self) -> bool:
        """Whether some are sizes, or sizes of results will be."""
        return bool(self.sizes) or self._expected

    @property
    def has_strides(self) -> bool:
        """Whether some are strides that follow from no sizes."""
        return any(d < 0 for _, d in self.sizes.values())

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.floats.names or self.sizes)

    @property
    def known(self) -> Sizes:
        """What is known of the sizes."""
        return sizes_of(self._environment())

    @property
    def of_sizes(self) -> Sizes | None:
        return self.known if self.sizes else None

    def guards(self) -> list[str]:
        """Conditions on floats the run relied on, as Python over the symbols' names; those on sizes ``known`` tells."""
        for condition in guard_expressions(self._env) if self._env is not None else ():
            if not {str(s) for s in condition.free_symbols} <= self.sizes.keys():
                raise NotSymbolicError(
                    f"a condition on sizes is on more than those of inputs: {self.known.named(str(condition))}"
                )
        return list(map(self._over_numbers, self.floats.guards))

    @property
    def by_value(self) -> frozenset[str]:
        """Those of them that fix what is computed of symbols to its value."""
        return frozenset(map(self._over_numbers, self.floats.by_value))

    @property
    def lines(self) -> dict[str, str]:
        """Where in the caller's code a guard was asked first."""
        return {self._over_numbers(guard): line for guard, line in self.floats.lines.items()}

    def _over_numbers(self, guard: str) -> str:
        return self.known.over_numbers(guard) if self.sizes else guard
