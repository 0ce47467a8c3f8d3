"""Errors: each has its class, the builtin a torch user would catch, and says what happened, where, and what to do.

``docs/errors.md`` is executed here, too.
"""

import ast
import copy
import inspect
import logging
import random
import re
import traceback
import types
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import refused
import torch
from attrs import evolve
from refused import ROWS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from turns import in_turn

import funcgrad as fg
from funcgrad import errors
from funcgrad.graphs import verify
from funcgrad.options import read_environment
from funcgrad.refusals import REFUSALS
from funcgrad.refusals.__main__ import page
from funcgrad.slots import Arg, Out, Signature
from funcgrad.subclasses import inner_tensors, with_inner
from funcgrad.tags import Tag, tag
from funcgrad.torch_private.tensors import is_wrapper_subclass
from funcgrad.trees import flatten, unflatten

HERE = Path(__file__).name
DOC = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind)
    and issubclass(kind, (errors.FuncgradError, Warning))
    and kind.__module__ == errors.__name__
}
WARNINGS = [kind for kind in CLASSES.values() if issubclass(kind, Warning)]


def line_of(function, containing):
    """``file:line`` of the line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if containing in line]
    return f"{HERE}:{start + offset} in {function.__name__}"


def fails(kind, builtin, call, *words):
    """The error a call raises: of exactly this class, also a ``builtin``, with all three parts and these words in
    its message."""
    with pytest.raises(builtin) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert isinstance(error, fg.FuncgradError)
    for word in words:
        assert word in str(error), f"{word!r} is not in:\n{error}"
    return error


@pytest.fixture
def x():
    return torch.arange(3.0)


# ── the classes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_says_what_where_and_what_to_do():
    error = fg.MutationError("what happened", where="model.py:7 in f", fix="do this")
    assert (error.what, error.where, error.fix) == ("what happened", "model.py:7 in f", "do this")
    assert str(error).splitlines() == [
        "what happened",
        "  where: model.py:7 in f",
        "  to fix: do this",
        "  more: docs/errors.md#mutationerror",
    ]
    assert str(fg.AuxError("what happened")).splitlines() == ["what happened", "  more: docs/errors.md#auxerror"]


@pytest.mark.parametrize("name", CLASSES)
def test_class_is_public_and_derives_from_a_builtin(name):
    kind = CLASSES[name]
    assert getattr(fg, name) is kind
    if issubclass(kind, Warning):
        assert issubclass(kind, UserWarning)
    elif kind is not fg.FuncgradError:
        assert [b for b in (RuntimeError, TypeError, ValueError) if issubclass(kind, b)], "no builtin to catch"


# ── what the function returns, and what it is given ──────────────────────────────────────────────────────────────


def returns_a_vector(x):
    return x * 2


def test_result_that_is_no_scalar(x):
    error = fails(fg.NonScalarOutputError, RuntimeError, lambda: fg.grad_compiled(returns_a_vector)(x))
    assert "returns_a_vector returned a float32 tensor of shape [3]" in error.what
    assert error.where == line_of(returns_a_vector, "def returns_a_vector")
    assert ".sum()" in error.fix and "has_aux" in error.fix


@pytest.mark.parametrize(
    ("f", "described"),
    [
        (lambda x: x.argmax(), "int64 tensor of shape []"),
        (lambda x: (x.sum(), x), "a tuple of 2"),
        (lambda x: 3.0, "a float"),
        (lambda x: None, "a NoneType"),
    ],
)
def test_other_results_that_are_no_scalar(f, described, x):
    for transform in (fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled):
        fails(fg.NonScalarOutputError, RuntimeError, lambda: transform(f)(x), described)


@pytest.mark.parametrize(
    ("params", "path", "described"),
    [
        ({"w": torch.arange(3)}, "params['w']", "an int64 tensor of shape [3]"),
        (
            {"w": torch.ones(3), "deep": [torch.ones(1), (torch.ones(2) > 0,)]},
            "params['deep'][1][0]",
            "a bool tensor of shape [2]",
        ),
        ({"w": torch.ones(3), "n": 2.0}, "params['n']", "a float"),
    ],
)
def test_leaf_without_a_gradient(params, path, described):
    def loss(params):
        return (params["w"] * 1.0).sum()

    error = fails(fg.NonDifferentiableArgumentError, TypeError, lambda: fg.grad_compiled(loss)(params), described)
    assert error.where == path
    assert path in error.what
    assert "floating-point tensor" in error.fix and "argnums" in error.fix


def test_leaf_without_a_gradient_in_a_later_argument(x):
    error = fails(
        fg.NonDifferentiableArgumentError,
        TypeError,
        lambda: fg.grad_compiled(lambda x, n: x.sum() * n, argnums=(0, 1))(x, torch.tensor(2)),
    )
    assert error.where == "n"


@pytest.mark.parametrize("argnums", [1, -2, (0, 1)])
def test_argnums_out_of_range(argnums, x):
    c = fg.grad_compiled(returns_a_vector, argnums=argnums)
    error = fails(
        fg.ArgumentError, TypeError, lambda: c(x), f"argnums={argnums!r}", "returns_a_vector", "1 positional argument"
    )
    assert "position" in error.fix


def test_argnums_that_name_one_argument_twice(x):
    fails(
        fg.ArgumentError,
        TypeError,
        lambda: fg.grad_compiled(lambda x, y: (x * y).sum(), argnums=(0, -2))(x, x),
        "twice",
        "once",
    )


def test_a_trace_writes_nothing_to_the_log_of_fake_tensors(x, caplog):
    """The error says it all; a fake mode of somebody else's goes on to log."""

    def f(x):
        return x + torch.ones(4)

    caplog.set_level(logging.ERROR, logger="torch._subclasses.fake_tensor")
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match"):
        fg.jit(f)(x)
    assert not caplog.records
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(RuntimeError):
        f(x)
    assert "failed while attempting to run meta" in caplog.text


JACOBIANS = [fg.jacrev_compiled, fg.jacfwd_compiled, fg.hessian_compiled]


@pytest.mark.parametrize("of", JACOBIANS)
def test_jacobians_ask_of_argnums_and_arguments_what_gradients_ask(of, x):
    """torch.func raises what it meets inside: an AttributeError of a float, an AssertionError where there is no
    tensor."""
    for argnums in ((), None, "x", 1.0, (0, "x")):
        fails(fg.ArgumentError, TypeError, lambda a=argnums: of(returns_a_vector, a), f"argnums={argnums!r}")
    for argnums in (1, -2, (0, 0)):
        fails(fg.ArgumentError, TypeError, lambda a=argnums: of(lambda v: v.sum(), a)(x), f"argnums={argnums!r}")
    for wrong, what in ((2.0, "a float"), ({}, "a dict"), (None, "a NoneType"), ({"a": torch.arange(3)}, "v['a'] is")):
        fails(fg.NonDifferentiableArgumentError, TypeError, lambda w=wrong: of(lambda v: torch.ones(()))(w), what, "v")


