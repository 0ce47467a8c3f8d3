"""A Graph is an fx graph of pure ATen calls with a Signature; a Joint is the graph of a forward and its backward.

Both can be printed, run and verified. Everything funcgrad writes on an fx node is read and written here: ``val`` (the
fake value, torch's own key), ``where`` (the caller's source line), ``pass`` (recorded in ``"forward"`` or
``"backward"``), ``no_grad`` (where grad mode is off), ``detached`` (by ``"detach"`` or ``"data"``), and of a backward
pass ``passage``, ``write``, ``is_gradient`` and ``absent``; tags: ``tags.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx
from torch.fx import Graph as FxGraph
from torch.fx import Node

# what a call looks like is asked for here
from .call_text import call_text as call_text  # noqa: PLC0414
from .call_text import target_text as target_text  # noqa: PLC0414
from .call_text import type_now as type_now  # noqa: PLC0414
from .call_text import type_text as type_text  # noqa: PLC0414
from .errors import GraphError
from .generators import Drawn
from .graph_primitives import CHECKS, NumberAsSize, Opaque, Sized, expect, getitem, on_path
from .show.draw import Box, Drawing
from .show.parts import Code, Doc, Table
from .show.shown import Shown
from .show.text import elided
from .slots import Signature, Slot
from .symbolic.read_sizes import SizesNow
from .symbolic.sizes import hint
from .torch_private.operators import draws_random, is_operator, is_torchs_own, returns_nothing, writes_inputs
from .torch_private.tensors import storage_id
from .trees import flatten

_DETACHED: Mapping[str | None, Callable[[Any], Any]] = {
    None: lambda found: found,
    "detach": lambda found: found.detach(),
    "data": lambda found: found.data,  # of the innermost level of torch.func alone
}
_DRAWN_AT_MOST = 80
_SHOWN = 240
"""Characters of a call that are shown: one that puts a thousand tensors together is longer."""


def written_copies(
    op: Any, written: Sequence[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    """A custom operator that writes to its arguments, as a pure function: it gets copies of those at ``written``
    (positions and names), and the tensors it returns are followed by them."""
    places: dict[int | str, Any] = dict(enumerate(args))
    places.update(kwargs)
    for place in written:
        old = places[place]
        places[place] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device).copy_(old)
    with torch.no_grad():  # as below eager PyTorch's autograd: it may ask for ``.numpy()``
        out = op(*(places[i] for i in range(len(args))), **{name: places[name] for name in kwargs})
    return (*(v for v in flatten(out)[0] if isinstance(v, Tensor)), *(places[place] for place in written))


@frozen(eq=False, repr=False)
class Graph(Shown):
    """Pure ATen calls: placeholders in the order of ``signature.ins``, results in the order of ``signature.outs``.

    ``constants`` are tensors made while tracing (``torch.tensor(3.)`` in the function), read by ``get_attr`` nodes.
    """

    signature: Signature
    fx: FxGraph
    constants: Mapping[str, Tensor]
    name: str = "graph"
    is_boxed: bool = False
    """Whether a program of it takes its values as one list, and empties it: so each is freed after its last reader."""
    handed_over: frozenset[str] = frozenset()
    """The placeholders of a boxed graph whose memory was made for it alone: a program may write there, if nobody
    holds it when it runs."""
    donated: frozenset[str] = frozenset()
    """The placeholders whose memory nobody else reads, in any call: a program may write there."""

    @property
    def placeholders(self) -> list[Node]:
        return self.fx.find_nodes(op="placeholder")

    @property
    def results(self) -> tuple[Any, ...]:
        """What the graph returns, per slot of ``signature.outs``: a node or a constant."""
        return tuple(self.fx.output_node().args[0])  # type: ignore[arg-type]

    @property
    def given(self) -> list[tuple[Slot, Node]]:
        """What the graph is given, by slot."""
        return list(zip(self.signature.ins, self.placeholders, strict=True))

    @property
    def gives(self) -> list[tuple[Slot, Any]]:
        """What it returns, by slot."""
        return list(zip(self.signature.outs, self.results, strict=True))

    @property
    def computed(self) -> list[tuple[Slot, Node]]:
        """What the graph computes, by slot: its results but for constants."""
        return [(s, r) for s, r in self.gives if isinstance(r, Node)]

    def result_of(self, slot: Slot) -> Any:
        """The node (or constant) of one output slot."""
        return self.results[self.signature.outs.index(slot)]

    def run(self, *values: Any, instead: Mapping[Any, Any] = MappingProxyType({})) -> tuple[Any, ...]:
        """Run node by node on real (or fake) values, one per slot of ``signature.ins``; with other functions in the
        place of some operators. Raises ``PathMiss`` where Python read other values than when it was traced."""
        if len(values) != len(self.signature.ins):
            raise GraphError(
                f"{self.name} takes {len(self.signature.ins)} values, got {len(values)}",
                fix=f"pass one for each of {', '.join(map(str, self.signature.ins))}",
            )
        env: dict[Node, Any] = dict(zip(self.placeholders, values, strict=True))
        sizes = SizesNow(self.placeholders, env)
        for node in self.fx.nodes:
            if node.op == "get_attr":
                env[node] = self.constants[node.target]
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
                with torch.no_grad() if node.meta.get("no_grad") else contextlib.nullcontext():
                    found = instead.get(node.target, node.target)(*args, **kwargs)
                env[node] = _DETACHED[node.meta.get("detached")](found)
                sizes.check(node)
        return tuple(fx.map_arg(self.results, env.__getitem__))

    def headline(self) -> str:
        return elided(f"{self.name}{self.signature}", 90)

    def doc(self) -> Doc:
        return Doc(self.headline(), (self.drawing(), *self.listed()))

    def listed(self) -> tuple[Table | Doc, ...]:
        """The parts of its ``doc`` without the drawing."""
        bodies = [body.doc() for node in self.fx.nodes for body in bodies_of(node)]
        return (Table(("", "", "type", "from"), tuple(_rows(self)), "calls"), *_constant_parts(self), *bodies)

    def drawing(self) -> Drawing:
        """The graph as boxes and arrows (the first 80 nodes)."""
        boxes = list(_boxes(self))
        return Drawing(tuple(boxes[:_DRAWN_AT_MOST]), max(0, len(boxes) - _DRAWN_AT_MOST))


def restrict(graph: Graph, outs: Sequence[Slot]) -> Graph:
    """The part of a graph that computes some of its outputs; it keeps all inputs, and every call that has an effect."""
    pairs = [(slot, graph.result_of(slot)) for slot in outs]
    needed = ancestors([v for _, v in pairs] + [n for n in graph.fx.nodes if has_effect(n)])
    keep = [n for n in graph.fx.nodes if n in needed]
    return verify(copy_nodes(graph, keep, graph.given, pairs, graph.name))


def checks_alone(graph: Graph) -> Graph:
    """What a graph checks of values that Python read, without results. What is drawn before the last check is drawn:
    what is read may be drawn after it."""
    nodes = list(graph.fx.nodes)
    last = max((i for i, n in enumerate(nodes) if is_path_check(n)), default=-1)
    needed = ancestors(n for n in nodes[: last + 1] if is_path_check(n) or is_random(n))
    return verify(copy_nodes(graph, [n for n in nodes if n in needed], graph.given, [], graph.name))


def ancestors(values: Iterable[object], stop: Collection[Node] = ()) -> set[Node]:
    """The nodes some values are computed from, themselves included, not going beyond ``stop`` (which is included)."""
    found: set[Node] = set()
    pending = [v for v in values if isinstance(v, Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                pending.extend(node.all_input_nodes)
    return found


def as_needed(roots: Iterable[Node], before: Mapping[Node, Collection[Node]]) -> Iterator[Node]:
    """The roots and all they wait for: just before each root what it needs that has not come yet, in the order of
    ``before``, which says for which nodes each waits, and has them in the order of the graph."""
    position = {node: i for i, node in enumerate(before)}
    done: set[Node] = set()
    for root in roots:
        new: set[Node] = set()
        pending = [root]
        while pending:
            node = pending.pop()
            if node not in done and node not in new:
                new.add(node)
                pending.extend(before[node])
        yield from sorted(new, key=position.__getitem__)
        done |= new


# ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def value_of(node: Node) -> Any:
    """The fake value a node was recorded with."""
    return node.meta["val"]


def where_of(node: Node) -> str | None:
    """The caller's source line a node comes from."""
    return node.meta.get("where")


