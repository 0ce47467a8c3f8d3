"""Operators of PyTorch's own database with ``out=``: what it names holds what it holds in eager PyTorch, and has its
sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

import funcgrad as fg

from .numbers import REFUSALS, UNSUITED, Raised, difference, outcome, quietly

_SOME = (
    "kron", "linalg.matrix_rank", "linalg.inv", "linalg.solve", "linalg.det", "linalg.cholesky", "linalg.eigh",
    "linalg.qr", "linalg.svd",
    "linalg.tensorinv", "linalg.norm", "fft.fft", "cat", "stack", "mm", "addmm", "matmul", "add", "sin", "sum", "mean",
    "max",
    "sort", "topk", "cumsum", "gather", "take", "index_select", "clamp", "where", "arange", "eye", "frexp", "logsumexp",
    "std",
    "triangular_solve", "geqrf", "special.i1e", "nn.functional.linear", "unbind_copy",
)  # fmt: skip


class Into:
    """A call of an operator with ``out=``, and what it is to name: of the sizes of the result, or empty, dense or
    with gaps."""

    def __init__(self, name: str, op: Callable[..., Any], sample: Any, result: Any) -> None:
        self.name, self.op, self.sample = name, op, sample
        self.several = isinstance(result, (tuple, list))
        self.like: Sequence[Tensor] = [t.contiguous() for t in (result if self.several else [result])]

    def outs(self, kind: str) -> list[Tensor]:
        if kind == "empty":
            return [t.new_empty(0) for t in self.like]
        return [
            torch.zeros_like(t) if kind == "dense" else torch.zeros_like(torch.stack([t, t], -1))[..., 0]
            for t in self.like
        ]

    def __call__(self, given: Any, outs: list[Tensor]) -> Any:
        value, args, kwargs = given
        result = self.op(value, *args, out=tuple(outs) if self.several else outs[0], **kwargs)
        return [t * 1 for t in (result if self.several else [result])]

    def check(self, kind: str) -> str | None:
        given = tree_map_only(Tensor, torch.Tensor.detach, (self.sample.input, self.sample.args, self.sample.kwargs))
        theirs, ours = self.outs(kind), self.outs(kind)
        expected, found = (
            outcome(lambda: self(given, theirs)),
            outcome(lambda: fg.jit(self, backend="aten")(given, ours)),
        )
        if isinstance(found, Raised) and (isinstance(expected, Raised) or type(found.error) in REFUSALS):
            return None
        text = difference((found, ours), (expected, theirs))
        if text is None and kind == "dense" and [t.stride() for t in ours] != [t.stride() for t in theirs]:
            text = "other strides"
        return text and f"{self.name} {kind}: {text}"


def calls(names: tuple[str, ...] | None) -> Iterator[Into]:
    """One call of each operator; of those not named, all that are suited."""
    for info in op_db:
        known = info.name in names if names else not any(u in info.name for u in UNSUITED)
        if not known or not info.supports_out or torch.float32 not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        samples = list(itertools.islice(info.sample_inputs("cpu", torch.float32), 30))
        sample = samples[len(samples) // 2]
        result = outcome(lambda info=info, s=sample: info.op(s.input, *s.args, **s.kwargs))  # type: ignore[misc]
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        if all(isinstance(t, Tensor) for t in tensors):
            yield Into(
                f"{info.name} {info.variant_test_name}",
                info.op,
                sample,
                tree_map_only(Tensor, torch.Tensor.detach, result),
            )


@pytest.mark.parametrize("kind", ["dense", "empty"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_out_names_is_written(kind: str) -> None:
    found = [text for call in calls(_SOME) if (text := quietly(lambda call=call: call.check(kind))) is not None]  # type: ignore[misc]
    assert not found, "\n".join(found)


def test_what_eager_pytorch_leaves_unwritten_stays() -> None:
    x = torch.randn(5, 4)
    for dim in (0, (0, 1)):
        f = lambda out, dim=dim: torch.fft.ihfft2(x, dim=dim, out=out) * 1  # noqa: E731
        ours, theirs = (torch.zeros_like(torch.fft.ihfft2(x, dim=dim).contiguous()) for _ in range(2))
        f(theirs)
        fg.jit(f, backend="aten")(ours)
        assert torch.equal(ours, theirs)


def test_a_tensor_of_no_elements_with_gaps_is_written() -> None:
    for f in (lambda x: x.mul_(2), lambda x: torch.sin(x, out=x), lambda x: x.copy_(x + 1)):
        x = torch.zeros(0, 2)[:, 0]
        assert fg.jit(f, backend="aten")(x) is x


@pytest.mark.parametrize("view", [lambda t: t, Tensor.t], ids=["itself", "a view of it"])
def test_what_out_names_keeps_its_layout(view: Callable[[Tensor], Tensor]) -> None:
    """The result of the operator itself would lie as its operand does."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        made, look = x * x.mean(), x + 1
        flat = look.view(-1)
        torch.mul(x.t(), 2, out=view(made))
        torch.mul(x.t(), 3, out=look)
        return made, flat * look.view(-1)

    x = torch.arange(16.0).view(4, 4)
    for expected, found in zip(f(x), fg.jit(f)(x), strict=True):
        assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_overlap_is_looked_for_before_what_out_names_is_resized() -> None:
    def raises(x: Tensor) -> None:
        torch.mul(x[0], 2, out=x)  # would be the same three elements afterwards

    def goes_on(x: Tensor) -> None:
        torch.mul(x.view(-1)[2:6], 2, out=x.view(2, 4)[:, 1:3])  # not dense, so PyTorch cannot tell

    for f in (raises, fg.jit(raises)):
        with pytest.raises(RuntimeError, match="single memory location"):
            f(torch.ones(2, 3))
    with pytest.warns(UserWarning, match="was resized"):
        goes_on(torch.ones(8))
    with pytest.raises(fg.MutationError, match="writes to memory it reads elsewhere"):
        fg.jit(goes_on)(torch.ones(8))