@pytest.mark.parametrize("options", [{"chunk_size": 0}, {"chunk_size": 1.5}, {"chunk_size": "x"}, {"randomness": "x"}])
def test_sizes_of_chunks_and_randomness_that_are_none(options):
    (name,) = options
    of = [fg.vmap_compiled, *([fg.jacfwd_compiled] if name == "randomness" else JACOBIANS[::2])]
    for transform in of:
        fails(
            fg.OptionError, ValueError, lambda t=transform: t(returns_a_vector, **options), f"{name}={options[name]!r}"
        )


@pytest.mark.parametrize("argnums", [(), True, "x", 1.0, (0, "x")])
def test_argnums_that_are_no_positions(argnums):
    fails(
        fg.ArgumentError,
        TypeError,
        lambda: fg.grad_compiled(returns_a_vector, argnums=argnums),
        f"argnums={argnums!r}",
        "int",
    )


def twice(x):
    return x * 2


ONES = torch.ones(3)
POINTS = {
    "an int": (lambda: fg.vjp_compiled(twice, 3), fg.NonDifferentiableArgumentError, TypeError, "x is an int"),
    "None": (
        lambda: fg.vjp_compiled(lambda x, y: x, ONES, None), fg.NonDifferentiableArgumentError, TypeError, "y is a None"
    ),
    "ints": (
        lambda: fg.linearize_compiled(twice, torch.arange(3)), fg.NonDifferentiableArgumentError, TypeError, "int64"
    ),
    "an int within": (
        lambda: fg.jvp_compiled(lambda p: p["x"], ({"x": ONES, "n": 3},), ({"x": ONES, "n": 3},)),
        fg.NonDifferentiableArgumentError,
        TypeError,
        "p['n']",
    ),
    "no tuple": (lambda: fg.jvp_compiled(twice, ONES, ONES), fg.ArgumentError, TypeError, "primals are a float32"),
    "no tangent": (lambda: fg.jvp_compiled(twice, (ONES,), (None,)), fg.TreeMismatchError, ValueError, "tangents"),
    "a number": (lambda: fg.jvp_compiled(twice, (ONES,), (1.0,)), fg.ArgumentError, TypeError, "[3]"),
    "a tangent of another shape": (
        lambda: fg.jvp_compiled(twice, (ONES,), (torch.ones(2),)), fg.ArgumentError, TypeError, "[3]"
    ),
    "two tangents": (lambda: fg.jvp_compiled(twice, (ONES,), (ONES, ONES)), fg.TreeMismatchError, ValueError, "of"),
}  # fmt: skip


@pytest.mark.parametrize("name", POINTS)
def test_no_point_or_no_direction(name):
    call, kind, builtin, says = POINTS[name]
    fails(kind, builtin, call, says)


MISMATCHES = [
    {"in_dims": "x"}, {"in_dims": 5}, {"in_dims": (0, 0)}, {"in_dims": (None,)}, {"in_dims": {"x": 0}},
    {"out_dims": "x"}, {"out_dims": 5}, {"out_dims": (0, 0)}, {"out_dims": None},
]  # fmt: skip


@pytest.mark.parametrize("dims", MISMATCHES, ids=str)
def test_batch_dimensions_that_do_not_fit(dims):
    fails(fg.TreeMismatchError, ValueError, lambda: fg.vmap_compiled(twice, **dims)(torch.ones(4, 3)), "in_dims")


def test_what_a_mapped_function_raises_it_raises_itself():
    def f(x):
        return torch.func.vmap(twice, in_dims=7)(x)

    with pytest.raises(ValueError, match="in_dim=7") as caught:
        fg.vmap_compiled(f)(torch.ones(4, 3))
    assert not isinstance(caught.value, fg.FuncgradError)


@pytest.mark.parametrize("position", [1, -2])
def test_static_argnums_out_of_range(position, x):
    c = fg.grad_compiled(lambda x: x.sum(), static_argnums=position)
    fails(fg.ArgumentError, TypeError, lambda: c(x), f"position {position}", "static_argnums")


def ignores_scale(params, scale):
    return params["w"].sum()


def uses_scale(params, scale):
    return params["w"].sum() * scale["s"]


@pytest.mark.parametrize("transform", [fg.grad_compiled, fg.jit])
@pytest.mark.parametrize(
    "f",
    [
        ignores_scale,
        pytest.param(uses_scale),
    ],
)
def test_numpy_array(f, transform, x):
    error = fails(fg.ArgumentError, TypeError, lambda: transform(f)({"w": x}, {"s": x.numpy()}), "NumPy ndarray")
    assert error.where == "scale['s']"
    assert "torch.from_numpy" in error.fix


@pytest.mark.parametrize(
    "transform", [fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled, fg.jit]
)
def test_something_that_is_no_function(transform, x):
    fails(fg.ArgumentError, TypeError, lambda: transform(x), "must be a function", "Tensor", "not its result")


@pytest.mark.parametrize(
    "result", [lambda x: x.sum(), lambda x: [x.sum(), x], lambda x: (x.sum(), x, x), lambda x: None]
)
def test_aux_that_is_not_there(result, x):
    def loss_and_aux(x):
        return result(x)

    for transform in (fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled):
        error = fails(
            fg.AuxError, TypeError, lambda: transform(loss_and_aux, has_aux=True)(x), "has_aux=True", "(loss, aux)"
        )
        assert error.where == line_of(loss_and_aux, "def loss_and_aux")


def test_tree_map_over_other_structures():
    a = {"layers": [torch.ones(1), {"w": torch.ones(1), "b": None}]}
    missing = {"layers": [torch.ones(1), {"w": torch.ones(1)}]}
    error = fails(
        fg.TreeMismatchError,
        ValueError,
        lambda: fg.tree_map(lambda p, g: p, a, missing),
        "['w'], ['b']",
        "a dict of ['w']",
    )
    assert error.where == "tree['layers'][1]"
    assert "same structure" in error.fix
    other_kind = {"layers": (torch.ones(1), a["layers"][1])}
    error = fails(
        fg.TreeMismatchError, ValueError, lambda: fg.tree_map(lambda p, g: p, a, other_kind), "a list", "a tuple"
    )
    assert error.where == "tree['layers']"
    error = fails(fg.TreeMismatchError, ValueError, lambda: fg.tree_map(lambda p, g: p, [1], [None]), "a leaf", "None")
    assert error.where == "tree[0]"


def test_wrong_number_of_leaves():
    fails(
        fg.TreeMismatchError,
        ValueError,
        lambda: unflatten([1], flatten({"a": 1, "b": 2})[1]),
        "1 leaves for a structure of 2",
    )


