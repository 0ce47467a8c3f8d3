"""``python -m tests.laws.fuzz N [FIRST] [plain]``: N random programs, eager against compiled, on all cores.

``plain`` ones hold no statements that give a tensor other memory, nor any that only leaves have (``.grad``, ``.backward()``).
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Mapping

import torch

from .programs import KINDS, PLAIN, report


def _check(kinds: Mapping[tuple[str, ...], int], seed: int) -> tuple[str | None, Counter[str]]:
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # programs that raise are meant to
    refused: Counter[str] = Counter()
    return report(seed, refused, kinds), refused


def main(n: int, first: int, kinds: Mapping[tuple[str, ...], int]) -> int:
    start, failed, refused = time.time(), 0, Counter[str]()
    check = functools.partial(_check, kinds)
    with multiprocessing.Pool(maxtasksperchild=500) as pool:
        for done, (found, own) in enumerate(pool.imap_unordered(check, range(first, first + n), chunksize=20), 1):
            refused += own
            if found is not None:
                failed += 1
                print(found, end="\n\n", flush=True)
                if failed == 20:
                    pool.terminate()
                    break
            if done % 1000 == 0:
                print(f"{done} programs, {failed} differences, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{n} programs from seed {first}: {failed} differences, {time.time() - start:.0f} s; {refused.total()} refused by name")
    for reason, count in refused.most_common():
        print(f"{count:6} … {reason} …")
    return int(failed > 0)


if __name__ == "__main__":
    plain = sys.argv[-1] == "plain"
    n, first = [*map(int, sys.argv[1 : len(sys.argv) - plain]), 0][:2]
    sys.exit(main(n, first, PLAIN if plain else KINDS))
