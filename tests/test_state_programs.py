"""Programs as users write them, with Python state around the tensors: whole scripts, of which each step sees in a
compiled function what it sees in eager PyTorch.

A program defines ``f`` and ``steps(call)``, a generator of what can be seen; ``call`` is ``f``, or compiled.
"""

import importlib.util
import io
import itertools
import random
import sys
import threading
import time
import warnings

import pytest
import torch

import funcgrad as fg
from funcgrad.state import assumed

PRELUDE = """
import abc, array, collections, contextlib, dataclasses, datetime, enum, fractions, functools, io, logging, pathlib, sys, types, warnings
import attrs
import numpy as np
import torch
import funcgrad as fg
from torch import nn
def X(i=0): return torch.arange(6.).view(2, 3) * 0.1 + i * 0.3
class O: pass
"""

PROGRAMS = {
    "an array": """
numbers = array.array("d", [1.0, 2.0])
def f(x): return x * numbers[0] + sum(numbers)
def steps(call):
    for change in (None, lambda: numbers.__setitem__(0, 5.0), lambda: numbers.append(3.0), lambda: None):
        if change: change()
        yield call(X())
""",
    "an array that is written to": """
numbers, data = array.array("d", [1.0, 2.0]), bytearray(b"ab")
def f(x):
    numbers[0] += 1
    numbers.append(0.5)
    data.extend(b"c")
    return x * numbers[0] + len(data)
def steps(call):
    for i in range(3): yield call(X()), list(numbers), bytes(data)
""",
    "a text that is written to": """
out, binary = io.StringIO(), io.BytesIO(b"abc")
def f(x):
    print("shape", tuple(x.shape), file=out)
    return x * len(out.getvalue()) + len(binary.read(1))
def steps(call):
    for i in range(4): yield call(X()), out.getvalue(), binary.tell()
""",
    "hooks of all modules": """
layer = nn.Linear(3, 3)
nn.init.ones_(layer.weight); nn.init.zeros_(layer.bias)
def f(x): return layer(x)
def steps(call):
    yield call(X())
    for register, hook in (
        (nn.modules.module.register_module_forward_pre_hook, lambda m, a: (a[0] * 2,)),
        (nn.modules.module.register_module_forward_hook, lambda m, a, out: out + 1),
    ):
        handle = register(hook)
        try: seen = call(X())
        finally: handle.remove()
        yield seen, call(X())
""",
    "members of a class": """
class R: a = 1; b = 2
r = R()
def f(x): return x * len([k for k in vars(R) if k[0] != "_"]) + sum(v for k, v in type(r).__dict__.items() if k[0] != "_")
def steps(call):
    yield call(X())
    R.c = 3; yield call(X())
    del R.a; yield call(X())
    R.b = 9; yield call(X())
""",
    "a class is registered": """
class Shape(abc.ABC): pass
class Other: pass
one = Other()
def f(x): return x * 2 if isinstance(one, Shape) else x
def steps(call):
    yield call(X())
    Shape.register(Other); yield call(X())
""",
    "one object or two, of which one is stored": """
o = O()
o.h, o.w = torch.zeros(2, 3), torch.ones(2, 3)
def f(x):
    y = x + (2 if o.h is o.w else 3)
    o.h = y.detach()
    return y
def steps(call):
    for i in range(5):
        if i == 2: o.h = o.w
        if i == 4: o.w = o.h
        yield call(X())
""",
    "a function that prints": """
inner = fg.jit(lambda x: x + 1, backend="aten")
def f(x, n):
    print("step", n, tuple(x.shape), end="|")
    sys.stdout.writelines(["w", "v"])
    with contextlib.redirect_stdout(io.StringIO()) as inside:
        print("inside")
        x = inner(x)
        print("inside")
    return x * n + len(inside.getvalue())
def steps(call):
    for n in (1, 2, 2, 1):
        with contextlib.redirect_stdout(io.StringIO()) as out: seen = call(X(), n)
        yield seen, out.getvalue()
""",
    "what was there is stored": """
@dataclasses.dataclass
class D: v: float
o, l, s, a, q, d, n = O(), [1], {1, 2}, np.zeros(2), collections.deque([1]), D(2.0), types.SimpleNamespace(v=1)
def f(x):
    o.l, o.s, o.a, o.q, o.d, o.n, o.pair = l, s, a, q, d, n, (l, d)
    return x * 2
def steps(call):
    for i in range(3): yield call(X()), o.l is l, o.s is s, o.a is a, o.q is q, o.d is d, o.n is n, o.pair[0] is l and o.pair[1] is d
""",
    "what is new is one object wherever it is": """
@dataclasses.dataclass
class D: v: float
o = O()
def f(x):
    o.d = D(3.0); o.again = o.d; o.both = [o.d, o.d]; o.d.me = o.d
    o.s = {1}; o.other = o.s
    return x * 2
def steps(call):
    for i in range(3):
        yield call(X()), o.again is o.d, o.both[1] is o.d, o.d.me is o.d, o.other is o.s, o.d.v, o.s
        o.d.v = 9.0; o.s.add(5)
""",
    "new sets, arrays and the like": """
class En(enum.Enum): A = 1; B = 2
o, log, active = O(), [], {En.A}
def f(x, n):
    o.s, o.q, o.array, o.bytes = set(active), collections.deque(active, maxlen=3), array.array("d", [1.0]), bytearray(b"ab")
    o.counter, o.factory, o.space = collections.Counter("aab"), collections.defaultdict(list, a=[1]), types.SimpleNamespace(a=1)
    o.day, o.path, o.third, o.method, o.partial = datetime.date(2020, 1, n), pathlib.Path("a") / str(n), fractions.Fraction(1, 3), active.copy, functools.partial(max, 1)
    log.append(frozenset(active))
    return x * len(o.s)
def steps(call):
    for n in (1, 2, 1):
        own = o.__dict__.copy() if n == 2 else {}
        yield call(X(), n), o.s, o.q, list(o.array), bytes(o.bytes), o.counter, o.factory, o.space.a, o.day, str(o.path), o.third, o.partial(0), log
        yield [name for name in own if name not in ("path", "day", "third", "method") and own[name] is o.__dict__[name]]
        active.add(En.B); o.s.add(4); o.q.append(3); o.array.append(2.0); o.bytes += b"c"
""",
    "new objects with slots": """
@attrs.define
class Stats:
    mean: object
    n: int = 0
@dataclasses.dataclass(slots=True)
class Record:
    loss: object
    step: int
@attrs.frozen
class Frozen:
    v: object
class Slots:
    __slots__ = ("a", "__b")
    def __init__(self): self.a = 1; self.__b = 2
    def total(self): return self.a + self.__b
o, log = O(), []
def f(x):
    o.stats = Stats(x.mean()); o.stats.n += 1
    log.append(Record(x.detach().sum(), len(log)))
    o.slots, o.frozen, o.space = Slots(), Frozen({"a": x * 2}), types.SimpleNamespace(a=x.max(), of=o.stats)
    return x * o.slots.total()
def steps(call):
    for i in range(3):
        yield call(X(i)), o.stats.mean, o.stats.n, [(r.loss, r.step) for r in log], o.slots.total(), o.frozen.v, o.space.a, o.space.of is o.stats
""",
}


