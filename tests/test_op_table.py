"""A law for each row of the op table: its loops compute what eager PyTorch computes.

A new row is checked without writing anything: its calls come from PyTorch's operator database or from its schema.
"""

import math
from pathlib import Path

import pytest
import torch
from op_samples import FLOATS, OTHERS, ROWS, is_pointwise, specials, variants
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import funcgrad as fg
from funcgrad.backends import c_language, triton_language
from funcgrad.loops.costs import DIVISIONS, FUNCTIONS
from funcgrad.loops.coverage import page
from funcgrad.memory.steps import Extern

aten = torch.ops.aten


TOLERANCES = {torch.float16: (4e-3, 1e-4)}
"""Eager PyTorch rounds after each of several steps."""


PRODUCTS = [
    aten.mm.default,
    aten.bmm.default,
    aten.mv.default,
    aten.dot.default,
    aten.addmm.default,
    aten.baddbmm.default,
]
"""Sums of products in an order of their own."""


def together(op, calls):
    """One function of all tensors of all calls, which returns all tensors of all results; one program, compiled
    once."""
    flat = [tree_flatten(call) for call in calls]
    tensors = [t for leaves, _ in flat for t in leaves if isinstance(t, Tensor)]

    def f(*given):
        given = iter(given)
        results = []
        for leaves, spec in flat:
            args, kwargs = tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
            found = op(*args, **kwargs)
            if is_look(op):
                found = [aten.clone.default(t) for t in tree_leaves(found)]
            results.append(found)
        return results

    return f, tensors


def is_look(op):
    return any(r.alias_info is not None for r in op._schema.returns)


def check(op, calls):
    f, tensors = together(op, calls)
    compiled = fg.jit(f, backend="c")
    program = compiled.program(*tensors)
    externs = [s for k in program.kernels for s in k.steps if isinstance(s, Extern) and s.node.target is op]
    found = compiled(*tensors)
    return found, f(*tensors), externs


@pytest.mark.sweep(12)
@pytest.mark.parametrize("op", ROWS, ids=str)
def test_a_row(op):
    calls = list(variants(op))
    found, expected, externs = check(op, calls)
    assert len(externs) < len(calls), f"no call became a kernel: {[e.why for e in externs]}"
    bad = [e.why for e in externs if "loop form" not in e.why and "empty" not in e.why]
    assert not bad
    if "empty" in str(op):
        found, expected = (
            [tree_map_only(torch.Tensor, torch.zeros_like, r) for r in results] for results in (found, expected)
        )
    for call, ours, theirs in zip(calls, found, expected, strict=True):
        if op in PRODUCTS and theirs.is_floating_point():  # terms cancel: who is nearer to the exact sum is chance
            theirs = op(*tree_map_only(Tensor, Tensor.double, call[0]), **call[1]).to(theirs.dtype)
        rtol, atol = TOLERANCES.get(
            next((t.dtype for t in tree_leaves(theirs) if isinstance(t, Tensor)), None), (None, None)
        )
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{op}{call}: {m}")


@pytest.mark.sweep(12)
@pytest.mark.parametrize("op", [op for op in ROWS if is_pointwise(op)], ids=str)
def test_special_values(op):
    calls = [call for dtype in (torch.float32, torch.float64) for call in specials(op, dtype)]
    if not calls:
        return  # of whole numbers only
    found, expected, _ = check(op, calls)
    for call, ours, theirs in zip(calls, found, expected, strict=True):
        exact = EXACT.get(op, op)(*tree_map_only(Tensor, widened, call[0]), **call[1])
        bad = wrong(ours, theirs, exact, ulps=1000 if op in EXACT and theirs.dtype == torch.float64 else 4)
        if bad.any():
            rows = [
                [t[bad][i].item() for t in tree_leaves(call) if isinstance(t, Tensor)]
                for i in range(min(8, int(bad.sum())))
            ]
            rest = [x for x in tree_leaves(call) if not isinstance(x, Tensor)]
            pairs = [(r, ours[bad][i].item(), theirs[bad][i].item(), exact[bad][i].item()) for i, r in enumerate(rows)]
            pytest.fail(f"{op} {rest} {ours.dtype}, {int(bad.sum())} of {bad.numel()}: " + "; ".join(map(str, pairs)))


def gate(x, approximate):
    if approximate == "none":
        return 0.5 * torch.erfc(-x * 0.5**0.5)
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu(x, approximate="none"):
    return x * gate(x, approximate)


