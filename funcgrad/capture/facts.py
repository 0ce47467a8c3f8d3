"""Facts: what one dry run of the function on fake tensors showed, before anything is compiled."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ..errors import AliasContractError, MutationError, UnresolvedCaptureWarning
from ..graphs import type_text
from ..histories import has_history, is_leaf, python_node_below
from ..show import Doc, Shown, Table, Text, in_bytes
from ..slots import Arg, Base, Captured, Final, Slot
from ..torch_private import storage_id, transform_active
from ..trees import flatten
from .inputs import CapturedTensor, Inputs, Symbolic
from .lifted import MetTooLate
from .memory import Overlap, history, neighbours, overlaps, same_objects
from .origins import Origin, Unresolved, find_origins
from .outputs import OutputFact, look_at_outputs
from .stand_ins import Mirrored, mirror, mirror_alone
from .trace import Trace
from .views import Lineage, Step, detaches, is_expanded

Source = Arg | Captured


@frozen
class Change:
    """What the function does to one input: ``data`` is how it writes to its memory (``"tracked"`` by autograd, ``"detached"``:
    with its version counter alone, ``"unversioned"``; None: not at all), ``restrides`` how it changes its sizes and strides."""

    data: str | None = None
    restrides: tuple[Step, ...] = ()
    in_backward: bool = False
    """Written to by the backward pass alone."""
    moved: bool = False
    """Its version counter moves though nothing is written (a view of it was restrided)."""

    def __str__(self) -> str:
        written = {None: "", "tracked": "written to", "detached": "written to under no_grad", "unversioned": "written to through .data"}
        late = "written to in backward" if self.in_backward else ""
        return ", ".join(filter(None, [written[self.data], late, *(f"{s.method}{str(s)[len(s.method) - 1 :]}" for s in self.restrides)]))


@frozen(eq=False)
class Facts(Shown):
    """What the dry run showed.

    ``same`` and ``overlap`` say which inputs are one object or share memory, ``changes`` what the function does to them (an
    overlap changes as one), ``histories`` how autograd knows those it writes to.
    """

    inputs: tuple[tuple[Arg, str, bool], ...]
    captured: tuple[CapturedTensor, ...]
    same: tuple[tuple[Source, ...], ...]
    overlap: tuple[Overlap, ...]
    neighbours: tuple[tuple[Source, ...], ...]
    """Distinct inputs over one storage, whether or not they overlap."""
    changes: Mapping[Source | Base, Change]
    histories: Mapping[Source, str]
    outputs: tuple[OutputFact, ...]
    modules: tuple[torch.nn.Module, ...]
    bases: tuple[Base, ...]
    """The intermediates that several outputs are views of; a gradient flows into each."""
    differentiable: bool
    """Whether a program must be differentiable: something it computes depends on an input that requires grad."""

    def released(self) -> Facts:
        """The same, without the captured tensors that can be read from where they live: what a program keeps."""
        return evolve(self, captured=tuple(evolve(c, tensor=None) if isinstance(c.origin, Origin) else c for c in self.captured))

    def requires_grad(self, slot: Slot) -> bool:
        """Whether an input requires grad; a base: whether one of those that share it does, if it is what they are views of."""
        if isinstance(slot, Base):
            plain = any(o.base == slot and o.families for o in self.overlap)
            return not plain and any(map(self.requires_grad, slot.of))
        return any(s == slot and grad for s, _, grad in self.inputs) or any(c.slot == slot and c.requires_grad for c in self.captured)

    def change_of(self, slot: Slot) -> Change | None:
        """What the function does to an input, if anything."""
        return next((change for changed, change in self.changes.items() if changed == slot), None)

    def tracks(self, slot: Slot) -> bool:
        """Whether a gradient may come in for an output: what is written under no_grad passes none on."""
        return not isinstance(slot, Final) or self.changes[slot.of].data == "tracked"  # type: ignore[index]

    def shares_memory(self, slot: Slot) -> bool:
        """Whether an input that is not written to lives in the memory of one that is, elsewhere: they share a version counter."""
        own = set(slot.of) if isinstance(slot, Base) else {slot}
        return any(own & set(group) and set(group) - own for group in self.neighbours)

    def needed_overlaps(self) -> list[Overlap]:
        """The overlaps that are written to, and so go in as one tensor."""
        return [o for o in self.overlap if o.base in self.changes]

    def goes_in_as(self, slot: Slot) -> Slot:
        """The inner input with the version counter of an outer one."""
        for overlap in self.needed_overlaps():
            if slot in overlap.base.of:
                own = next((f.slot for f in overlap.families if slot in dict(f.views)), overlap.base)
                return own if own in (overlap.base, *self.carriers(overlap)) else overlap.base
        return slot

    def carriers(self, overlap: Overlap) -> list[Slot]:
        """The inputs that go in for the history of a family: of those that require grad, or are written to with a version counter."""
        return [f.slot for f in overlap.families if self.requires_grad(f.slot) or f.slot in self.changes]

    def doc(self) -> Doc:
        kinds: dict[Source, str] = {slot: "requires grad" if grad else "" for slot, _, grad in self.inputs}
        kinds |= {c.slot: "captured" + (", requires grad" if c.requires_grad else "") for c in self.captured}
        types: dict[Source, str] = {slot: kind for slot, kind, _ in self.inputs} | {c.slot: c.type for c in self.captured}
        rows = tuple((str(s), types[s], ", ".join(filter(None, [kinds[s], str(self.changes.get(s, ""))]))) for s in kinds)
        outs = tuple((f"out{o.path}", o.type, str(o)) for o in self.outputs)
        parts: list[Text | Table] = [Text("inputs"), Table(("", "", ""), rows), Text("outputs"), Table(("", "", ""), outs)]
        shared = [(" is ".join(map(str, group)), "one object") for group in self.same]
        shared += [(str(o.base), f"overlap; the base has {in_bytes(o.base_bytes)}, they {in_bytes(o.member_bytes)}") for o in self.overlap]
        return Doc("facts", (*parts, *((Text("memory"), Table(("", ""), tuple(shared))) if shared else ())))


def observe(
    function: Callable[..., Any], inputs: Inputs, grad: bool, root: Callable[..., Any], splits: bool, out_slot: Callable[[str], Slot]
) -> Facts:
    """Run ``function`` once on fakes and write down what it does.

    ``grad``: whether grad mode is on outside the function, so that inputs keep their ``requires_grad``. ``root`` is the
    caller's function, where captured tensors are looked for; ``out_slot`` names an output by its path. ``splits``: whether a
    backward pass will be compiled apart; then it is run, too, if it runs Python of the caller's, which may write to inputs.
    Raises ``MutationError`` or ``AliasContractError`` for what cannot be carried out.
    """
    known: list[Tensor] = []
    while True:
        dry = _DryRun(inputs, grad, known, out_slot, splits)
        try:
            return dry.trace.run(dry.run, (function, root), {})  # type: ignore[no-any-return]
        except MetTooLate as met:
            known.append(met.tensor)


class _DryRun:
    """One run on stand-ins that mirror the real tensors. ``known`` are captured tensors an earlier run met."""

    def __init__(self, inputs: Inputs, grad: bool, known: Sequence[Tensor], out_slot: Callable[[str], Slot], splits: bool) -> None:
        self._inputs, self._grad, self._out_slot, self._splits = inputs, grad, out_slot, splits
        self._reals: list[tuple[Any, Tensor]] = [*inputs.tensors, *((f"captured {i}", t) for i, t in enumerate(known))]
        self._mirrored: dict[int, Mirrored] = {}
        self.trace = Trace(record=False, backward_autocast=None, stand_in_for=self._meet)

    def run(self, function: Callable[..., Any], root: Callable[..., Any]) -> Facts:
        trace, inputs = self.trace, self._inputs
        stand_ins: dict[Any, Any] = {s: trace.symbolic_float(s, v.value) for s, v in inputs.dynamic if isinstance(v, Symbolic)}
        self._mirrored = mirror(trace, self._reals, self._grad)
        stand_ins |= {slot: self._mirrored[id(t)].seen for slot, t in inputs.tensors}
        for slot, tensor in self._reals:
            if not isinstance(slot, Arg):
                trace.bind(tensor, self._mirrored[id(tensor)].seen)
        args, kwargs = inputs.rebuild(stand_ins)
        with _ModuleWatch() as modules, torch.set_grad_enabled(self._grad), trace.lifting():
            result = function(*args, **kwargs)
        trace.writes.spread_versions()
        leaves, _, paths = flatten(result)
        leaves = [trace.named(v) for v in leaves]
        return self._facts(leaves, paths, _resolve(root, trace), modules)

    def _meet(self, real: Tensor) -> Tensor:
        """A stand-in for a captured tensor; where it is entangled with another input, the run starts again, knowing it."""
        if any(t is real for _, t in self._reals):  # it is an argument, too
            self._reals.append((f"captured {len(self._reals)}", real))
            return self._mirrored[id(real)].seen
        if any(storage_id(t) == storage_id(real) for _, t in self._reals) or transform_active():
            raise MetTooLate(real)
        self._reals.append((f"captured {len(self._reals)}", real))
        self._mirrored[id(real)] = mirror_alone(self.trace, real, self._grad)
        return self._mirrored[id(real)].seen

    def _written(self) -> dict[int, str]:
        """How each real tensor, by identity, has been written to so far."""
        key_of = {id(m.seen): key for key, m in self._mirrored.items()}
        tracked: dict[int, bool] = {}
        for tensor, flag in self.trace.lineage.written(lambda t: id(t) in key_of):
            tracked[key_of[id(tensor)]] = tracked.get(key_of[id(tensor)], False) or flag
        return {key: self._mirrored[key].how_written(flag) for key, flag in tracked.items()}

    def _run_backward(self, leaves: Sequence[Tensor]) -> None:
        """For what the caller's own Python writes to in backward; torch's own formulas write to no input."""
        written = [self._mirrored[key].family for key in self._written()]
        roots = [v for v in dict.fromkeys([*leaves, *written]) if has_history(v)]
        if python_node_below(roots):
            seeds = [torch.ones_like(v) for v in roots]
            with self.trace.backward_pass(), contextlib.suppress(RuntimeError):  # told when it is recorded
                torch.autograd.backward(roots, seeds)

    def _facts(self, leaves: list[Any], paths: list[str], captured: tuple[CapturedTensor, ...], modules: list[torch.nn.Module]) -> Facts:
        named: list[tuple[Source, Tensor]] = [*self._inputs.tensors, *((c.slot, c.tensor) for c in captured if c.tensor is not None)]
        for slot, tensor in named:
            _refuse_gradient(slot, self._mirrored[id(tensor)])
        groups, lineage = overlaps(named), self.trace.lineage
        slot_of = {id(self._mirrored[id(t)].seen): slot for slot, t in reversed(named)}
        is_base = (lambda _, root: has_history(root)) if self._splits else None
        outputs, bases = look_at_outputs(leaves, paths, slot_of, lineage, self._out_slot, is_base)
        in_forward = self._written()
        changes = dict(_changes(lineage, named, self._mirrored, groups, in_forward, in_forward))
        if self._splits and self._grad:
            self._run_backward([self.trace.current(v) for v in leaves if isinstance(v, Tensor)])
            changes = dict(_changes(lineage, named, self._mirrored, groups, in_forward, self._written())) | changes
        written = {slot for slot, change in changes.items() if change.data or change.in_backward}
        written |= {member for slot in written if isinstance(slot, Base) for member in slot.of}  # type: ignore[misc]
        histories = {slot: history(t) for slot, t in named if slot in written}
        _refuse(self.trace, named, self._mirrored, changes, histories, groups, self._written())
        kinds = tuple((s, type_text(v), isinstance(v, Tensor) and v.requires_grad and self._grad) for s, v in self._inputs.dynamic)
        sources = self._grad and (any(grad for _, _, grad in kinds) or any(c.requires_grad for c in captured))
        tracked = any(o.requires_grad and not o.is_leaf for o in outputs) or bool(bases)
        tracked = tracked or any(c.data == "tracked" for c in changes.values())
        return Facts(
            kinds, captured, same_objects(named), groups, neighbours(named), changes, histories, outputs, tuple(modules),
            tuple(bases), sources and tracked,
        )  # fmt: skip


def _changes(
    lineage: Lineage,
    named: Sequence[tuple[Source, Tensor]],
    mirrored: Mapping[int, Mirrored],
    groups: Sequence[Overlap],
    in_forward: Mapping[int, str],
    ever: Mapping[int, str],
) -> Iterator[tuple[Source | Base, Change]]:
    shared = {slot: group for group in groups for slot in group.base.of}
    tensors = dict(named)
    for group in groups:
        keys = [id(tensors[slot]) for slot, _ in group.views]
        if any(key in in_forward for key in keys):
            yield group.base, Change("unversioned" if group.families else _most([in_forward[key] for key in keys if key in in_forward]))
            for family in group.families:
                data = _of_family([id(tensors[slot]) for slot, _ in family.views], mirrored, in_forward)
                if data != "unversioned" and isinstance(family.slot, Base):
                    yield family.slot, Change(data)
        elif any(id(tensors[slot]) in ever for slot, _ in group.views):
            yield group.base, Change(in_backward=True)
    families = {f.slot: f for group in groups for f in group.families}
    written = {g.base for g in groups if any(id(tensors[slot]) in in_forward for slot, _ in g.views)}
    done: set[int] = set()
    for slot, tensor in named:
        own = mirrored[id(tensor)]
        alone = slot not in shared or slot in families
        how = in_forward.get(id(tensor))
        if slot in families and shared[slot].base in written:
            how = _of_family([id(tensor)], mirrored, in_forward)
        own_data = None if not alone or (how == "unversioned" and slot in families) else how
        restrides = lineage.restrides(own.seen)
        late = slot not in shared and id(tensor) in ever and not own_data
        untouched = (slot not in shared or shared[slot].base not in written) and not own_data and not restrides and ever is in_forward
        moved = untouched and own.how_written(False) == "detached"
        if id(tensor) not in done and (own_data or restrides or late or moved):
            yield slot, Change(own_data, restrides, late, moved)
        done.add(id(tensor))


def _of_family(keys: Sequence[int], mirrored: Mapping[int, Mirrored], in_forward: Mapping[int, str]) -> str:
    """How members of one of several families are written to: through themselves, or seen by the version counter they share."""
    ways = [in_forward[key] for key in keys if key in in_forward]
    return _most(ways) if "tracked" in ways else mirrored[keys[0]].how_written(False)


def _most(ways: Sequence[str]) -> str:
    """The way of several that autograd knows most of."""
    return next(way for way in ("tracked", "detached", "unversioned") if way in ways)


def _refuse_gradient(slot: Source, own: Mirrored) -> None:
    if any(is_leaf(t) and t.grad is not None for t in (own.leaf, own.seen)):
        raise MutationError(
            f"the function sets the gradient of {slot} (.backward() inside, or .grad =)",
            where=str(slot),
            fix="compile the loss with grad_compiled, or call torch.autograd.grad inside, and assign gradients outside",
        )


def _keys(slot: Source, groups: Sequence[Overlap]) -> list[Source | Base]:
    """The slots under which the changes of an input are found: its family's before its own."""
    return [f.slot for g in groups for f in g.families if slot in dict(f.views)] + [slot]


