"""What a dry run knows from the start, of the runs before it, and how it says that it should have known more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Known:
    """What a dry run knows from the start."""

    tensors: tuple[Tensor, ...] = ()
    """Captured tensors that were met where no stand-in can be made any more: inside a torch.func transform, or when one
    over the same memory is in use."""
    themselves: tuple[Tensor, ...] = ()
    """Arguments that are given to the function as they are, since Python state holds them, too, and code compares
    objects."""
    around: Mapping[int, int] = {}
    """How many elements of memory are needed around some inputs, by identity."""
    hooks_write: bool = False
    """Whether a hook that a backward pass runs writes to Python state: hooks are opaque."""

    def __or__(self, more: Known) -> Known:
        return Known(
            (*self.tensors, *more.tensors), (*self.themselves, *more.themselves), {**self.around, **more.around},
            self.hooks_write or more.hooks_write,
        )  # fmt: skip


class Restart(BaseException):
    """A signal that the function must not catch, and no error: a dry run begins anew, knowing ``more``, ``after`` what
    must not happen in a trace."""

    def __init__(self, more: Known = Known(), after: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.more, self.after = more, after
