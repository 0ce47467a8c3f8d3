"""Every sample of torch's module database, in eval mode: outputs and gradients of ``jit`` and ``grad_compiled``
equal eager's."""

import copy

import pytest
import torch
from closeness import assert_rounded
from torch import nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import funcgrad as fg


def tensors(tree):
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


EVERY = pytest.mark.parametrize("at_most", [4, pytest.param(None, marks=pytest.mark.long)])


def samples(info, at_most):
    """The samples eager PyTorch itself can run on a CPU in float32, each as ``(module, args, kwargs)``: so many,
    spread over all."""
    every = list(info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=False))
    for sample in every[:: -(-len(every) // at_most)] if at_most and every else every:
        torch.manual_seed(0)
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).eval()
        given = sample.forward_input
        if any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
            module(*given.args, **given.kwargs)  # a lazy module has no parameters before its first call
        yield module, given.args if given else (), given.kwargs if given else {}


def fresh(tree):
    return pytree.tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, tree
    )


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


@pytest.mark.sweep(6)
@EVERY
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info, at_most):
    for module, args, kwargs in samples(info, at_most):
        try:
            outs, grads = run(module, module, args, kwargs)
        except RuntimeError as error:
            if "_random_samples" in str(error):  # a sample of the database that eager PyTorch itself rejects
                with pytest.raises(RuntimeError):
                    run(fg.jit(module), module, args, kwargs)
                continue
            raise
        found, found_grads = run(fg.jit(module), module, args, kwargs)
        assert_rounded(found, outs)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in outs]
        assert [g is None for g in found_grads] == [g is None for g in grads]
        assert_rounded([g for g in found_grads if g is not None], [g for g in grads if g is not None])


@pytest.mark.sweep(6)
@EVERY
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_compiled_gradient(info, at_most):
    """``value_and_grad_compiled`` of a loss of a module's parameters and inputs, through ``functional_call``, with
    the outputs as aux."""
    for module, args, kwargs in samples(info, at_most):

        def loss(variables, rest, module=module):
            parameters, inputs = variables
            args, kwargs = pytree.tree_map(
                lambda a, b: b if a is None else a, inputs, rest, is_leaf=lambda v: v is None
            )
            out = torch.func.functional_call(module, parameters, args, kwargs)
            floats = [t for t in tensors(out) if t.is_floating_point() or t.is_complex()]
            return sum((t.abs() if t.is_complex() else t).sum() for t in floats), tensors(out)

        def only(keep, tree=(args, kwargs)):
            return pytree.tree_map(
                lambda v: v.detach() if isinstance(v, torch.Tensor) and keep(v) else v if keep(v) else None, tree
            )

        def differentiable(v):
            return isinstance(v, torch.Tensor) and v.requires_grad

        inputs, rest = only(differentiable), only(lambda v: not differentiable(v))
        variables = ({k: p.detach() for k, p in module.named_parameters()}, inputs)
        leaves = [t.clone().requires_grad_() for t in tensors(variables)]
        if not leaves:
            continue
        spec = pytree.tree_structure(variables)
        try:
            torch.manual_seed(3)
            value, aux = loss(pytree.tree_unflatten(_merge(variables, leaves), spec), rest)
            expected = (
                torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
            )
        except RuntimeError as error:
            if "_random_samples" in str(error):
                continue
            raise
        torch.manual_seed(3)
        (found, found_aux), grads = fg.value_and_grad_compiled(loss, has_aux=True)(variables, rest)
        assert_rounded(found, value.detach())
        assert_rounded(found_aux, [t.detach() for t in aux])
        zeros = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, expected, strict=True)]
        assert_rounded(tensors(grads), zeros)


def _merge(tree, replacements):
    """The leaves of a tree with its tensors replaced."""
    fresh = iter(replacements)
    return [next(fresh) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(tree)]


