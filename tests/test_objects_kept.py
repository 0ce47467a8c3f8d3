"""Objects that a function keeps in Python state, and objects of torch that keep state of their own: schedulers,
scalers of gradients."""

import time
import warnings
import weakref

import pytest
import torch
from closeness import assert_rounded
from torch import nn
from watched import assert_same, steps

import funcgrad as fg

X = torch.tensor([1.0, 2.0])

SCHEDULERS = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "averaging": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=2),
}


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_goes_on_once_in_each_call(kind):
    """Its attributes were not watched: the two runs of the trace moved it, and no later call did."""

    def world():
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = SCHEDULERS[kind](optimiser)

        def f(x):
            optimiser.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimiser.step()
            scheduler.step(loss.detach()) if kind == "plateau" else scheduler.step()
            return loss.detach()

        return f, lambda: (
            optimiser.param_groups[0]["lr"],
            scheduler.last_epoch,
            *(p.detach().clone() for p in model.parameters()),
        )

    (f, now), (g, ours) = world(), world()
    compiled = fg.jit(g, backend="aten")
    for step in range(4):
        x = torch.full((2, 3), 1.0 + step, dtype=torch.double)
        assert_rounded((compiled(x), *ours()[2:]), (f(x), *now()[2:]))
        assert ours()[:2] == pytest.approx(now()[:2])


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
def test_a_scaler_of_gradients_leaves_out_a_step_and_goes_on():
    def world():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimiser, scaler = (
            torch.optim.SGD(model.parameters(), 0.1),
            torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2),
        )

        def f(x):
            optimiser.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimiser)
            scaler.update()

        return f, lambda: (scaler.state_dict(), [p.tolist() for p in model.parameters()])

    (f, now), (g, ours) = world(), world()
    compiled = fg.jit(g, backend="aten")
    for scale in (1.0, 1.0, float("inf"), 1.0, 1.0):
        f(torch.full((2, 3), scale))
        compiled(torch.full((2, 3), scale))
        assert ours() == now()


class Kept:
    """What a function keeps in a cache: tensors, what is there before, and itself."""

    def __init__(self, x, of):
        self.double, self.of, self.names, self.me = x * 2, of, ["double"], self


def test_an_object_that_is_made_in_the_call_is_made_anew_in_each():
    class State:
        last = again = None

    state = State()

    def f(x):
        state.last = state.again = Kept(x, state)
        return x + state.last.double

    compiled = fg.jit(f, backend="aten")
    for k in (1.0, 2.0, 3.0):
        before, x = state.last, torch.full((2,), k)
        assert torch.equal(compiled(x), x * 3)
        last = state.last
        assert type(last) is Kept and last is not before
        assert torch.equal(last.double, x * 2)
        assert last.of is state and last.me is last and state.again is last and last.names == ["double"]
    assert compiled.cache_info().misses <= 2  # nothing was there before the first


def test_what_is_made_lazily_is_there_from_then_on():
    class Model:
        kept = None

        def __call__(self, x):
            if self.kept is None:
                self.kept = Kept(x, None)
            return self.kept.double + x

    model = Model()
    compiled = fg.jit(lambda x: model(x), backend="aten")
    for k in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(torch.full((2,), k)), torch.full((2,), 2.0 + k))
    assert compiled.cache_info().misses == 2
    model.kept.double.add_(1)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_a_cache_that_each_call_clears_and_fills_is_no_state_it_reads():
    class Model:
        memo = {}  # noqa: RUF012

        def moments(self, x):
            if "moments" not in self.memo:
                self.memo["moments"] = Kept(x, None)
            return self.memo["moments"].double

        def __call__(self, x):
            self.memo = {}
            return self.moments(x) + self.moments(x)

    model = Model()
    compiled = fg.jit(lambda x: model(x), backend="aten")
    for k in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(torch.full((2,), k)), torch.full((2,), 4 * k))
        assert torch.equal(model.memo["moments"].double, torch.full((2,), 2 * k))
    assert compiled.cache_info().misses <= 2


def test_a_weak_reference_to_what_nobody_keeps_is_none():
    """As ``torch.distributions.Transform.inv`` keeps its inverse."""

    class Lazy:
        ref = None

        def inverse(self):
            found = None if self.ref is None else self.ref()
            if found is None:
                found = Kept(torch.zeros(()), self)
                self.ref = weakref.ref(found)
            return found

    lazy = Lazy()
    compiled = fg.jit(lambda x: x + lazy.inverse().double, backend="aten")
    for k in (1.0, 2.0, 3.0):
        assert torch.equal(compiled(torch.full((2,), k)), torch.full((2,), k))
    assert compiled.cache_info().misses == 1


