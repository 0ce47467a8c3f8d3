"""Functions of installed packages are looked into when they begin to run: of the thousands that a large library has,
most never do. Eager PyTorch is the oracle, also where somebody else hears what runs, as a debugger does."""

import concurrent.futures
import contextlib
import sys
import textwrap
import threading

import pytest
import torch

import funcgrad as fg

X = torch.linspace(-1.0, 1.0, 4)


@contextlib.contextmanager
def _traced(again):
    """Somebody else hears what runs, and sets itself ``again`` in each call, as what measures coverage does."""
    heard = set()

    def hear(frame, event, _):
        heard.add((frame.f_code.co_name, event))
        if again and event == "call":
            sys.settrace(hear)
        return hear

    sys.settrace(hear)
    try:
        yield
        assert sys.gettrace() is hear and {("f", "call"), ("f", "line"), ("f", "return")} <= heard
    finally:
        sys.settrace(None)


WAYS = {
    "alone": contextlib.nullcontext,
    "under a debugger": lambda: _traced(False),
    "measuring coverage": lambda: _traced(True),
}

CASES = {
    # source of a package with a function ``f``, and what is done between calls
    "a stack that what a class makes is put on, where no code names its method": (
        """
        import threading
        local = threading.local()
        class Scope:
            def __enter__(self):
                if not hasattr(local, "stack"):
                    local.stack = []
                local.stack.append(self)
            def __exit__(self, *error):
                local.stack.pop()
        def scope():
            return Scope()
        def depth():
            return len(getattr(local, "stack", ()))
        def f(x):
            with scope():
                x = x * (1 + depth())
            return x + depth()
        """,
        lambda package, step: None,
    ),
    "a number that an operator of a new object reads": (
        """
        FACTORS = [2.0]
        class Scaled:
            def __init__(self, x):
                self.x = x
            def __matmul__(self, other):
                return self.x * FACTORS[0] + other
        def f(x):
            return Scaled(x) @ x
        """,
        lambda package, step: package.FACTORS.__setitem__(0, float(step)),
    ),
    "a number that a generator reads when it goes on": (
        """
        STEP = 1.0
        def numbers():
            yield 1.0
            yield STEP
        def f(x):
            for number in numbers():
                x = x + number
            return x
        """,
        lambda package, step: setattr(package, "STEP", float(step)),
    ),
    "a function that is found in a table by a text": (
        """
        SCALE = {"value": 2.0}
        def _double(x):
            return x * SCALE["value"]
        TABLE = {"dou" + "ble": _double}
        def f(x):
            return TABLE["double"](x)
        """,
        lambda package, step: package.SCALE.__setitem__("value", float(step)),
    ),
    "a function that runs in another thread": (
        """
        import concurrent.futures
        SCALE = 2.0
        def scale():
            return SCALE
        def f(x):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                return x * pool.submit(scale).result()
        """,
        lambda package, step: setattr(package, "SCALE", float(step)),
    ),
    "what a backward pass of its own reads": (
        """
        import torch
        SCALE = 2.0
        def scale():
            return SCALE
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1
            @staticmethod
            def backward(ctx, g):
                return g * scale()
        def f(x):
            return Scaled.apply(x).sum()
        """,
        lambda package, step: setattr(package, "SCALE", float(step)),
    ),
    "a count that it keeps beside what it caches": (
        """
        import functools
        COUNT = [0]
        @functools.lru_cache
        def made(n):
            COUNT[0] += 1
            return n + COUNT[0]
        def f(x):
            return x * made(3) + COUNT[0]
        """,
        lambda package, step: None if step % 2 else package.made.cache_clear(),
    ),
    "which type, and which object, something is": (
        """
        SEEN = {}
        def f(x):
            SEEN[type(x)] = SEEN.get(type(x), 0) + 1
            return x * SEEN[type(x)]
        """,
        lambda package, step: None,
    ),
    "a property of a class, and a method that another one is": (
        """
        class Model:
            factor = 2.0
            @property
            def doubled(self):
                return self.factor * 2
            def call(self, x):
                return x * self.doubled
            __call__ = call
        MODEL = Model()
        def f(x):
            return MODEL(x)
        """,
        lambda package, step: setattr(package.Model, "factor", float(step)),
    ),
    "a number that a lambda reads which is an operator": (
        """
        FACTORS = [2.0]
        class Scaled:
            def __init__(self, x):
                self.x = x
            __matmul__ = lambda self, other: self.x * FACTORS[0] + other
        def f(x):
            return Scaled(x) @ x
        """,
        lambda package, step: package.FACTORS.__setitem__(0, float(step)),
    ),
    "what operators of two classes close over, which one function makes": (
        """
        FIRST, SECOND, OFFSETS = [2.0], [3.0], [1.0]
        def scaling(factors):
            def matmul(*operands):
                return operands[0].x * factors[0] + operands[1] + OFFSETS[0]
            return matmul
        class A:
            def __init__(self, x):
                self.x = x
            __matmul__ = scaling(FIRST)
        class B(A):
            __matmul__ = scaling(SECOND)
        def f(x):
            return (A(x) @ x) * (B(x) @ x)
        """,
        lambda package, step: (package.SECOND if step % 2 else package.OFFSETS).__setitem__(0, float(step)),
    ),
    "what a class that it makes closes over": (
        """
        SCALE = [2.0]
        def f(x):
            class Scaled:
                def __matmul__(self, other):
                    return x * other * SCALE[0]
            return Scaled() @ x
        """,
        lambda package, step: package.SCALE.__setitem__(0, float(step)),
    ),
    "code that is one among two globals": (
        """
        CODE = compile("K = [1.0]\\nclass Scale:\\n def __matmul__(self, x): return x * K[0]", "<made>", "exec")
        FIRST, SECOND = {"__name__": __name__}, {"__name__": __name__}
        exec(CODE, FIRST)
        exec(CODE, SECOND)
        A, B = FIRST["Scale"], SECOND["Scale"]
        def f(x):
            return A() @ x + B() @ x
        """,
        lambda package, step: package.SECOND["K"].__setitem__(0, float(step)),
    ),
    "a function that runs in a thread that is there": (
        """
        import multiprocessing.pool
        POOL, SCALE = multiprocessing.pool.ThreadPool(1), 2.0
        def scale(_):
            return SCALE
        def f(x):
            return x * POOL.map(scale, [1])[0]
        """,
        lambda package, step: setattr(package, "SCALE", float(step)),
    ),
    "a function that is put into the queue of a thread": (
        """
        import queue, threading
        PUT, DONE, SCALE = queue.SimpleQueue(), queue.SimpleQueue(), [2.0]
        def work():
            while True:
                DONE.put(PUT.get()())
        threading.Thread(target=work, daemon=True).start()
        def scale():
            return SCALE[0]
        def f(x):
            PUT.put(scale)
            return x * DONE.get()
        """,
        lambda package, step: package.SCALE.__setitem__(0, float(step)),
    ),
    "a function that runs where nobody traces": (
        """
        import sys
        SCALE = 2.0
        def scale():
            return SCALE
        def f(x):
            before = sys.gettrace()
            sys.settrace(None)
            try:
                return x * scale()
            finally:
                sys.settrace(before)
        """,
        lambda package, step: setattr(package, "SCALE", float(step)),
    ),
    "a count that a profiler keeps": (
        """
        import sys
        COUNT = [0]
        def profile(frame, event, value):
            if frame.f_code.co_name == "scale":
                COUNT[0] += 1
        def scale():
            return 2.0
        def f(x):
            sys.setprofile(profile)
            try:
                return x * scale()
            finally:
                sys.setprofile(None)
        """,
        lambda package, step: None,
    ),
    "counts that functions have as attributes": (
        """
        import functools
        def counted(function):
            @functools.wraps(function)
            def call(*args):
                call.calls = getattr(call, "calls", 0) + 1
                return function(*args)
            return call
        @counted
        def g(x):
            return x * 2
        def f(x):
            f.calls += 1
            return g(x) * f.calls + g.calls
        f.calls = 0
        """,
        lambda package, step: None,
    ),
    "a count that a module has as an attribute": (
        """
        import sys
        MODULE, SCALE = sys.modules[__name__], 2.0
        def scaled(x):
            return x * SCALE
        def f(x):
            MODULE.n = getattr(MODULE, "n", 0) + 1
            MODULE.SCALE += 1.0
            return scaled(x) * MODULE.n
        """,
        lambda package, step: None,
    ),
    "a metaclass that calls a method of type with what it is given": (
        """
        class Meta(type):
            def __call__(cls, *args):
                return type.__call__(cls, *args)
        class Scaled(metaclass=Meta):
            def __init__(self, x):
                self.x = x * 2
        def f(x):
            return Scaled(x).x
        """,
        lambda package, step: None,
    ),
    "a closure that it makes for each call": (
        """
        OFFSET = [1.0]
        def maker(n):
            def add(x):
                return x + n + OFFSET[0]
            return add
        def f(x):
            return maker(2.0)(x)
        """,
        lambda package, step: package.OFFSET.__setitem__(0, float(step)),
    ),
}


