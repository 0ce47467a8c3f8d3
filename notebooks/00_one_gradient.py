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
# # One gradient, stage by stage
#
# `fg.grad_compiled` takes a function and gives back its gradient, compiled. This notebook follows one such gradient
# through every stage of its compilation. Each stage is a value: it prints as text, it draws itself in a notebook, and
# those that hold a graph can be run.

# %%
import torch

import funcgrad as fg

# %% [markdown]
# ## A function, and its gradient
#
# A function of a dictionary of parameters and a batch, with a scalar result. Nothing about it is special: any nest of
# dicts, lists, tuples and dataclasses of tensors will do.


# %%
def loss(params, x):
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    return (hidden @ params["w2"]).square().mean()


torch.manual_seed(0)
params = {"w1": torch.randn(8, 16), "b1": torch.zeros(16), "w2": torch.randn(16, 1)}
x = torch.randn(4, 8)

c = fg.grad_compiled(loss)
grads = c(params, x)
{name: tuple(g.shape) for name, g in grads.items()}

# %% [markdown]
# The first call compiled; the next ones run the program. The result has the structure of `params`, and agrees with
# `torch.func.grad`:

# %%
expected = torch.func.grad(loss)(params, x)
for name in params:
    torch.testing.assert_close(grads[name], expected[name])

# %% [markdown]
# ## The program
#
# `c.program` takes the arguments of a call and returns what that call runs, compiling it if it has not been yet. It does
# not run anything. It opens on a summary; each stage unfolds.

# %%
p = c.program(params, x)
p

# %% [markdown]
# ### Facts
#
# Before anything is compiled, the function runs once on fake tensors, which have sizes and no data. What that showed is
# written down: the inputs, the tensors the function closes over (here, none), and the outputs.

# %%
p.facts

# %% [markdown]
# ### The joint graph
#
# One trace holds both passes, as pure ATen calls. Every row says which line of the function it comes from, also in
# the backward pass: a call there names the forward line whose gradient it helps to compute.
#
# In the drawing, inputs are grey, forward calls blue, backward calls orange and outputs green. Rest the pointer on a box
# for its type and source line.

# %%
p.joint

# %% [markdown]
# The graph can be run by hand. It takes one value for each slot on the left of its signature and returns one for each
# slot on the right; a slot says *what* a value is, so there is nothing to count.

# %%
values = p.joint.run(params["w1"], params["b1"], params["w2"], x)
for slot, value in zip(p.joint.signature.outs, values, strict=True):
    print(slot, tuple(value.shape))

by_hand = dict(zip(params, values, strict=True))
for name in params:
    torch.testing.assert_close(by_hand[name], grads[name])

# %% [markdown]
# ### The partition
#
# The partition cuts the joint graph into a forward and a backward half, where these run apart: below, for `fg.jit`. A
# gradient runs both as one program, and its partition says what is computed again in it, if anything.

# %%
p.partition

# %% [markdown]
# ### Saved for backward
#
# `fg.jit` of the same function, with parameters that require grad, does run in two halves: the second one when you call
# `.backward()`. Between the two, what the cut goes through is kept. `c.saved` lists it, with what it would take to compute it again
# instead.

# %%
leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
j = fg.jit(loss)
saved = j.saved(leaves, x)
saved

# %%
j(leaves, x).backward()
for name in params:
    torch.testing.assert_close(leaves[name].grad, grads[name])

# %% [markdown]
# ### Kernels, schedule, source
#
# A backend lowers the graph to kernels and library calls, orders them in a schedule that frees each value after its last
# reader, and prints the result as code. There is one entry for each graph that runs; a gradient has one.

# %%
p.kernels[0]

# %%
p.schedule[0]

# %%
p.sources[0]

# %% [markdown]
# ### The call
#
# Around the kernel stands the printed call: it takes the arguments apart, checks that they are like those the program
# was made for, and puts the result together. This is all that runs between your call and the kernel.

# %%
p.call

# %% [markdown]
# ## Hits and misses
#
# `c` keeps one program for each kind of call. So far it has compiled one.

# %%
c(params, torch.randn(4, 8))
c.cache_info()

# %% [markdown]
# A batch of another size would need another program. `c.explain_miss` says so, and why, without compiling it:

# %%
print(c.explain_miss(params, torch.randn(2, 8)))

# %%
print(c.explain_miss(params, x.double()))

# %% [markdown]
# Where compiling would be a surprise, forbid it. Inside `fg.no_retrace()` a call that no program fits raises, with the
# same explanation:

# %%
try:
    with fg.no_retrace():
        c(params, torch.randn(2, 8))
except fg.RetraceError as error:
    print(error)