# ── values that are not known while tracing ──────────────────────────────────────────────────────────────────────


def item_decides(x):
    if x.sum().item() > 0:
        return x.sum()
    return x.prod()


def tensor_decides(x):
    if x.sum() > 0:
        return x.sum()
    return x.prod()


def loop_on_a_tensor(x):
    while x.sum() < 3:
        x = x + 1
    return x.sum()


def float_of_a_tensor(x):
    scale = float(x.max())
    return x.sum() * scale


def item_in_arithmetic(x):
    scale = x.max().item()
    return x.sum() * scale


def list_of_a_tensor(x):
    first, *_ = x.tolist()
    return x.sum() * first


@pytest.mark.parametrize("transform", [fg.grad_compiled, fg.jit])
@pytest.mark.parametrize(
    ("f", "fault"),
    [
        (item_decides, ".item()"),
        (tensor_decides, "if x.sum() > 0"),
        (loop_on_a_tensor, "while"),
        (float_of_a_tensor, "float("),
        pytest.param(item_in_arithmetic, ".item()"),
        pytest.param(list_of_a_tensor, ".tolist()"),
    ],
)
def test_value_of_a_tensor(f, fault, transform, x):
    try:
        transform(f, reads="error")(x)
    except fg.FuncgradError as error:
        fails(fg.DataDependentControlFlowError, RuntimeError, lambda: transform(f, reads="error")(x))
        assert error.where.startswith(line_of(f, fault) + ": ")
        assert fault in error.where  # the line itself is shown
        assert "torch.where" in error.fix and "torch.cond" in error.fix
    else:
        pytest.fail("did not raise")


def test_value_of_a_tensor_deep_inside_names_the_innermost_line(x):
    compiled = fg.grad_compiled(lambda x: tensor_decides(x.sin()), reads="error")
    error = fails(fg.DataDependentControlFlowError, RuntimeError, lambda: compiled(x))
    assert error.where.startswith(line_of(tensor_decides, "if x.sum() > 0"))


def test_what_the_advice_names_works(x):
    expected = torch.tensor([1.0, 1.0, 1.0])
    assert torch.equal(fg.grad_compiled(lambda x: torch.where(x.sum() > 0, x.sum(), x.prod()))(x), expected)


def test_torch_cond_which_the_advice_names_works(x):
    f = lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))  # noqa: E731
    torch.testing.assert_close(fg.jit(f)(x), x.sin())


def solves_by_least_squares(a, b):
    return torch.linalg.lstsq(a, b).solution


def test_size_that_depends_on_values():
    call = lambda: fg.jit(solves_by_least_squares, reads="error")(torch.eye(3), torch.ones(3, 1))  # noqa: E731
    error = fails(fg.DataDependentShapeError, RuntimeError, call, "linalg_lstsq")
    assert error.where.startswith(line_of(solves_by_least_squares, "lstsq("))
    assert "pinv" in error.fix


@pytest.mark.parametrize(
    "f", [lambda x: x[x > 1].sum(), lambda x: x.masked_select(x > 1).sum(), lambda x: x.sum() * x.unique().shape[0]]
)
def test_size_that_depends_on_values_in_a_gradient(f, x):
    assert torch.equal(fg.grad_compiled(f)(x), torch.func.grad(f)(x))
    error = fails(fg.DataDependentShapeError, RuntimeError, lambda: fg.grad_compiled(f, reads="error")(x))
    assert error.where.startswith(HERE)


# ── other transforms ─────────────────────────────────────────────────────────────────────────────────────────────


def scalar(x):
    return x.sin().sum()


def closes_over(y):
    hidden = weakref.ref(y)
    return fg.jit(lambda factor: (factor * hidden()).sum())(2.0)


def test_hidden_tensor_of_a_transform(x):
    error = fails(
        fg.CapturedTransformError, RuntimeError, lambda: torch.vmap(closes_over)(x.expand(2, 3)), "closes over a tensor"
    )
    assert error.where.startswith(f"{HERE}:")
    assert int(re.search(r":(\d+)", error.where)[1]) == inspect.getsourcelines(closes_over)[1] + 2


# ── mutation that is refused, and memory that inputs share ───────────────────────────────────────────────────────

WEIGHT = torch.ones(3)
PARAMETER = torch.nn.Parameter(torch.ones(3))
GRADIENTS = [fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled]


def state(tensor):
    """All that a call could change about a tensor."""
    version = None if tensor.is_inference() else tensor._version
    gradient = tensor.grad if tensor.is_leaf else None
    look = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.data_ptr(), tensor.is_leaf)
    return tensor.tolist(), version, gradient, tensor.requires_grad, tensor.grad_fn, look


def refuses(kind, call, *tensors):
    """The error a call raises, of exactly this class and a ``RuntimeError``; the tensors are as they were."""
    before = [state(t) for t in tensors]
    error = fails(kind, RuntimeError, call)
    assert [state(t) for t in tensors] == before
    return error


def a_leaf():
    return torch.arange(3.0, requires_grad=True)


def a_computed_tensor():
    return a_leaf() * 1


def a_view_of_a_leaf():
    return torch.arange(4.0, requires_grad=True)[1:]


def an_inference_tensor():
    with torch.inference_mode():
        return torch.arange(3.0)


def an_expanded_tensor():
    return torch.ones(1).expand(3)


def doubles(x):
    x.mul_(2)
    return x.sum()


def sets_other_memory(x):
    x.set_(torch.ones(4))
    return x.sum()


def sets_data_of_a_view_it_unsqueezes(x):
    x.unsqueeze_(0)
    x.data = torch.ones(3)
    return x.detach().sum()


def a_view():
    return (torch.arange(4.0).requires_grad_() * 1)[1:]


def computes_with_data_of_another_dtype(x):
    x.data = torch.ones(3, dtype=torch.float64)
    return x.sum()


def sets_data_and_writes(x):
    x.data = torch.ones(3)
    x.add_(1)
    return x.detach().sum()


def sets_memory_of_a_storage(x):
    x.set_(torch.ones(4).untyped_storage())
    return x.sum()


def resizes_a_part_of_a_result(x):
    (x * 2)[1:].resize_(7)
    return x.sum()


def runs_backward_after_a_hidden_write(x):
    x.data.mul_(2)
    x.sum().backward()


def writes_a_parameter(x):
    PARAMETER.mul_(2)
    return (x * PARAMETER).sum()


def detaches_and_writes(x):
    x.detach_()
    x.mul_(PARAMETER)
    return x.sum()


