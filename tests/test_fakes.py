"""Results on fake tensors that are made of earlier ones are what PyTorch's own fake tensors would have said."""

import contextlib
import itertools

import pytest
import torch
from op_samples import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import funcgrad as fg
from funcgrad.capture import fakes
from funcgrad.capture.fakes import Results
from funcgrad.torch_private import FakeTensor, FakeTensorMode, dispatch_bits, is_known_by_kinds, on_fakes

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def looks(out):
    """All there is to know about fake tensors."""

    def look(v):
        memory = v.storage_offset(), v.untyped_storage().nbytes()
        return v.dtype, v.shape, v.stride(), *memory, v.device, v.requires_grad, dispatch_bits(v), vars(v)

    return [look(v) if isinstance(v, FakeTensor) else v for v in tree_leaves(out)]


class Asking(TorchDispatchMode):
    """Asks for each call's result twice, so that the second is made of the first, and once of PyTorch; ``differ`` are the calls
    for which they are not the same."""

    def __init__(self):
        super().__init__()
        self.results, self.differ = Results(), []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not is_known_by_kinds(op):
            return op(*args, **kwargs)
        first, again, expected = self.results(op, args, kwargs), self.results(op, args, kwargs), on_fakes(op, args, kwargs)
        seen = [v.untyped_storage()._cdata for v in tree_leaves((first, again, args, kwargs)) if isinstance(v, FakeTensor)]
        own = all(seen.count(v.untyped_storage()._cdata) == 1 for v in tree_leaves(again) if isinstance(v, FakeTensor))
        if not own or type(again) is not type(expected) or looks(again) != looks(expected):
            self.differ.append((op, looks(again), looks(expected)))
        return first

    def known(self):
        """How many kinds of calls have a result that is made of an earlier one."""
        return sum(make is not None for make in self.results._makers.values())


@pytest.mark.parametrize("letters", [LETTERS[i : i + 9] for i in range(0, 26, 9)])
@pytest.mark.filterwarnings("ignore")
def test_of_every_operator_of_the_database(letters):
    known = 0
    for info in op_db:
        if info.name.split(".")[-1].strip("_")[0].lower() not in letters:
            continue
        for dtype in {torch.float32, torch.int64} & info.supported_dtypes("cpu"):
            for sample in itertools.islice(info.sample_inputs("cpu", dtype), 1):
                asking, mode = Asking(), FakeTensorMode()
                with contextlib.suppress(Exception):  # what fake tensors, or torch, cannot do, they say before there is a result
                    args = tree_map_only(torch.Tensor, mode.from_tensor, (sample.input, sample.args, sample.kwargs))
                    with mode, asking:
                        info.op(args[0], *args[1], **args[2])
                assert not asking.differ, info.name
                known += asking.known()
    assert known > 100


def test_the_kind_of_a_call():
    """What changes a result changes the kind: the default dtype, the type of a number, the strides."""
    results, add = Results(), torch.ops.aten.add.Tensor
    with FakeTensorMode():
        ints, floats = torch.ones(3, 4, dtype=torch.int64), torch.ones(4, 3)
        assert results(add, (ints, 1), {}).dtype == torch.int64
        assert results(add, (ints, 1.0), {}).dtype == torch.float32
        assert results(add, (ints, True), {}).dtype == torch.int64
        torch.set_default_dtype(torch.float64)
        try:
            assert results(add, (ints, 1.0), {}).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert results(add, (floats, floats), {}).stride() == (3, 1)
        assert results(add, (floats.t(), floats.t()), {}).stride() == (1, 3)
        assert results(add, (floats.t().contiguous(), floats.t()), {}).stride() == (4, 1)


def test_an_unrolled_loop_asks_once(monkeypatch):
    asked = []
    monkeypatch.setattr(fakes, "on_fakes", lambda op, *rest: (asked.append(op), on_fakes(op, *rest))[1])

    def loss(x, steps):
        for _ in range(steps):
            x = x.sin() * x + 1
        return x.sum()

    def count(steps):
        asked.clear()
        fg.grad_compiled(loss, backend="aten").program(torch.randn(5), steps)
        return len(asked)

    assert count(40) == count(20) > 0
