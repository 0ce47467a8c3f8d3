"""The call key: everything a program depends on besides tensor values. Two calls with equal keys share a program.

A key is data (``CallKey``), compared and explained part by part on a miss; ``key_guards`` writes the same comparison as
straight-line Python for the hot path.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import evolve, fields, frozen
from torch import Tensor

from ..autograd_state import family_of
from ..capture.autocast import Autocast, autocast_now
from ..capture.facts import Facts
from ..capture.hidden import Itself, comparable
from ..capture.inputs import Inputs, Symbolic
from ..capture.memory import history
from ..capture.questions import answer_of
from ..errors import ArgumentError
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..slots import Captured
from ..state.places import Place
from ..state.unread import KINDS as UNREAD
from ..state.unread import is_unread
from ..state.values import is_plain
from ..subclasses import with_inner
from ..symbolic.sizes import Sizes
from ..torch_private.modes import function_modes
from ..torch_private.operators import sdpa_flags
from ..torch_private.tensors import (
    dispatch_bits,
    is_wrapper_subclass,
    storage_id,
)
from ..trees import LEAF, Node, Tree, differences, flatten, keyword_names
from .holds import holds, still_answers

Dim = int | str
"""A size or a stride; where it is symbolic, as Python over the symbols' names."""


@frozen
class TensorSpec:
    """What a program knows of an input tensor. ``bits`` tell plain, subclass, conjugated, inference, … apart."""

    dtype: torch.dtype
    device: torch.device
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    requires_grad: bool
    bits: int

    @staticmethod
    def of(t: Tensor) -> TensorSpec:
        return TensorSpec(t.dtype, t.device, tuple(t.shape), tuple(t.stride()), t.requires_grad, dispatch_bits(t))

    def sized(self, sizes: Mapping[str, int]) -> TensorSpec:
        """The same with numbers for symbols."""
        shape, stride = (
            tuple(eval(n, {}, dict(sizes)) if isinstance(n, str) else n for n in dims)
            for dims in (self.shape, self.stride)
        )
        return evolve(self, shape=shape, stride=stride)

    def symbols(self) -> Iterator[tuple[str, str]]:
        """The symbols that stand for sizes, each with where the size is: ``("s0", "shape[1]")``; then those that stand
        for strides which do not follow from sizes."""
        yield from ((n, f"shape[{d}]") for d, n in enumerate(self.shape) if isinstance(n, str))
        own = ((d, n) for d, n in enumerate(self.stride) if isinstance(n, str) and n.isidentifier())
        yield from ((n, f"stride({d})") for d, n in own if n not in self.shape)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{_dims(self.shape)} on {self.device}"


@frozen(eq=False)
class StaticSpec:
    """A value baked into the program (see ``holds``), or a copy of it where it is a list or a dict, which its owner
    may change."""

    value: Any

    @staticmethod
    def of(value: Any) -> StaticSpec:
        return StaticSpec(_copied(value))

    @property
    def object(self) -> Any:
        return self.value.value if isinstance(self.value, Itself) else self.value

    def __str__(self) -> str:
        return repr(self.value)


@frozen
class DynamicSpec:
    """An argument that may be any of its type, but for guards: a float or an int, traced as a symbol, an object of
    which each call brings another one, or what the function does not read."""

    kind: type = float
    is_read: bool = True
    """Else it may be any of its type, as the function does not look at it."""

    @property
    def is_number(self) -> bool:
        return self.kind in (float, int)

    @property
    def is_object(self) -> bool:
        return self.is_read and not self.is_number

    def __str__(self) -> str:
        return f"any {self.kind.__name__}"


@frozen
class SubclassSpec:
    """What a program knows of a wrapper subclass: its type, how it looks to autograd, its metadata, what it is made
    of."""

    kind: type
    outer: TensorSpec
    flattened: StaticSpec
    inner: tuple[tuple[str, LeafSpec], ...]

    @staticmethod
    def of(t: Tensor, path: str) -> SubclassSpec:
        names, _ = flattened = t.__tensor_flatten__()  # type: ignore[attr-defined]
        inner = tuple((name, spec_of(getattr(t, name), f"{path}.{name}")) for name in names)
        return SubclassSpec(type(t), TensorSpec.of(t), StaticSpec.of(flattened), inner)

    def __str__(self) -> str:
        return f"{self.kind.__name__} of {self.outer}"


LeafSpec = TensorSpec | SubclassSpec | StaticSpec | DynamicSpec


class Ambient(NamedTuple):
    """Global state a trace depends on."""

    grad_mode: bool
    inference_mode: bool
    autocast: Autocast
    deterministic: bool
    default_dtype: torch.dtype
    attention_kernels: tuple[bool, ...]
    function_modes: tuple[object, ...]

    @staticmethod
    def now() -> Ambient:
        return Ambient._make(ambient())


