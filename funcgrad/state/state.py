"""What a program knows of Python state: the guards it checks and the effects it replays; printed, explained, and put
back for a while."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from attrs import field, frozen

from .. import refusals
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..slots import Stored
from .effects import Count, Effect, Grow, Refill, Store, Written, refill
from .given import IntoArguments
from .guards import MISSING, Constant, Guard, Place, same, same_items
from .lines import Lines
from .names import attributes_of, item_name
from .output import Log, Print
from .warned import Warn
from .watch import Watch

_FEW = 32
"""Items of a container that are compared one by one in the printed call."""


@frozen(eq=False, repr=False)
class State(Shown):
    """The guards and effects of one function. ``objects``: the paths of arguments of which something is guarded:
    these must be the same. ``runs_again``: of a pullback, which runs in ``as_it_was``. ``into``: what is stored
    into arguments."""

    guards: tuple[Guard, ...] = ()
    effects: tuple[Effect, ...] = ()
    stores: tuple[Stored, ...] = ()
    objects: frozenset[str] = frozenset()
    runs_again: bool = False
    into: IntoArguments = field(factory=IntoArguments)
    lines: Lines = field(factory=Lines)

    @property
    def written(self) -> list[Effect]:
        """The effects but for what is printed, logged and warned of."""
        return [effect for effect in self.effects if not isinstance(effect, (Print, Log, Warn))]

    @property
    def printed(self) -> list[Effect]:
        """What is printed: when all else is done, as what it is printed to may be anybody's code."""
        return [effect for effect in self.effects if isinstance(effect, (Print, Log, Warn))]

    def doc(self) -> Doc:
        rows = tuple((str(g.place), g.how if g.how in ("absent", "present") else g.value_shown) for g in self.guards)
        writes = tuple((str(effect), "") for effect in self.effects)
        return Doc(
            "state", tuple(Table(head, own) for head, own in ((("reads", "is"), rows), (("writes", ""), writes)) if own)
        )


def state_of(watch: Watch, written: Written, arguments: Iterable[tuple[str, Any]]) -> State:
    """The guards that hold before a call, without those on what is only counted or is an input. To be asked when all
    writes are undone."""
    unguarded = written.counted | watch.stand_ins.keys()
    guards = [g for g in watch.guards if g.place.identity not in unguarded and g.holds()]
    arguments = list(arguments)
    given = {id(value) for _, value in arguments}
    guarded = {id(g.place.owner) for g in guards if id(g.place.owner) not in given or not _is_outer(g)}
    objects = {id(value) for _, value in arguments if id(value) in guarded or id(attributes_of(value)) in guarded}
    # an argument of which nothing is read may be another one that is equal
    guards = [g for g in guards if id(g.place.owner) not in given or id(g.place.owner) in objects]
    guards += [
        Guard(e.place, None, "present") for e in written.effects if isinstance(e, Count) and e.otherwise is MISSING
    ]
    first = [g for g in guards if g.how == "equal"]  # numbers change more often than objects
    ordered = (*first, *(g for g in guards if g.how != "equal"))
    paths = frozenset(path for path, value in arguments if id(value) in objects)
    return State(ordered, tuple(written.effects), tuple(written.stores), paths, lines=watch.lines)


def of_numbers(guard: Guard) -> list[Guard]:
    """Of a guard on the contents of a container, in which only numbers are others now: those on each of them."""
    now, was = guard.place.read(), guard.value
    if guard.how not in ("items", "entries") or not isinstance(now, (dict, list, deque)) or len(now) != len(was):
        return []  # what is not written to by its keys holds no symbols
    keys = list(was) if isinstance(was, dict) else list(range(len(was)))
    if isinstance(was, dict) and not same_items(keys, list(now)):
        return []
    others = [key for key in keys if now[key] is not was[key] and not same(was[key], now[key])]
    if any(type(was[key]) not in (int, float) or type(now[key]) is not type(was[key]) for key in others):
        return []
    return [Guard.of(Place("item", now, key, item_name(guard.place.name, key)), was[key]) for key in others]


def _is_outer(guard: Guard) -> bool:
    """Whether a guard is on the class of an object, or on which dict holds its attributes."""
    return guard.place.kind == "type" or (guard.place.kind == "slot" and guard.place.key == "__dict__")


def print_guards(guards: Sequence[Guard], constant: Constant, otherwise: str) -> list[str]:
    """Python lines that run ``otherwise`` where a guard does not hold; what they raise means so, too."""
    empty = [g.place.owner for g in guards if _is_empty(g)]
    lines = [f"if any({constant(tuple(empty))}): {otherwise}"] if empty else []
    for guard in guards:
        if not _is_empty(guard):
            unpacked, differs = _unpacked(guard, constant)
            lines += [*unpacked, f"if {differs}{guard.fails(constant)}: {otherwise}"]
    return lines


