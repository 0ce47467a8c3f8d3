"""Calls of ATen operators to check rows of the op table with: harvested from PyTorch's own operator database, recast
and laid out anew.

The database knows operators by what users call; running its samples, forward and backward, and listening to the ATen
calls below finds those of each overload. Overloads it does not reach are called with arguments made from their schemas.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from funcgrad.loops.table import TABLE
from funcgrad.torch_private.operators import is_operator

aten = torch.ops.aten
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# looks through all modules, for each sample, for a TestCase to note it at: most of the time
common_utils.extract_test_fn = lambda: None

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
ROWS = {op: rule for op, rule in TABLE.items() if is_operator(op)}
"""The rows of operators. That of random numbers is checked in test_philox.py."""
KEPT = 8
"""Calls of one overload that are kept."""


class _Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[Any, dict[Any, Arguments]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ROWS:
            calls = self.heard.setdefault(func, {})
            leaves, spec = tree_flatten((args, kwargs))
            if all(t.layout == torch.strided and t.numel() <= 4096 for t in leaves if isinstance(t, Tensor)):
                text = [(t.dtype, t.shape, t.stride()) if isinstance(t, Tensor) else t for t in leaves]
                calls.setdefault(repr((text, spec)), tree_map_only(Tensor, _copy, (args, kwargs)))
        return func(*args, **kwargs)


def _copy(t: Tensor) -> Tensor:
    """With the same strides, those of expanded ones included; from 0 on."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return t.detach().as_strided((span,), (1,)).clone().as_strided(t.shape, t.stride())


def _base(name: str) -> str:
    name = name.split(".")[-1].removesuffix("_backward").removesuffix("_with_indices").removesuffix("_data")
    return name.removeprefix("native_").strip("_")


@functools.cache
def harvest() -> dict[Any, list[Arguments]]:
    """The calls of each overload that the database's samples make."""
    torch.manual_seed(0)
    wanted = {_base(str(o).split(".")[1]) for o in ROWS}
    listener = _Listener()
    for info in op_db:
        if not {_base(info.name), _base(info.aten_name or "")} & wanted:
            continue
        for dtype in (torch.float32, torch.int64):
            if dtype in info.supported_dtypes("cpu"):
                samples = info.sample_inputs(
                    "cpu", dtype, requires_grad=dtype.is_floating_point and info.supports_autograd
                )
                for sample in itertools.islice(samples, 12):
                    with listener:
                        _both_ways(info.op, sample)
    return {op: _spread(list(calls.values())) for op, calls in listener.heard.items()}


def _both_ways(op: Callable[..., Any], sample: Any) -> None:
    found = [
        t
        for t in tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
        if isinstance(t, Tensor) and t.requires_grad
    ]
    if found:
        torch.autograd.backward([t.sum() for t in found])


def _spread(calls: list[Arguments]) -> list[Arguments]:
    step = max(1, len(calls) // KEPT)
    return calls[::step][:KEPT]


# ── calls from schemas ───────────────────────────────────────────────────────────────────────────────────────────

_MASK = torch.arange(12).view(3, 4) % 3 > 0
_BY_NAME: dict[str, Any] = {
    "dim": 0, "dims": [0], "size": [3, 4], "self_size": [3, 4], "end": 7, "n": 4, "m": 3, "reduction": 1, "min": -0.5,
    "max": 0.7,
    "group": 1, "beta": 1.0, "delta": 1.0, "shape": [4, 3], "threshold": 0.1, "is_result": False, "lambd": 0.5,
    "input_dtype": torch.float32, "condition": _MASK, "mask": _MASK,
}  # fmt: skip


def from_schema(op: Any) -> Iterable[Arguments]:
    """Arguments that may suit an overload: random matrices, and numbers by name; then whole numbers."""
    for tensor in (torch.randn(3, 4), torch.randint(-9, 9, (3, 4))):
        args: list[Any] = []
        for argument in op._schema.arguments:
            kind = str(argument.type)
            if argument.name in _BY_NAME and not (argument.has_default_value() and kind != "Optional[number]"):
                args.append(_BY_NAME[argument.name])
            elif argument.kwarg_only or argument.has_default_value():
                break
            else:
                args.append(torch.randn_like(tensor, dtype=torch.float32).to(tensor.dtype) if kind == "Tensor" else 2)
        yield tuple(args), {}


def meta(op: Any, call: Arguments) -> Any:
    """What PyTorch says of the result without computing it."""
    device = {"device": "meta"} if any(a.name == "device" for a in op._schema.arguments) else {}
    return op(*tree_map_only(Tensor, lambda t: t.to("meta"), call[0]), **{**call[1], **device})


def runs(op: Any, call: Arguments) -> bool:
    """Whether eager PyTorch accepts it, and agrees with itself on the dtypes of the result before it is computed."""
    try:
        pairs = zip(tree_leaves(op(*call[0], **call[1])), tree_leaves(meta(op, call)), strict=True)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError, ZeroDivisionError):
        return False
    return all(not isinstance(a, Tensor) or a.dtype == b.dtype for a, b in pairs)


