"""Places in torch that a trace replaces, for its own thread."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._functorch import eager_transforms
from torch._functorch import vmap as functorch_vmap
from torch.fx.experimental.const_fold import FoldedGraphModule
from torch.utils import module_tracker
from torch.utils.hooks import RemovableHandle

_operators = importlib.import_module("torch._higher_order_ops.utils")


COMPILED_BY_TORCH = (
    {"operator of functions": (_operators, "_hop_compile_and_call")}
    if hasattr(_operators, "_hop_compile_and_call")
    else {"compiler of operators": (_operators, "setup_compilation_env"), "compile": (torch, "compile")}  # 2.11
)
"""By which torch compiles, and calls, its operators that take functions: in one call (2.13, 2.15), or by
``torch.compile`` with the backend that a context gives."""


_scans = importlib.import_module("torch._higher_order_ops.associative_scan")
generic_associative_scan: Callable[..., Any] = _scans.generic_associative_scan
"""``associative_scan`` by calls for many pairs at once."""


CAUSAL_MASK = torch.nn.modules.transformer, "_detect_is_causal_mask"
"""With which nn.Transformer reads the values of a mask to find out whether it is causal (a hint for speed only)."""


ENTER_LEVELS = (
    (eager_transforms, "_wrap_for_grad"),
    (eager_transforms, "jvp_increment_nesting"),
    (functorch_vmap, "_add_batch_dim"),
)
"""By which torch.func's transforms make tensors of their level, or begin it; they ask no torch-function mode."""


LINEARIZE_TRACER = eager_transforms, "lazy_dynamo_disallow"
"""What ``torch.func.linearize`` alone calls, just before it starts a tracer of torch's own."""


TENSOR_TEXT = torch._tensor_str, "_str"
"""What writes a tensor down. It asks for its tangent, which below autograd ends in an internal assertion."""


SWAP = torch._C, "_swap_tensor_impl"
"""What ``torch.utils.swap_tensors`` ends with, when it has swapped classes and attributes."""

LINEAR_FOLDING = FoldedGraphModule, "run_folding"
"""What the function that ``torch.func.linearize`` returns does in its first call: it computes its constants."""


def is_folded(module: Any) -> bool:
    """Whether there is nothing of that to do."""
    return module.has_folding_been_run or module.const_subgraph_module is None  # type: ignore[no-any-return]


HOOKS_OF_TRACKER = module_tracker, "register_multi_grad_hook"
"""By which ``FlopCounterMode`` and the like hear that backward passes through a module."""

NO_HOOK = RemovableHandle(OrderedDict())
"""Of a hook that is none."""


BACKWARD_ENGINE = torch.autograd, "_engine_run_backward"
"""What every backward pass that Python starts is run by."""


def graphs_made_alone() -> contextlib.AbstractContextManager[Any]:
    """Inside, no other thread makes graphs by torch's own tracers, as ``torch.cond`` does of its branches: these
    note for the whole process who traces. It is the lock of ``torch.compile``."""
    # importing torch._dynamo costs a second: only where torch does so, too
    from torch._dynamo.convert_frame import compile_lock

    return compile_lock


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """As ``setattr``, also for a class that is made in C and says that it is immutable (``torch.Generator``), and for
    what is set of a class itself (``__class__``)."""
    try:
        setattr(owner, name, value)
    except (TypeError, AttributeError):
        gc.get_referents(owner.__dict__)[0][name] = value  # what its proxy stands for
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def not_looked_into(function: Any) -> None:
    """From now on ``torch.compile`` ends its graph where the function is called, and compiles nothing that the
    function calls: what ``torch.compiler.disable`` says, without a call in between, and without importing the
    compiler."""
    function._torchdynamo_disable = True
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


# 2.15; 2.11, 2.13
_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


CHECKPOINT_GENERATOR = next(name for name in _GENERATORS if hasattr(torch.utils.checkpoint, name))
"""In ``torch.utils.checkpoint``: what ``checkpoint(f, use_reentrant=False)`` runs to just before it calls ``f``, and
after."""
