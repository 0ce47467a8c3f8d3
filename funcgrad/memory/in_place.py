"""Which results of kernels take the memory of what dies where they are written.

Memory may be taken that the program has made, or was handed, once nothing reads it again: neither under another name,
nor through a view, nor because it is returned. ``loops/in_place.py`` says what the loops of a kernel allow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from attrs import evolve
from torch import Tensor, fx

from ..graph_primitives import again
from ..graphs import Graph, Place, device_of, has_effect, is_view, storage_map, value_of
from ..lifetimes import Lifetimes
from ..loops.in_place import is_dense, places
from ..loops.ir import Buffer, Kernel
from ..loops.verify import verify
from ..symbolic.sizes import plain
from ..torch_private.operators import is_operator, is_torchs_own
from .steps import Extern, Launch, size_of

_WORTH = 1 << 12
"""Bytes of what a program is handed from which on it is worth asking whether somebody else holds it."""


def take_over(
    graph: Graph, steps: Sequence[Extern | Launch], fixed: Container[str], keeps: bool
) -> list[Extern | Launch]:
    """The steps, with kernels that write over what dies there (``Kernel.over``). ``fixed`` have a place, which lives
    on without them. ``keeps``: whether kernels keep what they are told to (``loops/in_place.py``)."""
    places_of = _Places(graph, steps)
    return [
        s if isinstance(s, Extern) else evolve(s, kernels=tuple(_kernels(places_of, i, s, fixed, keeps)))
        for i, s in enumerate(steps)
    ]


def _kernels(places_of: _Places, i: int, launch: Launch, fixed: Container[str], keeps: bool) -> list[Kernel]:
    scratch = {b.name for b in launch.scratch}
    dying = places_of.dying(i, launch)
    inside = set(scratch)  # what lies in the arena of the launch
    done: list[Kernel] = []
    for dead, kernel in zip(dying, launch.kernels, strict=True):
        over: dict[str, str] = {}
        for written, fitting in (places(kernel, keeps) if dead else {}).items():
            # what is donated is taken first
            for b in () if written in fixed else sorted(fitting, key=lambda b: not places_of.is_donated(b.name)):
                # what outlives the launch does not lie in its arena
                outlives = written not in scratch and b.name in inside
                if b.name in dead and b.name not in fixed and not outlives:
                    over[written] = b.name
                    dead.remove(b.name)
                    if b.name not in inside:
                        inside.discard(written)
                    break
        done.append(verify(evolve(kernel, over=over), keeps) if over else kernel)
    return done


def into_donated(
    graph: Graph, steps: Sequence[Extern | Launch], fixed: Container[str]
) -> tuple[list[Extern | Launch], dict[str, str]]:
    """The steps, and the results that kernels make after the last reader of an input that is donated, each with that
    input: there they lie, rather than in the place of what is not donated."""
    places_of = _Places(graph, steps)
    over = dict[str, str]()  # in one step after the other, each with the first that lay there
    for step in steps:
        over |= {b: over.get(old, old) for b, old in step.origins.items()} if isinstance(step, Launch) else {}
    free = [n for n in graph.placeholders if n.name in graph.donated - {*over.values()} and places_of.is_own(n.name)]
    results = {r.name for r in graph.results if isinstance(r, fx.Node)}
    found: dict[str, str] = {}
    for i, launch in enumerate(steps):
        for b in (b for k in launch.kernels for b in k.writes) if free and isinstance(launch, Launch) else ():
            if b.name in results and b.name not in fixed and over.get(b.name) not in graph.donated and is_dense(b):
                fitting = (n for n in free if places_of.last(n.name) < i and _same_memory(value_of(n), b))
                if (old := next(fitting, None)) is not None:
                    found[b.name] = old.name
                    free.remove(old)
    return [_without(s, found) if isinstance(s, Launch) else s for s in steps], found


def _without(launch: Launch, elsewhere: Container[str]) -> Launch:
    """The launch without what it writes over others of these."""
    kept = [{new: old for new, old in k.over.items() if new not in elsewhere} for k in launch.kernels]
    kernels = tuple(evolve(k, over=over) for k, over in zip(launch.kernels, kept, strict=True))
    return evolve(launch, kernels=kernels)


def _same_memory(value: Tensor, buffer: Buffer) -> bool:
    """Whether what lies in one fits exactly into the other."""
    return value.dtype == buffer.dtype and plain(value.numel()) == math.prod(buffer.shape)


class _Places:
    """When the memory that a program may write to is used last."""

    def __init__(self, graph: Graph, steps: Sequence[Extern | Launch]) -> None:
        self._nodes = {n.name: n for n in graph.fx.nodes}
        self._lies = storage_map(graph)
        self._device = device_of(graph)
        self._own = {place for name in graph.handed_over | graph.donated for place in self._places(name)}
        self._donated = graph.donated
        donated = {place for name in graph.donated for place in self._places(name)}
        foreign: set[Place] = set()  # an operator that is not torch's own may return what it is given
        reads = [{place for name in _names(graph, step) for place in self._places(name)} for step in steps]
        # what raises leaves what it was given as it was
        raises = [isinstance(step, Extern) and has_effect(step.node) for step in steps]
        uses = [read | donated if may else read for read, may in zip(reads, raises, strict=True)]
        self._last = Lifetimes.of(uses).last
        for read, step in zip(reads, steps, strict=True):
            if isinstance(step, Launch):
                self._own |= {place for k in step.kernels for b in k.writes for place in self._places(b.name)}
            elif is_operator(step.node.target) and is_torchs_own(step.node.target):
                self._own |= self._places(step.node.name) if not is_view(step.node) else set()
            elif step.node.target is not again:
                foreign |= read
        self._own -= foreign | {
            place for r in graph.results if isinstance(r, fx.Node) for place in self._places(r.name)
        }

    def is_donated(self, name: str) -> bool:
        """Whether it is an input that the caller gives away."""
        return name in self._donated

    def is_own(self, name: str) -> bool:
        """Whether its memory may be written to when it has been read last."""
        return self._places(name) <= self._own

    def last(self, name: str) -> int:
        """The step that uses its memory last; -1 where none does."""
        return max((self._last.get(place, -1) for place in self._places(name)), default=-1)

    def dying(self, i: int, launch: Launch) -> list[set[str]]:
        """The buffers that each kernel of a launch, the ``i``-th step, reads last, and whose memory is the program's
        own."""
        last = Lifetimes.of(
            [p for b in (*kernel.reads, *kernel.writes) for p in self._places(b.name)] for kernel in launch.kernels
        ).last
        kept = {p for check in launch.checks for p in self._places(check.buffer.name)}
        if launch.checks:  # where one fails, all is computed once more, or by another program
            kept |= {p for n in self._nodes.values() if n.op == "placeholder" for p in self._places(n.name)}
        found = []
        for j, kernel in enumerate(launch.kernels):
            users = Counter(p for b in {*kernel.reads, *kernel.writes} for p in self._places(b.name))
            dead = {
                p for p, n in users.items() if n == 1 and last[p] == j and self._last[p] == i and p in self._own - kept
            }
            found.append({b.name for b in kernel.reads if self._places(b.name) <= dead and self._is_whole(b)})
        return found

    def _is_whole(self, buffer: Buffer) -> bool:
        """Whether a buffer is all there is of its memory, where kernels run; and not too small to ask for."""
        node = self._nodes.get(buffer.name)
        if node is None:
            return True
        value = value_of(node)
        if not isinstance(value, Tensor) or value.device != self._device:
            return False
        if plain(value.untyped_storage().nbytes()) != math.prod(buffer.shape) * buffer.dtype.itemsize:
            return False
        return node.op != "placeholder" or self.is_donated(node.name) or size_of(buffer) >= _WORTH

    def _places(self, name: str) -> set[Place]:
        return set(self._lies[name].values()) if name in self._lies else {(name, 0)}


def _names(graph: Graph, step: Extern | Launch) -> Iterable[str]:
    """What a step reads and writes; where it may be that all is computed once more, all that the program was given."""
    if isinstance(step, Extern):
        return [n.name for n in step.node.all_input_nodes]
    return [
        *(b.name for k in step.kernels for b in (*k.reads, *k.writes)),
        *(n.name for n in graph.placeholders if step.checks),
    ]