@pytest.mark.parametrize("heard", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_what_a_package_reads_and_writes_is_as_in_eager(case, heard, installed):
    source, between = CASES[case]
    eager, own = (installed(f"runs_{i}", textwrap.dedent(source)) for i in range(2))
    compiled = fg.jit(lambda x: own.f(x), backend="aten")
    with WAYS[heard]():
        for step in range(5):
            for package in (eager, own):
                between(package, step)
            x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
            want, found = eager.f(x), compiled(y)
            want.sum().backward(), found.sum().backward()
            assert torch.equal(found, want) and torch.equal(x.grad, y.grad), step
    assert "stack" not in vars(own) and vars(getattr(own, "local", own)).get("stack", []) == []
    for counts in ("COUNT", "n", "SCALE"):
        assert getattr(own, counts, None) == getattr(eager, counts, None)
    assert vars(own.f) == vars(eager.f)


def test_code_of_two_files_may_be_equal(installed):
    source = (
        "FACTORS = [2.0]\n"
        "class Scaled:\n    def __init__(self, x):\n        self.x = x\n"
        "    def __matmul__(self, other):\n        return self.x * FACTORS[0] + other\n"
        "def f(x):\n    return Scaled(x) @ x\n"
    )
    first, second = installed("runs_first", source), installed("runs_second", source)
    assert first.Scaled.__matmul__.__code__ == second.Scaled.__matmul__.__code__
    compiled = fg.jit(lambda x: first.f(x) + second.f(x), backend="aten")
    for factor in (3.0, 4.0, 5.0):
        second.FACTORS[0] = factor
        assert torch.equal(compiled(X), X * 3 + (X * factor + X))


@pytest.mark.parametrize("read", ["import {0}; return x * {0}.SCALE[0]", "from {0} import SCALE; return x * SCALE[0]"])
def test_what_a_package_holds_that_is_imported_first_is_watched(read, installed, monkeypatch):
    later = installed("runs_later", "SCALE = [2.0]\n")
    monkeypatch.delitem(sys.modules, later.__name__)
    package = installed("runs_importing", f"def f(x):\n    {read.format(later.__name__)}\n")
    compiled = fg.jit(lambda x: package.f(x), backend="aten")
    assert torch.equal(compiled(X), X * 2)
    sys.modules[later.__name__].SCALE[0] = 3.0
    assert torch.equal(compiled(X), X * 3)


def test_what_does_not_run_is_no_part_of_a_program(installed):
    package = installed(
        "runs_seldom",
        "USED, UNUSED = [2.0], [3.0]\n"
        "def used(x):\n    return x * USED[0]\n"
        "def unused(x):\n    return x * UNUSED[0]\n"
        "def f(x, seldom):\n    return unused(x) if seldom else used(x)\n",
    )
    compiled = fg.jit(lambda x: package.f(x, False), backend="aten")
    assert torch.equal(compiled(X), X * 2)
    package.UNUSED[0] = 4.0
    assert torch.equal(compiled(X), X * 2) and compiled.cache_info().misses == 1
    package.USED[0] = 5.0
    assert torch.equal(compiled(X), X * 5) and compiled.cache_info().misses == 2


@pytest.mark.parametrize("call", ["drawn()", "POOL.submit(drawn).result()"])
def test_a_refusal_is_not_caught_by_the_function(call, installed):
    """What is raised where code begins to run, ends what hears of it: the function may not go on unheard."""
    package = installed(
        "runs_iterators",
        "import concurrent.futures\n"
        "NUMBERS, POOL = {'of all': iter([2.0, 3.0, 4.0])}, concurrent.futures.ThreadPoolExecutor(1)\n"
        "def drawn():\n    return next(NUMBERS['of all'])\n"
        f"def f(x):\n    try:\n        return x * {call}\n    except Exception:\n        return x\n",
    )
    with pytest.raises(fg.ImpureFunctionError, match="iterator"):
        fg.jit(lambda x: package.f(x), backend="aten")(X)
    assert next(package.NUMBERS["of all"]) == 2.0
    assert sys.gettrace() is None


def test_what_runs_after_a_breakpoint(installed):
    """Whoever sets one hears what runs from then on, and nobody else."""
    package = installed(
        "runs_stopped",
        "import bdb\nSCALE, STOPPED = [2.0], []\n"
        "class Debugger(bdb.Bdb):\n    def user_line(self, frame):\n"
        "        STOPPED.append(frame.f_code.co_name)\n        self.set_continue()\n"
        "def scale():\n    return SCALE[0]\n"
        "def f(x):\n    Debugger().set_trace()\n    return x * scale()\n",
    )
    compiled = fg.jit(lambda x: package.f(x), backend="aten")
    for scale in (2.0, 3.0, 3.0):
        package.SCALE[0] = scale
        assert torch.equal(compiled(X), X * scale)
    assert sys.gettrace() is None


def test_threads_hear_of_themselves_alone(installed):
    """Two threads compile at once, each what it runs."""
    packages = [
        installed(f"runs_at_once_{i}", f"SCALE = [{i}.0]\ndef f(x):\n    return x * SCALE[0]\n") for i in range(4)
    ]
    barrier = threading.Barrier(4)

    def run(package):
        compiled = fg.jit(lambda x: package.f(x), backend="aten")
        barrier.wait()
        first = compiled(X)
        package.SCALE[0] += 10
        return first, compiled(X)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, (first, second) in enumerate(pool.map(run, packages)):
            assert torch.equal(first, X * i) and torch.equal(second, X * (i + 10))
