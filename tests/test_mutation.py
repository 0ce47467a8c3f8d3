"""Mutation and aliasing, mechanism by mechanism: eager PyTorch is the oracle. The ids are those of
``docs/mechanisms.md``."""

import ast
import queue
import re
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.programs import Case, CountBackward, difference, require_as_eager, run
from torch import fx
from turns import in_turn

import funcgrad as fg
from funcgrad.graphs import Graph, ancestors, pass_of, verify
from funcgrad.partition.partition import partition
from funcgrad.slots import Arg, Base, Cotangent, Final, Grad, Late, Out, Signature
from funcgrad.tags import Tag, tag, tags_of

PACKAGE = Path(fg.__file__).resolve().parent


def assert_like_eager(f, make):
    """Results, gradients, inputs in data and metadata after forward and after backward; at the first call and at the
    second."""
    case, compiled = Case(make, f), fg.jit(f)
    expected = run(case, lambda f: f)
    assert expected.error is None, expected.error
    for _ in range(2):
        assert difference(expected, run(case, lambda f: compiled)) is None


def calls(graph, name):
    return [n for n in graph.fx.nodes if n.op == "call_function" and name in str(n.target)]


def leaf(n=8):
    return torch.arange(float(n)).div(10).requires_grad_()


# ── S1: one input, written to in forward and in backward ─────────────────────────────────────────────────────────


def writer(in_forward, in_backward):
    """A custom Function that writes to a buffer: ``f(buffer)`` in forward, ``f(buffer)`` in backward."""

    class Writer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, buffer):
            in_forward(buffer)
            ctx.buffer = buffer
            return x * 2

        @staticmethod
        def backward(ctx, g):
            in_backward(ctx.buffer)
            return g * 2, None

    return lambda x, buffer: Writer.apply(x, buffer)


BOTH = writer(lambda b: b.add_(1), lambda b: b.add_(10))


def x_and_buffer():
    return torch.ones(3, requires_grad=True), torch.zeros(3)


def test_one_buffer_is_written_to_in_forward_and_in_backward():  # S1-1
    c = fg.jit(BOTH)
    x, buffer = x_and_buffer()
    for step in range(3):
        out = c(x, buffer)
        torch.testing.assert_close(buffer, torch.full((3,), 11.0 * step + 1))
        out.sum().backward()
        torch.testing.assert_close(buffer, torch.full((3,), 11.0 * step + 11))
    assert c.cache_info().misses == 1
    torch.testing.assert_close(x.grad, torch.full((3,), 6.0))


