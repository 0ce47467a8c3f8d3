"""A joint graph: a forward pass and the backward pass it causes in one graph, and what the trace relied on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from attrs import field, frozen

from . import refusals
from .generators import Drawn
from .graph_primitives import CHECKS, Opaque, Read, Sized, guard_holds
from .graphs import Graph, bodies_of, drawn_from, is_path_check, is_random, pass_of, tensors_in, value_of
from .show.parts import Doc, Table
from .show.shown import Shown
from .slots import Seed, Signature, Slot, of_backward, outer_slot
from .subclasses import Wrapping
from .symbolic.sizes import Sizes
from .tags import tags_of
from .torch_private.operators import generator_id, is_operator
from .trees import LEAF, Node, Tree

_CPU = torch.device("cpu")
"""Where the key of a call is drawn."""


@frozen(eq=False)
class Constant:
    """A leaf of the function's result that is no tensor: the same Python object on every call."""

    value: Any


@frozen(eq=False)
class Returned:
    """How the caller's result is put together: its structure, and per leaf the output slot or the constant."""

    tree: Tree
    leaves: tuple[Slot | Constant, ...]


@frozen
class Broken:
    """A guard that does not hold: on which symbols, and how it is written; ``names``: what each symbol is; ``line``:
    what made it."""

    symbols: list[str]
    guard: str
    names: Mapping[str, str]
    line: str | None = None

    @property
    def where(self) -> str:
        return ", ".join(self.names.get(s, s) for s in self.symbols)

    def __str__(self) -> str:
        return re.sub(r"\b[A-Za-z_]\w*\b", lambda found: self.names.get(found[0], found[0]), self.guard)


_TRACED = 16
"""So many passes are traced of their own for one program."""

_TRIED = 256


@frozen(eq=False)
class Told:
    """The Python in a backward pass that hears of it where a gradient is not there: what it does then is not what it
    did where all were there. So such passes are traced of their own, into the same graph."""

    arrivals: tuple[tuple[frozenset[Slot], ...], ...] = ()
    """For each of it, and each gradient that it may be given: the outputs from which that comes."""
    traced: dict[frozenset[Slot], Exception | None] = field(factory=dict)
    """The passes that were traced, by the outputs without a gradient, each with what it raised."""

    def __bool__(self) -> bool:
        return bool(self.arrivals)

    def of(self, absent: Collection[Slot]) -> frozenset[Slot]:
        """The least outputs without which such Python hears the same as without the ``absent``; none where all of it
        that runs is given all."""
        gone = [[outs for outs in arrivals if outs <= frozenset(absent)] for arrivals in self.arrivals]
        if all(len(own) in (0, len(all_)) for own, all_ in zip(gone, self.arrivals, strict=True)):
            return frozenset()
        return frozenset[Slot]().union(*itertools.chain(*gone))

    def passes(self, outs: Sequence[Slot]) -> list[frozenset[Slot]]:
        """Those to trace: from one of the outputs, from all but one, from others, until there are many."""
        others = itertools.chain(*(itertools.combinations(outs, n) for n in range(2, len(outs) - 1)))
        candidates = itertools.chain(itertools.combinations(outs, len(outs) - 1), ((slot,) for slot in outs), others)
        found = dict[frozenset[Slot], None]()
        for absent in itertools.islice(candidates if self else (), _TRIED):
            found |= {own: None} if (own := self.of(absent)) and len(found) < _TRACED else {}
        return list(found)

    def traced_for(self, absent: Collection[Slot]) -> frozenset[Slot]:
        """The pass that was traced for one without the ``absent``: raises what that raised."""
        own = self.of(absent)
        error = self.traced.get(own) if own else None
        if error is not None:
            raise error
        if own and own not in self.traced:
            names = ", ".join(sorted(map(str, own)))
            raise refusals.ABSENT_GRADIENTS(len(self.traced), names, where="the backward pass")
        return own


