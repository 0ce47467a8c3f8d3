"""The aten backend: printed programs, what is written in place, and when memory is freed."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from functions import CASES

import funcgrad as fg
from funcgrad.backends.aten import AtenBackend
from funcgrad.backends.printer import in_place_form
from funcgrad.memory.steps import Call
from funcgrad.trees import flatten


def tensors(tree):
    return [v for v in flatten(tree)[0] if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_the_printed_program_equals_the_graph_and_leaves_inputs_alone(name):
    f, make = CASES[name]
    args = make()
    program = fg.value_and_grad_compiled(f, backend="aten").program(*args)
    graph = program.kernels[0].graph
    backend = AtenBackend()
    run = backend.build(backend.emit(backend.schedule(backend.lower(graph))))
    inputs = tensors(args)
    before = [t.clone() for t in inputs]
    for _ in range(2):  # constants of the graph, too, must survive a run
        torch.testing.assert_close(run(*inputs), graph.run(*inputs), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(inputs, before, rtol=0, atol=0, equal_nan=True)


def test_golden_program():
    def loss(p, x):
        return (torch.tanh(x @ p["w"] + p["b"]) ** 2).mean()

    program = fg.grad_compiled(loss, backend="aten").program(
        {"w": torch.ones(4, 3), "b": torch.ones(3)}, torch.ones(5, 4)
    )
    text = "\n".join(line.split("  #")[0] for line in program.sources[0].text.splitlines())
    assert_expected_inline(
        text,
        """\
def joint(p_w, p_b, x):
    \"""(p['w'], p['b'], x) -> (grad(p['w']), grad(p['b']))\"""
    mm = aten_mm(x, p_w)
    p_w = None
    add = aten_add__Tensor(mm, p_b)
    mm = None
    p_b = None
    tanh = aten_tanh_(add)
    add = None
    full = aten_full([], 1, dtype=float32, device=cpu, pin_memory=False)
    expand = aten_expand(full, [5, 3])
    full = None
    div = aten_div_Scalar(expand, 15)
    expand = None
    pow_2 = aten_pow_Tensor_Scalar(tanh, 1.0)
    mul = aten_mul__Scalar(pow_2, 2.0)
    pow_2 = None
    mul_1 = aten_mul__Tensor(div, mul)
    div = None
    mul = None
    tanh_backward = aten_tanh_backward(mul_1, tanh)
    mul_1 = tanh = None
    sum_1 = aten_sum_dim_IntList(tanh_backward, [0], True)
    view = aten_view(sum_1, [3])
    sum_1 = None
    t = aten_t(x)
    x = None
    mm_1 = aten_mm(t, tanh_backward)
    t = tanh_backward = None
    return (mm_1, view,)""",
    )


def test_golden_call():
    program = fg.grad_compiled(lambda p, k: (p["w"] * k).sum(), backend="aten").program({"w": torch.ones(4)}, 2)
    bits = program.key.leaves[0].bits
    assert_expected_inline(
        program.call.text.replace(str(bits), "BITS"),
        """\
def call(args, kwargs):
    if len(args) != 2: return MISS
    args__0, k, = args
    if type(args__0) is not dict: return MISS
    if list(args__0) != list_2: return MISS
    p_w, = args__0.values()
    if kwargs: return MISS
    try:
        if constant_0_lambda.__code__ is not constant_1_code_of__lambda and constant_2_original(constant_0_lambda.__code__) is not constant_1_code_of__lambda: return MISS
    except (AttributeError, KeyError, IndexError, ValueError, TypeError):
        return MISS
    if ambient() != AMBIENT: return MISS
    if not seen(p_w):
        if type(p_w) not in (Tensor, Parameter) or p_w.dtype is not float32 or p_w.shape != (4,) or p_w.stride() != (1,) or p_w.requires_grad is not False or p_w.device != cpu or keys(p_w).raw_repr() != BITS: return MISS
    if type(k) is not int or k != 2: return MISS
    grad_p_w, = kernel(p_w)
    return {'w': grad_p_w}
""",  # noqa: E501
    )