@pytest.mark.parametrize(
    ("f", "make", "where", "what", "fix"),
    [
        (
            sets_data_of_a_view_it_unsqueezes,
            a_view,
            "x",
            "gives x other memory (.data =, set_, resize_, out=) and writes to it",
            "copy_()",
        ),
        (sets_data_and_writes, a_leaf, "x", "it is a leaf that requires grad", "copy_()"),
        (
            runs_backward_after_a_hidden_write,
            a_computed_tensor,
            "x",
            "history of x, after a write through .data",
            "autograd.grad",
        ),
        (doubles, an_inference_tensor, "x", "inference tensor", None),
        (detaches_and_writes, lambda: torch.ones(3), "x", "detaches x", "return it"),
        (detaches_and_writes, a_leaf, "x", "detaches x", "return it"),
    ],
)
def test_mutation_that_is_refused_names_the_tensor(f, make, where, what, fix):
    x = make()
    error = refuses(fg.MutationError, lambda: fg.jit(f)(x), x, WEIGHT, PARAMETER)
    assert error.where == where
    assert what in error.what
    assert fix is None or fix in error.fix


@pytest.mark.parametrize(
    ("f", "make", "line"),
    [
        (doubles, a_leaf, "mul_("),
        (doubles, a_view_of_a_leaf, "mul_("),
        (sets_other_memory, a_leaf, "x.set_("),
        (computes_with_data_of_another_dtype, a_leaf, "x.data ="),
        (sets_memory_of_a_storage, lambda: torch.ones(3), "x.set_("),
        (resizes_a_part_of_a_result, lambda: torch.ones(3), "resize_("),
        (writes_a_parameter, lambda: torch.ones(3), "mul_("),
    ],
)
def test_mutation_that_autograd_forbids_names_the_line(f, make, line):
    x = make()
    error = refuses(fg.MutationError, lambda: fg.jit(f)(x), x, PARAMETER)
    assert error.where.startswith(line_of(f, line))
    assert error.fix


def test_mutation_of_several_elements_in_one_place():
    x = an_expanded_tensor()
    before = state(x)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        fg.jit(doubles)(x)
    assert state(x) == before


@pytest.mark.parametrize("transform", GRADIENTS)
@pytest.mark.parametrize("f", [doubles, writes_a_parameter, sets_other_memory])
@pytest.mark.parametrize("make", [lambda: torch.ones(3), a_leaf, a_computed_tensor], ids=["plain", "leaf", "computed"])
def test_mutation_that_a_gradient_refuses(f, make, transform):
    x = make()
    error = refuses(fg.MutationError, lambda: transform(f)(x), x, WEIGHT, PARAMETER)
    if f in (doubles, writes_a_parameter):  # what is differentiated is a leaf that requires grad
        assert error.where.startswith(line_of(f, "mul_("))
        assert "clone()" in error.fix


@pytest.mark.parametrize("make", [a_leaf, a_view_of_a_leaf, an_inference_tensor])
def test_mutation_is_refused_when_a_program_for_another_tensor_is_there(make):
    c, written, refused = fg.jit(doubles), torch.arange(3.0), make()
    assert c(written) == 6 and torch.equal(written, torch.arange(3.0) * 2)
    refuses(fg.MutationError, lambda: c(refused), refused)
    assert c.cache_info().currsize == 1


def keeps_a_copy_and_writes(x):
    kept = x.clone()
    x.add_(1)
    return kept.sin().sum()


def test_second_derivative_of_a_function_that_writes_to_what_it_needs(x):
    x.requires_grad_()
    f = fg.jit(keeps_a_copy_and_writes)
    (gradient,) = torch.autograd.grad(f(x * 1), x)
    torch.testing.assert_close(gradient, x.detach().cos())
    (gradient,) = torch.autograd.grad(f(x * 1), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x)[0], -x.detach().sin())


def writes_then_asks_for_a_value(x, log):
    log.add_(1)
    return x.sum() * x.max().item()


def writes_then_sets_an_attribute(x, log):
    log.add_(1)
    log.mine = 3
    return x.sum()


def writes_then_writes_a_parameter(x, log):
    log.t_().add_(1)
    PARAMETER.mul_(2)
    return x.sum()


@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (writes_then_asks_for_a_value, fg.DataDependentControlFlowError),
        (writes_then_sets_an_attribute, fg.MutationError),
        (writes_then_writes_a_parameter, fg.MutationError),
    ],
)
def test_nothing_is_written_by_a_call_that_fails_later(f, kind, x):
    log = torch.zeros(2, 3)
    refuses(kind, lambda: fg.jit(f, reads="error")(x, log), x, log, PARAMETER)


def test_a_function_that_raises_has_written_what_it_wrote_before(x):
    def writes_and_raises(x):
        x.add_(1)
        raise KeyError("its own")

    want = x.detach() + 1
    with pytest.raises(KeyError, match="its own"):
        fg.jit(writes_and_raises)(x)
    assert torch.equal(x.detach(), want)


def writes_the_first(a, b):
    a.add_(1)
    return (a.sum() + b.sum()).real


def looks_at_both(a, b):
    return (a.sum() + b.sum()).real


def of_another_dtype():
    base = torch.zeros(8)
    return base[:4], base.view(torch.int32)[2:]


def conjugated():
    base = torch.zeros(4, dtype=torch.complex64)
    return base, base.conj()


ODD_PAIRS = [(of_another_dtype, "different dtypes"), (conjugated, "conjugated")]


@pytest.mark.parametrize(("make", "why"), ODD_PAIRS)
def test_write_to_memory_that_inputs_share_in_odd_ways(make, why):
    a, b = make()
    error = refuses(fg.AliasContractError, lambda: fg.jit(writes_the_first)(a, b), a, b)
    assert error.where == "a"
    assert "that a and b share" in error.what and why in error.what
    assert "clone" in error.fix
    weighted = fg.grad_compiled(lambda w, a, b: w.sum() * writes_the_first(a, b))
    refuses(fg.AliasContractError, lambda: weighted(torch.ones(2), a, b), a, b)
    copy = b.clone()
    assert fg.jit(writes_the_first)(a, copy) == a.real.sum() + copy.real.sum()  # what the advice names


@pytest.mark.parametrize(("make", "why"), ODD_PAIRS)
def test_memory_that_inputs_share_in_odd_ways_may_be_read(make, why):
    assert fg.jit(looks_at_both)(*make()) == 0


def writes_around_it(x):
    with torch.no_grad():
        x.as_strided((2,), (1,), 0).mul_(2)
    return x.sum()


def test_write_to_memory_around_a_tensor():
    x = torch.arange(4.0)[1:].requires_grad_()
    error = refuses(fg.AliasContractError, lambda: fg.jit(writes_around_it)(x), x)
    assert error.where.startswith(line_of(writes_around_it, "mul_("))
    assert "all of whose memory" in error.fix


def writes_windows(x):
    x.unfold(0, 2, 1).mul_(2)
    return x.sum()


