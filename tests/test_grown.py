"""Containers that a function adds to, at either end, by any of their names; eager PyTorch is the oracle."""

import collections
import contextlib
import io
import itertools
import logging
import random
import types
import warnings

import pytest
import torch

import funcgrad as fg

ADDS = ["append(v)", "appendleft(v)", "append(0.5)", "extend([v, -v])", "extendleft([v, -v])", "insert(0, v)"]


def after(jit, source, n=6, **world):
    """What each of ``n`` calls returns, and what the ``log`` of the world holds after it; and the function."""
    f = jit(eval(f"lambda v: {source}", world))
    found = []
    for i in range(1, n + 1):
        try:
            found.append(float(f(torch.tensor(float(i)))))
        except IndexError as error:  # a full deque takes no insert
            found.append(str(error))
        found.append([float(v) for v in world["log"]])
    return found, f


def same(source, make):
    (found, compiled), (expected, _) = after(fg.jit, source, **make()), after(lambda f: f, source, **make())
    assert found == expected, source
    return compiled.cache_info().misses


def test_deques_grow_at_either_end():
    cases = [*itertools.product(ADDS, ADDS, (None, 1, 3, 4), (0, 1, 2))]
    for first, second, most, n in random.Random(4).sample(cases, 24):
        start = [torch.tensor(float(-i)) for i in range(n)]
        same(f"(log.{first}, log.{second}, v * 2)[2]", lambda m=most, s=start: {"log": collections.deque(s, m)})


@pytest.mark.parametrize("add", ADDS)
def test_what_is_only_added_to_has_no_guard(add):
    assert same(f"(log.{add}, v * 2)[1]", lambda: {"log": collections.deque()}) == 1
    if "left" not in add:
        assert same(f"(log.{add}, v * 2)[1]", lambda: {"log": []}) == 1


def test_a_list_is_added_to_in_place():
    def run(jit):
        own = types.SimpleNamespace(log=[])

        def step(v):
            own.log += [v]
            return v * 2

        f = jit(step)
        return [float(f(torch.tensor(float(i)))) for i in range(4)], list(map(float, own.log)), f

    (*found, compiled), (*expected, _) = run(fg.jit), run(lambda f: f)
    assert found == expected and compiled.cache_info().misses == 1


def by_many_names():
    log = []
    by_name = collections.defaultdict(list, k=log)
    own = types.SimpleNamespace(a=log, b=log, by_name=by_name, again=by_name, inside={"in": {"k": log}})
    own.further = own.inside["in"]
    return {"log": log, "own": own, "rows": [log, log], "torch": torch}


WRITES = ["own.a", "own.by_name['k']", "own.inside['in']['k']", "rows[0]", "log"]
READS = ["own.b", "own.again['k']", "own.further['k']", "rows[-1]", "log", "vars(own)['b']", "getattr(own, 'b')"]


def test_what_is_added_to_by_one_name_is_read_by_another():
    """It was taken for what nobody reads: the result of the first call came in each."""
    for write, read in random.Random(7).sample([*itertools.product(WRITES, READS)], 9):
        same(f"({write}.append(v), v * len({read}))[1]", by_many_names)
        same(f"({write}.append(v), torch.stack({read}).sum())[1]", by_many_names)


class Handler(logging.Handler):
    def __init__(self, texts):
        super().__init__()
        self.texts, self.count = texts, 0

    def emit(self, record):
        self.texts.append(record.getMessage())
        self.count += 1


def logger_to(handler):
    logger = logging.Logger("grown", logging.INFO)
    logger.addHandler(handler)
    return logger


def test_a_handler_that_writes_to_what_the_function_uses_is_refused():
    """Its record comes to it when the program has run."""
    texts, others = [], []
    logger, other = logger_to(Handler(texts)), logger_to(Handler(others))
    for use in (lambda: texts.append("b"), lambda: len(texts)):
        with pytest.raises(fg.MutationError, match="comes to Handler, which writes to texts"):
            fg.jit(lambda x, use=use: (logger.info("a"), use(), x * 2)[2])(torch.ones(3))
    texts.clear()
    f = fg.jit(lambda x: (other.info("a %.0f", x.sum()), texts.append("b"), x * len(texts))[2])
    assert [f(torch.ones(())).item() for _ in range(3)] == [1, 2, 3]
    assert texts == ["b"] * 3 and others == ["a 1"] * 3


