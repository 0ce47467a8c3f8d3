"""Operators: their schemas, their kinds, their forms."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

DYNAMO = "torch._dynamo"
"""The package whose errors tell of code that torch.compile does not compile."""


def is_operator(target: Any) -> bool:
    """Whether a call's target is an operator overload (``aten.mul.Tensor``), not a Python function."""
    return isinstance(target, torch._ops.OpOverload)


def operator_named(name: str) -> Any:
    """An operator overload by its full name: ``aten::mul.Tensor``."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def operator_of_functions(target: Any) -> str | None:
    """The name of a higher-order operator; None for anything else."""
    return str(target.name()) if isinstance(target, torch._ops.HigherOrderOperator) else None  # type: ignore[no-untyped-call]


def is_pointwise(target: Any) -> bool:
    """Whether a call's target is an operator that computes each element of its own."""
    return is_operator(target) and torch.Tag.pointwise in target.tags


def is_pointwise_function(function: Any) -> bool:
    """Whether a function of torch's is a call of such an operator."""
    packet = getattr(torch.ops.aten, function.__name__, None)
    return packet is not None and any(is_pointwise(getattr(packet, name)) for name in packet.overloads())


def draws_random(op: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in op.tags


def decomposed(op: Any) -> Callable[..., Any]:
    """An operator in other operators, as torch itself has it."""
    from torch._decomp import decomposition_table  # it takes a while to import

    return decomposition_table[op]  # type: ignore[no-any-return]


FUSED_ADAM, FUSED_ADAMW = torch._fused_adam_, torch._fused_adamw_


FUSED_SGD, FUSED_ADAGRAD = torch._fused_sgd_, torch._fused_adagrad_
"""The steps of optimisers with ``fused=True``. Seen in 2.13."""

PACK_PADDED, PAD_PACKED = torch._pack_padded_sequence, torch._pad_packed_sequence
"""What ``torch.nn.utils.rnn`` calls. Seen in 2.13."""


CAPTURABLE_DEVICES = tuple(
    (importlib.import_module(f"torch.optim.{name}"), "_get_capturable_supported_devices")
    for name in ("adam", "adamax", "asgd", "nadam", "radam")
)
"""What says on which devices optimisers may have ``capturable=True``. Seen in 2.13."""


def generator_id(generator: torch.Generator) -> int:
    """What tells generators apart: a mode is given another object for each call that names one."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def is_torchs_own(op: Any) -> bool:
    """Whether an operator is one of PyTorch's (functional where its schema says so), not a custom one."""
    return op.namespace in ("aten", "prims", "prim")


def overload_name(op: Any) -> str:
    """``"Tensor"`` of ``aten.mul.Tensor``."""
    name: str = op._overloadname
    return name


def argument_names(op: Any) -> list[str]:
    """The names of an operator's arguments."""
    return [a.name for a in op._schema.arguments]


def argument_kinds(op: Any) -> list[str]:
    """The types of an operator's arguments, as its schema writes them; none for what is no operator."""
    return [str(a.type) for a in op._schema.arguments] if is_operator(op) else []


def writes_inputs(op: Any) -> bool:
    """Whether an operator's schema says it mutates an argument."""
    return is_operator(op) and bool(op._schema.is_mutable)


def written_by(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors a call of an operator writes to."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (
                v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)
            )


@functools.cache
def functional_form(op: Any) -> Any:
    """The operator that computes what an in-place one of PyTorch's writes, where functionalisation does not know it
    (``polygamma_``); None for all others. Seen: that one alone in 2.11, 2.13."""
    name = op._schema.name.removeprefix("aten::")
    if not writes_inputs(op) or op.namespace != "aten" or not name.endswith("_") or name.startswith("_"):
        return None
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C.DispatchKey
    if any(has_kernel(op.name(), k.name) for k in (key.Functionalize, key.CompositeImplicitAutograd)):
        return None
    return getattr(getattr(torch.ops.aten, name[:-1], None), overload_name(op), None)


