"""Tensors that are not dense and made inside: refused by name, before PyTorch's functionalisation meets them."""

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PLACES, TABLE, WHICH = torch.tensor([[0, 1], [1, 2]]), torch.randn(5, 3), torch.tensor([1, 2])

MADE = {
    "sparse_coo_tensor": lambda x: torch.sparse_coo_tensor(PLACES, x[:2], (3, 3)).to_dense(),
    "to_sparse": lambda x: x.diag().to_sparse().to_dense(),
    "to_sparse_csr": lambda x: x.diag().to_sparse_csr().to_dense(),
    "sparse.mm": lambda x: torch.sparse.mm(torch.sparse_coo_tensor(PLACES, x[:2], (3, 3)), x.diag()),
    "sparse_csr_tensor": lambda x: torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 2]), WHICH, x[:2], (3, 3)).to_dense(),
    "sparse.softmax": lambda x: torch.sparse.softmax(x.diag().to_sparse(), 0).to_dense(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    "quantized channels": lambda x: torch.quantize_per_channel(
        x, torch.ones(3), torch.zeros(3), 0, torch.qint8
    ).dequantize(),
    "nested": lambda x: torch.nested.as_nested_tensor([x, x[:2]]).to_padded_tensor(0.0),
    "mkldnn": lambda x: x.to_mkldnn().relu().to_dense(),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["", "requires_grad"])
@pytest.mark.parametrize("name", MADE)
def test_a_tensor_that_is_not_dense(name, requires_grad):
    x = torch.randn(3, requires_grad=requires_grad)
    with pytest.raises(fg.UnsupportedTensorError, match="not compiled") as caught:
        fg.jit(MADE[name])(x)
    assert caught.value.where.startswith("test_not_dense.py") and caught.value.fix


@pytest.mark.parametrize(
    "lookup",
    [
        lambda table, sparse: F.embedding(WHICH, table, sparse=sparse),
        lambda table, sparse: F.embedding_bag(WHICH, table, torch.tensor([0]), mode="sum", sparse=sparse),
    ],
    ids=["embedding", "embedding_bag"],
)
def test_a_sparse_gradient(lookup):
    with pytest.raises(fg.UnsupportedTensorError, match="sparse") as caught:
        fg.grad_compiled(lambda table: lookup(table, True).sin().sum())(TABLE)
    assert "sparse=False" in caught.value.fix
    found = fg.grad_compiled(lambda table: lookup(table, False).sin().sum())(TABLE)
    assert torch.allclose(found, torch.func.grad(lambda table: lookup(table, False).sin().sum())(TABLE))


def test_what_only_looks_like_it():
    def f(x):
        assert not x.is_sparse and not x.is_quantized
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)

    x = torch.randn(3)
    assert torch.equal(fg.jit(f)(x), f(x))
