"""Code that loads other names from among the globals: all else of it is as it was, its lines too."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from .uses import GLOBAL, without_padding


@frozen(eq=False)
class _Original:
    """The last constant of code that was renamed: what it was."""

    code: types.CodeType


def original(code: Any) -> Any:
    """The code that a function has when no trace has renamed what it loads; anything else is itself."""
    if isinstance(code, types.CodeType) and code.co_consts and isinstance(code.co_consts[-1], _Original):
        return code.co_consts[-1].code
    return code


def renamed(
    code: types.CodeType, names: Mapping[str, str], is_meant: Callable[[Sequence[dis.Instruction], int], bool]
) -> types.CodeType:
    """The same code, nested code included, which loads globals by other names, where they are meant; attributes keep
    theirs. A load whose instruction has no room for the number of the new name stays as it is."""
    consts = tuple(renamed(c, names, is_meant) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    text, new = bytearray(code.co_code), [*code.co_names]
    steps = without_padding(code) if not names.keys().isdisjoint(new) else ()
    for place, step in enumerate(steps):
        if step.opname in GLOBAL and step.argval in names and step.arg is not None and is_meant(steps, place):
            name = names[step.argval]
            at = new.index(name) if name in new else len(new)
            # the lowest bit says what else is loaded
            arg = at << 1 | step.arg & 1 if step.opname == "LOAD_GLOBAL" else at
            if _put_argument(text, step.offset, arg) and at == len(new):
                new.append(name)
    if len(new) == len(code.co_names) and all(was is now for was, now in zip(code.co_consts, consts, strict=True)):
        return code
    return code.replace(co_code=bytes(text), co_names=tuple(new), co_consts=(*consts, _Original(code)))


def _put_argument(text: bytearray, offset: int, arg: int) -> bool:
    """Give another argument to the instruction at an offset; whether it fits."""
    places = [offset]
    while places[-1] and text[places[-1] - 2] == dis.opmap["EXTENDED_ARG"]:
        places.append(places[-1] - 2)
    if arg >= 1 << 8 * len(places):
        return False
    for place in places:
        text[place + 1] = arg & 0xFF
        arg >>= 8
    return True
