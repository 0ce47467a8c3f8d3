"""Folders on disk: where results that outlive a process are kept, and which folders may be trusted."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

from .errors import CacheTrustError
from .options import ENVIRONMENT


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
    """The folder of one kind of results, in the cache folder; in one of this process where nothing is to be kept."""
    base = ENVIRONMENT.cache_dir or Path(_temporary().name)
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_trusted(base)
    folder = base / what
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
