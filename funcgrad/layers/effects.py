"""What layers are made of: recipes for values, and the closed list of what may happen to the caller's tensors."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from ..capture.memory import BaseOf
from ..capture.views import HowGiven, Step, View
from ..slots import Final, NewGradient, NewMemory, Onward, Rewritten, Slot
from ..subclasses import HowWritten, Wrapping


@frozen
class CopyBack:
    """``target`` gets what ``source`` holds: tracked by autograd, ``"detached"`` from it, or ``"unversioned"`` (as
    by ``.data``). ``by``: what writes where the program runs at a level: below it, to a tensor that is none of the
    level's, or at that of duals."""

    target: Slot
    source: Final | Rewritten
    how: HowWritten
    is_subclass: bool = False
    to_no_end: bool = False
    """Whether what it holds requires grad though no input does: it depends on a leaf that the function made, which
    nobody else has."""
    by: Literal["copy_", "write_below", "write_dual"] = "copy_"

    def __str__(self) -> str:
        how = ["" if self.how == "plain" else self.how, "requires grad, to no end" if self.to_no_end else ""]
        return f"copy {self.source} into {self.target}" + (f" ({', '.join(filter(None, how))})" if any(how) else "")


@frozen
class Restride:
    """The caller's tensor changes its sizes and strides by ``steps``, in place."""

    target: Slot
    steps: tuple[Step, ...]
    renewed: bool = False
    """Whether it is a view of a base that was written to."""

    @property
    def moves(self) -> bool:
        """Whether autograd counts it as a write."""
        return any(step.method != "detach_" for step in self.steps)

    def __str__(self) -> str:
        return f"{self.target}: {', '.join(step.method for step in self.steps)}"


@frozen
class SetStorage:
    """The caller's tensor looks at other memory from now on."""

    target: Slot
    source: NewMemory
    how: HowGiven = "data"

    def __str__(self) -> str:
        how, _, tracked = self.how.partition(", ")
        given = f"{self.target}.data = {self.source}" if how == "data" else f"{self.target}.{how}({self.source})"
        return f"{given} ({tracked})" if tracked else given


@frozen
class SetGradient:
    """An input, or an output, has another gradient from now on, or none; ``earlier``: it was set while the tensor, or
    the gradient, had other sizes."""

    target: Slot
    source: NewGradient | None
    earlier: bool = False

    def __str__(self) -> str:
        return f"{self.target}.grad = {self.source}"


@frozen
class RetainGrad:
    """An output keeps the gradient that comes to it."""

    target: Slot

    def __str__(self) -> str:
        return f"{self.target}.retain_grad()"


@frozen
class GoOn:
    """A ``.backward()`` goes on through what the caller computed inputs from; the version counters of those
    ``written`` had moved."""

    sources: tuple[Onward, ...]
    keeps_graph: bool
    written: tuple[Slot, ...]
    leaves: tuple[Slot, ...]
    """Those whose gradients the function sets or reads."""

    @property
    def target(self) -> Slot:
        return self.sources[0].of

    def __str__(self) -> str:
        return f"backward from {', '.join(f'{source.of} with {source}' for source in self.sources)}"


@frozen
class RequireGrad:
    """An output becomes a leaf that requires grad; an input, too, or (not ``on``) one that does not."""

    target: Slot
    on: bool = True

    def __str__(self) -> str:
        return f"{self.target}.requires_grad_({'' if self.on else 'False'})"


@frozen
class DeadEnd:
    """An output requires grad though no input does: the function computed it from a leaf it made, which nobody else
    has."""

    target: Slot

    def __str__(self) -> str:
        return f"{self.target}: requires grad, to no end"


@frozen
class MakeParameter:
    """An output becomes an ``nn.Parameter``, as the function made it."""

    target: Slot
    requires_grad: bool

    def __str__(self) -> str:
        return f"{self.target} = Parameter({self.target}, {self.requires_grad})"


@frozen
class MakeInference:
    """An output becomes an inference tensor, as the function made it in inference mode."""

    target: Slot

    def __str__(self) -> str:
        return f"{self.target} = as_inference({self.target})"


@frozen(eq=False)
class SetAttribute:
    """An output gets an attribute that torch does not know."""

    target: Slot
    name: str
    value: object

    def __str__(self) -> str:
        return f"{self.target}.{self.name} = {self.value!r}"


LAST = (RequireGrad, DeadEnd, MakeParameter, MakeInference, SetAttribute, RetainGrad)
"""What is done to outputs when all else is done, in this order for each."""

Effect = (
    CopyBack
    | Restride
    | SetStorage
    | SetGradient
    | GoOn
    | RequireGrad
    | DeadEnd
    | MakeParameter
    | MakeInference
    | SetAttribute
    | RetainGrad
)  # fmt: skip


@frozen
class Drawn:
    """A number drawn from torch's default generator."""

    def __str__(self) -> str:
        return "drawn from the default generator"


@frozen
class InnerOf:
    """An inner tensor of ``of``: the one the attributes ``path`` lead to."""

    of: Slot
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join([str(self.of), *self.path])


@frozen(eq=False)
class Wrapped:
    """A wrapper subclass made of inner tensors."""

    wrapping: Wrapping
    of: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"{self.wrapping.kind.__name__}({', '.join(map(str, self.of))})"


Recipe = BaseOf | View | Drawn | InnerOf | Wrapped
