"""``python -m tests.laws.fuzz N [FIRST] [plain | strided]``: N random programs, eager against compiled, on all cores.

``plain`` ones hold no statements that give a tensor other memory, nor any that only leaves have (``.grad``,
``.backward()``); ``strided`` ones look at memory by strides and expand, besides. A run fails if a program differs, or
if more are refused by name than were.
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

from .programs import KINDS, PLAIN, STRIDED, report
from .refusals import CEILINGS, STRIDED_CEILINGS, above

ALL = {"": (KINDS, CEILINGS), "plain": (PLAIN, CEILINGS), "strided": (STRIDED, STRIDED_CEILINGS)}


def _check(kinds: Mapping[tuple[str, ...], int], seed: int) -> tuple[str | None, Counter[str]]:
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # programs that raise are meant to
    refused: Counter[str] = Counter()
    return report(seed, refused, kinds), refused


def main(n: int, first: int, kinds: Mapping[tuple[str, ...], int], ceilings: Mapping[str, float]) -> int:
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
                print(
                    f"{done} programs, {failed} differences, {time.time() - start:.0f} s", file=sys.stderr, flush=True
                )
    print(
        f"{n} programs from seed {first}: {failed} differences, {time.time() - start:.0f} s; {refused.total()} "
        "refused by name"
    )
    for reason, count in refused.most_common():
        print(f"{count:6} ({count / n:.2%}) … {reason} …")
    more = above(refused, n, ceilings)
    print("\n".join(more))
    return int(failed > 0 or bool(more))


if __name__ == "__main__":
    kind = sys.argv[-1] if sys.argv[-1] in ALL else ""
    n, first = [*map(int, sys.argv[1 : len(sys.argv) - bool(kind)]), 0][:2]
    sys.exit(main(n, first, *ALL[kind]))
