"""The kinds of things random programs do with *values of tensors*: see ``python_kinds.Kind``.

Branches, loops whose length the data decides, masks, numbers and sizes that are read, checks, what is read of buffers
that the same call has written, and what is stored of what was read. ``python -m tests.laws.python_fuzz N --reads``
makes programs of these.

Where a comparison decides, it is of numbers that lie well apart: no rounding makes it another one (``y.sum() +
0.037``).
"""

from __future__ import annotations

import attrs

from .python_kinds import Kind
from .python_worlds import KINDS as OF_STATE

# ── syntax that fits any value ───────────────────────────────────────────────────────────────────────────────────

CONDITIONS = (
    "(y > 0.037).any()", "(y > 0.037).all()", "y.sum() > 0.037", "(x < 0.037).any().item()", "bool(y.max() > 1.037)",
    "not (y > 2.037).any()", "torch.equal(y > 0.037, x > 0.037)", "torch.allclose(y, x)", "y.sum().item() > 0.537",
    "y.detach().norm() < 2.037", "(x > 0.037).sum() == 2", "y.isnan().any()", "float(y.min()) < -1.037",
    "0.037 < y.mean() < 1.037",
    "y.sum() > 0.037 and y.max() < 1.537", "torch.any(y > 1.537) or torch.all(x > 0.037)", "y.argmax() == 1",
    "y.detach().flatten()[0] > 0.037", "1 in (y > 0.037)", "(y > 0.037).flatten().tolist()[0]",
    "any(v > 1.037 for v in y.detach().flatten().tolist())", "max(y.flatten()) > 1.037",
    "torch.is_nonzero((y > 0.037).sum())",
    "torch.nonzero(y > 0.037).numel() > 2", "(y > 0.037).sum() in (1, 2)",
    "(y > 0.037).sum() in [torch.tensor(2), torch.tensor(0)]",
    "all(y.flatten() < 3.037)", "(y.detach() > 0.037).logical_and(x < 1.037).any()",
    "operator.truth((y > 0.037).any())",
    "len(y[y > 0.037]) > 1", "not torch.isfinite(y).all()", "(y > 0.037).any(-1).all()",
    "min(y.sum(), x.sum()) > 0.037",
    "torch.stack([y.sum(), x.sum()]).max() > 0.537", "x.is_floating_point() and (x > 0.037).any()",
    "y.to(torch.int64).sum() > 0",
)  # fmt: skip
"""What a program asks, written ``&`` in the tables below."""

CONDITION_USES = (
    "if &:\n    y = y.sin()\nelse:\n    y = y.cos()", "if &:\n    y = y * 2", "y = y * (2 if & else 3)",
    "for _ in range(3):\n    if &:\n        break\n    y = y * 0.5 + 0.25",
    "turns = 0\nwhile & and turns < 4:\n    y, turns = y * 0.6, turns + 1",
    "assert not (&) or y.dim(), 'what never is'\ny = y.cos()",
    "if &:\n    raise ValueError('a value is refused')\ny = y.cos()",
    "assert &, 'asked of values'\ny = y.tanh()",
    "try:\n    assert &\n    y = y.sin()\nexcept AssertionError:\n    y = y - 1",
    "try:\n    if &:\n        raise KeyError('of a value')\nexcept KeyError:\n    y = y.tanh()\nfinally:\n    y = y + "
    "0.5",
    "with torch.no_grad():\n    large = bool(&)\ny = y * (1 + large)", "y = y + sum(i for i in range(3) if &)",
    "y.mul_(1.5)\nif &:\n    y.add_(0.25)", "if &:\n    y = y.clone()\n    y[..., 0] = 0.5", "y = y * float(bool(&))",
    "def early(y):\n    if &:\n        return y.sin()\n    return y * 2\ny = early(y)",
    "match bool(&):\n    case True:\n        y = y.exp()\n    case _:\n        y = -y",
    "y = (torch.sin if & else torch.cos)(y)", "y = [y * 2, y * 3][bool(&)]", "y = {True: y.sin(), False: y}[bool(&)]",
    "if not &:\n    pass\nelif y.shape[0] == 2:\n    y = y.flip(0)\nelse:\n    y = y + 1",
    "with torch.no_grad():\n    x.add_(0.5)\nif &:\n    y = y + x", "c = &\ny = y * 1.5\nif c:\n    y = y + 1",
    "z = y.view(-1)\nz.mul_(0.75)\nif &:\n    y = y + z.sum()", "y = y * len([v for v in (1, 2, 3) if &])",
    "if & and & or x.dim() > 4:\n    y = y.abs()",
    "with contextlib.suppress(ValueError):\n    if &:\n        raise ValueError('seen')\n    y = y * 2",
)  # fmt: skip

