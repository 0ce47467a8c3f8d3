"""What one run has left in Python state: found by comparison with what was there, as effects, and undone. What cannot
be carried out on each call is refused."""

from __future__ import annotations

import collections
import contextvars
import copy
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import os
import pathlib
import re
import types
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import refusals
from ..errors import ContainerError
from ..slots import Stored
from ..subclasses import is_traced
from ..torch_private.tensors import is_transform_wrapper, unwrap_transform
from ..trees import LEAF, flatten
from .buffers import added, held_by, is_buffer
from .caches import keeps_traced
from .code import Mentions
from .effects import Count, Effect, Grow, Refill, Store, put_in_order, refill
from .guards import Guard, Met, members_said
from .hooks import can_be_hooked
from .names import found_on, is_hook_of_module, item_name, joined, steps_of
from .new_values import CALLED, New, NewObject, attributes_made, is_copied, is_lasting, is_new, with_plain_keys
from .output import Log, Print, Printed, effects_of
from .places import MISSING, Place
from .receivers import too_late
from .renamed import original
from .settings import Setting
from .shown import ShownValue, numbers_in
from .unread import note_stored
from .values import PLAIN, TORCH_PLAIN, keys_of, plain_key, same
from .warned import Warn
from .watch import Watch

_CONSTANT = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    re.Pattern,
    uuid.UUID,
)
_NAMED = (enum.Enum, type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, weakref.ReferenceType)
_KEPT = (*PLAIN, *TORCH_PLAIN, np.generic, *_CONSTANT, *_NAMED)
"""What may be stored as it is: nobody can tell one from another, or it is there for good."""


_MADE_OF = ("__dict__", "__code__", "__defaults__", "__kwdefaults__", "__bases__")
"""What objects, functions and classes keep in no dict, and may be given another of."""
_TURNS = 64
"""How often a loop may increase a number, for that to be found."""
_ITEM_BY_ITEM = 64
"""Items of a list that is stored, and as long as before, that are guarded one by one: numbers among them may become
inputs."""
_OF_RNN = ("_flat_weights", "_flat_weight_refs")
"""Where torch's recurrent modules keep lists of their weights, new ones whenever one is swapped
(``functional_call``)."""


