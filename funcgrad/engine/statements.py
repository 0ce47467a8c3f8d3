"""What the autograd engine does in a backward pass, as data: statements, each a call of something with values.

A statement is played three ways: on real values, one after the other (``replay.py``); on fake ones, where the pure ones
become ATen calls of a graph (``lowering.py``); or as an opaque call of that graph.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..capture.callbacks import hook_name, require_as_given
from ..capture.views import is_dense
from ..runtime.given_tensors import require_versions
from ..torch_private.autograd import materializes
from ..torch_private.engine import call_cpp_pre_hook, engine_operators, zeros_for
from .tokens import Ref


class Kind(enum.Enum):
    """What a statement may do besides making its results."""

    PURE = "pure"
    """Nothing: a function of its arguments."""
    SUM = "sum"
    """Nothing: the sum of two gradients of one value."""
    STORE = "store"
    """It adds to the ``.grad`` of a leaf."""
    CALL = "call"
    """Anything: it is the caller's Python."""


@frozen
class Declared:
    """How a result looks, as the engine says: of the sizes some are values of the run."""

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int | Ref, ...]


@frozen(eq=False)
class Statement:
    """``run(*args)`` returns a tuple of results, of which ``likes`` says how they look: as an argument does, as
    declared, as nobody knows (None). ``node``: the number of the node of autograd it belongs to."""

    number: int
    node: int
    kind: Kind
    name: str
    run: Callable[..., tuple[Any, ...]]
    args: tuple[Any, ...]
    likes: tuple[Ref | Declared | None, ...]
    may_be_none: bool = False
    """Whether a result may be None where a tensor was expected, as the caller's Python decides in each run."""
    writes: Ref | None = None
    """A tensor that a call is for writing to: a parameter, in a hook after its gradient."""

    @property
    def results(self) -> tuple[Ref, ...]:
        return tuple(Ref(self.number, i) for i in range(len(self.likes)))

    def __str__(self) -> str:
        made = f"{', '.join(map(str, self.results))} = " if self.likes else ""
        args = self.args[:1] if self.run is VALIDATE else self.args  # what it validates, without the metadata
        return f"{made}{self.name}({', '.join(map(_text, args))})"


def short_name(node: str) -> str:
    """The name of a node of autograd without its namespace."""
    return node.rpartition("::")[2]


def _text(value: Any) -> str:
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value) if isinstance(value, Ref) or not isinstance(value, Tensor) else "tensor"


# ── what is pure ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Functional:
    """A node of PyTorch's own as a function of gradients and of what was saved; it is found by its name when it is
    called."""

    name: str

    def __call__(self, grads: Sequence[Any], *args: Any) -> tuple[Any, ...]:
        found = engine_operators().get(self.name)
        return tuple(getattr(found, "fn", found)(list(grads), *args))


VALIDATE = Functional("validate_outputs")
"""A node's results in the shapes and dtypes that its inputs have; or the error of eager PyTorch."""


def zeros(sizes: Sequence[Any], options: Mapping[str, Any]) -> tuple[Tensor]:
    """What an ``autograd.Function`` is given for a result that has no gradient."""
    return (torch.zeros(sizes, **options),)


def added(old: Tensor | None, new: Tensor | None) -> tuple[Tensor | None]:
    """The sum of two gradients, of which either may be undefined."""
    return (new if old is None else old if new is None else old + new,)


def slice_of_base(
    grads: Sequence[Any], sizes: Any, strides: Any, offset: Any, view_sizes: Any, view_strides: Any, view_offset: Any
) -> Any:
    """What is differentiated through where a view was written to in forward: the gradient of its base in the base's
    own layout, what the view sees of that, and a copy of it."""
    whole = grads[0].new_empty_strided(sizes, strides)
    whole.copy_(grads[0])
    part = whole.as_strided(view_sizes, view_strides, view_offset - offset)
    return whole, part, part.clone(memory_format=torch.contiguous_format)