def ambient() -> tuple[Any, ...]:
    """The fields of ``Ambient``, as a plain tuple (what a hot call compares)."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast_now(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        sdpa_flags(),
        function_modes(),
    )


@frozen(repr=False)
class CallKey(Shown):
    """The structure and the leaves of the arguments, which of them share memory, and the ambient state.

    ``aliasing`` says which tensors (arguments, then captured) are one object or share memory, where in it they lie, and
    whether autograd knows (``aliasing``): programs for inputs that alias differently are different programs.
    ``histories`` is how autograd knows the tensors the function writes to, ``asked`` what the function asked of tensors
    besides (``capture/questions.py``).
    """

    names: tuple[str, ...]
    tree: Tree
    paths: tuple[str, ...]
    leaves: tuple[LeafSpec, ...]
    captured: tuple[tuple[str, LeafSpec], ...]
    aliasing: tuple[tuple[Any, ...], ...]
    ambient: Ambient
    histories: tuple[tuple[str, str], ...] = ()
    asked: tuple[tuple[str, str, Any], ...] = ()

    def doc(self) -> Doc:
        specs = [*zip(self.paths, self.leaves, strict=True), *self.captured]
        names = dict(
            reversed(
                [
                    (n, f"{path}.{at}")
                    for path, spec in specs
                    if isinstance(spec, TensorSpec)
                    for n, at in spec.symbols()
                ]
            )
        )
        rows = [(path, re.sub(r"\bs\d+\b", lambda s: names.get(s[0], s[0]), str(spec))) for path, spec in specs]
        rows += [(name, str(value)) for name, value in self.ambient._asdict().items()]
        count = f"{len(self.leaves)} arguments" + (f", {len(self.captured)} captured tensors" if self.captured else "")
        return Doc(f"key: {count}", (Table(("", ""), tuple(rows), "what a call must be like"),))


def _dims(dims: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def with_sizes(key: CallKey, sizes: Sizes | None, same: Mapping[str, str]) -> CallKey:
    """The key of a call, with symbols for sizes that are symbols. ``same``: where the tensor that is given in a place
    was given first."""

    def with_symbols(path: str, spec: LeafSpec) -> LeafSpec:
        first = same.get(path, path)
        if sizes is None or first not in sizes.inputs or not isinstance(spec, TensorSpec):
            return spec
        shape, stride = (tuple(n if isinstance(n, int) else repr(n) for n in dims) for dims in sizes.inputs[first])
        return evolve(spec, shape=shape, stride=stride)

    given = zip(key.paths, key.leaves, strict=True)
    captured = ((name, spec if name in key.paths else with_symbols(name, spec)) for name, spec in key.captured)
    return evolve(key, leaves=tuple(itertools.starmap(with_symbols, given)), captured=tuple(captured))


def sizes_in(key: CallKey, call: CallKey) -> dict[str, int]:
    """What the symbols of a program's key are in a call."""
    found: dict[str, int] = {}
    now_captured = dict(call.captured)
    captured = [(spec, now_captured.get(name)) for name, spec in key.captured]
    for spec, now in [*zip(key.leaves, call.leaves, strict=False), *captured]:
        if isinstance(spec, TensorSpec) and isinstance(now, TensorSpec) and len(spec.shape) == len(now.shape):
            for name, value in zip((*spec.shape, *spec.stride), (*now.shape, *now.stride), strict=True):
                if isinstance(name, str) and name.isidentifier():  # a stride may be made of sizes, which come first
                    found.setdefault(name, value)  # type: ignore[arg-type]
    return found


def spec_of(value: Any, path: str) -> LeafSpec:
    """The part of the key for one leaf. Raises ``ArgumentError`` for a value that is neither tensor nor comparable."""
    if is_unread(value):
        return DynamicSpec(value.__class__, is_read=False)
    if isinstance(value, Tensor):
        return SubclassSpec.of(value, path) if is_wrapper_subclass(value) else TensorSpec.of(value)
    if isinstance(value, Symbolic):
        return DynamicSpec(type(value.value))
    if isinstance(value, np.ndarray):
        raise ArgumentError(
            f"a NumPy {type(value).__name__} is neither a tensor nor a static value",
            where=path,
            fix="convert it: torch.from_numpy(x)",
        )
    return StaticSpec.of(comparable(value))


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(v) for key, v in value.items()} if type(value) is dict else value