def pass_of(node: Node) -> str:
    """``"forward"`` or ``"backward"``: when the node was recorded."""
    return str(node.meta.get("pass", "forward"))


def looks_at(node: Node) -> Collection[str]:
    """The operands, by name, that are given in place of a view of forward's, of the same elements."""
    found: Collection[str] = node.meta.get("looks_at", ())
    return found


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a node's value (a tensor, or a flat list or tuple)."""
    if isinstance(value, Tensor):
        return [value]
    return [v for v in value if isinstance(v, Tensor)] if isinstance(value, (list, tuple)) else []


@frozen(eq=False)
class Passage:
    """Of a node of autograd: the outputs from which a backward pass runs it, and the inputs that it leads to."""

    outs: frozenset[Slot]
    inputs: frozenset[Slot]
    is_python: bool = False
    """Whether this is the backward of a custom ``autograd.Function``, without what stands around it: hooks on its
    results, sums with other gradients."""
    takes_zeros: bool = False
    """Whether that is given zeros where no gradient comes in."""


def passage_of(node: Node) -> Passage | None:
    """The node of autograd that made a call, where it is known."""
    return node.meta.get("passage")


@frozen(eq=False)
class Write:
    """What a write of a node of autograd replaced (by its name): it stands where that node does not run."""

    before: str
    passage: Passage


