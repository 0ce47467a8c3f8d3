"""From statements to a joint graph: what is pure becomes ATen calls, the caller's Python and what is added to ``.grad``
opaque calls.

An opaque call is given the hooks and the packed tensors of a run as two lists. One graph with opaque calls in it is one
program.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from ..capture.floats import NotSymbolicError
from ..capture.joint import simplify
from ..capture.modes import with_modes
from ..capture.trace import Trace
from ..graph_primitives import Opaque
from ..graphs import Graph, nbytes, storages, value_of, verify
from ..joint import Joint
from ..runtime.given_tensors import is_heard
from ..runtime.heard_results import require_unheard
from ..slots import Arg, Out, Signature, Slot
from ..subclasses import Wrapping, inner_tensors, parts
from ..torch_private.fakes import without_modes
from ..torch_private.functional import from_functional, to_functional
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_wrapper_subclass, storage_id
from .calls import Accumulate, Look, Step, block, calling, storing, unwrapping, wrapping
from .inlined import Copy, Inlinable, written_by
from .run import Run, Symbolic, has_wrapped, memory_ids
from .statements import Declared, Kind, Statement, lies_like, short_name, validated
from .tokens import Ref, mapped, refs_in
from .versions import Unchanged, first_after_python, saved_by, saved_for

_WAITING = 1 << 20
"""Bytes of gradients that wait to be added to what leaves have, so that one call adds several."""


class NoGraphError(RuntimeError):
    """Statements of which no graph is made; they are replayed."""


@frozen(eq=False)
class Lowered:
    """A joint graph. Its inputs are the hooks, what was packed, the inputs of a run at ``takes``, or the tensors
    they are made of, a tensor of a size at each of ``Symbolic.alone``, and ``numbers``; ``outputs``: what the run
    returns, for each a result of the graph or None."""

    joint: Joint
    takes: tuple[int, ...]
    outputs: tuple[int | None, ...]
    wrapped: tuple[tuple[int, Wrapping], ...]
    """What the run returns that is a wrapper subclass: its place, and how it is made of results of the graph, of
    which ``outputs`` says the first."""
    objects: tuple[int, ...]
    """The inputs that are handed over as they are, after the hooks: wrapper subclasses, which the graph knows by
    what they are made of."""
    watched: tuple[int, ...]
    """The inputs whose versions, as they are when a run begins, are the last of the hooks; where there are any."""
    numbers: Mapping[str, tuple[int, int]]
    """By symbol, where a float is found that a region has saved: among the hooks, and what that one saved."""


def lower(
    statements: Sequence[Statement], outputs: Sequence[Any], names: Mapping[int, str], run: Run, symbolic: Symbolic,
    looks: Mapping[int, tuple[Look | None, ...]], sparse: frozenset[Ref], name: str,
) -> Lowered:  # fmt: skip
    """Play statements on fake tensors like those of a run. ``looks``: how the results of statements looked when they
    ran; ``sparse``: which of them are no dense tensors, and known to opaque calls alone."""
    return _Lowering(statements, names, run, symbolic, looks, sparse).lowered(outputs, name)


class _Lowering:
    def __init__(
        self, statements: Sequence[Statement], names: Mapping[int, str], run: Run, symbolic: Symbolic,
        looks: Mapping[int, tuple[Look | None, ...]], sparse: frozenset[Ref],
    ) -> None:  # fmt: skip
        self._statements, self._names, self._run, self._symbolic, self._looks = statements, names, run, symbolic, looks
        self._sparse = sparse
        self._trace = with_modes(Trace(record=True, backward_autocast=None, rng="eager"))
        self._made: dict[Ref, Any] = {}
        self._slots: list[Slot] = []
        self._stores: list[tuple[Tensor, Tensor, bool]] = []
        self._wrapped_stores: list[Statement] = []
        self._waiting = self._held = 0
        """Bytes of what waits to be added, and of what waits to be looked at."""
        self._floats: dict[str, tuple[int, int]] = {}
        self._scalars: dict[int, dict[int, Any]] = {}
        self._used: Counter[int] = Counter()
        self._inside: dict[Ref, Tensor | None] = {}
        """Fakes of what the caller's Python returns."""
        self._readers_of: Counter[Ref] = Counter()
        self._leaves = {s.args[0] for s in statements if s.kind is Kind.STORE}
        self._has_run_python = False
        self._looked_at: dict[Ref, None] = {}
        """What was saved, and has been read since Python ran."""
        self._watched: dict[int, int] = {}
        self._wraps = has_wrapped(run)
        self._objects: dict[int, int] = {}

    def lowered(self, outputs: Sequence[Any], name: str) -> Lowered:
        trace = self._trace
        self._hooks, self._packed = (trace.given(self._slot(text), None) for text in ("hooks", "packed"))
        used = self._readers_of = Counter(
            r for value in [*(s.args for s in self._statements), list(outputs)] for r in refs_in(value)
        )
        takes = tuple(sorted(r.at for r in used if r.of == "inputs"))
        with torch.no_grad():
            self._enter(takes)
            trace.run(self._play, (), {})
            found = [self._made[ref] if isinstance(ref, Ref) else None for ref in outputs]
            nodes = [self._nodes(v) if isinstance(v, Tensor) else [] for v in found]
        assert trace.graph is not None
        trace.graph.output(tuple(trace.own(itertools.chain(*nodes))))
        outs = tuple(Out(f"[{i}]") for i in range(sum(map(len, nodes))))
        graph = Graph(Signature(tuple(self._slots), outs), trace.graph, trace.constants, name, is_boxed=True)
        simplify(graph)
        guards = tuple(trace.symbols.guards())
        joint = evolve(Joint.of(verify(graph)), guards=guards, sizes=trace.symbols.of_sizes)
        symbols = {symbol: self._floats[path] for symbol, path in trace.symbols.floats.names.items()}
        first = itertools.accumulate(map(len, nodes), initial=0)
        places = tuple(i if own else None for i, own in zip(first, nodes, strict=False))
        wrapped = tuple((i, w) for i, v in enumerate(found) if (w := Wrapping.of(v)) is not None)
        return Lowered(joint, takes, places, wrapped, tuple(self._objects), tuple(self._watched), symbols)

    # ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _slot(self, text: str) -> Arg:
        slot = Arg(text)
        self._slots.append(slot)
        return slot

    def _enter(self, takes: Sequence[int]) -> None:
        """What the graph is given. Sizes that vary together are one symbol: that of the first input that has it."""
        symbols: dict[tuple[int, int], Any] = {}
        for i in takes:
            real, slot, dims = self._run.inputs[i], self._slot(f"inputs[{i}]"), self._symbolic.dims.get(i, {})
            if all(first in symbols for first in dims.values()) and dims:
                sizes = [symbols[dims[d]] if d in dims else n for d, n in enumerate(real.shape)]
                strides = _strides_like(real, sizes)
                fake = self._fake(
                    functools.partial(torch.empty_strided, sizes, strides, dtype=real.dtype, device=real.device)
                )
                self._trace.given(slot, fake)
                tensor = self._functional(fake).requires_grad_(real.requires_grad)
            else:  # whether it requires grad, formulas ask: that of linalg.solve does
                tensor = self._trace.input(slot, real, real.requires_grad, tuple(dims))
                if self._trace.symbols.has_strides:
                    raise NotSymbolicError(_LIES_OTHERWISE)
                self._slots[-1:] = [own for own, _ in parts(slot, tensor)]
            for d, first in dims.items():
                symbols.setdefault(first, tensor.shape[d])
            self._made[Ref("inputs", i)] = tensor
        for k, n in enumerate(self._run.sizes):
            self._made[Ref("sizes", k)] = symbols.get(self._symbolic.sizes.get(k, (-1, -1)), n)
        for k in self._symbolic.alone:
            tensor = self._trace.input(self._slot(f"sizes[{k}]"), torch.empty(0, self._run.sizes[k]), False, (1,))
            self._made[Ref("sizes", k)] = tensor.shape[1]
        for k, value in enumerate(self._run.scalars):
            self._made[Ref("scalars", k)] = value
        for s in self._statements if self._symbolic.inlines else ():
            if isinstance(s.run, Inlinable):
                self._scalars[s.number] = self._scalars_of(s.run, s.args[1])

    def _scalars_of(self, region: Inlinable, at: Ref) -> dict[int, Any]:
        """What a region has saved that is no tensor: ints are sizes of the run, floats inputs of their own."""
        found: dict[int, Any] = dict(self._run.read(at).scalars)
        ints = iter(region.sizes)
        for i, value in self._run.read(at).scalars.items():
            if type(value) is int:
                found[i] = mapped(next(ints), self._read)
            elif type(value) is float and self._symbolic.numbers:
                slot = self._slot(f"{at}.scalars[{i}]")
                self._floats[str(slot)] = at.at, i
                found[i] = self._trace.symbolic_number(slot, value)
        return found

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────

    def _play(self) -> None:
        for (is_python, _), group in itertools.groupby(self._in_order(), self._part):
            statements = list(group)
            node = statements[0].node
            self._trace.origin = f"{short_name(self._names.get(node, 'a node'))} ({node})"
            if is_python and any(s.kind is not Kind.STORE or self._has_sparse(s) for s in statements):
                for s in statements:
                    if s.kind is Kind.PURE:
                        self._look(s)
                self._settle()
                self._block(statements)
                self._has_run_python = True
                continue
            for s in statements:
                self._look(s)
                if s.kind is Kind.STORE:
                    self._store(s)
                    continue
                self._trace.plays = short_name(s.name), s
                results = self._region(s, s.run) if isinstance(s.run, Inlinable) else s.run(*mapped(s.args, self._read))
                self._made.update(zip(s.results, results, strict=True))
        self._trace.plays = None
        self._settle()

    def _in_order(self) -> Iterator[Statement]:
        """The statements, but what is pure of sparse gradients stands before what it is for: a sum of two, a leaf.
        Nobody sees that; but it is not moved beyond the caller's Python, which may write to what it reads."""
        waiting: list[Statement] = []
        for s in self._statements:
            if s.kind in (Kind.PURE, Kind.SUM) and self._has_sparse(s):
                waiting.append(s)
                continue
            needed = set(refs_in(s.args))
            for pure in reversed(waiting):
                needed |= set(refs_in(pure.args)) if not needed.isdisjoint(pure.results) else set()
            before = [p for p in waiting if s.kind is Kind.CALL or not needed.isdisjoint(p.results)]
            waiting = [p for p in waiting if p not in before]
            yield from (*before, s)
        yield from waiting

    def _part(self, s: Statement) -> tuple[bool, int]:
        """Statements that follow each other with the same are played together: whether they are no part of the graph,
        and what node they belong to; those of sparse gradients go together from their first to the leaf."""
        is_call = s.kind is Kind.CALL and not (isinstance(s.run, Inlinable) and self._symbolic.inlines)
        if self._has_sparse(s):
            return True, -1
        return is_call or s.kind is Kind.STORE, s.node

    def _has_sparse(self, s: Statement) -> bool:
        """Whether a statement reads or makes sparse gradients, and as such is none of a graph."""
        if self._sparse.isdisjoint((*refs_in(s.args), *s.results)):
            return False
        if not self._sparse.issuperset(s.results):
            raise NoGraphError(f"{s.name} makes dense gradients together with, or of, sparse ones")
        return True

    def _is_new(self, s: Statement) -> bool:
        """Whether a leaf has no gradient yet."""
        return self._run.read(s.args[0]).grad is None

    def _read(self, ref: Ref) -> Any:
        return self._made[ref]

    def _store(self, s: Statement) -> None:
        """Nobody looks at ``.grad`` until the caller's Python runs, so several are added to in one call; but not so
        many gradients wait for it that it takes memory. One that becomes the leaf's own takes none."""
        variable, grad = (self._read(ref) for ref in s.args)
        if grad is None:
            return
        is_new = self._is_new(s)
        if is_wrapper_subclass(variable) or is_wrapper_subclass(grad):
            self._wrapped_stores.append(s)
        else:
            self._stores.append((variable, grad, is_new))
        self._waiting += 0 if is_new else self._bytes(grad)
        if self._waiting > _WAITING:
            self._settle()

    def _nodes(self, value: Any) -> list[Any]:
        """The nodes that compute a value: of a wrapper subclass, those of its inner tensors."""
        return list(map(self._trace.result, inner_tensors(value)))

    def _bytes(self, value: Any) -> int:
        return sum(nbytes(value_of(node)) for node in self._nodes(value))

    def _object(self, at: int) -> int:
        """Where among the hooks an input is handed over as it is."""
        return len(self._run.hooks) + self._objects.setdefault(at, len(self._objects))

    def _look(self, s: Statement) -> None:
        """What a statement reads that was saved is looked at before Python runs again: not so much of it waits that
        it takes memory."""
        if self._has_run_python:
            new = dict.fromkeys(r for r in saved_by(s) if r not in self._looked_at)
            self._looked_at |= new
            self._held += sum(self._bytes(self._read(r)) for r in new if r not in self._leaves)
            if self._held > _WAITING:
                self._require_versions()

    def _require_versions(self) -> None:
        if self._looked_at:
            wrapped = [ref for ref in self._looked_at if is_wrapper_subclass(self._read(ref))]
            plain = [ref for ref in self._looked_at if ref not in wrapped]
            places = tuple(self._watched.setdefault(ref.at, len(self._watched)) for ref in (*plain, *wrapped))
            nodes = [self._trace.result(self._read(ref)) for ref in plain]
            self._looked_at.clear()
            self._held = 0
            unchanged = Unchanged(places, [self._object(ref.at) for ref in wrapped])
            self._trace.opaque(unchanged, (self._hooks, *nodes), (), name="versions")

    def _settle(self) -> None:
        self._require_versions()
        wrapped, self._wrapped_stores = self._wrapped_stores, []
        if wrapped:
            self._waiting = 0
            self._block(wrapped)
        if self._stores:
            variables, grads, new = zip(*self._stores, strict=True)
            self._stores.clear()
            self._waiting = 0
            writes = [len(variables) + i for i, is_new in enumerate(new) if is_new]
            nodes = [self._trace.result(v) for v in (*variables, *grads)]
            taken = tuple(is_new and self._may_take(v, g) for v, g, is_new in zip(variables, grads, new, strict=True))
            self._trace.opaque(Accumulate(new, taken), nodes, (), name="accumulate_grad", writes=writes)

    def _may_take(self, variable: Tensor, grad: Tensor) -> bool:
        """Whether a leaf's gradient may be the tensor that was computed, in every run: it lies as the leaf does, by
        no size that varies."""
        own, made = (value_of(self._trace.result(v)) for v in (variable, grad))
        is_plain = own.layout is made.layout is torch.strided and own.dtype == made.dtype
        return (
            is_plain
            and all(isinstance(n, int) for v in (own, made) for n in (*v.shape, *v.stride()))
            and lies_like(made, own)
        )

    def _block(self, statements: Sequence[Statement]) -> None:
        """What the caller's Python does at a node, with what is added to ``.grad`` there, as one opaque call."""
        own = [r for s in statements for r in s.results]
        read = dict.fromkeys(r for s in statements for r in refs_in(s.args))
        refs = [r for r in read if r not in own and r.of not in ("hooks", "packed")]
        names = {r: f"v{i}" for i, r in enumerate((*refs, *own))}
        steps, writes, memory = list[Step](), set[int](), list[int]()
        given, values, places = list[str](), list[Any](), dict[Ref, range]()
        first = 0 if self._has_run_python else first_after_python(statements)
        then = {s.number: saved_for(s) for s in statements[first:]}
        watched = {r for saved in then.values() for r in saved if r is not None}
        for r in refs:
            value = self._read(r)
            made = Wrapping.of(value)
            if made is not None and (r in self._leaves or r in watched):
                steps.append(Step(f"(hooks[{self._object(r.at)}],)", (names[r],)))
                continue
            inner = _names_of_inner(names[r], value)
            steps += [wrapping(names[r], made, inner)] if made is not None else []
            places[r] = range(2 + len(given), 2 + len(given) + len(inner))
            given += inner
            values += self._nodes(value)
        for s in statements:
            if s.kind is Kind.STORE:
                variable, grad = (self._read(r) for r in s.args)
                if s.args[1] in self._sparse:
                    at, added = (names[r] for r in s.args)
                    steps.append(storing(at, added, is_own=False, is_taken=False, is_free=False))
                elif grad is not None:
                    is_plain = Wrapping.of(variable) is Wrapping.of(grad) is None
                    is_own = self._is_new(s) and s.args[1] not in own
                    writes |= set(places[s.args[1]]) if is_own else set()
                    at, added = (names[r] for r in s.args)
                    is_free = is_plain and s.args[1] in own and self._readers_of[s.args[1]] == 1
                    is_taken = is_plain and is_own and self._may_take(variable, grad)
                    steps.append(storing(at, added, is_own, is_taken, is_free))
                continue
            like = [self._like(s, i) for i in range(len(s.likes))]
            looks = () if any(s.likes) else self._looks.get(s.number, ())
            versions = [
                None if r is None else self._watched.setdefault(r.at, len(self._watched))
                for r in then.get(s.number, ())
            ]
            wanted = [v is not None or r in self._sparse for r, v in zip(s.results, like, strict=True)]
            steps.append(calling(s, names, wanted, looks, versions))
            for r, v in zip(s.results, like, strict=True):
                if v is not None and self._wraps:
                    steps.append(unwrapping(s, names[r], Wrapping.of(v), _names_of_inner(names[r], v)))
                self._inside[r], self._made[r] = v, None if v is None else self._functional(v)
            memory += memory_ids(self._run.read(s.writes)) if s.writes is not None else []
        inside = Counter(r for s in statements for r in refs_in(s.args))
        for r in self._sparse.intersection(own):
            if self._readers_of[r] > inside[r]:
                raise NoGraphError(
                    "a sparse gradient is returned, or read where what is around it is not of sparse gradients"
                )
        kept = [(names[r], v) for r in own if (v := self._inside[r]) is not None and self._readers_of[r] > inside[r]]
        before = self._readers(memory) if memory else []
        name = "_and_".join(dict.fromkeys(s.name for s in statements))
        run = block(name, steps, given, [n for name, v in kept for n in _names_of_inner(name, v)])
        results = [t for _, v in kept for t in inner_tensors(v)]
        self._trace.opaque(
            run, (self._hooks, self._packed, *values, *before), results, name=name, writes=sorted(writes)
        )

    def _region(self, s: Statement, region: Inlinable) -> list[Any]:
        """The backward half of a compiled region, as a part of the graph."""
        validation, at, saved, *cotangents = s.args
        context = self._run.read(at)
        number = context.program.number
        prefix = f"aot{number}_{self._used[number]}_" if self._used[number] else f"aot{number}_"
        self._used[number] += 1
        scalars = self._scalars[s.number]
        beside = mapped(region.sizes[sum(type(v) is int for v in context.scalars.values()) :], self._read)
        incoming, asked = mapped(cotangents, self._read), region.asked[2:]
        require_unheard(context, incoming)
        copy = Copy(self._trace, self._hooks, at.at, context, prefix, beside, incoming, asked)
        if copy.has_effects:
            self._settle()
            self._has_run_python = True
        kept = [scalars[i] if i in scalars else self._read(ref) for i, ref in enumerate(saved)]
        memory = [storage_id(t) for t in written_by(context, saved, self._run.read)]
        found = copy(kept, self._functional, lambda: self._readers(memory))
        # the first inputs of the autograd Function are no tensors
        results = [found.get(i - 2) for i in range(len(s.likes))]
        for i in context.program.unreached(incoming):
            like = s.likes[2 + i]
            if results[2 + i] is None and isinstance(like, Declared) and is_heard(context.given[i]()):
                results[2 + i] = torch.zeros(mapped(like.shape, self._read), dtype=like.dtype, device=like.device)
        return validated(s.name, results, *mapped(validation, self._read)) if validation is not None else results

    def _like(self, s: Statement, i: int) -> Tensor | None:
        """A fake of a result of the caller's Python; None where it is None."""
        look, is_known = (self._looks[s.number][i], True) if s.number in self._looks else (None, False)
        like = s.likes[i]
        if is_known and look is None:
            return None
        if isinstance(like, Ref) and self._read(like) is None:
            return None
        if look is not None and (self._wraps or like is None):
            return self._fake(lambda: look.empty().requires_grad_(False))
        if isinstance(like, Ref):
            given, inside = self._read(like), self._inside.get(like)
            own = value_of(self._trace.node(from_functional(given))) if inside is None else inside
            return self._fake(lambda: torch.empty_like(own))  # an expanded gradient, dense
        if isinstance(like, Declared):
            shape = [self._read(n) if isinstance(n, Ref) else n for n in like.shape]
            return self._fake(lambda: torch.empty(shape, dtype=like.dtype, device=like.device))
        return None

    def _fake(self, make: Callable[[], Tensor]) -> Tensor:
        with without_modes(), self._trace.fakes:
            return make()

    def _functional(self, fake: Tensor) -> Tensor:
        made = Wrapping.of(fake)
        inner = [self._functional(t) for t in inner_tensors(fake)] if made is not None else []
        with without_function_modes(), self._trace.fakes, self._trace.functional, torch.no_grad():
            return to_functional(fake) if made is None else made.build(iter(inner))

    def _readers(self, own: Collection[int]) -> list[fx.Node]:
        """What has been computed of memory that a call may write to, and no call before has been given: it is
        computed before."""
        given = [
            r
            for r, v in self._made.items()
            if r.of == "inputs" and not set(own).isdisjoint(memory_ids(self._run.read(r)))
        ]
        looks = [node for r in given for node in self._nodes(self._made[r])]
        memory = frozenset[int]().union(*map(storages, looks))
        found: list[fx.Node] = []
        for node in looks:
            for user in node.users:
                if isinstance(user.target, Opaque) or user in looks:
                    continue
                if storages(user) & memory:
                    looks.append(user)
                elif isinstance(value_of(user), Tensor) and not any(isinstance(n.target, Opaque) for n in user.users):
                    found.append(user)
        return list(dict.fromkeys(found))


def _names_of_inner(name: str, value: Any) -> list[str]:
    """What the plain tensors are called that a value is made of; a plain one is its own."""
    return [f"{name}_{i}" for i in range(len(inner_tensors(value)))] if Wrapping.of(value) is not None else [name]


_LIES_OTHERWISE = "an input whose size is a symbol does not lie as its sizes say"


def _strides_like(real: Tensor, sizes: Sequence[Any]) -> list[Any]:
    """The strides of a tensor that lies as ``real`` does and has symbols for some of its sizes."""
    strides, dense = [0] * real.ndim, True
    step: Any = 1
    expected = 1
    for d in sorted(range(real.ndim), key=lambda d: (real.stride(d), real.shape[d] != 1)):
        strides[d] = step
        dense = dense and (real.stride(d) == expected or real.shape[d] == 1)
        step, expected = step * sizes[d], expected * real.shape[d]
    if not dense or not math.prod(real.shape):
        raise NotSymbolicError(_LIES_OTHERWISE)
    return strides
