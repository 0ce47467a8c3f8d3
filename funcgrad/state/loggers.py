"""Loggers that a function asks what they let pass, or sets up: no place of the function's leads there, so they tell."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from .guards import Guard
from .hooks import unheard
from .impure import levels_of
from .places import Place
from .settings import Setting
from .unwatched import Unwatched

_levels: weakref.WeakKeyDictionary[logging.Logger, Setting] = weakref.WeakKeyDictionary()


def level_of(logger: logging.Logger) -> Setting:
    """From which level on a logger lets records pass: it is asked for where they are kept, and set for all loggers
    below it, too."""
    of = weakref.ref(logger)
    return _levels.setdefault(
        logger,
        Setting(f"logging.getLogger({logger.name!r}).level", lambda: of().level, lambda level: of().setLevel(level)),  # type: ignore[union-attr]
    )


class Loggers(Unwatched):
    """Hears of loggers."""

    def asked_level(self, logger: logging.Logger) -> None:
        """It was asked what a logger lets pass."""
        with unheard():
            for place in levels_of(logger, f"logging.getLogger({logger.name!r})"):
                self._guard(Guard.of_library(place, place.read()))

    def asked_for(self, manager: logging.Manager, name: Any) -> None:
        """A logger is about to be asked for."""
        with unheard():
            self.see(manager.loggerDict.get(name), f"logging.getLogger({name!r})")

    def sets_level(self, logger: logging.Logger) -> None:
        """What a logger lets pass is about to be set: to what it is already, it may be."""
        with unheard():
            self._setting(level_of(logger))

    def sets_up(self, logger: logging.Filterer, name: str) -> None:
        """What a logger does with records is about to be set."""
        with unheard():
            place = Place("item", vars(logger), name, f"{type(logger).__name__}.{name}")
            if isinstance(held := place.read(), list):
                self._container(held, place.name)
                self._guard(Guard.contents(held, list(held), place.name))
            else:
                self.slots.setdefault((id(logger), name), (place, held))
                self._guard(Guard.of(place, held))