def gelu_backward(g, x, approximate="none"):
    if approximate == "none":
        return g * (gate(x, approximate) + x * torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))
    s = gate(x, approximate)
    return g * (s + x * (s * (1 - s) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)))


def mish(x):
    n = x.exp() * (x.exp() + 2)
    return torch.where(x > 20, x, x * (n / (n + 2)))


EXACT = {aten.gelu.default: gelu, aten.gelu_backward.default: gelu_backward, aten.mish.default: mish}
"""Where eager PyTorch loses digits even in double precision; so much that doubles are compared loosely."""


def widened(t):
    return t.double() if t.dtype == torch.float32 else t


def wrong(ours, theirs, exact, ulps):
    """Where a result is not eager PyTorch's: NaN, infinity or the sign of zero differs, or it is so many ulps
    further from the exact one."""
    if not ours.is_floating_point():
        return ours != theirs
    rounded = exact.to(ours.dtype)
    # else eager is off itself, and anything goes
    sure = (theirs.isnan() == rounded.isnan()) & (theirs.isinf() == rounded.isinf())
    sure &= ~(theirs.isinf() & (ours.abs() > torch.finfo(ours.dtype).max / 4))  # eager's sinh overflows too early
    kind = (ours.isnan() != theirs.isnan()) | (ours.isinf() != theirs.isinf()) | (ours.isinf() & (ours != theirs))
    zero = (ours == 0) & (theirs == 0) & (exact == 0)
    zero &= (theirs.signbit() == exact.signbit()) & (ours.signbit() != theirs.signbit())
    tiny = torch.finfo(ours.dtype).smallest_normal * torch.finfo(ours.dtype).eps
    ulp = (rounded.abs() * torch.finfo(ours.dtype).eps).double().clamp_min(tiny)
    off = (ours.double() - exact.double()).abs() > ulps * ulp + 2 * (theirs.double() - exact.double()).abs()
    return sure & (kind | zero | (off & ours.isfinite()))


# ── what samples do not reach ────────────────────────────────────────────────────────────────────────────────────


def test_casts():
    """From each dtype to each: all numbers that both hold, rounded alike, and NaN, infinities and denormals between
    floats."""
    edges = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.7,
        3.0,
        100.7,
        127.0,
        -128.0,
        1.0009765625,
        1.00390625,
        1.01171875,
        65519.0,
        65520.0,
        6e-8,
        2e-8,
    ]
    edges += [5.9604645e-08, 2.98e-08, 1e-40, 9.2e-41, 3.3895314e38, 3.4e38, math.inf, -math.inf, math.nan]
    cases = []
    for given in (*FLOATS, *OTHERS):
        for wanted in (*FLOATS, *OTHERS):
            if given.is_floating_point and wanted.is_floating_point:
                values = torch.tensor(edges, dtype=torch.float64).to(given)
            elif given == torch.bool or wanted == torch.bool:
                values = torch.tensor(edges if given.is_floating_point else [0, 1, 2], dtype=torch.float64).to(given)
            else:
                inside = [v for v in edges if abs(v) <= 127 and (v >= 0 or torch.uint8 not in (given, wanted))]
                values = torch.tensor([*inside, 127.0], dtype=torch.float64).to(given)
            whole = not given.is_floating_point and not wanted.is_floating_point and given != torch.bool
            cases.append((torch.tensor([0, 1, -1, 300, -300, 70000, 2**31 - 1]).to(given) if whole else values, wanted))
    found = fg.jit(lambda *ts: [t.to(wanted) for t, (_, wanted) in zip(ts, cases, strict=True)], backend="c")(
        *(t for t, _ in cases)
    )
    for (t, wanted), ours in zip(cases, found, strict=True):
        theirs = t.to(wanted)
        assert ours.dtype == wanted and torch.equal(bits(ours), bits(theirs)), (t, ours, theirs)


def bits(t):
    """What is in memory, NaN being NaN."""
    return torch.where(t.isnan(), -12345.0, t.double().copysign(t)) if t.is_floating_point() else t