@functools.cache
def _made() -> dict[Any, list[Arguments]]:
    """Where arguments must fit each other, and the database makes no such call."""
    torch.manual_seed(0)
    norm, images = torch.rand(4, 3) + 0.1, torch.randn(2, 3, 4, 5)
    classes, total = torch.randint(3, (2, 4, 5)), torch.tensor(40.0)
    return {
        aten._native_batch_norm_legit_functional.default: [
            ((images, *norm, True, 0.1, 1e-5), {}),
            ((images[:, :, 0, 0], None, None, *norm[:2], True, 0.1, 0.5), {}),
        ],
        aten.roll.default: [((images, [2, -1], [1, 3]), {}), ((images, [7]), {})],
        aten.slice_backward.default: [
            ((torch.randn(4, 2), [4, 9], 1, 2, 8, 3), {}),
            ((torch.randn(3, 5), [6, 5], 0, -3, 9, 1), {}),
        ],
        aten.diagonal_backward.default: [
            ((torch.randn(3), [3, 5], 2, 0, 1), {}),
            ((torch.randn(4, 2), [5, 4, 3], -3, 0, 2), {}),
        ],
        aten.embedding.default: [((norm, torch.tensor([[3, 0, 3], [1, 2, 1]])), {}), ((norm, torch.tensor(2), 1), {})],
        aten.index_select.default: [((images, -2, torch.tensor([1, 0, 1, 3, 3])), {})],
        aten.gather.default: [
            ((images, 3, torch.randint(5, (2, 1, 4, 9))), {}),
            ((images, 1, torch.randint(3, (1, 7, 2, 5))), {}),
        ],
        aten.take.default: [((images, torch.randint(-120, 120, (3, 2))), {})],
        aten.index.Tensor: _indexed(images),
        aten._unsafe_index.Tensor: _indexed(images),
        aten.embedding_dense_backward.default: [
            ((torch.randn(2, 3, 5), torch.tensor([[3, 0, 3], [1, 2, 9]]), 4, padding, False), {}) for padding in (-1, 3)
        ],
        aten.index_put.default: _put(images),
        aten._unsafe_index_put.default: _put(images),
        aten.index_add.default: [((images, -2, torch.tensor([1, 0, 1]), images[:, :, 1:] * 3), {"alpha": 2})],
        aten.index_copy.default: [((images, 1, torch.tensor([1, 0]), images[:, 1:] * 3), {})],
        aten.max_pool2d_with_indices.default: [((_uneven(), *how), {}) for how in _WINDOWS],
        aten.max_pool2d_with_indices_backward.default: [
            ((torch.randn_like(top), _uneven(), *how, places), {})
            for how in _WINDOWS
            for top, places in (aten.max_pool2d_with_indices.default(_uneven(), *how),)
        ],
        **_systems(),
        aten.scatter_add.default: [((images, 3, torch.randint(5, (2, 2, 3, 7)), torch.randn(2, 3, 4, 9)), {})],
        aten.scatter_reduce.two: [
            ((images, 2, torch.randint(4, (2, 2, 6, 4)), torch.randn(2, 3, 6, 9), kind), {})
            for kind in ("sum", "prod", "amax", "amin")
        ],
        aten.nll_loss_forward.default: [((norm, torch.tensor([0, 2, -7, 1]), None, how, -7), {}) for how in (0, 1, 2)]
        + [
            ((norm, torch.tensor([0, 2, 5, 1]), norm[1], 1, 5), {}),
            ((norm[0], torch.tensor(2), norm[1], 2, -100), {}),
            ((norm, torch.tensor([1, 1, 1, 1]), None, 1, 1), {}),
        ],
        aten.nll_loss2d_forward.default: [
            ((images[..., 0, :2, None], classes[:, :2, :1], norm[0], how, 1), {}) for how in (0, 1, 2)
        ],
        aten.nll_loss2d_backward.default: [
            ((torch.tensor(2.0), images, classes, None, 1, 1, total), {}),
            ((torch.randn(2, 4, 5), images, classes, norm[0], 0, -100, total), {}),
        ],
    }


