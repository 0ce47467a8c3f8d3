"""A call whose outputs lead to different inputs, as several nodes of autograd: the engine goes on to the inputs that a
backward pass reaches, and calls no hook of another.

Outputs that lead to the same inputs have one node, which takes their gradients; inputs that the same outputs lead to
have one, a *gate*. Of several leaves with hooks each has its own, so that these run in eager PyTorch's order. The first
gate that runs computes all gradients. By then all incoming ones are there: the engine runs what was created last first,
and what is computed of outputs was created later.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from ..errors import GraphError
from ..torch_private.autograd import is_executed, running_pass

Gradients = Callable[[Any, Sequence[Tensor | None], Callable[[], Sequence[bool]]], Sequence[Any]]
"""Computes those of all inputs, given the node that keeps what forward saved, the incoming ones of all outputs, and
what says of which inputs the pass asks for gradients."""


@define(eq=False)
class _Pass:
    """What a backward pass has come to at one call."""

    incoming: dict[int, Tensor | None] = field(factory=dict)
    ahead: set[int] = field(factory=set)
    """The inputs whose gates it has still to run."""
    led: list[Any] = field(factory=list)
    """The gates that the outputs lead to which it comes from."""
    found: dict[int, Any] | None = None


_AT_ONCE = 64
"""Of so many passes through a call, one within another or in threads, is it known what they have come to: one that
fails leaves that behind."""


@define(eq=False)
class _Gates:
    """The nodes of one call."""

    gradients: Gradients
    n_inputs: int
    n_outs: int
    device: torch.device
    """In whose queue the engine puts gates: that of all that is computed of the outputs."""
    main: weakref.ref[Any] | None = None
    all: list[tuple[weakref.ref[Any], Sequence[int]]] = field(factory=list)
    passes: dict[int, _Pass] = field(factory=dict)
    """Those that run, by number: a hook may run another one, and so may another thread."""

    def arrive(self, places: Sequence[int], incoming: Sequence[Tensor | None], gates: Sequence[Any]) -> None:
        """Gradients of outputs come in, which lead to these ``gates``."""
        number = _number()
        running = self.passes.get(number)
        if running is not None and running.found is not None:
            if number >= 0:
                raise GraphError(
                    "a gradient comes in for a result of a compiled function after those of its inputs were computed",
                    fix="call it, and compute of its results, in one thread and on one device",
                )
            running = None
        if running is None:
            while len(self.passes) >= _AT_ONCE:
                self.passes.pop(next(iter(self.passes)), None)
            running = self.passes[number] = _Pass()
        running.incoming.update(zip(places, incoming, strict=True))
        executed = [gate for gate in gates if number < 0 or is_executed(gate)]
        running.ahead.update(i for gate in executed for i in gate.places)
        running.led += gates

    def taken(self, gate: Any) -> list[Any]:
        """Of the gradients, those for what is behind a gate that runs: the main one before others, as it was created
        last; in a pass that was recorded it is given what was saved."""
        number = _number()
        running = self.passes.get(number)
        if running is None:
            raise GraphError(
                f"more than {_AT_ONCE} backward passes run at once through one call of a compiled function",
                fix="run fewer of them within hooks of each other, or in fewer threads",
            )
        if running.found is None:
            assert self.main is not None
            main = gate if gate.is_main else self.main()
            incoming = [running.incoming.get(i) for i in range(self.n_outs)]
            running.incoming.clear()
            running.found = dict(enumerate(self.gradients(main, incoming, functools.partial(self._asked, running))))
        found = [running.found.pop(i, None) for i in gate.places]
        running.ahead.difference_update(gate.places)
        if not running.ahead:  # gradients that nobody asks for go with it
            self.passes.pop(number, None)
        return found

    def _asked(self, running: _Pass) -> list[bool]:
        beyond = [edge for gate in running.led for edge, _ in gate.next_functions if edge is not None]
        is_whole = _number() < 0 or all(map(is_executed, (*running.led, *beyond)))
        found = [is_whole] * self.n_inputs
        for node, places in () if is_whole else self.all:
            edges = () if (gate := node()) is None else gate.next_functions
            for i, (edge, _) in zip(places, edges, strict=False):
                found[i] = edge is not None and is_executed(edge)
        return found


def _number() -> int:
    """Of the backward pass that runs; one that was recorded is none of the engine's, and has its thread's, negated."""
    number = running_pass()
    return number if number >= 0 else -threading.get_ident()


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: _Gates, places: Sequence[int], run: Callable[[Any], Sequence[Any]] | None, *_: Tensor):  # type: ignore[no-untyped-def]
        ctx.gates, ctx.places, ctx.is_main = gates, places, run is not None
        ctx.set_materialize_grads(False)
        gates.all.append((weakref.ref(ctx), places))
        token = torch.zeros((), device=gates.device)
        if run is None:
            return token
        gates.main = weakref.ref(ctx)
        outs = run(ctx)
        ctx.mark_non_differentiable(*[v for v in outs if isinstance(v, Tensor)])
        return (token, *outs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return None, None, None, *ctx.gates.taken(ctx), None  # the engine takes one too many: a gate may be of no input


class _Outs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: _Gates, places: Sequence[int], outs: Sequence[Tensor], kept: Sequence[Tensor], *tokens: Tensor
    ) -> Any:
        """``kept`` holds the node that has what forward saved, where no token does."""
        ctx.gates, ctx.places, ctx.n, ctx.kept = gates, places, len(tokens), kept
        ctx.set_materialize_grads(False)
        return tuple(v.detach() for v in outs)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        ctx.gates.arrive(ctx.places, incoming, [gate for gate, _ in ctx.next_functions])
        token = None if ctx.gates.device.type == "cpu" else torch.zeros((), device=ctx.gates.device)
        return None, None, None, None, *[token] * ctx.n


def _gate(
    gates: _Gates, places: Sequence[int], run: Callable[[Any], Sequence[Any]] | None, inputs: Sequence[Any]
) -> Any:
    """A gate to the inputs at these places; to none, where backward comes to hooks alone."""
    beyond = [inputs[i] for i in places] or [torch.zeros((), requires_grad=True)]
    return _Gate.apply(gates, places, run, *beyond)  # type: ignore[no-untyped-call]


def applied(
    run: Callable[[Any], Sequence[Any]],
    gradients: Gradients,
    inputs: Sequence[Any],
    reached: Mapping[int, frozenset[int]],
    hooked: Sequence[int],
    active: Sequence[int],
    n_outs: int,
) -> tuple[Any, ...]:
    """The outputs of a call. ``run`` computes them, and saves what backward needs on the node that it is given;
    ``reached``: the inputs that some outputs do not lead to, by those that do; ``hooked``: those of which hooks hear,
    in the order in which gradients come to them; ``active``: the outputs that may have a gradient."""
    devices = [v.device for v in inputs if isinstance(v, Tensor) and v.device.type != "cpu"]
    gates = _Gates(gradients, len(inputs), n_outs, (*devices, torch.device("cpu"))[0])
    everywhere = frozenset(active)
    turns = {i: -turn for turn, i in enumerate(hooked)} if len(hooked) > 1 else {}
    behind: dict[tuple[frozenset[int], int], list[int]] = {}
    for i, value in enumerate(inputs):
        if isinstance(value, Tensor) and value.requires_grad:
            behind.setdefault((reached.get(i, everywhere), turns.get(i, 1)), []).append(i)
    if all(turn < 1 for _, turn in behind):
        behind[everywhere, 1] = []
    *others, (last, places) = sorted(behind.items(), key=lambda pair: (pair[0][1], len(pair[0][0])))
    tokens = {key: _gate(gates, own, None, inputs) for key, own in others}
    tokens[last], *found = _gate(gates, places, run, inputs)
    alike: dict[frozenset[Any], list[int]] = {}
    for i in active:
        alike.setdefault(frozenset(key for key in tokens if i in key[0]), []).append(i)
    for leads, own in alike.items():
        led = [token for key, token in tokens.items() if key in leads]
        if not led:  # to what the function made: then hooks there are all that backward comes to
            led.append(_gate(gates, (), None, inputs))
        made = _Outs.apply(gates, own, [found[i] for i in own], (tokens[last],), *led)  # type: ignore[no-untyped-call]
        for i, value in zip(own, made, strict=True):
            found[i] = value
    return tuple(found)
