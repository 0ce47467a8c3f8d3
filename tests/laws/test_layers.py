"""Laws of the layers: a stack around a function's own kernel is the function, each sentence holds on every inner
call, a layer is there only where facts ask for it, and without it a law fails."""

import itertools
import json
from contextlib import contextmanager, suppress

import attrs
import pytest
import torch
from attrs import evolve
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg
from funcgrad.capture.memory import share_elements
from funcgrad.capture.views import Geometry, steps_between
from funcgrad.layers import stack
from funcgrad.layers.inverse import inverse_of
from funcgrad.layers.layer import statements_of, wrap
from funcgrad.layers.printing import print_wrapper
from funcgrad.layers.stack import ORDER, outer_signature
from funcgrad.layers.statements import Run
from funcgrad.runtime.call import print_call
from funcgrad.slots import Arg, Base, Final, Out, Signature
from funcgrad.source import compile_function
from funcgrad.torch_private.tensors import is_wrapper_subclass, storage_id
from funcgrad.transforms import programs as programs_of_functions

from .plain_statements import from_data, to_data
from .programs import Case, Count, difference, generate, run
from .refusals import reason_of

# A program of the generator takes some 20 ms to compile and run.
FEW = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 10**6)


def program_of(case, compile=fg.jit):
    setup, f = case.functions()
    return compile(f).program(*setup()[0])


def carried_out(case):
    """The program of a case that is not refused by name, and whose inputs are its arguments (not their gradients)."""
    try:
        program = program_of(case)
    except fg.FuncgradError as error:
        assume(reason_of(error) is None)
        raise
    assume(not program.facts.captured)
    return program


def runs_in_eager(case):
    return run(case, lambda f: f).error is None


# ── the sentences, checked on a real inner call ──────────────────────────────────────────────────────────────────


def look(value):
    return (value.shape, value.stride(), value.storage_offset()) if isinstance(value, Tensor) else value


def same_memory(a, b):
    return storage_id(a) == storage_id(b)


class Spy:
    """A kernel that writes down the name of each layer whose sentence does not hold when it is called."""

    def __init__(self, program):
        self.kernel = program.call.names["kernel"]
        self.inner = program.layers[-1].inner if program.layers else outer_of(program)
        self.facts = program.facts
        self.outer = {}
        self.broken = set()
        self.calls = 0

    def __call__(self, *values):
        self.calls += 1
        ins = {s: v for s, v in zip(self.inner.ins, values, strict=True) if isinstance(v, Tensor)}
        self.before(ins)
        looks = {s: look(v) for s, v in ins.items()}
        held = {s: v.detach().clone() for s, v in ins.items()}
        flags = {s: (v.grad, v.requires_grad) for s, v in ins.items() if v.is_leaf}
        outs = self.kernel(*values)
        self.note(
            "leaves",
            any(v.grad is not flags[s][0] or v.requires_grad is not flags[s][1] for s, v in ins.items() if s in flags),
        )
        self.note("restride", any(look(v) != looks[s] for s, v in ins.items()))
        self.note("mutation", any(not torch.allclose(v.detach(), held[s], 0, 0, True) for s, v in ins.items()))
        self.after(ins, dict(zip(self.inner.outs, outs, strict=True)))
        return outs

    def before(self, ins):
        self.note("dedupe", len({id(v) for v in ins.values()}) < len(ins))
        # carriers bring the history of a family; its memory goes in as that of the base
        carriers = {c for o in self.facts.needed_overlaps() for c in self.facts.carriers(o)}
        written = {s for s in ins if s in self.facts.changes and self.facts.changes[s].data} - carriers
        reached = [
            (a, b)
            for a in written
            for b in ins
            if b is not a and b not in carriers and self.reaches(b, ins[b], a, ins[a])
        ]
        self.note("synthetic base", any(not self.is_overwritten(b, by=a) for a, b in reached))
        self.note("subclass", any(map(is_wrapper_subclass, ins.values())))
        self.note("autocast", torch.is_autocast_enabled("cpu"))
        self.note("grad mode", not torch.is_grad_enabled())

    def reaches(self, slot, value, written, written_value):
        """Whether an inner input reaches memory the function writes to through another: for a base, through the
        views it is for."""
        windows = [self.outer[of] for of in written.of] if isinstance(written, Base) else [written_value]
        return any(same_memory(value, t) and share_elements(value, t) for t in windows)

    def is_overwritten(self, slot, by):
        """A base may reach a view of it that overlaps no other, if what the view holds in the end is written after
        the base."""
        outs = self.inner.outs
        return (
            isinstance(slot, Base)
            and not isinstance(by, Base)
            and Final(slot) in outs
            and outs.index(Final(slot)) < outs.index(Final(by))
        )

    def after(self, ins, outs):
        of_function = {s: v for s, v in outs.items() if not isinstance(s, Final) and isinstance(v, Tensor)}
        aliases = [(o, i) for o in of_function.values() for i in ins.values() if o is i or same_memory(o, i)]
        self.note("outputs", bool(aliases))
        grad = any(v.requires_grad for v in of_function.values())
        self.note("untracked", grad and not self.facts.differentiable)

    def note(self, name, is_broken):
        if is_broken:
            self.broken.add(name)


