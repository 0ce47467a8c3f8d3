"""The printed call: one flat function that takes the arguments apart, checks that a program fits, runs its kernel, and
puts the result together. Ten leaves cost some 12 µs this way; generic tree walks and guard objects cost ten times that.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..autograd_state import lead_to
from ..backends.backend import Runnable
from ..capture.facts import Facts
from ..capture.inputs import GradientOf
from ..errors import ArgumentError
from ..graph_primitives import PathMiss, Read
from ..joint import Constant, Joint
from ..layers.printing import print_statements
from ..layers.statements import KERNEL, Bump, Do, Run, Statement
from ..printed_trees import print_flatten, print_unflatten
from ..show.text import elided
from ..slots import Arg, Base, Slot
from ..source import Constants, Source, compile_function
from ..state.new_values import NewObject
from ..state.places import GONE_TEXT, Place
from ..state.places import Constant as NameOf
from ..state.state import print_effects, require_not_put_back
from ..symbolic.sizes import symbols_in
from ..trees import Node, Tree, count
from .captured import Around
from .donation import Donation
from .execute import Differentiable
from .guard_rows import print_state
from .key_guards import print_key_guards, symbol_values
from .tentative import Tentative

_FEW, _MOST_SIZES = 8, 256
"""Conditions on sizes that are as fast to ask as whether they have been asked; and of how many sizes that is known."""

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class _Miss:
    def __repr__(self) -> str:
        return "MISS"

    def __reduce__(self) -> str:
        return "MISS"  # the one of its module


MISS: Any = _Miss()
"""What a printed call returns when its program does not fit the arguments."""


def print_call(
    around: Around, kernel: Runnable, lock: AbstractContextManager[Any], donation: Donation | None = None
) -> Source:
    """The whole call as one flat function: take apart, compare with the key, run the kernel, put together.

    ``donation``: the inputs whose memory the kernel takes. ``lock`` is held by one that has effects: what it compares,
    reads, computes and writes back is one step to other threads. It returns ``MISS`` where the program does not fit.
    """
    taken = set[str]() if around.joint.sizes is None else {*around.joint.sizes.symbols}
    while True:
        names = _Names(taken)
        source = _printed(around, kernel, lock, donation, names)
        hidden = names.given & source.names.keys()  # an argument has the name of what its call calls
        if not hidden:
            return source
        taken |= hidden


def _printed(
    around: Around, kernel: Runnable, lock: AbstractContextManager[Any], donation: Donation | None, names: _Names
) -> Source:
    """The call with variables of these names."""
    key, facts, statements, joint = around.key, around.facts, around.statements, around.joint
    examples = around.examples
    constants: dict[str, Any] = {"MISS": MISS, KERNEL: kernel}
    otherwise = "return MISS"
    leaf_names = [names.fresh(path) for path in key.paths]
    captured_names = [names.fresh(str(c.slot)) for c in facts.captured]
    lines = _print_arguments(key.tree, leaf_names, constants, otherwise)
    arguments: dict[Slot, str] = {Arg(path): name for path, name in zip(key.paths, leaf_names, strict=True)}
    lines += [f"if {own} is not {first}: {otherwise}" for own, first in facts.one.items() if own != first]
    if len(several := [own for own, first in facts.one.items() if own == first]) > 1:
        lines.append(f"if len({{*map(id, ({', '.join(several)}))}}) != {len(several)}: {otherwise}")
    locked = len(lines)
    constant = Constants(constants)
    for given in facts.state.into.given:
        constant.stands(given.value, given.variable)
    brought = facts.state.brought
    renewed = {
        own: arguments[Arg(own.at)] if isinstance(own.at, str) else names.fresh(own.name) for own in brought.renewed
    }
    reads = [*brought.lines(renewed, constant, constant.stands, otherwise)]
    reads += [
        f"if {arguments[Arg(path)]} is not {constant(examples[key.paths.index(path)])}: {otherwise}"
        for path in facts.state.objects - brought.arguments.keys()
    ]
    reads += facts.state.into.lines(constant, otherwise)
    reads += print_state(facts.state.guards, constant, otherwise, brought)
    numbers: dict[Slot, str] = {slot: names.fresh(slot.path) for slot, _ in facts.numbers}
    for slot, place in facts.numbers:
        reads += [
            f"{numbers[slot]} = {place.expression(constant)}",
            f"if type({numbers[slot]}) is not {slot.kind.__name__}: {otherwise}",
        ]
    reads += _print_reads(facts, arguments, captured_names, constants, constant, otherwise)
    if reads:
        lines += ["try:", *(f"    {line}" for line in reads), GONE_TEXT, f"    {otherwise}"]
    inner_names: dict[str, str] = {}
    lines += print_key_guards(key, leaf_names, captured_names, examples, constants, otherwise, names.fresh, inner_names)
    paths = dict(zip(key.paths, leaf_names, strict=True)) | {str(slot): name for slot, name in numbers.items()}
    lines += _print_conditions(joint, paths, constants, otherwise)
    variables = arguments | numbers | {c.slot: name for c, name in zip(facts.captured, captured_names, strict=True)}
    lines += [f"if {variables[slot]}.is_leaf is not {is_leaf}: {otherwise}" for slot, is_leaf in facts.leaves.items()]
    lines += [f"if {variables[slot]}.grad is not None: {otherwise}" for slot in facts.gradless]
    for targets in dict.fromkeys(facts.unrelated.values()):
        constants["lead_to"] = lead_to
        own = [slot for slot, others in facts.unrelated.items() if others == targets]
        tensors, ends = (f"[{', '.join(variables[slot] for slot in slots)}]" for slots in (own, targets))
        lines.append(f"if lead_to({tensors}, {ends}): {otherwise}")
    layered = print_statements(statements, variables, names.fresh, constants, inner_names)
    if around.grad and not key.ambient.grad_mode:
        constants["enable_grad"] = torch.enable_grad
        layered = ["with enable_grad():", *(f"    {line}" for line in layered)]
    layered = _tentative(layered, statements, joint, variables, constants)
    if facts.state.runs_again and (written := facts.state.written):
        layered.insert(0, f"{constant(require_not_put_back)}({constant(written)})")
    if donation is not None:
        constants["donation"] = donation
        tensors = "".join(f"{variables[slot]}, " for slot in donation.slots).rstrip()
        layered = [f"donated = ({tensors})", f"{tensors} = donation.take(*donated)", *layered]
        layered.append(f"donation.end(donated, ({tensors}))")
    made: dict[Any, str] = dict(variables)
    layered += print_effects(facts.state.written, made, constants, constant)
    if facts.state.late.left and isinstance(kernel, Differentiable):
        layered.append("kernel.note_left()")
    lines += layered
    if not around.is_pure:
        constants["lock"] = lock
        lines[locked:] = ["with lock:", *(f"    {line}" for line in lines[locked:])]
    # not while it holds the lock: what it is printed to may wait for another call
    lines += print_effects(facts.state.printed, made, constants, constant)
    results: list[str] = []
    for i, leaf in enumerate(joint.returned.leaves):
        if not isinstance(leaf, Constant):
            results.append(variables[leaf])
        elif isinstance(leaf.value, NewObject):
            results.append(made[leaf.value])
        elif id(leaf.value) in brought.parts:
            results.append(constant(leaf.value))
        else:
            constants[f"result_{i}"] = leaf.value
            results.append(f"result_{i}")
    lines.append(f"return {print_unflatten(joint.returned.tree, iter(results), constants)}")
    text = "def call(args, kwargs):\n" + "".join(f"    {line}\n" for line in lines)
    return Source("call", "python", text, constants)


def _print_conditions(joint: Joint, name_of: Mapping[str, str], constants: dict[str, Any], otherwise: str) -> list[str]:
    """Lines that ask the conditions on numbers and sizes. Those on sizes depend on nothing else: where they are
    many, they are asked once of the same sizes."""
    of_sizes, of_numbers = ([], []) if joint.sizes is None else (joint.sizes.guards, joint.sizes.guards_of_numbers)
    again = [*joint.guards, *of_numbers, *(of_sizes if len(of_sizes) <= _FEW else ())]
    lines = _asked(symbol_values(again, joint.symbols, name_of), joint, constants, otherwise)
    if joint.sizes is None or len(of_sizes) <= _FEW:
        return lines
    constants["fits"] = _Fits()
    mentioned = symbols_in(" ".join(of_sizes))
    asked_of = [symbol for symbol in joint.sizes.symbols if symbol in mentioned]
    once = [*_asked(of_sizes, joint, constants, otherwise), "fits.add(sizes)"]
    return [*lines, f"sizes = ({', '.join(asked_of)},)", "if sizes not in fits:", *(f"    {line}" for line in once)]


def _asked(conditions: Sequence[str], joint: Joint, constants: dict[str, Any], otherwise: str) -> list[str]:
    if not conditions:
        return []
    constants.update(math=math, torch=torch)
    checks = [f"    if not ({c}): {otherwise}{_comment(c, joint)}" for c in conditions]
    return ["try:", *checks, f"except (ArithmeticError, ValueError): {otherwise}"]


class _Fits(set[tuple[int, ...]]):
    """Sizes of which all conditions were found to hold, a few of them."""

    def add(self, sizes: tuple[int, ...]) -> None:
        if len(self) >= _MOST_SIZES:
            self.clear()
        super().add(sizes)


def _tentative(
    lines: list[str],
    statements: Sequence[Statement],
    joint: Joint,
    variables: Mapping[Slot, str],
    constants: dict[str, Any],
) -> list[str]:
    """The lines of the kernel and what is around it, so that nothing has happened where the program turns out to be
    for another call."""
    if not joint.reads and not joint.may_be_caught:
        return lines
    before = list(itertools.takewhile(lambda s: not isinstance(s, Run), statements))
    touched = [slot for s in before if isinstance(s, Bump) for slot in s.slots]
    touched += [s.effect.target for s in before if isinstance(s, Do)]
    outer = dict.fromkeys(of for slot in touched for of in (slot.of if isinstance(slot, Base) else (slot,)))
    drawn = joint.drawn_tentatively
    if not (outer or drawn):
        return lines
    constants.update(Tentative=Tentative, drawn=tuple(drawn), may_be_caught=joint.may_be_caught)
    tensors = "".join(f"{variables[slot]}, " for slot in outer)
    return [f"with Tentative(({tensors.rstrip()}), drawn, may_be_caught):", *(f"    {line}" for line in lines)]


def _comment(condition: str, joint: Joint) -> str:
    """What the symbols of a condition are sizes of."""
    about = "" if joint.sizes is None else joint.sizes.named(condition)
    return f"  # {elided(about, 100)}" if about not in ("", condition) else ""


def build_call(source: Source) -> Call:
    """The function a printed call defines: ``call(args, kwargs)``."""
    function: Call = compile_function(source)
    return function


def called_alone(
    name: str,
    call: Call,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    reads: Sequence[Read],
    differences: Callable[[], Sequence[str]],
    otherwise: str,
    fix: str,
) -> Any:
    """The result of a program that is called itself, where nothing else is compiled. Raises ``ArgumentError``, with the
    ``differences`` to calls that it is for (``otherwise``, where none is found), for a call that it is not for."""
    try:
        result = call(*given)
        reasons = differences() if result is MISS else ()
    except PathMiss as miss:
        result = MISS
        reasons = [f"Python read {reads[miss.read].value!r} of a tensor, now it is {miss.value!r}"]
    if result is MISS:
        what = "; ".join(reasons) or otherwise
        raise ArgumentError(f"this program of {name} is not for this call: {what}", fix=fix)
    return result


def _print_arguments(tree: Tree, leaf_names: list[str], constants: dict[str, Any], otherwise: str) -> list[str]:
    assert isinstance(tree, Node)
    positional, keywords = tree.children
    n = count(positional)
    lines = print_flatten(positional, "args", leaf_names[:n], constants, otherwise)[1:]  # args is always a tuple
    if count(keywords) or keywords.children:  # type: ignore[union-attr]
        return lines + print_flatten(keywords, "kwargs", leaf_names[n:], constants, otherwise)[1:]
    return [*lines, f"if kwargs: {otherwise}"]


def _print_reads(
    facts: Facts,
    leaf_names: Mapping[Slot, str],
    captured_names: Sequence[str],
    constants: dict[str, Any],
    constant: NameOf,
    otherwise: str,
) -> list[str]:
    """Lines that read the captured tensors from where they live; each must live in all the places in which it was."""
    lines: list[str] = []
    name_of: dict[Slot, str] = {
        captured.slot: name for name, captured in zip(captured_names, facts.captured, strict=True)
    }
    for name, captured in zip(captured_names, facts.captured, strict=True):
        if isinstance(captured.origin, Place):
            lines.append(f"{name} = {captured.origin.expression(constant)}")
        elif isinstance(captured.origin, GradientOf):
            lines.append(f"{name} = {name_of.get(captured.origin.slot) or leaf_names[captured.origin.slot]}.grad")
        else:
            constants[f"tensor_{name}"] = captured.tensor
            lines.append(f"{name} = tensor_{name}")
    tensors = [*(leaf_names[slot] for slot, _, _ in facts.inputs if slot in leaf_names), *captured_names]
    inputs = ", ".join([*tensors, *facts.one])
    if facts.apart:
        lines.append(f"if not {constant(facts.apart)}.isdisjoint(map(id, [{inputs}])): {otherwise}")
    for place in facts.apart_from if inputs else ():
        lines.append(f"if id({place.expression(constant)}) in map(id, [{inputs}]): {otherwise}")
    return [
        *lines,
        *(
            f"if {place.expression(constant)} is not {name_of.get(slot) or leaf_names[slot]}: {otherwise}"
            for place, slot in facts.also
        ),
    ]


_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu", "hpu")
_PREFIXES = ("static_", "type_", "tensor_", "constant_", "asked_", "op_", "result_", *(f"{d}_" for d in _DEVICES))
"""Beginnings of the names of constants; a leaf of such a name gets another one."""


class _Names:
    """Fresh variable names that read like what they hold."""

    def __init__(self, taken: Iterable[str]) -> None:
        own = "args kwargs value own keys ambient holds sizes donated".split()  # other variables of a printed call
        dtypes = {str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)}
        self._used = {*taken, *own, *dir(builtins), *dtypes, *_DEVICES}
        self.given = set[str]()

    def fresh(self, like: str) -> str:
        base = re.sub(r"[\W_]+", "_", like).strip("_") or "value"
        if not base.isidentifier() or base.startswith(_PREFIXES):
            base = f"v_{base}"
        name, i = base, 1
        while name in self._used or not name.isidentifier() or keyword.iskeyword(name):
            name, i = f"{base}_{i}", i + 1
        self._used.add(name)
        self.given.add(name)
        return name