_NUMBERS = (
    "(y > 0.037).sum().item()", "int((x > 0.037).sum())", "round(y.sum().item() + 0.037, 1)",
    "int(y.detach().sum() + 0.037)",
    "float((y > 0.037).any())", "bool((y > 0.037).any())", "len(y[y > 0.037])", "y.argmax().item()",
    "(y > 0.037).nonzero().shape[0]",
    "sum((y > 0.037).flatten().tolist())", "int(x.flatten()[0] * 4 + 0.037)", "math.floor(y.max() + 0.037)",
    "y.detach().round().int().sum().item()", "(x.detach().flatten()[1].item() > 0.037)",
)  # fmt: skip
"""Numbers that rounding does not make other ones."""

_SMOOTH = (
    "y = y * y.sum().item()", "y = y + float(x.max())", "y = y / (1 + abs(y.mean().item()))",
    "y = torch.full_like(y, y.sum().item()) + y",
    "y = y.clamp(max=y.mean().item())", "y = y * torch.tensor(y.detach().tolist())",
    "y = y + math.sqrt(abs(float(y.sum())))",
    "low, high = y.min().item(), y.max().item()\ny = (y - low) / (high - low + 1)",
    "y = y + sum(y.detach().flatten().tolist())",
    "v = y.sum().item()\nif v > 1.037:\n    y = y * v\nelse:\n    y = y - v", "y = y.add(x, alpha=float(y.max()))",
    "y = y + torch.tensor([float(v) for v in y.flatten()[:3]])", "y = y * len(f'{y.detach().sum() + 0.037:.1f}')",
    "y = y - y.detach().amax().item()", "y = y * (1.5 + y.sum().item()) ** 2",
    "y = torch.where(y > 0.037, y.sum().item(), y)",
    "y = y.lerp(x, min(max(float(y.mean()), 0.0), 1.0))", "y = y * max(y.sum().item(), 0.5)",
    "y = y + [y.min(), y.max()][1].item()",
    "y = y + torch.as_tensor(y.sum().item())", "y = y.new_tensor([v.item() for v in y.flatten()[:3]]) + y",
    "a, b = y.detach().flatten()[:2].tolist()\ny = y * a - b", "y = y.masked_fill(y > 1.037, float(y.mean()))",
    "y = y * scaled(y.sum().item(), 2)", "with torch.no_grad():\n    norm = float(y.norm())\ny = y / (norm + 1)",
    "y = y * (y.sum().item() + x.sum().item()) / 2", "y = y + y.sum().double().item()",
    "y = torch.add(y, 1, alpha=x.sum().item())",
)  # fmt: skip
"""Numbers that are used as they are."""