def module_of(name, source, tmp_path, monkeypatch):
    """A module of its own, from a file, so that ``inspect`` and ``global`` work as in a user's."""
    path = tmp_path / f"{name}.py"
    path.write_text(PRELUDE + source)
    spec = importlib.util.spec_from_file_location(f"program_{name}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def seen(value):
    """What a step sees, as plain data."""
    if isinstance(value, torch.Tensor):
        return type(value).__name__, value.requires_grad, value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(repr(k), seen(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [seen(v) for v in value]
    return repr(value)


def outcome(step):
    try:
        return seen(next(step))
    except StopIteration:
        return None
    except fg.FuncgradError:
        raise
    except Exception as error:
        return repr(error)


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_sees_what_it_sees_in_eager(name, tmp_path, monkeypatch):
    own = name.replace(" ", "_")
    eager, ours = (module_of(f"{kind}_{own}", PROGRAMS[name], tmp_path, monkeypatch) for kind in ("eager", "compiled"))
    expected = eager.steps(eager.f)
    found = ours.steps(fg.jit(ours.f, backend="aten"))
    for i in itertools.count():
        want = outcome(expected)
        assert outcome(found) == want, i
        if want is None or isinstance(want, str):
            break
    assert i > 1, "no program"


def test_other_threads_print_while_one_is_traced(capsys):
    def f(x):
        thread = threading.Thread(target=lambda: print("another"))
        thread.start()
        thread.join()
        print("own")
        return x * 2

    fg.jit(f, backend="aten")(torch.ones(2))
    assert capsys.readouterr().out == "another\nanother\nown\n"
    assert type(sys.stdout).__module__ != "funcgrad.state.output"


def test_what_was_printed_before_a_refusal_is_seen(capsys):
    def f(x):
        print("before")
        return x * random.random()

    with pytest.raises(fg.ImpureFunctionError):
        fg.jit(f, backend="aten")(torch.ones(2))
    assert capsys.readouterr().out == "before\n"


def _prints(x):
    print("p", end="")
    return (x**2).sum()


def _backward(call, x):
    call(x.requires_grad_()).backward()


def _twice(call, x):
    (first,) = torch.autograd.grad(call(x.requires_grad_()), x, create_graph=True)
    first.sum().backward()


@pytest.mark.parametrize(
    "make, run",
    [
        (fg.grad_compiled, None),
        (fg.hessian_compiled, None),
        (fg.vmap_compiled, None),
        (lambda f, backend: fg.grad_compiled(fg.checkpoint(f), backend=backend), None),
        (lambda f, backend: fg.jit(lambda x: fg.jit(f, backend=backend)(x), backend=backend), None),
        (fg.jit, lambda call, x: torch.func.vmap(call)(x)),
        (fg.jit, lambda call, x: torch.func.grad(call)(x)),
        (fg.jit, _backward),
        (fg.jit, _twice),
    ],
)
def test_it_is_printed_once_on_each_call(make, run, capsys):
    call = make(_prints, backend="aten")
    for _ in range(3):
        run(call, torch.ones(2)) if run else call(torch.ones(2))
        assert capsys.readouterr().out == "p"


def test_what_a_program_prints_may_run_it_in_another_thread(monkeypatch):
    class Calls(io.StringIO):
        def write(self, text):
            if text.strip() and not self.getvalue():
                super().write(text)
                thread = threading.Thread(target=call, args=(torch.ones(3),), daemon=True)
                thread.start()
                thread.join(10)
                assert not thread.is_alive()
            return super().write(text)

    call = fg.jit(lambda x: (print("x"), x.mul_(2))[1], backend="aten")
    call(torch.ones(3))
    monkeypatch.setattr(sys, "stdout", Calls())
    call(torch.ones(3))


def test_warnings_that_the_function_catches_are_its_own():
    def f(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("own", stacklevel=1)
        return x * (1 + len(caught))

    assert torch.equal(fg.jit(f, backend="aten")(torch.ones(2)), torch.full((2,), 2.0))


class Prefixed(io.StringIO):
    def write(self, text):
        return super().write(">" + text)


def test_classes_made_of_buffers_are_named():
    stream = Prefixed()
    call = fg.jit(lambda x: (stream.write("a"), x)[1] * 2, backend="aten")
    with pytest.warns(fg.UnwatchedStateWarning, match="stream"):
        call(torch.ones(2))


def test_what_passes_through_a_stream_is_written_once():
    stream = io.StringIO(newline="\r\n")
    call = fg.jit(lambda x: (stream.write("a\n"), x)[1] * 2, backend="aten")
    for n in 1, 2:
        call(torch.ones(2))
        assert stream.getvalue() == "a\r\n" * n


def test_the_first_call_of_a_lazy_module_prints_once(capsys):
    layer = torch.nn.LazyLinear(3)
    call = fg.jit(lambda x: (print("p"), layer(x))[1], backend="aten")
    for _ in range(3):
        call(torch.ones(2, 4))
        assert capsys.readouterr().out == "p\n"


class Rarely:
    """What it would ask for stands in a method that does not run, and is found while the function runs."""

    def never(self):
        return time.time(), open("nowhere")

    def twice(self, x):
        return x * 2


class Holder:
    pass


def test_what_is_reached_in_the_run_and_never_runs_is_not_warned_about(recwarn):
    holder = Holder()
    holder.held = Rarely()
    compiled = fg.jit(lambda x: holder.held.twice(x) if x.dim() == 1 else holder.held.never(), backend="aten")
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert not [w for w in recwarn if w.category is fg.UnwatchedStateWarning]


class Caller:
    def __init__(self, f):
        self.f = f

    def run(self, x):
        return self.f(x)


def test_code_that_is_reached_is_merged_a_few_times(monkeypatch):
    """However many containers and functions a library leads to: each was compared with all code reached before."""
    merged, together = [], assumed.together
    monkeypatch.setattr(assumed, "together", lambda parts: merged.append(len(parts)) or together(parts))
    space = {"torch": torch}
    count = 40
    lines = [f"def f{i}(x):\n    return f{i + 1}(x) * table{i}['a']" for i in range(count)]
    exec("\n".join([*lines, f"def f{count}(x):\n    return x"]), space)
    space |= {f"table{i}": {"a": 1.0} for i in range(count)}
    holder = Holder()
    holder.held = Caller(space["f0"])
    assert torch.equal(fg.jit(lambda x: holder.held.run(x), backend="aten")(torch.ones(3)), torch.ones(3))
    assert len(merged) < count
