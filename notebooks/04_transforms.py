# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: -all
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Transforms, and transforms of transforms
#
# `torch.func` over a compiled function is a compiled program again: the stack of transforms is taken off one level at a time, vmap at the
# definition, derivatives at the kernel. Four uses, each with what is compiled of it, and its time beside torch.func's alone.

# %%
import statistics
import time

import torch
from torch import func
from torch.nn import functional

import funcgrad as fg


def microseconds(*calls):
    """The median of each, in turns."""
    found = [[] for _ in calls]
    for _ in range(30):
        for times, call in zip(found, calls, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [round(statistics.median(times[5:]) * 1e6) for times in found]


def beside(eager, compiled, *args):
    torch.testing.assert_close(compiled(*args), eager(*args), rtol=1e-3, atol=1e-4)
    alone, ours = microseconds(lambda: eager(*args), lambda: compiled(*args))
    print(f"torch.func {alone} µs, compiled {ours} µs: {alone / ours:.1f} times")


# %% [markdown]
# ## Per-sample gradients
#
# The gradient of one sample, mapped over a batch. The transform may stand outside of the compiled gradient, or inside of one program.

# %%
def network(p, x):
    return functional.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]


def loss_of_one(p, x, y):
    return functional.cross_entropy(network(p, x)[None], y[None])


p = {"w1": torch.randn(32, 64) / 6, "b1": torch.zeros(64), "w2": torch.randn(64, 10) / 8}
x, y = torch.randn(128, 32), torch.randint(10, (128,))
outside = func.vmap(fg.grad_compiled(loss_of_one), (None, 0, 0))
inside = fg.vmap_compiled(func.grad(loss_of_one), (None, 0, 0))
beside(func.vmap(func.grad(loss_of_one), (None, 0, 0)), outside, p, x, y)
beside(func.vmap(func.grad(loss_of_one), (None, 0, 0)), inside, p, x, y)

# %% [markdown]
# One program: its kernels run over all samples.

# %%
inside.program(p, x, y).schedule[0]

# %% [markdown]
# ## Hessian-vector products
#
# Forward mode over reverse mode. `linearize_compiled` keeps what does not depend on the direction: the linear part is a program of its own,
# and may be called again, or mapped.

# %%
def loss(p):
    return functional.cross_entropy(network(p, x), y)


direction = fg.tree_map(torch.randn_like, p)


def product(p, direction):
    return func.jvp(func.grad(loss), (p,), (direction,))[1]


beside(product, fg.jit(product), p, direction)

# %%
gradient, jvp_fn = fg.linearize_compiled(func.grad(loss), p)
torch.testing.assert_close(jvp_fn(direction), product(p, direction), rtol=1e-3, atol=1e-4)
directions = fg.tree_map(lambda v: torch.randn(8, *v.shape), p)
beside(lambda d: func.vmap(lambda own: product(p, own))(d), func.vmap(jvp_fn), directions)

# %% [markdown]
# The graph of a product: tangents are computed beside what they are tangents of.

# %%
fg.jit(product).program(p, direction).joint

# %% [markdown]
# ## A neural tangent kernel
#
# Jacobians of all samples by the parameters, contracted. `jacrev` of a compiled function is compiled as `jacrev` inside one is.

# %%
def kernel(p, x):
    jacobians = func.vmap(func.jacrev(network), (None, 0))(p, x)
    return sum(torch.einsum("nap,map->nma", j.flatten(2), j.flatten(2)) for j in jacobians.values())


few = x[:16]
compiled = fg.jit(kernel)
beside(kernel, compiled, p, few)

# %%
compiled.program(p, few).schedule[0]

# %% [markdown]
# ## An ensemble
#
# Five networks trained as one: the step is written for one of them, its gradient compiled, and the whole mapped over parameters. The mapped
# function is one more program of the same function; another call compiles nothing.

# %%
gradient = fg.value_and_grad_compiled(lambda p, x, y: functional.cross_entropy(network(p, x), y))


def step(p, x, y):
    value, g = gradient(p, x, y)
    return fg.tree_map(lambda v, d: v - 0.5 * d, p, g), value


def eager_step(p, x, y):
    g, value = func.grad_and_value(lambda p: functional.cross_entropy(network(p, x), y))(p)
    return fg.tree_map(lambda v, d: v - 0.5 * d, p, g), value


ensemble = fg.tree_map(lambda v: v + 0.01 * torch.randn(5, *v.shape), p)
beside(func.vmap(eager_step, (0, None, None)), func.vmap(step, (0, None, None)), ensemble, x, y)

# %%
train = fg.vmap_compiled(step, (0, None, None))
for i in range(40):
    ensemble, losses = train(ensemble, x, y)
    if i % 13 == 0:
        print(i, losses.numpy().round(3))
train.cache_info()
