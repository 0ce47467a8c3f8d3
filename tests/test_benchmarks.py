"""Every workload of the benchmarks gives at a small size what torch.func gives. No timing is a test."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import funcgrad as fg
from benchmarks import contestants, forces, transforms, workload
from benchmarks.integrator import integrator
from benchmarks.steady import ALL, TOLERANCE

BY_NAME = {w.name: w for w in (*ALL, integrator(3))}
EVERY_WORKLOAD = pytest.mark.parametrize("name", BY_NAME)


def differs(name, contestant):
    inputs = BY_NAME[name].inputs(True)
    expected = contestants.torch_function(BY_NAME[name])(*inputs)
    return contestants.difference(contestants.contestant(contestant, BY_NAME[name], inputs)(), expected)


@pytest.mark.sweep(4)
@EVERY_WORKLOAD
def test_funcgrad_equals_torch_func(name):
    assert differs(name, "funcgrad") < TOLERANCE


@EVERY_WORKLOAD
def test_eager_equals_torch_func(name):
    assert differs(name, "eager") < TOLERANCE


@pytest.mark.skipif(workload.jax is None, reason="jax is not installed")
@EVERY_WORKLOAD
def test_the_function_in_jax_is_the_same_one(name):
    assert differs(name, "jax") < TOLERANCE


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", transforms.CASES, ids=lambda case: case.name)
def test_transforms_agree(case):
    calls, fails = transforms.calls_of(case, True, ["torch.func", "over compiled", "compiled", "jax"])
    assert not fails
    assert {"torch.func", "compiled"} <= calls.keys()


@pytest.mark.parametrize("loss", [forces.loss, forces.autograd_loss])
def test_force_training_is_one_program(loss):
    p, *rest = (fg.tree_map(lambda t: t.double() if t.is_floating_point() else t, v) for v in forces.inputs(True))
    compiled = fg.value_and_grad_compiled(loss)
    expected = torch.func.grad_and_value(forces.loss)(p, *rest)
    value, gradient = compiled(p, *rest)
    torch.testing.assert_close((gradient, value), expected)
    assert len(compiled.program(p, *rest).kernels) == 1
    assert compiled.cache_info().misses == 1


def test_a_wrong_result_is_seen():
    inputs = BY_NAME["mlp"].inputs(True)
    value, gradients = contestants.torch_function(BY_NAME["mlp"])(*inputs)
    (w, b), *rest = gradients
    assert contestants.difference((value, [(w * 1.001, b), *rest]), (value, gradients)) > TOLERANCE
    assert contestants.difference((value, [(w, b)]), (value, gradients)) == float("inf")
