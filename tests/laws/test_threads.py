"""Threads: what one thread compiles no other thread sees, and one compiled function may be called by many.

``python -m tests.laws.test_threads ROUNDS`` goes on for as long as one likes.
"""

import collections
import functools
import logging
import math
import queue
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo  # replaces torch.manual_seed when it is imported
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import funcgrad as fg
from funcgrad.state.code_events import set_trace

# eager PyTorch puts the generator back
checkpoint = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
N = 16
SECONDS = 3


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


# ── what threads that compile nothing do: each asserts what it sees ──────────────────────────────────────────────────


def custom(x):
    (grad,) = torch.autograd.grad(Cube.apply(x).sum(), x)
    assert torch.equal(grad, 3 * x.detach() ** 2)


def checkpointed(x):
    runs = []
    (grad,) = torch.autograd.grad(checkpoint(lambda x: (runs.append(1), x.exp().sin())[1], x).sum(), x)
    torch.testing.assert_close(grad, x.detach().exp() * x.detach().exp().cos())
    assert len(runs) == 2  # once more in backward


def conditional(x):
    with torch.no_grad():
        assert torch.equal(torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), x.sin() if x.sum() > 0 else x.cos())


def other_memory(x):
    y, z = torch.ones(3), torch.zeros(2)
    assert y.set_(z) is y and y.data_ptr() == z.data_ptr()


def modules(x):
    heard = []
    net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())
    net[1].register_forward_pre_hook(lambda module, args: heard.append(module))
    assert torch.equal(net(x), x.tanh()) and heard == [net[1]]


def generators(x):
    g = torch.Generator().manual_seed(4)
    state = g.get_state()
    first = torch.rand(5, generator=g)
    g.set_state(state)
    assert torch.equal(first, torch.rand(5, generator=g))


LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


def logs(x):
    assert not LOGGER.disabled and LOGGER.filter(logging.makeLogRecord({"msg": "of another thread"}))


BYSTANDERS = [custom, checkpointed, other_memory, modules, generators, logs]


# ── what is compiled beside them ─────────────────────────────────────────────────────────────────────────────────────


def chained(x, k):
    return (x * k).sin().exp().sum()


def with_custom(x, k):
    return (Cube.apply(x) * k).sum()


def with_checkpoint(x, k):
    return (checkpoint(lambda x: x.exp().sin(), x) * k).sum()


def with_cond(x, k):
    return torch.cond(x.sum() > k, lambda x: x.sin() * 2, lambda x: x.cos() * 3, (x,)).sum()


def with_memory(x, k):
    y = torch.ones(3)
    y.set_(x.detach() * k)
    return (y * x).sum()


def with_module(x, k):
    return torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())(x).sum() * k


def with_fork(x, k):
    with torch.random.fork_rng():
        return x.sum() * k


EAGER = {
    # eager torch.cond traces, and one thread alone can
    with_cond: lambda x, k: (x.sin() * 2 if x.sum() > k else x.cos() * 3).sum(),
    with_fork: lambda x, k: x.sum() * k,  # eager PyTorch puts the generator back, whoever has drawn
}
COMPILED = [chained, with_custom, with_checkpoint, with_memory, with_module, with_fork]


def gradient(f, x, k):
    x = x.clone().requires_grad_()
    f = EAGER.get(f, f)
    (grad,) = torch.autograd.grad(f(x, k), x)
    return grad


def run_beside(tasks, rounds=1):
    """Run each of these in a thread of its own, all at once; what one raises, this raises."""
    start = threading.Barrier(len(tasks))

    def run(task):
        start.wait()
        for _ in range(rounds):
            task()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # turns so short that what two threads do falls in between one another
    try:
        with ThreadPoolExecutor(len(tasks)) as pool:
            for done in [pool.submit(run, task) for task in tasks]:
                done.result(120)
    finally:
        sys.setswitchinterval(interval)