def write_of(node: Node) -> Write | None:
    """Of what a tensor holds after a write in a backward pass: that write."""
    return node.meta.get("write")


def absent_in(node: Node) -> frozenset[Slot]:
    """The outputs without a gradient in the pass in which a call was recorded, if that was traced of its own."""
    found: frozenset[Slot] = node.meta.get("absent", frozenset())
    return found


def is_constant_gradient(node: Node) -> bool:
    """Whether a node of autograd gives this as a gradient, which depends on none that comes in: Python's, or zeros like
    what forward computed (``pow``'s to the power 0)."""
    zeros = node.target is torch.ops.aten.zeros_like.default and passage_of(node) is not None
    return zeros or bool(node.meta.get("is_gradient"))


def device_of(graph: Graph) -> torch.device:
    """The first CUDA device of its tensors; else the CPU."""
    tensors = (t for node in graph.fx.nodes for t in tensors_in(node.meta.get("val")))
    return next((t.device for t in tensors if t.device.type == "cuda"), torch.device("cpu"))


def storages(node: Node) -> frozenset[int]:
    """Identities of the memory a node's value lives in: two nodes that share one are views of the same memory."""
    return frozenset(map(storage_id, tensors_in(node.meta.get("val"))))


Place = tuple[str, int]
"""Memory in a graph: the node that makes it, or gives it, and the storage."""


def storage_map(graph: Graph) -> dict[str, dict[int, Place]]:
    """In whose memory each node's value lies, by storage: in that of an input it looks at, else in its own. Unlike
    ``storages`` it tells what is computed twice apart."""
    found: dict[str, dict[int, Place]] = {}
    for node in graph.fx.nodes:
        inherited = {storage: place for n in node.all_input_nodes for storage, place in found[n.name].items()}
        found[node.name] = {storage: inherited.get(storage, (node.name, storage)) for storage in storages(node)}
    return found


def memory_of(value: Any) -> dict[int, int]:
    """The memory that tensors lie in, by identity, with its bytes."""
    return {storage_id(t): hint(t.untyped_storage().nbytes()) for t in tensors_in(value)}


