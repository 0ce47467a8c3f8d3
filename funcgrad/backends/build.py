"""C source to functions: compiled by the system's compiler, kept on disk by what it was made from, loaded into this
process.

The library is linked against the OpenMP runtime that torch brought along: two of them in one process would fight for
the cores, and ``torch.set_num_threads`` would govern one only.
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

from ..cache.folders import bound, folder_for, used
from ..errors import BuildError
from ..options import ENVIRONMENT
from .c_language import HOW

FLAGS = (
    "-std=gnu11", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fno-tree-vrp", "-fno-tree-sink", "-fno-thread-jumps",
    "-fopenmp", "-fPIC", "-Werror=implicit-function-declaration",
)  # fmt: skip
"""Never -ffast-math: NaN, infinities and signed zeros keep their meaning. No traps and no errno, or nothing would
vectorise. -ffp-contract=off: a value that two kernels compute is the same in both, or ``x == x.min()`` would hold
nowhere where the minimum comes from another kernel; and ``x * x - y * y`` of equal numbers is 0. -fno-tree-vrp,
-fno-thread-jumps: with either pass on, GCC 12 gets the masks of some vectorised conditional loads wrong.
-fno-tree-sink: with it on, a function of the C library of which a ``where`` reads one side is called in a branch,
one element at a time."""


@functools.cache
def compiler() -> str | None:
    """The C compiler of this system; None if there is none."""
    return shutil.which(ENVIRONMENT.compiler) if ENVIRONMENT.compiler else shutil.which("gcc") or shutil.which("cc")


@functools.cache
def _version() -> str:
    """What compiles, for which processor: part of a library's name on disk."""
    said = subprocess.run(
        [_command(), "-march=native", "-Q", "--help=target", "--version"], capture_output=True, text=True, check=False
    )
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


def load(sources: Sequence[str]) -> ctypes.CDLL:
    """Compile C sources, at the same time, link and load them. Raises ``BuildError`` with what the compiler said."""
    names = [_name("o", source) for source in sources]
    name = names[0] if len(names) == 1 else _name("so", *names)
    with _lock:
        known = _loaded.get(name)
    if known is not None:
        return known
    library = folder_for("c") / f"{name}.so"
    if library.exists():
        used(library)
    else:
        _make(library, names, sources)
        # one in 256: to look at every file takes longer than to compile one, where there are many
        if name.startswith("00"):
            bound(library.parent)
    loaded = ctypes.CDLL(str(library))
    with _lock:
        return _loaded.setdefault(name, loaded)


def _make(library: Path, names: Sequence[str], sources: Sequence[str]) -> None:
    if len(sources) == 1:
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            _link([_compile(sources[0], Path(work))], library)
        return
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1)) as pool:
        # or one would be left for the end
        longest_first = sorted(zip(names, sources, strict=True), key=lambda file: -len(file[1]))
        made = {name: pool.submit(_object, name, source) for name, source in longest_first}
    _link([made[name].result() for name in names], library)


def _name(*parts: str) -> str:
    """The name of what is made from these, by this compiler for this processor."""
    return hashlib.sha256("\0".join((_version(), *FLAGS, *parts)).encode()).hexdigest()


def _object(name: str, source: str) -> Path:
    """One file of several; it is kept, as other programs may have the same."""
    folder = folder_for("c")
    done = folder / f"{name}.o"
    if not done.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            _compile(source, Path(work)).replace(done)  # whole or not at all: another process may be looking for it
    return done


def _compile(source: str, folder: Path) -> Path:
    text, made = folder / "kernels.c", folder / "kernels.o"
    text.write_text(source)
    first = source.partition("\n")[0]
    effort = first.removeprefix(HOW) if first.startswith(HOW) else "-O3"
    _run([_command(), *(effort if flag == "-O3" else flag for flag in FLAGS), "-c", str(text), "-o", str(made)])
    return made


def _link(objects: Sequence[Path], library: Path) -> None:
    runtime = openmp()
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        made = Path(work) / "kernels.so"
        with_threads = [str(runtime)] if runtime else ["-fopenmp"]
        # the C library is in every process: to link against it takes as long as all else here
        libraries = ["-nodefaultlibs", "-lmvec", "-lm", "-lgcc"] if runtime else ["-lmvec", "-lm"]
        _run([_command(), "-shared", *map(str, objects), *with_threads, *libraries, "-o", str(made)])
        made.replace(library)


def _command() -> str:
    command = compiler()
    assert command is not None
    return command


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"the C compiler failed: {done.stderr[:2000]}",
            where=" ".join(command[:1]),
            fix='use backend="aten", and report this',
        )


def function(library: ctypes.CDLL, name: str, arguments: int, returns: str | None = None) -> Any:
    """A function of so many pointers, and what it ``returns``."""
    found = getattr(library, name)
    found.argtypes = [ctypes.c_void_p] * arguments
    found.restype = {None: None, "int": ctypes.c_int, "int64_t": ctypes.c_int64}[returns]
    return found