def test_write_to_memory_that_overlaps_itself(x):
    error = refuses(fg.MutationError, lambda: fg.jit(writes_windows)(x), x)
    assert error.where.startswith(line_of(writes_windows, "mul_("))
    assert "depends on the order" in error.what


def test_overlapping_inputs_with_a_large_base():
    base, expected = torch.zeros(100), torch.zeros(100)
    with pytest.warns(fg.LargeBaseWarning) as caught:
        result = fg.jit(writes_the_first)(base[:4], base[2:6])
    assert result == writes_the_first(expected[:4], expected[2:6])
    assert torch.equal(base, expected)
    (message,) = [str(w.message) for w in caught if w.category is fg.LargeBaseWarning]
    assert "a and b overlap" in message
    assert "400 B" in message and "32 B" in message
    assert "smaller" in message


@pytest.mark.parametrize(
    ("f", "pair"),
    [
        (writes_the_first, lambda: torch.zeros(64).unfold(0, 4, 2)[:2]),  # eight times as large is not worth a word
        (looks_at_both, lambda: torch.zeros(1000).unfold(0, 4, 2)[:2]),
        (writes_the_first, lambda: torch.zeros(1000).unfold(0, 4, 4)[:2]),  # they do not overlap
    ],
    ids=["small", "read", "disjoint"],
)
def test_overlapping_inputs_without_a_warning(f, pair):
    a, b = pair().unbind()
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.LargeBaseWarning)
        fg.jit(f)(a.detach(), b.detach())


# ── tensors that cannot be traced ────────────────────────────────────────────────────────────────────────────────


class Tagged(torch.Tensor):
    pass


QUANTIZED = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize(
    ("make", "kind", "advice"),
    [
        (lambda x: x.to_sparse(), "torch.sparse_coo", "to_dense()"),
        (lambda x: torch.eye(3).to_sparse_csr(), "torch.sparse_csr", "to_dense()"),
        (lambda x: x.as_subclass(Tagged), "Tagged", "as_subclass(torch.Tensor)"),
        pytest.param(
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "cannot be traced", "", marks=QUANTIZED
        ),
    ],
    ids=["sparse", "csr", "subclass", "quantized"],
)
def test_tensor_of_another_kind(make, kind, advice, x):
    error = fails(fg.UnsupportedTensorError, RuntimeError, lambda: fg.jit(lambda x: x.sum())(make(x)), kind)
    assert error.where == "x"
    assert advice in error.fix


def adds_a_sparse_constant(x):
    return torch.add(x, SPARSE).sum()


def multiplies_by_a_sparse_constant(x):
    return (x * SPARSE).sum()


SPARSE = torch.ones(3).to_sparse()


@pytest.mark.parametrize(
    "f",
    [
        adds_a_sparse_constant,
        pytest.param(multiplies_by_a_sparse_constant),
    ],
)
def test_captured_tensor_of_another_kind(f, x):
    error = fails(fg.UnsupportedTensorError, RuntimeError, lambda: fg.jit(f)(x), "torch.sparse_coo")
    assert error.where == line_of(f, "return")


def draws_from_its_own_generator(x):
    return x + torch.rand(3, generator=GENERATOR)


GENERATOR = torch.Generator()


def test_generator(x):
    error = fails(
        fg.UnsupportedTensorError,
        RuntimeError,
        lambda: fg.jit(draws_from_its_own_generator, rng="philox")(x),
        "torch.Generator",
    )
    assert error.where == line_of(draws_from_its_own_generator, "return")
    assert "eager" in error.fix


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "transform", [fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled, fg.jit]
)
def test_option_that_does_not_exist(transform):
    error = fails(fg.OptionError, ValueError, lambda: transform(scalar, bakend="aten"), "'bakend'")
    assert "backend" in error.fix and "static_argnums" in error.fix


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("backend", "cuda", "'aten'"),
        ("backend", None, "'aten'"),
        ("dynamic", "yes", "None"),
        ("rng", "torch", "'eager'"),
        ("numerics", 1, "'eager'"),
        ("backward_autocast", True, "'off'"),
    ],
)
def test_option_value_that_does_not_exist(name, value, known):
    error = fails(
        fg.OptionError, ValueError, lambda: fg.jit(scalar, **{name: value}), f"{name}={value!r}", "is not a value"
    )
    assert known in error.fix
    fails(fg.OptionError, ValueError, lambda: fg.Options(**{name: value}))


@pytest.mark.parametrize("value", ["a lot", "2 GiBi", -1, 0.0, 1.5, True])
def test_memory_budget_that_is_none(value):
    error = fails(fg.OptionError, ValueError, lambda: fg.jit(scalar, memory_budget=value), f"memory_budget={value!r}")
    assert '"512MiB"' in error.fix


@pytest.mark.parametrize(
    ("value", "nbytes"), [("2GiB", 2 * 2**30), ("1.5 MB", 1_500_000), ("512B", 512), (7, 7), (0.5, 0.5), (None, None)]
)
def test_memory_budget_in_units(value, nbytes):
    assert fg.Options(memory_budget=value).memory_budget == nbytes


@pytest.mark.parametrize("value", [[1], [{}], [{"dtype": torch.bfloat16}]])
def test_autocast_of_backward_without_a_device(value):
    error = fails(
        fg.OptionError,
        ValueError,
        lambda: fg.jit(scalar, backward_autocast=value),
        "backward_autocast=",
        "torch.autocast",
    )
    assert "device_type" in error.fix


@pytest.mark.parametrize(
    "transform", [fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled, fg.jit]
)
def test_gradient_under_autocast(transform, x):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    def squared(x):
        return Square.apply(x).sum()

    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(fg.AutocastWarning) as caught:
        transform(squared)(x)
    (message,) = [str(w.message) for w in caught if w.category is fg.AutocastWarning]
    assert "squared" in message and 'backward_autocast="off"' in message and "same_as_forward" in message


@pytest.mark.parametrize("value", ["off", "same_as_forward", [], [{"device_type": "cpu", "dtype": torch.bfloat16}]])
def test_gradient_under_autocast_that_is_spoken_for(value, x):
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error", fg.AutocastWarning)
        fg.grad_compiled(scalar, backward_autocast=value)(x)
        fg.jit(scalar)(x)  # nothing is differentiated
        fg.grad_compiled(scalar)(x)  # nothing asks for it


def test_environment():
    error = fails(fg.OptionError, ValueError, lambda: read_environment({"FUNCGRAD_LOG": "9"}), "FUNCGRAD_LOG='9'")
    assert error.where == "the environment"
    fails(fg.OptionError, ValueError, lambda: read_environment({"FUNCGRAD_BACKEND": "cuda"}), "cuda")