def test_output_that_comes_to_what_the_function_reads_is_refused(monkeypatch):
    buffer, caught = io.StringIO(), []
    with contextlib.redirect_stdout(buffer), pytest.raises(fg.MutationError, match="comes to StringIO"):
        fg.jit(lambda x: (print("hi"), x * len(buffer.getvalue()))[1])(torch.ones(3))

    def show(message, *_):
        caught.append(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        with pytest.raises(fg.MutationError, match="comes to show, which writes to caught"):
            fg.jit(lambda x: (warnings.warn("w", stacklevel=1), x * len(caught))[1])(torch.ones(3))
    with contextlib.redirect_stdout(io.StringIO()) as other:
        fg.jit(lambda x: (print("hi"), x * 2)[1])(torch.ones(3))
    assert other.getvalue() == "hi\n"


def record(log, value):
    log.append(value)


def put_first(log, value, scale=1):
    log.insert(0, value * scale)


def counts(log, value):
    log.append(value)
    return len(log)


def keeps(log, value):
    log.append(value)
    return [lambda: len(log)][0]()


renamed = counts
GIVEN = {
    "record(own.log, v)": 1,
    "put_first(own.log, v, 2)": 1,
    "record(by_name['k'], v)": 1,
    "record(log, put_first(log, v) or v)": 6,  # at both ends
    "(record(log, v), len(log))": 6,
    "counts(log, v)": 6,
    "keeps(log, v)": 6,
    "renamed(log, v)": 6,
    "put_first(log=log, value=v)": 6,
    "(record(log, v), own.record(log, v))": 6,
}


class Own:
    def __init__(self, log):
        self.log = log

    def record(self, log, value):
        return len(log)


def test_a_function_that_only_adds_to_what_it_is_given():
    """Its argument is a log of the one who calls it; that of any other, and of what has another name, is read."""
    functions = {f.__name__: f for f in (record, put_first, counts, keeps)}

    def world():
        log = []
        return {"log": log, "own": Own(log), "by_name": {"k": log}, "renamed": renamed, **functions}

    for source, misses in GIVEN.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.RecompileWarning)
            assert same(f"({source}, v * 2)[1]", world) == misses, source


def puts_into_one(own, x):
    own.a[0] = x
    return own.b[0] * 1


def puts_by_key(own, x):
    own.a["k"] = x
    return own.b["k"] * 1


def asks_whether_they_are_one(own, x):
    (first, *_) = own.a.values() if isinstance(own.a, dict) else own.a
    return first * x * (2 if own.a is own.b else 3)


@pytest.mark.parametrize("begins_as_one", [False, True])
def test_containers_of_tensors_become_one_and_part(begins_as_one):
    """Others of their kind will do, but where one is written to, or compared, they are one or apart as they were."""

    def run(jit, step, make):
        own = types.SimpleNamespace(a=make(1), b=make(2))
        f, found = jit(lambda x: step(own, x)), []
        for i in range(12):
            if i % 4 == 2 * begins_as_one:
                own.b = make(i)
            elif i % 4 == 2 - 2 * begins_as_one:
                own.b = own.a
            found.append(float(f(torch.tensor(float(i)))))
        return found

    cases = [(puts_into_one, "list"), (puts_by_key, "dict")]
    cases += [(asks_whether_they_are_one, kind) for kind in ("list", "dict", "tuple", "deque")]
    makes = {
        "list": lambda i: [torch.tensor(float(i))],
        "tuple": lambda i: (torch.tensor(float(i)),),
        "dict": lambda i: {"k": torch.tensor(float(i))},
        "deque": lambda i: collections.deque([torch.tensor(float(i))]),
    }
    for step, kind in cases:
        assert run(fg.jit, step, makes[kind]) == run(lambda f: f, step, makes[kind]), (step, kind)