_MASKS = (
    "y = y[y > 0.037].sum() + y", "y = y + y.masked_select(x > 0.037).sum()", "y[y > 0.037] = 0.5", "y[y > 1.037] *= 2",
    "y = y * (y > 0.037).nonzero().shape[0]", "y = y + torch.where(y > 0.037)[0].sum()",
    "y = y + torch.unique((y > 0.037).long()).sum()",
    "y = y + len(y[y > 0.537])", "y = y * (1 + y[(y > 0.037) & (x < 1.037)].numel())",
    "y = y.repeat_interleave((y.flatten()[:3] > 0.037).long() + 1, dim=-1)[..., :3]",
    "y = y + torch.bincount((y > 0.037).long().flatten()).sum()", "m = y > 0.037\nif m.any():\n    y = y + y[m].mean()",
    "y = y.index_put((y > 0.037).nonzero(as_tuple=True), torch.tensor(0.5))", "y[x > 0.037] = y[x > 0.037] * 2",
    "z = y.clone()\nz[z < 0.037] = 0\ny = y + z", "y = y + torch.cat([y[y > 0.037], y[y <= 0.037]]).reshape(y.shape)",
    "y = y.masked_scatter(y > 0.037, x.flatten())", "y = y + x[y > 0.037].sum() * y[x > 0.037].sum()",
    "m = (y > 0.037).any(-1)\ny = y + y[m].sum()",
    "i = (y > 0.037).nonzero()\ny = y + (y[tuple(i[0])] if len(i) else 1)",
    "values, counts = torch.unique((y > 0.037).long(), return_counts=True)\ny = y * counts.max() + values.sum()",
    "for i in (y > 0.037).nonzero().flatten():\n    y = y + i", "y = y + sum(v for v in y[y > 0.037])",
    "y = y + y[[(y.flatten()[:1] > 0.037).any()]].sum()", "y[y > 0.037] = y[y > 0.037].flip(0)",
    "y[(y > 0.037).nonzero(as_tuple=True)] += 1", "z = y[y > 0.037]\nz.mul_(2)\ny = y + z.sum()",
    "y = torch.zeros_like(y).masked_scatter(x > 0.037, y[x > 0.037])", "y = y + torch.argwhere(x > 0.037).sum()",
    "y = y + y[x.detach() > 0.037].max() if (x > 0.037).any() else y", "y = y + torch.count_nonzero(y > 0.037).item()",
    "with torch.no_grad():\n    x[x > 1.037] = 1.0\ny = y + x",
)  # fmt: skip

_SIZES = (
    "n = int((y > 0.037).sum())\ny = y + torch.arange(n).sum()", "y = y + y.flatten()[: (x > 0.037).sum()].sum()",
    "y = y.flatten()[int((y > 0.037).sum()) :].sum() + y", "y = y + torch.ones(int((x > 0.037).sum()), 2).sum()",
    "y = y.roll(int(y.argmax()), -1)", "y = y.narrow(-1, 0, 1 + int((x > 0.037).sum()) % 3).sum() + y",
    "y = y + y.topk(1 + int((y > 0.037).any())).values.sum()", "i = y.flatten().argmax()\ny = y + y.flatten()[i]",
    "y = y + torch.linspace(0, 1, 1 + int((y > 0.037).sum())).sum()",
    "y = y.expand(1 + int((y > 0.037).any()), *y.shape).sum(0)",
    "for i in range((y > 0.037).sum()):\n    y = y + i", "y = y + [1.5, 2, 3, 4, 5, 6, 7][(y > 0.037).sum()]",
    "for i, v in enumerate(y.flatten()):\n    if v > 0.037:\n        y = y + i",
    "y = y + y.flatten()[int((y > 0.037).sum())]",
    "y = y + y.flatten()[(y > 0.037).sum() - 1]",
    "a, b = y.flatten().tensor_split((y > 0.037).sum().view(1))\ny = y + a.sum() - b.sum()",
    "a, b = y.flatten().split([int((y > 0.037).sum()), y.numel() - int((y > 0.037).sum())])\ny = y + a.sum() * b.sum()",
    "y = y.view(int((y > 0.037).sum()), -1).sum() + y", "y = y.sum(int((y.sum() > 0.037)), keepdim=True) + y",
    "n = (y > 0.037).sum().item()\nz = y.new_zeros(n + 1)\nz[n] = 2\ny = y + z.sum()",
    "y = y + torch.eye(int((y > 0.037).sum()) + 1).sum()",
    "y = nn.functional.pad(y, (0, int((y > 0.037).any())))[..., :3]",
    "y = y + y.flatten()[:: 1 + int((y > 0.037).any())].sum()",
    "y = y + nn.functional.one_hot((y > 0.037).long()).sum()",
    "y = y.unflatten(-1, (-1, 1 + 2 * int((y > 0.037).all()))).flatten(-2)",
    "y = y + torch.stack([y] * (1 + (y > 0.037).sum())).mean()", "y = y ** int((y > 0.037).sum())",
    "y = y.transpose(0, -int((y > 0.037).any()))",
    "n = 0\nwhile n < (y > 0.037).sum():\n    n += 1\ny = y + n", "y = y[int((y > 0.037).any()) - 1] + y",
)  # fmt: skip