def _refuse(
    trace: Trace,
    named: Sequence[tuple[Source, Tensor]],
    mirrored: Mapping[int, Mirrored],
    changes: Mapping[Source | Base, Change],
    histories: Mapping[Source, str],
    groups: Sequence[Overlap],
    written: Mapping[int, str],
) -> None:
    """Raise for a change that cannot be carried out, or that eager PyTorch refuses where a trace does not see it."""
    for slot, tensor in named:
        own = mirrored[id(tensor)]
        if own.has_other_storage:
            raise MutationError(f"the function gives {slot} other memory (set_, resize_)", where=str(slot), fix="return the new tensor")
        detached = any(step.op is torch.ops.aten.detach.default for step in changes.get(slot, Change()).restrides)
        if own.seen.requires_grad != own.requires_grad and is_leaf(own.seen) and not detached:
            raise MutationError(
                f"the function calls requires_grad_() on {slot}", where=str(slot), fix=f"call {slot}.requires_grad_() before"
            )
        how = next((changes[key].data for key in _keys(slot, groups) if key in changes), None)
        if how == "tracked" and "leaf" in histories.get(slot, ""):
            raise MutationError(
                f"{histories[slot]} that requires grad is being used in an in-place operation: {slot}",
                where=str(slot),
                fix="write under torch.no_grad(), or into a copy: x = x.clone()",
            )
        if trace.lineage.is_unknown(own.seen):
            raise MutationError(
                f"the function changes the sizes of {slot} where the trace does not see it (in a custom autograd.Function)",
                where=str(slot),
                fix="return a view instead",
            )
        own_changes = changes.get(slot, Change())
        if has_history(trace.current(own.seen)) and detaches(own_changes.restrides):
            raise MutationError(f"the function detaches {slot} in place and writes to it in grad mode", where=str(slot), fix="return it")
        if histories.get(slot) == "an inference tensor":
            raise MutationError(
                f"Inplace update to inference tensor outside InferenceMode is not allowed: {slot}",
                where=str(slot),
                fix="call it in inference mode, or pass a clone",
            )
        if id(tensor) in written and is_expanded(tensor):
            raise MutationError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory location: "
                f"{slot} is expanded",
                where=str(slot),
                fix="clone() the tensor before performing the operation",
            )
    for group in groups:
        if group.base in changes and group.at_odds:
            raise AliasContractError(
                f"the function writes to memory that {' and '.join(map(str, group.base.of))} share, but {group.at_odds}",
                where=str(group.base.of[0]),
                fix="pass views of one tensor, or a clone",
            )


