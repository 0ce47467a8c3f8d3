"""The printed call: one flat function that takes the arguments apart, checks that a program fits, runs its kernel, and
puts the result together. Ten leaves cost some 12 µs this way; generic tree walks and guard objects cost ten times that.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..backends.backend import Runnable
from ..capture.facts import Facts
from ..capture.origins import GradientOf, Origin
from ..graphs import Constant, Joint
from ..layers.layer import Layer
from ..layers.printing import print_layers
from ..slots import Arg, Signature, Slot
from ..source import Source, compile_function
from ..trees import Node, Tree, count, print_flatten, print_unflatten
from .key import CallKey, print_guards, symbol_values
from .program import Watched, WatchedModule

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS: Any = _Miss()
"""What a printed call returns when its program does not fit the arguments."""


def print_call(
    key: CallKey,
    examples: Sequence[Any],
    facts: Facts,
    outer: Signature,
    layers: tuple[Layer, ...],
    joint: Joint,
    kernel: Runnable,
    root: Any,
    watched: Sequence[Watched],
    modules: Sequence[WatchedModule],
) -> Source:
    """The whole call as one flat function: take apart, compare with the key, run the kernel, put together.

    ``examples`` are the leaves, then the captured tensors, of a call it is for; ``outer`` names what goes in and out of the layers.
    It returns ``MISS`` where the program does not fit.
    """
    names = _Names(() if joint.sizes is None else joint.sizes.symbols)
    constants: dict[str, Any] = {"MISS": MISS, "kernel": kernel, "root": root}
    otherwise = "return MISS"
    leaf_names = [names.fresh(path) for path in key.paths]
    captured_names = [names.fresh(str(c.slot)) for c in facts.captured]
    lines = _print_arguments(key.tree, leaf_names, constants, otherwise)
    arguments: dict[Slot, str] = {Arg(path): name for path, name in zip(key.paths, leaf_names, strict=True)}
    chains = _Chains(names)
    reads = _print_reads(facts, arguments, captured_names, watched, modules, chains, constants, otherwise)
    if reads:
        gone = "except (AttributeError, KeyError, IndexError, ValueError):"
        lines += ["try:", *(f"    {line}" for line in reads), gone, f"    {otherwise}"]
    inner_names: dict[str, str] = {}
    lines += print_guards(key, leaf_names, captured_names, examples, constants, otherwise, names.fresh, inner_names)
    for condition in symbol_values(joint.conditions, joint.symbols, dict(zip(key.paths, leaf_names, strict=True))):
        constants.update(math=math, torch=torch)
        lines.append(f"if not ({condition}): {otherwise}")
    variables = arguments | {c.slot: name for c, name in zip(facts.captured, captured_names, strict=True)}
    lines += [f"if {variables[slot]}.grad is not None: {otherwise}" for slot in facts.gradless]
    layered = print_layers(layers, outer, variables, "kernel", names.fresh, constants, facts.differentiable, inner_names)
    if any(layer.effects for layer in layers):  # what is read, computed and written back is one step to other threads
        constants["lock"] = threading.RLock()
        layered = ["with lock:", *(f"    {line}" for line in layered)]
    lines += layered
    results: list[str] = []
    for i, leaf in enumerate(joint.returned.leaves):
        if isinstance(leaf, Constant):
            constants[f"result_{i}"] = leaf.value
        results.append(f"result_{i}" if isinstance(leaf, Constant) else variables[leaf])
    lines.append(f"return {print_unflatten(joint.returned.tree, iter(results), constants)}")
    text = "def call(args, kwargs):\n" + "".join(f"    {line}\n" for line in lines)
    return Source("call", "python", text, constants)


def build_call(source: Source) -> Call:
    """The function a printed call defines: ``call(args, kwargs)``."""
    function: Call = compile_function(source)
    return function


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
    watched: Sequence[Watched],
    modules: Sequence[WatchedModule],
    chains: _Chains,
    constants: dict[str, Any],
    otherwise: str,
) -> list[str]:
    """Lines that read everything the function closes over from where it lives, and compare what was baked in."""
    origins = [c.origin for c in facts.captured] + [w.origin for w in watched] + [m.origin for m in modules]
    chains.plan([o.steps for o in origins if isinstance(o, Origin)])
    lines: list[str] = []
    name_of: dict[Slot, str] = {captured.slot: name for name, captured in zip(captured_names, facts.captured, strict=True)}
    for name, captured in zip(captured_names, facts.captured, strict=True):
        if isinstance(captured.origin, Origin):
            lines += chains.read(captured.origin.steps, name)
        elif isinstance(captured.origin, GradientOf):
            lines.append(f"{name} = {name_of.get(captured.origin.slot) or leaf_names[captured.origin.slot]}.grad")
        else:
            constants[f"tensor_{name}"] = captured.tensor
            lines.append(f"{name} = tensor_{name}")
    for i, constant in enumerate(watched):
        lines += chains.read(constant.origin.steps, "value")
        constants[f"constant_{i}"] = constant.value
        lines.append(_print_holds("value", f"constant_{i}", otherwise))
    for i, module in enumerate(modules):
        constants[f"module_{i}"] = module.module
        if isinstance(module.origin, Origin):
            lines += chains.read(module.origin.steps, "value")
            lines.append(f"if value is not module_{i}: {otherwise}")
        constants |= {f"state_{i}_{j}": value for j, value in enumerate(module.state.values())}
        lines.append(f"own = module_{i}.__dict__")
        lines += [_print_holds(expression, f"state_{i}_{j}", otherwise) for j, expression in enumerate(module.state)]
        for table, key, slot in module.tensors:
            lines.append(f"if own[{table!r}][{key!r}] is not {name_of[slot]}: {otherwise}")
    return lines


def _print_holds(expression: str, constant: str, otherwise: str) -> str:
    """A line that compares with what was baked in: nearly always it is the very object, which costs no call."""
    return f"if {expression} is not {constant} and not holds({constant}, {expression}): {otherwise}"


class _Chains:
    """Prints chains of attribute and item reads from ``root``, each shared beginning once."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._shared: set[tuple[str, ...]] = set()
        self._known: dict[tuple[str, ...], str] = {(): "root"}

    def plan(self, chains: Sequence[tuple[str, ...]]) -> None:
        seen: set[tuple[str, ...]] = set()
        for chain in chains:
            for end in range(1, len(chain)):
                prefix = chain[:end]
                (self._shared if prefix in seen else seen).add(prefix)

    def read(self, chain: tuple[str, ...], target: str) -> Iterator[str]:
        start = max((p for p in self._known if chain[: len(p)] == p), key=len)
        for end in range(len(start) + 1, len(chain)):
            if chain[:end] in self._shared:
                name = self._names.fresh("at")
                yield f"{name} = {self._known[start]}{''.join(chain[len(start) : end])}"
                self._known[chain[:end]] = name
                start = chain[:end]
        yield f"{target} = {self._known[start]}{''.join(chain[len(start) :])}"


_DEVICES = ("cpu", "cuda", "meta", "mps", "xpu", "hpu")
_PREFIXES = ("static_", "type_", "tensor_", "constant_", "op_", "module_", "state_", "result_", *(f"{d}_" for d in _DEVICES))
"""Beginnings of the names of constants; a leaf of such a name gets another one."""


class _Names:
    """Fresh variable names that read like what they hold."""

    def __init__(self, taken: Iterable[str]) -> None:
        own = "args kwargs root kernel lock value own seen MISS Tensor keys ambient AMBIENT family_of history holds"
        own += " autocast enable_grad no_grad below_autograd as_strided bump_version versions_kept with_history_of with_dead_end"
        own += " overwrite Size"
        dtypes = {str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)}
        self._used = {*taken, *own.split(), *dir(builtins), *dtypes, *_DEVICES, "math"}

    def fresh(self, like: str) -> str:
        base = re.sub(r"[\W_]+", "_", like).strip("_") or "value"
        if not base.isidentifier() or base.startswith(_PREFIXES):
            base = f"v_{base}"
        name, i = base, 1
        while name in self._used or not name.isidentifier() or keyword.iskeyword(name):
            name, i = f"{base}_{i}", i + 1
        self._used.add(name)
        return name