# ── retraces, traces, graphs, partitions ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda x: ({"w": torch.ones(4)}, 1), "params['w']: shape was (3,), now (4,)"),
        (lambda x: ({"w": x.double()}, 1), "params['w']: dtype was torch.float32, now torch.float64"),
        (lambda x: ({"w": torch.ones(6)[::2]}, 1), "params['w']: stride was (1,), now (2,)"),
        (lambda x: ({"w": x}, 2), "n: value was 1, now 2"),
        (lambda x: ({"w": x, "b": x}, 1), "structure was"),
    ],
    ids=["shape", "dtype", "stride", "static", "structure"],
)
def test_retrace_says_which_part_of_the_key_differed(other, difference, x):
    c = fg.grad_compiled(lambda params, n: params["w"].sum() * n)
    c({"w": x}, 1)
    with fg.no_retrace():
        c({"w": x + 1}, 1)
        error = fails(fg.RetraceError, RuntimeError, lambda: c(*other(x)), difference)
    assert "call it once before" in error.fix
    assert c.cache_info().currsize == 1
    c(*other(x))  # outside, it compiles


def test_retrace_for_grad_mode_and_for_a_first_call(x):
    c = fg.jit(scalar)
    with fg.no_retrace():
        fails(fg.RetraceError, RuntimeError, lambda: c(x), "has not been compiled yet", "scalar")
    c(x)
    with fg.no_retrace(), torch.no_grad():
        fails(fg.RetraceError, RuntimeError, lambda: c(x), "grad mode: was True, now False")


TABLES = [torch.ones(3), torch.ones(3)]


def uses_another_tensor_each_time(read):
    order = in_turn(0, 1)

    def function(x):
        return read(x, TABLES[order()])

    return function


def test_two_traces_that_do_not_agree(x):
    f = uses_another_tensor_each_time(lambda x, table: x / table.numel())
    error = fails(fg.TraceError, RuntimeError, lambda: fg.jit(f)(x), "second run")
    assert error.where.startswith(f"{HERE}:")
    assert "pure function" in error.fix


def test_two_traces_that_compute_with_other_tensors(x):
    f = uses_another_tensor_each_time(torch.mul)
    fails(fg.TraceError, RuntimeError, lambda: fg.jit(f)(x), "second run")


def test_two_traces_that_return_other_structures(x):
    size = in_turn(1, 2)
    fails(fg.TraceError, RuntimeError, lambda: fg.jit(lambda x: [x * 2] * size())(x))


def test_graph_that_is_run_with_too_few_values(x):
    joint = fg.jit(scalar).program(x).joint
    fails(fg.GraphError, RuntimeError, lambda: joint.run(), "takes 1 values, got 0")


def test_graph_that_breaks_a_promise(x):
    graph = fg.jit(scalar).program(x).joint.graph
    verify(graph)
    node = next(n for n in graph.fx.nodes if n.op == "call_function")
    del node.meta["val"]
    error = fails(
        fg.GraphError,
        RuntimeError,
        lambda: verify(graph),
        f"{node.name} has no recorded value",
        f"→ {node.format_node()}",
    )
    assert error.where == node.meta["where"] and error.where.startswith(line_of(scalar, "return"))


def test_graph_with_other_slots_than_values(x):
    graph = fg.jit(scalar).program(x).joint.graph
    fails(
        fg.GraphError,
        RuntimeError,
        lambda: verify(evolve(graph, signature=Signature(graph.signature.ins, ()))),
        "0 output slots",
    )
    fails(fg.GraphError, RuntimeError, lambda: Signature((Arg("x"), Arg("x")), (Out(""),)), "x appears twice")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Tag.MUST_BE_IN_FORWARD, Tag.MUST_BE_IN_BACKWARD),
        (Tag.MUST_BE_IN_BACKWARD, Tag.MUST_BE_IN_FORWARD),
        (Tag.MUST_SAVE, Tag.PREFER_RECOMPUTE),
        (Tag.MUST_SAVE, Tag.MUST_BE_IN_BACKWARD),
    ],
)
def test_contradictory_tags_name_both_reasons(first, second, x):
    graph = fg.jit(scalar).program(x).joint.graph
    node = next(n for n in graph.fx.nodes if n.op == "call_function" and n.meta.get("where"))
    before = dict(node.meta)
    tag(node, first, "the first reason")
    kept = dict(node.meta)
    error = fails(
        fg.PartitionError, RuntimeError, lambda: tag(node, second, "another reason"), node.name, first.name, second.name
    )
    assert f"{first.name} (the first reason)" in error.what and f"{second.name} (another reason)" in error.what
    assert error.where == before["where"]
    assert node.meta == kept, "a tag that is refused is not written"


# ── captured tensors ─────────────────────────────────────────────────────────────────────────────────────────────

TABLE = torch.ones(3)
HIDDEN = weakref.ref(TABLE)


def reads_where_nobody_can_follow(x):
    return (x * HIDDEN()).sum()


def test_capture_that_cannot_be_followed(x):
    with pytest.warns(fg.UnresolvedCaptureWarning) as caught:
        grads = fg.grad_compiled(reads_where_nobody_can_follow)(x)
    assert torch.equal(grads, TABLE)
    (message,) = [str(w.message) for w in caught if w.category is fg.UnresolvedCaptureWarning]
    assert line_of(reads_where_nobody_can_follow, "HIDDEN") in message
    assert "f32[3]" in message and "Pass it as an argument" in message


# ── all that is refused, and what its fix says ───────────────────────────────────────────────────────────────────

EAGER = {
    fg.jit: lambda f: f,
    fg.grad_compiled: lambda f, **options: torch.func.grad(f, **options),
    refused.undifferentiated: lambda f: getattr(f, "__wrapped__", f),
    fg.checkpoint: lambda f: getattr(f, "__wrapped__", f),
}
LINES = Path(refused.__file__).read_text().splitlines()
WORLD = [
    lambda: torch.get_rng_state().tolist(), random.getstate, lambda: repr(np.random.get_state()),
    lambda: refused.NUMPY.bit_generator.state,
    lambda: refused.GENERATOR.get_state().tolist(), lambda: repr(refused.COUNT), lambda: dict(vars(refused.STATE)),
    lambda: repr(state(refused.WEIGHT)), torch.is_grad_enabled, lambda: torch.is_autocast_enabled("cpu"),
    lambda: len(_get_current_dispatch_mode_stack()), lambda: len(_get_current_function_mode_stack()),
    lambda: dict(vars(torch)),
    lambda: dict(vars(torch.Tensor)), lambda: vars(torch.nn.Module).get("__getattribute__"),
    lambda: dict(vars(types.SimpleNamespace)),
]  # fmt: skip
"""What a call could leave behind, besides its arguments."""


