"""What of random numbers a trace refuses."""

from __future__ import annotations

from attrs import evolve

from ..errors import (
    ImpureFunctionError,
    Refusal,
    TraceError,
    UnsupportedTensorError,
    UnsupportedTransformError,
)

DRAWN_BY_ANOTHER_THREAD = Refusal(
    UnsupportedTransformError,
    "another thread drew random numbers while forward did: what forward drew cannot be drawn again for a second "
    "derivative",
    'compile with rng="philox", or draw in one thread at a time',
)
DRAWS_ELSEWHERE = Refusal(
    ImpureFunctionError,
    "the function draws from {0}: the number would be the same on each call",
    "draw with torch (torch.rand(()), torch.randint), or draw outside and pass the number as an argument",
)
SEEDS_ELSEWHERE = Refusal(
    ImpureFunctionError,
    "the function seeds {0}, or sets its state, which no program does on each call",
    "seed outside, before the call; of what is drawn in the function, torch.manual_seed(n) seeds torch's numbers",
)
DRAW_TOO_WIDE = Refusal(UnsupportedTransformError, "a draw of whole numbers from {0} to {1}", 'rng="eager"')
NORMAL_WITH_GAPS = Refusal(
    UnsupportedTransformError,
    "normal_ fills a tensor {0} whose elements do not lie side by side in memory",
    'draw first, and copy (x[:, ::2].copy_(torch.randn(n, m))), or compile with rng="philox"',
)
NO_PHILOX_RULE = Refusal(
    UnsupportedTransformError,
    '{0} is not made of counter-based numbers: rng="philox" has no rule for it',
    'rng="eager"',
)
DRAW_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function draws random numbers in its second run and did not in its first",
    "make it a pure function of its arguments: what it draws must not depend on what ran before",
)
BODY_DRAWS = Refusal(
    UnsupportedTransformError,
    "{0} draws random numbers and is differentiated: its backward pass would draw others",
    "draw outside and name the draw among the operands: torch.cond(condition, f, g, (x, torch.rand_like(x)))",
)
BODY_DRAWS_PHILOX = Refusal(
    UnsupportedTransformError,
    '{0} draws random numbers with rng="philox", the same in each of its steps',
    'draw all of them before the loop and slice them in it, or compile with rng="eager"',
)
GENERATOR_OF_PHILOX = Refusal(
    UnsupportedTensorError,
    '{0} draws from a torch.Generator other than the default one, with rng="philox"',
    'rng="eager", or draw from the default generator',
)
GENERATOR_IN_BACKWARD = Refusal(
    UnsupportedTensorError,
    "the function draws from a torch.Generator that it makes itself, in a backward pass or with another state",
    "make it outside of the function; seed it inside",
)
GENERATOR_COPIED = Refusal(
    UnsupportedTensorError,
    "the function draws from a torch.Generator that is a copy of another (clone_state)",
    "make it outside of the function; seed it inside",
)
SEEDED_UNTOLD = Refusal(
    UnsupportedTransformError,
    "the function seeds the random generator with a number that it is told (torch.seed)",
    "torch.manual_seed(n), or seed outside",
)
SEED_ASKED_FOR = Refusal(
    UnsupportedTransformError,
    "the function asks for the seed of a random generator, which is another in other calls",
    "pass it as an argument",
)
STATE_OF_PHILOX = Refusal(
    UnsupportedTransformError,
    "the function sets the state of the random generator (torch.manual_seed, fork_rng), of which its numbers are not "
    "made",
    'rng="eager"',
)
SEEDED_BY_OLD_METHOD = Refusal(
    UnsupportedTransformError,
    "the function sets the state of the random generator by a method it took before",
    "torch.manual_seed",
)
KNOWS_OLD_METHOD = evolve(
    SEEDED_BY_OLD_METHOD,
    what="the function knows {0}, a method that was taken from a torch.Generator before: no trace hears of its calls",
    fix="keep the generator, and call the method on it: generator.manual_seed(n)",
)
