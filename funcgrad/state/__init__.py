"""Python state: what a function reads and writes besides tensors, as guards and effects.

A trace sees tensors; a program is Python. ``watch`` records, while a function runs, the attributes, items, globals,
cells and lengths it reads; each becomes a *guard* of the program (``guards``), a flat comparison at the place it was
read from. What it wrote is found by comparison with copies, undone, and becomes an *effect* (``effects``) that the
program replays on each call. ``code`` says what a function's bytecode mentions, where no attribute hook hears of a
read.
"""