def outer_of(program):
    return outer_signature(program.facts, Out)


def spied(program):
    """The program's printed call with a spy in the place of its kernel."""
    spy = Spy(program)
    call = compile_function(evolve(program.call, names={**program.call.names, "kernel": spy}))

    def spied_call(*args):
        spy.outer = dict(zip((slot for slot, _, _ in program.facts.inputs), args, strict=True))
        return call(args, {})

    return spy, spied_call


@FEW
@given(SEEDS)
def test_the_sentences_hold_on_every_inner_call(seed):
    case = generate(seed)
    assume(runs_in_eager(case))
    spy, call = spied(carried_out(case))
    run(case, lambda f: call)
    assert spy.calls == 1
    # grad mode may be off, and is, but where a kernel asks for it
    assert spy.broken <= {"grad mode"}


# ── round trip ───────────────────────────────────────────────────────────────────────────────────────────────────


def printed(program):
    return wrap(program.layers, outer_of(program), program.call.names["kernel"])


def one_by_one(program):
    kernel = program.call.names["kernel"]
    for layer in reversed(program.layers):
        kernel = layer(kernel)
    return kernel


@FEW
@given(SEEDS)
def test_a_stack_around_its_own_kernel_is_the_function(seed):
    case = generate(seed)
    eager = run(case, lambda f: f)
    assume(eager.error is None)
    program = carried_out(case)
    assert difference(eager, run(case, lambda f: printed(program))) is None


@settings(FEW, max_examples=16)
@given(SEEDS)
def test_statements_are_plain_data(seed):
    """A list of statements goes through JSON and comes back as it was: the same text is printed of it, and it does
    the same."""
    case = generate(seed)
    assume(runs_in_eager(case))
    program = carried_out(case)
    outer, objects = outer_of(program), []
    there = statements_of(program.layers, outer)
    data = json.loads(json.dumps(to_data(there, objects)))
    back = from_data(data, objects)
    assert list(map(str, back)) == list(map(str, there)) and to_data(back, objects) == data
    both = [print_wrapper(statements, outer, len) for statements in (there, back)]
    assert both[0].text == both[1].text and both[0].names == both[1].names


def rebuilt(f, args):
    """A program; the call printed again of its statements, which went through plain data; and these statements."""
    printed_of = []

    def kept(around, *more):
        printed_of.append((around, *more))
        return print_call(around, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs_of_functions, "print_call", kept)
        program = fg.jit(f).program(*args)
    (around, *more), objects = printed_of[-1], []
    found = from_data(json.loads(json.dumps(to_data(around.statements, objects))), objects)
    return program, print_call(attrs.evolve(around, statements=found), *more), found


