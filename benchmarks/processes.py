"""Processes of a benchmark: on so many cores, with so many threads, and ended when they say nothing for too long."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


def lines(
    module: str, arguments: Sequence[str], limit: float, threads: int = 0, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The lines ``python -m module`` prints, as they come. Raises ``TimeoutError`` when none has come for ``limit``
    seconds, ``ChildProcessError`` when it ends with an error. A process that is not wanted any more is killed with all
    it started.

    ``threads``: of PyTorch and of XLA, on as many cores; 0 leaves that alone. ``env`` is added to the environment.
    """
    variables = {**os.environ, **(_variables(threads) if threads else {}), **(env or {})}
    with _cores(threads):
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
            start_new_session=True,
        )
    printed: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, printed), daemon=True).start()
    try:
        while (line := printed.get(timeout=limit)) is not None:
            yield line
        if process.wait():
            raise ChildProcessError(f"the process ended with {process.returncode}")
    except queue.Empty:
        raise TimeoutError(f"took longer than {limit:.0f} s") from None
    finally:
        _end(process)


def _read(process: subprocess.Popen[str], printed: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        printed.put(line)
    printed.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process, if it runs, and what it started (compilers of C++), which are a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _variables(threads: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "XLA_FLAGS": flags.strip()}


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Start processes on so many cores, where the system can tell; 0 for all."""
    if not count or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
