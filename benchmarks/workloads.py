"""The workloads, from one small leaf to a transformer. Each is a PyTorch function, the same in jax.numpy, and seeded
inputs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .workload import Draws, Tree, Workload, jax, jnp

# ── dispatch: 1, 10 and 100 leaves ───────────────────────────────────────────────────────────────────────────────


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def squares(p: dict[str, Tensor]) -> Tensor:
    return torch.stack([(v * v).sum() for v in p.values()]).sum()


def jax_squares(p: dict[str, Any]) -> Any:
    return jnp.stack([(v * v).sum() for v in p.values()]).sum()


def leaves(count: int) -> Workload:
    """The sum of squares of many small leaves: nearly all of it is dispatch."""

    def inputs(small: bool) -> tuple[Tree, ...]:
        draws = Draws()
        return ({f"w{i}": draws.normal(16) for i in range(count)},)

    return Workload(f"{count} leaves", inputs, squares, jax_squares)


# ── pointwise and reductions ─────────────────────────────────────────────────────────────────────────────────────


def lennard_jones(x: Tensor) -> Tensor:
    d = x[:, None] - x[None, :]
    r2 = (d * d).sum(-1) + torch.eye(x.shape[0], device=x.device)
    s = 1 / (r2 * r2 * r2)
    return 2 * (s * s - s).sum()


def jax_lennard_jones(x: Any) -> Any:
    d = x[:, None] - x[None, :]
    r2 = (d * d).sum(-1) + jnp.eye(x.shape[0])
    s = 1 / (r2 * r2 * r2)
    return 2 * (s * s - s).sum()


def lennard_jones_inputs(small: bool) -> tuple[Tree, ...]:
    """Positions near a cubic lattice."""
    sides = (3, 3, 4) if small else (8, 8, 16)
    lattice = torch.cartesian_prod(*(torch.arange(float(n)) for n in sides))
    return (1.2 * lattice + Draws().normal(*lattice.shape, scale=0.05),)


def chain(x: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.exp(-(torch.tanh(torch.sin(x)) ** 2))
        x = torch.cos(torch.log1p(torch.sigmoid(x) ** 2))
    return torch.cos(torch.sin(x)).sum()


def jax_chain(x: Any) -> Any:
    for _ in range(3):
        x = jnp.exp(-(jnp.tanh(jnp.sin(x)) ** 2))
        x = jnp.cos(jnp.log1p(jax.nn.sigmoid(x) ** 2))
    return jnp.cos(jnp.sin(x)).sum()


def softmax_layer_norm(p: dict[str, Tensor], target: Tensor) -> Tensor:
    h = F.layer_norm(torch.softmax(p["x"], -1), p["w"].shape, p["w"], p["b"])
    return ((h - target) ** 2).mean()


def jax_layer_norm(x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def jax_softmax_layer_norm(p: dict[str, Any], target: Any) -> Any:
    h = jax_layer_norm(jax.nn.softmax(p["x"], -1), p["w"], p["b"])
    return ((h - target) ** 2).mean()


def softmax_layer_norm_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (n, d) = Draws(), (8, 32) if small else (4096, 1024)
    return {
        "x": draws.normal(n, d, scale=2.0),
        "w": 1 + draws.normal(d, scale=0.1),
        "b": draws.normal(d),
    }, draws.normal(n, d)


# ── dense layers ─────────────────────────────────────────────────────────────────────────────────────────────────


def logistic(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x @ p["w"] + p["b"], y)


def jax_logistic(p: dict[str, Any], x: Any, y: Any) -> Any:
    z = x @ p["w"] + p["b"]
    return (jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))).mean()


def logistic_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (n, d) = Draws(), (50, 5) if small else (10_000, 100)
    return {"w": draws.normal(d, scale=0.1), "b": draws.normal()}, draws.normal(n, d), draws.integers(2, n).float()


def jax_cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def perceptron(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    for w, b in layers[:-1]:
        x = F.gelu(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def jax_perceptron(layers: list[tuple[Any, Any]], x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jax.nn.gelu(x @ w + b, approximate=False)
    return x @ layers[-1][0] + layers[-1][1]


def mlp(layers: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(perceptron(layers, x), y)


def jax_mlp(layers: list[tuple[Any, Any]], x: Any, y: Any) -> Any:
    return jax_cross_entropy(jax_perceptron(layers, x), y)


def mlp_of_one(layers: list[tuple[Tensor, Tensor]], x: Tensor, y: Tensor) -> Tensor:
    """The loss of one sample, to be mapped."""
    return F.cross_entropy(perceptron(layers, x[None]), y[None])


def jax_mlp_of_one(layers: list[tuple[Any, Any]], x: Any, y: Any) -> Any:
    return jax_cross_entropy(jax_perceptron(layers, x[None]), y[None])


def _layers(draws: Draws, sizes: tuple[int, ...]) -> Tree:
    return [(draws.matrix(m, n), draws.normal(n, scale=0.1)) for m, n in itertools.pairwise(sizes)]


def mlp_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n, sizes = Draws(), 8 if small else 256, (12, 16, 16, 10) if small else (512, 512, 512, 10)
    return _layers(draws, sizes), draws.normal(n, sizes[0]), draws.integers(10, n)


def per_sample_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n, sizes = Draws(), 4 if small else 128, (12, 16, 10) if small else (128, 256, 10)
    return _layers(draws, sizes), draws.normal(n, sizes[0]), draws.integers(10, n)


def hvp_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n, sizes = Draws(), 8 if small else 256, (12, 16, 10) if small else (256, 256, 256, 10)
    return _layers(draws, sizes), _layers(draws, sizes), draws.normal(n, sizes[0]), draws.integers(10, n)


def embedding(p: dict[str, Tensor], tokens: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.embedding(tokens, p["table"]) @ p["out"], y)


def jax_embedding(p: dict[str, Any], tokens: Any, y: Any) -> Any:
    return jax_cross_entropy(p["table"][tokens] @ p["out"], y)


def embedding_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (words, d, n) = Draws(), (20, 8, 10) if small else (8192, 128, 512)
    return (
        {"table": draws.normal(words, d), "out": draws.matrix(d, words)},
        draws.integers(words, n),
        draws.integers(words, n),
    )


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def transformer(p: dict[str, Any], x: Tensor, target: Tensor) -> Tensor:
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    for k in p["blocks"]:
        h = F.layer_norm(x, x.shape[-1:], k["w1"], k["b1"])
        q, key, v = (t.unflatten(-1, (-1, 32)).transpose(1, 2) for t in (h @ k["qkv"]).chunk(3, -1))
        scores = (q @ key.transpose(-1, -2) / math.sqrt(32)).masked_fill(~mask, -math.inf)
        x = x + (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2) @ k["proj"]
        h = F.layer_norm(x, x.shape[-1:], k["w2"], k["b2"])
        x = x + F.gelu(h @ k["up"]) @ k["down"]
    return ((x @ p["out"] - target) ** 2).mean()


def jax_transformer(p: dict[str, Any], x: Any, target: Any) -> Any:
    b, t, d = x.shape
    mask = jnp.tril(jnp.ones((t, t), dtype=bool))
    for k in p["blocks"]:
        h = jax_layer_norm(x, k["w1"], k["b1"])
        q, key, v = (a.reshape(b, t, -1, 32).transpose(0, 2, 1, 3) for a in jnp.split(h @ k["qkv"], 3, -1))
        scores = jnp.where(mask, q @ key.swapaxes(-1, -2) / math.sqrt(32), -math.inf)
        x = x + (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ k["proj"]
        h = jax_layer_norm(x, k["w2"], k["b2"])
        x = x + jax.nn.gelu(h @ k["up"], approximate=False) @ k["down"]
    return ((x @ p["out"] - target) ** 2).mean()


def transformer_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (b, t, d) = Draws(), (2, 6, 64) if small else (4, 128, 256)
    blocks = [
        {
            **{name: 1 + draws.normal(d, scale=0.1) for name in ("w1", "w2")},
            **{name: draws.normal(d, scale=0.1) for name in ("b1", "b2")},
            **{
                "qkv": draws.matrix(d, 3 * d),
                "proj": draws.matrix(d, d),
                "up": draws.matrix(d, 4 * d),
                "down": draws.matrix(4 * d, d),
            },
        }
        for _ in range(2)
    ]
    return {"blocks": blocks, "out": draws.matrix(d, d)}, draws.normal(b, t, d), draws.normal(b, t, d)


def conv_net(p: dict[str, Any], x: Tensor, y: Tensor) -> Tensor:
    for w, b in p["convs"]:
        x = F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2)
    return F.cross_entropy(x.flatten(1) @ p["w"] + p["b"], y)


def jax_conv_net(p: dict[str, Any], x: Any, y: Any) -> Any:
    for w, b in p["convs"]:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME") + b[:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jax_cross_entropy(x.reshape(x.shape[0], -1) @ p["w"] + p["b"], y)


def conv_net_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (n, side, channels) = Draws(), (2, 8, (3, 4, 8)) if small else (32, 32, (3, 16, 32))
    pairs = itertools.pairwise(channels)
    convs = [(draws.normal(o, i, 3, 3, scale=(9 * i) ** -0.5), draws.normal(o, scale=0.1)) for i, o in pairs]
    p = {"convs": convs, "w": draws.matrix(channels[-1] * (side // 4) ** 2, 10), "b": draws.normal(10, scale=0.1)}
    return p, draws.normal(n, 3, side, side), draws.integers(10, n)


def lstm(p: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
    h = c = torch.zeros(x.shape[1], p["u"].shape[0], device=x.device)
    for step in x:
        i, f, g, o = (step @ p["w"] + h @ p["u"] + p["b"]).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return ((h - target) ** 2).mean()


def jax_lstm(p: dict[str, Any], x: Any, target: Any) -> Any:
    h = c = jnp.zeros((x.shape[1], p["u"].shape[0]))
    for step in x:
        i, f, g, o = jnp.split(step @ p["w"] + h @ p["u"] + p["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return ((h - target) ** 2).mean()


def lstm_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (steps, n, d, hidden) = Draws(), (4, 3, 5, 6) if small else (32, 32, 64, 128)
    p = {
        "w": draws.matrix(d, 4 * hidden),
        "u": draws.matrix(hidden, 4 * hidden),
        "b": draws.normal(4 * hidden, scale=0.1),
    }
    return p, draws.normal(steps, n, d), draws.normal(n, hidden)


# ── statistics, and an optimiser ─────────────────────────────────────────────────────────────────────────────────


def gaussian_process(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    z = x / p["log_length"].exp()
    r2 = ((z[:, None] - z[None, :]) ** 2).sum(-1)
    k = (2 * p["log_scale"]).exp() * torch.exp(-0.5 * r2) + p["log_noise"].exp() * torch.eye(len(y), device=x.device)
    root = torch.linalg.cholesky(k)
    alpha = torch.cholesky_solve(y[:, None], root)[:, 0]
    return 0.5 * (y @ alpha) + root.diagonal().log().sum() + 0.5 * len(y) * math.log(2 * math.pi)


def jax_gaussian_process(p: dict[str, Any], x: Any, y: Any) -> Any:
    z = x / jnp.exp(p["log_length"])
    r2 = ((z[:, None] - z[None, :]) ** 2).sum(-1)
    k = jnp.exp(2 * p["log_scale"]) * jnp.exp(-0.5 * r2) + jnp.exp(p["log_noise"]) * jnp.eye(len(y))
    root = jnp.linalg.cholesky(k)
    alpha = jax.scipy.linalg.cho_solve((root, True), y)
    return 0.5 * (y @ alpha) + jnp.log(jnp.diagonal(root)).sum() + 0.5 * len(y) * math.log(2 * math.pi)


def gaussian_process_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n = Draws(), 16 if small else 256
    p = {
        "log_length": draws.normal(4, scale=0.1),
        "log_scale": draws.normal(scale=0.1),
        "log_noise": torch.tensor(-1.5),
    }
    x = draws.normal(n, 4, scale=1.5)
    return p, x, torch.sin(x).sum(-1) + draws.normal(n, scale=0.3)


def adam(p: dict[str, Tensor], grads: dict[str, Tensor], state: dict[str, Any]) -> tuple[Tree, Tree]:
    """One step: new parameters and new state."""
    step = state["step"] + 1
    m = {k: 0.9 * state["m"][k] + 0.1 * g for k, g in grads.items()}
    v = {k: 0.999 * state["v"][k] + 0.001 * g * g for k, g in grads.items()}
    rate, correction = 1e-3 / (1 - 0.9**step), 1 - 0.999**step
    new = {k: w - rate * m[k] / ((v[k] / correction).sqrt() + 1e-8) for k, w in p.items()}
    return new, {"m": m, "v": v, "step": step}


def jax_adam(p: dict[str, Any], grads: dict[str, Any], state: dict[str, Any]) -> tuple[Tree, Tree]:
    step = state["step"] + 1
    m = {k: 0.9 * state["m"][k] + 0.1 * g for k, g in grads.items()}
    v = {k: 0.999 * state["v"][k] + 0.001 * g * g for k, g in grads.items()}
    rate, correction = 1e-3 / (1 - 0.9**step), 1 - 0.999**step
    new = {k: w - rate * m[k] / (jnp.sqrt(v[k] / correction) + 1e-8) for k, w in p.items()}
    return new, {"m": m, "v": v, "step": step}


def adam_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (count, size) = Draws(), (5, 4) if small else (100, 1000)
    p, grads, m = ({f"w{i}": draws.normal(size) for i in range(count)} for _ in range(3))
    return p, grads, {"m": m, "v": {k: g * g for k, g in m.items()}, "step": torch.tensor(10.0)}


WORKLOADS = (
    Workload("rosenbrock", lambda small: (Draws().normal(10),), rosenbrock, rosenbrock),
    leaves(10),
    leaves(100),
    Workload("pairwise forces", lennard_jones_inputs, lennard_jones, jax_lennard_jones),
    Workload("pointwise chain", lambda small: (Draws().normal(2**6 if small else 2**20),), chain, jax_chain),
    Workload("softmax + layer norm", softmax_layer_norm_inputs, softmax_layer_norm, jax_softmax_layer_norm),
    Workload("logistic regression", logistic_inputs, logistic, jax_logistic),
    Workload("mlp", mlp_inputs, mlp, jax_mlp),
    Workload("transformer", transformer_inputs, transformer, jax_transformer),
    Workload("per-sample gradients", per_sample_inputs, mlp_of_one, jax_mlp_of_one, "per_sample"),
    Workload("hessian-vector product", hvp_inputs, mlp, jax_mlp, "hvp"),
    Workload("conv net", conv_net_inputs, conv_net, jax_conv_net),
    Workload("gaussian process", gaussian_process_inputs, gaussian_process, jax_gaussian_process),
    Workload("lstm", lstm_inputs, lstm, jax_lstm),
    Workload("adam, 100 leaves", adam_inputs, adam, jax_adam, "plain"),
    Workload("embedding + cross-entropy", embedding_inputs, embedding, jax_embedding),
)