def test_whole_numbers_wrap():
    def f(*pairs):
        return [
            (a + b, a - b, a * b,
             -a, a.abs(), a.sign(), a.relu(), a * a, a**3, torch.maximum(a, b), ~a, a & b, a < b, a.clamp(-5, 100),
             3 - a,
             a < -5, a == 300, a >= 100, a + 300, a.clamp_min(7))
            for a, b in zip(pairs[::2], pairs[1::2], strict=True)
        ]  # fmt: skip

    tensors = []
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        info = torch.iinfo(dtype)
        edge = torch.tensor(
            [info.min, info.min + 1, -1 % 256 if dtype == torch.uint8 else -1, 0, 1, 2, 101, info.max - 1, info.max],
            dtype=dtype,
        )
        tensors += [t.contiguous() for t in (edge[:, None].expand(-1, len(edge)), edge.expand(len(edge), -1))]
    torch.testing.assert_close(fg.jit(f, backend="c")(*tensors), f(*tensors), rtol=0, atol=0)


ROUGH = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {}, torch.bfloat16: {"rtol": 0.1, "atol": 0.02}}
"""Sums of some thousands are added up in another order; eager PyTorch multiplies bfloat16s in bfloat16."""

REDUCTIONS = [
    torch.sum, torch.mean, torch.prod, torch.amax, torch.amin, torch.any, torch.all, torch.logsumexp, torch.var,
    torch.std, torch.softmax,
    torch.log_softmax, lambda t, d: torch.linalg.vector_norm(t, dim=d), lambda t, d: torch.linalg.vector_norm(t, d + 1),
    torch.argmax, torch.argmin, torch.max, torch.min, torch.cumsum, torch.cumprod, torch.cummax, torch.cummin,
]  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("rows", [3, 7, 100], ids="rows={}".format)
def test_reductions_of_special_values(rows, dtype):
    """Over rows, over columns and over everything; few (written out) and many."""
    inf, nan = math.inf, math.nan
    torch.manual_seed(rows)
    x = torch.randn(rows, 41)
    for i, (first, second) in enumerate(
        [(nan, 1.0), (inf, 1.0), (-inf, 1.0), (inf, -inf), (-0.0, 0.0), (inf, nan), (1e18, 1e18), (1e-40, 0.0)]
    ):
        x[i % rows, i], x[(i + 1) % rows, i] = first, second
    x[:, 10], x[:, 11], x[:, 12], x[:, 13] = -inf, inf, nan, -0.0
    tensors = [t.to(dtype) for t in (x, x.t().contiguous(), x.t(), x[:, 20:].contiguous())]

    def f(*ts):
        return [[op(t, d) for d in (0, 1)] for t in ts for op in REDUCTIONS] + [
            [t.sum(), t.max(), t.min(), t.mean(), t.isnan().any(), t.argmax(), t.nan_to_num().argmin()] for t in ts
        ]

    ours, theirs = fg.jit(f, backend="c")(*tensors), f(*tensors)
    torch.testing.assert_close(ours, theirs, equal_nan=True, **ROUGH[dtype])


