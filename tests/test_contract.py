"""Where a compiled function could quietly differ from eager PyTorch, and must not: each case was once found, or
feared."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import funcgrad as fg

X = torch.tensor([1.0, 2.0])


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0), requires_grad=True)


def test_an_argument_may_have_any_name():
    def f(type, len, float32, cpu, constant0, static_x, kernel):
        return constant0 * torch.tensor([10.0, 20.0]) + type + len + float32 + cpu + static_x + kernel

    args = [X * i for i in range(7)]
    torch.testing.assert_close(fg.jit(f)(*args), f(*args))


def test_a_value_and_its_detached_self():
    def f(z):
        y = z * 2
        return y, y.detach(), y.view(2, 1)

    a, b = leaf(), leaf()
    found, expected = fg.jit(f)(a), f(b)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected] == [True, False, True]
    assert found[0] is not found[1]
    sum((t * t).sum() for t in found).backward()
    sum((t * t).sum() for t in expected).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_a_returned_constant_is_the_callers():
    c = fg.jit(lambda x: (x * 1, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]).view(2, 1)))
    for _ in range(2):
        _, constant, view = c(X)
        torch.testing.assert_close(constant, torch.tensor([1.0, 2.0]))
        torch.testing.assert_close(view, torch.tensor([[1.0], [2.0]]))
        constant.add_(100)
        view.add_(100)


def test_a_constant_is_not_written_in_place():
    c = fg.jit(lambda x: torch.tensor([1.0, 2.0]).view(2, 1).mul(3) + x[:, None])
    for _ in range(2):
        torch.testing.assert_close(c(X), torch.tensor([[4.0], [8.0]]))


def test_a_second_derivative_uses_the_mask_of_the_forward_pass():
    c = fg.jit(lambda z: F.dropout(z, 0.5) * z)
    a = torch.ones(64, requires_grad=True)
    out = c(a)
    state = torch.get_rng_state()
    (g,) = torch.autograd.grad(out.sum(), a, create_graph=True)
    assert torch.equal(out != 0, g != 0)
    assert torch.equal(torch.get_rng_state(), state)
    (h,) = torch.autograd.grad(g.sum(), a)
    assert torch.equal(out != 0, h != 0)


def test_a_rebinding_before_a_differentiable_backward_is_named():
    w = leaf()
    c = fg.jit(lambda z: (w * z).sin().sum())
    a = leaf()
    out = c(a)
    w = leaf(5.0, 6.0)
    with pytest.raises(fg.TraceError, match="w was rebound"):
        torch.autograd.grad(out, a, create_graph=True)


def test_autocast_around_backward_alone_changes_nothing():
    m, a = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    out = fg.jit(lambda a: (a @ m).sin().sum())(a)
    expected = torch.autograd.grad((a @ m).sin().sum(), a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, a, create_graph=True)
    torch.testing.assert_close(found, expected)


def test_checkpoint_without_and_with_dropout():
    f = lambda z: checkpoint(lambda q: q.exp().sin(), z, use_reentrant=False).sum()  # noqa: E731
    a = leaf()
    torch.testing.assert_close(fg.grad_compiled(f)(X), torch.autograd.grad(f(a), a)[0])
    dropped = lambda z: checkpoint(lambda q: F.dropout(q.exp(), 0.5), z, use_reentrant=False).sum()  # noqa: E731
    torch.manual_seed(1)
    expected = torch.autograd.grad(dropped(a), a)[0]
    torch.manual_seed(1)
    torch.testing.assert_close(fg.grad_compiled(dropped)(X), expected)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):  # as in eager PyTorch
        fg.grad_compiled(lambda z: checkpoint(lambda q: F.dropout(q.exp(), 0.5), z, use_reentrant=True).sum())(X)


def test_a_refusal_the_function_swallows_is_raised_all_the_same():
    def f(x):
        try:
            if x.sum() > 0:
                return x * 5
        except RuntimeError:
            pass
        return x * 2

    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(f, reads="error")(X)


def test_outputs_without_history():
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y.view(2, 1)
        return y, z

    a, b = leaf(), leaf()
    found, expected = fg.jit(f)(a), f(b)
    torch.testing.assert_close(found, expected)
    found[0].sum().backward()
    expected[0].sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_a_leaf_made_inside():
    torch.testing.assert_close(fg.jit(lambda z: z * torch.ones(2, requires_grad=True))(X).detach(), X)


def test_floats_positive_then_negative():
    c = fg.jit(lambda x, s: (x * s, s // 0.4, s**2))
    for s in (1.0, -0.5, 2.0, 3.5, -7.0):
        found, expected = c(X, s), (X * s, s // 0.4, s**2)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == pytest.approx(expected[1:])


@pytest.mark.parametrize("options", [{"dynamic": False}, {"numerics": "eager"}])
def test_floats_may_stay_static(options):
    c = fg.jit(lambda x, s: x * 2 if isinstance(s, float) else x * 3, **options)
    for s in (0.1, 0.2, 0.3):
        torch.testing.assert_close(c(X, s), X * 2)
    assert c.cache_info().misses == 3


def test_threads_leave_torch_as_it_was():
    names = [
        (torch, "cond"),
        (torch, "manual_seed"),
        (torch, "set_rng_state"),
        (torch.nn.modules.transformer, "_detect_is_causal_mask"),
    ]
    before = [getattr(module, name) for module, name in names]
    threads = [threading.Thread(target=lambda i=i: fg.jit(lambda x: x * i)(X)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [getattr(module, name) for module, name in names] == before


def test_a_result_of_a_custom_operator_is_never_written_over():
    """Its schema says it returns new memory; one that returns its input must not cost the caller that input."""

    library = torch.library.Library("funcgrad_contract", "DEF")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.view_as(x), "CPU")
    torch.library.register_fake("funcgrad_contract::same", lambda x: torch.empty_like(x), lib=library)
    x = X.clone()
    fg.jit(lambda x: torch.ops.funcgrad_contract.same(x).mul(3).add(1))(x)
    torch.testing.assert_close(x, X)


def test_an_exception_of_the_function_comes_through_and_leaves_no_trace():
    def f(x):
        if x.shape[0] == 3:
            raise KeyError("mine")
        return x.sum()

    c = fg.jit(f)
    with pytest.raises(KeyError, match="mine"):
        c(torch.ones(3))
    torch.testing.assert_close(c(X), X.sum())


def test_a_tensor_can_be_printed(capsys):
    fg.jit(lambda x: (print(x), x * 2)[1])(X)
    assert capsys.readouterr().out == f"{X}\n"


def test_transforms_inside_over_captured_tensors():
    m, w = torch.nn.Linear(2, 2), torch.randn(2, 2)
    functions = [
        lambda z: torch.func.grad(lambda r: m(r).sin().sum())(z).sum(),
        lambda z: torch.func.jacrev(lambda r: (w @ r).tanh())(z).sum(),
        lambda z: torch.func.jvp(lambda r: (w @ r).tanh(), (z,), (z,))[1].sum(),
        lambda z: torch.func.hessian(lambda r: (w @ r).sin().sum())(z).sum(),
        lambda z: torch.vmap(lambda r: (r * w).sum())(z).sum(),
    ]
    for f in functions:
        a = leaf()
        torch.testing.assert_close(fg.jit(f)(X), f(X))
        torch.testing.assert_close(fg.grad_compiled(f)(X), torch.autograd.grad(f(a), a)[0])
    torch.testing.assert_close(fg.grad_compiled(lambda z: z.sin().sum())(X), X.cos())