def aliasing(tensors: Sequence[Tensor], anyhow: Collection[int] | None) -> tuple[tuple[Any, ...], ...]:
    """For each tensor: the first that is over the same memory, and if it is an object that came before, which; else, if
    there are other objects, the first of the same family (views of one tensor, as autograd knows them), which one is
    the family's base (-1: none of them), its own offset, and how the base lies and is tracked. Of those that may lie
    ``anyhow`` in their memory (by identity; None: all may), none of the latter, but which one it is itself."""
    memory = [storage_id(t) for t in tensors]
    objects: dict[int, set[int]] = {}
    for storage, t in zip(memory, tensors, strict=True):
        objects.setdefault(storage, set()).add(id(t))
    pattern: list[tuple[Any, ...]] = []
    for i, t in enumerate(tensors):
        first = memory.index(memory[i])
        same = next(j for j, other in enumerate(tensors) if other is t)
        if same != i:
            pattern.append((first, same))
            continue
        if len(objects[memory[i]]) == 1:
            pattern.append((i,))
            continue
        if anyhow is None or id(t) in anyhow:
            pattern.append((first, i))
            continue
        base = family_of(t)
        family = next(j for j, other in enumerate(tensors) if family_of(other) is base)
        itself = next((j for j, other in enumerate(tensors) if other is base), -1)
        lies = (tuple(base.shape), base.stride(), int(base.storage_offset()), base.requires_grad, base.is_leaf)
        pattern.append((first, same, family, itself, int(t.storage_offset()), lies))
    return tuple(pattern)


def key_of(inputs: Inputs, captured: Sequence[tuple[Captured, Tensor]], facts: Facts) -> CallKey:
    """The key of a call with these inputs, of a function that closes over ``captured`` and does what facts say."""
    paths = tuple(slot.path for slot in inputs.slots)
    brought = facts.state.brought.arguments
    leaves = tuple(
        DynamicSpec(brought[path]) if type(leaf) is brought.get(path) else spec_of(leaf, path)
        for leaf, path in zip(inputs.leaves, paths, strict=True)
    )
    outer = [leaf for leaf in inputs.leaves if isinstance(leaf, Tensor)] + [t for _, t in captured]
    tensors = [t for one in outer for t in with_inner(one)]
    specs = tuple((str(slot), spec_of(t, str(slot))) for slot, t in captured)
    values = dict(zip(inputs.slots, inputs.leaves, strict=True)) | dict(captured)
    histories = tuple(
        (str(slot), history(values[slot])) for slot in facts.histories if isinstance(values.get(slot), Tensor)
    )
    known = [(a, values[a.slot]) for a in facts.asked if isinstance(values.get(a.slot), Tensor)]
    asked = tuple((str(a.slot), a.question, answer_of(a.question, t)) for a, t in known)
    anyhow = {id(values[s]) for group in facts.neighbours if facts.lie_anyhow(group) for s in group if s in values}  # type: ignore[index]
    aliases = aliasing(tensors, anyhow)
    return CallKey(inputs.names, inputs.tree, paths, leaves, specs, aliases, Ambient.now(), histories, asked)


