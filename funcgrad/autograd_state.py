"""What autograd knows of a tensor: its history, its leaf-ness, its family of views, its version counter.

Asking a view for its history may raise (its base was written to where that is forbidden): who asks here gets an answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from . import refusals
from .torch_private.autograd import (
    creation_meta,
    custom_function_of,
    set_creation_meta,
    set_versions,
    versions_kept,
)
from .torch_private.levels import dual_parts
from .torch_private.tensors import is_transform_wrapper
from .walks import after, reached


def made_by_python(tensor: torch.Tensor) -> bool:
    """Whether a custom ``autograd.Function`` computed a tensor."""
    try:
        return isinstance(tensor.grad_fn, torch.autograd.function.BackwardCFunction)
    except RuntimeError:  # a view taken under no_grad of what was written to since: it has no history to ask for
        return False


def is_untold(tensor: torch.Tensor) -> bool:
    """Whether a view was taken under no_grad of what requires grad: it requires grad, and nobody can say why."""
    base = tensor._base
    return tensor.requires_grad and not has_history(tensor) and base is not None and base.requires_grad


def is_stale(tensor: torch.Tensor) -> bool:
    """Whether autograd forbids to use a view, since what it is a view of was written to."""
    try:
        return tensor.grad_fn is NotImplemented
    except RuntimeError:
        return True


def renew_history(tensor: torch.Tensor) -> None:
    """Let a view know that its base got a history since: until it is asked, autograd takes it for a leaf when it is
    written to.

    An input that is the base itself in the caller's hands is a view in a recorded run. Not to be called by what a
    custom Function's ``apply`` calls: that holds a lock of the view's.
    """
    if tensor._is_view():
        is_stale(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter of a tensor; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def version_counters(values: Sequence[Any]) -> list[int]:
    """The same of the tensors among some values, 0 for the others."""
    try:
        return [v._version if isinstance(v, torch.Tensor) else 0 for v in values]
    except RuntimeError:  # an inference tensor
        return [version_of(v) if isinstance(v, torch.Tensor) else 0 for v in values]


def versions_of_saved(saved: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The same of tensors that autograd has saved, of which none is an inference tensor."""
    return tuple([t._version for t in saved])


def has_history(tensor: torch.Tensor) -> bool:
    """Whether something differentiable computed a tensor (as far as autograd would go back from it)."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # see made_by_python
        return False


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``; False for a view that has no history to ask for."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # see made_by_python
        return False


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """``tensor.grad``, without the warning that what is no leaf has one only where somebody sets it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.grad


def set_earlier_gradient(tensor: torch.Tensor, gradient: torch.Tensor) -> None:
    """Set the gradient of a tensor as it was set when the tensor had the gradient's sizes: PyTorch compares them."""
    now = tensor.data
    tensor.data = gradient.data
    tensor.grad = gradient
    tensor.data = now


def retains_grad(tensor: torch.Tensor) -> bool:
    """Whether what is computed keeps the gradient that comes to it."""
    return has_history(tensor) and tensor.retains_grad


def nodes_below(tensors: Sequence[torch.Tensor]) -> Iterator[Any]:
    """What a backward pass from these tensors runs."""
    return nodes_from([t.grad_fn for t in tensors])


def nodes_from(ends: Iterable[Any]) -> Iterator[Any]:
    """What a backward pass runs that starts at these nodes, where there is one."""
    return reached((node for node in ends if node is not None), next_nodes)


def next_nodes(node: Any) -> list[Any]:
    """The nodes that a node of autograd leads to."""
    return [n for n, _ in node.next_functions if n is not None]


def ends_above(ends: Sequence[Any]) -> dict[Any, int]:
    """The nodes that a backward pass runs which starts at these nodes, each with those that lead to it: a bit for
    each."""
    found = dict.fromkeys(reversed([*after(ends, next_nodes)]), 0)
    for i, end in enumerate(ends):
        found[end] |= 1 << i
    for node in found:
        for other in next_nodes(node):
            found[other] |= found[node]
    return found


