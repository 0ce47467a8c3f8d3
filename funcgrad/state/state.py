"""What a program knows of Python state: the guards it checks and the effects it replays; printed, explained, and put
back for a while."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from attrs import evolve, field, frozen

from .. import refusals
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..slots import Stored
from ..torch_private.fakes import without_modes
from ..torch_private.modes import without_function_modes
from .buffers import held_by, holds_now
from .effects import Count, Effect, Grow, Refill, Store, refill, refilled_places
from .given import IntoArguments
from .guards import Guard
from .identities import keyed_by_tensors
from .late import Late
from .lines import Lines
from .names import attributes_of, item_name
from .new_values import Names
from .output import Log, Print
from .places import MISSING, Constant, Place
from .renewed import Brought, Renewed, apart_from, in_order, items_of, parts_of, reached_unguarded
from .values import entries_of, like, same, same_items
from .warned import Warn
from .watch import Watch
from .written import Written

_FEW = 32
"""Items of a container that are compared one by one in the printed call."""


@frozen(eq=False, repr=False)
class State(Shown):
    """The guards and effects of one function. ``objects``: the paths of arguments of which something is guarded:
    these must be the same. ``runs_again``: of a pullback, which runs in ``as_it_was``. ``into``: what is stored
    into arguments. ``brought``: the objects of which each call brings others. ``late``: what backward reads of it when
    it runs."""

    guards: tuple[Guard, ...] = ()
    effects: tuple[Effect, ...] = ()
    stores: tuple[Stored, ...] = ()
    objects: frozenset[str] = frozenset()
    runs_again: bool = False
    into: IntoArguments = field(factory=IntoArguments)
    brought: Brought = field(factory=Brought)
    lines: Lines = field(factory=Lines)
    late: Late = field(factory=Late)

    @property
    def of_forward(self) -> list[Guard]:
        """The guards on what forward alone reads."""
        late = set(map(id, self.late.guards))
        return [guard for guard in self.guards if id(guard) not in late]

    @property
    def written(self) -> list[Effect]:
        """The effects but for what is printed, logged and warned of."""
        return [effect for effect in self.effects if not isinstance(effect, (Print, Log, Warn))]

    @property
    def writes_to_brought(self) -> bool:
        """Whether an object of which each call brings another one is written to."""
        return any(id(_written_to(effect)) in self.brought.parts for effect in self.written)

    @property
    def printed(self) -> list[Effect]:
        """What is printed: when all else is done, as what it is printed to may be anybody's code."""
        return [effect for effect in self.effects if isinstance(effect, (Print, Log, Warn))]

    def _shown(self, guard: Guard) -> str:
        if self.brought.leads(guard):
            return f"any {type(guard.value).__name__}"
        return guard.value_shown

    def doc(self) -> Doc:
        rows = tuple((str(g.place), self._shown(g)) for g in self.guards)
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
    guarded = {id(g.place.owner) for g in guards if id(g.place.owner) not in given or not g.is_outer}
    objects = {id(value) for _, value in arguments if id(value) in guarded or id(attributes_of(value)) in guarded}
    # an argument of which nothing is read may be another one that is equal
    guards = [g for g in guards if id(g.place.owner) not in given or id(g.place.owner) in objects]
    guards += [
        Guard(e.place, None, "present") for e in written.effects if isinstance(e, Count) and e.otherwise is MISSING
    ]
    guards += [Guard(place, weakref.ref(wrapper), "tensor") for place, wrapper in watch.held_ended.values()]
    first = [g for g in guards if g.how == "equal"]  # numbers change more often than objects
    ordered = (*first, *(g for g in guards if g.how != "equal"))
    paths = frozenset(path for path, value in arguments if id(value) in objects)
    return State(ordered, tuple(written.effects), tuple(written.stores), paths, lines=watch.lines)


