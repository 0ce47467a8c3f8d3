"""The engine's hook for a backward pass that is captured, and how one runs instead."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

_hook: Any = torch._C._dynamo.compiled_autograd


def set_engine_hook(factory: Callable[[], Any] | None, dynamic: bool = True) -> tuple[Any, bool]:
    """Let the autograd engine tell an object of ``factory`` what a backward pass would run, in the place of running
    it; None: it runs. Returns what was set before. ``dynamic``: it hands over sizes apart from the graph."""
    before: tuple[Any, bool] = _hook.set_autograd_compiler(factory, dynamic)
    return before


def engine_hook() -> Any:
    """What is set now."""
    before = _hook.set_autograd_compiler(None, False)
    _hook.set_autograd_compiler(*before)
    return before[0]


@contextlib.contextmanager
def without_engine_hook() -> Iterator[None]:
    """Inside, backward passes run as they are."""
    before = _hook.set_autograd_compiler(None, False)
    try:
        yield
    finally:
        _hook.set_autograd_compiler(*before)


forget_engine_graphs: Callable[[], None] = _hook.clear_cache
"""The engine forgets every graph it has told of. Never while it tells, or runs one."""


call_cpp_pre_hook: Callable[[int, torch.Tensor], torch.Tensor] = _hook.call_cpp_tensor_pre_hooks
"""Call a hook of C++ (``retain_grad``) by its number in the backward pass that runs: 2.11, 2.13, 2.15."""


@functools.cache
def engine_operators() -> Any:
    """Where the engine's functional forms of nodes are registered, ``add`` and ``get``: it names each to one
    compiler of the process, whichever that is, so that all must share them. Importing torch._dynamo costs a second:
    only where a backward pass is captured."""
    from torch._dynamo import compiled_autograd

    return compiled_autograd.ops


def is_traceable(name: str) -> bool:
    """Whether a node is PyTorch's own, or of an extension whose function says that it may be traced: others run as
    they are."""
    # of others, torch keeps a function that dynamo does not look into
    return hasattr(engine_operators().get(name), "fn")


def in_torchs_own_capture() -> bool:
    """Whether torch's own compiled autograd runs a graph it has captured: the engine refuses to tell of another one
    in it."""
    own = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(own, "in_compiled_autograd_region", False))


@contextlib.contextmanager
def instead_of_engine(run: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``run(original, roots, *args, **kwargs)`` is called in the place of the entry of every backward pass
    that Python starts."""
    places: list[Any] = [torch.autograd, torch.autograd.graph]
    original = torch.autograd.graph._engine_run_backward

    def entry(roots: Any, *args: Any, **kwargs: Any) -> Any:
        return run(original, roots, *args, **kwargs)

    for place in places:
        place._engine_run_backward = entry
    try:
        yield
    finally:
        for place in places:
            place._engine_run_backward = original


@contextlib.contextmanager
def callbacks_into(queue: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Inside, what is queued to run at the end of a backward pass goes to ``queue``: the engine drops it where it
    runs no node itself."""
    variable: Any = torch.autograd.Variable
    engine = variable._execution_engine
    variable._execution_engine = _Queueing(engine, queue)
    try:
        yield
    finally:
        variable._execution_engine = engine


class _Queueing:
    """The engine, but for the end of what it is told to call at its end."""

    def __init__(self, engine: Any, queue: Callable[[Callable[[], None]], None]) -> None:
        self._engine, self.queue_callback = engine, queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


add_to_each: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_add_
"""Add to several tensors, in place."""


def node_of(root: Any) -> Any:
    """The node of autograd that a tensor is the result of, or a gradient edge leads to; a leaf's collects its
    gradient."""
    if isinstance(root, torch.Tensor):
        return root.grad_fn or torch.autograd.graph.get_gradient_edge(root).node
    return root.node


def sequence_number(node: Any) -> int:
    """When a node was made; the engine runs what was made last first, and what collects a gradient before all
    others."""
    return int(node._sequence_nr()) % (1 << 64)


n_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many dispatch modes, of fake tensors or others, look at the operators that this thread calls."""


def zeros_for(node: Any, i: int) -> torch.Tensor:
    """Zeros in the place of the gradient that a node is given as its ``i``-th."""
    like = node._input_metadata[i]
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
