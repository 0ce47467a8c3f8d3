"""What makes a function differ between two runs."""

import threading


def in_turn(*values):
    """One value after the other: kept where nothing watches it, so that two runs do not agree."""
    hidden = threading.local()

    def take():
        hidden.n = getattr(hidden, "n", -1) + 1
        return values[hidden.n]

    return take
