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
# # What is kept between forward and backward
#
# A backward pass needs values of the forward pass: they are kept, or computed again. This notebook looks at what is kept, why,
# how much memory it takes over time, and what it costs to keep less.

# %%
import torch

import funcgrad as fg

# %% [markdown]
# ## A stack of residual blocks, with dropout


# %%
def loss(blocks, x):
    for block in blocks:
        hidden = torch.nn.functional.gelu(x @ block["w1"])
        x = x + torch.nn.functional.dropout(hidden, 0.1) @ block["w2"]
    return x.square().mean()


torch.manual_seed(0)
blocks = [{"w1": torch.randn(64, 256) / 8, "w2": torch.randn(256, 64) / 16} for _ in range(6)]
for block in blocks:
    for weight in block.values():
        weight.requires_grad_()
x = torch.randn(512, 64)

c = fg.jit(loss)

# %% [markdown]
# ## What is saved, and why
#
# `c.saved` compiles, and runs nothing. Each value has its size, the line it comes from, the reason it is kept, and what it would
# cost to compute it again.

# %%
saved = c.saved(blocks, x)
saved

# %% [markdown]
# The sum of the table is what a call holds on to when its forward pass is done. `c.memory` runs a call with its backward pass
# and measures: the peak was known before.

# %%
use = c.memory(blocks, x)
assert abs(use.predicted_peak - use.measured_peak) <= 0.02 * use.measured_peak
use

# %% [markdown]
# ## Memory over time
#
# The partition draws it: forward on the left, backward on the right of the border. What is saved is freed value by value as
# backward goes on.

# %%
free = c.program(blocks, x).partition
free

# %% [markdown]
# ## A budget
#
# `memory_budget` is a bound on the peak: in bytes, as a text, or as a fraction of what autograd needs. Of all choices of what is
# computed again whose peak stays within, the cheapest is taken; the line in the drawing is the budget.

# %%
budget = int(use.measured_peak * 0.75)
within = fg.jit(loss, memory_budget=budget)
assert within.memory(blocks, x).measured_peak <= budget * 1.02
bounded = within.program(blocks, x).partition
bounded

# %% [markdown]
# ## Dropout draws the same numbers
#
# What is computed again must be what was computed before, random numbers included: gradients do not depend on the budget.


# %%
def gradients(f):
    torch.manual_seed(1)
    weights = [weight for block in blocks for weight in block.values()]
    return torch.autograd.grad(f(blocks, x), weights)


for a, b in zip(gradients(c), gradients(within), strict=True):
    torch.testing.assert_close(a, b)

# %% [markdown]
# ## The price of each budget
#
# A budget that cannot be kept is an error, which names the smallest one that can.

# %%
rows = []
for part in (1.0, 0.9, 0.8, 0.7):
    at = fg.jit(loss, memory_budget=int(use.measured_peak * part))
    try:
        limit = at.program(blocks, x).partition.limit
    except fg.PartitionError as error:
        rows.append(f"{part:.0%}: {error}".splitlines()[0])
    else:
        rows.append(f"{part:.0%}: {limit}")
print("\n".join(rows))

# %% [markdown]
# ## Parts of a batch
#
# Calls run in the order in which less is alive at a time. A gradient of a mean over parts of the batch runs the backward pass of one
# part before the forward pass of the next, and adds the gradients up: it takes the memory of one part, with nothing computed again.
# Random numbers that are eager PyTorch's are drawn in its order, forward first; counter-based ones leave the order open.


# %%
def in_parts(blocks, x):
    return sum(loss(blocks, part) for part in x.chunk(8)) / 8


whole, parts = (fg.grad_compiled(f, rng="philox") for f in (loss, in_parts))
peaks = {"whole": whole.memory(blocks, x).measured_peak, "in parts": parts.memory(blocks, x).measured_peak}
assert peaks["in parts"] < 0.6 * peaks["whole"]
peaks
