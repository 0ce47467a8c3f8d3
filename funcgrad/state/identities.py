"""Whose ``id`` code asks in a run: where each call may bring another object, that object alone has to be the one it
was. And that code is answered which asks for the ``type`` of what stands for a tensor, or for a number."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from .code import mentions
from .conversions import asks_identities, asks_types, converting_symbols
from .guards import Met
from .renamed import original


class Identities:
    """The objects whose ``id`` was asked, and the code that tells. ``matter``: whether any call may bring another
    object; else nothing is listened to, unless such numbers ``are_keys`` of something that was met."""

    def __init__(self, matter: bool, are_keys: Callable[[], bool] = lambda: False) -> None:
        self.matter, self._are_keys = matter, are_keys
        self._stack: contextlib.ExitStack | None = None
        self._telling = set[types.CodeType]()
        self._asked: dict[int, Any] = {}

    @contextlib.contextmanager
    def heard(self, functions: Iterable[types.FunctionType]) -> Iterator[None]:
        """Inside, these functions tell, and those that are reached meanwhile (``listen``)."""
        with contextlib.ExitStack() as self._stack:
            try:
                for function in functions:
                    self.listen(function)
                yield
            finally:
                self._stack = None

    def listen(self, function: types.FunctionType) -> None:
        """Let a function tell, if it runs; and answer it."""
        if self._stack is None:
            return
        names = {"type"} if asks_types(function) else set[str]()
        if asks_identities(function) and (self.matter or self._are_keys()):
            self._telling.add(original(function.__code__))
            names.add("id")
        if names:
            self._stack.enter_context(converting_symbols([(function, frozenset(names))]))

    def note(self, of: Any) -> None:
        """It was asked which object one is."""
        self._asked[id(of)] = of

    def asked(self, ran: Iterable[types.CodeType]) -> set[int] | None:
        """Which; None where code that ran may have asked and told nobody."""
        if any("id" in mentions(code).globals and code not in self._telling for code in ran):
            return None
        return set(self._asked)


_ADDRESS = 1 << 32
"""Numbers that are larger are taken for those that ``id`` gives."""


def keyed_by_tensors(containers: Iterable[Met], by_address: bool) -> str | None:
    """The name of a dict or a set that was met, and holds tensors by which objects they are (``by_address``: by their
    ``id``)."""
    for met in containers:
        if isinstance(met.container, (dict, set, frozenset)):
            keys = [k for key in met.before for k in (key if type(key) is tuple else (key,))]
            if any((type(k) is int and k >= _ADDRESS) if by_address else isinstance(k, Tensor) for k in keys):
                return met.name
    return None