def compile_for(seconds, seed, functions):
    """Compile one function after the other, each anew, and compare its result."""

    def run():
        stop, chosen = time.monotonic() + seconds, random.Random(seed)
        x = torch.linspace(-1, 1, N)
        while True:
            f, k = chosen.choice(functions), chosen.uniform(0.1, 2)
            options = {"backend": "aten", "dynamic": chosen.choice([None, False, True])}
            found = (
                gradient(fg.jit(f, **options), x, k) if chosen.random() < 0.5 else fg.grad_compiled(f, **options)(x, k)
            )
            torch.testing.assert_close(found, gradient(f, x, k))
            if time.monotonic() > stop:
                return

    return run


def functions_of_torch():
    owners = (
        torch,
        torch.random,
        torch.Tensor,
        torch.autograd,
        torch.autograd.Function,
        torch.utils.checkpoint,
        torch.Generator,
    )
    places = {
        (owner, name): id(value) for owner in owners for name, value in vars(owner).items() if not name.startswith("__")
    }
    return places | {"hooks": dict(torch.nn.modules.module._global_forward_pre_hooks), "set_": torch.Tensor.set_}


def notes_of_modes():
    notes = {k: v for k, v in vars(torch.utils._python_dispatch).items() if k.startswith("_is_in_")}
    return notes | {"fx": torch.fx._symbolic_trace._is_fx_tracing_flag, "lift": torch._C._only_lift_cpu_tensors()}


def law(seconds, drawing, seed=0):
    """Threads compile while others draw and differentiate.

    Eager ``torch.cond`` runs the compiler of torch, which notes for the whole process that it traces, and puts the
    generator back: it is looked at where nobody draws, and compiles it.
    """
    compiled, bystanders = ([*COMPILED, with_cond], BYSTANDERS) if drawing else (COMPILED, [*BYSTANDERS, conditional])
    fg.jit(torch.sin, backend="aten")(torch.ones(1))  # what stays in torch's places is there from the first trace on
    before, notes = functions_of_torch(), notes_of_modes()
    torch.manual_seed(seed)
    drawn, stop = [], time.monotonic() + seconds

    def draw():
        while time.monotonic() < stop:
            drawn.append(torch.randn(N, dtype=torch.float64))
            drawn.append(F.dropout(torch.ones(N)))

    def look(bystanders):
        def run():
            x = torch.linspace(-1, 1, N, requires_grad=True)
            while time.monotonic() < stop:
                for bystander in bystanders:
                    bystander(x)

        return run

    watching = [look(bystanders[i :: 4 - drawing]) for i in range(4 - drawing)] if drawing < 4 else []
    run_beside([*[draw] * drawing, *watching, *(compile_for(seconds, f"{seed} {i}", compiled) for i in range(4))])
    if drawing == 1:  # the very sequence
        torch.manual_seed(seed)
        for found in drawn:
            assert torch.equal(
                found, torch.randn(N, dtype=torch.float64) if found.dtype == torch.float64 else F.dropout(torch.ones(N))
            )
    numbers = [v for row in drawn if row.dtype == torch.float64 for v in row.tolist()]
    assert len(set(numbers)) == len(numbers)
    assert functions_of_torch() == before and notes_of_modes() == notes


@pytest.mark.parametrize("drawing", [0, 1, 2])
def test_compiling_changes_nothing_for_other_threads(drawing):
    law(SECONDS, drawing)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 7))
def test_compiling_changes_nothing_for_other_threads_for_long(seed):
    law(30, seed % 4, seed)


ATTENTION = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()


def masked(x):
    return ATTENTION(x[None], x[None], x[None], key_padding_mask=torch.zeros(1, len(x), dtype=torch.bool))[0]


COMPILED_BY_TORCH = {
    "len": lambda x: x / len(x),
    "math": lambda x: x * math.sqrt(len(x)) + math.pi,
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, lambda x: x.cos() * math.exp(2.0), (x,)),
    "custom function": Cube.apply,
    "has_torch_function": masked,
    "encoder": torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1, enable_nested_tensor=False
    ).eval(),
}


