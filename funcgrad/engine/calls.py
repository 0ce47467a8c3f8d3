"""What the opaque calls of a captured backward pass run: the caller's Python, and sums in ``.grad``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from ..errors import OpaqueCallError
from ..runtime.cotangents import Blank, Hollow
from ..source import Source, compile_function
from ..subclasses import Wrapping, inner_tensors
from ..torch_private.engine import add_to_each
from ..torch_private.tensors import ALONE, holders, is_wrapper_subclass
from .statements import Statement, accumulate
from .tokens import Ref, refs_in

Look = Blank | Hollow
"""How a result of the caller's Python looked."""


def look_of(value: Any) -> Look | None:
    """None for what is no tensor."""
    if not isinstance(value, Tensor):
        return None
    return Hollow.of(value) if is_wrapper_subclass(value) else Blank.of(value)


@frozen(eq=False)
class Accumulate:
    """Add gradients to what leaves have. ``new``: which leaves had none when the program was made; these gradients
    are the call's own. ``taken``: which of those become the leaf's as they are."""

    new: tuple[bool, ...]
    taken: tuple[bool, ...]

    def __call__(self, *values: Tensor) -> None:
        n = len(self.new)
        old, added = [], []
        for variable, grad, is_own, is_taken in zip(values[:n], values[n:], self.new, self.taken, strict=True):
            now = variable.grad
            if now is None or now.is_sparse or now.is_nested:
                accumulate(variable, grad, is_own, is_taken)
            else:
                old.append(now)
                added.append(grad)
        if len(set(map(id, old))) < len(old):  # one leaf twice
            for now, grad in zip(old, added, strict=True):
                now.add_(grad)
        elif old:
            add_to_each(old, added)


@frozen(eq=False)
class Step:
    """What one statement of a block does. ``made``: what its results are called; ``text``: a call, of what is there
    by name and of what the step needs besides; ``needs``."""

    text: str
    made: tuple[str, ...] = ()
    needs: Mapping[str, Any] = {}


def block(
    name: str, steps: Sequence[Step], given: Sequence[str], kept: Sequence[str]
) -> Callable[..., tuple[Any, ...] | None]:
    """Statements of one node of autograd that run the caller's Python, and sums in ``.grad`` between them, one after
    the other: a function of the hooks, of what was packed, of the values of the graph that it reads (``given``), and
    of what only has to be computed before. ``kept``: what of it all is read outside."""
    lines = [f"def {name}({', '.join(('hooks', 'packed', *given))}, *_):"]
    needs: dict[str, Any] = {}
    for i, step in enumerate(steps):
        own = {key: f"{key}{i}" for key in step.needs}
        needs |= {own[key]: value for key, value in step.needs.items()}
        made = f"{', '.join(step.made)}, = " if step.made else ""
        lines.append(f"    {made}{step.text.format(**own)}")
    lines += [f"    return {', '.join(kept)},"] if kept else []
    made_function: Callable[..., tuple[Any, ...] | None] = compile_function(
        Source(name, "python", "\n".join(lines) + "\n", needs)
    )
    return made_function


def calling(
    statement: Statement,
    names: Mapping[Ref, str],
    wanted: Sequence[bool],
    looks: Sequence[Look | None],
    then: Sequence[int | None],
) -> Step:
    """``wanted``: which results are tensors, and not None; ``looks``: how results looked of which nothing else is
    known; ``then``: among the versions when the pass began, those of what it is given as saved."""
    needs: dict[str, Any] = {"run": statement.run}
    made = tuple(names[r] for r in statement.results)
    args = [_text(a, names, needs) for a in statement.args]
    args += [f"then=({''.join('None, ' if i is None else f'hooks[-1][{i}], ' for i in then)})"] if then else []
    text = f"{{run}}({', '.join(args)})"
    if not statement.may_be_none:
        return Step(text, made, needs)

    def checked(found: Sequence[Any]) -> Sequence[Any]:
        for value, want in zip(found, wanted, strict=True):
            if (value is not None) != want:
                raise _other(statement, *("a tensor" if is_one else "None" for is_one in (not want, want)))
        for value, look in zip(found, looks, strict=False):
            if look is not None and tuple(value.shape) != look.shape:
                raise _other(statement, f"a tensor of shape {list(value.shape)}", f"one of shape {list(look.shape)}")
        return found

    return Step(f"{{checked}}({text})", made, {**needs, "checked": checked})


def _other(statement: Statement, now: str, before: str) -> OpaqueCallError:
    return OpaqueCallError(
        f"{statement.name} gave {now}, and gave {before} before",
        where=statement.name,
        fix="run this backward pass outside of fg.compiled_autograd()",
    )


def wrapping(name: str, made: Wrapping, inner: Sequence[str]) -> Step:
    """The construction of a wrapper subclass of inner tensors that are there."""
    return Step(f"({{build}}(iter(({', '.join(inner)},))),)", (name,), {"build": made.build})


def unwrapping(statement: Statement, name: str, made: Wrapping | None, inner: Sequence[str]) -> Step:
    """The inner tensors of what a statement has made, which is made as it was before."""

    def parts(value: Tensor) -> list[Tensor]:
        own = Wrapping.of(value)
        if own is not made and (own is None or not own.fits(made)):
            raise _other(statement, *("a plain tensor" if w is None else f"a {w}" for w in (own, made)))
        return inner_tensors(value)

    return Step(f"{{parts}}({name})", tuple(inner), {"parts": parts})


def storing(variable: str, grad: str, is_own: bool, is_taken: bool, is_free: bool) -> Step:
    """A sum in ``.grad``; see ``Accumulate`` for ``is_own`` and ``is_taken``. ``is_free``: the caller's Python gave
    the gradient, and no other statement reads it: where nobody else has it, it becomes the leaf's as it is, as in
    eager PyTorch."""
    if is_free:  # asked while it is known by one name, and is no argument
        text = f"is_own = {{holders}}({grad}) == {{alone}}; {{add}}({variable}, {grad}, is_own)"
        return Step(text, needs={"add": accumulate, "holders": holders, "alone": ALONE})
    return Step(f"{{add}}({variable}, {grad}, {is_own}, {is_taken})", needs={"add": accumulate})


def _text(value: Any, names: Mapping[Ref, str], needs: dict[str, Any]) -> str:
    """A value that has ``Ref``s in it, by the names of what there is; what else it has goes to ``needs``."""
    if isinstance(value, Ref):
        return f"{value.of}[{value.at}]" if value.of in ("hooks", "packed") else names[value]
    if type(value) in (list, tuple) and any(True for _ in refs_in(value)):
        inside = "".join(f"{_text(v, names, needs)}, " for v in value)
        return f"[{inside}]" if type(value) is list else f"({inside})"
    needs[f"value{len(needs)}_"] = value
    return f"{{value{len(needs) - 1}_}}"