def arguments_by_name(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator by the names its schema gives them."""
    return dict(zip(argument_names(op), args, strict=False)) | kwargs


def method_of(target: Any) -> Any:
    """The tensor method that an operator called by name (``torch.ops.aten.t_``) is, or the operator itself."""
    if not isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return target
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    namespace, _, name = packet._qualified_op_name.partition("::")
    return getattr(torch.Tensor, name, target) if namespace == "aten" else target


def without_overload(target: Any) -> Any:
    """An operator that looks for the overload itself, where ``target`` is one of its overloads."""
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target


def returns_nothing(op: Any) -> bool:
    """Whether an operator is called for its effect alone (a check)."""
    return is_operator(op) and not op._schema.returns


METHODS: dict[Any, str] = {
    getattr(getattr(torch.ops.aten, name), overload): name
    for name, overloads in {
        "mm": "default", "bmm": "default", "addmm": "default", "addmm_": "default", "baddbmm": "default",
        "view": "default", "t": "default", "transpose": "int", "permute": "default", "select": "int", "unbind": "int",
        "expand": "default",
        "unsqueeze": "default", "squeeze": "default dim dims", "diagonal": "default", "detach": "default",
        "unfold": "default",
    }.items() for overload in overloads.split()
}  # fmt: skip
"""Operators whose method of a tensor makes the very call: Python's way to it takes half the time of the operator's."""


RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
"""A recurrent layer of oneDNN. It returns last what its backward pass needs, where grad mode is on."""


@functools.cache
def direct(op: Any, for_backward: bool = False) -> Callable[..., Any]:
    """The shortest way from Python to an operator overload: a method, or its C++ entry without the Python frame
    around it. The Python of a custom one runs with grad mode off, as it does below eager PyTorch's autograd: it may
    ask for ``.numpy()``. ``for_backward``: with grad mode on, for one that keeps something for its backward pass."""
    call = getattr(torch.Tensor, METHODS[op]) if op in METHODS else op._op if is_operator(op) else op
    if is_operator(op) and not is_torchs_own(op):
        call = torch.no_grad()(call)
    if for_backward:
        call = torch.enable_grad()(call)
    if is_operator(op):
        _of_direct[id(call)] = call, (op, for_backward)
    return call  # type: ignore[no-any-return]


_of_direct: dict[int, tuple[Any, tuple[Any, bool]]] = {}


def direct_call(call: Any) -> tuple[Any, bool] | None:
    """The arguments for which ``direct`` gave this; None for any other object."""
    known, of = _of_direct.get(id(call), (None, None))
    return of if known is call else None


def sdpa_flags() -> tuple[bool, ...]:
    """Which scaled-dot-product-attention kernels are allowed; the choice among them is made while tracing."""
    c = torch._C
    return (
        c._get_flash_sdp_enabled(),
        c._get_math_sdp_enabled(),
        c._get_mem_efficient_sdp_enabled(),
        c._get_cudnn_sdp_enabled(),
    )


def aten_overloads() -> list[Any]:
    """All overloads of ATen operators; ``dir(torch.ops.aten)`` has those only that somebody asked for."""
    names = sorted(
        n.removeprefix("aten::").partition(".") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")
    )
    found = [
        getattr(getattr(torch.ops.aten, packet, None), overload or "default", None) for packet, _, overload in names
    ]
    return [op for op in found if op is not None]


def lstm_by_layers(
    given: Any, state: Sequence[Any], params: Sequence[Any], has_biases: bool, *more: Any
) -> tuple[Any, Any, Any]:
    """PyTorch's formula of an LSTM in calls of oneDNN for whole layers, which its own choice unrolls where the input
    requires grad, and C++ does not."""
    formulas = importlib.import_module("torch._decomp.decompositions")  # seen in 2.11, 2.13
    hidden, of_layers = list(zip(*state, strict=True)), formulas.gather_params(params, has_biases, False)
    out, last = formulas._rnn_helper(given, hidden, of_layers, has_biases, *more, formulas.mkldnn_one_layer_lstm)
    return out, *(torch.stack(states) for states in zip(*last, strict=True))  # type: ignore[return-value]