@pytest.mark.parametrize("moment", ["before", "while"])
@pytest.mark.parametrize("name", COMPILED_BY_TORCH)
def test_what_torch_compile_made_in_one_thread_stays_while_another_traces(name, moment):
    """Compiled before a trace begins, or while one runs, it is not compiled again in it, nor after it."""
    f, graphs, x = COMPILED_BY_TORCH[name], [], torch.linspace(-1, 1, 12).view(3, 4)
    torch.compiler.reset()
    fg.jit(torch.sin, backend="aten")(torch.ones(1))
    traces, may_go_on = threading.Event(), threading.Event()

    def traced(x):
        traces.set()
        assert may_go_on.wait(60)
        return x / len(x) * math.sqrt(x.shape[0])

    @torch.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    def other(x):
        return f(x)

    with torch.no_grad():
        if moment == "before":
            other(x)
        thread = threading.Thread(target=fg.jit(traced, backend="aten", dynamic=True), args=(torch.ones(5, 2),))
        thread.start()
        assert traces.wait(60)
        try:
            torch.testing.assert_close(other(x), f(x))
            made = len(graphs)
            torch.testing.assert_close(other(x), f(x))
        finally:
            may_go_on.set()
            thread.join()
        assert len(graphs) == made > 0
        torch.testing.assert_close(other(x), f(x))
    assert len(graphs) == made


def test_threads_that_trace_code_do_not_refuse_one_another():
    """Python before 3.12 refuses ``sys.settrace`` while another thread's runs: a hook of ``sys.audit``, which the first
    compile adds, is called in it."""
    fg.jit(torch.sin, backend="aten")(torch.ones(1))

    def trace():
        trace = lambda *_: None  # noqa: E731
        set_trace(trace)
        assert sys.gettrace() is trace
        set_trace(None)

    run_beside([trace] * 4, rounds=5000)


# ── one function of many threads ─────────────────────────────────────────────────────────────────────────────────────


def test_first_calls_of_many_signatures_at_once():
    """Each signature compiles once, whoever comes first; every call has its own result, and writes what it writes
    once."""
    called = []

    def f(x, k):
        called.append((x.dtype, k))
        return (x * k).sum()

    c = fg.jit(f, backend="aten", dynamic=False)
    calls = [
        (torch.arange(4, dtype=dtype), k) for dtype in (torch.float32, torch.float64, torch.int64) for k in (1, 2, 3)
    ]

    def run(own):
        for x, k in own:
            assert c(x, k).item() == 6 * k

    run_beside([lambda own=random.Random(i).sample(calls, len(calls)): run(own) for i in range(8)])
    assert c.cache_info().misses == len(calls)
    assert collections.Counter(called) == {(x.dtype, k): 8 for x, k in calls}
    with fg.no_retrace():
        run_beside([lambda own=random.Random(i).sample(calls, len(calls)): run(own) for i in range(8)], rounds=20)