LAZY = {
    "linear": (lambda: torch.nn.LazyLinear(3), (2, 5)),
    "convolutions": (
        lambda: torch.nn.Sequential(torch.nn.LazyConv1d(3, 2), torch.nn.LazyBatchNorm1d(), torch.nn.Tanh()),
        (2, 2, 6),
    ),
}


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("of", [lambda m: m, lambda m: lambda x: m(x).sin()])
def test_the_first_call_of_a_lazy_module_is_one_of_eager_pytorch(name, of):
    make, shape = LAZY[name]
    x, found = torch.randn(shape), []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = make()
        f = fg.jit(of(module), backend="aten") if compiled else of(module)
        outs = [f(x), f(x), f(x)]
        outs[-1].sum().backward()
        assert not any(torch.nn.parameter.is_lazy(p) for p in module.parameters())
        found.append((outs, module.state_dict(), [p.grad for p in module.parameters()], torch.rand(1)))
    torch.testing.assert_close(found[1], found[0])
    assert f.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize("word", [
    lambda m: fg.jacrev_compiled(m), lambda m: fg.vmap_compiled(m), lambda m: torch.vmap(fg.jit(m)),
    lambda m: fg.jit(m).program,
])  # fmt: skip
def test_a_lazy_module_under_a_transform_is_called_before(word):
    module, x = torch.nn.LazyLinear(3), torch.randn(2, 5)
    with pytest.raises(fg.UnsupportedTensorError, match="UninitializedParameter") as caught:
        word(module)(x)
    assert caught.value.fix == "call the module once before"
    assert module.has_uninitialized_params()
    module(x)
    word(module)(x)


class Recording(torch.nn.Module):
    """Registers hooks on its layers in the first call, as models of libraries do that collect their layers' results."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
        self.has_hooks, self.found = False, None

    def forward(self, x):
        if not self.has_hooks:
            for factor, layer in enumerate(self.layers, 2):
                layer.register_forward_hook(lambda _, args, out, factor=factor: self.found.append(out * factor))
            self.has_hooks = True
        self.found = []
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum() + sum(found.sum() for found in self.found)


@pytest.mark.parametrize("transform", [fg.jit, fg.grad_compiled])
def test_a_first_call_that_registers_hooks_is_one_of_eager_pytorch(transform):
    torch.manual_seed(0)
    ours, eager = Recording(), Recording()
    eager.load_state_dict(ours.state_dict())
    compiled = transform(lambda x: ours(x), backend="aten")
    plain = eager if transform is fg.jit else torch.func.grad(eager)
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), plain(x))
    assert [len(layer._forward_hooks) for layer in ours.layers] == [1, 1]
    assert compiled.cache_info()[:2] == (1, 1)


def test_hooks_registered_in_each_call_are_warned_of(recwarn):
    layer = torch.nn.Linear(3, 3)

    def hooked(x):
        layer.register_forward_hook(lambda _, args, out: None)
        return layer(x)

    compiled, x = fg.jit(hooked, backend="aten"), torch.randn(2, 3)
    for _ in range(16):
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(layer._forward_hooks) == 16
    assert [w for w in recwarn if w.category is fg.RecompileWarning and "a hook of a module" in str(w.message)]


def test_what_hooks_keep_of_values_and_gradients_is_that_of_the_call():
    """As for Grad-CAM; a gradient that a hook had kept before was taken for one that is always the same."""

    def run(called, module):
        kept, seen = {}, []
        module[0].register_forward_hook(lambda _, given, out: kept.__setitem__("value", out))
        module[0].register_full_backward_hook(lambda _, own, gradients: kept.__setitem__("gradient", gradients[0]))
        for i in range(4):
            x = torch.linspace(-1, 1, 6).view(2, 3) * (i + 1)
            called(x.requires_grad_())[:, 0].sin().sum().backward()
            weights = kept["gradient"].mean(0, keepdim=True)
            seen.append((weights * kept["value"]).sum(1).relu().tolist())
        return seen

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    compiled = fg.jit(other, backend="aten")
    found = run(compiled, other)
    torch.testing.assert_close(found, run(model, model))
    assert compiled.cache_info().misses <= 2
