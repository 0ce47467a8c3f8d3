"""Storages and memory of traced tensors: what is known of them, and what is refused by name; operators called by
their names."""

import io
import pickle
import re

import pytest
import torch

import funcgrad as fg
from funcgrad.torch_private.tensors import storage_id

X = torch.arange(3.0)
KEPT = torch.ones(3)
ADDRESS = eval(compile("lambda x: x.data_ptr()", torch.__file__, "eval"))


def fresh():
    return X.clone()


# ── storages ─────────────────────────────────────────────────────────────────────────────────────────────────────

CHANGES = {
    "resize_": lambda x: x.untyped_storage().resize_(0),
    "storage().resize_": lambda x: x.storage().resize_(0),
    "of what is computed": lambda x: (x * 2).untyped_storage().resize_(0),
    "of a captured tensor": lambda x: KEPT.untyped_storage().resize_(0),
    "fill_": lambda x: x.untyped_storage().fill_(0),
    "storage().fill_": lambda x: x.storage().fill_(0),
    "copy_": lambda x: x.untyped_storage().copy_(KEPT.untyped_storage()),
    "share_memory_": lambda x: x.untyped_storage().share_memory_(),
    "item": lambda x: x.storage().__setitem__(0, 3.0),
    "operator": lambda x: torch.ops.inductor.resize_storage_bytes_(x, 0),
    "gradient": lambda x: torch.ops.inductor.accumulate_grad_(x, None, x * 2),
    "tensor.share_memory_": lambda x: x.share_memory_(),
    "set_": lambda x: x.set_(KEPT.untyped_storage()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_a_storage_is_refused(change):
    import torch._inductor.fx_passes.post_grad  # registers the operators

    def f(x):
        change(x)
        return x + KEPT

    x = fresh()
    with pytest.raises(fg.MutationError) as caught:
        fg.jit(f)(x)
    assert caught.value.fix and caught.value.where
    assert torch.equal(x, X) and torch.equal(KEPT, torch.ones(3)) and x.untyped_storage().nbytes() == 12


READS = {
    "storage.data_ptr": lambda x: x.untyped_storage().data_ptr(),
    "of a captured tensor": lambda x: KEPT.untyped_storage().data_ptr(),
    "tolist": lambda x: x.untyped_storage().tolist(),
    "item": lambda x: x.storage()[0],
    "iteration": lambda x: list(x.storage()),
    "clone": lambda x: x.untyped_storage().clone(),
    "nbytes of an input": lambda x: x.untyped_storage().nbytes(),
    "len of a view of an input": lambda x: len(x[1:].untyped_storage()),
    "nbytes of a captured tensor": lambda x: KEPT.untyped_storage().nbytes(),
    "dlpack": lambda x: torch.from_dlpack(x),
    "capsule": lambda x: torch.utils.dlpack.to_dlpack(x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_reads_memory_is_refused(read):
    with pytest.raises(fg.DataDependentControlFlowError) as caught:
        fg.jit(lambda x: (read(x), x + KEPT)[1])(fresh())
    assert caught.value.fix


ASKS = {
    "data_ptr": lambda x: x.data_ptr(),
    "data_ptr by torch": lambda x: ADDRESS(x),
    "data_ptr of a captured tensor": lambda x: KEPT.data_ptr(),
    "pickle": lambda x: pickle.dumps(x),
    "save": lambda x: torch.save(x, io.BytesIO()),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_what_is_another_one_in_each_call_is_refused(ask):
    with pytest.raises(fg.UnsupportedTensorError) as caught:
        fg.jit(lambda x: (ask(x), x + KEPT)[1])(fresh())
    assert caught.value.fix


def test_what_is_known_of_a_storage():
    def f(x):
        y = x * 2
        assert y.untyped_storage() == y[1:].untyped_storage() and y.untyped_storage() != x.untyped_storage()
        assert hash(x.untyped_storage()) == hash(x[1:].untyped_storage())
        assert y.untyped_storage().device == x.device and not hasattr(y.untyped_storage(), "no_such_thing")
        return y * y.untyped_storage().nbytes() + len(y.storage())

    assert torch.equal(fg.jit(f)(fresh()), f(fresh()))


# ── operators by their names ─────────────────────────────────────────────────────────────────────────────────────

aten = torch.ops.aten

BY_NAME = {
    "t_": lambda x, y: aten.t_(x),
    "t_.default": lambda x, y: aten.t_.default(x),
    "squeeze_": lambda x, y: aten.squeeze_(x),
    "as_strided_": lambda x, y: aten.as_strided_(x, (2,), (1,)),
    "set_": lambda x, y: aten.set_(x, y),
    "set_.source_Tensor": lambda x, y: aten.set_.source_Tensor(x, y),
    "resize_": lambda x, y: aten.resize_(x, [2]),
    "requires_grad_": lambda x, y: aten.requires_grad_(x),
    "add_": lambda x, y: aten.add_(x, 1),
    "add.out": lambda x, y: aten.add.out(y, y, out=x),
    "polygamma_": lambda x, y: x.polygamma_(2),
    "aten.polygamma_": lambda x, y: aten.polygamma_.default(x, 1),
}


@pytest.mark.parametrize("change", BY_NAME.values(), ids=BY_NAME)
def test_an_operator_by_its_name_is_the_method(change):
    def f(x, y):
        change(x, y)
        return x * 2

    x, y = torch.rand(2, 1) + 1, torch.rand(2, 1)
    a, b = x.clone(), y.clone()
    expected, found = f(x, y), fg.jit(f)(a, b)
    assert torch.allclose(found, expected) and found.requires_grad == expected.requires_grad
    assert (a.shape, a.stride(), a.requires_grad) == (x.shape, x.stride(), x.requires_grad)
    assert torch.allclose(a, x) and torch.equal(b, y)
    assert (storage_id(a) == storage_id(b)) == (storage_id(x) == storage_id(y))


def test_polygamma_in_place_has_a_gradient():
    def f(x):
        return x.clone().polygamma_(1).sum()

    x = torch.rand(4) + 1
    assert torch.allclose(fg.grad_compiled(f)(x), torch.func.grad(f)(x))


def _views():
    """Each view operator of PyTorch's with the arguments it cannot do without."""
    known = {
        "dim0": 0,
        "dim1": 1,
        "dim2": 1,
        "dim": 0,
        "index": 1,
        "chunks": 1,
        "split_size": 1,
        "sections": 1,
        "dimension": 0,
    }
    known |= {"size": 1, "step": 1, "axis0": 0, "axis1": 1, "source": 0, "destination": 1, "dtype": torch.int32}
    shapes = {
        "view": [6],
        "expand": [2, 3],
        "permute": [1, 0],
        "unflatten": [1, 2],
        "as_strided": [2, 2],
        "reshape": [6],
    }
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            first, *rest = op._schema.arguments or [None]
            if (
                first is None
                or first.alias_info is None
                or first.alias_info.is_write
                or name.startswith("_")
                or "slice_inverse" in name
            ):
                continue
            if not any(r.alias_info for r in op._schema.returns):
                continue
            args = []
            for a in (a for a in rest if not a.has_default_value()):
                kind = re.sub(r"SymInt", "int", str(a.type))
                args.append(
                    {"List[int]": shapes.get(name, [0] if "dim" in a.name else [1])}.get(kind, known.get(a.name))
                )
            if name == "as_strided":
                args[1] = [1, 1]
            if None not in args:
                yield pytest.param(op, tuple(args), id=str(op))


@pytest.mark.parametrize(("op", "args"), list(_views()))
def test_a_view_with_its_defaults_left_out(op, args):
    def f(x):
        return op(x, *args)

    x = torch.arange(6.0).view(2, 3)
    try:
        expected = f(x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        pytest.skip(f"not of these arguments: {error}".splitlines()[0])
    found = fg.jit(f, backend="aten")(x)
    pairs = zip(*([v] if isinstance(v, torch.Tensor) else v for v in (found, expected)), strict=True)
    for a, b in pairs:
        assert torch.equal(a, b) and (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
        assert (storage_id(a) == storage_id(x)) == (storage_id(b) == storage_id(x))
