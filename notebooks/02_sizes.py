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
# # One program for every batch
#
# A size that changes between calls becomes a symbol: of the graph, of the kernels, and of what is allocated. What the function, or the
# compiler, compared it with is a guard, checked on each call.

# %%
import torch

import funcgrad as fg

# %% [markdown]
# ## The second size


# %%
def loss(w, x, y):
    hidden = torch.nn.functional.layer_norm((x @ w).softmax(-1), (40,))
    return (hidden - y).square().mean()


grad = fg.grad_compiled(loss)
w = torch.randn(20, 40)
for batch in (32, 48, 7, 1000):
    grad(w, torch.randn(batch, 20), torch.randn(batch, 40))
    print(batch, grad.cache_info())

# %% [markdown]
# The first program is for 32 rows; the second one, made for 48, is for any number. The width did not change, and stays a number.

# %%
program = grad.program(w, torch.randn(7, 20), torch.randn(7, 40))
program.key

# %% [markdown]
# Its graph:

# %%
program.joint

# %% [markdown]
# Its call begins with what must hold:

# %%
program.call

# %% [markdown]
# And its kernels take the number of rows:

# %%
source = next(s.text for s in program.sources if s.language == "c")
print(source[source.index("void k_") :])

# %% [markdown]
# ## Guards
#
# A function may look at a size. A program then serves the sizes with which it goes the same way.


# %%
def longer(x):
    return (x.sin() if x.shape[0] > 10 else x.cos()).sum()


grad = fg.grad_compiled(longer, dynamic=True)
for n in (3, 7, 10, 11, 30, 4):
    grad(torch.randn(n))
    print(n, grad.cache_info().misses)

# %%
grad.program(torch.randn(5)).call

# %% [markdown]
# `dynamic=True` asks for symbols from the first call on, `dynamic=False` for one program for each size. Why a call would compile:

# %%
print(fg.grad_compiled(longer, dynamic=True).explain_miss(torch.randn(5)))
short = fg.grad_compiled(longer, dynamic=True)
short(torch.randn(3))
print(short.explain_miss(torch.randn(30)))
