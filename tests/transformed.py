"""What tests of transforms over compiled functions share. Where the backend is not what is tested, it is the
quickest one to compile."""

import torch
from torch.utils._pytree import tree_leaves

import funcgrad as fg

OPTIONS = {"backend": "aten"}
F64 = torch.float64


def jit(f):
    return fg.jit(f, **OPTIONS)


def same(found, wanted):
    """Tensor by tensor equal to nine digits; what is no tensor is equal."""
    found, wanted = tree_leaves(found), tree_leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        else:
            assert a == b