_PYTORCH_REFUSES = (
    "y = y + torch.linalg.cholesky(torch.eye(2) * y.flatten()[0]).sum()",
    "y = y + torch.linalg.inv(torch.eye(2) * y.flatten()[1]).sum()",
    "y = y + torch.distributions.Normal(y, y.exp()).log_prob(x)",
    "y = y + torch.distributions.Normal(0.0, y.flatten()[0] + 0.01).log_prob(y)",
    "y = y + y.flatten()[int(y.abs().sum() + 0.037)]", "y = y.view(1 + int((y > 0.037).sum()), -1).sum() + y",
    "y = y + torch.multinomial(y.flatten().softmax(0), 1 + int((y > 0.037).sum())).sum()",
    "y = y.squeeze(int((y > 0.037).sum())) + y",
    "try:\n    v = y.flatten()[int((y > 0.037).sum())]\nexcept IndexError:\n    v = 1\ny = y + v",
    "try:\n    y = y.view(int((y > 0.037).sum()), 2)\nexcept RuntimeError:\n    y = y * 2",
    "y = y + torch.ones(int(y.sum() * 4 + 0.037)).sum()",
    "y = y + x.flatten().index_select(0, (y > 0.037).sum().view(1)).sum()", "if y:\n    y = y + 1", "y = y + y.item()",
    "y = y * int(y)",
    "y = y + torch.bincount(y.flatten().long()).sum()",
    "y = y + torch.arange(3)[torch.tensor([int((y > 0.037).sum())])].sum()",
    "if y > 0.037:\n    y = y.sin()", "y = y if x in (y, x) else -y", "y = y.reshape(3, int((x > 0.037).any()))",
)  # fmt: skip
"""Calls that PyTorch refuses for some values."""

_DRAWS = (
    "if torch.rand(()) < 0.5:\n    y = y.sin()",
    "n = 0\nwhile torch.rand(()) > 0.4 and n < 4:\n    y, n = y * 1.5, n + 1",
    "y = y + torch.randn(int((y > 0.037).sum())).sum()",
    "y = nn.functional.dropout(y, 0.5)\nif y.sum() > 0.037:\n    y = y + torch.rand(3)",
    "y = y * torch.randint(1, 4, ()).item()", "y = y + torch.multinomial(y.flatten().softmax(0), 1).item()", 
    "y = y * (torch.rand(3) > 0.5)", "y = y + torch.randperm(3)[0].item()",
    "if torch.bernoulli(torch.tensor(0.5)):\n    y = y.cos()",
    "y = y + (torch.randn(3) * (y.detach() > 0.037).any().item())", "y = y + x[torch.rand(x.shape) > 0.5].sum()",
    "if (y > 0.037).any():\n    y = y + torch.rand(3)\nelse:\n    torch.rand(5)",
    "y = y + torch.rand(3)\nassert (y < 2.537).all(), 'too large'",
    "y = y + torch.randn(()).item()", "torch.manual_seed(int((y > 0.037).sum()))\ny = y + torch.rand(3)",
)  # fmt: skip

_INPUTS = (
    "A = A.neg()", "A.mul_(-1)", "B = B + 1", "C = C.flip(0)", "A = torch.full((3,), 2.0)", "A = torch.zeros(3)",
    "A.add_(0.7)",
    "A = torch.tensor([0.5, float('nan'), 1.0])", "A = A.double()", "with torch.no_grad():\n    R.neg_()", "C = C[:1]",
    "A = torch.tensor([5.0, -2.0, 0.5])", "B = B.neg()", "with torch.no_grad():\n    R.add_(1)", "A = B",
    "A = torch.tensor([-0.0, 0.0, 3.0])",
    "A = torch.tensor([1.0, float('inf'), -1.0])", "B = torch.tensor([-1.5, -0.25, -3.0])",
    "A = torch.tensor([0.2, 0.4, 0.6])", "A = A[::2]", "A = torch.tensor([0.5, 1.5, -1.0, 2.5, 3.5, 0.25])",
    "A = torch.tensor([0.5, -1.5, -1.0, 2.5, -3.5, 0.25])", "A = torch.tensor([0.5, 1.5, -1.0, 2.5, 3.5, -0.25])",
)  # fmt: skip
"""What a script makes of the tensors that it passes."""


