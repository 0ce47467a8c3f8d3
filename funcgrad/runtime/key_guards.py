"""The comparison of a call with a key, printed as straight-line Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..autograd_state import family_of
from ..capture.memory import history
from ..capture.questions import ABSENT, IS_PARAMETER
from ..torch_private.levels import is_dead, unwrap_dead
from ..torch_private.tensors import (
    STORAGE_ID,
    dispatch_keys,
    is_transform_wrapper,
    looks_like,
    storage_id,
)
from .holds import holds, still_answers
from .key import CallKey, Dim, DynamicSpec, SubclassSpec, TensorSpec, ambient


def print_key_guards(
    key: CallKey,
    names: Sequence[str],
    captured_names: Sequence[str],
    examples: Sequence[Any],
    constants: dict[str, Any],
    otherwise: str,
    fresh: Callable[[str], str],
    inner_names: MutableMapping[str, str],
) -> list[str]:
    """Python lines that run ``otherwise`` unless the variables ``names`` (leaves) and ``captured_names`` fit the key.

    ``examples`` are values that do: tensors that look like them need no second look.

    Objects the lines refer to are added to ``constants``. Inner tensors get ``fresh`` names, which are added to
    ``inner_names`` by the expression they stand for.
    """
    constants.update(keys=dispatch_keys, ambient=ambient, holds=holds, AMBIENT=key.ambient)
    constants.update(Tensor=Tensor, Parameter=Parameter)
    wrapped = any(isinstance(v, Tensor) and is_transform_wrapper(v) for v in examples)
    memory_of = "storage_id({})" if wrapped else STORAGE_ID
    constants.update(storage_id=storage_id, unwrap_dead=unwrap_dead)
    lines = [f"if ambient() != AMBIENT: {otherwise}"]
    tensors: list[str] = []
    variables = [*names, *captured_names]
    pending = list(zip(variables, variables, [*key.leaves, *(s for _, s in key.captured)], strict=True))
    plain = {name: spec for name, _, spec in pending if isinstance(spec, TensorSpec)}
    symbolic = {name: list(spec.symbols()) for name, spec in plain.items()}
    places: dict[str, str] = {}
    compared: list[str] = []
    for name, own in symbolic.items():
        new = [
            (symbol, f"{name}.{where}")
            for symbol, where in own
            if places.setdefault(symbol, f"{name}.{where}") == f"{name}.{where}"
        ]
        if new:
            compared.append(
                f"if not isinstance({name}, Tensor) or {name}.dim() != {len(plain[name].shape)}: {otherwise}"
            )
            compared += [f"{symbol} = {where}" for symbol, where in new]
    known = dict(zip(variables, examples, strict=True))
    at_level = [n for n, v in known.items() if isinstance(v, Tensor) and is_transform_wrapper(v)]
    # a tensor of a level that has ended is what it wraps, and stays one
    ended = {n: f" or unwrap_dead({n}) is{' not' * (not is_dead(known[n]))} {n}" for n in at_level}
    differs = {name: _tensor_differs(name, spec, constants) + ended.get(name, "") for name, spec in plain.items()}
    compared += [f"if {condition}: {otherwise}" for condition in differs.values()]
    named = dict(zip([*key.paths, *(name for name, _ in key.captured)], [*names, *captured_names], strict=True))
    asked = [(named[where], question, answer) for where, question, answer in key.asked]
    of_kind = [(name, answer) for name, question, answer in asked if question == IS_PARAMETER and name in plain]
    compared += [f"if {IS_PARAMETER.format(name)} != {answer!r}: {otherwise}" for name, answer in of_kind]
    if plain and not wrapped and not key.ambient.inference_mode:  # inside it inference tensors look like all others
        compared = _after_a_quick_look(known, plain, places, compared, constants, otherwise)
    lines += compared
    while pending:
        name, expression, spec = pending.pop(0)
        if isinstance(spec, TensorSpec):
            tensors.append(name)
            if name not in plain:
                lines.append(f"if {_tensor_differs(name, spec, constants)}: {otherwise}")
        elif isinstance(spec, SubclassSpec):
            constants |= {f"type_{name}": spec.kind, f"static_{name}": spec.flattened.value}
            differs_in = _tensor_differs(name, spec.outer, constants, f"is not type_{name}")
            lines.append(f"if {differs_in}: {otherwise}")
            lines.append(f"if not holds(static_{name}, {name}.__tensor_flatten__()): {otherwise}")
            inner = [(fresh(f"{name}_{attr}"), f"{expression}.{attr}", own) for attr, own in spec.inner]
            lines += [f"{own_name} = {at}" for own_name, at, _ in inner]
            inner_names.update({at: own_name for own_name, at, _ in inner})
            pending[:0] = inner
            tensors.append(name)
        elif isinstance(spec, DynamicSpec):
            lines += _kind_differs(name, spec, constants, otherwise)
        elif type(spec.value) in (bool, int, str, type(None)):
            lines.append(f"if type({name}) is not {type(spec.value).__name__} or {name} != {spec.value!r}: {otherwise}")
        else:
            constants[f"static_{name}"] = spec.value
            lines.append(f"if not holds(static_{name}, {name}): {otherwise}")
    for where, expected in key.histories:
        constants["history"] = history
        lines.append(f"if history({named[where]}) != {expected!r}: {otherwise}")
    for i, (name, question, answer) in enumerate(asked):
        if (name, answer) in of_kind and question == IS_PARAMETER:  # a quick look tells
            continue
        constants |= {f"asked_{i}": answer, "absent": ABSENT, "still_answers": still_answers}
        expression = f"({question.format(name)})"
        lines.append(f"if {expression} is not asked_{i} and not still_answers(asked_{i}, {expression}): {otherwise}")
    if len(tensors) > 1:
        memory = ", ".join(memory_of.format(t) for t in tensors)
        constants["family_of"] = family_of
        lines.append(f"if len({{{memory}}}) != {len({alone[0] for alone in key.aliasing})}: {otherwise}")
        lines += [f"if {condition}: {otherwise}" for condition in _aliases_differ(key.aliasing, tensors, memory_of)]
    return lines


def _kind_differs(name: str, spec: DynamicSpec, constants: dict[str, Any], otherwise: str) -> Iterator[str]:
    """That a value is of another type; of an object that is asked where it gets its name."""
    if not spec.is_object:
        kind = spec.kind.__name__
        if spec.kind.__module__ != "builtins":
            constants[kind := f"type_{name}"] = spec.kind
        yield f"if type({name}) is not {kind}: {otherwise}"


def _aliases_differ(pattern: Sequence[tuple[Any, ...]], names: Sequence[str], memory_of: str) -> Iterator[str]:
    """Conditions that are true where tensors do not alias as ``pattern`` says; that there are as many storages is
    known."""
    for i, (name, alias) in enumerate(zip(names, pattern, strict=True)):
        if len(alias) == 1:
            continue
        memory, same = alias[:2]
        if same != i:
            yield f"{name} is not {names[same]}"
            continue
        conditions = [f"{name} is {names[j]}" for j in range(i) if pattern[j][:2] == (memory, j)]
        if memory != i:
            conditions.append(f"{memory_of.format(name)} != {memory_of.format(names[memory])}")
        if len(alias) == 2:  # it may lie anyhow
            yield from conditions
            continue
        _, _, family, base, offset, lies = alias
        conditions.append(f"{name}.storage_offset() != {offset}")
        if base == -1 and family != i:
            conditions.append(f"{name}._base is not {names[family]}._base")
        else:
            conditions.append(f"family_of({name}) is not {name}" if base == i else f"{name}._base is not {names[base]}")
        if base == -1 and family == i:
            shape, stride, start, requires_grad, is_leaf = lies
            conditions[-1] = (
                f"{name}._base is None or {name}._base.shape != {shape} or {name}._base.stride() != {stride}"
            )
            conditions.append(
                f"{name}._base.storage_offset() != {start} or {name}._base.requires_grad is not {requires_grad}"
            )
            conditions.append(f"{name}._base.is_leaf is not {is_leaf}")
            others = [j for j in range(i) if pattern[j][0] == memory and pattern[j][2:4] == (j, -1)]
            conditions += [f"{name}._base is {names[j]}._base" for j in others]
        yield " or ".join(conditions)


def _tensor_differs(
    name: str, spec: TensorSpec, constants: dict[str, Any], is_other: str = "not in (Tensor, Parameter)"
) -> str:
    """A condition that is true where a value is no such tensor. ``is_other``: what its type is then; other subclasses
    say themselves what PyTorch does."""
    dtype = "bool_" if spec.dtype is torch.bool else str(spec.dtype).removeprefix("torch.")  # bool is Python's
    device = str(spec.device).replace(":", "_")
    constants[dtype], constants[device] = spec.dtype, spec.device
    shape, stride = map(_tuple, (spec.shape, spec.stride))
    return (
        f"type({name}) {is_other} or {name}.dtype is not {dtype} or {name}.shape != {shape} or {name}.stride() "
        f"!= {stride}"
        f" or {name}.requires_grad is not {spec.requires_grad} or {name}.device != {device} or "
        f"keys({name}).raw_repr() != {spec.bits}"
    )


def _after_a_quick_look(
    examples: Mapping[str, Any], plain: Mapping[str, TensorSpec], places: Mapping[str, str], compared: Sequence[str],
    constants: dict[str, Any], otherwise: str,
) -> list[str]:  # fmt: skip
    """The lines that compare tensors, only where one call does not find that they look like the examples, but for
    symbolic sizes."""
    first: dict[int, str] = {}  # it takes no tensor twice
    for name in plain:
        first.setdefault(id(examples[name]), name)
    asked = {name: plain[name] for name in first.values()}
    shapes, strides = ([getattr(spec, of) for spec in asked.values()] for of in ("shape", "stride"))
    constants["seen"] = looks_like([examples[name] for name in asked], shapes, strides)
    lines = [f"if not seen({', '.join(asked)}):", *(f"    {line}" for line in compared)]
    lines += [f"if {name} is not {first[id(examples[name])]}: {otherwise}" for name in plain if name not in asked]
    lines += [f"{symbol} = {where}" for symbol, where in places.items()]
    return lines + [
        f"if {differs}: {otherwise}" for name, spec in asked.items() for differs in _sizes_differ(name, spec, places)
    ]


def _sizes_differ(name: str, spec: TensorSpec, places: Mapping[str, str]) -> Iterator[str]:
    """Conditions that are true where a tensor of such a kind has other symbolic sizes and strides than what the
    symbols are."""
    for symbol, where in spec.symbols():
        if places[symbol] != f"{name}.{where}":
            yield f"{name}.{where} != {symbol}"
    if any(isinstance(n, str) for n in spec.stride):
        yield f"{name}.stride() != {_tuple(spec.stride)}"


def _tuple(dims: Sequence[Dim]) -> str:
    return f"({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''})"


def symbol_values(guards: Sequence[str], symbols: Mapping[str, str], name_of: Mapping[str, str]) -> list[str]:
    """Guards over symbols as conditions over the variables that hold the floats."""

    def variable(symbol: re.Match[str]) -> str:
        return name_of[symbols[symbol[0]]] if symbol[0] in symbols else symbol[0]

    return [re.sub(r"\b[A-Za-z_]\w*", variable, guard) for guard in guards]
