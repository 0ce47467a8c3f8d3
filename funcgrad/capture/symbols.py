"""The symbols of a trace: floats, and sizes of tensors, that a program is given when it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from ..errors import TraceError
from ..sizes import Sizes, shape_of, sizes_of, strides_of
from ..torch_private import (
    FakeTensorMode,
    ShapeEnv,
    expression,
    guard_expressions,
    is_exact,
    make_environment,
    make_symbol,
    python_text,
    symbolic_fake,
    symbolic_shapes,
)


class Symbols:
    """Comparisons on symbols become guards, arithmetic on them becomes expressions."""

    def __init__(self, fakes: FakeTensorMode) -> None:
        self._fakes = fakes
        self._env: ShapeEnv | None = None
        self.floats: dict[str, str] = {}
        """By symbol, the path of the float it stands for."""
        self.sizes: dict[str, tuple[str, int]] = {}
        """By symbol, the tensor and the dimension whose size it stands for."""

    def _environment(self) -> ShapeEnv:
        if self._env is None:  # only for symbols: with an environment, values read from tensors would become symbols, too
            self._env = self._fakes.shape_env = make_environment()
        return self._env

    def number(self, name: str, value: float) -> Any:
        """A symbolic float."""
        symbol = make_symbol(self._environment(), name, value)
        self.floats[str(expression(symbol))] = name
        return symbol

    def tensor(self, name: str, real: Tensor, dims: Collection[int]) -> Tensor:
        """A fake of a tensor whose sizes along ``dims`` are symbols: those that are equal now may be others later."""
        self._environment()
        fake = symbolic_fake(self._fakes, real, name, dims)
        for d, (size, now) in enumerate(zip(fake.shape, real.shape, strict=True)):
            if isinstance(size, torch.SymInt) and str(expression(size)) not in self.sizes:
                self.sizes[str(expression(size))] = name, d
                self.known.symbol(str(expression(size)), now)
                self.known.origins[str(expression(size))] = f"{name}.shape[{d}]"
        for stride in fake.stride():
            if isinstance(stride, torch.SymInt) and not {str(s) for s in expression(stride).free_symbols} <= self.sizes.keys():
                raise TraceError(f"{name} does not lie as its sizes say", where=name, fix="pass x.contiguous(), or dynamic=False")
        self.known.inputs[name] = shape_of(fake), strides_of(fake)
        return fake

    def followed(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, operators compute with symbolic sizes, where C++ would fix some."""
        return symbolic_shapes() if self.sizes else contextlib.nullcontext()

    @property
    def known(self) -> Sizes:
        """What is known of the sizes."""
        return sizes_of(self._environment())

    @property
    def of_sizes(self) -> Sizes | None:
        return self.known if self.sizes else None

    def guards(self) -> list[str]:
        """Conditions on floats the run relied on, as Python over the symbols' names; those on sizes ``known`` tells."""
        found: list[str] = []
        for condition in guard_expressions(self._env) if self._env is not None else ():
            free = {str(s) for s in condition.free_symbols}
            if not free <= self.floats.keys() | self.sizes.keys():
                raise TraceError(
                    f"a condition on sizes is on more than those of inputs: {self.known.named(str(condition))}", fix="dynamic=False"
                )
            if free & self.floats.keys() and not is_exact(condition):
                raise TraceError("a condition on symbolic floats is not computed as Python computes it", fix="dynamic=False")
            if free <= self.floats.keys():
                found.append(python_text(condition))
        return found