@settings(FEW, max_examples=16)
@given(SEEDS)
def test_statements_are_the_printed_call_and_its_inverse(seed):
    """The call is printed of them. Read the other way, they lead from what the kernel is given to what the caller
    has."""
    case = generate(seed)
    assume(runs_in_eager(case))
    carried_out(case)
    setup, f = case.functions()
    program, call, statements = rebuilt(f, setup()[0])
    assert call.text == program.call.text and call.names.keys() == program.call.names.keys()
    (run_of,) = (statement for statement in statements if isinstance(statement, Run))
    kernel, inverse, seen = program.call.names["kernel"], inverse_of(statements), {}

    def watched(*values):
        found, _ = inverse(dict(zip(run_of.ins, values, strict=True)), lambda _, value: value)
        args = seen["args"]
        assert [look(found[slot]) for slot in args] == [look(value) for value in args.values()]
        tensors = {slot: value for slot, value in args.items() if isinstance(value, Tensor)}
        assert all(same_memory(found[slot], value) for slot, value in tensors.items())
        if program.facts.differentiable:  # else the kernel runs below autograd
            assert all(found[slot].requires_grad == value.requires_grad for slot, value in tensors.items())
        for a, b in itertools.combinations(tensors, 2):
            assert (found[a] is found[b]) == (tensors[a] is tensors[b])
        seen["calls"] = seen.get("calls", 0) + 1
        return kernel(*values)

    around = compile_function(evolve(call, names={**call.names, "kernel": watched}))

    def outside(*args):
        seen["args"] = dict(zip((slot for slot, _, _ in program.facts.inputs), args, strict=True))
        return around(args, {})

    assert difference(run(case, lambda f: f), run(case, lambda f: outside)) is None
    assert seen["calls"] == 1


def test_the_inverse_of_a_call():
    def f(p, q, a, b, c):
        p.mul_(2)
        a.add_(1)
        c.t_()
        return p + q, b * 2, c.sum(0)

    x, base = torch.ones(2), torch.arange(4.0)
    _, _, statements = rebuilt(f, (x, x, base[:3], base[1:], torch.ones(2, 3)))
    inverse, memory = inverse_of(statements), Base((Arg("a"), Arg("b")))
    assert [f"{slot} is {view}" for slot, view in inverse.looks] == [
        "a is base(a, b).slice.Tensor(0, 0, 3, 1)",
        "b is base(a, b).slice.Tensor(0, 1, 4, 1)",
        "q is p",
    ]
    assert inverse.written == {Arg("p"), memory, Arg("c")} and not inverse.keys


def test_the_statements_of_a_call_in_order():
    def f(a, b):
        a.mul_(2)
        b.t_()
        return a[1:], b[0]

    program = fg.jit(f).program(torch.ones(3), torch.ones(2, 3))
    assert (
        "\n".join(map(str, statements_of(program.layers, outer_of(program))))
        == """\
bump the versions of b
final(a) = kernel(a, b)
copy final(a) into a
out[0] = a.slice.Tensor(0, 1, 9223372036854775807)
b: t_
out[1] = b.select.int(0, 0)"""
    )


@FEW
@given(SEEDS)
def test_layers_one_by_one_are_the_printed_stack(seed):
    case = generate(seed)
    assume(runs_in_eager(case))
    program = carried_out(case)
    assert difference(run(case, lambda f: printed(program)), run(case, lambda f: one_by_one(program))) is None


# ── only when needed ─────────────────────────────────────────────────────────────────────────────────────────────

PURE = (
    "{x}.sin()",
    "{x} * {y}.mean()",
    "({x} + 1).t()",
    "{x}[:1] * 2",
    "{x}.reshape(-1).cumsum(0)",
    "{x}.clone().mul_(2)",
)


@FEW
@given(st.data())
def test_a_pure_function_of_distinct_tensors_has_no_layers(data):
    """Nor has one that writes to its own intermediates."""
    names = ["a", "b", "c"]
    inputs = names.copy()
    lines = []
    for i in range(data.draw(st.integers(1, 5))):
        x, y = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        lines.append(f"v{i} = {data.draw(st.sampled_from(PURE)).format(x=x, y=y)}")
        names.append(f"v{i}")
    namespace = {}
    exec(f"def f(a, b, c):\n    {'; '.join(lines)}\n    return (v{len(lines) - 1},)", namespace)
    case = Case(
        lambda: [torch.ones(2, 2, requires_grad=grad) for _, grad in zip(inputs, grads, strict=True)], namespace["f"]
    )
    # with some that require grad, but only if what is returned depends on them: else the kernel runs below autograd
    grads = (data.draw(st.booleans()),) * 3
    assume(runs_in_eager(case))
    assert program_of(case).layers == ()


# ── each layer is needed ─────────────────────────────────────────────────────────────────────────────────────────


def twice():
    x = torch.arange(3.0)
    return x, x


def overlapping():
    base = torch.arange(8.0)
    return base[:4], base[2:6]


def one():
    return (torch.arange(6.0).view(2, 3),)