def _asking(uses: tuple[str, ...], conditions: tuple[str, ...] = CONDITIONS) -> tuple[str, ...]:
    return tuple(use.replace("&", condition) for use in uses for condition in conditions)


_SHOWN = (
    "print(y)", "print('y', [y, {'a': x}], x.shape, sep='|')", "print(f'{y.sum() + 0.037:.1f}', end=' ')",
    "print(f'{y.sum().item():8.2f} of {y.numel()}: {x.max().item()!r}')",
    "print('{:.3f} {} {a!r}'.format(y.sum().item(), 2, a=x.sum().item()))",
    "v = y.sum().item()\nprint('v', v, [v, -v], round(v, 1), f'{v + 1:.2e}')", "print(str(y.sum().item()), repr(x))",
    "log$.error('%.2f %s %d%%', y.sum().item(), x, 3)", "log$.error(f'y {y.sum():.2f}')", "log$.error(y)",
    "log$.info(f'n {y.sum().item()}')", "log$.warning('y %8.3f', x.sum())",
    "text = f'{y.sum().item():.1f}'\nprint(text)\nlog$.error(text)",
    "text = ''\nfor v in y.detach().flatten():\n    text = f'{text} {v.item():.1f}'\nprint(text)",
    "text = f'{(y > 0.037).sum().item()}'\nprint(text)\ny = y * len(text)",
    "text = f'{(y > 0.037).sum().item()}'\ndef told():\n    return text * 2\nprint(text, told())",
    "print(f'{(y > 0.037).sum().item()}' if (y > 0.037).any() else 'none')", "print(len(f'{y.sum().item() + 2:.1f}'))",
    "text = f'{y.sum().item():.1f}'\nprint(f'{(y > 0.037).sum().item()!s:>4}|{text:>8}')",
    "with contextlib.redirect_stdout(io.StringIO()) as own:\n    print((y > 0.037).sum().item())\nprint(own.getvalue()[::-1])",
    "try:\n    print(f'{y.sum().item():.1f} {1 / 0}')\nexcept ZeroDivisionError:\n    print('caught', y.max().item())",
    "print(f'{@.n} {y.sum():.1f} {@.a:.3f}')\n@.n += 1", "print(*[f'{v:.1f}' for v in y.detach().flatten()])",
    "if (y > 0.037).any():\n    print(f'{y.sum().item():.1f}')",
    "print(f'{y.sum().item():.1f}', file=sys.stdout)", "try:\n    print(f'{y:.1f}')\nexcept TypeError:\n    print('no number')", "print(f'{x.sum()}', f'{y}')",
    "with torch.no_grad():\n    x.add_(0.5)\nprint(x, f'{x.sum():.2f}')", "y.register_hook(lambda g: print('g', g)) and 0",
)  # fmt: skip
"""What is printed, and logged, and what else is done with texts."""

