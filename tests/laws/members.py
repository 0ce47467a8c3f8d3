"""PyTorch's databases of modules and optimisers: a module's result, gradients and buffers, and the parameters and
the state that an optimiser's step leaves, compiled and in eager PyTorch."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db
from torch.utils._pytree import tree_leaves, tree_map_only

import funcgrad as fg

from . import regions

Pair = tuple[Callable[[], Any], Callable[[], Any]]
Check = Callable[[Pair], str | None]
Case = tuple[str, Callable[[int | None], Iterator[str]]]

DTYPE = torch.float64


# ── modules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _called(module: Any, call: Callable[..., Any], args: Any, kwargs: Any, region: Any = None) -> Any:
    """Two forward and backward passes: results, gradients of arguments and parameters, and what the module holds
    after them."""
    results = []
    for _ in range(2):
        own_args, own_kwargs = tree_map_only(
            Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), (args, kwargs)
        )
        module.zero_grad()
        out = call(*own_args, **own_kwargs)
        roots = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        with region or contextlib.nullcontext():
            if roots:
                torch.autograd.backward(
                    roots, [torch.linspace(0.5, 1.5, t.numel(), dtype=DTYPE).to(t.dtype).view(t.shape) for t in roots]
                )
        taken = [t.grad for t in tree_leaves((own_args, own_kwargs)) if isinstance(t, Tensor)]
        gradients = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        results.append((tree_map_only(Tensor, Tensor.detach, out), taken, gradients))
    return results, {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def modules(checked: Check) -> Iterator[Case]:
    """Each module of the database, in training and not."""
    return _modules(checked, _pair_of_modules)


def backward_of_modules(checked: Check) -> Iterator[Case]:
    """The same modules, of which the backward passes are captured from the autograd engine: two of one shape are one
    capture."""
    return _modules(checked, _pair_of_backwards)


def _modules(checked: Check, pair: Callable[[Any, Any], Pair]) -> Iterator[Case]:

    def differences(info: Any, most: int | None) -> Iterator[str]:
        for training in (True, False):
            torch.manual_seed(0)
            given = info.module_inputs_func(info, device="cpu", dtype=DTYPE, requires_grad=True, training=training)
            for sample in itertools.islice(given, most):
                torch.manual_seed(1)
                built = sample.constructor_input
                module = info.module_cls(*built.args, **built.kwargs).to(DTYPE).train(training)
                text = checked(pair(module, sample.forward_input))
                if text is not None:
                    yield f"{'training' if training else 'evaluation'} {sample.desc}: {text}"

    for info in module_db:
        yield info.name.removeprefix("nn."), lambda most, info=info: differences(info, most)


def _pair_of_modules(module: Any, given: Any) -> Pair:
    eager, compiled = copy.deepcopy(module), copy.deepcopy(module)
    return (
        lambda: _called(eager, eager, given.args, given.kwargs),
        lambda: _called(compiled, fg.jit(compiled, backend="aten"), given.args, given.kwargs),
    )


def _pair_of_backwards(module: Any, given: Any) -> Pair:
    eager, captured = copy.deepcopy(module), copy.deepcopy(module)

    def under_region() -> Any:
        regions.reset()
        region = fg.compiled_autograd(backend="aten")
        found = _called(captured, captured, given.args, given.kwargs, region)
        return found, len(region.captures) <= 1, regions.refusals(region)

    return (lambda: (_called(eager, eager, given.args, given.kwargs), True, "")), under_region


# ── optimisers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _stepped(
    make: Callable[[Callable[..., Any]], Callable[..., Any]], info: Any, kwargs: dict[str, Any], inside: bool
) -> Any:
    """Three steps of training, with the gradient ``inside`` of the function that is compiled or before it: the
    losses, the parameters, and what the optimiser keeps of each."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(DTYPE)
    parameters = list(model.parameters())
    if info.only_supports_sparse_grads or "Muon" in info.optim_cls.__name__:
        parameters = [p for p in parameters if p.ndim == 2]
    optimiser = info.optim_cls(parameters, **copy.deepcopy(kwargs))
    batches = torch.randn(3, 5, 3, dtype=DTYPE)

    def loss(x: Tensor) -> Tensor:
        optimiser.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value.detach()

    def step(x: Tensor) -> Tensor:
        if info.step_requires_closure:
            return optimiser.step(lambda: loss(x)).detach()
        value = loss(x) if inside else x.sum()
        optimiser.step()
        return value

    compiled, losses = make(step), []
    for x in batches:
        if not inside:
            loss(x)
        losses.append(compiled(x))
    kept = [[optimiser.state[p].get(key) for key in sorted(optimiser.state[p])] for p in parameters]
    return losses, [p.detach() for p in parameters], kept


def optimisers(checked: Check) -> Iterator[Case]:
    """Each optimiser of the database in each of its configurations, and each way to carry out a step."""

    def differences(info: Any, most: int | None) -> Iterator[str]:
        for given in itertools.islice(_get_optim_inputs_including_global_cliquey_kwargs("cpu", DTYPE, info), most):
            for inside in (False,) if info.step_requires_closure else (True, False):
                makes: Any = (lambda f: f), (lambda f: fg.jit(f, backend="aten"))
                eager, compiled = (lambda make=make: _stepped(make, info, given.kwargs, inside) for make in makes)
                text = checked((eager, compiled))
                if text is not None:
                    yield f"{given.desc} {given.kwargs} {'with' if inside else 'after'} the backward pass: {text}"

    for info in optim_db:
        yield info.optim_cls.__name__, lambda most, info=info: differences(info, most)
