"""Backward passes that Python starts within the backward pass of a compiled function: what they accumulate."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import funcgrad as fg


class RunAgain(torch.autograd.Function):
    """As reversible networks are written: backward runs the network again, and its parameters get their gradients."""

    @staticmethod
    def forward(ctx, x, net):
        ctx.net = net
        ctx.save_for_backward(x.detach())
        with torch.no_grad():
            return net(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.net(x), grad)
        return x.grad, None


def _hooked(net, x):
    def hook(grad):
        with torch.enable_grad():
            net["c"](grad.detach()).sum().backward()

    h = net["b"](x)
    h.register_hook(hook)
    return h.tanh().sum()


def _dropping(net, x):
    def run(h):
        return torch.dropout(net["a"](h), 0.5, True)

    return net["c"](checkpoint(run, net["b"](x), use_reentrant=True)).sum()


FUNCTIONS = {
    "checkpoint": lambda net, x: net["c"](checkpoint(net["a"], net["b"](x), use_reentrant=True)).sum(),
    "checkpoint of the input": lambda net, x: checkpoint(net["a"], x, use_reentrant=True).pow(2).sum(),
    "checkpoint with dropout": _dropping,
    "run again": lambda net, x: RunAgain.apply(net["b"](x), net["a"]).pow(2).sum(),
    "run again what has run": lambda net, x: RunAgain.apply(net["a"](x), net["a"]).pow(2).sum(),
    "one of two results": lambda net, x: (RunAgain.apply(x, net["a"]).sum(), net["b"](x).sum()),
    "hook": _hooked,
}


@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_get_their_gradients(name, backend, engine):
    """They got none, without a word."""

    def trained(wrap):
        torch.manual_seed(0)
        net = nn.ModuleDict(
            {"a": nn.Sequential(nn.Linear(3, 3), nn.Tanh()), "b": nn.Linear(3, 3), "c": nn.Linear(3, 1)}
        )
        optimizer, found = torch.optim.SGD(net.parameters(), 0.1), []
        call = wrap(lambda x: FUNCTIONS[name](net, x))
        for i in range(4):
            x = torch.randn(2, 3, requires_grad=True)
            y = call(x)
            y = y[i % 2] if isinstance(y, tuple) else y
            if engine and wrap is not _eager:
                with fg.compiled_autograd():
                    y.backward()
            else:
                y.backward()
            found.append([torch.zeros(()) if p.grad is None else p.grad.clone() for p in net.parameters()])
            found[-1] += [x.grad, torch.rand(())]
            if i != 1:  # else they accumulate
                optimizer.step()
                optimizer.zero_grad(set_to_none=i % 2 == 0)
        return found

    torch.testing.assert_close(trained(lambda f: fg.jit(f, backend=backend)), trained(_eager))


class Clips(torch.autograd.Function):
    """What its backward pass does, ``then``, before it runs the network again, makes it a program of its own."""

    @staticmethod
    def forward(ctx, x, net, then):
        ctx.net, ctx.then = net, then
        ctx.save_for_backward(x.detach())
        return net(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.then(grad):
            grad = grad * 0.5
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.net(x), grad)
        return x.grad, None, None


@pytest.mark.parametrize("reads", [False, True])
def test_a_backward_pass_that_is_a_program_of_its_own(reads):
    """It reads the value of the gradient that comes in, or writes to Python state: parameters got no gradient."""

    def trained(wrap):
        torch.manual_seed(0)
        net, other, norms = nn.Linear(3, 3), nn.Linear(3, 1), []

        def then(grad):
            if reads:
                return grad.norm() > 1
            norms.append(grad.norm().detach())
            return False

        call, found = wrap(lambda x: other(Clips.apply(x, net, then)).sum()), []
        for i in range(3):
            x = torch.randn(2, 3, requires_grad=True)
            (call(x) * (1 + 5 * (i == 1))).backward()
            found.append([x.grad, *(p.grad.clone() for p in (*net.parameters(), *other.parameters())), *norms])
        return found

    torch.testing.assert_close(trained(lambda f: fg.jit(f, backend="aten")), trained(_eager))


def _eager(f):
    return f
