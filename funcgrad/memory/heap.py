"""What the C library does with memory that is free again."""

from __future__ import annotations

import functools

import torch

from ..torch_private.tensors import empty_cpu

_LARGEST = 2**25 - 2**16
"""Bytes of the largest block from which glibc learns (``DEFAULT_MMAP_THRESHOLD_MAX``), with room to align it."""


@functools.cache
def keep_what_is_free() -> None:
    """Once in a process: glibc keeps up to 64 MiB that are free instead of giving them back to the system.

    It gives back what is free at the end of the heap if that is more than twice as large as the largest block it was
    ever returned, by which it learns what a program goes on asking for (``mallopt(3)``, "dynamic mmap threshold"). A
    gradient that frees 20 MiB in blocks of 2 MiB would get its pages anew from the system in every call: some 0.3 ms a
    MiB, a fifth of the time of a transformer. So a large block is returned, of which no page was touched. Other C
    libraries take no notice.
    """
    empty_cpu((_LARGEST,), (1,), torch.uint8)