def _systems() -> dict[Any, list[Arguments]]:
    """Systems of one to four equations, one and many; the second row is the first to be pivoted on."""
    found: dict[Any, list[Arguments]] = {}
    for n, batch in ((1, ()), (2, ()), (3, (2,)), (4, (2, 3))):
        a, b, vector = torch.randn(*batch, n, n), torch.randn(*batch, n, 3), torch.randn(*batch, n)
        a[..., 0, 0] *= 0.01
        definite, triangular = a @ a.mT + torch.eye(n), a.tril() + 3 * torch.eye(n)
        factored = aten.linalg_lu_factor_ex.default(a)[:2]
        for op, calls in {
            aten._linalg_solve_ex.default: [((a, b), {}), ((a, b.mT), {"left": False}), ((a.mT, vector), {})],
            aten.linalg_lu_solve.default: [
                ((*factored, rhs), {"left": left, "adjoint": adjoint})
                for adjoint in (False, True) for left, rhs in ((True, b), (False, b.mT))
            ],
            aten.linalg_lu_factor_ex.default: [((a,), {})],
            aten.linalg_inv_ex.default: [((a,), {})],
            aten._linalg_det.default: [((a,), {}), ((a.mT,), {})],
            aten._linalg_slogdet.default: [((a,), {}), ((a.mT,), {})],
            aten.linalg_cholesky_ex.default: [((definite,), {"upper": upper}) for upper in (False, True)],
            aten.linalg_solve_triangular.default: [
                ((t, rhs), {"upper": upper, "left": left, "unitriangular": unit})
                for unit in (False, True) for upper, t in ((False, triangular), (True, triangular.mT))
                for left, rhs in ((True, b), (False, b.mT))
            ],
            aten._linalg_check_errors.default: [((torch.zeros(batch, dtype=torch.int32), "solve"),
            {"is_matrix": not batch})],
        }.items():  # fmt: skip
            found.setdefault(op, []).extend(calls)
    return found


_WINDOWS = (
    ([2, 2], [2, 2], [0, 0], [1, 1], False), ([3, 3], [2, 2], [1, 1], [1, 1], True),
    ([3, 2], [1, 3], [1, 0], [2, 1], False),
    ([2, 1], [3, 3], [1, 0], [1, 1], False),
)  # fmt: skip


def _uneven() -> Tensor:
    """Equal elements, NaN, and windows of nothing but -inf."""
    x = torch.arange(2 * 3 * 7 * 9).remainder(5).float().view(2, 3, 7, 9)
    x[0, 0, 2, 3:5] = torch.nan
    x[1, :, :4, :4] = -torch.inf
    return x


def _indexed(x: Tensor) -> list[Arguments]:
    """``x`` of four dimensions at tensors that stand together and apart, are broadcast, and count from the end."""
    i, j = torch.tensor([1, -1, 0]), torch.tensor([[0], [-3]])
    return [
        ((x, at), {})
        for at in (
            [i],
            [None, i],
            [None, i, None, i],
            [None, i, j],
            [i, None, None, j],
            [i, i, i, i],
            [None, None, None, j],
        )
    ]


