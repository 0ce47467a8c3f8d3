"""Operators that take functions: those a trace sees through, and those that are refused by name."""

import pytest
import torch
from torch._higher_order_ops import associative_scan
from torch.nn.attention.flex_attention import flex_attention

import funcgrad as fg

higher = torch.ops.higher_order


def called(x):
    return torch.fx.symbolic_trace(lambda y: (y * 2,))


REFUSED = {
    "while_loop_stack_output": lambda x: higher.while_loop_stack_output(
        lambda y: y.sum() < 3, lambda y: (y + 1,), (x,), ()
    ),
    "with_effects": lambda x: higher.with_effects(torch.tensor(0.0), torch.ops.aten.mul.Tensor, x, 2),
    "flex_attention": lambda x: flex_attention(*[x.detach().expand(1, 1, 8, 3).contiguous()] * 3),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_is_not_compiled_is_refused_by_name(name, requires_grad):
    f = REFUSED[name]
    with pytest.raises(fg.UnsupportedOperatorError, match=f"{name}|torch compiles itself") as caught:
        fg.jit(f)(torch.randn(3, requires_grad=requires_grad))
    assert caught.value.where and caught.value.fix


SEEN_THROUGH = {
    "strict_mode": lambda x: higher.strict_mode(lambda y: (y * 2,), (x,))[0],
    "hints_wrapper": lambda x: higher.hints_wrapper(lambda y: (y * 2,), (x,), {}, {})[0],
    "invoke_subgraph": lambda x: higher.invoke_subgraph(called(x), "name", x)[0],
    "run_const_graph": lambda x: higher.run_const_graph(called(x), (x,))[0],
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,)),
    "wrap": lambda x: higher.wrap(lambda y: y * 2, x),
    "wrap_with_set_grad_enabled": lambda x: higher.wrap_with_set_grad_enabled(False, lambda y: (y * 2,), x)[0],
    "tag_activation_checkpoint": lambda x: higher.tag_activation_checkpoint(called(x), x)[0],
    "associative_scan": lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
    "nested_compile_region": lambda x: torch.compiler.nested_compile_region(lambda y: y * 2)(x),
    "disable": lambda x: torch.compiler.disable(lambda y: y * 2)(x),
}


NO_BACKWARD = ("strict_mode", "hints_wrapper", "invoke_subgraph", "run_const_graph")
"""Those that eager PyTorch does not differentiate, or not by themselves."""


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", SEEN_THROUGH)
def test_an_operator_that_is_a_call_of_its_function(name, requires_grad):
    f = SEEN_THROUGH[name]
    x = torch.randn(3, requires_grad=requires_grad)
    expected, found = (f if name not in NO_BACKWARD else lambda x: x * 2)(x), fg.jit(f)(x)
    assert torch.allclose(found, expected) and found.requires_grad == expected.requires_grad
    if expected.requires_grad:
        assert torch.allclose(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)))


# ── hooks registered inside ──────────────────────────────────────────────────────────────────────────────────────

LINEAR = torch.nn.Linear(3, 3)


def on_argument(x):
    x.register_hook(lambda g: g * 3)
    return x * 2


def on_intermediate(x):
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y * x


def removed(x):
    y = x * 2
    y.register_hook(lambda g: g * 3).remove()
    return y * x


def on_node(x):
    y = x * 2
    y.grad_fn.register_hook(lambda into, out: (into[0] * 5, *into[1:]))
    y.grad_fn.register_prehook(lambda out: (out[0] * 2,))
    return y


def on_module(x):
    hooks = [
        LINEAR.register_full_backward_hook(lambda m, into, out: (into[0] * 2,)),
        LINEAR.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,)),
        LINEAR.register_forward_hook(lambda m, args, out: out * 2),
    ]
    y = LINEAR(x)
    for hook in hooks:
        hook.remove()
    return y


def on_saved(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return x * x.sin()


@pytest.mark.parametrize("f", [on_argument, on_intermediate, removed, on_node, on_module, on_saved])
def test_a_hook_acts_as_in_eager(f):
    c, values = fg.jit(f), torch.randn(3)
    for _ in range(2):
        grads = [torch.autograd.grad(g(x).sum(), x)[0] for g in (f, c) for x in [values.clone().requires_grad_()]]
        assert torch.allclose(*grads)


WEIGHT = torch.randn(3, requires_grad=True)


@pytest.mark.parametrize("which", ["argument", "captured"])
def test_a_hook_on_what_is_accumulated_outside_is_refused(which):
    def f(x):
        (x if which == "argument" else WEIGHT).register_post_accumulate_grad_hook(lambda p: None)
        return x * WEIGHT

    with pytest.raises(fg.MutationError, match="register_post_accumulate_grad_hook"):
        fg.jit(f)(torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: x @ w,
        lambda x, w: x[0] @ w[0],
        lambda x, w: x @ w[0],
        lambda x, w: x[None] @ w[None],
        lambda x, w: torch.nn.functional.linear(x, w, x[0]),
        lambda x, w: torch.addmm(x, w, w),
    ],
)
def test_a_product_of_two_dtypes_is_refused_as_in_eager(product, used):
    """Fake tensors multiply what the kernels of PyTorch refuse to."""

    def f(x, w):
        y = product(x, w)
        return y if used else x

    x, w = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.float64)
    for call in (f, fg.jit(f), fg.jit(f, backend="aten")):
        with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
            call(x, w)