WRITES = (
    "b.add_(1)",
    "b.mul_(2)",
    "b[0] = 7.0",
    "b[1:].mul_(3)",
    "b.copy_(b.flip(0))",
    "b.neg_()",
    "b.zero_()",
    "pass",
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(WRITES), max_size=3), st.lists(st.sampled_from(WRITES), max_size=3))
def test_a_write_happens_in_its_own_pass(in_forward, in_backward):  # S1-2
    """Not both in one of the two, whatever the partition does: the buffer is compared after forward alone."""

    def writes(statements):
        namespace = {}
        exec(f"def write(b):\n    {'; '.join([*statements, 'pass'])}", namespace)
        return namespace["write"]

    f = writer(writes(in_forward), writes(in_backward))
    seen = []
    for function in (f, fg.jit(f)):
        x, buffer = torch.ones(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
        out = function(x, buffer)
        after_forward = buffer.clone()
        out.sum().backward()
        seen.append((after_forward, buffer, x.grad))
    torch.testing.assert_close(seen[0], seen[1])


def test_what_an_input_holds_after_forward_is_read_between_the_passes():  # S1-3
    """The trace reads inputs off when forward is done: once, before anything of backward runs."""
    hidden = queue.SimpleQueue()  # a write to what is watched is refused in a backward pass
    f = writer(lambda b: (hidden.put("forward"), b.add_(1)), lambda b: (hidden.put("backward"), b.add_(10)))
    joint = fg.jit(f).program(*x_and_buffer()).joint
    # the dry run and the recorded run, each with a backward pass: what that writes is not known otherwise
    assert [hidden.get_nowait() for _ in range(hidden.qsize())] == ["forward", "backward"] * 2
    b = Arg("buffer")
    after_forward, after_backward = (joint.graph.result_of(slot) for slot in (Final(b), Final(b, "backward")))
    assert pass_of(after_forward) == "forward" and pass_of(after_backward) == "backward"
    assert not any(pass_of(node) == "backward" for node in ancestors([after_forward]))


def test_a_write_of_forward_is_not_repeated_in_backward():  # S1-4
    f = writer(lambda b: b.add_(1), lambda b: None)
    c = fg.jit(f)
    x, buffer = x_and_buffer()
    versions = [buffer._version]
    out = c(x, buffer)
    versions.append(buffer._version)
    out.sum().backward()
    versions.append(buffer._version)
    assert versions == [0, 1, 1]
    assert Final(Arg("buffer"), "backward") not in c.program(*x_and_buffer()).joint.signature.outs

    c = fg.jit(BOTH)
    x, buffer = x_and_buffer()
    out = c(x, buffer)
    assert buffer._version == 1
    out.sum().backward()
    assert buffer._version == 2


def test_copies_into_inputs_stand_after_the_kernel():  # S1-5
    """A graph writes to nothing at all; the printed call does, when the kernel has run."""
    program = fg.jit(BOTH).program(*x_and_buffer())
    lines = [line.strip() for line in program.call.text.splitlines()]
    assert lines.index("buffer.copy_(final_buffer)") == lines.index("out, final_buffer = kernel(x, buffer)") + 1
    for graph in (program.joint.graph, program.partition.forward, program.partition.backward):
        assert not calls(graph, "copy_") and verify(graph) is graph

    graph = fx.Graph()
    b = graph.placeholder("b")
    b.meta["val"] = torch.zeros(3)
    written = graph.call_function(torch.ops.aten.copy_.default, (b, b))
    written.meta["val"] = torch.zeros(3)
    graph.output((written,))
    with pytest.raises(fg.GraphError, match="writes to its inputs"):
        verify(Graph(Signature((Arg("b"),), (Out(""),)), graph, {}))


def test_the_source_of_a_write_stays_in_its_pass():  # S1-6, S1-7
    joint = fg.jit(BOTH).program(*x_and_buffer()).joint
    b = Arg("buffer")
    for slot, flag, reason in (
        (Final(b), Tag.MUST_BE_IN_FORWARD, "buffer holds it when forward is done"),
        (Final(b, "backward"), Tag.MUST_BE_IN_BACKWARD, "buffer holds it when backward is done"),
    ):
        node = joint.graph.result_of(slot)
        assert flag in tags_of(node).flags and tags_of(node).reason(flag) == reason
        for known in (None, [], [joint.graph.result_of(Final(b)).name]):  # whatever is saved
            split = partition(joint, known)
            half, other = (
                (split.forward, split.backward) if flag is Tag.MUST_BE_IN_FORWARD else (split.backward, split.forward)
            )
            assert slot in half.signature.outs and slot not in other.signature.outs
            assert node.name in {n.name for n in half.fx.nodes}
            assert node.name not in {n.name for n in other.fx.nodes if n.op == "call_function"}


def test_a_node_cannot_stay_in_both_passes():  # S1-7
    joint = fg.jit(BOTH).program(*x_and_buffer()).joint
    node = joint.graph.result_of(Final(Arg("buffer"), "backward"))
    with pytest.raises(
        fg.PartitionError,
        match=r"cannot be both MUST_BE_IN_FORWARD \(by hand\) and MUST_BE_IN_BACKWARD \(buffer holds it",
    ):
        tag(node, Tag.MUST_BE_IN_FORWARD, "by hand")


def test_the_source_of_a_write_is_not_computed_again():  # S1-8
    """Computed again in backward, it would start from what it has itself written."""

    def f(x, buffer):
        buffer.add_(1)
        return (x * buffer.exp(),)

    assert_like_eager(f, x_and_buffer)
    program = fg.jit(f).program(*x_and_buffer())
    source = program.joint.graph.result_of(Final(Arg("buffer")))
    assert Tag.MUST_SAVE in tags_of(source).flags
    assert len(calls(program.partition.forward, "aten.add")) == 1 and not calls(program.partition.backward, "aten.add")
    assert Arg("buffer") not in program.partition.backward.signature.ins


def test_every_write_has_a_source_of_its_own():  # S1-9
    """What backward writes starts from what the buffer holds then, which need not be what forward wrote."""
    joint = fg.jit(BOTH).program(*x_and_buffer()).joint
    b = Arg("buffer")
    sources = {slot: joint.graph.result_of(slot) for slot in (Final(b), Final(b, "backward"))}
    ins = dict(zip(joint.signature.ins, joint.graph.placeholders, strict=True))
    assert ancestors([sources[Final(b)]]) == {sources[Final(b)], ins[b]}
    assert ancestors([sources[Final(b, "backward")]]) == {sources[Final(b, "backward")], ins[Late(b)]}

    c = fg.jit(BOTH)
    x, buffer = x_and_buffer()
    out = c(x, buffer)
    buffer.fill_(100)  # between the passes
    out.sum().backward()
    torch.testing.assert_close(buffer, torch.full((3,), 110.0))


def test_a_buffer_written_to_in_both_passes_is_an_output_of_both_halves():  # S1-15
    split = fg.jit(BOTH).program(*x_and_buffer()).partition
    b = Arg("buffer")
    assert split.forward.signature == Signature((Arg("x"), b), (Out(""), Final(b)))
    assert split.backward.signature == Signature((Cotangent(Out("")), Late(b)), (Grad(Arg("x")), Final(b, "backward")))
    x, buffer = torch.ones(3), torch.zeros(3)
    assert torch.equal(split.forward.run(x, buffer)[1], buffer + 1)
    assert torch.equal(split.backward.run(x, buffer + 1)[1], buffer + 11)


# ── S2: layers ───────────────────────────────────────────────────────────────────────────────────────────────────


def names_in(path):
    """Every name, attribute and imported name of a source file; not what its comments and docstrings say."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.name for alias in node.names)


def rooms_that_name(*names):
    """The modules that speak of something, and the folders of the package they stand in."""
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if set(names) & set(names_in(path))}
    return found, {path.split("/")[0] for path in found}


def test_alias_handling_is_in_one_place():  # S2-1
    """One layer makes bases; what stands behind it does not know how inputs overlap."""
    modules, _ = rooms_that_name("synthetic_base")
    assert modules == {"layers/stack.py", "layers/synthetic_base.py"}
    _, rooms = rooms_that_name("BaseOf", "Overlap", "Family", "needed_overlaps", "share_elements", "overlaps")
    assert rooms == {"capture", "layers"}


def twice(make):
    def both():
        x = make()
        return x, x

    return both


@pytest.mark.parametrize(
    "f",
    [
        lambda p, q: (p * 2 + q * 3,),
        lambda p, q: (p.sin() * q.exp(), q),
        lambda p, q: (Product.apply(p, q),),
    ],
)
def test_one_tensor_passed_twice_gets_one_gradient(f):  # S2-2
    assert_like_eager(f, twice(leaf))
    program = fg.jit(f).program(*twice(leaf)())
    assert program.joint.signature.ins[0] == Arg("p") and Arg("q") not in program.joint.signature.ins
    assert [slot for slot in program.joint.signature.outs if isinstance(slot, Grad)] == [Grad(Arg("p"))]


class Product(torch.autograd.Function):
    """Given one tensor twice, it returns two gradients for it."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a * 10


def test_a_write_to_one_of_two_names_is_seen_through_both():  # S2-2
    def f(p, q):
        p.mul_(2)
        q.add_(1)
        return p - 1, q * p

    assert_like_eager(f, twice(lambda: leaf().clone()))
    assert_like_eager(f, twice(lambda: torch.ones(3)))


LOOKS = (
    "base[:4]", "base[2:6]", "base[::2]", "base[1::3]", "base.view(2, 4)", "base.view(2, 4).t()",
    "base.view(2, 4)[:, 1:3]", "base[5]",
    "base[6:]", "base.view(2, 2, 2).permute(2, 0, 1)[1]", "base",
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_views_of_one_storage_any_of_them_written_to(data):  # S2-3
    looks = data.draw(st.lists(st.sampled_from(LOOKS), min_size=2, max_size=5, unique=True))
    written = data.draw(st.lists(st.integers(0, len(looks) - 1), min_size=1, max_size=3))
    how = data.draw(st.sampled_from(["mul_", "add_"]))
    history = data.draw(st.sampled_from([lambda: torch.arange(8.0), lambda: leaf().clone(), lambda: leaf() * 1]))

    def make():
        base = history()
        return [eval(look, {"base": base}) for look in looks]

    def f(*xs):
        for i in written:
            getattr(xs[i], how)(3)
        return tuple(x.sin() for x in xs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.LargeBaseWarning)
        assert_like_eager(f, make)


def test_two_groups_of_views_over_one_base():  # S2-3
    """Either group is a view of all of the base: what one writes must not be undone by what the other holds of it."""

    def f(a, b, c, d):
        a.mul_(2)
        c.add_(100)
        return b + 1, d + 1

    def make(history):
        base = history()
        return base[:4], base[2:6], base[8:12], base[10:14]

    for history in (lambda: torch.arange(16.0), lambda: leaf(16).clone()):
        assert_like_eager(f, lambda history=history: make(history))


def test_a_group_of_views_and_a_lone_one_over_one_base():  # S2-3
    def f(a, c, b):
        a.mul_(2)
        c.add_(100)
        return b + 1, c * 2

    def make(history):
        base = history()
        return base[:4], base[6:], base[2:6]

    for history in (lambda: torch.arange(8.0), lambda: leaf().clone()):
        assert_like_eager(f, lambda history=history: make(history))


def square_and_overlap(square):
    base = square()
    return base[:3].view(1, 3), base[1:7].view(2, 3)


@pytest.mark.parametrize("history", [lambda: torch.arange(8.0), lambda: leaf().clone()])
def test_of_two_aliases_one_is_written_to_and_the_other_restrided(history):  # S2-5
    def f(a, b):
        a.mul_(2)
        b.t_()
        return a + 1, b * 2

    assert_like_eager(f, lambda: square_and_overlap(history))
    a, b = square_and_overlap(history)
    fg.jit(f)(a, b)
    assert b.shape == (3, 2) and b.stride() == (1, 3) and b.storage_offset() == 1
    torch.testing.assert_close(b.detach().t()[0, 0], 2 * history().detach()[1])


def test_the_caller_gets_his_own_tensors_back():  # S2-6
    """Sizes change on the very object, data may be written through the base: both are seen by whoever holds a view."""

    def f(a, b):
        a.mul_(2)
        b.t_()
        return a, b

    base = torch.arange(8.0)
    a, b = base[:3].view(1, 3), base[1:7].view(2, 3)
    other = base[:2]
    found = fg.jit(f)(a, b)
    assert found[0] is a and found[1] is b and a._base is base and b._base is base
    assert b.stride() == (1, 3)
    torch.testing.assert_close(base, torch.tensor([0.0, 2.0, 4.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
    torch.testing.assert_close(other, base[:2])


def two_views(history=lambda: torch.arange(8.0)):
    base = history()
    return base[:4], base[2:6]


def write_one(a, b):
    a.mul_(2)
    return (b + 1,)


def test_what_inputs_hold_in_the_end_are_more_outputs_of_the_kernel():  # S2-7
    program = fg.jit(write_one).program(*two_views())
    base = Base((Arg("a"), Arg("b")))
    outer, inner = program.layers[0].outer, program.layers[-1].inner
    assert outer == Signature((Arg("a"), Arg("b")), (Out("[0]"),))
    assert inner == Signature((base,), (Out("[0]"), Final(base)))
    assert len(fg.jit(write_one)(*two_views())) == 1


def test_a_base_far_larger_than_its_views_is_worth_a_warning():  # S2-8
    def make(n):
        base = torch.zeros(n)
        return base[:3], base[1:4]

    with pytest.warns(fg.LargeBaseWarning, match=r"a and b overlap .*\(3.9 KiB\).* 24 B"):
        program = fg.jit(write_one).program(*make(1000))
    (overlap,) = program.facts.overlap
    assert (overlap.base_bytes, overlap.member_bytes) == (4000, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fg.jit(write_one).program(*make(40))
        fg.jit(lambda a, b: a + b).program(*make(1000))  # nothing is written, so nothing is copied


def test_a_program_reports_the_inputs_that_go_in_as_one():  # S2-9
    text = str(fg.jit(write_one).program(*two_views()))
    assert "base(a, b)  overlap; the base has 32 B, they 32 B" in text
    assert "synthetic base\nNo memory an inner call writes to is reached through two inputs." in text


def test_what_was_observed_is_compared_with_what_is_recorded():  # S2-10
    """The recorded run works on other tensors than the dry run: its outputs must be what the facts say."""
    runs = in_turn(0, 1)

    def f(x):
        return x.sin() if runs() else x.view(-1)

    with pytest.raises(fg.TraceError, match=r"was f32\[6\] .* in its first run and is f32\[2, 3\] .* in its second"):
        fg.jit(f)(torch.ones(2, 3))


def test_facts_about_outputs_are_equal_exactly_if_they_say_the_same():  # S2-11
    def facts(x=torch.ones(2, 3)):
        return fg.jit(lambda x: (x.t(), x * 2, 3)).program(x).facts.outputs

    assert facts() == facts()
    assert facts() != facts(torch.ones(3, 2)) and facts() != facts(torch.ones(2, 3, dtype=torch.float64))
    for fact in facts():
        for change in ({"type": "f64[1]"}, {"requires_grad": True}, {"is_leaf": True}, {"path": "[9]"}):
            assert evolve(fact, **change) != fact
    assert facts()[0].view is not None and evolve(facts()[0], view=None) != facts()[0]
    # a fact holds no tensor, so that there is no kind of tensor to compare
    assert not any(isinstance(value, torch.Tensor) for fact in facts() for value in (fact.path, fact.type, fact.view))


def test_inputs_that_overlap_change_as_one():  # S2-12
    def f(a, b, alone):
        a.mul_(2)
        b.unsqueeze_(0)
        alone.add_(1)
        alone.unsqueeze_(0)
        return (a.sum(),)

    changes = fg.jit(f).program(*two_views(), torch.ones(3)).facts.changes
    base, b, alone = (changes[slot] for slot in (Base((Arg("a"), Arg("b"))), Arg("b"), Arg("alone")))
    assert base.data and not base.restrides
    assert b.data is None and len(b.restrides) == 1
    assert alone.data and len(alone.restrides) == 1
    assert Arg("a") not in changes


def test_a_view_that_is_a_leaf_among_views_that_are_none():  # S2-13
    """Eager PyTorch gives the gradient to the leaf. Whoever cannot must say so: what must not happen is a result
    without a history."""

    def make():
        base = torch.arange(8.0)
        return base[:4].requires_grad_(), base[2:6]

    def f(a, b):
        with torch.no_grad():
            b.mul_(3)
        return (a * 2,)

    try:
        fg.jit(f).program(*make())
    except fg.AliasContractError as refused:
        assert "a and b" in str(refused)
    else:
        assert_like_eager(f, make)


MIXED = """\
from funcgrad.layers.effects import CopyBack
from funcgrad.slots import Arg, Final

def right(x: Arg) -> CopyBack:
    return CopyBack(x, Final(x), "plain")

def outer_for_inner(x: Arg) -> CopyBack:
    return CopyBack(x, x, "plain")

def inner_for_outer(x: Arg) -> Arg:
    return Final(x)

def any_int(x: Arg) -> CopyBack:
    return CopyBack(x, 0, "plain")
"""


def test_the_type_checker_tells_inner_from_outer_values(tmp_path):  # S2-14
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    command = [sys.executable, "-m", "mypy", str(file)]  # with the options, and so the cache, of make lint
    found = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False).stdout
    errors = re.findall(r"mixed\.py:(\d+): error: .*\[([\w-]+)\]", found)
    assert errors == [("8", "arg-type"), ("11", "return-value"), ("14", "arg-type")], found


def cotangents(f, *args):
    return [slot.of for slot in fg.jit(f).program(*args).joint.signature.ins if isinstance(slot, Cotangent)]


def test_a_gradient_comes_in_for_each_output_each_write_and_each_shared_base():  # S2-15
    base = Base((Arg("a"), Arg("b")))

    def views_of_one(a, b):
        a.mul_(2)
        u = b * 3
        return b.exp(), u[:2], u[1:]

    def made():
        return two_views(lambda: leaf().clone())

    # two of three outputs are views of an intermediate, which gets their gradients
    assert set(cotangents(views_of_one, *made())) == {Out("[0]"), Base((Out("[1]"), Out("[2]"))), Final(base)}
    assert_like_eager(views_of_one, made)
    assert cotangents(lambda x, w: (x * w, w.sin()), leaf(), leaf()) == [Out("[0]"), Out("[1]")]
    # what is written under no_grad, and what does not require grad, passes none on
    assert cotangents(lambda x, b: (b.add_(1), x * 2)[1:], leaf(), torch.ones(3)) == [Out("[0]")]


def test_of_aliases_some_require_grad_and_some_do_not():  # S2-16
    def make():
        base = leaf().clone()
        return base[:4], base.detach()[2:6]

    def f(a, b):
        b.add_(1)
        return a.sum(), b * 2, a[:2], b

    def g(a, b):
        a.add_(1)
        return b * 2, a * 3

    assert_like_eager(f, make)
    assert_like_eager(g, make)
    assert (
        [t.requires_grad for t in fg.jit(f)(*make())]
        == [t.requires_grad for t in f(*make())]
        == [True, False, True, False]
    )


def test_restriding_is_taken_away_before_anything_else_looks():  # S2-17
    def f(x):
        x.t_()
        x.mul_(2)
        return (x.sum(0),)

    assert_like_eager(f, lambda: (torch.arange(6.0).view(2, 3),))
    assert_like_eager(f, lambda: (leaf(6).view(2, 3) * 1,))
    program = fg.jit(f).program(torch.ones(2, 3))
    restride, mutation = program.layers
    assert (restride.name, mutation.name) == ("restride", "mutation")
    assert restride.inner == restride.outer  # further in, sizes are those the call began with
    assert not calls(program.joint.graph, "t_")
    assert program.joint.graph.result_of(Final(Arg("x"))).meta["val"].shape == (2, 3)
    _, rooms = rooms_that_name("Restride", "restride", "restrides")
    assert not rooms & {"partition", "backends"}


def test_an_input_no_derivative_needs_dies_when_the_caller_lets_go():  # S2-18
    c = fg.jit(lambda x: x * 2)
    c(leaf() * 1)
    x = leaf() * 1
    out = c(x)
    gone = weakref.ref(x)
    del x
    assert gone() is None
    out.sum().backward()

    needed = leaf() * 1
    out = fg.jit(lambda x: x.sin())(needed)
    alive = weakref.ref(needed)
    del needed
    assert alive() is not None
    del out
    assert alive() is None


def test_the_order_of_what_happens_after_the_kernel():  # S2-20
    """Writes, then views of what is written, then sizes, then views of what has them, then what becomes a leaf."""

    def f(m, v):
        m.mul_(2)
        m.t_()
        return m[1:], v.view(-1), (v * 2).requires_grad_()

    def make():
        return torch.arange(6.0).view(2, 3), torch.ones(4)

    assert_like_eager(f, make)
    lines = fg.jit(f).program(*make()).call.text.splitlines()
    order = ["kernel(", "m.copy_(", "v.view(", "m.t_()", "m[", "out_2.requires_grad_()", "return ("]
    found = [next(i for i, line in enumerate(lines) if what in line) for what in order]
    assert found == sorted(found)


# ── cases that went wrong elsewhere ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [2, 3])
def test_an_output_is_a_view_of_an_output_not_of_an_input(n):  # S2-3
    """Torch 2.13 mixes up positions of inputs and of outputs here: its second result is a view of the first, or an
    IndexError."""

    def f(*xs):
        xs[-1].add_(2.0)
        x = xs[1].exp()
        u = xs[0] * 3
        return x, u[:2], u

    def make():
        base = leaf().clone()
        return (base[:4], base[2:6], base[4:8])[:n]

    assert_like_eager(f, make)
    x, view, u = fg.jit(f)(*make())
    torch.testing.assert_close(view, u[:2])
    assert view._base is u and not torch.equal(view, x[:2])


def test_a_view_written_to_under_no_grad_leaves_the_gradient_of_another():  # S2-16
    def f(a, b):
        with torch.no_grad():
            a.mul_(2)
        return b * 3, b[1:]

    for history in (lambda: leaf().clone(), lambda: leaf() * 1):
        assert_like_eager(f, lambda history=history: two_views(history))
    w = leaf()
    base = w.clone()
    sum(t.sum() for t in fg.jit(f)(base[:4], base[2:6])).backward()
    torch.testing.assert_close(w.grad, torch.tensor([0.0, 0, 3, 4, 4, 4, 0, 0]))


def test_a_program_is_not_reused_for_inputs_that_alias_otherwise():  # pytorch#139789
    def f(a, b):
        a.add_(1)
        return (a * b,)

    def distinct():
        return torch.ones(4), torch.ones(4)

    c = fg.jit(f)
    for make in (
        distinct,
        twice(lambda: torch.ones(4)),
        two_views,
        distinct,
        lambda: two_views(lambda: torch.ones(9)),
        two_views,
    ):
        case = Case(make, f)
        assert difference(run(case, lambda f: f), run(case, lambda f: c)) is None
    assert c.cache_info().misses == 4  # distinct, one object, views of eight elements, views of nine


@pytest.mark.parametrize("training", [False, True])
def test_a_write_to_what_dropout_returned(training):  # pytorch#195422
    """Outside of training dropout returns its input itself."""

    def f(x):
        y = F.dropout(x, 0.0 if training else 0.5, training)
        y.mul_(2)
        return y, x + 1

    assert_like_eager(f, lambda: (torch.ones(4),))
    assert_like_eager(f, lambda: (leaf() * 1,))


class Scaled(torch.autograd.Function):
    """Saves its output and writes to it in backward."""

    @staticmethod
    def forward(ctx, x):
        out = x * 2
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        out.mul_(10)
        return g * out


def test_backward_writes_to_a_saved_tensor_that_is_an_output():  # pytorch#172956
    assert_like_eager(lambda x: (Scaled.apply(x),), lambda: (leaf(),))
    x = leaf()
    out = fg.jit(Scaled.apply)(x)
    before = out.detach().clone()
    out.sum().backward()
    torch.testing.assert_close(out.detach(), before * 10)
    torch.testing.assert_close(x.grad, before * 10)


def test_batch_norm_updates_its_statistics_under_a_gradient():  # pytorch#85533
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv1d(2, 3, 1), torch.nn.BatchNorm1d(3), torch.nn.ReLU())

    def loss_of(m):
        return lambda x: m(x).square().mean()

    eager, compiled = model(), model()
    gradient = fg.grad_compiled(loss_of(compiled))
    for step in range(3):
        x = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(step)).requires_grad_()
        (expected,) = torch.autograd.grad(loss_of(eager)(x), x)
        torch.testing.assert_close(gradient(x.detach()), expected)
        for (name, a), (_, b) in zip(eager.named_buffers(), compiled.named_buffers(), strict=True):
            torch.testing.assert_close(a, b, msg=name)
    assert int(compiled[1].num_batches_tracked) == 3


class Trebles(torch.autograd.Function):
    """Writes to a buffer in backward."""

    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.mul_(3)
        return g * 2, None


def hooked(x, buffer):
    y = x * 2
    y.register_hook(lambda g: (buffer.mul_(3), g)[1])
    return y, x * 3


@pytest.mark.parametrize("f", [lambda x, b: (Trebles.apply(x, b), x * 3), hooked], ids=["function", "hook"])
@pytest.mark.parametrize("of", [[0], [1], [0, 1]])
def test_backward_writes_only_where_a_gradient_comes_to(f, of):
    def run(g):
        x, buffer = torch.ones(3, requires_grad=True), torch.ones(3)
        outs = g(x, buffer)
        sum(outs[i].sum() for i in of).backward()
        return x.grad, buffer

    torch.testing.assert_close(run(fg.jit(f)), run(f))


WRITES = {
    "multiplies": lambda b, g: b.mul_(3),
    "fills": lambda b, g: b.fill_(2),
    "zeroes": lambda b, g: b.zero_(),
    "copies": lambda b, g: b.copy_(g),
    "sets": lambda b, g: b.__setitem__(0, 7),
    "sets a part": lambda b, g: b[1:].copy_(b[:2] + g[1:]),
    "out": lambda b, g: torch.mul(g, 3, out=b),
}


class WritesTo(torch.autograd.Function):
    """Reads a buffer in backward, and writes to it."""

    @staticmethod
    def forward(ctx, x, buffer, write):
        ctx.buffer, ctx.write = buffer, write
        return x * 2

    @staticmethod
    def backward(ctx, g):
        found = g * ctx.buffer
        ctx.write(ctx.buffer, g)
        return found + ctx.buffer, None, None


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_backward_of_which_some_writes(write, backend):
    """Three nodes of autograd write to one buffer, and read it; each pass runs some of them."""

    def f(x, b):
        return [WritesTo.apply(x * n, b, w) for n, w in ((1, WRITES["multiplies"]), (2, write), (3, write))]

    def run(g):
        found = []
        x, buffer = torch.ones(3, requires_grad=True), torch.arange(1.0, 4)
        outs = g(x, buffer)
        for of in ([0], [2, 0], [1], [1, 2], [0, 1, 2]):
            sum(outs[i].sum() for i in of).backward(retain_graph=True)
            found += [x.grad.clone(), buffer.clone()]
        return found

    torch.testing.assert_close(run(fg.jit(f, backend=backend)), run(f))


def test_a_write_through_detach_gives_what_it_looks_at_no_history():
    """What autograd forbids to write to may be written to so."""

    def f(x, part):
        part.detach().mul_(x.sum())
        x.add_(x.mean())
        return ()

    def make():
        base = (torch.arange(8.0) / 5).requires_grad_() * 1
        return base[2:6], base.unbind(0)[1]

    require_as_eager(Case(make, f))


def of_an_input(z):
    z.conj().mul_(2j)
    return torch.view_as_real(z)


def of_a_result(z):
    z = z * 2
    look = z.conj()
    look[1:].mul_(2j)
    return look.resolve_conj(), torch.view_as_real(z), z.real


def negated(z):
    z = z * 2
    look = z.conj().imag
    look.add_(3)
    return torch.view_as_real(z), look * 2


@pytest.mark.parametrize("f", [of_an_input, of_a_result, negated])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_write_through_a_conjugated_look(f, transposed):
    def make():
        z = torch.complex(torch.arange(6.0), torch.arange(6.0) - 2).view(2, 3)
        return z.t() if transposed else z

    z, own = make(), make()
    torch.testing.assert_close((fg.jit(f)(own), own), (f(z), z))


@pytest.mark.parametrize(
    "take", [lambda v: v.data, lambda v: v.detach(), lambda v: v.detach().t()], ids=["data", "detach", "view"]
)
@pytest.mark.parametrize(
    "view", [lambda v: v, lambda v: v.t(), lambda v: v.view(4)[1:].view(3, 1)], ids=["itself", "t", "part"]
)
def test_a_result_that_is_detached_of_another_one_and_written_to(view, take):
    """It looks at the memory of the other one, and has a history of its own: that of what was written to it."""

    def f(w, x):
        y = view(x.cumsum(0))
        z = take(y)
        z.mul_(w.sum())
        return y, z

    found = []
    for g in (f, fg.jit(f)):
        w, x = torch.arange(1.0, 4).requires_grad_(), (torch.arange(4.0) / 5).view(2, 2).requires_grad_()
        y, z = g(w, x)
        assert y.requires_grad and z.requires_grad and y.untyped_storage()._cdata == z.untyped_storage()._cdata
        found.append((y.detach(), z.detach(), torch.autograd.grad((y * y).sum() + (z * z).sum(), (w, x))))
    torch.testing.assert_close(*found)


def test_a_detached_write_beside_a_tracked_one_into_the_same_memory():
    """The base has a history by then, and autograd would forbid to write to a part of it that ``unbind`` made."""

    def f(x, part, weight):
        x.add_(weight.mean())
        part.detach().mul_(2)

    def inputs():
        base = torch.arange(8.0) / 5
        return base[:4], base.view(2, 4).unbind(0)[1], torch.ones(2, requires_grad=True), base

    ours, theirs = inputs(), inputs()
    f(*theirs[:3])
    fg.jit(f)(*ours[:3])
    assert torch.equal(ours[3].detach(), theirs[3].detach())
    assert ours[3].grad_fn.name() == theirs[3].grad_fn.name()


def test_what_backward_forbids_to_ask_is_asked_before():
    """An output that backward writes to, a view that ``split`` made: its history can be asked for until then."""

    def f(x):
        part = (x * 2).split(1)[0]
        return CountBackward.apply(part, part.detach()), part

    x = torch.arange(4.0)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = fg.jit(f)(ours), f(theirs)
    found[0].sum().backward()
    expected[0].sum().backward()
    for a, b in zip((*found, ours.grad), (*expected, theirs.grad), strict=True):
        torch.testing.assert_close(a.detach(), b.detach())


def test_what_is_broken_for_one_result_is_not_for_another():
    """A metric is written to after autograd saved it: the loss can still be differentiated, as in eager PyTorch."""

    def f(weight, x):
        hidden = x * weight
        metric = hidden.exp()
        kept = F.dropout(hidden)
        metric.add_(1)
        return (hidden**2).sum(), metric, kept

    compiled = fg.jit(f)

    def gradient(function, results):
        torch.manual_seed(0)
        weight, x = torch.arange(1.0, 4.0).requires_grad_(), torch.full((3,), 0.5)
        outs = function(weight, x)
        sum(outs[i].sum() for i in results).backward()
        return weight.grad

    for results in ([0], [2], [0, 2]):
        torch.testing.assert_close(gradient(compiled, results), gradient(f, results))
    for results in ([1], [0, 1], [0, 1, 2]):
        for function in (f, compiled):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradient(function, results)


@pytest.mark.parametrize(
    "write",
    [
        lambda a, b: torch._foreach_add_([a, b], 1.0),
        lambda a, b: torch._foreach_lerp_([a], [b], 0.5),
        lambda a, b: torch._foreach_copy_([a, b], [b.clone(), a.clone()]),
        lambda a, b: torch._foreach_zero_([b]),
    ],
)
def test_a_list_of_tensors_that_is_written_to_moves_their_versions(write):
    """What was saved of them is out of date, and is not used."""

    def f(a, b):
        with torch.no_grad():
            write(a, b)

    moved = []
    for g in (f, fg.jit(f)):
        a, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        loss = (a.sin() * b.sin()).sum()
        before = a._version, b._version
        g(a, b)
        moved.append([t._version != version for t, version in zip((a, b), before, strict=True)])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert moved[0] == moved[1]


def _given(flat):
    a = torch.zeros(2)
    a.data = flat[:2]
    return a


@pytest.mark.parametrize("part", [_given, lambda flat: flat.detach()[:2], lambda flat: flat.data[:2]])
@pytest.mark.parametrize("write", [lambda a, flat: flat.mul_(2), lambda a, flat: a.add_(1)])
def test_a_version_moves_with_what_shares_its_counter_alone(part, write):
    """Not with all that shares its memory: what was saved of it would be refused."""

    def f(a, flat):
        with torch.no_grad():
            write(a, flat)
        return a * flat.sum()

    seen = []
    for g in (f, fg.jit(f)):
        flat = torch.ones(4)
        a = part(flat)
        before = a._version, flat._version
        out = g(a, flat)
        seen.append((out.tolist(), a.tolist(), flat.tolist(), a._version - before[0], flat._version - before[1]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("target", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("value", [torch.complex64, torch.float64, torch.int64, 2.5, 2])
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "clamp_min_", "eq_"])
def test_what_eager_pytorch_does_not_cast_is_not_written(name, value, target):
    def f(x, y):
        return getattr(x.clone(), name)(*([y] * (2 if name.startswith("addc") else 1))).clone()

    x, y = torch.ones(3, dtype=target), value
    if isinstance(value, torch.dtype):
        y = torch.ones(3, dtype=value)
    try:
        eager = f(x, y)
    except (RuntimeError, TypeError) as error:
        with pytest.raises(type(error)):
            fg.jit(f, backend="aten")(x, y)
    else:
        torch.testing.assert_close(fg.jit(f, backend="aten")(x, y), eager, rtol=0, atol=0)


OUT = {
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "addmm": lambda x, out: torch.addmm(x, x, x, out=out),
    "bmm": lambda x, out: torch.bmm(x[None], x[None], out=out),
    "mv": lambda x, out: torch.mv(x, x[0], out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "dot": lambda x, out: torch.dot(x[0], x[0], out=out),
    "add": lambda x, out: torch.add(x, x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty(0, dtype=torch.int64))),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([0]), out=out),
    "gather": lambda x, out: torch.gather(x, 0, torch.tensor([[0]]), out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "where": lambda x, out: torch.where(x > 0, x, x, out=out),
    "amax": lambda x, out: torch.amax(x, 0, out=out),
    "linalg.inv": lambda x, out: torch.linalg.inv(x, out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "norm": lambda x, out: torch.linalg.vector_norm(x, out=out),
    "stack": lambda x, out: torch.stack([x], out=out),
    "take": lambda x, out: torch.take(x, torch.tensor([0]), out=out),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64])
@pytest.mark.parametrize("name", OUT)
def test_out_of_another_dtype_is_cast_to_where_eager_pytorch_casts(name, dtype):
    def f(x):
        return OUT[name](x, torch.empty(0, dtype=dtype))

    def of(call):
        try:
            result = call(torch.eye(3))
            return result[0] if name == "sort" else result
        except RuntimeError as error:
            assert not isinstance(error, fg.FuncgradError)
            return RuntimeError

    eager, ours = of(f), of(fg.jit(f, backend="aten"))
    assert eager is ours or torch.equal(eager, ours)
