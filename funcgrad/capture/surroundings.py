"""What a trace must leave as it was: the containers and modules around a function, where it may store a tensor of the trace.

A function that stores a tensor (``self.last = y``, ``state["h"] = h``, ``log.append(loss)``) stores a traced one while it is
traced, which is of no use to anyone. Each run looks at what can be reached from the function and the modules it calls;
what holds a tensor of the trace afterwards gets back what it held. Where that was the very tensor the stand-in stands for
(``self.count += 1``), nothing is lost; any other store is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..errors import MutationError
from ..graphs import type_text
from ..subclasses import is_traced
from .origins import reachable

if TYPE_CHECKING:
    from .trace import Trace


_COUNTED = (bool, int, float, str, type(None))
"""What a function may count or note on its way: put back after the dry run, so that the second run starts where the first did."""


_WEIGHTS = "_flat_weights"
"""Where torch's recurrent modules keep a list of their weights, a new one whenever one is swapped (``functional_call``)."""


class Surroundings:
    """The dicts and lists that were seen, each with a copy of what it held and the name a reader knows it by."""

    def __init__(self, root: Callable[..., Any]) -> None:
        self._seen: dict[int, tuple[Any, Any, str]] = {}
        self._modules: dict[int, torch.nn.Module] = {}
        for value, name in reachable(root):
            self.see(value, name)

    def see(self, value: Any, name: str = "") -> None:
        """Remember what a container, a module or a plain object holds, if it is not known yet."""
        if isinstance(value, torch.nn.Module):
            for table in ("_parameters", "_buffers", "_modules"):
                self._remember(value.__dict__[table], f"{name}.")
        if isinstance(value, (dict, list)):
            self._remember(value, name)
        elif isinstance(value, torch.nn.Module) or _is_plain_object(value):
            self._remember(value.__dict__, f"{name}.")

    def _remember(self, container: Any, name: str) -> None:
        self._seen.setdefault(id(container), (container, dict(container) if isinstance(container, dict) else list(container), name))

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """The modules that were called, each once."""
        return tuple(self._modules.values())

    def _note(self, module: torch.nn.Module, args: Any) -> None:
        self._modules.setdefault(id(module), module)
        self.see(module, type(module).__name__)

    @contextlib.contextmanager
    def kept(self, trace: Trace, wholly: bool) -> Iterator[None]:
        """Inside, the function runs; afterwards nothing holds a tensor of the trace, and (``wholly``) counters are as before."""
        hook = torch.nn.modules.module.register_module_forward_pre_hook(self._note)
        try:
            yield
        except BaseException:
            with contextlib.suppress(MutationError):  # what happened first is told
                self._restore(trace, wholly)
            raise
        else:
            self._restore(trace, wholly)
        finally:
            hook.remove()

    def _restore(self, trace: Trace, wholly: bool) -> None:
        self.restore({id(lifted.functional): lifted.real for lifted in trace.captured.values()}, wholly)

    def _holds_traced(self, value: Any) -> bool:
        """Whether it is a tensor of the trace, or a new container of one (what an optimizer keeps of a parameter)."""
        if isinstance(value, (dict, list, tuple)) and id(value) not in self._seen:
            return any(map(self._holds_traced, value.values() if isinstance(value, dict) else value))
        return is_traced(value)

    def restore(self, real_of: Mapping[int, Any], wholly: bool) -> None:
        """Give back what is held no more. ``real_of`` maps the identity of a stand-in to the real tensor.

        Raises ``MutationError`` for a tensor of the trace stored where another one, or none, was.
        """
        stored: list[str] = []
        for container, before, name in self._seen.values():
            items = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
            traced = [(key, value) for key, value in items if self._holds_traced(value)]
            for key, value in traced:
                had = before.get(key) if isinstance(before, dict) else (before[key] if key < len(before) else None)
                if (had is None or real_of.get(id(value)) is not had) and key != _WEIGHTS:
                    shown = key if not isinstance(key, torch.Tensor) else type_text(real_of.get(id(key), key))
                    stored.append(f"{name}{shown}" if name.endswith(".") else f"{name}[{shown!r}]")
            if isinstance(container, list):
                container[:] = before if traced else container
                continue
            counted = [(k, v) for k, v in items if wholly and type(v) in _COUNTED and before.get(k) is not v]
            for key, _ in (*traced, *counted):
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]
        if stored:
            raise MutationError(
                f"the function stores a tensor it computes in {', '.join(sorted(stored))}",
                where=stored[0],
                fix="return it (has_aux=True for a gradient), or write it in place into a tensor that is there: state.copy_(new)",
            )


def _is_plain_object(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (type, torch.Tensor)) and not callable(value)