def f_dedupe(a, b):
    a.mul_(2)
    return (a + b,)


def f_restride(a):
    a.t_()
    return (a.sum(0),)


def f_outputs(a):
    return a[1:], a * 2


def f_synthetic_base(a, b):
    a.mul_(2)
    return (b + 1,)


def f_mutation(a):
    a.mul_(2)
    return (a.sum(),)


def f_storage(a):
    a.data = a * 2
    return (a.sum(),)


def f_leaves(a):
    a.requires_grad_()
    return (a * 2,)


def computed():
    return (torch.arange(6.0, requires_grad=True).view(2, 3) * 2,)


def f_histories(a):
    (a * a).sum().backward()
    return (a.detach() * 2,)


NEEDED = {
    "leaves": (one, f_leaves),
    "storage": (one, f_storage),
    "dedupe": (twice, f_dedupe),
    "restride": (one, f_restride),
    "outputs": (one, f_outputs),
    "synthetic base": (overlapping, f_synthetic_base),
    "mutation": (one, f_mutation),
    "histories": (computed, f_histories),
}
NAMES = ("leaves", "storage", "dedupe", "restride", "outputs", "synthetic base", "mutation", "histories", "rng")
PLANS = dict(zip(NAMES, ORDER, strict=True))


def broken_laws(case):
    """Which laws do not hold of one call: names of layers whose sentence is false, and "round trip"; or the error it
    raises."""
    try:
        spy, call = spied(program_of(case))
        found = run(case, lambda f: call)
        broken = spy.broken - {"grad mode"}
        differs = difference(run(case, lambda f: f), found)
    except Exception as error:
        return {f"raises {type(error).__name__}"}
    return broken | ({"round trip"} if differs else set())


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_layer_a_law_fails(name, monkeypatch):
    case = Case(*NEEDED[name])
    assert name in [layer.name for layer in program_of(case).layers]
    assert not broken_laws(case)
    monkeypatch.setattr(stack, "ORDER", tuple(plan for plan in ORDER if plan is not PLANS[name]))
    assert broken_laws(case)


@contextmanager
def bfloat16():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def f_product(a):
    return (a @ a.t(),)


def f_gradient(a):
    return (a * a).sum()


def f_detached(w):
    return (w.detach() * 2,)


def weight():
    return (torch.ones(3, requires_grad=True),)


@pytest.mark.parametrize(
    ("name", "planner", "make", "f", "transform", "around"),
    [
        ("autocast", "no_autocast", one, f_product, fg.jit, bfloat16),
        ("grad mode", "grad_mode", one, f_gradient, fg.grad_compiled, torch.no_grad),
        ("untracked", "untracked", weight, f_detached, fg.jit, torch.enable_grad),
    ],
)
def test_without_an_ambient_layer_its_sentence_is_false(name, planner, make, f, transform, around, monkeypatch):
    def broken():
        with around():
            program = transform(f).program(*make())
            spy, call = spied(program)
            # a kernel of ATen calls may detach what it returns: what it computes on the way must not be tracked either
            graph = program.joint.graph
            spy.kernel = lambda *values: graph.run(*values)[: len(spy.inner.outs)]
            call(*make())
        return [layer.name for layer in program.layers], spy.broken

    names, sentences = broken()
    assert name in names and name not in sentences
    monkeypatch.setattr(stack, planner, lambda *_: None)
    names, sentences = broken()
    assert name not in names and name in sentences


def f_subclass(a):
    a.mul_(2)
    return (a + 1,)


def subclass_and_others():
    return (TwoTensor(torch.arange(3.0), torch.ones(3)),)


def test_without_the_subclass_layer_its_sentence_is_false(monkeypatch):
    def broken():
        program = program_of(Case(subclass_and_others, f_subclass))
        spy, call = spied(program)
        with suppress(TypeError):  # a kernel that gets one subclass in the place of two tensors
            call(*subclass_and_others())
        return [layer.name for layer in program.layers], spy.broken

    assert broken() == (["mutation", "subclass"], {"grad mode"} & broken()[1])
    monkeypatch.setattr(stack, "subclass", lambda *_: None)
    names, sentences = broken()
    assert names == ["mutation"] and "subclass" in sentences