def _put(x: Tensor) -> list[Arguments]:
    """Numbers put, and added, at the same places."""
    calls = [
        (x, at, torch.randn_like(x[tuple(slice(None) if i is None else i for i in at)])) for (_, at), _ in _indexed(x)
    ]
    return (
        [(call, {}) for call in calls[:2]]
        + [((*call, True), {}) for call in calls]
        + [((x, calls[2][1], torch.tensor(2.0)), {})]
    )


# ── variants ─────────────────────────────────────────────────────────────────────────────────────────────────────


def recast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """The same shape in another dtype; small whole numbers where it holds none but those."""
    if not t.is_floating_point() and (dtype.is_floating_point or t.dtype == torch.bool):
        return t
    if dtype.is_floating_point:
        return t.to(dtype)
    whole = t.float().mul(3).round().clamp(-9, 9)
    return whole > 0 if dtype == torch.bool else (whole.abs() if dtype == torch.uint8 else whole).to(dtype)


def transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.ndim > 1 else t


def expanded(t: Tensor) -> Tensor:
    return t[..., :1].expand(t.shape) if t.ndim > 0 and t.numel() else t


def sliced(t: Tensor) -> Tensor:
    if t.ndim == 0:
        return torch.stack([t, t])[1]
    out = t.new_zeros([2 * n + 1 for n in t.shape])[tuple(slice(1, None, 2) for _ in t.shape)]
    return out.copy_(t)


def scalar(t: Tensor) -> Tensor:
    return t.flatten()[0] if t.numel() else t


def empty(t: Tensor) -> Tensor:
    return t[:0] if t.ndim else t


def calls_of(op: Any, database: bool = True) -> list[Arguments]:
    """The database's calls (reading it takes ten seconds), and those from the schema where they can be trusted to
    make sense."""
    safe = is_pointwise(op) or not any(str(a.type) == "Tensor" for a in op._schema.arguments)
    found = [*(harvest().get(op, []) if database else []), *_made().get(op, [])]
    return [c for c in (*found, *(from_schema(op) if safe or not found else ())) if runs(op, c)]


def variants(op: Any) -> Iterable[Arguments]:
    """The calls a row is checked with."""
    calls = calls_of(op)
    yield from calls
    for call in (calls[0], calls[-1])[: len(calls)]:
        changes = [functools.partial(recast, dtype=d) for d in (*FLOATS[1:], *OTHERS)]
        if "group_norm_backward" not in str(op):  # which reads its arguments as if they were contiguous
            # no singular matrices
            changes += [transposed, sliced] if "linalg" in str(op) else [transposed, sliced, expanded]
        alone = sum(isinstance(t, Tensor) for t in tree_leaves(call)) == 1
        # some of PyTorch's kernels crash on sizes that do not fit
        if is_pointwise(op) or (alone and "native" not in str(op)):
            changes += [scalar, empty]
        for change in changes:
            changed = _fitting(op, tree_map_only(Tensor, change, call))
            if runs(op, changed):
                yield changed
    first = [t for t in tree_leaves(calls[0]) if isinstance(t, Tensor)]
    if len(first) > 1 and is_pointwise(op) and "backward" not in str(op):
        yield from _mixed(op, calls[0], first)


def _fitting(op: Any, call: Arguments) -> Arguments:
    """With places that are those of the greatest elements, where an operator is promised that."""
    if "with_indices_backward" not in str(op):
        return call
    (g, x, *how, _), kwargs = call
    try:
        return (g, x, *how, getattr(aten, str(op).split(".")[1].removesuffix("_backward"))(x, *how)[1]), kwargs
    except RuntimeError:  # of this dtype there is none
        return call


def _mixed(op: Any, call: Arguments, tensors: list[Tensor]) -> Iterable[Arguments]:
    """One of the arguments in another dtype than the others, or of no dimensions."""
    for one in tensors[:2]:
        for change in (
            *(functools.partial(recast, dtype=d) for d in (torch.float64, torch.bfloat16, torch.int64)),
            scalar,
        ):
            changed = tree_map_only(Tensor, lambda t: change(t) if t is one else t, call)
            if runs(op, changed):
                yield changed


