"""Functions that write, alias, draw and close over tensors, for ``words.py``: each made anew, with what it writes to
besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Fn = Callable[[Tensor], Tensor]


class Made(NamedTuple):
    f: Fn
    state: tuple[Tensor, ...] = ()
    around: Callable[[Callable[..., Any]], Fn] | None = None
    """What makes a function of one tensor of ``f``, where ``f`` alone is compiled."""
    randomness: str = "same"


def _weights() -> Tensor:
    return torch.linspace(-1, 1, 3, dtype=torch.float64)


def smooth() -> Made:
    return Made(lambda x: (x.sin() * x.exp()).sum(-1))


def captured() -> Made:
    w = _weights()
    return Made(lambda x: torch.tanh(x * w) + w.square().sum())


def product() -> Made:
    w = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    return Made(lambda x: (x @ w).relu() @ w)


def writes_to_copy() -> Made:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(x.sin())
        y[..., 0] = x[..., 1] * 2
        return y.square()

    return Made(f)


def writes_to_argument() -> Made:
    """The compiled function writes to what its caller made and reads later, through a view of it."""

    def f(y: Tensor, z: Tensor) -> Tensor:
        y[..., 0].mul_(z.sum(-1))
        z.add_(y.sin())
        return y[..., 1:]

    def around(f: Callable[..., Any]) -> Fn:
        def whole(x: Tensor) -> Tensor:
            y, z = x * 2, x.exp()
            out = f(y, z)
            out.mul_(z[..., 1:])
            return (y * z).sum(-1) + out.square().sum(-1)

        return whole

    return Made(f, around=around)


def writes_to_input() -> Made:
    def f(x: Tensor) -> Tensor:
        x.mul_(0.5)
        return x.sin() * x

    return Made(f)


def views() -> Made:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        a, b = y[..., :2], y[..., 1:]
        a.add_(b.exp().detach() + b)
        return (y * y).sum(-1) + a.sum()

    return Made(f)


def counts() -> Made:
    total = torch.zeros((), dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        total.add_(1)
        return x.cos() * 3

    return Made(f, (total,))


def returns_input() -> Made:
    return Made(lambda x: x)


def returns_view() -> Made:
    return Made(lambda x: x[..., 1:])


def dropout() -> Made:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5) * x

    return Made(f)


def dropout_of_each() -> Made:
    return dropout()._replace(randomness="different")


def dropout_refused() -> Made:
    return dropout()._replace(randomness="error")


def norm() -> Made:
    w = _weights().exp()
    return Made(lambda x: F.layer_norm(x, (3,), w) * x)


def softmax() -> Made:
    return Made(lambda x: torch.log_softmax(x, -1).cumsum(-1))


def detached() -> Made:
    return Made(lambda x: x.detach() * x + x.sum(-1, keepdim=True).where(x.sum(-1, keepdim=True) > 0, x))


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, 3) if x.dim() > 1 else x.expand(2, 3) * torch.tensor([[1.0], [2.0]], dtype=torch.float64) + x


def batch_norm() -> Made:
    return Made(lambda x: F.batch_norm(_rows(x), None, None, training=True).square())


def batch_norm_with_buffers() -> Made:
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    w = _weights()
    return Made(lambda x: F.batch_norm(_rows(x), mean, var, w, training=True).square(), (mean, var))


def batch_norm_in_evaluation() -> Made:
    net = torch.nn.BatchNorm1d(3).double().eval()
    return Made(lambda x: net(_rows(x).square()) * x.sum())


def tree() -> Made:
    """A dict with a pair, a float and None; a namedtuple of results."""

    class Both(NamedTuple):
        a: Tensor
        b: list[Any]

    def f(p: dict[str, Any], *, scale: float) -> Any:
        a, b = p["pair"]
        return Both(a * scale, [b.square().sum(-1), None, {"w": p["w"] * a}])

    def around(f: Callable[..., Any]) -> Fn:
        def whole(x: Tensor) -> Tensor:
            out = f({"pair": (x, x.exp()), "w": _weights(), "n": None}, scale=2.0)
            return out.a.sin() + out.b[0].unsqueeze(-1) * out.b[2]["w"]

        return whole

    return Made(f, around=around)


class _Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, cubed: Tensor, slope: Tensor) -> Tensor:  # type: ignore[override]
        x, found = ctx.saved_tensors
        return cubed * found + slope * 6 * x

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, found = ctx.saved_tensors
        return tangent * found, tangent * 6 * x


def custom() -> Made:
    return Made(lambda x: _Cube.apply(x)[0].sin() * x)


def imaginary() -> Made:
    def f(x: Tensor) -> Tensor:
        z = torch.complex(x, x.sin()) * 1j
        return (z * z.exp()).real + z.abs().square() + torch.view_as_real(z)[..., 0]

    return Made(f)


def imaginary_argument() -> Made:
    """Complex numbers go into the compiled function, and come out of it."""
    return Made(
        lambda z: z * z.conj() * z.exp(),
        around=lambda f: lambda x: torch.view_as_real(f(torch.complex(x, x.cos()))).sum(-1),
    )


FUNCTIONS = {
    made.__name__: made
    for made in (
        smooth, captured, product, writes_to_copy, writes_to_argument, writes_to_input, views, counts, returns_input,
        returns_view,
        dropout, dropout_of_each, dropout_refused, norm, softmax, detached, batch_norm, batch_norm_with_buffers,
        batch_norm_in_evaluation,
        tree, custom, imaginary, imaginary_argument,
    )
}  # fmt: skip
