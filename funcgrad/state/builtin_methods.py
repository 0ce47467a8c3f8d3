"""Methods of builtin containers, whatever a subclass makes of them: what is written is what such a container holds in
the end, and what the subclass's own code has done besides is written apart."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

_KINDS = (OrderedDict, dict, list, set, deque)


def overridden(container: Any, name: str) -> Callable[..., Any] | None:
    """The builtin's method where the class of a container overrides it."""
    kind = next((kind for kind in _KINDS if isinstance(container, kind)), None)
    own = getattr(kind, name, None)
    return None if own is None or getattr(type(container), name) is own else own


def call(container: Any, name: str, *args: Any) -> Any:
    """What the builtin's method does."""
    own = overridden(container, name)
    return getattr(container, name)(*args) if own is None else own(container, *args)


def call_text(container: Any, name: str, arguments: str, constant: Callable[[Any], str]) -> str:
    """Python for that; ``constant`` names objects."""
    own = overridden(container, name)
    if own is None:
        return f"{constant(container)}.{name}({arguments})"
    return f"{constant(own)}({', '.join([constant(container), *([arguments] if arguments else [])])})"
