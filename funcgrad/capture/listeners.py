"""Which Python in a backward pass hears of it where a gradient is not there: it is given None."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import define, field
from torch import Tensor

from ..autograd_state import has_history, nodes_from
from ..torch_private.autograd import custom_function_of, names_in


@define(eq=False)
class Listeners:
    """That of one run, by the nodes of autograd that call it."""

    _hooked: set[Any] = field(factory=set)
    _asked_for: set[Any] = field(factory=set)
    _gives_zeros: dict[Any, bool] = field(factory=dict)
    """What custom functions said, by their contexts: these are their nodes. PyTorch keeps it where nobody can ask."""

    _unpacks: bool = False
    """Whether saved tensors may be unpacked by the caller's Python."""

    def set_materialize_grads(self, said: Callable[..., None], context: Any, value: bool) -> None:
        """Note it, and go on."""
        self._gives_zeros[context] = value
        said(context, value)

    def set_saved_hooks(self, sets: Callable[..., Any], hooks: Any) -> Any:
        """Note it, and go on."""
        self._unpacks = True
        return sets(hooks)

    @property
    def may_run(self) -> bool:
        """Whether Python may run at nodes of PyTorch's own."""
        return self._unpacks or bool(self._hooked or self._asked_for)

    def is_hooked(self, tensor: Tensor) -> None:
        """A hook on a tensor is called where another result of the node that computed it has a gradient."""
        if has_history(tensor):
            self._hooked.add(tensor.grad_fn)

    def may_be_hooked(self, tensor: Tensor) -> None:
        """Who asks for a node may hook it, and each that it leads to (``next_functions``)."""
        if has_history(tensor):
            self._asked_for.add(tensor.grad_fn)

    def materializes(self, node: Any) -> bool:
        """Whether the custom function of a node is given zeros instead."""
        return self._gives_zeros.get(node, "materialize_grads" not in names_in(custom_function_of(node)))

    def hearing(self, nodes: Iterable[Any]) -> list[Any]:
        """Those of some nodes at which Python does."""
        hooked = self._hooked.union(nodes_from(list(self._asked_for)))
        return [node for node in nodes if node in hooked or self._is_told(node)]

    def _is_told(self, node: Any) -> bool:
        function = custom_function_of(node)
        return function is not None and not getattr(function, "is_pure", False) and not self.materializes(node)
