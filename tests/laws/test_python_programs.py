"""Random Python programs that read and write state besides tensors do in a compiled function what they do in eager
PyTorch: the first ones, on every run. ``python -m tests.laws.python_fuzz`` runs more of them, on all cores.

Also: the comparison finds nothing between eager PyTorch and itself, and finds each sort of fault in transforms that are
made to have it.
"""

import copy
import functools

import attrs
import pytest
import torch

import funcgrad as fg

from . import python_reads
from .python_fuzz import examine, over
from .python_programs import generate, minimise
from .python_running import check, compile_it, in_eager, run
from .python_source import Call, Part, Program, Unit
from .python_worlds import COUNTERS, KINDS


@pytest.mark.parametrize("seeds", [range(90), pytest.param(range(90, 200), marks=pytest.mark.long)])
def test_random_programs_do_what_eager_does(seeds):
    found = over(examine(seed, shrink="no") for seed in seeds)
    assert not found, "\n".join(found)


def test_random_programs_with_step_counters_do_what_eager_does():
    found = over(examine(seed, "no", COUNTERS) for seed in range(25))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 150), marks=pytest.mark.long)])
def test_random_programs_that_read_values_do_what_eager_does(seeds):
    found = over((examine(seed, "no", python_reads.KINDS) for seed in seeds), python_reads.CEILINGS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind", python_reads.READS, ids=lambda kind: kind.name)
def test_statements_that_read_values_run(kind):
    """Nearly each with some of the tensors that a script passes, but for those that PyTorch is to refuse."""
    part = Part(kind, 0, kind.world.replace("$", "0"), "global")
    statements = [*kind.reads, *kind.writes, *(f"y = y * {text}" for text in kind.numbers)]
    statements = statements[:: 13 if len(statements) > 200 else 1]
    programs = [
        Program((part,), (Unit(0, "reads", text),), tuple(Call(f"result = call({x})") for x in "ABCR"))
        for text in statements
    ]
    seen = [(p, run(p, in_eager)) for p in programs]
    failing = [(p.units, r.setup or r.steps[0].error) for p, r in seen if r.setup or all(s.error for s in r.steps)]
    assert len(failing) <= len(statements) * (0.4 if kind.name == "refusal of PyTorch's" else 0.05), failing


# ── the oracle itself ────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_differs_between_eager_pytorch_and_itself():
    assert [seed for seed in range(1000, 1025) if check(generate(seed), in_eager).status != "agrees"] == []


def test_programs_are_made_by_their_seed():
    assert [generate(seed).text for seed in range(5)] == [generate(seed).text for seed in range(5)]


def program(kind, *units, steps=("result = call(A)",), **more):
    """A program of one kind of state; a unit is what it does and a statement, a step a call or a change."""
    (found,) = [k for k in KINDS if k.name == kind]
    part = Part(found, 0, found.world.replace("$", "0"), "global")
    script = tuple(Call(step) if "call(" in step else Unit(0, "changes", step) for step in steps)
    return Program((part,), tuple(Unit(0, "reads", unit) for unit in units), script, **more)


def runs_twice(program, f):
    def call(*args):
        f(*args)
        return f(*args)

    return call


def remembers_results(program, f):
    return functools.lru_cache(lambda *args: f(*args))


def returns_clones(program, f):
    return lambda *args: f(*args).clone()


def detaches_what_is_stored(program, f):
    def call(*args):
        result = f(*args)
        f.__globals__["box0"].last = f.__globals__["box0"].last.detach()
        return result

    return call


def draws(program, f):
    def call(*args):
        torch.rand(1)
        return f(*args)

    return call


def swallows(program, f):
    def call(*args):
        try:
            return f(*args)
        except ValueError:
            return args[0] * 1.0

    return call


def crashes(program, f):
    return lambda *args: [][0]


def writes_before_it_runs(program, f):
    compiled = fg.jit(f, backend="aten")
    find = compiled._cache.run_first_fit

    def write_and_find(*call):
        f.__globals__["box0"].n += 7
        return find(*call)

    compiled._cache.run_first_fit = write_and_find
    return compiled


def undoes_what_is_traced(program, f):
    """Leaves state as it was where the function itself raises, too."""
    compiled = fg.jit(f, backend="aten")
    run_in_eager = compiled._rerun_eagerly

    def run_and_restore(*call):
        before = f.__globals__["box0"].n
        try:
            return run_in_eager(*call)
        finally:
            f.__globals__["box0"].n = before

    compiled._rerun_eagerly = run_and_restore
    return compiled


def refuses_late(program, f):
    def call(*args):
        f(*args)
        raise fg.MutationError("the function writes", fix="leave it out")

    return call


def refuses(program, f):
    def call(*args):
        raise fg.MutationError("the function writes to box0.n", fix="leave it out")

    return call


def restores(program, f):
    """Runs the function on a copy of the object it writes to."""

    def call(*args):
        box = f.__globals__["box0"]
        f.__globals__["box0"] = copy.deepcopy(box)
        try:
            return f(*args)
        finally:
            f.__globals__["box0"] = box

    return call


COUNTS = program("plain object", "@.n += 1")
STALE = program("plain object", "y = y * @.a", steps=("result = call(A)", "@.a = 2.5", "result = call(A)"))
ASKS_A_CACHE = program(
    "lru_cache",
    "y = y * rate0()\nif rate0.cache_info().hits > 2: raise ValueError('large')",
    steps=("result = call(A)", "result = call(C)", "result = call(R)"),
)
SINGULAR = "y = y + torch.linalg.inv(torch.eye(2) * y.flatten()[1]).sum()"
RAISES_LATE = program("plain object", f"@.n += 1\n{SINGULAR}", steps=("result = call(A * 0)",))
RAISES = program("plain object", "if @.n > 1:\n    raise ValueError('large')")


COUNTS_AND_RAISES = program("plain object", "@.n += 1\nif @.n > 1:\n    raise ValueError('large')")


@pytest.mark.parametrize(
    "transform, case, status, reason",
    [
        (runs_twice, COUNTS, "differs", "state"),
        (restores, COUNTS, "differs", "state"),
        (restores, program("plain object", "@.last = y"), "differs", "state"),
        (returns_clones, program("plain object", "@.last = y"), "differs", "identity of a result"),
        (remembers_results, STALE, "differs", "result"),
        (remembers_results, program("plain object", "@.n += 1", steps=("result = call(A)",) * 2), "differs", "state"),
        (draws, COUNTS, "differs", "generator of torch"),
        (swallows, RAISES, "differs", "does not raise"),
        (crashes, COUNTS, "crashed", "raises IndexError"),
        (refuses_late, COUNTS, "differs", "changed by a refused call"),
        (refuses, COUNTS, "refused", "MutationError: the function writes to …"),
        (compile_it, program("plain object", "@.last = y", transform="grad"), "agrees", ""),
        (compile_it, program("plain object", "@.last = y.detach()", transform="grad"), "agrees", ""),
        (detaches_what_is_stored, program("plain object", "@.last = y * 2"), "agrees", ""),
        (
            detaches_what_is_stored,
            program("plain object", "@.last = y * 2", steps=("result = call(R)",)),
            "differs",
            "state",
        ),
        (compile_it, RAISES_LATE, "agrees", ""),
        (writes_before_it_runs, RAISES_LATE, "differs", "state after an exception"),
        (compile_it, COUNTS_AND_RAISES, "agrees", ""),
        (undoes_what_is_traced, COUNTS_AND_RAISES, "differs", "state after an exception"),
        (in_eager, STALE, "agrees", ""),
        (in_eager, RAISES, "agrees", ""),
        (compile_it, program("collections", "@.o.move_to_end('k')"), "agrees", ""),
        (compile_it, ASKS_A_CACHE, "warned", "result"),
    ],
)
def test_the_comparison_finds(transform, case, status, reason):
    assert check(case, transform).sort == (status, reason)


def forgets(program, f):
    compiled = fg.jit(f, backend="aten")
    find = compiled._cache.run_first_fit

    def forget_and_find(*call):
        compiled._cache._entries = []
        return find(*call)

    compiled._cache.run_first_fit = forget_and_find
    return compiled


def test_a_call_that_compiles_in_a_world_as_before_is_found():
    steps = ("result = call(A)", "@.a = 2.5", "result = call(A)", "@.a = 1.5", "result = call(A)")
    case = program("plain object", "y = y * 2", steps=steps)
    assert check(case).again is None
    assert check(case, forgets).sort == ("agrees", "compiles again")


def test_what_a_function_does_not_mention_is_no_reason_to_compile():
    """Neither to the compiled function, nor, where something forces it to compile, to the comparison."""
    part = Part(next(k for k in KINDS if k.name == "dict"), 1, "table1 = {'k': 1.5, 'j': 2}", "global")
    case = program("plain object", "y = y * 2")
    steps = (*case.steps, Unit(1, "changes", "@['k'] = 7"), *case.steps)
    case = attrs.evolve(case, parts=(*case.parts, part), steps=steps)
    assert case.bystanders == {"table1"}
    assert check(case).again is None
    assert check(case, forgets).sort == ("agrees", "compiles again")


def test_minimised_programs_go_wrong_in_the_same_way():
    steps = ("result = call(B)", "@.a = 7", "result = call(C)")
    large = program("plain object", "y = y * @.n", "@.n += 1", "y = y + 1", steps=steps, entry="closure")
    outcome = check(large, runs_twice)
    small, now = minimise(large, outcome, check=functools.partial(check, transform=runs_twice))
    assert now.sort == outcome.sort
    assert len(small.units) == 1 and len(small.steps) == 1 and small.entry == "function"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_statements_of_a_kind_run(kind):
    """A statement that raises is of interest, but one that always does says nothing."""
    part = Part(kind, 0, kind.world.replace("$", "0"), "global")
    reads = [
        Program((part,), (Unit(0, "reads", text),), (Call("result = call(A)"),)) for text in (*kind.reads, *kind.writes)
    ]
    reads += [
        Program((part,), (Unit(0, "reads", f"y = y * {text}"),), (Call("result = call(A)"),)) for text in kind.numbers
    ]
    changes = [Program((part,), (), (Unit(0, "changes", text), Call("result = call(A)"))) for text in kind.changes]
    seen = [(p, run(p, in_eager)) for p in (*reads, *changes)]
    failing = [
        (p.units or p.steps[:1], r.setup, [s.error for s in r.steps])
        for p, r in seen
        if r.setup or any(s.error for s in r.steps)
    ]
    assert not failing