def python_node_below(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a backward pass from these tensors runs the caller's Python: a custom ``autograd.Function`` that does
    not say it is pure."""
    found = map(custom_function_of, nodes_below(tensors))
    return any(function is not None and not getattr(function, "is_pure", False) for function in found)


def is_dead_end(tensor: torch.Tensor) -> bool:
    """Whether what computed a tensor leads to no leaf: nothing would get a gradient."""
    return not any(hasattr(node, "variable") for node in nodes_below([tensor]))


def has_dead_end(ends: Sequence[Any]) -> bool:
    """Whether a backward pass that starts at these nodes runs some that lead to no leaf, which ``autograd.grad`` passes
    over."""
    leads: dict[Any, bool] = {}
    for node in reversed(ends_above(ends)):
        leads[node] = hasattr(node, "variable") or any(leads[n] for n in next_nodes(node))
    return not all(leads.values())


def lead_to(tensors: Iterable[torch.Tensor], targets: Sequence[torch.Tensor]) -> bool:
    """Whether a backward pass from some tensors comes to one of others, from which they were computed."""
    computed = [t for t in tensors if t.grad_fn is not None]
    if not computed:
        return False
    leaves = {id(t) for t in targets if t.grad_fn is None}
    ends = {(t.grad_fn, t.output_nr) for t in targets if t.grad_fn is not None}
    edges = [(t.grad_fn, t.output_nr) for t in computed]
    edges += [edge for node in nodes_below(computed) for edge in node.next_functions]
    return any(edge in ends or id(getattr(edge[0], "variable", None)) in leaves for edge in edges)


def depends_on(tensors: Sequence[torch.Tensor], source: torch.Tensor) -> bool:
    """Whether some tensors were computed from another, as autograd knows."""
    return source.grad_fn in nodes_below([t for t in tensors if has_history(t)])


def leaves_below(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves a backward pass from these tensors ends in."""
    return [node.variable for node in nodes_below(tensors) if hasattr(node, "variable")]


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether something of the caller's runs when a gradient of a leaf is computed, or has been added to it."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def bump_version(tensor: torch.Tensor) -> None:
    """What was saved of a tensor for backward is out of date, as after a write."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor autograd knows this one to be a view of; None for one that is no view."""
    return tensor._base


def family_of(t: torch.Tensor) -> torch.Tensor:
    """The tensor autograd knows a view to be a view of, and itself for any other.

    A view of a tensor that does not require grad, made a leaf by ``requires_grad_()``, is one for itself.
    """
    base = view_base(t)
    return t if base is None or (t.requires_grad and not base.requires_grad) else base


class _WithHistory(torch.autograd.Function):
    """To autograd, its second argument; in memory, its first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(look: torch.Tensor, carrier: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return look.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, look: Any, carrier: torch.Tensor | None) -> torch.Tensor | None:  # type: ignore[override]
        return carrier

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:  # type: ignore[override]
        return None, gradient


def with_history_of(look: torch.Tensor, carrier: torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of ``look`` with the history of ``carrier``, and its tangent."""
    if not carrier.requires_grad and dual_parts(carrier)[1] is None:
        return look.detach()
    with torch.enable_grad():
        tensor: torch.Tensor = _WithHistory.apply(look, carrier)  # type: ignore[no-untyped-call]
    return tensor


class _ViewWithHistory(_WithHistory):
    """The same, and a view: PyTorch forbids writes to one that a custom Function has made, which would lose that
    history."""

    @staticmethod
    def forward(look: torch.Tensor, carrier: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return look.view_as(look)


def view_with_history_of(look: torch.Tensor, carrier: torch.Tensor) -> torch.Tensor:
    """A view of ``look`` with the history of ``carrier``, which is not to be written to (in forward mode, where the
    tangent of a view must be one, it is no view)."""
    if not carrier.requires_grad or dual_parts(carrier)[1] is not None:
        return with_history_of(look, carrier)
    with torch.enable_grad():
        tensor: torch.Tensor = _ViewWithHistory.apply(look, carrier)  # type: ignore[no-untyped-call]
    return tensor


class _WithoutDerivative(torch.autograd.Function):
    """What ``set_`` computes, in the eyes of autograd."""

    @staticmethod
    def forward(ctx: Any, look: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        return look.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:  # type: ignore[override]
        raise RuntimeError("derivative for set_ is not implemented")


def without_derivative(look: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that requires grad, and cannot be differentiated."""
    tensor: torch.Tensor = _WithoutDerivative.apply(look, look.new_zeros(()).requires_grad_())  # type: ignore[no-untyped-call]
    return tensor


def stale_view(look: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view over the same memory, made as ``like`` was, that autograd forbids to use: what it is a view of was written
    to."""
    with torch.enable_grad():
        base = without_derivative(look)
        view = base.view_as(base)
    set_creation_meta(view, creation_meta(like))
    bump_version(base)
    return view


def with_dead_end(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that requires grad: gradients flow to a leaf that nobody has."""
    with torch.enable_grad():
        return with_history_of(tensor, tensor.new_zeros(()).requires_grad_().expand_as(tensor))


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor of the same values: over the same memory, where one may be laid over that."""
    with torch.inference_mode():
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not is_transform_wrapper(tensor)
        if not is_plain or tensor.is_neg():
            return tensor.clone()
        made = tensor.new_empty(0)
        own = made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
        return own.conj() if tensor.is_conj() else own  # type: ignore[no-any-return]


def versions_of(tensors: Sequence[Any]) -> dict[torch.Tensor, int]:
    """The version counters of the tensors among some values."""
    return {t: version_of(t) for t in tensors if isinstance(t, torch.Tensor) and not t.is_inference()}


def go_on(
    tensors: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    keeps_graph: bool,
    written: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    before: dict[torch.Tensor, int],
) -> None:
    """A ``.backward()`` of a function that has run, from ``tensors``, which got these gradients there (or none), on
    through what is above.

    It finds the version counters of inputs as they were ``before`` the function ran, but for those of what that had
    ``written`` to by then: nothing above may read that any more. ``leaves`` are those whose gradients the function sets
    or reads itself.
    """
    pairs = [(t, gradient) for t, gradient in zip(tensors, gradients, strict=True) if gradient is not None]
    tensors = [t for t, _ in pairs]
    with versions_kept(tuple(before)):
        set_versions(tuple(before), tuple(before.values()))
        apart = {id(leaf) for leaf in leaves}
        if apart and any(id(leaf) in apart for leaf in leaves_below(tensors)):
            raise refusals.ONWARD_TO_OWN_GRADIENT(where="the history of an input of which a leaf is an input, too")
        # what is written to may have no history to ask for, which it had when it was used
        edges = [get_gradient_edge(t) for t in tensors]
        for tensor in written:
            bump_version(tensor)
        then = versions_of(tuple(before))
        torch.autograd.backward(edges, [gradient for _, gradient in pairs], retain_graph=keeps_graph)
        is_written = then != versions_of(tuple(before))
    if is_written:
        raise refusals.WRITES_OUTSIDE_IN_BACKWARD(where="the history of an input")