_STORES = (
    "@.n = #", "@.n = #", "object.__setattr__(@, 'n', #)", "@.__dict__.update(n=#)", "@.log[0] = #",
    "@.log[:] = [#, 1]", "@.log.insert(0, @.log.pop() * 0 + #)", "@.d['k'] = #", "@.d.update(k=#)", "@.pair = (#, 1)",
    "type(@).limit = #", "@.inner.n = #", "@.n, @.m = #, @.n", "if @.n != #:\n    @.n = #", "@.n = max(@.n, #)",
    "@.n += #", "@.n = # if (y > 0.037).any() else @.m", "default$.__defaults__ = (#,)",
    "def keep(g):\n    @.n = #\nif y.requires_grad:\n    y.register_hook(keep)", "@.m = @.n\n@.n = #",
    "try:\n    @.n = #\nfinally:\n    @.d['k'] = @.n", "@.inner = types.SimpleNamespace(n=#)",
)  # fmt: skip
_STORED = (
    "int(@.seen)", "@.seen.item()", "round(@.seen.item())", "y.numel()", "y.shape[0]", "x.shape[-1] - 3", "len(x)",
    "(y > 0.037).sum().item()", "int((x > 0.037).sum())", "y.detach().argmax().item()",
    "x[x > 0.037].numel()", "(y > 0.037).nonzero().shape[0] - 1",
)  # fmt: skip
"""Numbers that are others in other calls, and where they are stored: an equal one may lie there."""