def with_brought(state: State, watch: Watch, places: Iterable[Place], renewed: Sequence[Renewed]) -> State:
    """The state in which each call may bring others of the objects that were others in other calls, of which the
    function reads what they hold alone. ``places``: where what it reads lives."""
    said = watch.said_by_what_ran

    def asks_for(function: Any) -> bool:
        is_named = function.__name__ in said.globals or any(g.value is function for g in state.guards)
        return is_named or watch.has_as_value(function)

    whose_identity = watch.whose_identity()
    if watch.reads_past_hooks or whose_identity is None or watch.asks_caches or state.into.written:
        return state  # which objects they are, matters
    holders = {id(place.root) for place, tensor in watch.tensors.values() if id(tensor) in whose_identity}
    if keyed_by_tensors(watch.met.values(), by_address=False) is not None:
        holders |= {id(place.root) for place, _ in watch.tensors.values()}
    fixed = whose_identity | holders
    renewed = [own for own in renewed if fixed.isdisjoint(id(part) for part, _ in parts_of(own.value))]
    parts = Brought(renewed).parts
    guards = tuple(apart_from(state.guards, parts))
    led_to = {g.place.identity: g.value for g in guards if g.how == "is"}
    met = [r for r in renewed if isinstance(r.at, str) or led_to.get(r.at.identity) is r.value]
    by_identity: Any = object.__hash__
    asks_hash = "__hash__" in said.attributes or asks_for(hash)
    read = [own for own in met if not (asks_hash and type(own.value).__hash__ is by_identity)]
    brought = Brought.among(in_order(read), watch.known, [*items_of(guards, parts)])
    unguarded = reached_unguarded(brought.renewed, guards)
    owners = {id(owner) for owner in (*(place.root for place in places), *map(_written_to, state.written))}
    is_sound = unguarded.isdisjoint(owners) and not any(_shows(effect, brought) for effect in state.printed)
    return evolve(state, guards=guards, brought=brought) if is_sound and brought.renewed else state


def _written_to(effect: Effect) -> Any:
    if isinstance(effect, (Store, Count)):
        return effect.place.root
    return effect.container if isinstance(effect, (Grow, Refill)) else None


def _shows(effect: Effect, brought: Brought) -> bool:
    """Whether what is printed or logged is of the very object."""
    logged = vars(effect.record) if isinstance(effect, Log) else {}
    given = [*logged.values(), *(logged.get("args") or ())]
    return any(id(v) in brought.parts for v in given) or any(f"{id(r.value):x}" in str(effect) for r in brought.renewed)


def of_numbers(guard: Guard) -> list[Guard]:
    """Of a guard on the contents of a container, or on a tuple, in which only numbers are others now (and tensors,
    where these may be): those on each of them."""
    place = guard.place
    if type(guard.value) is tuple and guard.how == "equal":
        was, now = guard.value, place.read()
        if type(now) is not tuple or len(now) != len(was):
            return []
        return _on_numbers({i: Place("item", place, i, item_name(place.name, i)) for i in range(len(was))}, was, now)
    owner, was, how = guard.place.read(), guard.value, guard.how.removeprefix("like ")
    if how not in ("items", "entries") or not isinstance(owner, (dict, list, deque)):
        return []  # what is not written to by its keys holds no symbols
    now = entries_of(owner) if isinstance(owner, dict) else owner
    keys = list(was) if isinstance(was, dict) else list(range(len(was)))
    if len(now) != len(was) or (isinstance(was, dict) and not same_items(keys, list(now))):
        return []
    fits = same if how == guard.how else like
    others = [key for key in keys if now[key] is not was[key] and not fits(was[key], now[key])]
    return _on_numbers({key: Place("item", owner, key, item_name(place.name, key)) for key in others}, was, now)


def _on_numbers(places: Mapping[Any, Place], was: Any, now: Any) -> list[Guard]:
    """Guards on what lives at the places of items, where these are other numbers; none where any is something else."""
    found: list[Guard] = []
    for key, place in places.items():
        if same(was[key], now[key]):
            continue
        own = Guard.of(place, was[key])
        is_number = type(was[key]) in (int, float) and type(now[key]) is type(was[key])
        inner = [own] if is_number else of_numbers(own)
        if not inner:
            return []
        found += inner
    return found


def print_state_guards(
    guards: Sequence[Guard], constant: Constant, otherwise: str, brought: Brought | None = None
) -> list[str]:
    """Python lines that run ``otherwise`` where a guard does not hold; what they raise means so, too."""
    parts = brought.parts if brought else frozenset[int]()
    empty = [g for g in guards if _is_empty(g) and id(g.place.owner) not in parts]
    lines = [f"if any({constant(tuple(g.place.owner for g in empty))}): {otherwise}"] if empty else []
    for guard in guards:
        if guard not in empty and not (parts and brought and brought.says(guard)):
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


