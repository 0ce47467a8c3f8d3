"""Environment variables that a function reads: one by its name, or all there are."""

from __future__ import annotations

import os
from typing import Any

from .guards import Guard
from .hooks import unheard
from .loggers import Loggers
from .places import MISSING, Place


class Environment(Loggers):
    """Hears of environment variables."""

    def environment(self, variables: Any, key: Any) -> None:
        """One was read, of ``os.environ`` or ``os.environb``."""
        place = Place("environ", variables, key, f"{_called(variables)}[{key!r}]")
        with unheard():
            self._hear(place.name)
            if (value := place.read()) is not MISSING:  # else it raises: a key that is no text
                self._guard(Guard.of(place, value))

    def whole_environment(self, variables: Any) -> None:
        """It was asked which there are."""
        held, name = variables._data, _called(variables)
        with unheard():
            self._hear(name)
            self._guard(Guard.contents(held, dict(held), name))


def _called(variables: Any) -> str:
    return "os.environ" if variables is os.environ else "os.environb"
