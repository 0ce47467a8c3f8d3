"""Files, processes and the network. A file that is read is guarded: another version of it is another program. What is
done with files, processes and sockets happens while a function is traced, and whoever watches is told to warn of it."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from ..inside import OfProcess
from .hooks import Listener, current_listener, unheard
from .lines import line_of
from .names import LIBRARIES, package
from .settings import Setting

_CHANGES = "the function reads {} ({}): what it finds there is as it was when it was traced"
_ACTS = "the function {} ({}): that is done when it is traced, not on each call"
_OF_PATHS = {
    "os.listdir": "", "os.scandir": "",
    "os.remove": "removes", "os.rmdir": "removes", "os.rename": "renames", "os.mkdir": "makes", "os.truncate": "cuts",
}  # fmt: skip
_OTHER = {
    "subprocess.Popen": "starts a process", "os.system": "starts a process", "os.posix_spawn": "starts a process",
    "os.fork": "starts a process", "socket.connect": "connects to a socket", "socket.bind": "binds a socket",
}  # fmt: skip
"""What Python tells its audit hooks: what is done with a path (nothing: it is read), and what else is done."""
_OTHERS = {
    "funcgrad", "importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "pkgutil", "linecache",
    "inspect", "tokenize", "traceback", "warnings", "ctypes",
}  # fmt: skip
"""Who looks into files for reasons of its own: imports, and what shows the source of code."""


_OF_KERNEL = tuple(f"{os.sep}{name}{os.sep}" for name in ("proc", "sys", "dev"))
"""Where files have no versions."""
_stat = os.stat
_add_for_good = functools.cache(sys.addaudithook)
"""Nobody can take one away."""


@OfProcess
def hearing_of_files() -> Iterator[None]:
    """Inside, whoever listens (``hooks.listening``) is told of files, processes and sockets that code uses."""
    _add_for_good(_audit)
    if os.stat is _stat:
        os.stat = _asked_for_files
    yield
    if os.stat is _asked_for_files:
        os.stat = _stat


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if (event == "open" or event in _OF_PATHS or event in _OTHER) and (listener := current_listener()) is not None:
        with unheard():
            if event in _OTHER:
                does, paths = _OTHER[event], ()
            else:
                writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
                does, paths = "writes" if writes else _OF_PATHS.get(event, ""), arguments[:1]
            _tell(listener, does, paths, sys._getframe(1))


@functools.wraps(_stat)
def _asked_for_files(path: Any, *args: Any, **keywords: Any) -> Any:
    """``os.stat``, of which no audit hook hears: ``os.path.exists`` and the like ask it."""
    if (listener := current_listener()) is not None:
        with unheard():
            _tell(listener, "", (path,), sys._getframe(1))
    return _stat(path, *args, **keywords)


def version_of(path: str) -> Setting:
    """What is another when a file, or what a directory lists, is another."""
    return Setting(f"file {path}", functools.partial(_version, path))


def _version(path: str) -> tuple[int, ...] | None:
    try:
        found = _stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _tell(listener: Listener, does: str, paths: Sequence[Any], frame: types.FrameType) -> None:
    if any(path is None or isinstance(path, int) for path in paths):  # a file that was opened before
        return
    if (line := _asking_line(frame)) is None:
        return
    names = [os.path.abspath(os.fsdecode(path)) for path in paths]
    if does:
        listener.done_outside(_ACTS.format(" ".join((does, *map(repr, names))), line))
    elif names[0].startswith(_OF_KERNEL):
        listener.done_outside(_CHANGES.format(repr(names[0]), line))
    else:
        listener.looked_into(names[0])


def _asking_line(frame: types.FrameType | None) -> str | None:
    """The line of the function's that asks, itself or through a library."""
    while frame is not None:
        if (asks := package(frame.f_globals.get("__name__"))) in _OTHERS:
            return None
        if asks not in LIBRARIES:
            return line_of(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None