def print_effects(effects: Sequence[Effect], names: Names, constants: dict[str, Any], constant: Constant) -> list[str]:
    """Python lines that write to Python state what the function writes; objects that they make are added to
    ``names``."""
    return [line for effect in effects for line in effect.lines(names, constants, constant)]


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
def as_it_was(state: State, rebound: Iterable[tuple[Any, Any]] = (), captured: Iterable[Place] = ()) -> Iterator[None]:
    """Inside, what forward alone read is as the guards say: a derivative of a derivative runs the function again, when
    what it read may have changed, by the function itself for one. ``rebound``: tensors that stand in the place of
    others now, and these. ``captured``: where tensors are read; of objects that each call brings, one stands for all.
    """
    back: list[Any] = []
    stored = [effect.place for effect in state.effects if isinstance(effect, Store)]
    stored += refilled_places(state.effects, (list,))
    stored += [place for place in captured if id(place.owner) in state.brought.parts]
    try:
        # all of them first: they may have changed places
        moved = [(place, now, then) for now, then in rebound for place in stored if place.read() is now]
        for place, now, then in moved:
            place.write(then)
            back.append(functools.partial(place.write, now))
        with holding(state.of_forward) as changed:
            before = _put_back_now.set((*_put_back_now.get(), *changed))
            back.append(functools.partial(_put_back_now.reset, before))
            yield
            for guard, why in changed:  # opaque calls, of which nobody knows what they write to
                if not guard.holds():
                    raise refusals.CHANGED_BEFORE_BACKWARD(guard.place, why, where=str(guard.place))
    finally:
        for undo in reversed(back):
            undo()


@contextlib.contextmanager
def holding(guards: Sequence[Guard]) -> Iterator[list[tuple[Guard, str]]]:
    """Inside, these hold: gives those that did not, each with why."""
    back: list[Any] = []
    changed: list[tuple[Guard, str]] = []
    try:
        for guard in guards:
            if not guard.holds():
                changed.append((guard, guard.explain()))
                back.append(_put_back(guard))
        yield changed
    finally:
        for undo in reversed(back):
            undo()


def _of_shape(container: Any, kind: Any, keys: Any) -> Any:
    """What a container held when it had as many items: numbers and tensors that the program is given, in their places.
    For those that it has lost any other tensors will do."""
    if not isinstance(container, kind):
        return MISSING
    with without_modes(), without_function_modes():
        if kind in (list, deque):
            return list(container)[:keys] if len(container) >= keys else [torch.empty(0) for _ in range(keys)]
        if issubclass(kind, dict):
            return {key: container[key] if key in container else torch.empty(0) for key in keys}
    return MISSING


_OF_NO_VALUE = ("present", "one", "apart", "shape")
"""Guards that do not know what was there."""


def _put_back(guard: Guard) -> Any:
    place, now, before = guard.place, guard.place.read(), MISSING
    if (place.kind == "itself" or guard.how == "shape") and isinstance(now, (dict, list, set, deque)):
        before = _of_shape(now, *guard.value) if guard.how == "shape" else guard.value
    is_array = guard.how == "array" and now.flags.writeable and now.shape == guard.value.shape
    if is_array or (guard.how == "buffer" and guard.value and held_by(now)):
        before = guard.value
    if before is not MISSING:
        held = holds_now(now)
        refill(now, before)
        return lambda: refill(now, held)
    is_gone = guard.how == "tensor" and guard.value() is None
    # a variable of a context that has been set cannot be unset
    is_gone |= guard.how == "absent" and place.kind == "context"
    if is_gone or place.kind in ("itself", "type", "default") or guard.how in _OF_NO_VALUE:
        raise refusals.CHANGED_BEFORE_BACKWARD(place, guard.explain(), where=str(place))
    was = guard.value() if guard.how == "tensor" else guard.value
    if guard.how == "a tensor":  # which was met and not computed with: all that was read is that it is one, of a type
        with without_modes(), without_function_modes():
            was = torch.empty(0).as_subclass(guard.value)
    later = place.later_names if guard.how == "absent" else ()
    try:
        place.write(MISSING if guard.how == "absent" else was)
    except (AttributeError, IndexError) as error:  # the version of a file; an item of a list that has become shorter
        raise refusals.CHANGED_BEFORE_BACKWARD(place, guard.explain(), where=str(place)) from error

    def undo() -> None:
        place.write(now)
        for other in later:  # they come after it again
            value = other.read()
            other.write(MISSING)
            other.write(value)

    return undo