@torch.library.custom_op("funcgrad_threads::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)  # other threads have their turn
    return x.clone()


slow.register_fake(torch.empty_like)


def test_writes_of_several_signatures_are_all_there():
    """The programs of one function write to the same buffer: another has its turn between what one computes and what
    it writes."""
    total = torch.zeros(())
    c = fg.jit(lambda x: slow(x + total.add_(x.sum())), dynamic=False, backend="aten")
    inputs = [torch.ones(n) for n in (1, 2, 3)]
    for x in inputs:
        c(x)
    run_beside([lambda x=x: c(x) for x in inputs], rounds=5)
    assert total.item() == 6 * 6


def test_gradients_of_several_threads_are_all_added():
    """The first call finds no gradient and makes one, the others add to it: also where all are the first."""
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    c = fg.jit(lambda x: (w * slow(x)).sum().backward(), backend="aten")
    for n in (1, 2, 4, 4):
        w.grad = None
        run_beside([lambda: c(x)] * n, rounds=2)
        assert torch.equal(w.grad, torch.full((3,), 2.0 * n))


def test_running_statistics_are_those_of_all_calls():
    net = torch.nn.BatchNorm1d(2, momentum=1.0)
    c = fg.jit(net, backend="aten")
    run_beside([lambda: c(torch.randn(4, 2))] * 6, rounds=10)
    assert net.num_batches_tracked.item() == 60


def test_what_another_threads_trace_replaces_is_no_part_of_the_key():
    """Compiled while another thread traces, and called when none does, and the other way round."""
    x, tracing, done = torch.ones(2), queue.SimpleQueue(), queue.SimpleQueue()

    def waits(x):
        tracing.put(None)
        done.get(timeout=60)
        return x * 2

    def f(x):
        return checkpoint(torch.sin, x)

    before, during = fg.jit(f, backend="aten"), fg.jit(f, backend="aten")
    before(x)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(fg.jit(waits, backend="aten"), x)
        tracing.get(timeout=60)
        with fg.no_retrace():
            before(x)
        during(x)
        done.put(None)
        done.put(None)  # it runs twice
        other.result(60)
    with fg.no_retrace():
        torch.testing.assert_close(during(x), x.sin())


def test_a_function_that_waits_for_another_thread_which_compiles():
    """While one thread traces it, another one compiles: neither waits for the other for ever."""
    inner = fg.jit(lambda x: x * 2, backend="aten")

    def f(x):
        with ThreadPoolExecutor(1) as pool:
            k = pool.submit(lambda: inner(torch.ones(1)).item()).result(60)
        return x * k

    torch.testing.assert_close(fg.jit(f, backend="aten")(torch.ones(2)), torch.full((2,), 2.0))


def test_two_functions_that_call_each_other_are_compiled_at_once():
    for _ in range(5):
        functions = {}
        functions["f"] = fg.jit(lambda x, n: x * 2 if n == 0 else functions["g"](x, n - 1) + 1, backend="aten")
        functions["g"] = fg.jit(lambda x, n: x * 3 if n == 0 else functions["f"](x, n - 1) + 1, backend="aten")
        x = torch.ones(2)

        def check(c, n, value, x=x):
            assert c(x, n).tolist() == [value] * 2

        calls = [("f", 0, 2), ("f", 1, 4), ("f", 2, 4), ("g", 0, 3), ("g", 1, 3), ("g", 2, 5)]
        run_beside([lambda name=name, n=n, v=v: check(functions[name], n, v) for name, n, v in calls])


def test_a_program_that_has_to_go_is_not_lost_by_another_threads_hit():
    """Hits put what they found in front while others compile: no program that was compiled is forgotten."""
    c = fg.jit(lambda x, k: x * k, dynamic=False, backend="aten")
    x = torch.ones(1)
    for k in range(4):
        c(x, k)
    done = threading.Event()

    def hit():
        while not done.is_set():
            for k in range(4):
                c(x, k)

    def add():
        for k in range(4, 20):
            c(x, k)
        done.set()

    run_beside([hit, add])
    assert c.cache_info().currsize == c.cache_info().misses == 20


def _counts(own, x):
    own.n = getattr(own, "n", 0) + 1
    return x * own.n


def _scales(own, x):
    return x * own.scale


def _keeps(own, x):
    own.last = x.sum() * 2
    return x + own.last


@pytest.mark.parametrize("f", [_counts, _scales, _keeps])
def test_what_a_thread_local_holds_is_that_of_the_thread_that_calls(f):
    """It was that of the thread that had compiled."""

    def observed(wrap):
        own, found = threading.local(), []
        call = wrap(lambda x: f(own, x))

        def run(i):
            own.scale = float(i + 2)
            found.append([call(torch.ones(2)) for _ in range(3)])
            found.append({k: v for k, v in vars(own).items()})

        for i in range(3):
            thread = threading.Thread(target=run, args=(i,))
            thread.start()
            thread.join()
        run(7)
        return found

    torch.testing.assert_close(observed(fg.jit), observed(lambda f: f))


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        law(20, number % 4, number)
        print(f"round {number}: no difference", flush=True)