READS = (
    Kind("branch", "x", "", reads=_asking(CONDITION_USES), changes=_INPUTS, weight=3),
    Kind("number", "x", "", numbers=_NUMBERS, changes=_INPUTS, weight=2),
    Kind("number as it is", "x", "", reads=_SMOOTH, changes=_INPUTS),
    Kind("mask", "x", "", reads=_MASKS, changes=_INPUTS, weight=2),
    Kind("size", "x", "", reads=_SIZES, changes=_INPUTS, weight=2),
    Kind("refusal of PyTorch's", "x", "", reads=_PYTORCH_REFUSES, changes=_INPUTS),
    Kind(
        "text", "shown$",
        """
class ToOutput$(logging.Handler):
    def emit(self, record): sys.stdout.write(self.format(record) + chr(10))
class Shown$:
    def __init__(self): self.a, self.n = 1.5, 0
shown$ = Shown$()
log$ = logging.getLogger('fuzz_shown_$')
log$.handlers, log$.propagate = [ToOutput$(logging.WARNING)], False
""",
        reads=_SHOWN, changes=(*_INPUTS, "@.a = 2.5", "@.n = 7"),
    ),
    Kind("draw", "torch", "", reads=_DRAWS, changes=("torch.manual_seed(11)", "torch.rand(2)", *_INPUTS)),
    Kind(
        "buffer", "stats$",
        """
class Stats$(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.log, self.last = 0, [], None
        self.register_buffer('seen', torch.zeros(()))
        self.register_buffer('best', torch.tensor([0.5, -1.0, 0.25]))
        self.register_buffer('ready', torch.tensor(False))
    def forward(self, t):
        self.seen.add_(1)
        if self.seen > 2.5:
            return t * self.best
        return t
stats$ = Stats$()
""",
        tensors=("@.best",),
        numbers=("int(@.seen)", "@.seen.item()", "int((@.best > 0.037).sum())", "bool(@.ready)", "float(@.best[0])"),
        reads=("y = @(y)", "@.seen.add_(1)\nif @.seen > 2.5:\n    y = y * 2", "y = y + @.best[@.best > 0.037].sum()",
            "if y.detach().sum() > @.best.sum() + 0.037:\n    @.best.copy_(y.detach())",
            "@.seen += (y > 0.037).sum()\ny = y * @.seen.item()",
            "if not @.ready:\n    @.best.copy_(y.detach())\n    @.ready.fill_(True)\ny = y - @.best",
            "while @.seen < 2.5:\n    @.seen += 1\n    y = y + 1", "y = y * (2 if (@.best > 0.037).any() else 3)",
            "@.best[y.detach().flatten()[:3] > 0.037] = 0.5\nif (@.best == 0.5).all():\n    y = y.cos()",
            "assert @.seen < 5.5, 'seen too often'\n@.seen.add_(1)",
            "@.seen.add_(1)\nif @.seen > 3.5:\n    raise ValueError('seen')",
            "@.seen.add_(1)\nif @.seen > 1.5:\n    y = y.view(2)",
            "if (m := @.best.max().item()) > 0.537:\n    y = y / m",
            "with torch.no_grad():\n    @.best.lerp_(y.flatten()[:3], 0.5)\nif @.best.sum() > 0.037:\n    y = y + 1",
            "@.best.data.mul_(0.5)\nif @.best.norm() < 0.537:\n    y = y + @.best"),
        writes=("@.n = int(@.seen)", "@.log.append(y.sum().item() > 0.037)", "@.last = (y > 0.037).any().item()",
            "if (y > 0.037).all():\n    @.n += 1", "@.n += (y > 0.037).sum().item()",
            "@.last = y.detach()[y.detach() > 0.037]",
            "@.log.append(int((y > 0.037).sum()))\n@.log = @.log[-2:]", "@.seen = @.seen + (y > 0.037).any()",
            "@.last = round(y.sum().item() + 0.037, 1)",
            "@.best = y.detach() if (y > 0.037).any() else @.best",
            "for v in y.detach().flatten():\n    if v > 0.037:\n        @.n += 1",
            "try:\n    @.n += 1\n    assert (y > 0.037).all()\nexcept AssertionError:\n    @.n -= 3",
            "@.log.append(y.detach().argmax())",
            "@.last = y.detach().sum().item()", "@.log.append(float(y.max()))\n@.log = @.log[-3:]",
            "@.log.append(y.detach().tolist())\n@.log = @.log[-2:]"),
        changes=("@.seen.zero_()", "@.seen.add_(3)", "@.best = torch.ones(3)", "@.ready.fill_(False)", "@.n = 0",
        "@.last = None",
            "@.log.clear()", "@.best.neg_()", "@.seen = torch.tensor(1)", "@ = Stats$()", "@.double()", *_INPUTS[:6]),
        weight=3,
    ),
    Kind(
        "number that is stored", "kept$",
        """
class Kept$:
    limit = 0
    def __init__(self):
        self.n, self.m, self.log, self.d, self.pair, self.seen = 0, 3, [0, 1], {'k': 0}, (0, 1), torch.zeros(())
        self.inner = types.SimpleNamespace(n=0)
def default$(n=0): return n
kept$ = Kept$()
""",
        numbers=("@.n", "@.m", "@.log[0]", "@.d['k']", "@.pair[0]", "type(@).limit", "@.inner.n", "default$()"),
        writes=tuple(store.replace("#", number) for store in _STORES for number in _STORED),
        changes=("@.seen.add_(3)", "@.seen.sub_(1)", "@.seen.zero_()", "@.n = 0", "@.n, @.m = @.m, @.n",
            "@.log[0] = 3", "@.d['k'] = 0", "@.pair = (3, 1)", "type(@).limit = 3", "default$.__defaults__ = (3,)",
            *_INPUTS),
        weight=2,
    ),
    Kind(
        "list of numbers in tensors", "marks$", "marks$ = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(-1.0)]",
        numbers=("int(@[0])", "@[-1].item()", "len(@)", "(torch.tensor(2.0) in @)", "@.count(torch.tensor(1.0))",
        "float(max(@))",
            "@.index(torch.tensor(-1.0))", "(y.detach().flatten()[0].round() in @)", "[v.item() for v in @][0]",
            "int(sum(@))"),
        reads=("y = y + max(@)", "y = y * sorted(@)[0]", "for v in @:\n    if v > 0.037:\n        y = y * v",
            "y = y * sum(v for v in @ if v > 0.037)", "y = y + min(@, key=float)",
            "if y.detach().sum().round() in @:\n    y = y.sin()",
            "y = y + torch.tensor(@).sum()",
            "if any(torch.equal(v, y.detach().flatten()[0]) for v in @):\n    y = y + 1",
            "y = y * torch.tensor([float(v) for v in @])[:1]", "y = y + next((v for v in @ if v > 1.537), 0)"),
        writes=("@.sort()", "@.append(y.detach().sum())", "@[0].add_(1)",
        "@[0] = torch.tensor(float((y > 0.037).sum()))", "@.pop()",
            "if @[0] < 3.037:\n    @[0].add_(1)\n    y = y * 2", "@.remove(torch.tensor(2.0))",
            "@.append((y > 0.037).any())",
            "for v in @:\n    if v > 1.037:\n        v.mul_(0.5)"),
        changes=("@[0].add_(1)", "@[0] = torch.tensor(2.0)", "@.append(torch.tensor(0.5))", "@.pop()", "@.reverse()",
        "@[-1].neg_()", *_INPUTS[:6]),
        weight=1.5,
    ),
    Kind(
        "table by values", "counts$", "counts$ = {'step': torch.tensor(0.0), 'n': 0}",
        numbers=("@['step'].item()", "int(@['step'])", "@.get((y > 0.037).sum().item(), 2)",
        "(int((y > 0.037).sum()) in @)", "len(@)"),
        reads=("@['step'] += 1\ny = y * (1 - 0.9 ** @['step'].item())", "if @['step'] % 2 == 0:\n    y = y.sin()",
            "@['step'] += 1\nif @['step'] > 2.5:\n    y = y.exp()\n    @['step'].zero_()",
            "y = y / (1 - 0.9 ** (@['step'] + 1))",
            "y = y * @.setdefault(int((y > 0.037).sum()), 1.5)", "y = y * @.get(bool((y > 0.037).any()), 3)"),
        writes=("@[int((y > 0.037).sum())] = @.get(int((y > 0.037).sum()), 0) + 1",
        "@['step'] = @['step'] + (y > 0.037).any()",
            "@['n'] += (y > 0.037).sum().item()", "@[bool((y > 0.037).any())] = y.detach()",
            "if (y > 0.037).any():\n    @['n'] = 5",
            "@['step'].copy_((y > 0.037).sum())", "@.pop(int((y > 0.037).sum()), None)",
            "@['text'] = f'{(y > 0.037).sum().item()}'",
            "@['mean'] = y.mean().item()"),
        changes=("@['step'].zero_()", "@['step'] = torch.tensor(3.0)", "@['n'] = 0", "@.pop(2, None)", "@[1] = 4.5",
        "@['step'].add_(1)", *_INPUTS[:6]),
        weight=1.5,
    ),
    Kind(
        "derivative that reads", "Reads$",
        """
class Reads$(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        ctx.large = bool((t > 1.037).any())
        return t * 2 if t.sum() > 0.037 else t * 3
    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        if ctx.large:
            g = g * 2
        return g * 3 if t.sum() > 0.037 else g * 2
class Clips$(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t): return t.clone()
    @staticmethod
    def backward(ctx, g): return g / g.norm() if g.norm() > 1.037 else g * 2
""",
        reads=("y = @.apply(y)", "y = Clips$.apply(y)", "y = Clips$.apply(@.apply(y).sin())",
        "y = y * @.apply(x).sum()",
            "if y.requires_grad:\n    y.register_hook(lambda g: g * 2 if (g > 0.037).any() else g)",
            "if y.requires_grad:\n    (g,) = torch.autograd.grad(y.sin().sum(), y, retain_graph=True)\n    y = y * 2 "
            "if (g > 0.037).all() else y"),
        changes=_INPUTS,
        weight=1.5,
    ),
)  # fmt: skip

KINDS = (
    *(attrs.evolve(kind, reads_values=True) for kind in READS),
    *(attrs.evolve(kind, weight=kind.weight * 0.05) for kind in OF_STATE),
)
"""These, and now and then what else a program reads and writes."""

CEILINGS: dict[str, float] = {
    # what a hook reads under two gradients, of a tensor that the function asks whether it requires grad
    "refused: UnsupportedTransformError: the function asks whether a": 0.014,
    # the text of a whole tensor at a level of torch.func
    "warns: UnwatchedStateWarning: the function asks for the": 0.0125,
    # a value that decides is another path, and each path a program; above 16 paths, ReadsWarning
    "warns: RecompileWarning": 0.113,
    "compiles more than 12 times, as its world changes": 0.0065,
    "compiles again in a world as before": 0.0025,
    "warned: result": 0.0008,  # cache_info() of a functools.lru_cache
    # what is not carried out yet, by what differs: to go down to nothing
    "differs: state after an exception": 0.0006,  # the program raises, not the trace; a backward pass midway
}
"""As in ``python_fuzz``."""
