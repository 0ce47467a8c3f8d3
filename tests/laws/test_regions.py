"""Regions are entered and left in any order, by threads, by exceptions, beside torch's own compiled autograd: gradients
are always those of eager PyTorch, and nothing is left behind.

``python -m tests.laws.test_regions N`` runs N interleavings.
"""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from torch._dynamo import compiled_autograd as torchs_own

import funcgrad as fg
from funcgrad.engine import region as regions
from funcgrad.torch_private.engine import set_engine_hook

ENTRY = torch.autograd.graph._engine_run_backward


def eager(gm, *_):
    return gm


def exponential(size, hook=None):
    """A backward pass of a few nodes, and its gradient."""
    x = torch.linspace(0.1, 1, size, requires_grad=True)
    y = x.exp()
    if hook is not None:
        y.register_hook(hook)
    (y * x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp() * (1 + x.detach()))


def inside(g):
    with torch.enable_grad():
        exponential(2)


def within_a_region(g):
    with torch.enable_grad(), fg.compiled_autograd(backend="aten"):
        exponential(2)


def raising(g):
    raise ArithmeticError


class Regions(RuleBasedStateMachine):
    """``opened``: what is open, regions and torch's own, the innermost last. Torch's own is left before what was
    opened before it."""

    def __init__(self):
        super().__init__()
        self.opened = []
        regions.reset()  # what the engine knows of is not drawn

    @rule(dynamic=st.sampled_from([None, False]))
    def enter(self, dynamic):
        self.opened.append(fg.compiled_autograd(backend="aten", dynamic=dynamic))
        self.opened[-1].__enter__()

    @rule(how=st.sampled_from(["enable", "disable"]))
    def enter_torchs_own(self, how):
        self.opened.append(torchs_own._enable(eager) if how == "enable" else torchs_own._disable())
        self.opened[-1].__enter__()

    @precondition(lambda self: self.opened)
    @rule(error=st.sampled_from([None, ArithmeticError()]))
    def leave(self, error):
        self.opened.pop().__exit__(type(error) if error else None, error, None)

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def leave_one_that_is_not_the_innermost(self, data):
        """As far as torch's own, which restores what it found."""
        last = max((i for i, one in enumerate(self.opened) if not isinstance(one, regions.Region)), default=-1)
        ours = self.opened[last + 1 :]
        if ours:
            one = data.draw(st.sampled_from(ours), label="region")
            self.opened.remove(one)
            one.__exit__(None, None, None)

    @precondition(lambda self: self.opened and isinstance(self.opened[-1], regions.Region))
    @rule()
    def enter_what_is_open(self):
        with pytest.raises(fg.FuncgradError, match="open already"):
            self.opened[-1].__enter__()

    @rule(size=st.integers(2, 4), hook=st.sampled_from([None, inside, within_a_region]))
    def run_backward(self, size, hook):
        exponential(size, hook)

    @rule()
    def raise_in_a_hook(self):
        with pytest.raises(ArithmeticError):
            exponential(3, raising)

    @rule(opens=st.booleans())
    def run_in_a_thread(self, opens):
        found = []

        def work():
            if opens:
                with fg.compiled_autograd(backend="aten"):
                    exponential(3)
            else:
                exponential(3)
            found.append(torch.autograd.is_multithreading_enabled())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [True]

    @rule()
    def reset(self):
        if any(isinstance(one, regions.Region) for one in self.opened):
            with pytest.raises(fg.FuncgradError, match="where no region is open"):
                regions.reset()
        elif not self.opened:
            regions.reset()

    @invariant()
    def is_as_opened(self):
        ours = [one for one in self.opened if isinstance(one, regions.Region)]
        assert regions._open == ours and not regions._running and regions._here.now is None
        assert (torch.autograd.graph._engine_run_backward is ENTRY) == (not ours)
        assert torch.autograd.is_multithreading_enabled() == (not any(_turns_threads_off(one) for one in self.opened))

    def teardown(self):
        while self.opened:
            self.leave(None)
        self.is_as_opened()
        hook = set_engine_hook(None)
        assert hook[0] is None
        set_engine_hook(*hook)


def _turns_threads_off(one):
    return isinstance(one, regions.Region) or one.gen.__name__ == "_enable"


def interleavings(n):
    deadline = settings(
        max_examples=n, stateful_step_count=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Regions, settings=deadline)


@pytest.mark.filterwarnings("ignore")
def test_regions_leave_nothing_behind_in_any_order():  # S3-63, S3-64, S3-65, S3-66
    interleavings(60)


if __name__ == "__main__":
    interleavings(int(sys.argv[1]))
