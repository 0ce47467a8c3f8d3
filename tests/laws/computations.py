"""``python -m tests.laws.computations N [FIRST]``: gradients of N random computations, against eager PyTorch's.

A computation is of what kernels, library calls and the partition between them are made of: pointwise functions,
reductions and scans, products, concatenations and slices, lookups, and loops of which every step reads the same
matrices. In double precision the results are eager PyTorch's to nine digits; in single precision as near to the exact
ones as eager PyTorch's are, about.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from torch import Tensor

import funcgrad as fg

Shape = tuple[int, ...]
Statement = Callable[["Draw", str, Shape], None]

POINTWISE = """
{0}.tanh() · {0}.sigmoid() · {0}.relu() · {0}.exp().clamp(max=5) · F.gelu({0}) · F.silu({0}) · F.softplus({0})
· {0}.abs() · {0}.sin() · {0} * {0} · {0} * 0.5 + 1 · F.elu({0}) · torch.where({0} > 0, {0}, {0}.atan()) · {0}.cos()
· {0}.clamp(-1, 1) · torch.log1p({0}.square()) · -{0} · F.leaky_relu({0}) · ({0}.square() + 1).rsqrt()
· ({0}.abs() + 0.1) ** 1.5 · 1 / (1 + {0}.square()) · {0}.detach() + {0}
""".replace("\n", " ").split(" · ")  # fmt: skip

OF_TWO = """
{0} + {1} · {0} * {1} · {0} - 2 * {1} · torch.maximum({0}, {1}) · {0} / ({1}.square() + 1) · torch.lerp({0}, {1}, 0.3)
· torch.atan2({0}, {1}.abs() + 1) · torch.where({0} > {1}, {0}, {1}.exp()) · torch.addcmul({0}, {1}, {1})
· torch.hypot({0}, {1} + 0.1)
""".replace("\n", " ").split(" · ")  # fmt: skip

STEPS = (
    "torch.tanh({x} + {h} @ {w})", "{h} * {x}.sigmoid() + {x}", "torch.tanh({x} @ {u} + {h} @ {w})",
    "{h} - 0.1 * ({h} @ {w} - {x})", "torch.gru_cell({x}, {h}, {g3}, {w3}, {b3}, {b3})",
    "torch.lstm_cell({x}, ({h}, {h}), {g4}, {w4}, {b4}, {b4})[0]",
)  # fmt: skip


@define
class Draw:
    """A computation that is being drawn: its lines, its values and its parameters, with their shapes."""

    random: random.Random
    values: list[tuple[str, Shape]]
    parameters: dict[str, Shape] = field(factory=dict)
    lines: list[str] = field(factory=list)

    def new(self, expression: str, shape: Sequence[int]) -> str:
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {expression}")
        self.values.append((name, tuple(shape)))
        return name

    def parameter(self, *shape: int) -> str:
        alike = [name for name, of in self.parameters.items() if of == shape]
        if alike and self.random.random() < 0.5:
            return self.random.choice(alike)
        name = f"p{len(self.parameters)}"
        self.parameters[name] = shape
        return name

    def value(self, fits: Callable[[Shape], bool]) -> tuple[str, Shape]:
        """A value, mostly a late one."""
        found = [v for v in self.values if fits(v[1])]
        return self.random.choice(found[-6:] if self.random.random() < 0.7 else found)


def _pointwise(draw: Draw, v: str, s: Shape) -> None:
    draw.new(draw.random.choice(POINTWISE).format(v), s)


def _of_two(draw: Draw, v: str, s: Shape) -> None:
    draw.new(draw.random.choice(OF_TWO).format(v, draw.value(lambda q: q == s)[0]), s)


def _linear(draw: Draw, v: str, s: Shape) -> None:
    width = draw.random.choice((s[-1], 2 * s[-1], 4))
    bias = f" + {draw.parameter(width)}" if draw.random.random() < 0.5 else ""
    draw.new(f"{v} @ {draw.parameter(s[-1], width)}{bias}", (*s[:-1], width))


def _along(draw: Draw, v: str, s: Shape) -> None:
    of = "softmax log_softmax cumsum logcumsumexp flip roll sort"
    name, dim = draw.random.choice(of.split()), draw.random.randrange(len(s))
    text = {"roll": f"{v}.roll(1, {dim})", "sort": f"{v}.sort({dim})[0]"}.get(name, f"{v}.{name}({dim})")
    draw.new(text, s)


def _normalised(draw: Draw, v: str, s: Shape) -> None:
    if draw.random.random() < 0.6:
        draw.new(f"F.layer_norm({v}, ({s[-1]},), {draw.parameter(s[-1])}, {draw.parameter(s[-1])})", s)
    else:
        draw.new(f"({v} - {v}.mean(0, True)) / ({v}.var(0, unbiased=False, keepdim=True) + 0.1).sqrt()", s)


def _reduction(draw: Draw, v: str, s: Shape) -> None:
    name, dim = draw.random.choice(("sum", "mean", "amax", "logsumexp")), draw.random.randrange(len(s))
    keeps = draw.random.random() < 0.5
    draw.new(f"{v}.{name}({dim}, {keeps})", (*s[:dim], *([1] if keeps else []), *s[dim + 1 :]))


def _together(draw: Draw, v: str, s: Shape) -> None:
    dim = draw.random.randrange(len(s))
    other, t = draw.value(lambda q: len(q) == len(s) and (*q[:dim], *q[dim + 1 :]) == (*s[:dim], *s[dim + 1 :]))
    if draw.random.random() < 0.7:
        draw.new(f"torch.cat([{v}, {other}], {dim})", (*s[:dim], s[dim] + t[dim], *s[dim + 1 :]))
    elif s == t and len(s) < 4:
        draw.new(f"torch.stack([{v}, {other}], {dim})", (*s[:dim], 2, *s[dim:]))


def _part(draw: Draw, v: str, s: Shape) -> None:
    dim = draw.random.randrange(len(s))
    begin = draw.random.randrange(s[dim])
    end, step = draw.random.randrange(begin + 1, s[dim] + 1), draw.random.choice((1, 1, 2))
    size = len(range(begin, end, step))
    draw.new(f"{v}[{':, ' * dim}{begin}:{end}:{step}]", (*s[:dim], size, *s[dim + 1 :]))


def _look(draw: Draw, v: str, s: Shape) -> None:
    i, j = draw.random.randrange(len(s)), draw.random.randrange(len(s))
    swapped = list(s)
    swapped[i], swapped[j] = s[j], s[i]
    rows = (s[0] * s[1], *s[2:]) if len(s) > 1 else s
    looks = [
        (f"{v}.transpose({i}, {j})", swapped),
        (f"{v}.reshape({rows})", rows),
        (f"{v}.repeat_interleave(2, 0)", (2 * s[0], *s[1:])),
        (f"F.pad({v}, (1, 2))", (*s[:-1], s[-1] + 3)),
        (f"{v}[torch.arange(5) % {s[0]}]", (5, *s[1:])),
    ]
    draw.new(*draw.random.choice(looks))


def _batches(draw: Draw, v: str, s: Shape) -> None:
    other, t = draw.value(lambda q: len(q) == 3 and q[0] == s[0] and q[2] == s[2])
    heads = [
        (f"{v} @ {other}.transpose(1, 2)", (*s[:2], t[1])),
        (f"F.scaled_dot_product_attention({v}, {other}, {other})", s),
        (f"F.conv1d({v}, {draw.parameter(4, s[1], 3)}, padding=1)", (s[0], 4, s[2])),
        (f"torch.einsum('bij,bkj->bik', {v}, {v}).tril()", (s[0], s[1], s[1])),
    ]
    draw.new(*draw.random.choice(heads))


def _loop(draw: Draw, v: str, s: Shape) -> None:
    """Every step of it reads the same matrices, and the state before."""
    batch, steps, d = s
    of: dict[str, Shape] = {"w": (d, d), "u": (d, d), "b3": (3 * d,), "b4": (4 * d,)}
    of |= {f"{k}{n}": (n * d, d) for k in "gw" for n in (3, 4)}
    step, h = draw.random.choice(STEPS), f"h{len(draw.values)}"
    given = {name: draw.parameter(*shape) for name, shape in of.items() if f"{{{name}}}" in step}
    first = draw.random.choice((f"x.new_zeros({batch}, {d})", f"{v}[:, 0]"))
    after = step.format(x=f"{v}[:, t]", h=f"{h}[-1]", **given)
    draw.lines += [f"{h} = [{first}]", f"for t in range({steps}):", f"    {h}.append({after})"]
    draw.new(*draw.random.choice([(f"torch.stack({h}[1:], 1)", s), (f"{h}[-1]", (batch, d))]))


STATEMENTS: dict[Statement, tuple[int, Callable[[Shape], bool]]] = {
    _pointwise: (5, lambda s: True), _of_two: (4, lambda s: True), _linear: (4, lambda s: len(s) > 1),
    _along: (2, lambda s: len(s) > 0), _normalised: (2, lambda s: len(s) > 1), _reduction: (2, lambda s: len(s) > 1),
    _together: (2, lambda s: len(s) > 0), _part: (3, lambda s: len(s) > 0), _look: (3, lambda s: len(s) > 0),
    _batches: (2, lambda s: len(s) == 3), _loop: (2, lambda s: len(s) == 3),
}  # fmt: skip
"""How often they are drawn, and of which shapes they are."""
LARGEST = 8192
"""Elements of a value that others are computed of."""


@frozen
class Computation:
    """A loss, as text, of tensors of these shapes."""

    text: str
    shapes: tuple[Shape, ...]
    how: str

    @property
    def loss(self) -> Callable[..., Tensor]:
        space: dict[str, Any] = {"torch": torch, "F": F}
        exec(self.text, space)
        return space["loss"]  # type: ignore[no-any-return]


def generate(seed: int) -> Computation:
    r = random.Random(seed)
    shape = (r.choice((1, 4, 17, 32)), r.choice((2, 5, 7)), r.choice((4, 16, 60)))
    draw = Draw(r, [("x", shape)])
    statements = [statement for statement, (often, _) in STATEMENTS.items() for _ in range(often)]
    for _ in range(r.choice((6, 10, 16))):
        statement = r.choice(statements)
        fits = STATEMENTS[statement][1]
        found = [shape for _, shape in draw.values if fits(shape) and torch.Size(shape).numel() <= LARGEST]
        if found:
            statement(draw, *draw.value(found.__contains__))
    totals = ("square().mean()", "sin().sum()", "mean()")
    ends = [f"{v}.{r.choice(totals)}" for v, _ in draw.values[-r.choice((1, 2, 3)) :]]
    lines = [*draw.lines, f"return {' + '.join(ends)}"]
    text = f"def loss({', '.join(['x', *draw.parameters])}):\n" + "".join(f"    {line}\n" for line in lines)
    how = r.choice(("grad", "jit", "grad, single", "jit, single"))
    return Computation(text, (shape, *draw.parameters.values()), how)


def _by_eager(loss: Callable[..., Tensor], args: Sequence[Tensor]) -> list[Tensor]:
    leaves = [a.detach().requires_grad_() for a in args]
    value = loss(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)]


def _by_funcgrad(loss: Callable[..., Tensor], args: Sequence[Tensor], how: str) -> list[Tensor]:
    if how.startswith("jit"):
        return _by_eager(fg.jit(loss), args)
    value, gradients = fg.value_and_grad_compiled(loss, argnums=tuple(range(len(args))))(*args)
    return [value, *gradients]


def _off(found: Tensor, exact: Tensor) -> float:
    """By how much it is off, relative to the largest number."""
    return float((found - exact).abs().max() / exact.abs().max().clamp(min=1e-3)) if exact.numel() else 0.0


def check(seed: int) -> str | None:
    """What differs; None where nothing does, or where the last digit of the input decides."""
    computation = generate(seed)
    loss = computation.loss
    torch.manual_seed(seed)
    args = [torch.randn(shape, dtype=torch.float64) * 0.3 for shape in computation.shapes]
    exact, nudged = _by_eager(loss, args), _by_eager(loss, [a * (1 + 1e-13) for a in args])
    if not all(e.isfinite().all() and _off(n, e) < 1e-9 for e, n in zip(exact, nudged, strict=True)):
        return None
    given = [a.float() for a in args] if computation.how.endswith("single") else args
    found, eager = _by_funcgrad(loss, given, computation.how), _by_eager(loss, given)
    for i, (ours, theirs, e) in enumerate(zip(found, eager, exact, strict=True)):
        bound = 1e-9 if given is args else 20 * _off(theirs, e) + 1e-4
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype or not _off(ours, e) <= bound:
            off = f"off by {_off(ours, e):.1e}, eager PyTorch's by {_off(theirs, e):.1e}"
            return f"{computation.how}: result {i} is {off}"
    return None


def main(n: int, first: int) -> int:
    start, outcomes = time.time(), Counter[str]()
    for seed in range(first, first + n):
        try:
            found = check(seed)
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        outcomes["agree" if found is None else "differ"] += 1
        if found is not None:
            print(f"# seed {seed}: {found}\n{generate(seed).text}", flush=True)
    print(f"{n} computations from seed {first}: {dict(outcomes)}, {time.time() - start:.0f} s")
    return int(outcomes["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
