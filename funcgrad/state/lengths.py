"""``len`` of a tensor whose size is a symbol.

Python makes a number of what ``__len__`` returns, so that no symbol comes out of its own ``len``. Where the dry run has
heard code ask it of a tensor, the recorded run has ``length`` among the globals of that code: what the process has
under this name is not touched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.symbols import is_size

Globals = dict[str, Any]
_lock = threading.Lock()
_there: dict[int, int] = {}
"""By the identity of globals, how often runs have put ``length`` there."""


def length(of: Any, /) -> Any:
    """``len``; of a tensor whose size is a symbol, that symbol. No other thread has such a tensor; its compiler
    reads ``len`` alone."""
    if torch.compiler.is_dynamo_compiling() or not isinstance(of, Tensor) or not of.dim():
        return len(of)
    size = of.shape[0]
    return size if is_size(size) else len(of)


def asking_globals() -> Globals | None:
    """The globals of the code that asks for a ``len`` which is Python's, where ``Tensor.__len__`` runs for it; None
    for any other."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not Tensor.__len__.__code__:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    if caller is None or "len" not in caller.f_code.co_names or caller.f_globals.get("len", length) is not length:
        return None
    return caller.f_globals  # type: ignore[no-any-return]


@contextlib.contextmanager
def lengths_in(spaces: Sequence[Globals]) -> Iterator[None]:
    """Inside, ``len`` is ``length`` among these globals."""
    with _lock:
        for space in spaces:
            _there[id(space)] = _there.get(id(space), 0) + 1
            space.setdefault("len", length)
    try:
        yield
    finally:
        with _lock:
            for space in spaces:
                _there[id(space)] -= 1
                if not _there[id(space)]:
                    del _there[id(space)]
                    if space.get("len") is length:
                        del space["len"]


def own_names(space: Globals) -> Globals:
    """A copy of globals, without what a trace has put there."""
    return {name: value for name, value in space.items() if value is not length}
