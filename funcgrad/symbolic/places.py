"""Where in the values of an fx graph its symbolic sizes are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import SymInt, Tensor, fx

from ..torch_private.symbols import is_size, shape_environment, symbol_name
from .names import solved
from .sizes import Sizes, plain, sizes_of
from .torch_sizes import symbols_of


def places_of_sizes(placeholders: Sequence[fx.Node]) -> dict[str, str]:
    """Where in the inputs of a graph symbolic sizes are, by the symbols' names: Python over the inputs' names."""
    found = [(n, f"{node.name}.shape[{d}]") for node in placeholders for d, n in _symbolic_sizes(node)]
    found += [(node.meta["val"], node.name) for node in placeholders if is_size(node.meta.get("val"))]
    # a slice that a body of control flow is given lies as a tensor does whose size is none of its own
    found += [(n, f"{node.name}.stride({d})") for node in placeholders for d, n in _symbolic_strides(node)]
    known = {name: place for n, place in reversed(found) if (name := symbol_name(n)) is not None}
    others = solved([(plain(n), place) for n, place in found])
    return known | {name: place for name, place in others.items() if name not in known}


def sizes_around(node: fx.Node) -> Sizes:
    """What is known of all sizes where a node's own are from."""
    value = node.meta["val"]
    made = value if isinstance(value, (list, tuple)) else [value]
    numbers: list[Any] = [value, *(n for tensor in made if isinstance(tensor, Tensor) for n in tensor.shape)]
    return sizes_of(shape_environment(next(filter(is_size, numbers))))


def symbols_around(node: fx.Node) -> Collection[str]:
    """The symbols that a value knows of."""
    value = node.meta.get("val")
    sizes: list[Any] = [value] if is_size(value) else [n for _, n in (*_symbolic_sizes(node), *_symbolic_strides(node))]
    return {symbol for n in sizes for symbol in symbols_of(n)}


def _symbolic_sizes(node: fx.Node) -> Iterator[tuple[int, SymInt]]:
    """The dimensions of a tensor whose sizes are symbolic."""
    value = node.meta.get("val")
    for d, n in enumerate(value.shape if isinstance(value, Tensor) else ()):
        size: Any = n
        if isinstance(size, SymInt):
            yield d, size


def _symbolic_strides(node: fx.Node) -> Iterator[tuple[int, SymInt]]:
    """The dimensions along which elements of a tensor lie a symbolic number apart; not where there is but one."""
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        pairs: Any = zip(value.shape, value.stride(), strict=True)
        yield from ((d, n) for d, (size, n) in enumerate(pairs) if is_size(n) and (is_size(size) or size > 1))
