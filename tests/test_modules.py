"""Every sample of torch's module database, in eval mode: outputs and gradients of ``jit`` and ``grad_compiled`` equal eager's."""

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import funcgrad as fg


def tensors(tree):
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def samples(info):
    """The samples eager PyTorch itself can run on a CPU in float32, each as ``(module, args, kwargs)``."""
    for sample in info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=False):
        torch.manual_seed(0)
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).eval()
        given = sample.forward_input
        yield module, given.args if given else (), given.kwargs if given else {}


def fresh(tree):
    return pytree.tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, tree)


def objective(out):
    return sum((t.abs() if t.is_complex() else t).sum() for t in tensors(out) if t.requires_grad)


def run(function, module, args, kwargs):
    """Outputs, and the gradients of their sum with respect to all inputs and parameters."""
    torch.manual_seed(3)
    args, kwargs = fresh((args, kwargs))
    out = function(*args, **kwargs)
    leaves = [t for t in tensors((args, kwargs)) if t.requires_grad] + list(module.parameters())
    total = objective(out)
    grads = torch.autograd.grad(total, leaves, allow_unused=True) if leaves and isinstance(total, torch.Tensor) else ()
    return tensors(out), grads


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info):
    for module, args, kwargs in samples(info):
        try:
            outs, grads = run(module, module, args, kwargs)
        except RuntimeError as error:
            if "_random_samples" in str(error):  # a sample of the database that eager PyTorch itself rejects
                with pytest.raises(RuntimeError):
                    run(fg.jit(module), module, args, kwargs)
                continue
            raise
        found, found_grads = run(fg.jit(module), module, args, kwargs)
        torch.testing.assert_close(found, outs, equal_nan=True)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in outs]
        assert [g is None for g in found_grads] == [g is None for g in grads]
        torch.testing.assert_close([g for g in found_grads if g is not None], [g for g in grads if g is not None], equal_nan=True)


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_gradient_of_the_parameters(info):
    """``grad_compiled`` of a loss of a module's parameters, through ``functional_call``: the first sample that has some."""
    for module, args, kwargs in samples(info):
        parameters = dict(module.named_parameters())
        args, kwargs = pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, (args, kwargs))
        if not parameters:
            continue

        def loss(parameters, args, kwargs, module=module):
            out = tensors(torch.func.functional_call(module, parameters, args, kwargs))
            return sum((t.abs() if t.is_complex() else t).sum() for t in out if t.is_floating_point() or t.is_complex())

        torch.manual_seed(3)
        expected = torch.autograd.grad(loss(parameters, args, kwargs), list(parameters.values()), allow_unused=True)
        torch.manual_seed(3)
        values = {k: p.detach() for k, p in parameters.items()}
        found = fg.grad_compiled(loss)(values, args, kwargs)
        assert list(found) == list(parameters)
        for name, g in zip(parameters, expected, strict=True):
            torch.testing.assert_close(found[name], torch.zeros_like(parameters[name]) if g is None else g, equal_nan=True)
        return
