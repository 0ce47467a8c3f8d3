"""Folders on disk: where results that outlive a process are kept, and which folders may be trusted."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
import time
from pathlib import Path

from ..errors import CacheTrustError
from ..options import ENVIRONMENT


def require_trusted(folder: Path) -> None:
    """Raises ``CacheTrustError`` where others may write to the folder: what is found there would not be ours."""
    state = folder.stat()
    if not hasattr(os, "getuid"):
        return  # a system without POSIX permissions
    if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheTrustError(
            f"the cache folder {folder} belongs to another user or may be written by others",
            where="FUNCGRAD_CACHE_DIR",
            fix=f"chmod 700 {folder}, name another folder in FUNCGRAD_CACHE_DIR, or set it to off",
        )


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="funcgrad-")


def folder_for(what: str) -> Path:
    """The folder of one kind of results, in the cache folder; in one of this process where nothing is to be kept.
    Raises ``CacheTrustError`` where there can be none, or others may write to it."""
    base = ENVIRONMENT.cache_dir or Path(_temporary().name)
    make_trusted(base)
    folder = base / what
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_trusted(folder: Path) -> None:
    """Make the folder, where it is not there. Raises ``CacheTrustError`` where there can be none, or others may write
    to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CacheTrustError(
            f"the cache folder {folder} cannot be made: {error.strerror}",
            where="FUNCGRAD_CACHE_DIR",
            fix="name another folder in FUNCGRAD_CACHE_DIR, or set it to off",
        ) from error
    require_trusted(folder)


_BOUND = 1 << 30
"""Bytes that one kind of results may take on disk."""

_IN_USE = 3600.0
"""Seconds for which a file that was just made or used is not removed: another process may be about to open it."""


def bound(folder: Path, limit: int = _BOUND) -> None:
    """Remove the files that were not used for the longest time, until the others take at most ``limit`` bytes."""
    with os.scandir(folder) as entries:
        files = [(entry.stat(), entry.path) for entry in entries if entry.is_file()]
    excess = sum(s.st_size for s, _ in files) - limit
    for state, file in sorted(files, key=lambda pair: pair[0].st_mtime):
        if excess <= 0 or time.time() - state.st_mtime < _IN_USE:
            return
        Path(file).unlink(missing_ok=True)
        excess -= state.st_size


def used(file: Path) -> None:
    """Note that a file is used now."""
    with contextlib.suppress(OSError):  # it may lie in a folder that is shared and cannot be written to
        os.utime(file)
