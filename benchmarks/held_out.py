"""Six functions in the way people write them. They were held out when they were written, and have been worked on
since. In JAX, time steps are its own loops: unrolled, ``jax.jit`` compiles them for most of a minute, and the heat
equation then runs fifty times slower."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .workload import Draws, Tree, Workload, jax, jnp
from .workloads import jax_cross_entropy

# ── statistics ───────────────────────────────────────────────────────────────────────────────────────────────────


def gaussian_mixture(p: dict[str, Tensor], x: Tensor) -> Tensor:
    """Negative log-likelihood; ``root`` are the Cholesky factors of the precisions."""
    diagonal = p["root"].diagonal(dim1=-2, dim2=-1)
    root = torch.tril(p["root"], -1) + torch.diag_embed(diagonal.exp())
    z = torch.einsum("kij,nkj->nki", root, x[:, None] - p["mean"])
    log_prob = (
        torch.log_softmax(p["weight"], 0)
        + diagonal.sum(-1)
        - 0.5 * z.square().sum(-1)
        - 0.5 * x.shape[1] * math.log(2 * math.pi)
    )
    return -torch.logsumexp(log_prob, 1).mean()


def jax_gaussian_mixture(p: dict[str, Any], x: Any) -> Any:
    diagonal = jnp.diagonal(p["root"], axis1=-2, axis2=-1)
    root = jnp.tril(p["root"], -1) + jax.vmap(jnp.diag)(jnp.exp(diagonal))
    z = jnp.einsum("kij,nkj->nki", root, x[:, None] - p["mean"])
    quadratic = 0.5 * jnp.square(z).sum(-1)
    log_prob = jax.nn.log_softmax(p["weight"]) + diagonal.sum(-1) - quadratic - 0.5 * x.shape[1] * math.log(2 * math.pi)
    return -jax.scipy.special.logsumexp(log_prob, 1).mean()


def gaussian_mixture_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (n, d, k) = Draws(), (20, 3, 4) if small else (4000, 10, 16)
    return {
        "weight": draws.normal(k),
        "mean": draws.normal(k, d),
        "root": draws.normal(k, d, d, scale=0.3),
    }, draws.normal(n, d, scale=1.5)


def kalman_filter(p: dict[str, Tensor], observations: Tensor) -> Tensor:
    """Negative log-likelihood of a linear Gaussian state-space model."""
    a, h, n = p["transition"], p["observation"], p["transition"].shape[0]
    q, r = torch.diag(p["log_q"].exp()), torch.diag(p["log_r"].exp())
    mean, cov, total = torch.zeros(n), torch.eye(n), torch.zeros(())
    for y in observations:
        mean, cov = a @ mean, a @ cov @ a.T + q
        innovation, s = y - h @ mean, h @ cov @ h.T + r
        gain = torch.linalg.solve(s, h @ cov).T
        total = total + 0.5 * (innovation @ torch.linalg.solve(s, innovation) + torch.logdet(s))
        mean, cov = mean + gain @ innovation, (torch.eye(n) - gain @ h) @ cov
    return total


def jax_kalman_filter(p: dict[str, Any], observations: Any) -> Any:
    a, h, n = p["transition"], p["observation"], p["transition"].shape[0]
    q, r = jnp.diag(jnp.exp(p["log_q"])), jnp.diag(jnp.exp(p["log_r"]))

    def step(carry: Any, y: Any) -> Any:
        mean, cov, total = carry
        mean, cov = a @ mean, a @ cov @ a.T + q
        innovation, s = y - h @ mean, h @ cov @ h.T + r
        gain = jnp.linalg.solve(s, h @ cov).T
        total = total + 0.5 * (innovation @ jnp.linalg.solve(s, innovation) + jnp.linalg.slogdet(s)[1])
        return (mean + gain @ innovation, (jnp.eye(n) - gain @ h) @ cov, total), None

    return jax.lax.scan(step, (jnp.zeros(n), jnp.eye(n), jnp.zeros(())), observations)[0][2]


def kalman_filter_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (steps, n, m) = Draws(), (4, 3, 2) if small else (50, 4, 2)
    transition, observation = 0.9 * torch.eye(n) + draws.normal(n, n, scale=0.05), draws.normal(m, n)
    return {
        "transition": transition,
        "observation": observation,
        "log_q": draws.normal(n),
        "log_r": draws.normal(m),
    }, draws.normal(steps, m)


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


def rotary_attention(p: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
    b, t, d = x.shape
    q, k, v = (x.matmul(p[name]).view(b, t, -1, 64).transpose(1, 2) for name in ("q", "k", "v"))
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).float() / 64)
    angles = torch.outer(torch.arange(t).float(), frequencies)
    angles = torch.cat((angles, angles), -1)
    cos, sin = angles.cos(), angles.sin()
    q, k = q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.mse_loss(y.transpose(1, 2).contiguous().view(b, t, d).matmul(p["out"]), target)


def _jax_rotate_half(x: Any) -> Any:
    left, right = jnp.split(x, 2, -1)
    return jnp.concatenate((-right, left), -1)


def jax_rotary_attention(p: dict[str, Any], x: Any, target: Any) -> Any:
    b, t, d = x.shape
    q, k, v = ((x @ p[name]).reshape(b, t, -1, 64).swapaxes(1, 2) for name in ("q", "k", "v"))
    frequencies = 1.0 / 10000.0 ** (jnp.arange(0, 64, 2) / 64)
    angles = jnp.outer(jnp.arange(t), frequencies)
    angles = jnp.concatenate((angles, angles), -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    q, k = q * cos + _jax_rotate_half(q) * sin, k * cos + _jax_rotate_half(k) * sin
    scores = jnp.where(jnp.tril(jnp.ones((t, t), dtype=bool)), q @ k.swapaxes(-1, -2) / 8.0, -math.inf)
    y = jax.nn.softmax(scores, -1) @ v
    return jnp.square(y.swapaxes(1, 2).reshape(b, t, d) @ p["out"] - target).mean()


def rotary_attention_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (b, t, d) = Draws(), (2, 5, 128) if small else (4, 128, 256)
    return {name: draws.matrix(d, d) for name in ("q", "k", "v", "out")}, draws.normal(b, t, d), draws.normal(b, t, d)


def graph_convolution(p: list[tuple[Tensor, Tensor]], x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
    source, target = edges
    degree = torch.zeros(x.shape[0]).scatter_add_(0, target, torch.ones(target.shape[0])).clamp(min=1)
    norm = (degree[source] * degree[target]).rsqrt()
    for i, (w, b) in enumerate(p):
        h = x @ w
        messages = h[source] * norm[:, None]
        x = torch.zeros_like(h).index_add_(0, target, messages) + b
        if i < len(p) - 1:
            x = x.relu()
    return F.cross_entropy(x, y)


def jax_graph_convolution(p: list[tuple[Any, Any]], x: Any, edges: Any, y: Any) -> Any:
    source, target = edges
    degree = jnp.clip(jnp.zeros(x.shape[0]).at[target].add(1.0), 1)
    norm = jax.lax.rsqrt(degree[source] * degree[target])
    for i, (w, b) in enumerate(p):
        h = x @ w
        messages = h[source] * norm[:, None]
        x = jnp.zeros_like(h).at[target].add(messages) + b
        if i < len(p) - 1:
            x = jax.nn.relu(x)
    return jax_cross_entropy(x, y)


def graph_convolution_inputs(small: bool) -> tuple[Tree, ...]:
    draws, (nodes, edges, sizes) = Draws(), (10, 30, (6, 5, 4)) if small else (2000, 10_000, (64, 64, 8))
    p = [(draws.matrix(m, n), draws.normal(n, scale=0.1)) for m, n in (sizes[:2], sizes[1:])]
    return p, draws.normal(nodes, sizes[0]), draws.integers(nodes, 2, edges), draws.integers(sizes[-1], nodes)


# ── optimal transport and differential equations ─────────────────────────────────────────────────────────────────


def sinkhorn(x: Tensor, y: Tensor) -> Tensor:
    """Entropic transport cost between two clouds of points, 20 iterations."""
    cost, eps = ((x[:, None] - y[None]) ** 2).sum(-1), 0.1
    log_mu, log_nu = -math.log(x.shape[0]), -math.log(y.shape[0])
    u, v = torch.zeros(x.shape[0]), torch.zeros(y.shape[0])
    for _ in range(20):
        u = eps * (log_mu - torch.logsumexp((v[None, :] - cost) / eps, 1))
        v = eps * (log_nu - torch.logsumexp((u[:, None] - cost) / eps, 0))
    return (torch.exp((u[:, None] + v[None, :] - cost) / eps) * cost).sum()


def jax_sinkhorn(x: Any, y: Any) -> Any:
    cost, eps = ((x[:, None] - y[None]) ** 2).sum(-1), 0.1
    log_mu, log_nu = -math.log(x.shape[0]), -math.log(y.shape[0])
    u, v = jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])
    for _ in range(20):
        u = eps * (log_mu - jax.scipy.special.logsumexp((v[None, :] - cost) / eps, 1))
        v = eps * (log_nu - jax.scipy.special.logsumexp((u[:, None] - cost) / eps, 0))
    return (jnp.exp((u[:, None] + v[None, :] - cost) / eps) * cost).sum()


def sinkhorn_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n = Draws(), 12 if small else 256
    return draws.normal(n, 2, scale=0.5), draws.normal(n, 2, scale=0.5) + 0.5


def heat(p: dict[str, Tensor], observed: Tensor) -> Tensor:
    """Explicit steps of the heat equation, the border held; how far the end is from what was observed."""
    u = p["initial"].clone()
    for _ in range(50):
        laplacian = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u[1:-1, 1:-1] += p["diffusivity"] * laplacian
    return F.mse_loss(u, observed)


def jax_heat(p: dict[str, Any], observed: Any) -> Any:
    def step(_: Any, u: Any) -> Any:
        laplacian = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        return u.at[1:-1, 1:-1].add(p["diffusivity"] * laplacian)

    return jnp.square(jax.lax.fori_loop(0, 50, step, p["initial"]) - observed).mean()


def heat_inputs(small: bool) -> tuple[Tree, ...]:
    draws, n = Draws(), 8 if small else 128
    return {"initial": draws.normal(n, n), "diffusivity": torch.tensor(0.2)}, draws.normal(n, n)


HELD_OUT = (
    Workload("gaussian mixture", gaussian_mixture_inputs, gaussian_mixture, jax_gaussian_mixture),
    Workload("kalman filter", kalman_filter_inputs, kalman_filter, jax_kalman_filter),
    Workload("rotary attention", rotary_attention_inputs, rotary_attention, jax_rotary_attention),
    Workload("graph convolution", graph_convolution_inputs, graph_convolution, jax_graph_convolution),
    Workload("sinkhorn", sinkhorn_inputs, sinkhorn, jax_sinkhorn),
    Workload("heat equation", heat_inputs, heat, jax_heat),
)
