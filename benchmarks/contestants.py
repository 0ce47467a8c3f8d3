"""The contestants: a workload as eager autograd, torch.func, torch.compile, jax.jit and funcgrad run it; and whether
they agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import funcgrad as fg
from funcgrad.trees import flatten, unflatten

from .workload import Tree, Workload, jax, jnp

Call = Callable[[], Tree]

NAMES = ("funcgrad", "eager", "torch.func", "torch.compile", "jax")


def contestant(name: str, workload: Workload, inputs: tuple[Tree, ...]) -> Call:
    """``workload`` as the contestant of this name runs it, ready to be called; nothing is compiled yet."""
    if name == "eager":
        return eager(workload, inputs)
    if name == "jax":
        call, arrays = jax.jit(jax_function(workload)), jax.tree.map(lambda t: jnp.asarray(t.numpy()), inputs)
        return lambda: jax.block_until_ready(call(*arrays))
    make = {
        "funcgrad": funcgrad_function,
        "torch.func": torch_function,
        "torch.compile": lambda w: torch.compile(torch_function(w)),
    }
    function = make[name](workload)
    return lambda: function(*inputs)


def torch_function(workload: Workload) -> Callable[..., Tree]:
    """What the workload asks for, by torch.func."""
    loss = workload.loss

    def value_and_grad(p: Tree, *data: Tree) -> Tree:
        gradient, value = torch.func.grad_and_value(loss)(p, *data)
        return value, gradient

    def per_sample(p: Tree, *data: Tree) -> Tree:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, *(0 for _ in data)))(p, *data)

    def hvp(p: Tree, direction: Tree, *data: Tree) -> Tree:
        return torch.func.jvp(torch.func.grad(lambda q: loss(q, *data)), (p,), (direction,))[1]

    return {"value_and_grad": value_and_grad, "per_sample": per_sample, "hvp": hvp, "plain": loss}[workload.transform]


def funcgrad_function(workload: Workload) -> Callable[..., Tree]:
    """What the workload asks for, compiled by funcgrad."""
    if workload.transform == "value_and_grad":
        return fg.value_and_grad_compiled(workload.loss)
    return fg.jit(torch_function(workload))


def jax_function(workload: Workload) -> Callable[..., Tree]:
    """What the workload asks for, in JAX, not yet under jit."""
    loss = workload.jax_loss

    def per_sample(p: Tree, *data: Tree) -> Tree:
        return jax.vmap(jax.grad(loss), in_axes=(None, *(0 for _ in data)))(p, *data)

    def hvp(p: Tree, direction: Tree, *data: Tree) -> Tree:
        return jax.jvp(jax.grad(lambda q: loss(q, *data)), (p,), (direction,))[1]

    if workload.transform == "value_and_grad":
        return jax.value_and_grad(loss)
    return {"per_sample": per_sample, "hvp": hvp, "plain": loss}[workload.transform]


def eager(workload: Workload, inputs: tuple[Tree, ...]) -> Call:
    """Eager PyTorch with its autograd, as one writes it without torch.func: samples in a loop, an HVP by
    differentiating twice."""
    loss, data = workload.loss, inputs[1:]
    if workload.transform == "plain":
        return lambda: loss(*inputs)
    p = fg.tree_map(lambda t: t.clone().requires_grad_(), inputs[0])
    leaves, tree, _ = flatten(p)

    def value_and_grad() -> Tree:
        value = loss(p, *data)
        return value.detach(), unflatten(torch.autograd.grad(value, leaves), tree)

    def per_sample() -> Tree:
        each = [torch.autograd.grad(loss(p, *sample), leaves) for sample in zip(*data, strict=True)]
        return unflatten([torch.stack(gradients) for gradients in zip(*each, strict=True)], tree)

    def hvp() -> Tree:
        gradients = torch.autograd.grad(loss(p, *data[1:]), leaves, create_graph=True)
        return unflatten(torch.autograd.grad(gradients, leaves, flatten(data[0])[0]), tree)

    return {"value_and_grad": value_and_grad, "per_sample": per_sample, "hvp": hvp}[workload.transform]


def difference(result: Tree, reference: Tree) -> float:
    """The largest difference of an element, relative to the largest magnitude in its tensor; infinite where
    structures differ."""
    found, expected = _tensors(result), _tensors(reference)
    if [t.shape for t in found] != [t.shape for t in expected]:
        return float("inf")
    return max(
        ((a - b).abs().max() / b.abs().max()).nan_to_num(nan=torch.inf).item()
        for a, b in zip(found, expected, strict=True)
    )


def _tensors(tree: Tree) -> list[Tensor]:
    """Tensors and arrays alike, as tensors in double precision; dicts in the order of their keys (JAX sorts them)."""
    if isinstance(tree, (dict, list, tuple)):
        items = [tree[k] for k in sorted(tree)] if isinstance(tree, dict) else tree
        return [tensor for item in items for tensor in _tensors(item)]
    return [(tree if isinstance(tree, Tensor) else torch.from_numpy(np.array(tree))).double()]