def test_reductions_of_many_by_threads():
    torch.manual_seed(0)
    x, whole = torch.randn(700, 301), torch.randint(-100, 100, (700, 301))

    def f(x, whole):
        both = [
            [op(t) for op in (torch.sum, torch.amax, torch.amin, torch.any)]
            for t in (x, whole, whole.int(), whole.to(torch.int8))
        ]
        along = [
            [op(t, d) for d in (0, 1)] for t in (x, whole.to(torch.int16), x.double()) for op in (torch.sum, torch.amax)
        ]
        return both + along + [x.var(0), x.std(1), x.prod(1), (x > 0).all(1), x.norm(), x.mean(0)]

    torch.testing.assert_close(fg.jit(f, backend="c")(x, whole), f(x, whole), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("language", [c_language.C, triton_language.Triton])
def test_costs_are_of_operations_that_there_are(language):
    """One under another name would count as an addition, without a word."""
    assert language.operations.keys() >= FUNCTIONS | DIVISIONS


def test_the_coverage_page_is_current():
    written = Path(__file__).parent.parent.joinpath("docs/coverage.md").read_text(encoding="utf-8")
    assert written == page(), "run python -m funcgrad.loops.coverage docs/coverage.md"


def test_a_flipped_reshaped_slice():
    def f(y):
        return y[:, :2].reshape(-1)[1:].flip(0) + 0

    y = torch.randn(3, 3)
    torch.testing.assert_close(fg.jit(f, backend="c")(y), f(y))


# ── calls that eager PyTorch rejects, and some that it does not ──────────────────────────────────────────────────

BYTES, AT, TRUTHS, ROW = (
    torch.tensor([0, 1, 1], dtype=torch.int8),
    torch.tensor([1]),
    torch.tensor([True, False]),
    torch.arange(3.0),
)
BYTE_CLASSES, SQUARE = torch.tensor([1, 0], dtype=torch.uint8), torch.tensor([[1.0, -2.0, 0.5], [0.1, 3.0, -1.0]])

REJECTED = {
    "clamp_max": (lambda a: a.clamp(max=300), BYTES),
    "clamp_min": (lambda a: a.clamp(min=-300), BYTES),
    "clamp_of_half": (lambda a: a.clamp(max=1e6), ROW.half()),
    "full_like": (lambda a: torch.full_like(a, 300), BYTES),
    "fill": (lambda a: a.clone().fill_(300), BYTES),
    "masked_fill": (lambda a: a.masked_fill(a > 1, 300), BYTES),
    "masked_fill_by_a_constant": (lambda a: a.masked_fill(a > 1, torch.tensor(300)), BYTES),
    "masked_fill_by_a_tensor": (lambda a, value: a.masked_fill(a > 1, value), BYTES, torch.tensor(300)),
    "masked_fill_by_a_float": (
        lambda a, value: a.masked_fill(a > 1, value),
        ROW,
        torch.tensor(1e300, dtype=torch.float64),
    ),
    "where": (lambda a: torch.where(a > 1, a, 300), BYTES),
    "pad": (lambda a: torch.nn.functional.pad(a, (1, 1), value=300), BYTES),
    "index_fill": (lambda a, i: a.index_fill(0, i, 300), BYTES, AT),
    "scatter": (lambda a, i: a.scatter(0, i, 300), BYTES, AT),
    "alpha": (lambda a: torch.add(a, a, alpha=300), BYTES),
    "alpha_of_sub": (lambda a: torch.sub(a, a, alpha=-300), BYTES),
    "alpha_of_index_add": (lambda a, i: a.index_add(0, i, a[:1], alpha=300), BYTES, AT),
    "alpha_of_addmm": (lambda a: torch.addmm(a, a, a, alpha=1e300), torch.ones(2, 2)),
    "true_alpha": (lambda a: torch.add(a, a, alpha=True), BYTES),
    "addcmul": (lambda a: torch.addcmul(a, a, a, value=1e300), ROW),
    "leaky_relu": (lambda a: torch.nn.functional.leaky_relu(a, 1e300), ROW),
    "bitwise_and_of_floats": (lambda a: a & 1.5, BYTES),
    "bool_less_float": (lambda b: b - 1.5, TRUTHS),
    "whole_less_bool": (lambda b: 1 - b, TRUTHS),
    "floats_less_bool": (lambda x, b: x - b, ROW[:2], TRUTHS),
    "floats_less_true": (lambda x: x - True, ROW),
    "index_select_by_bools": (lambda x, i: x.index_select(0, i), ROW, TRUTHS),
    "index_select_by_bytes": (lambda x, i: x.index_select(0, i), ROW, BYTE_CLASSES),
    "index_select_of_two_dimensions": (lambda x, i: x.index_select(0, i), ROW, torch.tensor([[1]])),
    "index_fill_by_int32": (lambda x, i: x.index_fill(0, i, 2.0), ROW, AT.int()),
    "index_copy_by_int32": (lambda x, i: x.index_copy(0, i, x[:1]), ROW, AT.int()),
    "a_loss_of_int32": (lambda x, y: torch.nn.functional.nll_loss(x, y), SQUARE, BYTE_CLASSES.int()),
    "a_class_too_large": (lambda i: torch.nn.functional.one_hot(i, 3), torch.tensor([5, 0])),
    "a_negative_class": (lambda i: torch.nn.functional.one_hot(i, 3), torch.tensor([-1, 0])),
    "a_class_of_bytes_too_large": (lambda x, y: torch.nn.functional.nll_loss(x, y), SQUARE, BYTE_CLASSES + 4),
    "images_of_bytes": (
        lambda x, y: torch.nn.functional.nll_loss(x, y),
        SQUARE[None, ..., None],
        BYTE_CLASSES[None, :1].view(1, 1, 1),
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_eager_pytorch_rejects(name):
    f, *args = REJECTED[name]
    with pytest.raises(Exception) as theirs:
        f(*args)
    compiled = fg.jit(f, backend="c")
    for _ in range(2):
        with pytest.raises(theirs.type) as ours:
            compiled(*args)
        assert ours.type is theirs.type


def same(f, *args):
    torch.testing.assert_close(fg.jit(f, backend="c")(*args), f(*args), equal_nan=True)


def test_numbers_that_fit_or_wrap_around():
    def f(a, u, h, b):
        wrapped = (
            a + 300,
            300 - a,
            a * 300,
            a == 300,
            a & 300,
            a.clone().fill_(torch.tensor(300)),
            a + torch.tensor(300),
        )
        signed = u.clamp(min=-1), torch.full_like(u, -1), u.masked_fill(u > 0, -1), torch.add(u, u, alpha=-1)
        floats = (
            h.clamp(max=math.inf),
            h.masked_fill(h > 0, -math.inf),
            torch.where(h > 0, h, 1e6),
            h * 1e6,
            torch.full_like(h, math.nan),
        )
        return *wrapped, *signed, *floats, torch.full_like(b, 2), a.clamp(max=127), torch.full_like(a, 1.5), b + 1.5

    same(f, BYTES, BYTES.to(torch.uint8), ROW.half(), TRUTHS)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_more_is_corrected_than_there_is(dtype):
    def f(x):
        few = [op(x, 0, correction=c) for op in (torch.var, torch.std, torch.var_mean) for c in (0, 2.5, 3, 5)]
        return few, x[:1].var(0), x[:1].std(0, correction=2), x[:, None].expand(3, 2).std(0, correction=4)

    same(f, torch.tensor([0.5, -1.0, 2.0], dtype=dtype))


def test_a_deviation_is_rounded_once():
    torch.manual_seed(0)
    x = torch.randn(1000) * 500  # the variance is no float16
    same(lambda *ts: [(t.std(), t.view(10, 100).std(1)) for t in ts], x.half(), x.bfloat16())


@pytest.mark.parametrize("exponent", [1e-300, 1 + 1e-12, 3 - 1e-12])
@pytest.mark.parametrize("n", [5, 67])
def test_powers_whose_exponent_is_rounded_to_an_integer(exponent, n):
    """Eager PyTorch rounds it for whole vectors, and not for the rest of a tensor: of negative numbers that is a
    power, or NaN."""
    x = torch.linspace(-2, 2, n)
    torch.testing.assert_close(fg.jit(lambda x: x**exponent, backend="c")(x), x**exponent, equal_nan=True)


def test_roots_as_powers():
    """Of float16, eager PyTorch takes the power: 0.5 of -inf is inf, of -0.0 it is 0.0."""
    values = torch.tensor([-math.inf, -0.0, 0.0, math.inf, -1.0, 4.0, math.nan])

    def f(*ts):
        return [(1 / t**0.5, 1 / t**-0.5) for t in ts]

    same(f, *(values.to(dtype) for dtype in FLOATS))


def test_one_number_is_copied():
    def f(x, i, s):
        return x.index_copy(0, i, s), x.index_copy(0, i[0], s)

    same(f, ROW, AT, torch.tensor(7.0))


def test_classes():
    """One of each is put where eager PyTorch puts it, in a kernel; in vmap, none is asked whether it is a class."""

    def f(i, n):
        one_hot = torch.nn.functional.one_hot
        return one_hot(i, 3), one_hot(i[0, 0], 4) * 2.0, one_hot(i, n.shape[0]), torch.vmap(lambda i: one_hot(i, 2))(i)

    i, n = torch.tensor([[1, 2], [0, 1]]), torch.ones(3)
    same(f, i, n)
    assert not [s for k in fg.jit(f, backend="c").program(i, n).kernels for s in k.steps if isinstance(s, Extern)]
    dynamic = fg.jit(f, backend="c", dynamic=True)
    for rows in (2, 3, 5):
        given = torch.arange(3).repeat(rows, 1), torch.ones(rows + 1)
        torch.testing.assert_close(dynamic(*given), f(*given))


def test_classes_of_bytes():
    def f(x, y):
        nn = torch.nn.functional
        each = (
            nn.nll_loss(x, y),
            nn.cross_entropy(x, target=y, reduction="sum", ignore_index=1),
            nn.nll_loss(x[0], y[0]),
        )
        return *each, torch.nn.CrossEntropyLoss(label_smoothing=0.1)(x, y)

    same(f, SQUARE, BYTE_CLASSES)
    x = SQUARE.clone().requires_grad_()
    f(x, BYTE_CLASSES)[1].backward()
    torch.testing.assert_close(fg.grad_compiled(lambda x, y: f(x, y)[1])(SQUARE, BYTE_CLASSES), x.grad)
