"""Random programs that alias and mutate: made as text, run in eager PyTorch and compiled, compared, minimised.

A program is a ``setup()`` that makes 1 to 4 inputs (leaves, computed tensors, views of one base, duplicates, buffers)
and a function ``f`` of them. What is compared: results, gradients, the inputs' data and metadata after forward and
after backward, ``requires_grad``, and which tensors share memory. Where eager raises, the compiled function must raise.
"""

from __future__ import annotations

import random
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

import funcgrad as fg

from .refusals import reason_of


class Count(torch.autograd.Function):
    """Writes to a buffer in forward and in backward."""

    @staticmethod
    def forward(ctx, x, buffer):
        buffer.add_(1)
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.mul_(3)
        return g * 2, None


class CountBackward(torch.autograd.Function):
    """Writes to a buffer in backward alone, with ``setup_context``."""

    @staticmethod
    def forward(x, buffer):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.buffer = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ctx.buffer.add_(g.sum())
        return g * x.cos(), None


class Double(torch.autograd.Function):
    """In place, and says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


def with_gradient(leaf):
    """The leaf, with a gradient it had before."""
    leaf.grad = leaf.detach() / 3
    return leaf


NAMES = {
    "torch": torch,
    "Count": Count,
    "CountBackward": CountBackward,
    "Double": Double,
    "with_gradient": with_gradient,
}

INPUTS = (
    "base[:4]", "base[2:6]", "base[4:]", "base[1:7:2]", "base.view(4, 2)", "base.view(2, 4)[:, 1:3]",
    "base.view(2, 4).t()", "base",
    "base.detach()[:3]", "base.unbind(0)[1]", "base.view(2, 4).unbind(0)[1]", "base[:5].view(5)",
)  # fmt: skip
OVERLAPPING = (
    "base.as_strided((3, 2), (1, 1))", "base.as_strided((2, 2), (2, 3), 1)", "base.unfold(0, 3, 2)",
    "base[1:4].expand(2, 3)",
    "base[:4].view(2, 2).unsqueeze(1).expand(2, 2, 2)", "base.as_strided((4,), (2,))",
)  # fmt: skip
OTHERS = (
    "torch.arange(4.) + 1", "(torch.arange(6.) / 4).view(2, 3)", "torch.ones(3, requires_grad=True)",
    "torch.ones(4, requires_grad=True) * 2",
    "torch.full((2, 3), 0.5, requires_grad=True).sin()", "torch.tensor(2.)",
    "(torch.arange(6.).requires_grad_() * 1).view(3, 2).t()",
    "torch.ones(3, requires_grad=True)[1:]", "with_gradient(torch.ones(3, requires_grad=True))",
    "with_gradient(torch.ones(2, 3))",
    "torch.empty(0)",
)  # fmt: skip
BASES = (
    "torch.arange(8.) / 5",
    "(torch.arange(8.) / 5).requires_grad_()",
    "(torch.arange(8.) / 5).requires_grad_() * 1",
    "(torch.arange(8.) / 5).requires_grad_().clone()",
)
VIEWS = (
    "{x}[1:]", "{x}[:2]", "{x}.t()", "{x}.view(-1)", "{x}.reshape(-1)", "{x}.select(0, 0)", "{x}.unbind(0)[0]",
    "{x}.detach()",
    "{x}.transpose(0, -1)",
    "{x}.unsqueeze(0)", "{x}.squeeze()", "{x}.view_as({x})", "{x}.split(1)[0]", "{x}.flatten()", "{x}.data",
    "{x}.expand(2, *{x}.shape)",
    "{x}.diagonal()", "{x}.contiguous()", "torch.nn.functional.dropout({x}, training=False)", "{x}.real",
)  # fmt: skip
VALUES = (
    "{x}.sin()", "{x} * 2", "{x} * {y}.mean()", "{x} + {y}.sum()", "{x}.exp()", "{x}.clone()", "{x}.relu()",
    "{x} * {x}", "{x}.sum()",
    "torch.stack([{x}, {x}])", "{x}.sigmoid() * ({y} * {y}).sum()", "Count.apply({x}, {y}.detach())",
    "Count.apply({x}, {y})",
    "{x}.grad.clone()", "{x}.grad.view_as({x})", "CountBackward.apply({x}, {y})",
    "CountBackward.apply({x}, {y}.detach())",
    "{x}.to(torch.float64)", "{x}.cumsum(0)",
)  # fmt: skip
WRITES = (
    "{x}.mul_(2)", "{x}.add_(1)", "{x}.add_({y}.mean())", "{x}.mul_({y}.sum())", "{x}.copy_({y}.mean())", "{x}.zero_()",
    "{x}.sin_()",
    "{x}.relu_()",
    "{x}[0] = 3.0", "{x}[:1].mul_(5)", "{x}.detach().mul_(2)", "{x}.data.add_(1)", "Double.apply({x})",
    "{x}.t().mul_(2)",
    "{x}.view(-1).add_(1)",
    "{x}.unbind(0)[0].add_(1)", "{x}.exp_()", "{x}.copy_({y}.clone())",
)  # fmt: skip
LEAVES = (
    "{x}.requires_grad_()", "{x}.requires_grad_(False)", "{x}.grad = None", "{x}.grad = {y}.detach() * 2",
    "{x}.grad = {y}",
    "{x}.grad.mul_(2)", "({x} * {x}).sum().backward()", "({x} * {y}.sum()).sum().backward()", "{x}.sub_({x}.grad)",
    "{x}.grad.add_({x}.detach())", "{x}.grad.zero_()",
)  # fmt: skip
MEMORY = (
    "{x}.data = {y}.detach() * 2", "{x}.data = {y}", "{x}.set_({y})", "{x}.set_({y} * 2)",
    "{x}.resize_({x}.numel() // 2)",
    "{x}.resize_(9).zero_()", "{x}.resize_as_({y}).copy_({y})", "torch.mul({y}, 2, out={x})",
    "torch.cumsum({y}.detach(), 0, out={x})",
)  # fmt: skip
STRIDES = (
    "{x}.as_strided((2, 2), (1, 2))", "{x}.as_strided((3,), (2,))", "{x}.as_strided((2, 3), (1, 1))",
    "{x}.as_strided((2, 2), (2, 3), 1)",
    "{x}.as_strided({x}.shape, {x}.stride())", "{x}.as_strided((), ())", "{x}.as_strided((2, 1, 2), (2, 1, 0))",
    "{x}.unfold(0, 2, 1)",
    "{x}.unfold(0, 2, 2)", "{x}.unfold(-1, 1, 1)", "{x}.expand(2, *{x}.shape)", "{x}.expand(2, *{x}.shape)[0]",
    "{x}.expand(2, *{x}.shape)[:, :1]", "{x}.unsqueeze(-1).expand(*{x}.shape, 2)", "{x}[0]", "{x}[:, 0]", "{x}[::2]",
    "{x}.diagonal()",
)  # fmt: skip
"""Views whose elements are several in one place, or lie where no slices lead."""
ELSEWHERE = (
    "{x}[1:].copy_({x}[:-1])", "{x}[1:] = {x}[:-1]", "{x}.add_({x}.t())", "{x}.copy_({x})",
    "{x}[1::2].copy_({x}[::2][:{x}[1::2].shape[0]])",
    "{x}.masked_fill_({x} > 0.5, {y}.mean())", "{x}.masked_fill_({x} > 0.5, 2)",
    "{x}.index_fill_(0, torch.tensor([0]), 3)",
    "{x}[torch.tensor([0])] = 1.0", "{x}[torch.tensor([0])] *= 2", "{x}.fill_({y}.mean())", "{x}.mul_({x})",
    "{x}.add_({y})",
    "{x}.copy_({y})",
    "{x}.index_put_((torch.tensor([0]),), {y})", "{x}.as_strided((2,), (1,)).mul_(3)", "{x}.add_({x}.flip(0))",
    "{x}.view(-1)[1:].sub_({y}.sum())",
)  # fmt: skip
"""Writes to several elements that are one in memory, or to what is read elsewhere."""
RESTRIDES = ("{x}.t_()", "{x}.unsqueeze_(0)", "{x}.squeeze_()", "{x}.transpose_(0, -1)", "{x}.unsqueeze_(-1)")
KINDS = {VIEWS: 6, VALUES: 6, WRITES: 8, RESTRIDES: 2, LEAVES: 2, MEMORY: 1}
"""How often each kind of statement is drawn."""
PLAIN = {kind: KINDS[kind] for kind in (VIEWS, VALUES, WRITES, RESTRIDES)}
"""Views, values and writes alone: of these, next to none is refused."""
STRIDED = {**PLAIN, STRIDES: 6, ELSEWHERE: 6}
"""Such with memory that overlaps itself, too; so do inputs."""


@attrs.frozen
class Program:
    """The expressions of the inputs, the statements of the function, the variables it returns."""

    base: str
    inputs: tuple[str, ...]
    statements: tuple[str, ...]
    returns: tuple[str, ...]

    @property
    def text(self) -> str:
        names = [f"x{i}" for i in range(len(self.inputs))]
        lines = [f"base = {self.base}"]
        lines += [f"{name} = {expression}" for name, expression in zip(names, self.inputs, strict=True)]
        lines.append(f"return [{', '.join(names)}], base")
        body = [*self.statements, f"return ({''.join(f'{r}, ' for r in self.returns)})"]
        both = ("def setup():", lines), (f"def f({', '.join(names)}):", body)
        return "\n\n".join("\n".join([head, textwrap.indent("\n".join(own), "    ")]) for head, own in both)

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        namespace = dict(NAMES)
        exec(self.text, namespace)
        return namespace["setup"], namespace["f"]  # type: ignore[return-value]


@attrs.frozen
class Case:
    """A case written by hand, for ``run``: a function that returns a tuple of tensors, and a maker of its inputs.

    The first input stands for what they share, so that the gradients of what is above it are compared, too.
    """

    make: Callable[[], Any]
    f: Callable[..., Any]

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def setup() -> tuple[list[Tensor], Tensor]:
            inputs = list(self.make())
            return inputs, inputs[0]

        return setup, self.f


def generate(seed: int, kinds: Mapping[tuple[str, ...], int] = KINDS) -> Program:
    """The program of a seed."""
    r = random.Random(seed)
    inputs: list[str] = []
    of_base = INPUTS if STRIDES not in kinds else (*INPUTS, *OVERLAPPING)
    for i in range(r.randint(1, 4)):
        if inputs and r.random() < 0.15:
            inputs.append(f"x{r.randrange(i)}")
        else:
            inputs.append(r.choice(of_base if r.random() < 0.6 else OTHERS))
    base = r.choice(BASES)
    program = Program(base, tuple(inputs), (), tuple(f"x{i}" for i in range(len(inputs))))
    variables = [f"x{i}" for i in range(len(inputs))]
    for i in range(r.randint(1, 7)):
        for _ in range(6):
            (kind,) = r.choices(list(kinds), list(kinds.values()))
            statement = r.choice(kind).format(x=r.choice(variables), y=r.choice(variables))
            target = f"v{i}" if kind in (VIEWS, VALUES) else None
            line = f"{target} = {statement}" if target else statement
            if r.random() < 0.2:
                line = f"with torch.no_grad(): {line}"
            candidate = attrs.evolve(program, statements=(*program.statements, line))
            if r.random() < 0.03 or _runs(candidate):  # a program that raises is of interest, but one in ten is enough
                program = candidate
                variables += [target] if target else []
                break
    returns = tuple(r.choice(variables) for _ in range(r.randint(1, 3)))
    return attrs.evolve(program, returns=returns)


def _runs(program: Program) -> bool:
    setup, f = program.functions()
    try:
        f(*setup()[0])
    except (RuntimeError, IndexError, TypeError, NameError, AttributeError):
        return False
    return True


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Seen:
    """Everything one run shows."""

    error: str | None = None
    refused: str | None = None
    """Why a backward pass is not carried out: that shows when it is asked for."""
    stages: dict[str, Any] = attrs.Factory(dict)


def run(
    program: Program | Case, transform: Callable[[Callable[..., Any]], Callable[..., Any]], nudge: float = 0.0
) -> Seen:
    """Run a program, its inputs larger by a factor of ``1 + nudge``, and write down what can be seen."""
    setup, f = program.functions()
    inputs, base = setup()
    for t in inputs if nudge else ():
        t.data[tuple(slice(1 if stride == 0 else None) for stride in t.stride())].mul_(1 + nudge)
    seen = Seen()
    before = [_data(t) for t in inputs]
    storages = [t.untyped_storage() for t in inputs]
    leaves = _leaves([*inputs, base])
    try:
        outs = transform(f)(*inputs)
    except (RuntimeError, IndexError, TypeError, NameError, AttributeError) as error:
        seen.error, seen.refused = f"{type(error).__name__}: {error}", reason_of(error)
        seen.stages["changed"] = not all(torch.equal(a, b) for a, b in zip(before, map(_data, inputs), strict=True))
        return seen
    everything = [*inputs, *outs]
    seen.stages["outs"] = [_data(t) for t in outs]
    seen.stages["inputs"] = [_data(t) for t in inputs]
    seen.stages["look"] = [
        # what kernels leave as strides of one element, or of none, depends on the way they take
        (t.shape, _strides(t) if _is_given(t, own) else [*t.stride()], t.storage_offset(), t.requires_grad, t.dtype)
        for t, own in zip(inputs, storages, strict=True)
    ]
    seen.stages["look of outs"] = [(t.shape, _strides(t), t.requires_grad, t.dtype) for t in outs]
    seen.stages["memory"] = _shared([*everything, base])
    seen.stages["same"] = [[a is b for a in everything] for b in everything]
    seen.stages["leaves"] = [_is_leaf(t) for t in inputs]
    seen.stages["gradients"] = [_gradient(t) for t in everything]
    seen.stages["same gradients"] = [
        [g is not None and g is t for t in everything] for g in map(_gradient_itself, everything)
    ]
    try:
        total = sum(
            ((t.double() * _weights(t)).sum() for t in everything if t.requires_grad),
            torch.zeros((), dtype=torch.float64),
        )
        if total.requires_grad:
            total.backward()
    except RuntimeError as error:
        seen.stages["backward"] = "raises"
        seen.refused = reason_of(error)
        return seen
    seen.stages["backward"] = "runs"
    seen.stages["grads"] = [_data(t.grad) for t in leaves if t.grad is not None]
    seen.stages["outs after backward"] = [_data(t) for t in outs]
    seen.stages["inputs after backward"] = [_data(t) for t in inputs]
    return seen


def _strides(t: Tensor) -> list[int]:
    """The strides that say where something lies."""
    return [] if t.numel() == 0 else [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1]


def _is_given(t: Tensor, own: torch.UntypedStorage) -> bool:
    """Whether a tensor has come to look at what a kernel made."""
    return t.numel() == 0 or t.untyped_storage()._cdata != own._cdata


def _is_leaf(t: Tensor) -> bool | str:
    try:
        return t.is_leaf
    except RuntimeError:  # a view of what was written to behind its back has no history to ask for
        return "raises"


def _gradient_itself(t: Tensor) -> Tensor | None:
    if _is_leaf(t) == "raises":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is no leaf, and has one only where somebody set it
        return t.grad


def _gradient(t: Tensor) -> Tensor | None:
    gradient = _gradient_itself(t)
    return None if gradient is None else _data(gradient)


def _data(t: Tensor) -> Tensor:
    return t.detach().clone()


def _weights(t: Tensor) -> Tensor:
    return (torch.arange(t.numel(), dtype=torch.float64).view(t.shape) + 1) / 7


def _shared(tensors: list[Tensor]) -> list[int]:
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [keys.index(k) for k in keys]


def _leaves(tensors: list[Tensor]) -> list[Tensor]:
    """The leaves below some tensors, in the order they are found."""
    found: list[Tensor] = []
    pending = [t.grad_fn for t in tensors if t.requires_grad and t.grad_fn is not None]
    found += [t for t in tensors if t.requires_grad and t.is_leaf]
    seen = set(pending)
    while pending:
        node = pending.pop(0)
        if hasattr(node, "variable"):
            found.append(node.variable)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                pending.append(below)
    return list({id(t): t for t in found}.values())


def difference(expected: Seen, found: Seen) -> str | None:
    """What differs between two runs; None if nothing does."""
    if found.error is not None and found.refused is not None:
        return f"{found.error}\n… left an input changed" if found.stages["changed"] else None
    if (expected.error is None) != (found.error is None):
        return f"eager: {expected.error or 'runs'}\ncompiled: {found.error or 'runs'}"
    if found.error is not None:
        return (
            f"{found.error}\n… left an input changed"
            if found.stages["changed"] and not expected.stages["changed"]
            else None
        )
    for stage, value in expected.stages.items():
        other = found.stages.get(stage)
        if stage == "backward" and found.refused is not None:
            return None
        if not _equal(value, other):
            return f"{stage}\neager: {value}\ncompiled: {other}"
    return None


def require_as_eager(case: Case) -> None:
    """Its compiled function runs, and does what eager PyTorch does, when it is compiled and after that."""
    compiled = fg.jit(case.f)
    for _ in range(2):
        expected, found = run(case, lambda f: f), run(case, lambda f: compiled)
        assert (differs := difference(expected, found)) is None, differs
        assert found.error is None, found.error


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and a.shape == b.shape
            and a.dtype == b.dtype
            and torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True)
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def check(program: Program, refused: Counter[str] | None = None) -> str | None:
    """What differs between eager and compiled, and does so in double precision, too: what rounding makes of
    ``exp().sin()`` does not, or, with ``exp().exp().sin()``, differs as much between eager PyTorch and itself when the
    inputs are nudged.

    What is refused by name where eager PyTorch runs is no difference; it is counted in ``refused``.
    """
    differs = check_once(program, refused)
    if differs is None:
        return None
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        expected, nudged = run(program, lambda f: f), run(program, lambda f: f, nudge=1e-14)
        return check_once(program) if difference(expected, nudged) is None else None
    finally:
        torch.set_default_dtype(before)


def check_once(program: Program, refused: Counter[str] | None = None) -> str | None:
    """What differs between eager and compiled; also on a second call, which reuses the program."""
    expected = run(program, lambda f: f)
    compiled = fg.jit(_indirect(program))
    for which in ("first", "second"):
        try:
            found = run(program, lambda f: compiled)
        except Exception as error:  # a crash that is no named error is a finding, too
            return f"{which} call crashed: {type(error).__name__}: {error}"
        differs = difference(expected, found)
        if differs:
            return f"{which} call: {differs}"
        reason = found.refused
        if reason is not None and refused is not None and expected.error is None and which == "first":
            refused[reason] += 1
    return None


def _indirect(program: Program) -> Callable[..., Any]:
    return program.functions()[1]


def minimise(program: Program) -> Program:
    """The smallest program one gets by leaving out statements, results and inputs that still differs."""
    shrinking = True
    while shrinking:
        shrinking = False
        for candidate in _smaller(program):
            try:
                if check(candidate) is not None and _defined(candidate):
                    program, shrinking = candidate, True
                    break
            except (NameError, SyntaxError):
                continue
    return program


def _defined(program: Program) -> bool:
    seen = run(program, lambda f: f)
    return seen.error is None or "NameError" not in seen.error


def _smaller(program: Program) -> list[Program]:
    n, m = len(program.statements), len(program.returns)
    found = [attrs.evolve(program, statements=program.statements[:i] + program.statements[i + 1 :]) for i in range(n)]
    found += [attrs.evolve(program, returns=program.returns[:i] + program.returns[i + 1 :]) for i in range(m)]
    last = f"x{len(program.inputs) - 1}"
    if len(program.inputs) > 1 and last not in " ".join((*program.statements, *program.returns)):
        found.append(attrs.evolve(program, inputs=program.inputs[:-1]))
    return found


def report(seed: int, refused: Counter[str] | None = None, kinds: Mapping[tuple[str, ...], int] = KINDS) -> str | None:
    """A minimised failing program of a seed, as runnable Python, with what differs; None if nothing does.
    ``refused``: see ``check``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = generate(seed, kinds)
        if check(program, refused) is None:
            return None
        small = minimise(program)
    return f"# seed {seed}\n{small.text}\n# {check(small)}".replace("\n# ", "\n# ")