def is_expanded(tensor: Tensor) -> bool:
    """Whether one element in memory stands for several of the tensor."""
    return tensor.numel() > 0 and any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def nbytes(value: Any) -> int:
    """Bytes of the elements of a value."""
    return sum(hint(t.numel()) * t.element_size() for t in tensors_in(value))


def is_random(node: Node) -> bool:
    """Whether the node draws from a random generator."""
    if is_operator(node.target):
        return draws_random(node.target)
    return any(is_random(n) for body in bodies_of(node) for n in body.fx.nodes)


def drawn_from(node: Node) -> list[Drawn]:
    """What a node that draws draws from: the generator that it names, or the default ones of devices."""
    arguments: tuple[Any, ...] = (*node.args, *node.kwargs.values())
    named: list[Drawn] = [v for v in arguments if isinstance(v, torch.Generator)]
    return named or list(dict.fromkeys(t.device for t in tensors_in(value_of(node))))


def bodies_of(node: Node) -> list[Graph]:
    """The graphs that control flow runs: the branches of ``torch.cond``, the body of a loop; none for any other
    node."""
    args: tuple[Any, ...] = node.args
    return [a for a in args if isinstance(a, Graph)]


def has_effect(node: Node) -> bool:
    """Whether a call must run though nobody reads its result: a draw, a check, an opaque call, an operator that is
    not torch's own."""
    if node.op != "call_function":
        return False
    if is_operator(node.target):
        return is_random(node) or returns_nothing(node.target) or not is_torchs_own(node.target)
    if isinstance(node.target, Opaque):
        return not node.target.is_pure
    if (
        node.target in CHECKS
        or node.target is written_copies
        or isinstance(node.target, (Sized, NumberAsSize))
        or is_random(node)
    ):
        return True
    return any(has_effect(n) for body in bodies_of(node) for n in body.fx.nodes)


def is_path_check(node: Node) -> bool:
    """Whether a call says that the program is for this call: it may raise ``PathMiss``."""
    if isinstance(node.target, NumberAsSize):
        return node.target.read is not None
    return node.target in (expect, on_path) or isinstance(node.target, Sized)


def last_node(graph: FxGraph) -> Node:
    """The node that was appended last. What ``reversed`` gives of nodes is no iterator in torch 2.11."""
    last: Node = next(iter(reversed(graph.nodes)))
    return last


def is_getitem(node: Node) -> bool:
    return node.target is getitem


def is_view(node: Node) -> bool:
    """Whether the node only looks at memory of its input (no kernel runs, no byte moves).

    An element taken from an op's several results is a view if the op itself only looks (``split``), else a value of its
    own.
    """
    if is_getitem(node):
        return is_view(node.all_input_nodes[0])
    own = storages(node) if node.op == "call_function" else ()
    return bool(own) and all(any(storage in storages(n) for n in node.all_input_nodes) for storage in own)


def copy_nodes(
    graph: Graph, keep: Iterable[Node], placeholders: list[tuple[Slot, Node]], outs: list[tuple[Slot, Any]], name: str
) -> Graph:
    """A new Graph of the nodes in ``keep``, in that order; ``placeholders`` stand for values that come from outside."""
    new = fx.Graph()
    env: dict[Node, Node] = {}
    for _, node in placeholders:
        env[node] = new.placeholder(node.name)
        env[node].meta = dict(node.meta)
    for node in keep:
        if node not in env:
            env[node] = new.node_copy(node, env.__getitem__)
    new.output(fx.map_arg(tuple(value for _, value in outs), env.__getitem__))
    used = {n.target for n in env.values() if n.op == "get_attr"}
    constants = {k: v for k, v in graph.constants.items() if k in used}
    return Graph(Signature(tuple(s for s, _ in placeholders), tuple(s for s, _ in outs)), new, constants, name)


