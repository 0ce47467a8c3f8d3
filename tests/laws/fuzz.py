"""``python -m tests.laws.fuzz N [FIRST]``: N random programs, eager against compiled, on all cores."""

from __future__ import annotations

import multiprocessing
import sys
import time

import torch

from .programs import report


def _check(seed: int) -> str | None:
    torch.set_num_threads(1)
    return report(seed)


def main(n: int, first: int) -> int:
    start, failed = time.time(), 0
    with multiprocessing.Pool(maxtasksperchild=500) as pool:
        for done, found in enumerate(pool.imap_unordered(_check, range(first, first + n), chunksize=20), 1):
            if found is not None:
                failed += 1
                print(found, end="\n\n", flush=True)
                if failed == 20:
                    pool.terminate()
                    break
            if done % 1000 == 0:
                print(f"{done} programs, {failed} differences, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{n} programs from seed {first}: {failed} differences, {time.time() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
