"""PyTorch's own list of operators that take functions (``hop_db``): forward and backward as eager PyTorch, or
refused by name."""

import pytest
import torch
from torch.testing._internal.hop_db import hop_db

import funcgrad as fg

REFUSED = {
    # as many results as there were steps: a size that depends on values
    "while_loop_stack_output-simple": "while_loop_stack_output",
    "flex_attention-simple": "torch compiles itself",  # and where it does not, it computes with a mode of its own
    "flex_attention_backward-simple": "flex_attention_backward",
    "flex_attention_backward-explicit_buffers": "flex_attention_backward",
    "local_map_hop-simple": "local_map_hop",  # a call on the local parts of DTensors
    "inline_asm_elementwise-simple": "inline_asm_elementwise",  # for GPUs
    "register_hook-simple": "registers a hook on a tensor it was given",  # and returns that
}
"""Those that are refused, each with what is said. This list may only shrink."""


def samples(op, requires_grad):
    return list(op.sample_inputs_func(op, "cpu", torch.float32, requires_grad))


def tensors(value):
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def run(f, sample):
    """Results, what became of the arguments, and gradients."""
    given, args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.detach().clone().requires_grad_(t.requires_grad),
        (sample.input, sample.args, sample.kwargs),
    )
    out = f(given, *args, **kwargs)
    outs, leaves = (
        [t for t in tensors(out) if t.requires_grad],
        [t for t in tensors((given, args, kwargs)) if t.requires_grad],
    )
    gradients = torch.autograd.grad([t.sin().sum() for t in outs], leaves, allow_unused=True) if outs else []
    return tensors(out), tensors((given, args, kwargs)), [torch.zeros(()) if g is None else g for g in gradients]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("op", hop_db, ids=lambda op: op.name + "-" + op.variant_test_name)
def test_an_operator_of_hop_db(op, requires_grad):
    name = op.name + "-" + op.variant_test_name
    for sample in samples(op, requires_grad and op.supports_autograd and name not in REFUSED):
        torch._dynamo.reset()
        if name in REFUSED:
            with pytest.raises(fg.FuncgradError, match=REFUSED[name]) as caught:
                run(fg.jit(op.op), sample)
            assert caught.value.where and caught.value.fix
        else:
            torch.testing.assert_close(run(fg.jit(op.op), sample), run(op.op, sample))