@pytest.mark.parametrize("around", [printed, one_by_one])
def test_a_stack_with_the_subclass_layer_is_the_function(around):
    program = program_of(Case(subclass_and_others, f_subclass))
    (eager,), (compiled,) = subclass_and_others(), subclass_and_others()
    (expected,), (found,) = f_subclass(eager), around(program)(compiled)
    for ours, its in ((expected, found), (eager, compiled)):
        assert type(its) is TwoTensor and torch.equal(ours.a, its.a) and torch.equal(ours.b, its.b)


# ── random numbers ───────────────────────────────────────────────────────────────────────────────────────────────


def f_random(p, q, a, b, m, v):
    p.mul_(torch.rand(3))
    a.add_(torch.rand(4))
    m.t_()
    return p + q, a * b, m.sum(1) + torch.rand(3), v[1:]


def seeded(call):
    """The results, the inputs in the end, and what is drawn next."""
    torch.manual_seed(11)
    inputs = everything()
    return [*call(*inputs), *inputs, torch.rand(2)]


def same(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def test_no_inner_call_draws():
    program = fg.jit(f_random, rng="philox").program(*everything())
    kernel = program.call.names["kernel"]

    def watched(*values):
        state = torch.get_rng_state()
        outs = kernel(*values)
        assert torch.equal(torch.get_rng_state(), state)
        assert same(outs, kernel(*values))  # a pure function of its inputs, the seed among them
        return outs

    seeded(wrap(program.layers, outer_of(program), watched))


def test_with_random_numbers_too_layers_one_by_one_are_the_printed_stack():
    program = fg.jit(f_random, rng="philox").program(*everything())
    assert same(seeded(printed(program)), seeded(one_by_one(program)))
    assert same(seeded(printed(program)), seeded(fg.jit(f_random, rng="philox")))


def test_without_the_rng_layer_there_is_no_program(monkeypatch):
    monkeypatch.setattr(stack, "ORDER", tuple(plan for plan in ORDER if plan is not PLANS["rng"]))
    with pytest.raises(fg.TraceError, match="draws random numbers"):
        fg.jit(f_random, rng="philox").program(*everything())


@pytest.mark.parametrize("place", range(len(ORDER)))
def test_where_the_rng_layer_stands_changes_nothing(place, monkeypatch):
    expected = seeded(fg.jit(f_random, rng="philox"))
    order = list(ORDER[:-1])
    order.insert(place, ORDER[-1])
    monkeypatch.setattr(stack, "ORDER", tuple(order))
    assert same(expected, seeded(fg.jit(f_random, rng="philox")))


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────


def everything():
    p, base = torch.arange(3.0), torch.arange(8.0)
    return p, p, base[:4], base[2:6], torch.arange(6.0).view(2, 3), torch.arange(4.0)


def f_everything(p, q, a, b, m, v):
    p.mul_(2)
    a.add_(1)
    m.t_()
    return p + q, a * b, m.sum(1), v[1:]


# "mutation" comes after "synthetic base" and "outputs": all three speak of one tensor, what holds the memory that is
# written to; and "histories" after all of them: what is outside is gone through before anything is done to it
ORDERS = [
    o
    for o in itertools.permutations(ORDER[2:-2])
    if o.index(PLANS["mutation"]) > max(map(o.index, (PLANS["outputs"], PLANS["synthetic base"])))
]


def test_the_order_of_layers_that_touch_different_arguments_changes_nothing(monkeypatch):  # S2-4
    case = Case(everything, f_everything)
    eager = run(case, lambda f: f)
    assert len(ORDERS) == 40
    for order in ORDERS:
        monkeypatch.setattr(stack, "ORDER", order)
        compiled = fg.jit(f_everything)
        assert difference(eager, run(case, lambda f: compiled)) is None, order
        assert len(program_of(case).layers) == len(order)


def test_a_layer_says_what_an_outer_input_is_within_the_kernel():  # S2-4
    layers = {layer.name: layer for layer in program_of(Case(everything, f_everything)).layers}
    assert [f"{slot} is {view}" for slot, view in layers["dedupe"].looks] == ["q is p"]
    assert {view.of for _, view in layers["synthetic base"].looks} == {Base((Arg("a"), Arg("b")))}
    assert [slot for slot, _ in layers["synthetic base"].looks] == [Arg("a"), Arg("b")]


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def bases(draw):
    """A tensor of up to three dimensions: contiguous, permuted, or with gaps."""
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    kind = draw(st.sampled_from(["contiguous", "permuted", "gaps"]))
    if kind == "gaps":
        return torch.arange(400.0).as_strided(shape, (100, 11, 2)[: len(shape)], draw(st.integers(0, 5)))
    base = torch.arange(float(torch.Size(shape).numel())).view(shape)
    return base.permute(draw(st.permutations(range(len(shape))))) if kind == "permuted" else base


@st.composite
def views(draw, base):
    """A view of a tensor, by some views one after the other."""
    view = base
    for _ in range(draw(st.integers(0, 4))):
        dim = draw(st.integers(0, view.dim() - 1)) if view.dim() else None
        kind = draw(st.sampled_from(["slice", "select", "unsqueeze", "transpose", "flatten", "fold"]))
        if kind == "unsqueeze":
            view = view.unsqueeze(draw(st.integers(0, view.dim())))
        elif kind == "transpose" and dim is not None:
            view = view.transpose(dim, draw(st.integers(0, view.dim() - 1)))
        elif kind == "slice" and dim is not None:
            start = draw(st.integers(0, view.shape[dim]))
            end, step = draw(st.integers(start, view.shape[dim])), draw(st.integers(1, 3))
            view = view[(slice(None),) * dim + (slice(start, end, step),)]
        elif kind == "select" and dim is not None and view.shape[dim]:
            view = view.select(dim, draw(st.integers(0, view.shape[dim] - 1)))
        elif view.is_contiguous() and view.numel() and kind == "flatten":
            view = view.view(-1)
        elif view.is_contiguous() and view.numel() % 2 == 0 and view.numel() and kind == "fold":
            view = view.view(2, -1)
    return view


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_the_steps_between_two_tensors_lead_from_one_to_the_other(data):
    base = data.draw(bases())
    view = data.draw(views(base))
    steps = steps_between(Geometry.of(base), Geometry.of(view))
    if steps is None:
        # what has no element shares none; what lies in a base with gaps may not be a combination of slices
        assert not view.numel() or not base.is_contiguous()
        return
    found = base
    for step in steps:
        found = step(found)
    assert torch.equal(found, view)  # sizes, too
    assert found.storage_offset() == view.storage_offset()
    # the stride of a dimension of one element is never used
    assert [s for n, s in zip(found.shape, found.stride(), strict=True) if n > 1] == [
        s for n, s in zip(view.shape, view.stride(), strict=True) if n > 1
    ]
    assert not any("as_strided" in str(step) for step in steps)


@st.composite
def windows(draw):
    """A strided look at a storage of 96 bytes, and the bytes it looks at."""
    dtype = draw(st.sampled_from([torch.int8, torch.int16, torch.float32, torch.float64]))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    stride = tuple(draw(st.integers(0, 6)) for _ in shape)
    offset = draw(st.integers(0, 5))
    return dtype, shape, stride, offset


def bytes_of(t):
    size = t.element_size()
    indices = itertools.product(*(range(n) for n in t.shape))
    firsts = [
        (t.storage_offset() + sum(i * s for i, s in zip(index, t.stride(), strict=True))) * size for index in indices
    ]
    return {first + i for first in firsts for i in range(size)}


@settings(max_examples=400, deadline=None)
@given(windows(), windows())
def test_two_tensors_share_elements_if_they_share_a_byte(one, other):
    memory = torch.zeros(4096, dtype=torch.uint8)
    a, b = (memory.view(dtype).as_strided(shape, stride, offset) for dtype, shape, stride, offset in (one, other))
    assert share_elements(a, b) == bool(bytes_of(a) & bytes_of(b)) == share_elements(b, a)


# ── what a custom Function writes to in backward is no matter of the layers ──────────────────────────────────────


def test_what_backward_writes_is_none_of_the_layers_business():
    """The layer copies what forward wrote; backward writes for itself."""
    case = Case(lambda: (torch.ones(3, requires_grad=True), torch.zeros(3)), lambda x, b: (Count.apply(x, b),))
    (layer,) = program_of(case).layers
    assert [str(effect) for effect in layer.effects] == ["copy final(b) into b"]
    assert layer.inner == Signature((Arg("x"), Arg("b")), (Out("[0]"), Final(Arg("b"))))
