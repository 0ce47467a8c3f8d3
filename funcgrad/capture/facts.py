"""Facts: what one dry run of the function on fake tensors showed, before anything is compiled."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from ..errors import MutationError, UnresolvedCaptureWarning
from ..graphs import type_text
from ..show import Doc, Shown, Table, Text
from ..slots import Arg, Captured
from ..torch_private import FunctionalTensor, is_mutated
from ..trees import Tree, flatten, unflatten
from .lifted import MetInTransform
from .origins import Origin, Unresolved, find_origins
from .trace import Trace


@frozen
class Symbolic:
    """Stands in the place of a float argument that is traced as a symbol; ``value`` is the one of this call."""

    value: float


@frozen(eq=False)
class Inputs:
    """The arguments of one call taken apart: the leaves with their slots, and the structure of ``(args, kwargs)``.

    A tensor leaf is an input, a ``Symbolic`` leaf a symbolic float; any other leaf is static. ``names`` are those of the
    positional arguments.
    """

    names: tuple[str, ...]

    leaves: tuple[Any, ...]
    slots: tuple[Arg, ...]
    tree: Tree

    @property
    def dynamic(self) -> list[tuple[Arg, Any]]:
        """The leaves that are inputs of the graph."""
        return [(s, v) for s, v in zip(self.slots, self.leaves, strict=True) if isinstance(v, (Tensor, Symbolic))]

    def released(self) -> Inputs:
        """The same, without the tensors: what a program keeps."""
        return evolve(self, leaves=tuple(None if isinstance(v, Tensor) else v for v in self.leaves))

    def rebuild(self, stand_ins: Mapping[Arg, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with each dynamic leaf replaced by its stand-in."""
        leaves = [stand_ins.get(slot, leaf) for slot, leaf in zip(self.slots, self.leaves, strict=True)]
        args, kwargs = unflatten(leaves, self.tree)
        return args, kwargs


@frozen(eq=False)
class CapturedTensor:
    """A tensor the function closes over, and where it lives. A program reads it from there, so it does not keep ``tensor``."""

    slot: Captured
    tensor: Tensor | None
    type: str
    requires_grad: bool
    origin: Origin | Unresolved

    def read(self) -> Any:
        """The tensor that lives there now."""
        return self.origin.read() if isinstance(self.origin, Origin) else self.tensor


@frozen
class OutputFact:
    """One leaf of the result: its path, its type, whether a gradient flows into what computed it (not where it *is* an input)."""

    path: str
    type: str
    requires_grad: bool
    is_tensor: bool


@frozen(eq=False)
class Facts(Shown):
    """What the dry run showed."""

    inputs: tuple[tuple[Arg, str, bool], ...]
    captured: tuple[CapturedTensor, ...]
    outputs: tuple[OutputFact, ...]
    modules: tuple[torch.nn.Module, ...]

    def released(self) -> Facts:
        """The same, without the captured tensors that can be read from where they live: what a program keeps."""
        return evolve(self, captured=tuple(evolve(c, tensor=None) if isinstance(c.origin, Origin) else c for c in self.captured))

    @property
    def differentiable(self) -> bool:
        """Whether any output depends on an input that requires grad."""
        sources = any(grad for _, _, grad in self.inputs) or any(c.requires_grad for c in self.captured)
        return sources and any(o.requires_grad for o in self.outputs)

    def doc(self) -> Doc:
        rows = [(str(slot), kind, "requires grad" if grad else "") for slot, kind, grad in self.inputs]
        rows += [(str(c.slot), c.type, "captured" + (", requires grad" if c.requires_grad else "")) for c in self.captured]
        outs = [(f"out{o.path}", o.type, "requires grad" if o.requires_grad else "") for o in self.outputs]
        return Doc("facts", (Text("inputs"), Table(("", "", ""), tuple(rows)), Text("outputs"), Table(("", "", ""), tuple(outs))))


def observe(function: Callable[..., Any], inputs: Inputs, grad: bool, root: Callable[..., Any]) -> Facts:
    """Run ``function`` once on fakes and write down what it does.

    ``grad``: whether grad mode is on outside the function, so that inputs keep their ``requires_grad``. ``root`` is the
    caller's function, where captured tensors are looked for. Raises ``MutationError`` where an input is written to.
    """
    known: list[Tensor] = []
    while True:
        trace = Trace(record=False)
        for tensor in known:
            trace.lift(tensor)
        stand_ins = make_stand_ins(trace, inputs, grad)
        args, kwargs = inputs.rebuild(stand_ins)
        try:
            with _ModuleWatch() as modules, torch.set_grad_enabled(grad):
                result = trace.run(function, args, kwargs)
            break
        except MetInTransform as met:
            known.append(met.tensor)
    captured = _resolve(root, trace)
    named = [(str(slot), stand_ins[slot]) for slot in stand_ins]
    named += [(str(c.slot), trace.captured[id(c.tensor)].functional) for c in captured]
    for name, tensor in named:
        _refuse_mutation(name, tensor)
    leaves, _, paths = flatten(result)
    outputs = tuple(
        OutputFact(path, type_text(v), isinstance(v, Tensor) and v.grad_fn is not None and not trace.is_input(v), isinstance(v, Tensor))
        for path, v in zip(paths, leaves, strict=True)
    )
    kinds = tuple((s, type_text(v), isinstance(v, Tensor) and v.requires_grad and grad) for s, v in inputs.dynamic)
    return Facts(kinds, captured, outputs, tuple(modules))


def _stand_in(trace: Trace, slot: Arg, value: Any, requires_grad: bool) -> Any:
    if isinstance(value, Symbolic):
        return trace.symbolic_float(slot, value.value)
    return trace.input(slot, value, requires_grad and value.requires_grad)


def make_stand_ins(trace: Trace, inputs: Inputs, requires_grad: bool) -> dict[Arg, Any]:
    """A stand-in in ``trace`` for each dynamic leaf."""
    return {slot: _stand_in(trace, slot, value, requires_grad) for slot, value in inputs.dynamic}


def _refuse_mutation(name: str, tensor: Any) -> None:
    how = is_mutated(tensor) if isinstance(tensor, FunctionalTensor) else None
    if how:
        raise MutationError(
            f"the function changes the {how} of {name} in place, which this version does not carry out",
            where=name,
            fix="write into a copy (x = x.clone()) and return it, or put a module with running statistics in eval mode",
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
