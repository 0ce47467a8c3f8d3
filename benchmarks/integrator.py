"""A long program: a Runge-Kutta integrator of the Lorenz system, unrolled. What counts is how its compilation grows."""

from __future__ import annotations

from typing import Any

import torch

from .workload import Draws, Tree, Workload

State = tuple[Any, Any, Any]


def velocity(state: State, p: dict[str, Any]) -> State:
    x, y, z = state
    return p["sigma"] * (y - x), x * (p["rho"] - z) - y, x * y - p["beta"] * z


def step(state: State, p: dict[str, Any], h: float) -> State:
    """One classical Runge-Kutta step."""

    def ahead(k: State, by: float) -> State:
        x, y, z = (s + by * d for s, d in zip(state, k, strict=True))
        return x, y, z

    k1 = velocity(state, p)
    k2 = velocity(ahead(k1, h / 2), p)
    k3 = velocity(ahead(k2, h / 2), p)
    k4 = velocity(ahead(k3, h), p)
    x, y, z = (a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return ahead((x, y, z), h / 6)


def integrator(steps: int) -> Workload:
    """How far many trajectories end from where they should, by the constants of the system and where they start."""

    def loss(p: dict[str, Any], target: Any) -> Any:
        state: State = (p["x"], p["y"], p["z"])
        for _ in range(steps):
            state = step(state, p, 0.01)
        return ((state[0] - target) ** 2).mean()

    def inputs(small: bool) -> tuple[Tree, ...]:
        draws, n = Draws(), 4 if small else 64
        constants = {name: torch.tensor(value) for name, value in {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}.items()}
        return {**constants, **{name: draws.normal(n) for name in "xyz"}}, draws.normal(n)

    return Workload(f"runge-kutta, {steps} steps", inputs, loss, loss)