class Written:
    """What one run left in Python state: ``effects``, the tensors among them by slot (``stores``), and a way back
    (``undo``).

    ``known``: maps a tensor of the trace to the real one it stands for, if that is what a place held before.
    ``varying``: the stores of numbers that are others in other calls. ``printed``: what it printed, and
    the tensors and numbers in it, ``shown``. ``inputs``: the identities of what stands for tensors that it is given.
    """

    def __init__(
        self,
        watch: Watch,
        said: Mentions,
        known: Callable[[Any], Any],
        varying: Collection[str] = (),
        printed: Sequence[Printed] = (),
        shown: Sequence[ShownValue] = (),
        inputs: Collection[int] = (),
    ) -> None:
        self._watch, self._said, self._known, self._varying = watch, said, known, varying
        self._inputs = inputs
        self.effects: list[Effect] = []
        self.stores: dict[Stored, Any] = {}
        self.firsts = set[Stored]()
        """The stores of what is itself stored in a place that held nothing, or None."""
        self.plain: dict[Stored, Any] = {}
        """What would be stores if it depended on an input."""
        self._made: dict[int, tuple[Any, NewObject]] = {}
        """By identity, objects that the run made, and what is to be made instead."""
        self.counted: set[Any] = set()
        """The identities of places whose values are only counted: no guard is needed."""
        self._back: list[Callable[[], None]] = []
        self._refused: list[tuple[str, str]] = []
        self._too_late = next(too_late(printed, watch.uses), None)
        for met in (*watch.met.values(), *watch.given_items):
            self._compare(met)
        slots = (*watch.slots.values(), *watch.given_slots)
        for place, before in (*watch.globals.values(), *watch.cells.values(), *slots):
            self._place(place, before, place.read())
        for kind, had in watch.classes.items():
            self._class(kind, had)
        for guard in watch.guards:
            is_made_of = guard.place.kind == "slot" and guard.place.key in _MADE_OF and guard.how != "shape"
            if guard.place.kind == "type" or is_made_of:
                self._made_of(guard)
        self._environment()
        for setting, before in watch.settings.items():
            self.sets(setting, before, setting.place.read())
        self.effects += [self._with_texts(effect, shown) for effect in effects_of(printed)]
        self._back.extend(c.forget for c in watch.caches if keeps_traced(c.function))

    def sets(self, setting: Setting, before: Any, now: Any) -> None:
        """A setting of the process was ``before``, and is ``now``."""
        if not same(before, now):
            self._place(setting.place, before, now)

    @property
    def numbers(self) -> dict[Stored, torch.SymInt | torch.SymFloat]:
        """The stores of what is another number in other calls."""
        stored = {**self.stores, **self.plain}
        return {slot: v for slot, v in stored.items() if isinstance(v, (torch.SymInt, torch.SymFloat))}

    def container_made(self, value: Any) -> NewObject | None:
        """A list or a dict that the run made and stored, as what is made anew on each call; None for any other."""
        _, made = self._made.get(id(value), (None, None))
        if made is None or type(value) not in (list, dict):
            return None
        made.is_shared = True
        return made

    @property
    def made(self) -> Collection[int]:
        """The identities of objects that the run made and stored."""
        return self._made.keys()

    @property
    def places(self) -> Iterator[Place]:
        """Where single values were written that are not only counted."""
        for effect in self.effects:
            if isinstance(effect, (Store, Count)) and effect.place.identity not in self.counted:
                yield effect.place

    @property
    def containers(self) -> Iterator[Any]:
        """The containers that were given other contents."""
        yield from (effect.container for effect in self.effects if isinstance(effect, (Grow, Refill)))

    @property
    def owners(self) -> Iterator[Any]:
        """What was written to, of whatever kind."""
        yield from self.containers
        yield from (effect.place.owner for effect in self.effects if isinstance(effect, (Store, Count)))

    def undo(self) -> None:
        """Everything is as it was before the run."""
        for back in reversed(self._back):
            back()
        self._back.clear()

    @property
    def is_replayable(self) -> bool:
        return not (self._refused or self._too_late)

    def require_replayable(self) -> None:
        """Raise ``MutationError`` for what cannot be replayed; hooks on modules a first call alone may register."""
        if self._too_late:
            raise refusals.OUTPUT_WRITES(*self._too_late, where=self._too_late[1])
        if self._refused:
            are_hooks = all(is_hook_of_module(name) for name, _ in self._refused)
            refusal = refusals.REGISTERS_HOOK if are_hooks else refusals.STORES_OBJECT
            raise refusal(*self._refused[0][::-1], where=self._refused[0][0])

    # ── what is compared ─────────────────────────────────────────────────────────────────────────────────────────

    def _compare(self, met: Met) -> None:
        container, before = met.container, met.before
        if isinstance(container, dict):
            keys = keys_of(container)
            names = [*dict.fromkeys([*before, *keys])]
            self._back.append(lambda: put_in_order(container, before))
            for key in names:
                if isinstance(met.of, torch.nn.RNNBase) and key in _OF_RNN:
                    self._back.append(lambda key=key: container.__setitem__(key, before[key]))  # type: ignore[misc]
                    continue
                name = joined(met.name, str(key)) if met.of is not None else item_name(met.name, key)
                if key not in before and self._tells_input(key):
                    self._refused.append((met.name, "a key that tells which tensor it was given"))
                self._place(
                    Place("item", container, plain_key(key), name),
                    before.get(key, MISSING),
                    dict.get(container, key, MISSING),
                    met.of,
                )
            if met.of is None and [k for k in names if dict.__contains__(container, k)] != keys:
                self._reordered(met)
        elif isinstance(container, np.ndarray):
            if container.tobytes() != before.tobytes():
                self._watch.written.add(id(container))
                self._refused += [(met.name, "an item of an array of objects")] * container.dtype.hasobject
                self.effects.append(Refill(container, met.name, New(LEAF, (container.copy(),))))
                self._back.append(lambda: refill(container, before))
        elif is_buffer(container):
            if (now := held_by(container)) != before and not now:
                self._refused.append((met.name, "a stream that it closes"))
            elif now != before:
                self._watch.written.add(id(container))
                more = added(before, now) if self._watch.only_grows(container) else None
                if more is None:
                    self._watch.replaced.add(id(container))
                how, new = (Refill, now) if more is None else (Grow, more)
                self.effects.append(how(container, met.name, New(LEAF, (new,))))
                self._back.append(lambda: refill(container, before))
        elif isinstance(container, contextvars.Context):
            changed = [v for v, now in container.items() if now is not before.get(v, MISSING)]
            self._refused += [(f"{met.name}[{v.name}]", "a value in a context of its own") for v in changed]
            self._back += [lambda v=v: container.run(v.set, before[v]) for v in changed if v in before]  # type: ignore[misc]
        elif isinstance(container, (list, collections.deque)):
            self._items(met)
        elif isinstance(container, set) and container != before:
            self._watch.written.add(id(container))
            self._back.append(lambda: refill(container, before))
            only_more = container > before and self._watch.only_grows(container)
            new = self._new([*(container - before if only_more else container)], met.name)
            if new is not None:
                self.effects.append((Grow if only_more else Refill)(container, met.name, new))

    def _reordered(self, met: Met) -> None:
        """A dict holds its items in another order than stores leave them in: all of it is stored."""
        self._watch.written.add(id(met.container))
        self._watch.replaced.add(id(met.container))
        self.effects = [
            e for e in self.effects if not (isinstance(e, (Store, Count)) and e.place.owner is met.container)
        ]
        new = self._new(dict(met.container), met.name)
        if new is not None:
            self.effects.append(Refill(met.container, met.name, new))

    def _items(self, met: Met) -> None:
        container, before = met.container, met.before
        changed = self._changed(met, list(container))
        n, before = len(before), [self._watch.number(v) for v in before]
        if not changed and len(container) == n:
            self._back.append(
                lambda: (
                    refill(container, before)
                    if any(a is not b for a, b in zip(before, container, strict=False))
                    else None
                )
            )
            return
        self._back.append(lambda: refill(container, before))
        self._watch.written.add(id(container))
        counts = [self._counted(_item(met, i), before[i], container[i]) for i in changed]
        if len(container) == n and all(counts):
            self._count(*counts)
            return
        n_new = len(container) - n
        is_given = id(container) in self._watch.given  # of this length in each call
        may_grow = is_given or self._watch.only_grows(container)
        at = ("last" if is_given else self._watch.grows_at(container)) if may_grow and n_new > 0 else None
        first = at == "first" and not self._changed(met, list(container)[n_new:])
        grown = first or (at == "last" and not changed)
        if not grown:
            self._watch.replaced.add(
                ("items", id(container)) if len(container) == n <= _ITEM_BY_ITEM else id(container)
            )
        more = list(container)[:n_new] if first else list(container)[n:] if grown else list(container)
        if (new := self._new(more, met.name)) is None:
            return
        self.effects.append(Grow(container, met.name, new, first) if grown else Refill(container, met.name, new))

    def _changed(self, met: Met, now: Sequence[Any]) -> list[int]:
        """Which items of a list or a deque are no longer what they were."""
        pairs = enumerate(zip(met.before, now, strict=False))
        return [i for i, (had, own) in pairs if not self._same(_item(met, i), had, own)]

    def _counted(self, place: Place, start: Any, now: Any, otherwise: Any = MISSING) -> Count | None:
        """The effect, if a number is only ever increased by one constant."""
        unseen = self._watch.whole | self._watch.given.keys()
        is_number = type(start) in (int, float) and type(now) in (int, float) and id(place.owner) not in unseen
        if not is_number or not self._watch.only_counts(place, self._said):
            return None
        for step in steps_of(place.name, self._said):
            reached = start
            for times in range(1, _TURNS + 1 if step else 1):
                reached = reached + step[1]  # type: ignore[index]
                if same(reached, now):
                    return Count(place, step[1], times, otherwise)  # type: ignore[index]
        return None

    def _count(self, *counts: Count | None) -> None:
        self.effects += [count for count in counts if count is not None]
        self.counted.update(count.place.identity for count in counts if count is not None)

    def _place(self, place: Place, before: Any, now: Any, of: Any = None) -> None:
        unchanged = self._same(place, before, now)
        if not (unchanged and (now is before or place.identity in self._watch.stand_ins)):
            self._back.append(lambda: place.write(before))
        if unchanged:
            return
        self._watch.written.add(id(place.owner))
        if now is MISSING:
            if place.kind == "context":
                self._refused.append((place.name, "no value"))
            self._watch.stored.append((place, before))
            self.effects.append(Store(place, None))
            return
        start = before if before is not MISSING or of is None else found_on(type(of), str(place.key))[1]
        read = (id(place.owner if of is None else of), str(place.key)) in self._watch.unmentioned
        count = None if read else self._counted(place, start, now, start if before is MISSING else MISSING)
        if count is not None:
            self._count(count)
            return
        self._watch.replaced.add(place.identity)
        if place.kind == "class" or (of is not None and not can_be_hooked(type(of))):
            self._watch.stored.append((place, before))
        new = self._new(now, place.name)
        if new is not None:
            if before is None or before is MISSING:
                self.firsts.update(leaf for leaf in new.leaves if isinstance(leaf, Stored))
            self.effects.append(Store(place, new))

    def _class(self, kind: type, had: Mapping[str, Any]) -> None:
        now = members_said(kind)
        for name in dict.fromkeys([*had, *now]):
            place = Place.on_class(kind, name)
            self._place(place, had.get(name, MISSING), now.get(name, MISSING))

    def _made_of(self, guard: Guard) -> None:
        """An object is of another class, or has another dict of attributes; a function has other code or defaults."""
        place, now = guard.place, guard.place.read()
        if place.kind == "type":  # which an object may say to be another
            place = Place("slot", place.owner, "__class__", place.name)
        if type(now) is types.CodeType:
            now = original(now)
        elif type(now) is tuple and type(guard.value) is tuple:  # symbols may stand for numbers in it
            now = guard.value if same(guard.value, tuple(map(self._watch.number, now))) else now
        if now is not guard.value:
            self._place(place, guard.value, now)

    def _environment(self) -> None:
        before, now = self._watch.variables, dict(os.environ)
        for name in before.keys() | now.keys() if before != now else ():
            if before.get(name) != now.get(name):
                place = Place("environ", os.environ, name, f"os.environ[{name!r}]")
                self._place(place, before.get(name, MISSING), now.get(name, MISSING))

    # ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────

    def _same(self, place: Place, before: Any, now: Any) -> bool:
        """Whether a place holds what it held: of a number that is an input, what stands for it there, as other
        values may be equal now; never of one that is another in other calls. A weak reference to what the run made,
        and nobody keeps, is none."""
        if str(Stored(place.name)) in self._varying:
            return False
        was_none = before is None or before is MISSING or isinstance(before, weakref.ReferenceType)
        if isinstance(now, weakref.ReferenceType) and was_none and now is not before:
            return not (self._watch.knows(now()) or self._tells_input(now))
        if place.identity in self._watch.stand_ins:
            return any(now is stand_in for stand_in in self._watch.stand_ins[place.identity])
        if any(now is put for put in self._watch.tuples_put.get(place.identity, ())):
            return True
        return now is before or (isinstance(now, Tensor) and self._known(now) is before)

    def _new(self, value: Any, name: str) -> New | None:
        """What to store, or None: it is refused."""
        if is_hook_of_module(name):  # PyTorch gives each that is registered a number of its own
            self._refused.append((name, f"a new {type(value).__name__}"))
            return None
        if self._is_kept(value) or not is_new(value):
            return self._taken_apart(value, name)
        made = self._object(value, name)
        return None if made is None else New(LEAF, (made,))

    def _taken_apart(self, value: Any, name: str) -> New | None:
        try:
            leaves, tree, paths = flatten(
                value, name, lambda inside: self._is_kept(inside) or (inside is not value and is_new(inside))
            )
        except ContainerError as error:
            self._refused.append((error.where or name, "a container that holds itself"))
            return None
        found: list[Any] = []
        for leaf, path in zip(leaves, paths, strict=True):
            note_stored(leaf)
            leaf = plain_key(leaf) if isinstance(leaf, (frozenset, slice)) else leaf
            if isinstance(leaf, Tensor) and is_transform_wrapper(leaf) and is_traced(unwrap_transform(leaf)):
                self._refused.append((path, "a tensor of a transform of torch.func that has ended by then"))
                return None
            slot = self._slot(path)
            if isinstance(leaf, (Tensor, torch.SymFloat, torch.SymInt)) or str(slot) in self._varying:
                self.stores[slot] = leaf
                found.append(slot)
            elif self._is_kept(leaf):
                self._watch.moved.add(id(leaf))
                self.plain[slot] = leaf
                found.append(leaf)
            elif (made := self._object(leaf, path)) is not None:
                found.append(made)
            else:
                of_input = "what tells which tensor it was given" if self._tells_input(leaf) else None
                self._refused.append((path, of_input or f"a new {type(leaf).__name__}"))
                return None
        return New(with_plain_keys(tree), tuple(found))

    def _slot(self, path: str) -> Stored:
        """A slot of its own: two keys of a dict, and two objects, may read alike."""
        names = (path if i == 1 else f"{path}#{i}" for i in itertools.count(1))
        return next(slot for name in names if (slot := Stored(name)) not in self.stores and slot not in self.plain)

    def _with_texts(self, effect: Print | Log | Warn, shown: Sequence[ShownValue]) -> Print | Log | Warn:
        """What is printed, with the tensors and numbers whose texts stand in it."""
        if isinstance(effect, Warn):
            return effect
        texts = []
        for i in numbers_in(effect.text):
            value, look = shown[i]
            texts.append((self._slot(f"text {i}"), look))
            self.stores[texts[-1][0]] = value
        if isinstance(effect, Print):
            return Print(effect.text, tuple(texts))
        return Log(effect.logger, effect.record, tuple(texts))

    def _object(self, value: Any, path: str) -> NewObject | None:
        """An object that the run made, to be made anew; None for one that is more than its attributes."""
        _, made = self._made.get(id(value), (None, None))
        if made is not None:
            made.is_shared = True
            if made.inside is None and made.is_plain:
                self._refused.append((path, "a container that holds itself"))
            return made
        made = NewObject(type(value))
        if is_copied(value, self._is_kept_inside):
            made.like = copy.copy(value)
            self._made[id(value)] = value, made
            return made
        inside: Any = value
        if isinstance(value, types.FunctionType) and self._watch.makes(value):
            of = original(value.__code__), value.__globals__, value.__name__
            made.like, inside = functools.partial(types.FunctionType, *of), attributes_made(value)
        elif made.kind in CALLED:
            made.like, inside = CALLED[made.kind][0], CALLED[made.kind][1](value)
        elif not is_new(value):
            return None
        elif not made.is_plain:
            inside = attributes_made(value)
        self._made[id(value)] = value, made
        if isinstance(value, types.FunctionType):
            cells = zip(value.__closure__ or (), value.__code__.co_freevars, strict=True)
            made.cells = tuple(self._cell(cell, f"{path}.{name}") for cell, name in cells)
        made.inside = self._taken_apart(inside, path)
        return None if made.inside is None else made

    def _cell(self, cell: types.CellType, path: str) -> Any:
        """A variable of a function that was made: the cell that was there, or what is to be made instead."""
        if id(cell) in self._watch.cells:
            return cell
        _, made = self._made.get(id(cell), (None, None))
        if made is None:
            made = NewObject(types.CellType)
            self._made[id(cell)] = cell, made
            if (held := Place("cell", cell, None, path).read()) is not MISSING:
                made.inside = self._new(held, path)
        return made

    def _tells_input(self, value: Any) -> bool:
        """Whether a value says which object a tensor is that the function was given: one that stands for it, in a
        trace."""
        of = value() if isinstance(value, weakref.ReferenceType) else value
        return (value if type(value) is int else id(of)) in self._inputs

    def _is_kept(self, value: Any) -> bool:
        """Whether a value is stored as it is."""
        if self._tells_input(value):
            return False
        if isinstance(value, types.MethodType):
            return self._watch.knows(value.__self__) and self._watch.knows(value.__func__)
        if isinstance(value, types.FunctionType) and is_lasting(value):
            return True
        if type(value) is frozenset:
            return all(map(self._is_kept_inside, value))
        if self._was_stored_before_met(value):
            return False
        return self._watch.knows(value) or (isinstance(value, _KEPT) and value is not None)

    def _was_stored_before_met(self, value: Any) -> bool:
        """Whether the watch has met a container of tensors of the trace where the function had stored it by then."""
        if id(value) in self._watch.given:
            return False
        if isinstance(value, tuple):
            return any(is_traced(v) or self._was_stored_before_met(v) for v in value)
        met = self._watch.met.get(id(value)) if type(value) in (list, dict) else None
        return met is not None and any(is_traced(v) for _, v in met.items)

    def _is_kept_inside(self, value: Any) -> bool:
        """The same of a value in a container that is no tree: there, None is no container of nothing."""
        return value is None or self._is_kept(value)


def _item(met: Met, i: int) -> Place:
    """Where a list, or a deque, holds one of its items."""
    return Place("item", met.container, i, item_name(met.name, i))