# ── special values ───────────────────────────────────────────────────────────────────────────────────────────────

_AROUND = (
    0.0, 1e-45, 1e-40, 1.1754944e-38, 1.1754943e-38, 1e-30, 1e-8, 6e-8, 1e-5, 0.00048828125, 0.01, 0.25, 0.49999997,
    0.5, 0.75,
    0.99999994, 1.0, 1.0000001, 1.5, 2.0, 2.5, 3.0, 3.1415927, 1.5707964, 10.0, 17.0, 20.0, 20.000002, 33.3, 87.33654,
    88.02969, 88.72283,
    88.72284, 89.0, 103.27893, 103.97208, 103.97209, 104.5, 127.0, 128.0, 149.0, 150.0, 709.78, 709.79, 745.13, 745.14,
    1023.0, 1024.0,
    1074.5, 65504.0, 8388607.5, 8388609.0, 16777217.0, 1e9, 2147483648.0, 4.5e15, 9.223372e18, 1e20, 1.8e19, 1e30,
    3.4028235e38,
    float("inf"),
)  # fmt: skip
_FEW = (0.0, 1e-40, 1e-30, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0, 30.0, 1e10, 3e38, float("inf"))
_DOUBLES = (
    5e-324,
    1e-310,
    2.2250738585072014e-308,
    1e-200,
    1e-17,
    1.0000000000000002,
    709.782712893384,
    745.1332191019411,
    1e200,
    1.7e308,
)


def specials(op: Any, dtype: torch.dtype, database: bool = True) -> Iterable[Arguments]:
    """Each distinct way to call a pointwise overload, on numbers at which formulas break."""
    seen = set()
    for call in [*calls_of(op, database), *_FURTHER.get(op, ())]:
        leaves, _ = tree_flatten(call)
        tensors = [t for t in leaves if isinstance(t, Tensor)]
        rest = repr([x for x in leaves if not isinstance(x, Tensor)])
        if rest in seen or not tensors or not any(t.is_floating_point() for t in tensors):
            continue
        seen.add(rest)
        values = iter(_grid(len(tensors), dtype))
        yield tree_map_only(Tensor, lambda t: next(values) > 0 if t.dtype == torch.bool else next(values), call)


_FURTHER: dict[Any, list[Arguments]] = {
    aten.pow.Tensor_Scalar: [
        ((torch.ones(2), e), {}) for e in (0, 0.0, -1, -2, 0.5, -0.5, 3, 4, 2.5, -3, float("inf"), float("nan"))
    ],
    aten.clamp.default: [
        ((torch.ones(2), float("nan"), 1.0), {}),
        ((torch.ones(2), 2, -1), {}),
        ((torch.ones(2), -0.0, 0.0), {}),
    ],
}


def _grid(rank: int, dtype: torch.dtype) -> list[Tensor]:
    """All combinations of special values, and random ones of all magnitudes; as many as a test can bear."""
    if rank == 1:
        random = torch.randn(700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        further = torch.tensor(_DOUBLES, dtype=torch.float64)
        further = further if dtype == torch.float64 else further.clamp(1e-45, 3e38)
        half = torch.cat([torch.tensor(_AROUND, dtype=torch.float64), further])
        return [torch.cat([half, -half, random * 3, random.exp() * 30, torch.tensor([float("nan")])]).to(dtype)]
    few = torch.tensor(_AROUND[::2] if rank == 2 else _FEW if rank == 3 else _FEW[::3], dtype=dtype)
    few = torch.cat([few, -few, torch.tensor([float("nan")], dtype=dtype)])
    return [t.flatten() for t in torch.meshgrid([few] * rank, indexing="ij")]


def is_pointwise(op: Any) -> bool:
    return torch.Tag.pointwise in op.tags or any(
        name in str(op) for name in ("softplus_backward", "leaky_relu_backward", "mse_loss_backward")
    )
