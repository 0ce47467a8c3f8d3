"""Products of matrices with vectors: in kernels, which read the matrix as it lies, with what makes the vector and
what reads the result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import example, given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.loops.ir import Kernel
from funcgrad.memory.steps import Call

aten = torch.ops.aten

PRODUCTS = {
    "mv": lambda m, v, b: m @ v,
    "vm": lambda m, v, b: v @ m.t(),
    "column": lambda m, v, b: m @ v[:, None],
    "row": lambda m, v, b: v[None] @ m.t(),
    "addmv": lambda m, v, b: torch.addmv(b, m, v, beta=0.5, alpha=2),
    "linear": lambda m, v, b: F.linear(v[None], m, b),
    "dot": lambda m, v, b: m[0] @ v,
    "of what is computed": lambda m, v, b: (m * 2 + 1) @ v.tanh(),
}
LAYOUTS = {
    "rows": lambda m: m,
    "columns": lambda m: m.t().contiguous().t(),
    "every second": lambda m: torch.stack([m, m], -1).flatten(-2)[:, ::2],
    "one row for all": lambda m: m[:1].expand(m.shape),
}


def kernels_of(program):
    return [s for k in program.kernels for s in k.steps if isinstance(s, Kernel)]


def library_calls(program):
    return [step.node.target for s in program.schedule for step in s.steps if isinstance(step, Call)]


@settings(max_examples=10)
@given(
    product=st.sampled_from(list(PRODUCTS)),
    layout=st.sampled_from(list(LAYOUTS)),
    rows=st.sampled_from([1, 2, 7, 33, 700]),
    columns=st.sampled_from([1, 5, 16, 100, 2500]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    dynamic=st.sampled_from([True, None]),
)
@example("mv", "rows", 700, 2500, torch.float32, None)
@example("vm", "columns", 700, 2500, torch.float32, None)
@example("row", "rows", 700, 100, torch.bfloat16, None)
@example("linear", "columns", 33, 100, torch.float32, True)
def test_values_and_gradients_are_those_of_eager(product, layout, rows, columns, dtype, dynamic):
    draw = torch.Generator().manual_seed(rows * columns)
    inputs = [torch.randn(*size, generator=draw, dtype=dtype) for size in ((rows, columns), (columns,), (rows,))]

    def f(m, v, b):
        return PRODUCTS[product](LAYOUTS[layout](m), v, b).flatten()

    def loss(m, v, b):
        found = f(m, v, b)
        return (found.double() * torch.arange(found.numel(), dtype=torch.float64).cos()).sum()

    doubles = [t.double() for t in inputs]
    exact = f(*doubles), *torch.func.grad(loss, (0, 1, 2))(*doubles)
    options = {"backend": "c", "dynamic": dynamic}
    found = fg.jit(f, **options)(*inputs), *fg.grad_compiled(loss, (0, 1, 2), **options)(*inputs)
    assert_rounded(found, [t.to(dtype) for t in exact])


@pytest.mark.parametrize("backend", ["c", "triton"])
def test_a_regression_reads_its_data_twice_at_most_and_calls_no_library(backend):
    """The gradient of its weights is a sum over all rows of what is computed from the product with each."""
    x, w, y = torch.randn(400, 100), torch.randn(100), torch.rand(400)

    def loss(w, x, y):
        return F.binary_cross_entropy_with_logits(x @ w, y)

    c = fg.value_and_grad_compiled(loss, backend=backend)
    program = c.program(w, x, y)
    kernels = kernels_of(program)
    assert library_calls(program) == []
    # what a GPU's figures make of it is one kernel
    assert sum(b.name == "x" for k in kernels for b in k.reads) == {"c": 2, "triton": 1}[backend]
    if backend == "c":
        assert_rounded(c(w, x, y), torch.func.grad_and_value(loss)(w, x, y)[::-1])


@pytest.mark.parametrize(("columns", "kernels"), [(48, 2), (64, 1)])
def test_a_function_of_a_number_for_each_row_has_a_loop_of_its_own_where_rows_are_short(columns, kernels):
    """In the loop over rows it would be computed number by number."""
    x = torch.randn(300, columns)
    c = fg.jit(lambda x: (x * x).sum(1).log(), backend="c")
    assert len(kernels_of(c.program(x))) == kernels
    assert_rounded(c(x), (x * x).sum(1).log())


def test_products_of_steps_are_one_product_before_they_are_products_with_vectors():
    """A recurrent net of one row: what is multiplied with all steps is read once for all of them."""
    w, x = torch.randn(64, 64) / 8, torch.randn(16, 1, 64)

    def net(w, x):
        total = torch.zeros(1, 64)
        for step in x:
            total = torch.tanh(total + step @ w)
        return total.sum()

    c = fg.jit(net, backend="c")
    assert library_calls(c.program(w, x)).count(aten.mm.default) == 1
    assert_rounded(c(w, x), net(w, x))


LAID_OUT = {
    "a @ b": (False, False),
    "a.t() @ b": (True, False),
    "a @ b.t()": (False, True),
    "a.t() @ b.t()": (True, True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(16, 32, 32), (8, 8, 37), (30, 40, 24), (9, 24, 130)], ids=str)
@pytest.mark.parametrize("how", LAID_OUT)
def test_products_of_small_matrices_are_made_in_lanes(how, sizes, dtype):
    """Whichever way they lie, no library is called, and what follows is computed where the product is."""
    rows, columns, terms = sizes
    turn_a, turn_b = LAID_OUT[how]
    a = torch.randn((terms, rows) if turn_a else (rows, terms), dtype=dtype)
    b = torch.randn((columns, terms) if turn_b else (terms, columns), dtype=dtype)

    def product(a, b, c):
        return (torch.addmm(c, a.t() if turn_a else a, b.t() if turn_b else b, beta=0.5) * c).tanh()

    c = torch.randn(columns, dtype=dtype)
    compiled = fg.jit(product)
    assert_rounded(compiled(a, b, c), product(a, b, c))
    program = compiled.program(a, b, c)
    assert not library_calls(program)
    text = "\n".join(source.text for source in program.sources)
    assert ("lane < " in text) == (program.sources[-1].language == "c")


def test_gradients_of_small_layers_are_one_launch():
    """What is written over what it is computed of is read before, in each lane."""

    def loss(w, b, x):
        for i in range(3):
            x = F.linear(x, w[i], b[i]).tanh()
        return x.square().mean()

    w, b, x = torch.randn(3, 32, 32) * 0.2, torch.randn(3, 32), torch.randn(16, 32)
    found = fg.grad_compiled(loss, argnums=(0, 1, 2))
    torch.testing.assert_close(found(w, b, x), torch.func.grad(loss, argnums=(0, 1, 2))(w, b, x))
    assert not library_calls(found.program(w, b, x))


def test_larger_products_are_the_librarys():
    for sizes in ((64, 64, 64), (16, 33, 33), (4, 32, 64), (16, 16, 128, 300)):
        a, b = torch.randn(*sizes[:-2], sizes[-1]), torch.randn(sizes[-1], sizes[-2])
        assert aten.mm.default in library_calls(fg.jit(torch.matmul).program(a.reshape(-1, sizes[-1]), b)), sizes