@frozen(eq=False, repr=False)
class Joint(Shown):
    """One graph that holds a forward pass and the backward pass it causes, or only a forward pass.

    The outputs of ``graph`` that are ``Grad`` slots belong to the backward pass, the others to the forward pass.
    ``guards`` are conditions on symbols the trace relied on, as Python; ``symbols`` are those of numbers (name → path).
    ``sizes``: what is known of symbolic sizes, and asked of them until the program is done.
    """

    graph: Graph
    returned: Returned
    guards: tuple[str, ...] = ()
    symbols: Mapping[str, str] = {}
    sizes: Sizes | None = None
    wrappings: Mapping[Slot, Wrapping] = {}
    """How each value that is a wrapper subclass is made: the graph has its inner tensors."""
    by_value: frozenset[str] = frozenset()
    """The guards among them that fix what is made of a symbol to its value: another value is another program."""
    together: Mapping[Slot, frozenset[Slot]] = {}
    """For each output those from which a backward pass has something in common with one from it: once the graph is
    freed, nobody may go back from these. Nothing where all have."""
    reached: Mapping[Slot, frozenset[Slot]] = {}
    """The inputs to which a backward pass comes from some of the outputs and not from others, by those from which it
    does."""
    told: Told = Told()
    """Of the Python in the backward pass: it gives the gradients of passes that were traced of their own, too
    (``Without``)."""
    outs: tuple[Slot, ...] = ()
    """What it gives as the caller knows it: a wrapper subclass is one slot, and gradients for autograd are none."""
    is_split: bool = False
    """Whether the two passes run as two programs, the caller's code in between."""

    lines: Mapping[str, str] = {}
    """Where in the caller's code guards were made."""
    reads: tuple[Read, ...] = ()
    """What Python read of values: checks in the graph say by its number which of them is another now."""
    own_rule: str | None = None
    """What in the forward pass has a derivative of its own, where transforms may differentiate the graph."""
    arrivals: tuple[Slot, ...] = ()
    """The inputs, in the order in which gradients come to them."""
    through: Mapping[Slot, frozenset[Slot]] = {}
    """The outputs through which backward passes from others go, each with these."""
    catches: bool = False
    """Whether the function may catch what an operation raises: code that ran has a handler."""
    donated: Mapping[Slot, str] = {}
    """The inputs whose memory the caller gives away (``donate_argnums``), each with why it cannot be taken; nothing
    where it may be."""

    @staticmethod
    def of(graph: Graph, is_split: bool = False) -> Joint:
        """A graph that no function was traced for. All of its results are given, but for gradients where it
        ``is_split``."""
        outs = tuple(slot for slot in graph.signature.outs if not is_split or not of_backward(slot))
        tree = Node(tuple, tuple(f"[{i}]" for i in range(len(outs))), None, (LEAF,) * len(outs))
        return Joint(graph, Returned(tree, outs), outs=outs, is_split=is_split)

    @property
    def signature(self) -> Signature:
        return self.graph.signature

    @property
    def calls_opaque(self) -> bool:
        """Whether forward calls the caller's Python, which has done what it does where something raises after it."""
        called = ((n.target, pass_of(n)) for n in self.graph.fx.nodes)
        return any(isinstance(of, Opaque) and not of.is_pure and of_pass == "forward" for of, of_pass in called)

    @property
    def may_be_caught(self) -> bool:
        """Whether the function may catch what an operation raises for values, and run in eager PyTorch for that."""
        return not self.calls_opaque and any(map(self._is_caught, self.graph.fx.nodes))

    def _is_caught(self, node: torch.fx.Node) -> bool:
        return _checks_matrix(node) or (self.catches and _may_raise(node))

    @property
    def drawn_tentatively(self) -> list[Drawn]:
        """What random numbers are drawn from before the last check of what Python read, or of what may be caught."""
        checks = [i for i, n in enumerate(self.graph.fx.nodes) if is_path_check(n) or self._is_caught(n)]
        drawing = filter(is_random, itertools.islice(self.graph.fx.nodes, max(checks, default=0)))
        has_key = checks and any(isinstance(slot, Seed) for slot in self.signature.ins)
        found: dict[object, Drawn] = {_CPU: _CPU} if has_key else {}
        for node in drawing:
            found |= {generator_id(of) if isinstance(of, torch.Generator) else of: of for of in drawn_from(node)}
        return list(found.values())

    def inner_outs(self, outer: Slot) -> list[Slot]:
        """What the graph returns for an output: its inner tensors, if it is a wrapper subclass."""
        return (
            [slot for slot in self.signature.outs if outer_slot(slot) == outer] if outer in self.wrappings else [outer]
        )

    def run(self, *values: Any) -> tuple[Any, ...]:
        """Run the joint graph: outputs and gradients, in the order of ``signature.outs``."""
        return self.graph.run(*values)

    @property
    def conditions(self) -> tuple[str, ...]:
        """All guards, those on sizes among them."""
        return self.guards if self.sizes is None else (*self.guards, *self.sizes.guards_of_numbers, *self.sizes.guards)

    def broken_guards(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Broken]:
        """The guards that do not hold for these numbers (by path) and sizes (by symbol)."""
        symbols = {symbol: values[path] for symbol, path in self.symbols.items()} | dict(sizes)
        names = {**self.symbols, **(self.sizes.origins if self.sizes else {})}
        broken = [g for g in self.conditions if not guard_holds(g, **symbols)]
        return [Broken([s for s in symbols if re.search(rf"\b{s}\b", g)], g, names, self.lines.get(g)) for g in broken]

    def headline(self) -> str:
        passes = [pass_of(n) for n in self.graph.fx.nodes if n.op == "call_function"]
        return f"joint graph: {passes.count('forward')} calls in forward, {passes.count('backward')} in backward"

    def doc(self) -> Doc:
        return Doc(self.headline(), (self.graph.drawing(), *self.listed()))

    def listed(self) -> tuple[Table | Doc, ...]:
        """The parts of its ``doc`` without the drawing."""
        tagged = tuple((n.name, str(tags_of(n))) for n in self.graph.fx.nodes if tags_of(n).flags)
        return (*self.graph.listed(), *((Doc("tags", (Table(("node", "tags"), tagged, "tags"),)),) if tagged else ()))


def _checks_matrix(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten._linalg_check_errors.default


_FOR_FLOATS = frozenset(
    "bernoulli binary_cross_entropy binomial cholesky histc index index_put lu_factor masked_scatter multinomial "
    "normal poisson quantile nanquantile".split()
)
"""Operators of ATen, besides linear algebra, that raise for values of floats or of masks."""


def _may_raise(node: torch.fx.Node) -> bool:
    """Whether an operation may raise for the values it is given: one that is given integers may take them as indices
    or divide by them."""
    target: Any = node.target
    if not is_operator(target):
        return target in CHECKS or isinstance(target, (Opaque, Sized)) or bool(bodies_of(node))
    if target.namespace != "aten":
        return True
    if target is torch.ops.aten.bernoulli.p:  # a number, which is no value
        return False
    name = target.overloadpacket.__name__.rstrip("_")
    given = tensors_in([value_of(n) for n in node.all_input_nodes])
    integers = any(not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool) for t in given)
    return integers or "linalg" in name or name in _FOR_FLOATS
