"""``python -m tests.laws.python_fuzz N [FIRST]``: N random Python programs, eager against compiled, on all cores.

Prints differences as minimised programs, and a table of them by the kinds of state that a program needs to go wrong;
counts what is refused by name, for what reason, and what is warned about. Fails above a ceiling.
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import multiprocessing
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import torch

from . import python_reads
from .python_kinds import Kind
from .python_programs import generate, minimise, shown
from .python_running import Outcome, check
from .python_source import Program, Unit
from .python_worlds import KINDS

MOST_COMPILES = 12
"""A script that compiles more often writes to what it reads, and compiles each time; or its programs are for too
little."""

CEILINGS: dict[str, float] = {
    "refused: MutationError: the function stores into a": 0.002,
    "refused: ImpureFunctionError: the function draws from …": 0.022,
    "refused: ImpureFunctionError: the function reads … an": 0.016,
    # a call that fills a functools.lru_cache, and writes to what that keeps
    "refused: ImpureFunctionError: the function writes to Python": 0.006,
    "warns: UnwatchedStateWarning: the function calls … what": 0.02,  # globals()
    "warns: UnwatchedStateWarning: the function asks for …": 0.012,  # cache_info() of a functools.lru_cache
    "warns: UnwatchedStateWarning: the function reads … a": 0.0065,  # a weak reference
    "warns: RecompileWarning": 0.14,  # of several values at once, too, which were silent
    "warned: result": 0.001,
    "warned: state after an exception": 0.001,
    "compiles more than 12 times, as its world changes": 0.02,
    "compiles again in a world as before": 0.005,
    # what is not carried out yet, by what differs: to go down to nothing
    # the program raises, not the trace: PyTorch's operators on real tensors alone
    "differs: state after an exception": 0.001,
    "differs: changed by a refused call": 0.0005,
}
"""The largest share of programs that may go this way; of differences and crashes that are not named, none. In a run of
10,000 they are three standard deviations above what was counted; in one of 1,000, chance may exceed them."""
OTHERWISE = 0.005
"""The ceiling of a reason to refuse, or to warn, that is not named."""


@attrs.frozen
class Result:
    """How the program of a seed went; minimised where it went wrong."""

    seed: int
    outcome: Outcome
    kinds: str = ""
    """The kinds of state that are left of it."""
    statements: tuple[str, ...] = ()
    text: str = ""

    @property
    def ways(self) -> Iterator[str]:
        """The lines of the table it counts in."""
        if self.outcome.status != "agrees":
            yield f"{self.outcome.status}: {self.outcome.reason}"
        if self.outcome.again is not None:
            yield "compiles again in a world as before"
        if self.outcome.compiles > MOST_COMPILES:
            more = (
                "more often than its world changes"
                if self.outcome.compiles > self.outcome.worlds
                else "as its world changes"
            )
            yield f"compiles more than {MOST_COMPILES} times, {more}"
        for name in self.outcome.warnings:
            yield f"warns: {name}"


def examine(seed: int, shrink: str = "quickly", of: Sequence[Kind] = KINDS) -> Result:
    """Run the program of a seed. ``shrink``: ``no``, ``quickly`` (statements and steps alone) or ``wholly``."""
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # programs that raise are meant to
    logging.getLogger("funcgrad").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = generate(seed, of)
        outcome = check(program)
        result = Result(seed, outcome)
        if shrink != "no" and (
            outcome.status in ("differs", "crashed") or outcome.sort == ("agrees", "compiles again")
        ):
            small, now = minimise(program, outcome, shrink == "wholly")
            result = attrs.evolve(
                result, kinds=kinds_of(small), statements=statements_of(small), text=shown(small, now, seed)
            )
        elif outcome.compiles > max(MOST_COMPILES, outcome.worlds):
            result = attrs.evolve(result, text=shown(program, outcome, seed))
    return result


def kinds_of(program: Program) -> str:
    """The kinds of state a program has a statement or a step for."""
    parts = {unit.part for unit in (*program.units, *program.steps) if isinstance(unit, Unit)}
    return " + ".join(sorted({program.part(part).kind.name for part in parts})) or "none"


def statements_of(program: Program) -> tuple[str, ...]:
    return tuple(unit.template for unit in (*program.units, *program.steps) if isinstance(unit, Unit))


def over(results: Iterable[Result], ceilings: Mapping[str, float] = CEILINGS) -> list[str]:
    """The ways more programs go than may."""
    results = list(results)
    ways = Counter(way for result in results for way in result.ways)
    allowed = {
        way: math.ceil(ceilings.get(way, OTHERWISE if way.startswith(("refused", "warns")) else 0) * len(results))
        for way in ways
    }
    return [
        f"{count} of {len(results)}, {allowed[way]} may: {way}"
        for way, count in ways.most_common()
        if count > allowed[way]
    ]


def table(results: Iterable[Result]) -> str:
    """Differences by the kinds of state that a program needs to go wrong: how many of each sort, and the shortest
    program of each."""
    rows: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if result.kinds:
            rows[result.kinds][": ".join(result.outcome.sort)].append(result)
    lines = []
    for kinds, sorts in sorted(rows.items(), key=lambda row: -sum(map(len, row[1].values()))):
        lines.append(f"{sum(map(len, sorts.values())):5}  {kinds}")
        for sort, own in sorted(sorts.items(), key=lambda item: -len(item[1])):
            least = min(own, key=lambda r: len(str(r.statements)))
            example = " | ".join(text.replace("\n", "; ") for text in least.statements)
            lines.append(f"       {len(own):5} {sort}, seed {least.seed}: {example}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.laws.python_fuzz")
    parser.add_argument("n", type=int)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--shown", type=int, default=20, help="how many programs are printed")
    parser.add_argument("--shrink", choices=("no", "quickly", "wholly"), default="wholly")
    parser.add_argument("--reads", action="store_true", help="programs that read values of tensors")
    parser.add_argument("--only", help="print programs whose way has this in it")
    asked = parser.parse_args()
    of, ceilings = (python_reads.KINDS, python_reads.CEILINGS) if asked.reads else (KINDS, CEILINGS)
    start, printed = time.time(), 0
    results: list[Result] = []
    with multiprocessing.Pool(asked.jobs, maxtasksperchild=500) as pool:
        seeds = range(asked.first, asked.first + asked.n)
        for result in pool.imap_unordered(functools.partial(examine, shrink=asked.shrink, of=of), seeds, chunksize=10):
            results.append(result)
            if (
                result.text
                and printed < asked.shown
                and (not asked.only or any(asked.only in way for way in result.ways))
            ):
                printed += 1
                print(result.text, end="\n\n", flush=True)
            if len(results) % 500 == 0:
                print(f"{len(results)} programs, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    ways = Counter(way for result in results for way in result.ways)
    agree = sum(result.outcome.status == "agrees" for result in results)
    print(f"\n{asked.n} programs from seed {asked.first}: {agree} agree, {time.time() - start:.0f} s")
    for way, count in ways.most_common():
        seeds = (
            [str(result.seed) for result in results if way in result.ways]
            if way.startswith(("differs", "crashed", "compiles"))
            else []
        )
        print(f"{count:6}  {way}" + (f" (seeds {', '.join(seeds[:4])})" if seeds else ""))
    found = over(results, ceilings)
    print("\n".join(["", "above their ceilings:", *found] if found else []))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
