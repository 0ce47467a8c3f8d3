"""The recorder: calls on fake tensors become nodes of an fx graph."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .. import refusals
from ..generators import bernoulli, is_default
from ..graph_primitives import getitem, scalar, size, stride
from ..graphs import Graph, last_node, pass_of, storages, target_text, value_of, written_copies
from ..inside import having
from ..opaque_calls import call_opaque
from ..slots import Arg, Out, Signature, Slot, identifier
from ..state.lines import user_line
from ..torch_private.autograd import next_sequence_number, running_sequence_number
from ..torch_private.fakes import FakeTensor, FakeTensorMode, without_modes
from ..torch_private.modes import TorchDispatchMode, without_function_modes
from ..torch_private.operators import argument_names, is_operator
from ..torch_private.symbols import expression
from ..trees import flatten
from .bodies import Bodies
from .captures import Lifted
from .fake_tensor_cache import Results
from .floats import NotSymbolicError
from .passages import Passages
from .regions import Region, mark
from .symbols import Symbols
from .writes import Writes


class Recorder:
    """A graph in the making. ``graph`` is None for a run that is only watched."""

    functional: TorchDispatchMode
    """Inside, operators are functionalised."""
    tracer: TorchDispatchMode
    """Inside, operators are recorded. It stands below ``functional``."""
    captured: dict[int, Lifted]
    """The tensors that the function closes over, by identity."""
    writes: Writes

    def __init__(self, *, record: bool, expects_sizes: bool = False) -> None:
        self.fakes = FakeTensorMode()
        self.on_fakes = Results(self.fakes)
        self.symbols = Symbols(self.fakes, record and expects_sizes)
        self.graph = fx.Graph() if record else None
        self.constants: dict[str, Tensor] = {}
        self.current_pass = "forward"
        self.passages: Passages | None = None
        """The nodes of autograd of the backward pass that is recorded, where that is a program's own half."""
        self.placeholder_of: dict[Slot, fx.Node] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._scalars: dict[str, fx.Node] = {}
        self._alive: list[Any] = []
        self._lines: dict[int, str] = {}
        self.origin: str | None = None
        """Where calls come from, if not from a line of the caller's that runs now: a node of autograd."""
        self.prefix = ""
        """What the names of nodes begin with."""
        self.regions: tuple[Region, ...] = ()
        self.bodies = Bodies()
        self.keeps_detached = False
        """Whether the graph says what is detached: transforms may differentiate it."""
        self.own_rule: str | None = None
        """What in such a graph has a derivative of its own, which it does not say."""
        self._detached: str | None = None
        self._default_dtype = torch.get_default_dtype()
        self.refused: Exception | None = None
        """What the run is refused with, though the function may catch it."""

    def _placeholder(self, slot: Slot, value: Any) -> fx.Node | None:
        if self.graph is None:
            return None
        calls = [n for n in self.graph.nodes if n.op != "placeholder"]
        with self.graph.inserting_before(calls[0]) if calls else contextlib.nullcontext():
            node = self.graph.placeholder(identifier(slot))
        node.meta["val"] = value
        self._remember(value, node)
        self.placeholder_of[slot] = node
        return node

    def given(self, slot: Slot, value: Any) -> fx.Node:
        """An input of the graph: a fake tensor, or None for an object that opaque calls are given."""
        node = self._placeholder(slot, value)
        assert node is not None
        return node

    def knows(self, fake: Tensor) -> bool:
        """Whether a node computes a fake tensor."""
        return id(fake) in self._nodes

    def node(self, fake: Tensor) -> fx.Node:
        """The node that computes a fake tensor."""
        return self._nodes[id(fake)]

    def _remember(self, value: Any, node: fx.Node) -> None:
        self._alive.append(value)  # an id stays unique only while its object lives
        if isinstance(value, Tensor):
            self._nodes.setdefault(id(value), node)

    def recorded_detached(self, tensor: Tensor, how: str) -> Tensor:
        """A tensor that is to be detached, by a node that says so: functionalisation leaves none."""
        with having(self, _detached=how), without_function_modes():
            return torch.ops.aten.alias.default(tensor)  # type: ignore[no-any-return]

    def has_own_rule(self, what: str) -> None:
        """The function has called, or done, what has a derivative of its own."""
        if self.keeps_detached and self.current_pass == "forward" and self.own_rule is None:
            self.own_rule = f"{what} ({user_line()})"

    def record(self, op: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Append one call. A call that yields no tensor (a size, a device) is metadata and leaves no node."""
        assert self.graph is not None
        leaves = out if isinstance(out, (list, tuple)) else [out]
        if any(isinstance(v, (list, tuple)) for v in leaves):  # a custom operator's lists beside other results
            self.record(
                written_copies, (op, (), args, kwargs), {}, tuple(v for v in flatten(out)[0] if isinstance(v, Tensor))
            )
            return
        if not any(isinstance(v, Tensor) for v in leaves):
            return
        # what it stands for is known by now; who gets it may write to it
        if op is torch.ops.aten._efficientzerotensor.default:
            op = torch.ops.aten.zeros.default
        if op is bernoulli:
            op = torch.ops.aten.bernoulli.p
        if self.symbols:
            args, kwargs = self._that_fit((args, kwargs), [*flatten((args, kwargs))[0], *leaves])
        if torch.get_default_dtype() != self._default_dtype:
            args, kwargs = self._with_dtype(op, args, kwargs, out)
        node_args = [self._argument(a, op) for a in args]
        node_kwargs = {k: self._argument(v, op) for k, v in kwargs.items()}
        meta = self.during(self.line())
        if self.current_pass == "forward" and not torch.is_grad_enabled():
            meta["no_grad"] = True
        if self._detached is not None:
            meta["detached"] = self._detached
        name = self.prefix + (op.__name__.split(".")[0].strip("_") or "call")
        node = self.graph.create_node("call_function", op, tuple(node_args), node_kwargs, name=name)
        node.meta = {"val": out, **meta}
        self._remember(out, node)
        if op is torch.ops.aten.lift_fresh.default and isinstance(node.args[0], fx.Node):
            node.args[0].meta["val"] = out  # what looks at the lifted constant looks at the constant's own memory
        if out is not leaves[0]:
            for i, value in enumerate(leaves):
                if isinstance(value, Tensor):
                    item = self.graph.create_node("call_function", getitem, (node, i), {}, name=f"{name}_{i}")
                    item.meta = {"val": value, **meta}
                    self._remember(value, item)
        if self.regions and self.current_pass == "forward":
            mark(self.regions, node, op, args, kwargs, out)

    def _with_dtype(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> tuple[Any, Any]:
        """The arguments of a call that the function makes under a default dtype of its own; the program runs under that
        of its caller."""
        if not (is_operator(op) and isinstance(out, Tensor)) or out.dtype != torch.get_default_dtype():
            return args, kwargs
        if "dtype" in argument_names(op):
            return args, (kwargs if kwargs.get("dtype") is not None else {**kwargs, "dtype": out.dtype})
        given = [v for v in flatten((args, kwargs))[0] if isinstance(v, Tensor)]
        if not given or any(v.dtype.is_floating_point or v.dtype.is_complex for v in given):
            return args, kwargs
        if torch.Tag.pointwise not in op.tags:
            raise refusals.OWN_DEFAULT_DTYPE(target_text(op), where=user_line())
        return [self._cast(v, out.dtype) if v is given[0] else v for v in args], kwargs

    def _cast(self, fake: Tensor, dtype: torch.dtype) -> Tensor:
        """A fake tensor in another dtype, by a node."""
        cast = torch.ops.aten._to_copy.default
        with without_modes():
            made: Tensor = cast(fake, dtype=dtype)
        self._remember(made, self.call(cast, (fake,), {"dtype": dtype}, made))
        return made

    def opaque(
        self, function: Callable[..., Any], values: Sequence[Any], like: Sequence[Tensor], **options: Any
    ) -> list[Tensor]:
        """Append an opaque call of fakes (or their nodes) and numbers, with options of ``call_opaque``: the fakes of
        its results, and of what the arguments hold then that it writes to."""
        assert self.graph is not None
        args = [v if isinstance(v, fx.Node) else self._argument(v, function) for v in values]
        with without_modes():
            found = call_opaque(self.graph, function, args, like, **options)
        call = found[0].all_input_nodes[0] if found else last_node(self.graph)
        noted = self.during(self.line())
        for node in (call, *found):
            node.meta.update(noted)
        for node in found:
            self._remember(value_of(node), node)
        if self.regions and self.current_pass == "forward":
            mark(self.regions, call, call.target, values, {}, value_of(call))
        return [value_of(node) for node in found]

    def _argument(self, value: Any, op: Any) -> Any:
        if isinstance(value, Tensor):
            node = self._nodes.get(id(value))
            return self._constant(value) if node is None else node
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._scalar_node(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._argument(v, op) for v in value)
        if isinstance(value, dict):
            return {k: self._argument(v, op) for k, v in value.items()}
        if isinstance(value, torch.Generator) and is_default(value):
            return None  # draws are from it anyway
        return value

    def _that_fit(self, given: Any, beside: Sequence[Any]) -> Any:
        """Arguments in which a symbolic float is one that the dtypes of the tensors beside it hold, which is a
        guard; else it is fixed."""
        if isinstance(given, (list, tuple)):
            return type(given)(self._that_fit(v, beside) for v in given)
        if isinstance(given, dict):
            return {k: self._that_fit(v, beside) for k, v in given.items()}
        number = self.symbols.floats.node(given) if isinstance(given, torch.SymFloat) else None
        if number is None:
            return given
        dtypes = [v.dtype for v in beside if isinstance(v, Tensor) and v.dtype.is_floating_point]
        most = min((torch.finfo(dtype).max for dtype in dtypes), default=math.inf)
        if most >= torch.finfo(torch.float64).max or number.answer(
            f"(not {most} < abs({{}}) < math.inf)", lambda v: not most < abs(v) < math.inf
        ):
            return given
        return number.guard_float()

    def _constant(self, value: Tensor) -> fx.Node:
        assert self.graph is not None
        if isinstance(value, FakeTensor):
            raise refusals.NOT_AN_OPERAND(where=user_line())
        name = f"constant{len(self.constants)}"
        with without_modes():
            self.constants[name] = value.detach().clone()
        node = self.graph.create_node("get_attr", name, (), {}, name=name)
        node.meta = {"val": value, "pass": self.current_pass, "where": user_line()}
        self._remember(value, node)
        return node

    def _scalar_node(self, value: Any) -> Any:
        number = self.symbols.floats.node(value)
        if number is None or number.floats is not self.symbols.floats:
            raise refusals.NUMBER_LEFT_BEHIND(where=user_line())
        if not number.symbols:
            return number.hint
        if number.text not in self._scalars:
            assert self.graph is not None
            symbols: dict[str, Any] = {symbol: self.symbol_node(symbol) for symbol in sorted(number.symbols)}
            if number.text.strip("()") in symbols:
                return symbols[number.text.strip("()")]
            node = self.graph.create_node("call_function", scalar, (number.text,), symbols, name="scalar")
            is_late = "backward" in (
                self.current_pass,
                *map(pass_of, node.all_input_nodes),
            )  # it may be asked for later
            node.meta = {"val": value, "pass": "backward" if is_late else "forward", "where": user_line()}
            self._scalars[number.text] = node
        return self._scalars[number.text]

    def symbol_node(self, symbol: str) -> fx.Node:
        """The node of a symbol: an input, or the size of one."""
        if symbol not in self._scalars:
            name, dim = self.symbols.sizes.get(symbol, (None, 0))
            tensor = next((node for slot, node in self.placeholder_of.items() if str(slot) == name), None)
            if tensor is None or tensor.graph is not self.graph:
                tensor, dim = self._operand_of_size(symbol)
            assert self.graph is not None
            with self.graph.inserting_after(next(reversed(self.graph.find_nodes(op="placeholder")))):
                self._scalars[symbol] = self._size_node(tensor, dim)
        return self._scalars[symbol]

    def _operand_of_size(self, symbol: str) -> tuple[fx.Node, int]:
        """The operand of a body of control flow, and its dimension, whose size a symbol is."""
        for node in self.placeholder_of.values():
            value = value_of(node)
            for dim, n in enumerate(value.shape if isinstance(value, Tensor) else ()):
                if isinstance(n, torch.SymInt) and str(expression(n)) == symbol:
                    return node, dim
        raise NotSymbolicError("a body of control flow depends on a symbol that is the size of none of its operands")

    def size_of(self, symbol: str, fake: Tensor, dim: int) -> None:
        """A symbol is the size of a result."""
        self.symbol_is(symbol, self._size_node(self.node(fake), dim))

    def symbol_is(self, symbol: str, node: fx.Node) -> None:
        """A node computes what a symbol stands for."""
        self._scalars[symbol] = node

    def _size_node(self, tensor: fx.Node, dim: int) -> fx.Node:
        assert self.graph is not None
        target, dim = (size, dim) if dim >= 0 else (stride, ~dim)
        node = self.graph.create_node("call_function", target, (tensor, dim), {}, name=target.__name__)
        node.meta = {"val": target(value_of(tensor), dim), "pass": pass_of(tensor), "where": None}
        return node

    @contextlib.contextmanager
    def right_after(self, symbol: str) -> Iterator[None]:
        """What is recorded inside follows the node that computes a symbol, in the pass that this is of."""
        assert self.graph is not None
        node = self._scalars[symbol]
        with having(self, current_pass=pass_of(node)), self.graph.inserting_before(node.next):
            yield

    def condition(self, text: str, symbols: Iterable[str]) -> fx.Node:
        """The node of a condition over symbols that are there."""
        return self.call(scalar, (text,), {symbol: self.symbol_node(symbol) for symbol in symbols}, True)

    def line(self) -> str | None:
        """The caller's line: of this op in a forward, of the forward op that caused it in a backward."""
        if self.origin is not None:
            return self.origin
        number = running_sequence_number()
        if number is not None and number in self._lines:
            return self._lines[number]
        line = user_line()
        if line is not None and self.current_pass == "forward":
            self._lines.setdefault(next_sequence_number() - 1, line)
        return line

    def own(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """The nodes, where they look at constants on copies of these, one of each, which their views share: what is
        returned is the caller's to change."""
        assert self.graph is not None
        constants = set().union(*(storages(n) for n in self.graph.nodes if n.op == "get_attr"), frozenset())
        made: dict[fx.Node, fx.Node] = {}

        def own(node: fx.Node) -> fx.Node:
            if node in made or not storages(node) & constants:
                return made.get(node, node)
            assert self.graph is not None
            is_constant = node.op == "get_attr"
            op: Any = torch.ops.aten.clone.default if is_constant else node.target
            args, kwargs = ((node,), {}) if is_constant else fx.map_arg((node.args, node.kwargs), own)
            made[node] = self.graph.create_node("call_function", op, args, kwargs, name="own")
            with self.fakes:
                val = op(*fx.map_arg(args, value_of), **fx.map_arg(kwargs, value_of))
            made[node].meta = {**node.meta, "val": val}
            return made[node]

        return [own(node) for node in nodes]

    def require(self, check: Callable[[Tensor, str], None], condition: Tensor, message: str) -> None:
        """A check the program makes each time it runs, of a fake."""
        if self.graph is not None:
            self.call(check, (self.node(condition), message), {}, None)

    def call(self, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], value: Any) -> fx.Node:
        """The node of a call; whose result is a tensor, is yet to be told of it (``_remember``)."""
        assert self.graph is not None
        node_args = tuple(self._argument(a, target) for a in args)
        named = {k: self._argument(v, target) for k, v in kwargs.items()}
        node = self.graph.create_node("call_function", target, node_args, named, name=target.__name__.split(".")[0])
        node.meta = {"val": value, **self.during(user_line())}
        return node

    def during(self, where: str | None) -> dict[str, Any]:
        """What is noted of a call that is recorded now."""
        passage = None if self.passages is None else self.passages.now
        known: dict[str, Any] = {} if passage is None else {"passage": passage}
        if self.passages is not None and self.passages.absent:
            known["absent"] = self.passages.absent
        return {"pass": self.current_pass, "where": where, **known}

    def inner_graph(
        self, name: str, fakes: Sequence[Tensor], run: Callable[[], list[Tensor]]
    ) -> tuple[Graph | None, list[Tensor]]:
        """What ``run`` records, as a graph of its own that takes these fakes (None where nothing is recorded); and
        the fakes it returns."""
        if self.graph is None:
            return None, run()
        with having(self, graph=fx.Graph(), _nodes={}, constants={}, _scalars={}, placeholder_of={}):
            slots = tuple(Arg(f"operand{i}") for i in range(len(fakes)))
            for slot, fake in zip(slots, fakes, strict=True):
                self._placeholder(slot, fake)
            found = run()
            self.graph.output(tuple(self.own(map(self.node, found))))
            return Graph(
                Signature(slots, tuple(Out(f"[{i}]") for i in range(len(found)))), self.graph, self.constants, name
            ), found
