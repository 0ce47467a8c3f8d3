"""torch's transformer modules equal eager PyTorch in each mode: their fast paths compute something else where there
are masks."""

import itertools

import pytest
import torch
from torch import nn

import funcgrad as fg

SOURCE = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
LAST = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
FIRST = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0]]).bool()
ALL = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
PADDINGS = {
    "none": None,
    "last": LAST,
    "first": FIRST,
    "all": ALL,
    "float": torch.zeros(3, 5).masked_fill(LAST, float("-inf")),
}
CAUSAL = torch.triu(torch.full((5, 5), float("-inf")), 1)
BIAS = torch.linspace(-1, 1, 25).reshape(5, 5)
MASKS = {"none": None, "causal": CAUSAL, "bias": BIAS}


MODES = list(itertools.product([True, False], [True, False]))
FAST = (False, False)
"""In eval mode without gradients there are the fast paths: what holds of all masks there is asked of a few where
there is one path."""


def compared(function, *args, **kwargs):
    torch.manual_seed(3)
    expected = function(*args, **kwargs)
    torch.manual_seed(3)
    found = fg.jit(function, backend="aten")(*args, **kwargs)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-5)


def few(mode, padding, norm_first):
    return () if mode == FAST or (padding == "last" and not norm_first) else pytest.mark.long


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("train", "grad", "norm_first", "padding"),
    [
        pytest.param(*mode, norm_first, padding, marks=few(mode, padding, norm_first))
        for mode, norm_first, padding in itertools.product(MODES, [False, True], PADDINGS)
    ],
)
def test_encoder(train, grad, norm_first, padding):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=not norm_first).train(train)
    with torch.set_grad_enabled(grad):
        for mask in MASKS.values():
            compared(encoder, SOURCE, mask=mask, src_key_padding_mask=PADDINGS[padding])
            compared(encoder.layers[0], SOURCE, src_mask=mask, src_key_padding_mask=PADDINGS[padding])


@pytest.mark.parametrize("norm", [False, True])
def test_one_program_for_masks_that_take_either_path(norm):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, norm=nn.LayerNorm(8) if norm else None
    )
    compiled = fg.jit(encoder.eval())
    with torch.no_grad():
        for padding in (LAST, FIRST, ALL):
            expected = encoder(SOURCE, src_key_padding_mask=padding)
            torch.testing.assert_close(
                compiled(SOURCE, src_key_padding_mask=padding), expected, equal_nan=True, rtol=1e-4, atol=1e-5
            )
    assert compiled.cache_info().currsize == 1


def test_an_encoder_that_checks_no_mask():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, mask_check=False).eval()
    with torch.no_grad():
        for padding in (LAST, FIRST):
            compared(encoder, SOURCE, src_key_padding_mask=padding)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("padding", ["none", "last", "all"])
@pytest.mark.parametrize(("train", "grad"), MODES)
def test_attention(train, grad, padding):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(train)
    with torch.set_grad_enabled(grad):
        for mask, weights, average in itertools.product([None, CAUSAL, CAUSAL.isinf()], [True, False], [True, False]):
            if padding == "none" or mask is None or mask.dtype == torch.bool:
                compared(
                    lambda x, mask=mask, weights=weights, average=average: attention(
                        x,
                        x,
                        x,
                        key_padding_mask=PADDINGS[padding],
                        attn_mask=mask,
                        need_weights=weights,
                        average_attn_weights=average,
                    ),
                    SOURCE,
                )


def test_a_gradient_takes_the_slow_path():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()

    def loss(x):
        return encoder(x, src_key_padding_mask=LAST).square().sum()

    x = SOURCE.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(fg.grad_compiled(loss)(SOURCE), expected, rtol=1e-4, atol=1e-5)