def _unpacked(guard: Guard, constant: Constant) -> tuple[list[str], str]:
    """Of a small container, lines that unpack it, and the beginning of a condition: whether an item is another object.
    A quick look, which takes a quarter of the time; it raises ValueError where there are more or fewer."""
    owner, copy = guard.place.owner, guard.value
    is_dict = guard.how == "entries" and type(owner) in (dict, OrderedDict)
    if not (is_dict or (guard.how == "items" and type(owner) in (list, tuple))) or not 0 < len(copy) <= _FEW:
        return [], ""
    held = [*copy, *copy.values()] if is_dict else [*copy]
    names = [f"_{i}" for i in range(len(held))]  # no variable of the call begins so
    sources = {constant(owner): names[: len(copy)], f"{constant(owner)}.values()": names[len(copy) :]}
    lines = [f"{', '.join(own)}, = {source}" for source, own in sources.items() if own]
    differs = " or ".join(f"{name} is not {constant(value)}" for name, value in zip(names, held, strict=True))
    return lines, f"({differs}) and "


def _is_empty(guard: Guard) -> bool:
    """Whether a guard is that a dict holds nothing, as the tables of hooks of a module, and the attributes of a
    function."""
    return guard.how == "entries" and not guard.value and type(guard.place.owner) in (dict, OrderedDict)


def print_effects(
    effects: Sequence[Effect], names: Mapping[Any, str], constants: dict[str, Any], constant: Constant
) -> list[str]:
    """Python lines that write to Python state what the function writes."""
    known = dict(names)
    return [line for effect in effects for line in effect.lines(known, constants, constant)]


_put_back_now: ContextVar[tuple[tuple[Guard, str], ...]] = ContextVar("funcgrad_put_back", default=())
"""The guards that hold for a while, and why they did not."""


def require_not_put_back(effects: Iterable[Effect]) -> None:
    """Raise where one writes to what is as it was for a while: that goes when it is as it is again."""
    for guard, why in _put_back_now.get():
        if any(writes_to(effect, guard.place) for effect in effects):
            raise refusals.CHANGED_BEFORE_BACKWARD(guard.place, why, where=str(guard.place))


def writes_to(effect: Effect, place: Place) -> bool:
    """Whether what lives at a place is another one after an effect."""
    at = place.location
    if isinstance(effect, (Store, Count)):
        own = effect.place.location
        return at == own or (place.kind == "itself" and at[1] == own[1])
    return isinstance(effect, (Grow, Refill)) and at[1] == id(effect.container)


@contextlib.contextmanager
def as_it_was(state: State, rebound: Iterable[tuple[Any, Any]] = ()) -> Iterator[None]:
    """Inside, Python state is as the guards say: a derivative of a derivative runs the function again, when what it
    read may have changed, by the function itself for one. ``rebound``: tensors that stand in the place of others
    now, and these."""
    back: list[Any] = []
    changed: list[tuple[Guard, str]] = []
    stored = [effect.place for effect in state.effects if isinstance(effect, Store)]
    try:
        for now, then in rebound:
            for place in [place for place in stored if place.read() is now]:
                place.write(then)
                back.append(functools.partial(place.write, now))
        for guard in state.guards:
            if not guard.holds():
                changed.append((guard, guard.explain()))
                back.append(_put_back(guard))
        before = _put_back_now.set((*_put_back_now.get(), *changed))
        back.append(functools.partial(_put_back_now.reset, before))
        yield
        for guard, why in changed:  # opaque calls, of which nobody knows what they write to
            if not guard.holds():
                raise refusals.CHANGED_BEFORE_BACKWARD(guard.place, why, where=str(guard.place))
    finally:
        for undo in reversed(back):
            undo()


def _put_back(guard: Guard) -> Any:
    place, now = guard.place, guard.place.read()
    if place.kind == "itself" and isinstance(place.owner, (dict, list, set)) and guard.how != "shape":
        held = place.owner.copy()
        refill(place.owner, guard.value)
        return lambda: refill(place.owner, held)
    if place.kind not in ("item", "class", "slot", "cell") or guard.how in ("present", "one", "apart"):
        raise refusals.CHANGED_BEFORE_BACKWARD(place, guard.explain(), where=str(place))
    place.write(MISSING if guard.how == "absent" else guard.value)
    return lambda: place.write(now)
