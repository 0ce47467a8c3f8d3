"""What no guard can watch, named once for each function: an ``UnwatchedStateWarning``."""

from __future__ import annotations

import functools
import queue
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnwatchedStateWarning
from .assumed import Assumed
from .code import Mentions, builtins_in, mentions, together
from .impure import seeds, warn_of_clocks
from .lines import warn
from .names import is_installed_function, taken_apart
from .reached import CONTAINERS
from .renamed import original


class Unwatched(Assumed):
    """Names what a function reads, and does, that nobody notices between calls."""

    def __init__(self, root: Callable[..., Any]) -> None:
        super().__init__()
        self._root = root

    def _warn(self, said: Mentions) -> None:
        """Name, once for each function, what no guard can watch, and code that has run mentions."""
        ran = [self._codes[code] for code in self._what_ran]
        own_of = {function: mentions(original(function.__code__)) for function in ran}
        own = together([*own_of.values()])
        only_reached = (said.globals | said.attributes) - (own.globals | own.attributes | own.strings)
        for value, name in self.unwatched.values():
            if taken_apart(name)[0] in only_reached:
                continue
            what = (
                f"{len(value):,} items of {name}"
                if isinstance(value, CONTAINERS)
                else f"{name} (a {type(value).__name__})"
            )
            _warn_once(self._root, f"{what} cannot be watched: a change of it between calls is not noticed")
        for method in sorted({"cache_info", "cache_clear"} & (said.attributes | said.strings) if self.caches else ()):
            _warn_once(self._root, f"the function asks for {method}() of a functools.lru_cache: {_OF_CACHES[method]}")
        for name in sorted(_ASKED_OF_PROCESS & (own.attributes | own.globals)):
            _warn_once(self._root, _CALLS.format(name))
        of_caller = [function for function in ran if not is_installed_function(function)]
        by_caller = together([own_of[function] for function in of_caller])
        for name in sorted(_ASKED_BY_CALLER & (by_caller.attributes | by_caller.globals)):
            _warn_once(self._root, _CALLS.format(name))
        for methods, what in ((_UNHEARD, f"asks for {{}} of a {{}}: {_AS_TRACED}"), (_UNTOLD, _ONCE)):
            for method in sorted(methods.keys() & own.attributes):
                if kind := next((type(v) for v in self._known.values() if isinstance(v, methods[method])), None):
                    _warn_once(self._root, f"the function {what.format(method, kind.__name__)}")
        for name, what in sorted(self.told.items()):
            if not own.uses.keys().isdisjoint(re.findall(r"\w+", name)):
                _warn_once(self._root, f"the function {what.format(name)}")
        for line in sorted(self.shown):
            _warn_once(
                self._root,
                f"the function asks for the text of a tensor ({line}), which has no values while it is traced: "
                f"{_SHOWN}",
            )
        for line in sorted(self.hooked):
            _warn_once(self._root, f"the function registers a hook on a leaf that it is given ({line}): {_HOOKED}")
        for what in sorted(self.outside):
            _warn_once(self._root, what)
        for name in sorted({"__globals__", "f_globals", "f_locals"} & own.attributes):
            _warn_once(self._root, f"the function reads {name}: {_AS_TRACED}")
        warn_of_clocks(ran)
        generators = (*self._generators, *(generator for _, generator in self._of_everybody))
        for function in filter(seeds, ran if any(g.is_fresh() for g in generators) else ()):
            _warn_once(self._root, _SEEDS.format(function.__name__))
        for function in of_caller:
            for name in builtins_in(own_of[function].unseen, function.__globals__):
                _warn_once(self._root, _CALLS.format(name))


_AS_TRACED = "what it reads by it cannot be watched, and is as it was when it was traced"
_SEEDS = (
    "{} may seed a generator of Python's or NumPy's, one of which has drawn nothing since it was seeded, so that "
    "nobody sees whether it is seeded once more: the program does not seed; seed outside"
)
_CALLS = f"the function calls {{}}(): {_AS_TRACED}"
_ASKED_OF_PROCESS = {"current_thread", "get_ident", "get_native_id", "active_count", "geterr"}
"""What is asked of threads, and of NumPy."""
_ASKED_BY_CALLER = {
    "__subclasses__", "getsignal", "umask", "isatty", "gettrace", "getprofile", "getrefcount", "_getframe",
    "currentframe",
}  # fmt: skip
"""What is asked of all classes, of the process, and of what runs in it. That installed packages ask (which classes of
their own there are, whether anybody looks at a terminal) is theirs."""
_UNHEARD: dict[str, tuple[type, ...]] = {
    "is_set": (threading.Event,),
    "is_alive": (threading.Thread,),
    "locked": (type(threading.Lock()),),
    "_value": (threading.Semaphore,),
    "initial_seed": (torch.Generator,),
    **dict.fromkeys(("qsize", "empty"), (queue.SimpleQueue,)),
    **dict.fromkeys(("nbytes", "size"), (torch.UntypedStorage, torch.TypedStorage)),
}
"""What is asked of objects into which nobody looks."""
_UNTOLD: dict[str, tuple[type, ...]] = {
    "set": (threading.Event,),
    "clear": (threading.Event,),
    "start": (threading.Thread,),
    "notify": (threading.Condition,),
    "notify_all": (threading.Condition,),
    "release": (threading.Semaphore,),
    "put": (queue.SimpleQueue,),
    "get": (queue.SimpleQueue,),
    "get_nowait": (queue.SimpleQueue,),
}
"""What is done with them."""
_ONCE = "calls {} of a {}: it is called when the function is traced, and not on each call. Call it outside"
_SHOWN = "the text is that of its type on each call; return the tensor, and print it outside"
_HOOKED = "eager PyTorch keeps it, and adds one on each call; here each call has its own alone. Register it outside"
_OF_CACHES = {
    "cache_info": "it is as it was when the function was traced",
    "cache_clear": "it is cleared when the function is traced, and not on each call",
}

_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _warn_once(root: Any, message: str) -> None:
    """A warning that comes once for each function."""
    while isinstance(root, functools.partial):  # one type, whatever it calls
        root = root.func
    function = getattr(root, "__func__", root)
    said = _warned.setdefault(function if isinstance(function, types.FunctionType) else type(function), set())
    if message not in said:
        said.add(message)
        warn(message, UnwatchedStateWarning)