def flatten_call(
    names: Sequence[str], static: Collection[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[str], Tree]:
    """The leaves of a call, their paths, and the structure of ``(args, kwargs)``. A static argument is one leaf,
    whatever it is."""
    leaves, paths, children = list[Any](), list[str](), list[Tree]()
    for name, arg in zip((*names, *keyword_names(names, kwargs)), (*args, *kwargs.values()), strict=True):
        own, tree, own_paths = ([arg], LEAF, [name]) if name in static else flatten(arg, name)
        leaves, paths, children = leaves + own, paths + own_paths, [*children, tree]
    n = len(args)
    positional = Node(tuple, tuple(f"[{i}]" for i in range(n)), None, tuple(children[:n]))
    keywords = Node(dict, tuple(f"[{k!r}]" for k in kwargs), tuple(kwargs), tuple(children[n:]))
    return leaves, paths, Node(tuple, ("[0]", "[1]"), None, (positional, keywords))


def key_of_arguments(key: CallKey, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallKey:
    """The key of a call, where what the function closes over is as in another key."""
    assert isinstance(key.tree, Node)
    positional, keywords = key.tree.children
    assert isinstance(positional, Node) and isinstance(keywords, Node)
    called = *key.names, *keyword_names(key.names, keywords.context)
    named = zip(called, (*positional.children, *keywords.children), strict=True)
    names = [*key.names, *(f"argument {i}" for i in range(len(key.names), len(args)))][: len(args)]
    leaves, paths, tree = flatten_call(names, {name for name, child in named if child == LEAF}, args, kwargs)
    specs = tuple(map(spec_of, leaves, paths))
    return evolve(key, names=tuple(names), tree=tree, paths=tuple(paths), leaves=specs, ambient=Ambient.now())


@frozen
class Difference:
    """One thing in which a call is not like those a program was made for: ``where`` reads as code, ``what`` says
    how."""

    where: str
    what: str
    about: str = ""
    """``"shape"``, ``"stride"`` of a tensor; ``"sizes"``: a condition on sizes alone; ``"state"``: of Python;
    ``"structure"``: of arguments; ``"value"``: of a number; ``"number"``: of one that is no symbol, of NumPy or
    complex; ``"text"``: of a text, a path or a date; ``"object"``: which one of its type it is."""
    place: Place | None = None
    """Where that value lives."""
    fixed_in: str = ""
    """Of a size, or a number, that is another than the one that was read: the line that took its value."""
    is_own: bool = False
    """Whether the program writes there itself: what it sets up in its first call is there in the next ones."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def explain(old: CallKey, new: CallKey) -> list[Difference]:
    """Which parts of two keys differ; empty if none does."""
    found = [
        Difference(_shown(p, new.names), f"structure was {a}, now {b}", "structure")
        for p, a, b in differences(old.tree, new.tree, "")
    ]
    sizes = sizes_in(old, new)
    if not found:
        for path, a, b in zip(old.paths, old.leaves, new.leaves, strict=True):
            found += _explain_leaf(path, _with_numbers(a, b, sizes), b)
    was, now = dict(old.captured), dict(new.captured)
    for name in was.keys() & now.keys():
        found += _explain_leaf(name, _with_numbers(was[name], now[name], sizes), now[name])
    if not found and old.aliasing != new.aliasing:
        found.append(Difference("aliasing", "other inputs share memory than before"))
    known = dict(new.histories)
    found += [
        Difference(path, f"was {was}, now {known[path]}") for path, was in old.histories if known.get(path, was) != was
    ]
    answers = {(path, question): answer for path, question, answer in new.asked}
    for path, question, was in old.asked:
        now_is = answers.get((path, question), was)
        if not still_answers(was, now_is):
            found.append(Difference(path, f"{question.format('it')} was {was!r}, now {now_is!r}"))
    for name, x, y in zip(Ambient._fields, old.ambient, new.ambient, strict=True):
        if x != y:
            found.append(Difference(name.replace("_", " "), f"was {x}, now {y}"))
    return found


def _shown(path: str, names: Sequence[str]) -> str:
    """``params['w']`` for the path ``[0][0]['w']`` in ``(args, kwargs)``."""
    match = re.match(r"\[0\]\[(\d+)\]|\[1\]\['(\w+)'\]", path)
    if not match:
        return "keyword arguments" if path.startswith("[1]") else "positional arguments"
    return (match[2] or names[int(match[1])]) + path[match.end() :]


def _with_numbers(spec: LeafSpec, now: LeafSpec, sizes: Mapping[str, int]) -> LeafSpec:
    comparable = isinstance(spec, TensorSpec) and isinstance(now, TensorSpec) and len(spec.shape) == len(now.shape)
    return spec.sized(sizes) if comparable else spec  # type: ignore[union-attr]


def _about(was: Any, now: Any) -> str:
    if {type(was), type(now)} <= {int, float}:
        return "value"
    if type(was) is type(now) and type(was) in UNREAD:
        return "text"
    if isinstance(was, Number) and isinstance(now, Number) and not isinstance(now, (bool, np.bool_)):
        return "number"
    return "object" if type(was) is type(now) and not is_plain(was) else ""


def _explain_leaf(path: str, a: LeafSpec, b: LeafSpec) -> Iterator[Difference]:
    if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
        for f in fields(TensorSpec):
            x, y = getattr(a, f.name), getattr(b, f.name)
            if x != y:
                kind = "tensor kind (subclass, layout, conjugation, inference)"
                about = f.name if f.name in ("shape", "stride") else ""
                yield Difference(path, kind if f.name == "bits" else f"{f.name} was {x}, now {y}", about)
    elif isinstance(a, SubclassSpec) and isinstance(b, SubclassSpec) and a.kind is b.kind:
        if not holds(a.flattened.value, b.flattened.value):
            yield Difference(path, f"metadata was {a.flattened}, now {b.flattened}")
            return
        yield from _explain_leaf(path, a.outer, b.outer)
        for (name, own), (_, other) in zip(a.inner, b.inner, strict=True):
            yield from _explain_leaf(f"{path}.{name}", own, other)
    elif isinstance(a, SubclassSpec) or isinstance(b, SubclassSpec):
        yield Difference(path, f"was {a}, now {b}")
    elif isinstance(a, StaticSpec) and isinstance(b, StaticSpec):
        if not holds(a.value, b.value):
            yield Difference(path, f"value was {a}, now {b}", _about(a.value, b.value))
    elif type(a) is not type(b) and not (
        isinstance(a, DynamicSpec) and isinstance(b, StaticSpec) and type(b.value) is a.kind
    ):
        yield Difference(path, f"was {a}, now {b}")
