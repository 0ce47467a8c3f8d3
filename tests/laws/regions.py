"""Regions in which backward passes are captured, as sweeps over databases use them."""

from __future__ import annotations

from funcgrad.engine.region import Region, reset

__all__ = ["refusals", "reset"]


def refusals(region: Region) -> str:
    """Why backward passes ran statement by statement; not those in which the caller's Python told for the first time
    what it returns."""
    replayed = (event.why for event in region.events if event.what == "replayed")
    return "; ".join(dict.fromkeys(why for why in replayed if "learnt in a first run" not in why))
