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
# # A training step whose backward pass is captured
#
# `fg.compiled_autograd()` asks nothing of the forward pass: it is eager PyTorch, with hooks, custom functions, whatever the caller writes.
# Inside, `loss.backward()` is told by the autograd engine itself, call by call; what it tells is compiled like any other graph, and runs
# in the order of eager PyTorch.

# %%
import torch

import funcgrad as fg

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
data = torch.randn(64, 8)
target = data.sin().sum(1, keepdim=True)

# %% [markdown]
# ## Hooks
#
# One that clips a gradient, and one on each parameter that takes the optimiser's step as soon as its gradient is there, and lets the
# gradient go.

# %%
seen = []


def clipped(grad):
    seen.append(("clip", tuple(grad.shape)))
    return grad.clamp(-0.1, 0.1)


def descend(p):
    seen.append(("step", tuple(p.shape)))
    with torch.no_grad():
        p -= 0.1 * p.grad
    p.grad = None


model[0].weight.register_hook(clipped)
for p in model.parameters():
    p.register_post_accumulate_grad_hook(descend)


def loss(rows=64):
    return (model(data[:rows]) - target[:rows]).square().mean()


loss().backward()
in_eager = list(seen)
in_eager

# %% [markdown]
# ## The same, captured
#
# The hooks see what they saw, in the same order.

# %%
seen.clear()
with fg.compiled_autograd() as region:
    first = loss()
    first.backward()
assert seen == in_eager
seen

# %% [markdown]
# The region says what it did, and why:

# %%
print(region.explain())

# %% [markdown]
# ## What was captured
#
# The statements in the order they run: each node of autograd with what belongs to it, hooks included; then the graph, its kernels, and when
# each value is freed. What Python does at a node is one opaque call of the graph: a hook on each of a hundred parameters makes one
# program, not a hundred.

# %%
region.captures[0]

# %% [markdown]
# ## More steps
#
# The engine knows the graph when it comes again. Another number of rows compiles once more; that program is for any number.

# %%
with fg.compiled_autograd() as region:
    for step in range(200):
        loss(rows=64 if step % 2 else 40 + step % 7).backward()
print(region.explain().splitlines()[0], "…", f"{len(region.captures)} capture, {region.compiles} compiled", sep="\n")
print(f"loss {first.item():.3f} → {loss().item():.3f}")

# %% [markdown]
# Its second program has a symbol for the number of rows:

# %%
region.captures[0].programs[-1].graphs[0]

# %% [markdown]
# When each value is allocated, written over, and freed:

# %%
region.captures[0].programs[-1].schedules

# %% [markdown]
# ## What is not compiled
#
# A backward pass that is itself differentiated, or that cannot be traced, runs statement by statement, in the same order; the region says
# so, and warns of the second.

# %%
x = torch.ones(3, requires_grad=True)
with fg.compiled_autograd() as region:
    (grad,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
print(region.explain())
assert torch.allclose(second, x.exp())
