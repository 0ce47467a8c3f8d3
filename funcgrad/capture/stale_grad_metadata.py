"""What autograd goes by, and is not told of: sizes changed under ``no_grad`` (``x.t_()``), other memory of other sizes
(``x.data = y``): it goes on with a gradient of other sizes. And ``x.data = y`` of any sizes: what was saved of ``x``
for backward is ``y`` from then on.

In eager PyTorch such a backward fails, or is wrong without a word where the matrix is square. A program is refused that
would need one. No such tensor is a view, as autograd finds its history when asked for, nor a leaf nobody has used so
far; nor is it one that got more dimensions of size one in front, which a gradient may have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import refusals
from ..autograd_state import family_of, has_history, is_leaf, nodes_below, version_of
from ..errors import MutationError
from ..graphs import tensors_in, type_text
from ..inside import having
from ..state.lines import user_line
from ..torch_private.autograd import saves_tensors


class Forgotten:
    """What was used so that a gradient may come back to it, and what must not be any more, in the dry run."""

    def __init__(self) -> None:
        self._used: dict[int, tuple[Tensor, frozenset[Any]]] = {}
        """Each with the nodes of autograd that may have saved it."""
        self._handed: set[int] = set()
        """What a custom ``autograd.Function`` may have saved."""
        self._errors: dict[int, MutationError] = {}
        self._outdated: dict[Any, MutationError] = {}
        """The nodes that have saved what is another value since, or get a gradient of other sizes than the history
        behind them."""
        self._parted: list[tuple[Tensor, Tensor, int, MutationError]] = []
        """What was given other memory than its views have, or what it is a view of."""
        self._left_behind: dict[int, tuple[Tensor, MutationError]] = {}
        self._severed: list[tuple[Tensor, Tensor, MutationError]] = []
        """Of what family nothing can be differentiated since one of it was ``set_``, and that one."""

    def used(self, args: Iterable[Any], out: Any) -> None:
        """Write down that ``out`` was computed from ``args``. Raises ``MutationError`` if one that was forgotten is
        written to."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(out)):
            nodes = list(_saving([*tensors_in(out)], [t for a in args for t in tensors_in(a)]))
            made = [t for t in tensors_in(out) if has_history(t)]
            for tensor in (t for a in args for t in tensors_in(a)):
                if any(t is tensor for t in tensors_in(out)):
                    self.require_known(tensor)
                if id(tensor) in self._errors:
                    self._outdated |= {t.grad_fn: self._errors[id(tensor)] for t in made}
                self._use(tensor, nodes)

    def _use(self, tensor: Tensor, nodes: Iterable[Any] = ()) -> None:
        _, before = self._used.get(id(tensor), (tensor, frozenset()))
        self._used[id(tensor)] = tensor, before.union(nodes)

    def handed_to_python(self, operand: Tensor) -> None:
        """Write down that a custom ``autograd.Function`` got a tensor, which it may look at in backward."""
        self.used([operand], operand)
        if torch.is_grad_enabled():
            self._use(operand)
            self._handed.add(id(operand))

    def unheard(self) -> contextlib.AbstractContextManager[None]:
        """What is used inside, the trace itself uses."""
        return having(self, _used=dict(self._used))

    def is_used(self, known: Callable[[Tensor], bool]) -> bool:
        """Whether a gradient may come back to what was computed of a tensor that is ``known``."""
        return any(known(tensor) for tensor, _ in self._used.values())

    def is_saved(self, known: Callable[[Tensor], bool]) -> bool:
        """Whether a tensor that is ``known`` may be read in backward."""
        return any(known(t) for t, nodes in self._used.values() if nodes or id(t) in self._handed)

    def given(self, known: Callable[[Tensor], bool], what: str) -> None:
        """What was ``known`` as one tensor is given other memory (``x.data = y``), unheard of by what has saved it."""
        error = refusals.MEMORY_AFTER_USE(what, where=user_line())
        for tensor, nodes in self._used.values():
            self._outdated |= dict.fromkeys(nodes if known(tensor) else (), error)

    def parted(self, tensor: Tensor, by: Tensor, version: int, what: str) -> None:
        """``by`` stands for ``tensor``, a view or something looked at, and has other memory: to autograd, they still
        share one history, which it finds again by how it lies in memory, if that was written to since the
        ``version``."""
        error = refusals.MEMORY_AND_WRITES(what, where=user_line())
        self._parted.append((tensor, by, version, error))

    def require_apart(self) -> None:
        """Raises ``MutationError`` where something was written to since that shares a history, and no memory, with
        something else."""
        for tensor, by, version, error in self._parted:
            tracked = by.requires_grad or family_of(tensor).requires_grad
            if tracked and max(version_of(tensor), version_of(by)) != version:
                raise error

    def severed(self, tensor: Tensor, what: str) -> None:
        """Nothing can be differentiated from now on of the family of ``tensor``, which is ``set_``, and autograd
        tracks that."""
        error = refusals.HISTORY_REUSED(what, where=user_line())
        self._severed.append((family_of(tensor), tensor, error))

    def left_behind(self, views: Iterable[Tensor], what: str) -> None:
        """``views`` of what has grown (``x.resize_(n)``) are not to be used any more: they look at memory it has no
        more."""
        error = refusals.OTHER_MEMORY(what, "uses a view of it that it took before", where=user_line())
        self._left_behind |= {id(view): (view, error) for view in views}

    def require_whole(self, values: Iterable[Any]) -> None:
        """Raises ``MutationError`` for such a view, and for a tensor of a family that is severed."""
        for tensor in (t for value in values for t in tensors_in(value)) if self._left_behind else ():
            if id(tensor) in self._left_behind:
                raise self._left_behind[id(tensor)][1]
        for family, tensor, error in self._severed:
            if any(t is not tensor and family_of(t) is family for value in values for t in tensors_in(value)):
                raise error

    def forbidden(self, by: Tensor) -> None:
        """``by`` stands for a view that autograd forbids to use, over other memory: no result may be one."""
        self._errors[id(by)] = refusals.MEMORY_OF_STALE_VIEW(where=user_line())

    def misfits(self, by: Tensor, what: str) -> None:
        """``by`` stands for what has a history of other sizes, or of another dtype."""
        self._outdated[by.grad_fn] = refusals.MEMORY_OF_OTHER_KIND(what, type_text(by), where=user_line())

    def require_saved(self, roots: Iterable[Any]) -> None:
        """Raises ``MutationError`` where a backward pass from ``roots`` would come to such a node."""
        found = nodes_below([t for t in roots if isinstance(t, Tensor) and has_history(t)]) if self._outdated else ()
        for node in found:
            if node in self._outdated:
                raise self._outdated[node]

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor's history is of other sizes than it has."""
        return id(tensor) in self._errors

    def require_known(self, tensor: Tensor) -> None:
        """Raises ``MutationError`` where autograd would go on with a gradient of other sizes than the tensor's."""
        if id(tensor) in self._errors:
            raise self._errors[id(tensor)]

    def restrided(
        self, func: Any, real: Tensor, own: Tensor, tensor: Tensor, by: Tensor, views: Callable[[], Iterable[Tensor]]
    ) -> None:
        """``tensor``, which is what ``own`` looks like, looks like ``by`` from now on; ``real`` is what that stands
        for.

        Autograd finds the history of its ``views`` again when asked for: it goes by the sizes that their base has then.
        """
        if torch.is_grad_enabled():
            self.used([tensor], by)
            return
        more = by.dim() - tensor.dim()
        fits = more >= 0 and by.shape == (1,) * more + tuple(tensor.shape) and by.stride()[more:] == tensor.stride()
        used = real.requires_grad and is_leaf(real) and self._used.keys() & {id(own), id(tensor)}
        computed = not real._is_view() and own.requires_grad and has_history(own)
        error = self._errors.get(id(tensor))
        if error is None and (used or (computed and not fits)):
            error = refusals.RESTRIDED_AFTER_USE(type_text(own), func.__name__, where=user_line())
        if error is not None:
            self._errors |= dict.fromkeys([id(by), *(id(view) for view in views() if has_history(view))], error)
        if used and own._is_view():  # what was computed from it is still there
            self.require_known(by)
        elif used and error is not None:
            self._outdated[get_gradient_edge(own).node] = error


def _saving(outs: Sequence[Tensor], args: Sequence[Tensor]) -> Iterator[Any]:
    """The nodes of autograd between what a call returned and what it was given, but for those that save no tensor
    (of views, of sums)."""
    before = {t.grad_fn for t in args if has_history(t) and not any(t is out for out in outs)}
    pending: list[Any] = [t.grad_fn for t in outs if has_history(t)]
    seen = before.union(pending)
    while pending:
        node = pending.pop()
        if saves_tensors(node):
            yield node
        below = [n for n, _ in getattr(node, "next_functions", ()) if n is not None and n not in seen]
        seen |= {*below}
        pending += [n for n in below if not hasattr(n, "variable")]