def copied(graph: Graph) -> Graph:
    """A graph of its own with the same nodes, to be rewritten."""
    return in_order(graph, [n for n in graph.fx.nodes if n.op not in ("placeholder", "output")])


def in_order(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """The same graph with its calls (and constants) in another order."""
    new = copy_nodes(graph, nodes, graph.given, graph.gives, graph.name)
    return evolve(graph, fx=new.fx, constants=new.constants)


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(graph: Graph) -> Graph:
    """The graph itself, if it keeps every promise; else ``GraphError`` with the ten nodes around the fault.

    Promises: fx's own lint; one placeholder per input slot and they come first; one result per output slot; every call
    is a scalar expression, a getitem or a functional ATen (or custom) operator; every value is known.
    """
    nodes = list(graph.fx.nodes)
    try:
        graph.fx.lint()
    except (RuntimeError, ValueError, AssertionError) as error:
        raise GraphError(f"{graph.name}: {error}\n{graph}") from error
    if len(graph.placeholders) != len(graph.signature.ins) or nodes[: len(graph.signature.ins)] != graph.placeholders:
        raise GraphError(f"{graph.name}: placeholders do not stand first, one per input of {graph.signature}")
    if len(graph.results) != len(graph.signature.outs):
        raise GraphError(f"{graph.name}: {len(graph.results)} results for {len(graph.signature.outs)} output slots")
    for i, node in enumerate(nodes):
        fault = _fault(graph, node)
        if fault:
            around = "\n".join(f"  {'→' if n is node else ' '} {n.format_node()}" for n in nodes[max(0, i - 5) : i + 5])
            raise GraphError(f"{graph.name}: {node.name} {fault}\n{around}", where=where_of(node))
    return graph


def _fault(graph: Graph, node: Node) -> str | None:
    if node.op in ("placeholder", "output"):
        return None
    if node.op == "get_attr":
        return None if node.target in graph.constants else "reads a constant that is not there"
    if node.op != "call_function":
        return f"is a {node.op}; only calls belong here"
    if "val" not in node.meta:
        return "has no recorded value"
    if writes_inputs(node.target):
        return "writes to its inputs; a graph between stages is functional"
    return None


# ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(graph: Graph) -> Iterator[tuple[str, ...]]:
    for node, slot in zip(graph.placeholders, graph.signature.ins, strict=True):
        yield node.name, f"input {slot}", type_text(node.meta.get("val")), ""
    current, last = "forward", ""
    for node in graph.fx.nodes:
        if node.op == "get_attr":
            yield node.name, "constant", type_text(node.meta.get("val")), ""
        if node.op == "call_function":
            if pass_of(node) != current:
                current, last = pass_of(node), ""
                yield f"── {current}", "", "", ""
            where = where_of(node) or ""
            yield (
                node.name,
                elided(call_text(node), _SHOWN),
                type_text(node.meta.get("val")),
                "″" if where and where == last else where,
            )
            last = where
    for slot, result in graph.gives:
        yield "return", elided(f"{slot} = {result}", _SHOWN), "", ""


def _constant_parts(graph: Graph) -> tuple[Doc, ...]:
    small = [f"{name} = {value!r}" for name, value in graph.constants.items() if value.numel() <= 16]
    return (Doc("constants", (Code("\n".join(small)),)),) if small else ()


def _boxes(graph: Graph) -> Iterator[Box]:
    for node, slot in zip(graph.placeholders, graph.signature.ins, strict=True):
        yield Box(node.name, str(slot), "input", (), type_text(node.meta.get("val")))
    for node in graph.fx.nodes:
        if node.op in ("call_function", "get_attr"):
            hint = f"{node.name}: {type_text(node.meta.get('val'))} {where_of(node) or ''}"
            yield Box(
                node.name,
                target_text(node.target).removeprefix("aten."),
                pass_of(node),
                tuple(i.name for i in node.all_input_nodes),
                hint,
            )
    for slot, result in graph.gives:
        if isinstance(result, Node):
            yield Box(f"out {slot}", str(slot), "output", (result.name,))
