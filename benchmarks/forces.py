"""Force training: an equivariant energy model, after e3nn (arXiv:2207.09453): vectors of neighbours in spherical
harmonics of degree 0 to 2, weighted by a perceptron of their lengths; an energy of invariants; forces by an inner
gradient; a loss of both."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .workload import Draws, Tree


def harmonics(r: Tensor) -> Tensor:
    """Real spherical harmonics of unit vectors ``[n, 3]``, degrees 0, 1 and 2, normalised by component: ``[n, 9]``."""
    x, y, z = r.unbind(-1)
    second = [
        3**0.5 * x * z,
        3**0.5 * x * y,
        y * y - 0.5 * (x * x + z * z),
        3**0.5 * y * z,
        3**0.5 / 2 * (z * z - x * x),
    ]
    return torch.cat([torch.ones_like(x)[:, None], 3**0.5 * r, 5**0.5 * torch.stack(second, -1)], -1)


def radial(length: Tensor, n: int, cutoff: float) -> Tensor:
    """Smooth bumps over distances ``[n_edges]``: ``[n_edges, n]``."""
    centres = torch.linspace(0, cutoff, n, dtype=length.dtype)
    bumps = torch.exp(-(((length[:, None] - centres) / (cutoff / n)) ** 2))
    return bumps * (0.5 * (torch.cos(torch.pi * length / cutoff) + 1))[:, None]


def energy(p: dict[str, Tensor], positions: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The energy of atoms at ``positions [atoms, 3]``; edges ``source → target`` are pairs within the cutoff."""
    edges = positions[target] - positions[source]
    length = edges.norm(dim=-1)
    weights = F.silu(radial(length, p["w1"].shape[0], 3.0) @ p["w1"]) @ p["w2"]  # [edges, channels]
    messages = weights[:, :, None] * harmonics(edges / length[:, None])[:, None, :]  # [edges, channels, 9]
    atoms = positions.new_zeros(len(positions), *messages.shape[1:]).index_add(0, target, messages)
    # [atoms, 3 * channels]
    invariants = torch.cat([(atoms[..., a:b] ** 2).sum(-1) for a, b in ((0, 1), (1, 4), (4, 9))], -1)
    return (F.silu(invariants @ p["v1"]) @ p["v2"]).sum()


def loss(
    p: dict[str, Tensor], positions: Tensor, source: Tensor, target: Tensor, energies: Tensor, forces: Tensor
) -> Tensor:
    """Errors of the energy and of the forces, which are its gradient."""
    gradient, value = torch.func.grad_and_value(energy, argnums=1)(p, positions, source, target)
    return (value - energies) ** 2 / len(positions) + 10 * (gradient + forces).square().mean()


def autograd_loss(
    p: dict[str, Tensor], positions: Tensor, source: Tensor, target: Tensor, energies: Tensor, forces: Tensor
) -> Tensor:
    """The same as training scripts write it, with ``torch.autograd.grad``."""
    positions = positions.detach().requires_grad_()
    value = energy(p, positions, source, target)
    (gradient,) = torch.autograd.grad(value, positions, create_graph=True)
    return (value - energies) ** 2 / len(positions) + 10 * (gradient + forces).square().mean()


def inputs(small: bool) -> tuple[Tree, ...]:
    draws, side, channels = Draws(), 2 if small else 4, 4 if small else 16
    grid = torch.cartesian_prod(*(torch.arange(float(side)) for _ in range(3)))
    positions = 1.3 * grid + draws.normal(*grid.shape, scale=0.1)
    distances = torch.cdist(positions, positions)
    source, target = ((distances < 3.0) & ~torch.eye(len(grid), dtype=torch.bool)).nonzero(as_tuple=True)
    p: dict[str, Any] = {"w1": draws.matrix(8, 32), "w2": draws.matrix(32, channels)}
    p |= {"v1": draws.matrix(3 * channels, 32), "v2": draws.matrix(32, 1)}
    return p, positions, source, target, draws.normal(), draws.normal(*positions.shape, scale=0.1)
