"""The body of control flow that runs, and the search for what one closes over, as the recorder hears of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field
from torch import Tensor

from .. import refusals
from ..errors import UnsupportedTensorError
from ..graphs import tensors_in, type_text
from ..state.lines import user_line
from ..subclasses import inner_tensors, is_traced
from ..torch_private.fakes import fake_below
from ..torch_private.functional import FunctionalTensor, from_functional, mutation_count
from ..torch_private.tensors import storage_id, unwrap_transform


@define(eq=False)
class Search:
    """A body runs to see which tensors it uses that are neither its operands nor made in it. What is ``made`` in it
    are fakes by identity, and memory: a view of that may be taken anew as one asks."""

    made: dict[int, Any] = field(factory=dict)
    memory: set[int] = field(factory=set)
    asks: bool = False
    found: dict[int, tuple[Tensor, Tensor, int]] = field(factory=dict)
    """By identity: as the body knows it, as it is computed with (a view may be taken anew), and how often it was
    written to before."""

    def met(self, known: Tensor, tensor: Tensor) -> None:
        bottom = unwrap_transform(tensor)
        if is_traced(bottom) and not isinstance(bottom, FunctionalTensor):
            raise no_subclass(bottom)
        self.asks = True
        fake = fake_below(bottom)
        self.asks = False
        if fake is not None and id(fake) not in self.made and storage_id(fake) not in self.memory:
            self.found.setdefault(id(known), (known, tensor, mutation_count(bottom)))


Given = Mapping[int, Tensor]
"""What a body is given for each tensor that it closes over, by identity."""


class Bodies:
    """The body that runs now, and the searches for what bodies close over."""

    def __init__(self) -> None:
        self.given: tuple[Given, ...] = ()
        """By the bodies around the one that runs as well, the outermost first: what one is given the next may close
        over."""
        self.searches: list[Search] = []

    def met(self, known: Tensor, tensor: Tensor) -> Tensor:
        """What a call is made with for an argument that the function knows, and that is this tensor where no body is
        given another one."""
        own = known
        for given in self.given:
            own = given.get(id(own), own)
        if own is not known:
            tensor = own
        for search in self.searches:
            search.met(own, tensor)
        return tensor

    def made(self, args: Sequence[Any], out: Any) -> None:
        """Told of what each operator makes."""
        for search in self.searches:
            if not search.asks:
                search.made.update((id(t), t) for t in tensors_in(out))
                given = {storage_id(t) for arg in args for t in tensors_in(arg)}
                search.memory |= {memory for t in tensors_in(out) if (memory := storage_id(t)) not in given}

    def entered(self, tensor: Tensor) -> None:
        """Told of a tensor that stands for a real one from now on, whatever operators made it."""
        for search in self.searches:
            for fake in map(from_functional, inner_tensors(tensor)):
                search.made.pop(id(fake), None)
                search.memory.discard(storage_id(fake))


def no_subclass(tensor: Tensor) -> UnsupportedTensorError:
    """For a wrapper subclass where control flow takes plain tensors."""
    return refusals.SUBCLASS_IN_CONTROL_FLOW(type_text(tensor), where=user_line())