def in_place(program):
    return [s.node.name for s in program.schedule[0].steps if isinstance(s, Call) and s.into is not None]


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: x.exp().sin(), True),
        (lambda x: x.sin(), False),  # x is the caller's
        (lambda x: (lambda a: (a, a.sin()))(x.exp()), False),  # a is returned
        (lambda x: (lambda a: a.sin() + a)(x.exp()), "only the sum"),  # a is read again
        (lambda x: (lambda a: a * a.t())(x.exp()), False),  # a view of a is read by the same op
        (lambda x: (lambda a: (a[0], a.sin()))(x.exp()), False),  # a view of a is returned
        (lambda x: x[:1].exp().expand(4, 4) * 2, False),  # one element stands for many
        (lambda x: x.exp().double() * x, "only the product"),
        (lambda x: x.exp() > 0, False),  # the result has another dtype
    ],
)
def test_what_is_written_in_place(f, expected):
    x = torch.rand(4, 4)
    program = fg.jit(f, backend="aten").program(x)
    names = in_place(program)
    if isinstance(expected, str):
        assert len(names) == 1 and ("add" in names[0] or "mul" in names[0])
    else:
        assert bool(names) == expected
    torch.testing.assert_close(fg.jit(f, backend="aten")(x), f(x))


@pytest.mark.parametrize("f", [F.gelu, F.elu, F.mish, torch.square, torch.digamma, torch.nan_to_num, F.hardsigmoid])
def test_functions_of_elements_are_written_in_place(f):
    x = torch.rand(4, 4)
    compiled = fg.jit(lambda x: f(x + 1) + x, backend="aten")
    assert compiled(x).equal(f(x + 1) + x) and in_place(compiled.program(x))


class BothWays(torch.autograd.Function):
    """Whose backward pass is given zeros for a gradient that does not come in."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return (a + a.t()) * 2 + (b + b.t()) * 3


@pytest.mark.parametrize(
    "f",
    [lambda w: ((s := w + w.t()), torch.eye(4) @ s), lambda w: BothWays.apply(w)],
    ids=["the other of a sum", "zeros"],
)
@pytest.mark.parametrize("used", [0, 1])
def test_a_view_of_what_is_not_there_is_one_of_what_stands_for_it(f, used):
    """Where a gradient does not come in, the other one of a sum stands for that: a view of the sum is one of it."""
    w, incoming = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    (expected,) = torch.autograd.grad(f(w)[used], w, incoming)
    (found,) = torch.autograd.grad(fg.jit(f, backend="aten")(w)[used], w, incoming)
    torch.testing.assert_close(found, expected)


def test_in_place_forms_have_the_same_arguments():
    aten = torch.ops.aten
    assert in_place_form(aten.tril.default) is None
    assert in_place_form(aten.mul.Tensor) is aten.mul_.Tensor
    assert in_place_form(aten.mm.default) is None
    assert in_place_form(aten.bernoulli.p) is None


def test_values_are_freed_after_their_last_reader():
    """A weak reference taken by a custom operator early in a program is dead when a later operator runs."""
    seen = []

    @torch.library.custom_op("funcgrad_test::note", mutates_args=())
    def note(x: torch.Tensor, first: bool) -> torch.Tensor:
        if first:
            seen.append(weakref.ref(x))
        else:
            gc.collect()
            seen.append([r() is None for r in seen])
        return x.clone()

    note.register_fake(lambda x, first: torch.empty_like(x))

    def f(x):
        a = x.exp()
        b = note(a, True)
        c = b.sum()
        return note(c, False)

    seen.clear()
    fg.jit(f, backend="aten")(torch.ones(3))
    assert seen[-1] == [True]


def test_a_custom_operator_nobody_reads_runs_once_in_order():
    calls = []

    @torch.library.custom_op("funcgrad_test::effect", mutates_args=())
    def effect(x: torch.Tensor, label: str) -> torch.Tensor:
        calls.append(label)
        return x.clone()

    effect.register_fake(lambda x, label: torch.empty_like(x))

    def f(x):
        effect(x, "first")
        y = effect(x, "second") * x
        effect(x, "third")
        return y.sum()

    c = fg.grad_compiled(lambda x: f(x.detach()) * x.sum(), backend="aten")
    c.program(torch.ones(3))
    assert calls == []
    c(torch.ones(3))
    assert calls == ["first", "second", "third"]
