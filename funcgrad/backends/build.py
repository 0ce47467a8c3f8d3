"""C source to functions: compiled by the system's compiler, kept on disk by what it was made from, loaded into this process.

The library is linked against the OpenMP runtime that torch brought along: two of them in one process would fight for the cores,
and ``torch.set_num_threads`` would govern one only.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ..errors import BuildError
from ..folders import folder_for
from ..options import ENVIRONMENT

FLAGS = (
    "-std=gnu11", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-w",
)  # fmt: skip
"""Never -ffast-math: NaN, infinities and signed zeros keep their meaning. No traps and no errno, or nothing would vectorise."""


@functools.cache
def compiler() -> str | None:
    """The C compiler of this system; None if there is none."""
    return shutil.which(ENVIRONMENT.compiler) if ENVIRONMENT.compiler else shutil.which("gcc") or shutil.which("cc")


@functools.cache
def _version() -> str:
    """What compiles, for which processor: part of a library's name on disk."""
    command = compiler()
    assert command is not None
    said = subprocess.run([command, "-march=native", "-Q", "--help=target", "--version"], capture_output=True, text=True, check=False)
    return hashlib.sha256((said.stdout + torch.__version__).encode()).hexdigest()


@functools.cache
def openmp() -> Path | None:
    """The OpenMP runtime that torch loads."""
    found = sorted(Path(torch.__file__).parent.joinpath("lib").glob("libgomp*.so*")) + sorted(
        Path(torch.__file__).parent.parent.joinpath("torch.libs").glob("libgomp*.so*")
    )
    return found[0] if found else None


_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def load(sources: Sequence[str]) -> list[ctypes.CDLL]:
    """Compile each C source, at the same time, and load it. Raises ``BuildError`` with what the compiler said."""
    names = [hashlib.sha256("\0".join((_version(), *FLAGS, source)).encode()).hexdigest() for source in sources]
    missing = {n: s for n, s in zip(names, sources, strict=True) if n not in _loaded}
    if len(missing) > 1:
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
            files = list(pool.map(lambda item: _file(*item), missing.items()))
    else:
        files = [_file(name, source) for name, source in missing.items()]
    with _lock:
        for name, file in zip(missing, files, strict=True):
            _loaded.setdefault(name, ctypes.CDLL(str(file)))
        return [_loaded[name] for name in names]


def _file(name: str, source: str) -> Path:
    folder = folder_for("c")
    library = folder / f"{name}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as work:
        text, object_file, made = (Path(work) / f"kernels.{end}" for end in ("c", "o", "so"))
        text.write_text(source)
        command = compiler()
        assert command is not None
        _run([command, *FLAGS, "-c", str(text), "-o", str(object_file)], source)
        runtime = openmp()
        link = [str(runtime)] if runtime else ["-fopenmp"]
        _run([command, "-shared", str(object_file), *link, "-lmvec", "-lm", "-o", str(made)], source)
        made.replace(library)  # whole or not at all: another process may be looking for it
    return library


def _run(command: Sequence[str], source: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"the C compiler failed: {done.stderr[:2000]}", where=" ".join(command[:1]), fix='use backend="aten", and report this'
        )


def function(library: ctypes.CDLL, name: str, arguments: int) -> Any:
    """A function of so many pointers."""
    found = getattr(library, name)
    found.argtypes = [ctypes.c_void_p] * arguments
    found.restype = None
    return found
