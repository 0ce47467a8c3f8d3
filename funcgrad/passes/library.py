"""A graph in the form that the library runs fastest. Each rewriting leaves every result what it was, up to rounding,
but for the first:

- a product with a symbolic zero (a tangent that is nothing) is one, also where the other factor is infinite or NaN;
- convolutions read and write ``channels_last`` memory, as oneDNN does inside; the kernels around them read and write it
  as it lies;
- the products of the slices of one tensor with one matrix are one product, or a few;
- a sum of products is added up by the products, in place; many small ones of a sequence's slices are a few products;
- what kernels make for products of batches lies batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from ..graph_primitives import getitem
from ..graphs import Graph, copied, has_effect, is_getitem, is_view, value_of, verify
from ..loops.rows_products import is_small
from ..symbolic.known import is_few
from ..torch_private.operators import is_pointwise
from .logged import logged
from .rewriting import call, computed

aten = torch.ops.aten

ADDING = {aten.mm.default: aten.addmm.default, aten.bmm.default: aten.baddbmm.default}
"""Products, and the product that adds, which may add to its first operand where it lies: the library does that at
the same speed."""

OF_MEMORY = (aten.as_strided.default, aten.as_strided_scatter.default)
"""Calls that say how a tensor lies in memory."""

_ROWS = 128
"""So many rows make a product as fast as it gets; more of them at once would only keep more memory."""

_TRANSPOSITIONS = (aten.t.default, aten.transpose.int, aten.permute.default)

_FEW_ROWS, _OFTEN = 64, 4
"""So many products of so few rows are worth one product of all rows."""


def for_library(graph: Graph) -> Graph:
    """The graph rewritten for tensors of the CPU; itself where nothing is to be rewritten."""
    found = [rewrite for rewrite, targets in _REWRITINGS if any(n.target in targets for n in graph.fx.nodes)]
    if not found:
        return graph
    new = copied(graph)
    for rewrite in found:
        new = logged(rewrite.__name__.strip("_").replace("_", " "), new, lambda graph: _rewritten(graph, rewrite))  # noqa: B023
    return verify(new)


def _rewritten(graph: Graph, rewrite: Callable[[fx.Graph], None]) -> Graph:
    rewrite(graph.fx)
    for node in reversed(list(graph.fx.nodes)):
        if node.op == "call_function" and not node.users and not has_effect(node):
            graph.fx.erase_node(node)
    return graph


def _args(node: fx.Node) -> Any:
    return node.args


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────────────────────


def _channels_last(graph: fx.Graph) -> None:
    laid_out: dict[fx.Node, fx.Node] = {}
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return

    def last(x: fx.Node) -> fx.Node:
        if value_of(x).is_contiguous(memory_format=torch.channels_last):
            return x
        if x not in laid_out:
            with graph.inserting_after(_last_placeholder(graph) if x.op == "placeholder" else x):
                laid_out[x] = call(x, aten.clone.default, x, memory_format=torch.channels_last)
        return laid_out[x]

    for node in list(graph.nodes):
        if node.target is aten.convolution.default and is_planar(_args(node)[0]):
            with graph.inserting_after(node):
                new = call(node, node.target, last(_args(node)[0]), *_args(node)[1:])
                _as_before(node, new)
        elif (
            node.target is aten.convolution_backward.default
            and is_planar(_args(node)[0])
            and all(map(is_getitem, node.users))
        ):
            image = _args(node)[1]
            if image.op == "placeholder" and image not in laid_out:
                continue  # to put both in another order takes longer than the library then saves
            with graph.inserting_before(node):
                new = call(node, node.target, last(_args(node)[0]), last(_args(node)[1]), *_args(node)[2:])
            for part in list(node.users):
                if part.users:
                    with graph.inserting_after(part):
                        _as_before(part, call(part, getitem, new, _args(part)[1]))


def is_planar(x: Any) -> bool:
    """Whether it is images, or anything of four dimensions, row by row."""
    value = value_of(x)
    return bool(value.ndim == 4 and value.is_contiguous() and value.dtype in (torch.float32, torch.bfloat16))


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    found: list[fx.Node] = graph.find_nodes(op="placeholder")
    return found[-1]


def _as_before(node: fx.Node, new: fx.Node) -> None:
    """``new`` takes the place of ``node``, in memory of the same layout."""
    before, now = value_of(node), value_of(new)
    if isinstance(before, Tensor) and before.ndim == 4 and before.stride() != now.stride():
        with node.graph.inserting_after(new):
            new = call(new, aten.clone.default, new, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(new)


# ── products ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _products(graph: fx.Graph) -> list[fx.Node]:
    """The products of two matrices that the library runs."""
    return [n for n in graph.nodes if n.target is aten.mm.default and not _is_small(n)]


def _is_small(product: fx.Node) -> bool:
    operand = _args(product)[0] if product.target in ADDING else _args(product)[1]
    return is_small(value_of(product).shape, value_of(operand).shape[-1])


def _of_nothing(graph: fx.Graph) -> None:
    """What a function does not differentiate by has no tangent. To PyTorch that is a ``ZeroTensor``, which makes
    nothing of what it is multiplied with, infinities too; but before a product of matrices it is written out, as one
    zero, expanded."""
    for node in [n for n in graph.nodes if n.target in ADDING and any(map(_is_nothing, _args(n)))]:
        out = value_of(node)
        if all(isinstance(n, int) for n in out.shape):
            with graph.inserting_before(node):
                node.replace_all_uses_with(
                    call(node, aten.zeros.default, list(out.shape), dtype=out.dtype, device=out.device)
                )


def _is_nothing(node: Any) -> bool:
    expanded = False
    while is_view(node):
        expanded |= node.target is aten.expand.default
        node = _args(node)[0]
    return expanded and node.target is aten.zeros.default and not _args(node)[0]


def _of_slices(graph: fx.Graph) -> None:
    """``x[0] @ w``, ``x[1] @ w``, … for most slices of an input are ``(x @ w)[0]``, ``(x @ w)[1]``, …"""
    groups: dict[tuple[fx.Node, fx.Node], list[tuple[int, fx.Node]]] = {}
    for node in _products(graph):
        a, b = _args(node)
        slice_ = _slice(a)
        if slice_ is not None and b.op == "placeholder":
            groups.setdefault((slice_[0], b), []).append((slice_[1], node))
    for (x, w), products in groups.items():
        steps, rows, _ = value_of(x).shape
        if len(products) < 2 or not is_few(steps, len(products) * 2 - 1) or not isinstance(rows, int):
            continue
        by_part: dict[int, list[tuple[int, fx.Node]]] = {}
        at_once = -(-_ROWS // rows)
        for i, node in products:
            by_part.setdefault(i // at_once, []).append((i, node))
        for part, inside in by_part.items():
            begin, end = part * at_once, min(steps, (part + 1) * at_once)
            first = inside[0][1]
            with graph.inserting_before(first):
                whole = call(first, aten.mm.default, _slices(first, x, begin, end), w)
                parts = call(first, aten.view.default, whole, [end - begin, rows, value_of(w).shape[1]])
            for i, node in inside:
                with graph.inserting_before(node):
                    node.replace_all_uses_with(call(node, aten.select.int, parts, 0, i - begin))


def _slices(like: fx.Node, x: fx.Node, begin: int, end: int) -> fx.Node:
    """The rows of ``x[begin]`` … ``x[end - 1]``."""
    steps, rows, width = value_of(x).shape
    some = x if end - begin == steps else call(like, aten.slice.Tensor, x, 0, begin, end)
    return call(like, aten.view.default, some, [(end - begin) * rows, width])


def _slice(node: fx.Node) -> tuple[fx.Node, int] | None:
    """``(x, i)`` for ``x[i]`` of a contiguous input of three dimensions."""
    if node.target is aten.select.int and _args(node)[1] == 0:
        x, i = _args(node)[0], _args(node)[2]
    elif is_getitem(node) and _args(node)[0].target is aten.unbind.int and _args(_args(node)[0])[1:] in ((), (0,)):
        x, i = _args(_args(node)[0])[0], _args(node)[1]
    else:
        return None
    inside = x.op == "placeholder" and value_of(x).ndim == 3 and value_of(x).is_contiguous()
    return (x, i % value_of(x).shape[0]) if inside else None


def _sums(graph: fx.Graph) -> None:
    """``a @ b + c @ d`` is ``addmm(a @ b, c, d)``: what comes later is added to what is there. Two that are looked
    at in the same way are added before."""
    position = {n: i for i, n in enumerate(graph.nodes)}
    for node in [n for n in graph.nodes if n.target is aten.add.Tensor]:
        if node.kwargs or not all(isinstance(a, fx.Node) for a in _args(node)):
            continue
        looks, sources = zip(*map(_looked_at, _args(node)), strict=True)
        one, other = sorted(sources, key=lambda n: (n.target in ADDING, position[n]))
        if (
            looks[0] != looks[1]
            or one is other
            or not all(_is_read_once(s) and not _is_small(s) for s in sources)
            or other.target not in ADDING
        ):
            continue
        if value_of(one).stride() != value_of(other).stride() or value_of(one).dtype != value_of(other).dtype:
            continue
        if value_of(one).shape != value_of(other).shape:
            continue
        with graph.inserting_before(node):
            new = call(node, ADDING[other.target], one, *_args(other))
            position[new] = position[node]
            for target, *args in looks[0]:
                new = call(node, target, new, *args)
                position[new] = position[node]
        node.replace_all_uses_with(new)


def _together(graph: fx.Graph) -> None:
    """``a.t() @ b + c.t() @ d + …``, of few rows each, is one product of all rows, or a sum of some. (The gradient
    of a matrix that every step reads.)"""
    ends = [n for n in graph.nodes if n.target is aten.addmm.default]
    sums = [(end, _terms(end)) for end in ends if all(user.op == "output" for user in end.users)]
    order = {n: i for i, n in enumerate(graph.nodes)}
    stacks: list[_Stack] = []
    for end, terms in sorted(sums, key=lambda found: -len(found[1])):
        if len(terms) >= _OFTEN and len({(value_of(a).shape, value_of(b).shape) for a, b in terms}) == 1:
            total: fx.Node | None = None
            earlier = tuple(stacks)
            parts = [(_last_of(part, earlier, order), part) for part in _parts(_in_order(terms))]
            for last, part in sorted(parts, key=lambda found: order[found[0]]):
                with graph.inserting_before(_after(last, order)):
                    rows = [_all_rows(end, side, earlier) for side in zip(*part, strict=True)]
                    stacks += [_Stack(_args(row)[0], row, last) for row in rows if row.target is aten.concat.default]
                    product = call(end, aten.t.default, rows[0]), rows[1]
                    total = (
                        call(end, aten.addmm.default, total, *product)
                        if total
                        else call(end, aten.mm.default, *product)
                    )
            assert total is not None
            end.replace_all_uses_with(total)


@frozen
class _Stack:
    """Matrices one below the other, made for one sum, of which another may read some."""

    matrices: Sequence[fx.Node]
    whole: fx.Node
    after: fx.Node
    """The node of the graph as it was behind which it was made."""


def _stacked(matrices: Sequence[fx.Node], stacks: Sequence[_Stack]) -> tuple[_Stack, int] | None:
    """A stack in which these are one after the other, and where they begin."""
    n = len(matrices)
    for stack in stacks:
        for i in range(len(stack.matrices) - n + 1):
            if list(stack.matrices[i : i + n]) == list(matrices):
                return stack, i
    return None


def _last_of(
    part: Sequence[tuple[fx.Node, fx.Node]], stacks: Sequence[_Stack], order: Mapping[fx.Node, int]
) -> fx.Node:
    """The last node that a product of all rows waits for: of the matrices, or of those they are stacked with."""
    found = [_stacked(side, stacks) for side in zip(*part, strict=True)]
    return max([n for pair in part for n in pair] + [f[0].after for f in found if f], key=order.__getitem__)


def _parts(terms: Sequence[tuple[fx.Node, fx.Node]]) -> Sequence[Sequence[tuple[fx.Node, fx.Node]]]:
    """So many at a time that more would not be faster, and what they are made of need not wait for the others. Sums
    of as many steps, or of all but the first ones, have parts of the same steps."""
    at_once = -(-_ROWS // value_of(terms[0][1]).shape[0])
    ends = [*range(len(terms), 0, -at_once)]
    return [terms[max(0, end - at_once) : end] for end in ends]


def _after(node: fx.Node, order: Mapping[fx.Node, int]) -> fx.Node:
    """Where something goes that needs a node, after all that was put there before."""
    node = node.next
    while node not in order:
        node = node.next
    return node


def _terms(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """``(a, b), …`` of a sum ``a.t() @ b + …`` of products with few rows, whose parts nobody else reads."""
    found = []
    while True:
        a, b = _args(node)[-2:]
        if a.target is not aten.t.default or not is_few(value_of(b).shape[0], _FEW_ROWS) or node.kwargs:
            return []
        found.append((_args(a)[0], b))
        if node.target is aten.mm.default:
            return found
        node = _args(node)[0]
        if len(node.users) > 1 or node.target not in (aten.mm.default, aten.addmm.default):
            return []


def _in_order(terms: Sequence[tuple[fx.Node, fx.Node]]) -> list[tuple[fx.Node, fx.Node]]:
    """The terms in the order of the slices that the first operands are, if they are."""
    slices = [_slice(a) for a, _ in terms]
    return [terms[i] for i in sorted(range(len(terms)), key=lambda i: slices[i][1] if all(slices) else i)]  # type: ignore[index]


def _all_rows(like: fx.Node, matrices: Sequence[fx.Node], stacks: Sequence[_Stack]) -> fx.Node:
    """Matrices one below the other: a tensor that they are slices of, a part of what another sum has stacked, or a
    stack."""
    slices = [_slice(m) for m in matrices]
    if all(slices) and len({x for x, _ in slices}) == 1:  # type: ignore[misc]
        x, begin = slices[0]  # type: ignore[misc]
        if [i for _, i in slices] == list(range(begin, begin + len(slices))):  # type: ignore[misc]
            return _slices(like, x, begin, begin + len(slices))
    rows, found = value_of(matrices[0]).shape[0], _stacked(matrices, stacks)
    if found is not None:
        stack, i = found
        return call(like, aten.slice.Tensor, stack.whole, 0, i * rows, (i + len(matrices)) * rows)
    return call(like, aten.concat.default, list(matrices))  # mostly nothing is copied: see layout.py


def _looked_at(node: fx.Node) -> tuple[tuple[Any, ...], fx.Node]:
    """How a value that nobody else reads is looked at, and where it is made."""
    looks: list[Any] = []
    while node.target in _TRANSPOSITIONS and len(node.users) == 1 and len(_args(node)[0].users) == 1:
        looks.insert(0, (node.target, *_args(node)[1:]))
        node = _args(node)[0]
    return tuple(looks), node


def added_to(node: fx.Node) -> fx.Node | None:
    """What a product adds to, if that is a product, too, which nobody else reads: it is added to in place."""
    start = _args(node)[0] if node.target in ADDING.values() else None
    return start if start is not None and _is_read_once(start) else None


def _is_read_once(node: fx.Node) -> bool:
    """Whether it is a product, or a sum of some, and has one reader."""
    return len(node.users) == 1 and (node.target in ADDING or node.target in ADDING.values())


def _batch_by_batch(graph: fx.Graph) -> None:
    """What a kernel makes row by row, each with its part of all batches, for products of batches alone, it makes
    batch by batch."""
    for node in list(graph.nodes):
        if not is_view(node) or not _is_row_by_row(value_of(node)) or not _is_made_for(node):
            continue
        views = _views(node)
        if not _feeds_batches((node, *views)) or any(view.target in OF_MEMORY for view in views):
            continue
        with graph.inserting_after(node):
            copy = call(node, aten.clone.default, node, memory_format=torch.contiguous_format)
        node.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy)  # type: ignore[misc]
        for view in views:
            view.meta["val"] = computed(view)


def _is_row_by_row(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 3 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous()


def _is_made_for(view: fx.Node) -> bool:
    """Whether the elements are computed one by one, and seen through this view alone."""
    while is_view(view):
        view = _args(view)[0]
        if len(view.users) > 1:
            return False
    return is_pointwise(view.target)


def _feeds_batches(views: Sequence[fx.Node]) -> bool:
    readers = {user for v in views for user in v.users if not is_view(user)}
    return bool(readers) and all(r.target is aten.bmm.default and not _is_small(r) for r in readers)


def _views(node: fx.Node) -> list[fx.Node]:
    """The views of a tensor, and theirs, in order."""
    found = [user for user in node.users if is_view(user)]
    return [v for user in found for v in (user, *_views(user))]


_REWRITINGS: Sequence[tuple[Callable[[fx.Graph], None], Sequence[Any]]] = (
    (_channels_last, (aten.convolution.default, aten.convolution_backward.default)),
    (_of_nothing, tuple(ADDING)),
    (_of_slices, (aten.mm.default,)),
    (_sums, tuple(ADDING)),
    (_together, (aten.mm.default,)),
    (_batch_by_batch, (aten.bmm.default,)),
)
