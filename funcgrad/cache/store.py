"""What outlives a process: results of slow, deterministic stages, found again by the digest of what they were computed
from.

A trace has to run in every process (only running a function says what it does), but what follows from its graph need
not be computed twice. Entries are JSON: nothing read from disk is executed. The folder is ``FUNCGRAD_CACHE_DIR`` or the
user's cache directory; it must belong to the user and be closed to other writers, else ``CacheTrustError``.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from attrs import frozen
from filelock import FileLock

from .folders import make_trusted, require_trusted


def digest(*parts: str) -> str:
    """A name for what was computed from these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@frozen
class Store:
    """A folder of JSON entries. ``folder=None`` remembers nothing. Processes may share a folder."""

    folder: Path | None

    def get(self, name: str) -> Any:
        """The entry, or None. A damaged entry counts as none: it is computed and written again."""
        if self.folder is None or not self.folder.exists():
            return None
        require_trusted(self.folder)
        try:
            return json.loads((self.folder / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def put(self, name: str, value: Any) -> None:
        """Write an entry, whole or not at all."""
        if self.folder is None:
            return
        make_trusted(self.folder)
        with FileLock(self.folder / "lock"):
            temporary = self.folder / f"{name}.{os.getpid()}.tmp"
            temporary.write_text(json.dumps(value))
            temporary.replace(self.folder / f"{name}.json")
