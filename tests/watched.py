"""What a step of a program shows, and that two runs of it show the same."""

import collections

import torch
from torch import nn

import funcgrad as fg


def attempt(f, *args):
    """What a call returns, or raises."""
    try:
        return f(*args)
    except fg.FuncgradError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)


def seen(value, met):
    """What can be seen of a value, as plain data: of tensors also which is which, who shares memory, and gradients."""
    if isinstance(value, torch.Tensor):
        if id(value) in met:
            return ["again", met[id(value)][0]]
        met[id(value)] = len(met), value
        memory = met.setdefault(value.untyped_storage()._cdata, (len(met), value.untyped_storage()))[0]
        looks = type(value).__name__, value.shape, value.stride(), value.requires_grad, value.is_leaf, memory
        grad = value.grad if value.is_leaf else None
        return [str(looks), value.detach().clone(), None if grad is None else seen(grad, met)]
    if isinstance(value, nn.Module):
        return [value.training, seen([*value.named_parameters(), *value.named_buffers()], met)]
    if isinstance(value, dict):
        return [type(value).__name__, [[repr(k), seen(v, met)] for k, v in value.items()]]
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, [seen(v, met) for v in value]]
    if hasattr(value, "__dict__"):
        return [type(value).__name__, seen(vars(value), met)]
    return value


def steps(f, c):
    """What is seen after each step, and the state of the generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [[seen(value, {}), torch.get_rng_state()] for value in f(c)]


def assert_same(found, expected, step):
    if isinstance(expected, (torch.Tensor, float)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m: f"{step}: {m}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), (step, found, expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, step)
    else:
        assert type(found) is type(expected) and found == expected, (step, found, expected)