def test_a_list_that_is_stored_twice_is_one_list():
    class State:
        first = second = None

    state = State()

    def f(x):
        names = [x.sum(), "sum"]
        state.first, state.second = names, {"again": names}
        return x * 2

    compiled = fg.jit(f, backend="aten")
    for k in (1.0, 2.0):
        compiled(torch.full((2,), k))
        assert state.second["again"] is state.first and state.first[0] == 2 * k


class Doubled:
    """With a setter and a deleter, which read and write more than the object."""

    factor, deleted = 1.0, 0

    def __init__(self):
        self.kept = 1.0

    @property
    def value(self):
        return self.kept

    @value.setter
    def value(self, new):
        self.kept = new * Doubled.factor

    @value.deleter
    def value(self):
        Doubled.deleted += 1
        self.kept = -Doubled.factor


@pytest.mark.parametrize("source", ["HELD.value = 3.0", "del HELD.value", "setattr(HELD, 'value', 2.0)"])
def test_what_a_setter_or_a_deleter_reads_and_writes(source, monkeypatch):
    """Where nobody read the attribute, its accessors were not looked into."""
    seen = []
    for transform in (lambda f: f, lambda f: fg.jit(f, backend="aten")):
        monkeypatch.setattr(Doubled, "deleted", 0)
        space = {"HELD": Doubled(), "Doubled": Doubled}
        exec(f"def f(x):\n    {source}\n    return x * 2", space)
        f, found = transform(space["f"]), []
        for factor in (1.0, 2.0, 3.0):
            monkeypatch.setattr(Doubled, "factor", factor)
            found += [f(X).tolist(), space["HELD"].kept, Doubled.deleted]
        seen.append(found)
    assert seen[0] == seen[1]


def test_what_is_reached_and_does_not_run_is_not_warned_of():
    def asks():
        return time.time()

    def f(x, ask):
        return x * (asks() if ask else 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.UnwatchedStateWarning)
        fg.jit(f, backend="aten")(X, False)
    with pytest.warns(fg.UnwatchedStateWarning, match=r"time\.time"):
        fg.jit(f, backend="aten")(X, True)


class Marked:
    """Functions that set, count, delete and read attributes of a weight, and what does so from outside."""

    def __init__(self):
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))
        self.w.n, self.w.log, self.w.tag = 0, [], "a"

    def counts(self, x):
        self.w.n += 1
        return x * self.w * self.w.n

    def keeps(self, x):
        self.w.last = x.detach() * 2
        return x * self.w

    def deletes(self, x):
        y = x * self.w * self.w.n
        del self.w.n
        return y

    def grows(self, x):
        self.w.log.append(len(self.w.log))
        return x * self.w * len(self.w.log)

    def makes_once(self, x):
        if not hasattr(self.w, "made"):
            self.w.made = x.shape[0]
            return x + self.w
        return x * self.w * self.w.made

    def by_vars(self, x):
        vars(self.w).update(tag=self.w.tag + "b")
        return x * self.w * len(self.w.tag)

    def raises(self, x):
        self.w.n += 1
        if self.w.n == 3:
            raise ValueError(self.w.tag)
        return x * self.w

    def step(self, i):
        if i == 2:
            self.w.tag, self.w.n, self.w.log = "longer", 7, [0]
        if i == 3:
            self.w = nn.Parameter(torch.tensor([5.0, 7.0]))
            self.w.n, self.w.log, self.w.tag = 1, [], "c"
        if i == 4:
            self.w.n = 2


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("name", [name for name in vars(Marked) if name != "step" and name[0] != "_"])
def test_attributes_of_a_weight_are_written_in_each_call(name):
    """They were set in each run of the trace, and in no call; no program fitted the call it was compiled for."""

    def world(wrap):
        marked = Marked()
        f = wrap(getattr(marked, name))
        for i in range(6):
            marked.step(i)
            if name == "deletes":
                marked.w.n = i % 2 + 2
            try:
                y = f(X)
                y.sum().backward()
            except ValueError as error:
                y = str(error)
            yield y, marked.w, vars(marked.w)

    expected, found = steps(world, lambda f: f), steps(world, lambda f: fg.jit(f, backend="aten"))
    for i, (now, wanted) in enumerate(zip(found, expected, strict=True)):
        assert_same(now, wanted, i)