def slice_put_back(
    needs: Sequence[bool], whole: Tensor, found: Sequence[Tensor | None], part: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs: the first, of the view, in its place in that of the base."""
    others = [g if need else None for need, g in zip(needs[1:], found[1:], strict=True)]
    if not needs[0] or found[0] is None:
        return (None, *others)
    part.copy_(found[0])
    return (whole, *others)


# ── gradients of leaves ──────────────────────────────────────────────────────────────────────────────────────────


def store(variable: Tensor, grad: Tensor | None) -> tuple[()]:
    """Add to ``variable.grad``. Where there is none, it becomes a copy."""
    if grad is not None and torch.is_grad_enabled():
        variable.grad = grad.clone() if variable.grad is None else variable.grad + grad
    elif grad is not None:
        accumulate(variable, grad, is_own=False)
    return ()


def accumulate(variable: Tensor, grad: Tensor, is_own: bool, is_taken: bool = False) -> None:
    """Add to ``variable.grad`` as eager PyTorch does where grad mode is off: in place, or into memory like that of
    the variable, which is that of ``grad`` itself where nobody else has it (``is_own``). ``is_taken``: that it lies
    like that of the variable, too, is known."""
    old = variable.grad
    if old is None and is_taken:
        variable.grad = grad
    elif old is None:
        if grad.layout is not torch.strided or variable.layout is not torch.strided:
            variable.grad = grad if is_own and grad.layout is not torch.strided else grad.clone()
        elif is_own and lies_like(grad, variable):
            variable.grad = grad.detach() if grad.requires_grad else grad  # a hook may turn grad mode on
        else:
            variable.grad = _like(variable, grad).copy_(grad)
    elif old.is_sparse and not grad.is_sparse:
        variable.grad = grad + old
    else:
        old.add_(grad)


def lies_like(grad: Tensor, variable: Tensor) -> bool:
    """Whether a gradient keeps what PyTorch promises of its strides: those of its leaf, or row by row where the leaf
    is not dense."""
    if grad.is_contiguous():
        return variable.is_contiguous() or not _is_dense(variable)
    if not _is_dense(variable):
        return False
    made, own = grad.stride(), variable.stride()
    return made == own or all(a == b or n == 1 for a, b, n in zip(made, own, variable.shape, strict=True))


def _like(variable: Tensor, grad: Tensor) -> Tensor:
    """Memory for a gradient, of the same class as ``grad``, that lies as its leaf does."""
    if _is_dense(variable):
        return grad.new_empty_strided(variable.shape, variable.stride(), dtype=variable.dtype, device=variable.device)
    return grad.new_empty(variable.shape, dtype=variable.dtype, device=variable.device)


def _is_dense(variable: Tensor) -> bool:
    return variable.is_contiguous() or is_dense(variable)


# ── the caller's Python ──────────────────────────────────────────────────────────────────────────────────────────


def tensor_hook(hook: Any, value: Tensor | None) -> tuple[Any]:
    """A hook on one gradient, which may give another one in its place."""
    found = hook(value)
    require_as_given(hook, value, found)
    return (value if found is None else found,)


def cpp_hook(number: int, value: Tensor | None) -> tuple[Any]:
    """The same in C++: what ``retain_grad`` registers. It must not be given None."""
    return (None if value is None else call_cpp_pre_hook(number, value),)


def pre_hook(hook: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """A hook on all gradients that a node is given."""
    return _others_for(hook, values, hook(tuple(values)))


def post_hook(hook: Any, results: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """A hook on all gradients that a node makes."""
    return _others_for(hook, results, hook(tuple(results), tuple(values)))


def after_store(hook: Any, variable: Tensor) -> tuple[()]:
    """A hook on a leaf whose gradient has been added up."""
    if hook(variable) is not None:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")
    return ()


def unpack(hook: Any, packed: Any) -> tuple[Any]:
    """What a saved tensor was packed as, unpacked."""
    return (hook(packed),)


def _others_for(hook: Any, values: Sequence[Any], found: Any) -> tuple[Any, ...]:
    if found is None:
        return tuple(values)
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(values):
        counts = f"got {len(found)}, but expected {len(values)}"
        raise RuntimeError(f"hook '{hook_name(hook)}' has returned an incorrect number of values ({counts})")
    for old, new in zip(values, found, strict=True):
        require_as_given(hook, old, new)
    return tuple(found)


Versions = Sequence[int | None]


class Function:
    """The backward of an ``autograd.Function``. ``given``: which of its inputs want a gradient; ``asked``: of which
    the pass asks for it, which is known when it has been recorded."""

    def __init__(self, given: Sequence[bool]) -> None:
        self.given = self.asked = tuple(given)

    def __call__(
        self, validation: Any, context: Any, saved: Sequence[Any], *grads: Any, then: Versions = ()
    ) -> tuple[Any, ...]:
        """``validation``: of which of its results the engine would have said what to ``validate_outputs``; or None.
        ``then``: the versions of what was saved when the pass began, where Python has run since."""
        cls = context._forward_cls
        name = f"{type(context).__name__}"
        if any(g is None for g in grads) and materializes(cls):
            grads = tuple(zeros_for(context, i) if g is None else g for i, g in enumerate(grads))
        # torch's own compiled functions, from 2.13 on: gradients in a list, emptied
        boxed = getattr(cls, "boxed_grads_call", False)
        found = _backward_of(cls)(_Context(context, saved, then, self.asked), *([list(grads)] if boxed else grads))
        found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        n = len(self.given)
        if len(found) > n and all(v is None for v in found[n:]):
            found = found[:n]
        if len(found) != n:
            raise RuntimeError(
                f"function {name} returned an incorrect number of gradients (expected {n}, got {len(found)})"
            )
        for value, given in zip(found, self.given, strict=True):
            if given and value is not None and not isinstance(value, Tensor):
                raise RuntimeError(
                    f"function {name} returned a gradient that is no tensor but a {type(value).__name__}"
                )
        results = [value if given else None for value, given in zip(found, self.given, strict=True)]
        return tuple(results if validation is None else validated(name, results, *validation))


def validated(name: str, results: Sequence[Any], places: Sequence[int | None], args: Sequence[Any]) -> list[Any]:
    """The results of an ``autograd.Function`` as ``VALIDATE`` has them. ``places``: which of them, those for inputs
    that are tensors.

    Raises as eager PyTorch does, where one has a shape or a dtype that it may not have.
    """
    found = list(results)
    try:
        valid = VALIDATE([None if i is None else found[i] for i in places], *args)
    except RuntimeError as error:  # which says that it is traced, where eager PyTorch names the function
        raise RuntimeError(f"Function {name} returned an {str(error).partition(']')[2]}") from None
    for i, value in zip(places, valid, strict=True):
        if i is not None and found[i] is not None:
            found[i] = value
    return found


def _backward_of(cls: Any) -> Callable[..., Any]:
    backward, vjp = cls.backward, cls.vjp
    if backward is not torch.autograd.Function.backward and vjp is not torch.autograd.Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement "
            "one of them."
        )
    found: Callable[..., Any] = vjp if vjp is not torch.autograd.Function.vjp else backward
    return found


class _Context:
    """The context of an ``autograd.Function`` in its backward: what was saved is what the engine has unpacked by
    then."""

    def __init__(self, context: Any, saved: Sequence[Any], then: Versions, asked: Sequence[bool]) -> None:
        self.__dict__.update(_context=context, _saved=tuple(saved), _then=then, _asked=asked)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """``RuntimeError``, as in eager PyTorch, where the caller's Python has written to one."""
        require_versions((t, n) for t, n in zip(self._saved, self._then, strict=False) if n is not None)
        return self._saved  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._context, name, value)
