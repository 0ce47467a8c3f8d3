"""A program in a file: what ``program.save(path)`` writes, and the ``LoadedProgram`` that ``fg.load(path)`` gives.

A file holds the printed call, the sources of its kernels, which are compiled where they are loaded, and the values of
what the function reads besides its arguments. A call of it is compared with the same key; of Python state, which is
that of another process, nothing is compared.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from attrs import evolve, fields, frozen
from torch import Tensor

from .. import refusals
from ..backends.backend import Backend, Runnable, emitted_bodies
from ..backends.choose import backend_named
from ..capture.inputs import Unresolved, read_all
from ..capture.trace import active_trace
from ..graph_primitives import Read
from ..graphs import Graph, device_of, tensors_in
from ..layers.statements import KERNEL
from ..passes.traced_passes import TracedPasses
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..slots import Captured, Slot
from ..source import Source
from ..state.places import Place
from ..state.state import State
from ..torch_private.levels import transforms_or_duals
from ..torch_private.symbols import is_size
from ..torch_private.tensors import looks_like
from . import archive_data
from .archivable import require_archivable
from .archive_data import HasNoName
from .call import Call, build_call, called_alone, print_call
from .captured import Around
from .execute import Differentiable
from .halves import Half
from .key import CallKey, TensorSpec, explain, key_of_arguments

_MAGIC = b"funcgrad program "
_FORMAT = 1
_OF_THE_PROCESS = (KERNEL, "lock", "seen", "root")
"""What the printed call names that is made anew where it is loaded."""


@frozen(eq=False)
class _Seen:
    """Tensors that fit: the captured ones, and for each argument how it looks."""

    examples: tuple[TensorSpec | Tensor, ...]
    specs: tuple[TensorSpec, ...]


@frozen(eq=False)
class _Halves:
    """A kernel that autograd knows. ``fields``: those of ``Differentiable`` that are plain data."""

    fields: Mapping[str, Any]
    passes: TracedPasses | None
    backward: tuple[Slot, ...] | None
    is_sized: bool


@frozen(eq=False)
class _Contents:
    """All that is in a file."""

    name: str
    key: CallKey
    call: Source
    seen: _Seen | None
    sources: tuple[tuple[Source, ...], ...]
    """Of each graph that runs."""
    backend: tuple[str, torch.device]
    halves: _Halves | None
    reads: tuple[Read, ...]
    tensors: Mapping[str, Tensor]
    assumes: tuple[tuple[str, str], ...]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def save(
    path: str | os.PathLike[str], name: str, around: Around, sources: Sequence[Source], backend: Backend, call: Source
) -> None:
    """Write a program to a file, whole or not at all. Raises ``ArchiveError`` for one that needs what no file can
    hold."""
    require_archivable(around, call.names[KERNEL])
    contents = _contents(name, around, sources, backend, call)
    data = io.BytesIO()
    try:
        torch.save(contents, data, pickle_module=archive_data)
    except (HasNoName, pickle.PicklingError, TypeError, AttributeError) as error:
        raise refusals.NOT_SAVED(
            f"it needs what has no name in another process ({error})",
            "let the function take and return tensors and plain values, and define classes in modules",
            where=name,
        ) from error
    target, header = Path(path), _MAGIC + json.dumps(_versions()).encode() + b"\n"
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(header + data.getvalue())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _versions() -> dict[str, Any]:
    """What a file must have been made with."""
    return {"format": _FORMAT, "torch": ".".join(torch.__version__.split(".")[:2])}


def _contents(name: str, around: Around, sources: Sequence[Source], backend: Backend, call: Source) -> _Contents:
    key, kernel, joint = around.key, call.names[KERNEL], around.joint
    tensors = read_all(around.facts.captured, {})
    alone = _by_itself(around, tensors)
    printed = print_call(alone, lambda *_: (), threading.Lock(), call.names.get("donation"))
    names = {of: value for of, value in printed.names.items() if of not in _OF_THE_PROCESS}
    specs = dict(zip((*key.paths, *map(str, tensors)), (*key.leaves, *(s for _, s in key.captured)), strict=True))
    distinct = {id(v): (specs[p], v) for p, v in reversed(list(zip(specs, alone.examples, strict=True)))}
    looks = [(spec, v) for spec, v in reversed(distinct.values()) if isinstance(spec, TensorSpec)]
    given = {id(v) for v in tensors.values()}
    seen = _Seen(tuple(v if id(v) in given else spec for spec, v in looks), tuple(spec for spec, _ in looks))
    starts = [i for i, s in enumerate(sources) if s.language == "python"]
    groups = [sources[i:j] for i, j in zip(starts, [*starts[1:], len(sources)], strict=True)]
    return _Contents(
        name=name,
        key=key,
        call=evolve(printed, names=names),
        seen=seen if "seen" in printed.names else None,
        sources=tuple(emitted_bodies(backend, group) for group in groups),
        backend=(backend.name, device_of(joint.graph)),
        halves=_halves(kernel) if isinstance(kernel, Differentiable) else None,
        reads=joint.reads,
        tensors={str(slot): tensor for slot, tensor in tensors.items()},
        assumes=tuple(around.facts.assumed()),
    )


def _by_itself(around: Around, tensors: Mapping[Captured, Tensor]) -> Around:
    """The call without the Python around it: its captured tensors, and the numbers of Python state, are its own."""
    facts = around.facts
    numbers = {slot.path: place.read() for slot, place in facts.numbers}
    own = evolve(
        facts,
        state=State(),
        captured=tuple(evolve(c, tensor=tensors[c.slot], origin=Unresolved(str(c.slot))) for c in facts.captured),
        numbers=tuple((slot, Place("item", numbers, slot.path, slot.path)) for slot, _ in facts.numbers),
        also=(),
        apart=frozenset(),
        apart_from=(),
    )
    return evolve(around, root=None, facts=own, examples=(*_examples(around.key), *tensors.values()))


def _examples(key: CallKey) -> list[Any]:
    """Leaves that fit a key: tensors without values, which are one object where those of a call are."""
    found, tensors = list[Any](), list[Tensor]()
    for spec in key.leaves:
        if not isinstance(spec, TensorSpec):
            found.append(None)
            continue
        alias = key.aliasing[len(tensors)]
        is_known = len(alias) > 1 and alias[1] < len(tensors)
        tensors.append(tensors[alias[1]] if is_known else _example(spec))
        found.append(tensors[-1])
    return found


def _example(spec: TensorSpec) -> Tensor:
    """A tensor that looks so; a size that is a symbol is any."""
    shape, stride = ([n if type(n) is int else 2 for n in dims] for dims in (spec.shape, spec.stride))
    return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).requires_grad_(spec.requires_grad)


_MADE_ANEW = ("forward", "backward", "narrowed", "pullback", "mapped", "passes", "late", "refused", "why_apart")


def _halves(kernel: Differentiable) -> _Halves:
    """What is written of a kernel that autograd knows."""
    plain = {f.name: getattr(kernel, f.name) for f in fields(Differentiable) if f.init and f.name not in _MADE_ANEW}
    is_sized = kernel.passes is not None and _is_sized(kernel.passes.graph)
    backward = None if kernel.backward is None else kernel.backward.outs
    return _Halves(plain, kernel.passes, backward, is_sized)


def _is_sized(graph: Graph) -> bool:
    """Whether a size in a graph is a symbol."""
    values = [node.meta.get("val") for node in graph.fx.nodes]
    sizes = (n for v in values for t in tensors_in(v) for n in (*t.shape, *t.stride()))
    return any(map(is_size, itertools.chain(values, sizes)))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load(path: str | os.PathLike[str]) -> LoadedProgram:
    """The program that ``program.save(path)`` wrote. Its kernels are compiled here, or found in the cache folder.

    A program is code: a file that you do not trust can do anything, as with ``pickle``.

    Raises ``ArchiveError`` for a file that is no program, or is one of another version of funcgrad or torch, and
    ``BuildError`` where the backend it was compiled for cannot run.
    """
    data = Path(path).read_bytes()
    header, _, body = data.partition(b"\n")
    if not header.startswith(_MAGIC):
        raise refusals.NO_PROGRAM(where=str(path))
    versions = json.loads(header.removeprefix(_MAGIC))
    if versions != _versions():
        was, now = (", ".join(f"{k} {v}" for k, v in own.items()) for own in (versions, _versions()))
        raise refusals.SAVED_BY_ANOTHER(was, now, where=str(path))
    try:
        contents: _Contents = torch.load(io.BytesIO(body), weights_only=False)
    except (AttributeError, ImportError) as error:
        raise refusals.NEEDS_MORE(error, where=str(path)) from error
    backend = backend_named(*contents.backend)
    runnables = [backend.build(sources) for sources in contents.sources]
    kernel = runnables[0] if contents.halves is None else _differentiable(contents.halves, runnables)
    names = {**contents.call.names, KERNEL: kernel, "lock": threading.RLock(), "root": None}
    if (seen := contents.seen) is not None:
        examples = [_example(e) if isinstance(e, TensorSpec) else e for e in seen.examples]
        names["seen"] = looks_like(examples, [s.shape for s in seen.specs], [s.stride for s in seen.specs])
    call = evolve(contents.call, names=names)
    sources = tuple(source for group in contents.sources for source in group)
    return LoadedProgram(
        contents.name, contents.key, call, build_call(call), sources, contents.tensors, contents.assumes, contents.reads
    )


def _differentiable(saved: _Halves, runnables: Sequence[Runnable]) -> Differentiable:
    """A kernel that autograd knows. Its derivative would be one of the function, which is not here."""
    ins, passes = saved.fields["ins"], saved.passes

    def narrowed(absent: frozenset[Slot], unasked: frozenset[Slot]) -> Half:
        assert passes is not None
        if saved.is_sized:
            raise refusals.LOADED_NARROWED(saved.fields["name"], where="the backward pass")
        graph = passes.half(absent, unasked)

        def run(values: list[Any]) -> tuple[Any, ...]:
            own = [*values]
            values.clear()
            return graph.run(*own)

        return Half.of(run if graph.is_boxed else graph.run, graph.signature.outs, ins, graph)

    def pullback(*_: Any) -> NoReturn:
        raise refusals.LOADED_DERIVATIVE(saved.fields["name"], where="the backward pass")

    backward = None
    if saved.backward is not None:
        assert passes is not None
        backward = Half.of(runnables[1], saved.backward, ins, passes.graph)
    return Differentiable(
        forward=runnables[0],
        backward=backward,
        narrowed=narrowed,
        pullback=pullback,
        mapped=None,
        passes=passes,
        late=None,
        refused=None,
        why_apart="comes from a file",
        **saved.fields,
    )


@frozen(eq=False, repr=False)
class LoadedProgram(Shown):
    """A program that was read from a file: it is called as the function that it was compiled of, with arguments that
    fit its ``key``, and is differentiable once where that was.

    ``tensors``: those that the function closed over, by name: the program's own, which it reads, and writes to, in each
    call. ``assumes``: the Python state that the function read, which nobody compares any more.
    """

    name: str
    key: CallKey
    call: Source
    run: Call
    sources: tuple[Source, ...]
    tensors: Mapping[str, Tensor]
    assumes: tuple[tuple[str, str], ...]
    _reads: tuple[Read, ...]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Raises ``ArgumentError``, which says what differs, for a call that the program is not for, and
        ``UnsupportedTransformError`` inside a trace or under a transform of torch.func."""
        if transforms_or_duals() or active_trace() is not None:
            raise refusals.LOADED_UNDER_TRANSFORM(self.name)
        return called_alone(
            self.name,
            self.run,
            (args, kwargs),
            self._reads,
            lambda: list(map(str, explain(self.key, key_of_arguments(self.key, args, kwargs)))),
            "a condition on its sizes or numbers does not hold",
            "save a program of a call like this one",
        )

    def headline(self) -> str:
        return f"loaded program of {self.name}: {len(self.sources)} sources, {len(self.tensors)} tensors of its own"

    def doc(self) -> Doc:
        own = tuple((name, f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}") for name, t in self.tensors.items())
        tables = (Table(("tensor", ""), own, "closed over"), Table(("what", "is"), self.assumes, "assumed"))
        return Doc(self.headline(), (self.key.doc(), *(t for t in tables if t.rows), self.call.doc()))
