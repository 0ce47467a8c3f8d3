"""What makes a function differ between two runs."""

import queue


def in_turn(*values):
    """One value after the other: kept where nothing watches it, so that two runs do not agree."""
    hidden = queue.SimpleQueue()  # an object made in C
    for value in values:
        hidden.put(value)
    return lambda: hidden.get_nowait()