def _resolve(root: Callable[..., Any], trace: Trace) -> tuple[CapturedTensor, ...]:
    lifted: Sequence[Any] = list(trace.captured.values())
    origins = find_origins(root, [item.real for item in lifted])
    found: list[CapturedTensor] = []
    for item, origin in zip(lifted, origins, strict=True):
        if isinstance(origin, Unresolved):
            warnings.warn(
                f"the function uses a tensor {type_text(item.real)} ({item.where}) that could not be traced back to a variable or "
                "attribute: updates in place are seen, a rebinding is not. Pass it as an argument.",
                UnresolvedCaptureWarning,
                stacklevel=2,
            )
        slot = _fresh(origin.name or "captured", found)
        found.append(CapturedTensor(slot, item.real, type_text(item.real), item.real.requires_grad, origin))
    return tuple(found)


def _fresh(name: str, found: Sequence[CapturedTensor]) -> Captured:
    """A slot of this name; numbered where two tensors would read the same."""
    slot, taken = Captured(name), {c.slot for c in found}
    for i in itertools.count(2):
        if slot not in taken:
            break
        slot = Captured(f"{name}#{i}")
    return slot


class _ModuleWatch:
    """Collects the modules called inside, each once."""

    def __enter__(self) -> list[torch.nn.Module]:
        self._seen: dict[int, torch.nn.Module] = {}
        self._modules: list[torch.nn.Module] = []
        self._handle = torch.nn.modules.module.register_module_forward_pre_hook(self._note)
        return self._modules

    def _note(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) not in self._seen:
            self._seen[id(module)] = module
            self._modules.append(module)

    def __exit__(self, *exc: object) -> None:
        self._handle.remove()
