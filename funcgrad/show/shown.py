"""What shows itself: as plain text (golden tests), as HTML (notebooks), and in one line."""

from __future__ import annotations

from typing import TypeVar

from .html import as_html
from .parts import Doc
from .text import WIDTH, as_text, elided


class Shown:
    """Mixin of every stage: ``doc()`` says what it looks like, ``str()`` and notebooks draw it; ``repr()`` is its
    ``headline()``."""

    __slots__ = ()

    def doc(self) -> Doc:
        raise NotImplementedError(f"{type(self).__name__} does not say what it looks like")

    def headline(self) -> str:
        """What it is, in a line; of a stage whose ``doc()`` takes long, without it."""
        return self.doc().title

    def __str__(self) -> str:
        return as_text(self.doc())

    def __repr__(self) -> str:
        return f"<{elided(' '.join(self.headline().split()), WIDTH - 2)}>"

    def _repr_html_(self) -> str:
        return as_html(self.doc())


Stage = TypeVar("Stage", bound=Shown)


class Several(tuple[Stage, ...], Shown):
    """A tuple of stages that shows itself as each of them does."""

    __slots__ = ()

    def headline(self) -> str:
        return f"tuple of {len(self)}: {'; '.join(stage.headline() for stage in self)}" if self else "no stages"

    def doc(self) -> Doc:
        return (
            self[0].doc()
            if len(self) == 1
            else Doc(f"{len(self) or 'no'} stages", tuple(stage.doc() for stage in self))
        )

    __str__, __repr__ = Shown.__str__, Shown.__repr__  # those of a tuple come first otherwise
