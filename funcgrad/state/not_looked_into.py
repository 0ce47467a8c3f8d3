"""Objects into which nobody looks, and what is told of them."""

from __future__ import annotations

import ctypes
import decimal
import weakref

import numpy as np

from .names import is_library

OF_ATTRIBUTES = {"__getattribute__", "__setattr__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"}
"""Special methods that run without being mentioned: for each attribute, and where objects are copied. Those of
installed packages read nothing that changes."""


WEAK = (
    "reads {}, a weak reference: what it refers to lives as long as what was compiled. Let it refer to what lives "
    "longer, or pass that as an argument"
)
WRITES = (
    "writes to a stream by {}, which was taken from it: done while the function is traced, not on each call. Print, or "
    "ask the stream for it inside (sys.stdout.write)"
)


HOLD_STATE = (
    "_blake2", "_bz2", "_csv", "_hashlib", "_lzma", "_md5", "_pickle", "_random", "_sha1", "_sha2", "_sha256", "_sha3",
    "_sha512", "_sqlite3", "_thread", "mmap", "sqlite3", "xml.etree.ElementTree", "zlib",
)  # fmt: skip
"""Modules in C whose objects change, and say nothing of it."""


def is_inert(kind: type) -> bool:
    """C types that hold no state a function could read, or none that changes."""
    return is_library(kind) and kind.__module__ not in HOLD_STATE


CLOSED = ("contextlib", "funcgrad", "logging", "pathlib", "re", "threading", "_thread")
"""Modules into whose objects nobody looks: they hold none of the caller's state, or say themselves what they do."""
NOT_WATCHED = (ctypes._SimpleCData.__mro__[1], np.void, weakref.finalize, decimal.Context)
"""Memory of C, by the class of all that ``ctypes`` makes; rows of arrays that have fields; finalizers, of which one
table is that of all; contexts in which numbers of ``decimal`` are computed with by name."""
