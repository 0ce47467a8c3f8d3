"""Statements as Python: what happens around the kernel, line by line, in the order of the list."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from ..autograd_state import (
    as_inference,
    bump_version,
    go_on,
    renew_history,
    set_earlier_gradient,
    versions_of,
    view_with_history_of,
    with_dead_end,
    with_history_of,
)
from ..capture.memory import BaseOf, grown_storage
from ..capture.views import Step, View, detaches
from ..levels import write_below, write_dual
from ..philox import draw_key
from ..slots import Signature, Slot, identifier
from ..source import Source
from ..subclasses import Wrapping, overwrite
from ..torch_private.autograd import below_autograd, versions_kept
from ..torch_private.operators import METHODS, direct
from .effects import (
    CopyBack,
    Drawn,
    Effect,
    GoOn,
    MakeInference,
    MakeParameter,
    Recipe,
    RequireGrad,
    Restride,
    RetainGrad,
    SetAttribute,
    SetGradient,
    SetStorage,
    Wrapped,
)
from .statements import KERNEL, Bump, Do, Make, NoteVersions, Run, Statement, Within

Fresh = Callable[[str], str]
"""Makes a variable name no one has, like the one given."""


def print_statements(
    statements: Sequence[Statement],
    variables: MutableMapping[Slot, str],
    fresh: Fresh,
    constants: MutableMapping[str, Any],
    inner_names: Mapping[str, str] = {},
    boxed: str | None = None,
) -> list[str]:
    """The lines of a call from its outer inputs, which ``variables`` name, to its outer outputs, which it names there.

    Objects the lines refer to are added to ``constants``. ``inner_names`` are variables that hold an inner tensor
    already, by its expression. ``boxed`` names a list, if the kernel takes one that it empties: then nothing here holds
    on to what is in it.
    """
    printer = _Printer(variables, fresh, constants, inner_names)
    for statement in statements:
        match statement:
            case Make(slot, recipe):
                printer.make(slot, recipe)
            case Bump(slots):
                printer.bump(slots)
            case NoteVersions(slots):
                printer.note_versions(slots)
            case Within():
                pass  # the key of the call says so
            case Run():
                printer.run(statement, boxed)
            case Do(effect, quiet):
                printer.effect(effect, quiet)
    return printer.lines


def print_wrapper(
    statements: Sequence[Statement], outer: Signature, kernel: Callable[..., Any], is_boxed: bool = False
) -> Source:
    """A function of the outer inputs that returns the outer outputs, with statements around ``kernel``;
    ``is_boxed``: both take their inputs in a list, and empty it."""
    used: set[str] = {KERNEL, "values"}

    def fresh(like: str) -> str:
        name, i = like, 1
        while name in used:
            name, i = f"{like}_{i}", i + 1
        used.add(name)
        return name

    constants: dict[str, Any] = {KERNEL: kernel}
    variables: dict[Slot, str] = {slot: fresh(identifier(slot)) for slot in outer.ins}
    head = f"def call({'values' if is_boxed else ', '.join(variables.values())}):"
    lines = [f"{', '.join(variables.values())}, = values", "values.clear()"] if is_boxed and variables else []
    lines += print_statements(statements, variables, fresh, constants, boxed="values" if is_boxed else None)
    results = "".join(f"{variables[slot]}, " for slot in outer.outs)
    text = "\n".join([head, *(f"    {line}" for line in lines), f"    return ({results.rstrip()})"]) + "\n"
    return Source("call", "python", text, constants)


class _Printer:
    def __init__(
        self,
        variables: MutableMapping[Slot, str],
        fresh: Fresh,
        constants: MutableMapping[str, Any],
        inner_names: Mapping[str, str],
    ) -> None:
        self.lines: list[str] = []
        self._variables = variables
        self._fresh = fresh
        self._constants = constants
        self._inner_names = inner_names
        self._versions = ""

    def name(self, slot: Slot) -> str:
        """A variable for a new value."""
        self._variables[slot] = self._fresh(identifier(slot))
        return self._variables[slot]

    def make(self, slot: Slot, recipe: Recipe) -> None:
        """Lines that compute the value of a slot."""
        if isinstance(recipe, View):
            self._take(slot, recipe)
        elif isinstance(recipe, BaseOf):
            self._variables[slot] = self._variables[recipe.of] if recipe.is_itself else self._base(slot, recipe)
        elif isinstance(recipe, Drawn):
            self.lines.append(f"{self.name(slot)} = {self._call(draw_key)}")
        elif isinstance(recipe, Wrapped):
            text = self._wrap(recipe.wrapping, iter([self._variables[of] for of in recipe.of]))
            self.lines.append(f"{self.name(slot)} = {text}")
        else:
            expression = ".".join([self._variables[recipe.of], *recipe.path])
            self._variables[slot] = self._inner_names.get(expression) or self._fresh(identifier(slot))
            self.lines += [] if expression in self._inner_names else [f"{self._variables[slot]} = {expression}"]

    def _wrap(self, wrapping: Wrapping, inner: Iterator[str]) -> str:
        name = wrapping.kind.__name__
        self._constants["Size"] = torch.Size
        values = [f"{attr!r}: {next(inner) if own is None else self._wrap(own, inner)}" for attr, own in wrapping.inner]
        values += [f"{attr!r}: {self._constant(f'{name}_{attr}', value)}" for attr, value in wrapping.others]
        context = (
            self._argument(wrapping.context)
            if wrapping.context is None
            else self._constant(f"{name}_metadata", wrapping.context)
        )
        size, stride = self._argument(tuple(wrapping.size)), self._argument(wrapping.stride)
        kind = self._constant(name, wrapping.kind, "type_")
        return f"{kind}.__tensor_unflatten__({{{', '.join(values)}}}, {context}, Size({size}), {stride})"

    def _base(self, slot: Slot, found: BaseOf) -> str:
        of = self._variables[found.of]
        name = self.name(slot)
        if found.length is None:
            self.lines.append(f"{name} = {of}._base")
        elif found.grows:
            self.lines.append(f"{name} = {self._call(grown_storage, of, found.length)}")
        else:
            self._constants["as_strided"] = torch.as_strided
            self.lines.append(
                f"{name} = as_strided({of}.detach(), ({found.length},), (1,), "
                f"{f'{of}.storage_offset()' if found.own else 0})"
            )
        return name

    def _take(self, slot: Slot, view: View) -> None:
        value, computed = self._variables[view.of], self._variables.get(slot)
        if not view.steps:
            self._variables[slot] = value  # the very object
            return
        target = self.name(slot)
        for tracked, steps in _runs(view.steps):
            for step in steps:
                value = self._step(step, value)
            self.lines.append(f"{self._within(tracked)}{target} = {value}")
            value = target
        if view.computed:
            carried = with_history_of if detaches(view.steps) else view_with_history_of
            self.lines.append(f"{target} = {self._call(carried, target, computed)}")

    def _within(self, tracked: bool, within: str = "") -> str:
        """What a line that is not tracked by autograd stands in."""
        if not tracked:
            self._constants["no_grad"] = torch.no_grad
        return within if tracked else within.replace("with ", "with no_grad(), ") or "with no_grad(): "

    def _step(self, step: Step, value: str) -> str:
        packet, overload = step.op.__name__.split(".")
        item = "" if step.item is None else f"[{step.item}]"
        dim, *bounds = step.args or (0,)
        if step.op is torch.ops.aten.slice.Tensor and not step.kwargs and 0 <= dim <= _INDICES:
            return f"{value}[{':, ' * dim}{_slice(*bounds)}]"
        if step.op in METHODS and not step.kwargs:
            return f"{value}.{packet}({', '.join(map(self._argument, step.args))}){item}"
        name = self._constant(packet if overload == "default" else f"{packet}_{overload}", direct(step.op))
        args = [value, *map(self._argument, step.args), *(f"{k}={self._argument(v)}" for k, v in step.kwargs)]
        return f"{name}({', '.join(args)}){item}"

    def run(self, run: Run, boxed: str | None) -> None:
        """The line of the kernel's call."""
        arguments = ", ".join(self._variables[slot] for slot in run.ins)
        if boxed is not None:
            self.lines += [f"{boxed} += [{arguments}]", f"del {', '.join(sorted(set(self._variables.values())))}"]
            arguments = boxed
        outs = [self.name(slot) for slot in run.outs]
        line = f"{KERNEL}({arguments})"
        if outs:
            line = f"{', '.join(outs)}{',' if len(outs) == 1 else ''} = {line}"
        if run.contexts:
            self._constants.update(
                autocast=torch.autocast, enable_grad=torch.enable_grad, below_autograd=below_autograd
            )
            line = f"with {', '.join(run.contexts)}: {line}"
        self.lines.append(line)

    def bump(self, slots: Sequence[Slot]) -> None:
        """Lines that move version counters on."""
        self.lines += [self._call(bump_version, self._variables[slot]) for slot in slots]

    def note_versions(self, slots: Sequence[Slot]) -> None:
        """A line that reads the version counters of all inputs, before any is moved."""
        self._versions = self._fresh("versions")
        self.lines.append(f"{self._versions} = {self._call(versions_of, self._list(slots))}")

    def _list(self, slots: Iterable[Slot]) -> str:
        return f"[{', '.join(self._variables[slot] for slot in slots)}]"

    def effect(self, effect: Effect, quiet: bool) -> None:
        """A line that does something to a tensor of the caller's; ``quiet``: its version counter has been moved
        before."""
        target = self._variables[effect.target]
        within = ""
        if quiet:
            self._constants["versions_kept"] = versions_kept
            within = f"with versions_kept({target}): "
        if isinstance(effect, CopyBack) and effect.is_subclass:
            how = [] if effect.how == "plain" else [repr(effect.how)]
            self.lines.append(within + self._call(overwrite, target, self._variables[effect.source], *how))
        elif isinstance(effect, CopyBack) and effect.by == "write_below":
            self.lines.append(within + self._call(write_below, target, self._variables[effect.source]))
        elif isinstance(effect, CopyBack) and effect.by == "write_dual":
            source = self._variables[effect.source]
            self.lines.append(within + self._call(write_dual, target, source, effect.how == "plain"))
        elif isinstance(effect, CopyBack):
            through = {"plain": "", "detached": ".detach()", "unversioned": ".data"}[effect.how]
            source = self._variables[effect.source]
            self.lines.append(
                f"{within}{target}{through}.copy_({self._call(with_dead_end, source) if effect.to_no_end else source})"
            )
        elif isinstance(effect, Restride):
            # autograd finds the history of a view again, of its base and by its sizes, when asked
            renew = self._call(renew_history, target)
            if effect.renewed:
                self.lines.append(renew)
            for step in effect.steps:
                args = [*map(self._argument, step.args), *(f"{k}={self._argument(v)}" for k, v in step.kwargs)]
                line = f"{self._within(step.tracked, within)}{target}.{step.method}({', '.join(args)})"
                self.lines.append(line if step.tracked else f"{line}; {renew}")
        elif isinstance(effect, SetStorage):
            source = self._variables[effect.source]
            if effect.how == "set_":
                self.lines.append(f"{self._within(False, within)}{target}.set_({source})")
            elif effect.how == "set_, tracked":
                self.lines.append(f"{self._within(True, within)}{target}.set_({self._call(with_dead_end, source)})")
            else:
                self.lines.append(f"{target}.data = {source}")
        elif isinstance(effect, SetGradient):
            gradient = None if effect.source is None else self._variables[effect.source]
            earlier = effect.earlier and gradient is not None
            line = self._call(set_earlier_gradient, target, gradient) if earlier else f"{target}.grad = {gradient}"
            self.lines.append(line)
        elif isinstance(effect, GoOn):
            lists = ([s.of for s in effect.sources], effect.sources, effect.written, effect.leaves)
            tensors, gradients, *rest = map(self._list, lists)
            self.lines.append(self._call(go_on, tensors, gradients, effect.keeps_graph, *rest, self._versions))
        elif isinstance(effect, RequireGrad):
            self.lines.append(f"{target}.requires_grad_({'' if effect.on else 'False'})")
        elif isinstance(effect, RetainGrad):
            self.lines.append(f"{target}.retain_grad()")
        elif isinstance(effect, MakeParameter):
            self._constants["Parameter"] = torch.nn.Parameter
            self.lines.append(f"{target} = Parameter({target}, {effect.requires_grad})")
        elif isinstance(effect, MakeInference):
            self.lines.append(f"{target} = {self._call(as_inference, target)}")
        elif isinstance(effect, SetAttribute):
            self.lines.append(f"{target}.{effect.name} = {self._argument(effect.value)}")
        else:
            self.lines.append(f"{target} = {self._call(with_dead_end, target)}")

    def _call(self, function: Callable[..., Any], *arguments: object) -> str:
        """A call of one of our own functions, which is named as it is called."""
        self._constants[function.__name__] = function
        return f"{function.__name__}({', '.join(map(str, arguments))})"

    def _argument(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(map(self._argument, value))}{',' if len(value) == 1 else ''})"
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        return self._constant(str(value).removeprefix("torch."), value)

    def _constant(self, like: str, value: Any, prefix: str = "op_") -> str:
        name = prefix + re.sub(r"\W+", "_", like)
        while self._constants.get(name, value) is not value:
            name += "_"
        self._constants[name] = value
        return name


_INDICES = 3
"""Up to which dimension a slice is taken by an index."""


def _slice(start: int | None = None, end: int | None = None, step: int = 1) -> str:
    return f"{start or ''}:{'' if end is None or end == sys.maxsize else end}{'' if step == 1 else f':{step}'}"


def _runs(steps: Sequence[Step]) -> Iterator[tuple[bool, list[Step]]]:
    """The steps in stretches taken in grad mode, or not."""
    run: list[Step] = []
    for step in steps:
        if run and run[-1].tracked != step.tracked:
            yield run[-1].tracked, run
            run = []
        run.append(step)
    yield run[-1].tracked, run