def look(value):
    """All that a call could change of a value, as text."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return repr(value)
        if is_wrapper_subclass(value):
            return [type(value), value.requires_grad, value.grad_fn, *map(look, inner_tensors(value))]
        return repr((state(value), vars(value), value._backward_hooks, value._base is None))
    if isinstance(value, (list, tuple)):
        return [look(v) if v is not value else "itself" for v in value]
    return {k: look(v) for k, v in value.items()} if isinstance(value, dict) else repr(value)


def refuse(row, args):
    with row.around():
        c = row.transform(row.f() if row.anew else row.f, **row.options)
        if row.before is not None:
            c(*row.before())
        row.calls(c, args)


@pytest.fixture(scope="module", autouse=True)
def warm():
    """What the first of all traces puts into torch stays there."""
    fg.jit(scalar)(torch.ones(3))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_is_refused_changes_nothing(row):
    args = row.args()
    # Python makes another object of a node that nobody keeps one of
    histories = [t.grad_fn for t in args if isinstance(t, torch.Tensor)]
    before, world = look(args), [ask() for ask in WORLD]
    with pytest.raises(fg.FuncgradError) as caught:
        refuse(row, args)
    error = caught.value
    traceback.clear_frames(error.__traceback__)  # torch 2.11's checkpoint lets go of its hooks when its frame is gone
    assert type(error) is row.kind and row.says in error.what and error.refusal is row.refusal, str(error)
    assert error.fix
    if row.where == "line":
        found = re.match(r"refused\.py:(\d+) in ", error.where or "")
        assert found and LINES[int(found[1]) - 1].strip(), error.where
    else:
        assert error.where == row.where
    if row.calls not in (refused.once, refused.twice):  # where forward is done, and backward is refused
        assert look(args) == before, histories
        assert not [was for was, ask in zip(world, WORLD, strict=True) if ask() != was]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_fix_of_what_is_refused_works(row):
    f = row.f if row.fixed is None else row.fixed
    options = row.options if row.fixed_options is None else row.fixed_options
    make = row.args if row.fixed_args is None else row.fixed_args
    assert (row.fixed, row.fixed_args, row.fixed_options, row.fixed_around) != (None, None, None, None)
    around = row.around if row.fixed_around is None else row.fixed_around
    known = (
        {k: v for k, v in options.items() if k in ("argnums", "has_aux")} if row.transform is fg.grad_compiled else {}
    )
    results = []
    weight = refused.WEIGHT.detach().clone()
    for call in (EAGER[row.transform](f, **known), row.transform(f, **options)):
        args = make()
        torch.manual_seed(0)
        with around():
            result = row.calls(call, args)
        results.append((result, args, copy.copy(refused.STATE.made)))
        refused.STATE.made = None
        with torch.no_grad():
            refused.WEIGHT.copy_(weight)
    leaves = [[v for v in tree_leaves(r) if not callable(v)] for r in results]
    expected, found = (
        [t for v in own for t in (with_inner(v) if isinstance(v, torch.Tensor) else [v])] for own in leaves
    )
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, torch.Tensor):
            if not is_wrapper_subclass(b):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, check_stride=False)
            assert a.requires_grad == b.requires_grad
        else:
            assert a == b


NOT_REFUSED_HERE = {
    "HEARD_THROUGH_RESULT": "test_results.py: in a backward pass",
    "NO_PROGRAM": "test_archive.py: a file is at fault",
    "SAVED_BY_ANOTHER": "test_archive.py: a file is at fault",
    "NEEDS_MORE": "test_archive.py: a file is at fault",
    "OPAQUE_WRITES_WITHOUT_DERIVATIVE": "test_callbacks.py",
    "ABSENT_GRADIENTS": "test_boundary.py",
    "CHANGED_AT_LEVEL": "test_late_state.py",
    "GENERATOR_IN_BACKWARD": "a generator that is made in a backward pass",
    "SEEDED_BY_OLD_METHOD": "what is seeded is seeded: no call that changes nothing",
    "LEGACY_VMAP_TWICE": "PyTorch has no public way to nest it",
    "FORWARD_OVER_WRITES": "test_gradcheck.py",
    "ASKS_OF_TANGENT": "test_duals.py",
    "RULE_NOT_IN_GRAPH": "test_late_state.py",
    "ONWARD_TO_OWN_GRADIENT": "test_onward.py has a table of its own",
    "ONWARD": "test_onward.py has a table of its own",
    "ONWARD_CREATE_GRAPH": "test_onward.py has a table of its own",
    "ONWARD_TO_BASE": "test_onward.py has a table of its own",
    "ONWARD_TO_TARGET": "test_onward.py has a table of its own",
    "ONWARD_WITH_FAULTS": "test_onward.py has a table of its own",
    "ONWARD_IN_TWO_RUNS": "test_onward.py has a table of its own",
    "SECOND_DERIVATIVE_ONWARD": "test_onward.py has a table of its own",
    "BACKWARD_INPUTS": "as before",
    "WRITES_OUTSIDE_IN_BACKWARD": "as before",
    "SYMBOLIC_ZEROS": "test_transforms.py",
    "RETURNS_RETAINED": "test_leaves.py",
    "FILLS_CACHE": "test_state_mended.py",
    "FILLS_CACHE_FIRST": "test_state_mended.py",
    "DROPS_CACHED": "test_state_unseen.py",
    "SHARED_WITH_ARRAY": "test_state_unseen.py",
    "WRITES_TO_CACHED": "test_state_mended.py",
    "BACKWARD_OF_OWN_LEAF": "random programs (laws/fuzz.py, seed 903585)",
    "VIEW_SWITCHED_AND_RESTRIDED": "random programs (laws/fuzz.py, seed 1000438)",
    "NOT_AN_OPERAND": "a defect: bodies of control flow are given all that they close over",
    "DRAWN_BY_ANOTHER_THREAD": "two threads in the right order (laws/test_threads.py)",
    "LAZY_MODULE": "under a transform alone (test_modules.py)",
    "INITIALISES_LAZY_MODULE": "test_modules.py",
    "MAKES_OWN_LEAF": "test_state.py",
    "STORES_UNDER_LEVEL": "test_levels.py",
    "REGISTERS_HOOK": "test_modules.py",
    "CUDNN_STATISTICS": "a GPU",
    "POLICY_ANSWER": "a GPU",
    "STORAGE_SET": "a subclass whose inner tensors are exchanged (test_subclass.py)",
    "IN_PLACE_ON_LEAF": "PyTorch's own check comes first where it looks",
    "RESIZED_UNFOLLOWED": "a custom autograd.Function that changes sizes in place",
    "TRACKED_ONTO_ITSELF": "of 10,000 random programs that overlap 200 come there (laws/refusals.py)",
    "MAKES_LAYOUT": "an operator of a library of its own",
    "NUMBER_LEFT_BEHIND": "a float in a cache, which a guard finds first",
    "VALUES_ON_THE_WAY": "code in C that reads memory (test_captured.py)",
    "VIEW_OF_AS_STRIDED": "PyTorch's functionalisation, where no path of slices is found",
    "OPAQUE_OF_SUBCLASS": "test_callbacks.py, as what follows",
    "BODY_CALLS_ONCE": "a loop that eager PyTorch does not differentiate (test_callbacks.py)",
    "RUNS_ONCE": "a second derivative of a program with an opaque call",
    "CHANGED_BEFORE_BACKWARD": "what has no place to be put back to",
}
"""Refusals that no row here comes to, and why."""

NOT_IN_THE_TABLE = {
    "this region is open already": "test_engine.py",
    "captured graphs are forgotten where no region is open": "test_engine.py",
    "{statement.name} gave {now}, and gave": "test_engine.py",
    "and was to return (": "test_executable.py",
    "is an opaque call, which runs once": "test_executable.py",
    "a tensor is read that was donated": "test_donation.py",
    "GraphError": "a defect: what a stage promises another does not hold (test_graph_that_breaks_a_promise and its "
    "siblings make some)",
    "VerificationError": "a defect: a program computes what eager PyTorch does not",
    "BuildError": "the machine has no compiler",
    "CacheTrustError": "a folder on the machine",
    "the C compiler failed": "a defect",
    "no value that may be saved": "a defect: tags of graphs are made so that there is one",
    "must be in forward (": "a defect, as before",
    "cannot be both": "a defect, as before (test_contradictory_tags_name_both_reasons)",
    "leaves for a structure of": "funcgrad's own call (test_wrong_number_of_leaves)",
    "FUNCGRAD_": "the environment (test_environment)",
    "writes={self.writes}": "positions of arguments that are none",
    "writes={writes": "what is no position",
    "a function that writes to its arguments is given a derivative": "options that contradict each other",
    "vmap_method={": "an option without such a value",
    "randomness={randomness!r}": "an option without such a value",
    "chunk_size={chunk_size!r}": "what is no number of samples",
    "{path} is {describe(t)}": "what a linear function is called with (tests/test_transforms.py)",
    "{layout.name} returned {tree}": "a result of another structure",
    "{layout.name} returned a tensor on": "a result on another device",
}
"""Part of what the source says of a refusal (or its class) → why no row of the table comes there."""


def refusals():
    """Each place of the package that makes a ``FuncgradError``: file, first and last line, class and text."""
    names = {name for name, kind in CLASSES.items() if not issubclass(kind, Warning)}
    for path in sorted(Path(fg.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in names
                and path.name != "errors.py"
            ):
                yield str(path), node.lineno, node.end_lineno, f"{node.func.id} {ast.unparse(node.args[0])}"


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_every_refusal_has_a_row(monkeypatch):
    made, init = set(), fg.FuncgradError.__init__

    def noted(self, *args, **kwargs):
        frame = inspect.currentframe().f_back
        made.add((frame.f_code.co_filename, frame.f_lineno))
        init(self, *args, **kwargs)

    monkeypatch.setattr(fg.FuncgradError, "__init__", noted)
    for row in ROWS:
        with pytest.raises(fg.FuncgradError):
            refuse(row, row.args())
    reached_rows = {row.refusal for row in ROWS}
    assert {name for name, row in REFUSALS.items() if row not in reached_rows} == NOT_REFUSED_HERE.keys()
    reached = {
        (path, start): any(p == path and start <= line <= end for p, line in made) for path, start, end, _ in refusals()
    }
    missing = {text: f"{path}:{start}" for path, start, _, text in refusals() if not reached[path, start]}
    assert not {text: at for text, at in missing.items() if not any(part in text for part in NOT_IN_THE_TABLE)}
    assert not [part for part in NOT_IN_THE_TABLE if not any(part in text for text in missing)], "there is a row by now"


def test_refusals_of_a_trace_stand_in_the_table():
    """Where a call of the class would say its message, no row says what to count, and what to do instead."""
    kinds = {row.kind.__name__ for row in REFUSALS.values()}
    assert not [f"{path}:{start}" for path, start, _, text in refusals() if text.split()[0] in kinds]


def test_the_page_of_refusals_is_printed_anew():
    assert DOC.with_name("refusals.md").read_text() == page(), "python -m funcgrad.refusals > docs/refusals.md"


def test_every_class_is_refused_for_something():
    known = {row.kind for row in ROWS} | refused.ELSEWHERE.keys()
    assert {kind for kind in CLASSES.values() if not issubclass(kind, Warning)} - {fg.FuncgradError} == known


# ── docs/errors.md ───────────────────────────────────────────────────────────────────────────────────────────────

NOT_RUNNABLE = "<!-- not runnable -->"
TEXT = DOC.read_text()


def sections():
    """Name of each section → (line, text)."""
    parts = re.split(r"^## (\w+)$", TEXT, flags=re.MULTILINE)
    found, position = {}, len(parts[0])
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        position += len(f"## {name}")
        assert name not in found, f"two sections {name}"
        found[name] = (TEXT.count("\n", 0, position) + 1, body)
        position += len(body)
    return found


SECTIONS = sections()
RUNNABLE = [name for name, (_, body) in SECTIONS.items() if NOT_RUNNABLE not in body]


def blocks(name):
    """The wrong and the right code of a section, compiled under the name and the lines of the document."""
    line, body = SECTIONS[name]
    pattern = r"Wrong code:\n\n```python\n(.*?)```\n\nWhy: .+?\n\nRight code:\n\n```python\n(.*?)```"
    match = re.search(pattern, body, re.DOTALL)
    assert match, f"{name} has no wrong code, why and right code, in this order"
    starts = [line + body.count("\n", 0, match.start(i)) for i in (1, 2)]
    return [compile("\n" * (start - 1) + match[i], str(DOC), "exec") for i, start in zip((1, 2), starts, strict=True)]


def test_every_class_has_one_section():
    assert set(SECTIONS) == set(CLASSES)


@pytest.mark.parametrize("name", RUNNABLE)
def test_wrong_code_raises_the_class_of_its_section(name):
    kind, code = CLASSES[name], blocks(name)[0]
    namespace = {"__name__": "example", "torch": torch, "fg": fg}
    if issubclass(kind, Warning):
        with pytest.warns(kind):
            exec(code, namespace)
        return
    with pytest.raises(kind) as caught:
        exec(code, namespace)
    assert type(caught.value) is kind or kind is fg.FuncgradError
    where = re.match(r"errors\.md:(\d+) in ", caught.value.where or "")
    if where:
        line, body = SECTIONS[name]
        assert line <= int(where[1]) < line + body.count("\n")


@pytest.mark.parametrize("name", RUNNABLE)
def test_right_code_runs(name):
    with warnings.catch_warnings():
        for kind in WARNINGS:
            warnings.simplefilter("error", kind)
        exec(blocks(name)[1], {"__name__": "example", "torch": torch, "fg": fg})
