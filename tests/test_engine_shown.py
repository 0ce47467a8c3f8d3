"""What a region says of the backward passes it captured: pages, events, reasons."""

from __future__ import annotations

import gc
import re
import weakref

import expecttest
import torch

import funcgrad as fg
from funcgrad.engine import region as regions


def doubled(g):
    return g * 2


def stepped(p):
    p.data.sub_(p.grad)
    p.grad = None


def network():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model[0].weight.register_hook(doubled)
    model[2].weight.register_post_accumulate_grad_hook(stepped)
    return model


def trained(model, *batches):
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        for n in batches:
            step(model, n)
    return region


def step(model, n):
    """Where a leaf has a gradient already, the engine's graph is another one."""
    model.zero_grad(set_to_none=True)
    model(torch.ones(n, 8)).sum().backward()


class TestPage(expecttest.TestCase):
    def test_golden_page(self):  # S3-57
        """Statements in the order they run, which hook is where; after them the graph, its kernels and its schedule,
        program by program."""
        region = trained(network(), 4, 6)
        statements, first, *others = str(region.captures[0]).split("\n\nprogram for ")
        assert "3 of their sizes are symbols" in others[0].replace("\n  ", " ")
        assert "tensor_hook_and_accumulate_grad(" in first and "schedule of backward0" in first
        lines = [re.sub(r"in [\d.]+ .?s\b", "in ...", line.rstrip()) for line in statements.splitlines()]
        self.assertExpectedInline(
            "\n".join(lines),
            """\
backward0: 19 statements, 2 of them calls of Python, 2 programs
  runs                 2; captured in ..., compiled in ..., compiled in ...
  adds to              the .grad of 4 leaves
  hooks and functions  stepped (test_engine_shown.py:20), doubled (test_engine_shown.py:16)
  kept by forward      1.0 KiB, the leaves included, in the first run

statements, in the order they run
  node            statement                                                besides
  GraphRoot       v0 = validate_outputs([inputs[0]])
  SumBackward0    v1 = SumBackward0([v0], [True], [sizes[0], sizes[1]])
                  v2 = validate_outputs([v1])
  AddmmBackward0  v3, v3[1], v3[2] = AddmmBackward0([v2], [True, True,
                    True], 1, 1, inputs[1], 0, [sizes[4], sizes[5]], [
                    sizes[6], sizes[7]], inputs[2], 0, [sizes[8], sizes[
                    9]], [sizes[10], sizes[11]])
                  v4, v4[1], v4[2] = validate_outputs([v3, v3[1], v3[2]])
  AccumulateGrad  accumulate_grad(inputs[8], v4)                           adds to .grad
  TBackward0      v5 = TBackward0([v4[2]], [True])
                  v6 = validate_outputs([v5])
  AccumulateGrad  accumulate_grad(inputs[3], v6)                           adds to .grad
                  after_store(hooks[0], inputs[3])                         calls Python: stepped (
                                                                             test_engine_shown.py:20
                                                                             )
  TanhBackward0   v9 = TanhBackward0([v4[1]], [True], inputs[4])
                  v10 = validate_outputs([v9])
  AddmmBackward0  v11, v11[1], v11[2] = AddmmBackward0([v10], [True,
                    False, True], 1, 1, inputs[5], 0, [sizes[21], sizes[
                    22]], [], None, 0, [sizes[23], sizes[24]], [sizes[
                    25], sizes[26]])
                  v12, v12[1], v12[2] = validate_outputs([v11, v11[1],
                    v11[2]])
  AccumulateGrad  accumulate_grad(inputs[7], v12)                          adds to .grad
  TBackward0      v13 = TBackward0([v12[2]], [True])
                  v14 = validate_outputs([v13])
  AccumulateGrad  v15 = tensor_hook(hooks[1], v14)                         calls Python: doubled (
                                                                             test_engine_shown.py:16
                                                                             )
                  accumulate_grad(inputs[6], v15)                          adds to .grad""",
        )

    def test_events(self):
        region = trained(network(), 4, 4, 6)
        self.assertExpectedInline(
            region.explain().replace("; ", ";\n     "),
            """\
0: captured backward0
1: compiled backward0: a first run
2: ran backward0
3: ran backward0
4: compiled backward0: inputs[1] is f32[6, 16], not f32[4, 16];
     inputs[4] is f32[6, 16], not f32[4, 16];
     inputs[5] is f32[6, 8], not f32[4, 8];
     sizes[0] is 6, not 4;
     and 5 more
5: ran backward0""",
        )


def test_html_stands_alone():
    region = trained(network(), 4)
    for stage in (region.captures, region.captures[0], *region.captures[0].programs):
        html = stage._repr_html_()
        assert "http" not in html.replace("http://www.w3.org", "") and "<script" not in html
    assert "doubled (test_engine_shown.py" in region.captures[0]._repr_html_()


def test_captures_are_what_ran():
    """Also what another region has captured."""
    model = network()
    region = trained(model, 4)
    with fg.compiled_autograd(backend="aten") as again:
        for _ in range(3):
            step(model, 4)
        model.zero_grad(set_to_none=True)
        model[0](torch.ones(4, 8)).sum().backward()
    assert again.captures[0] is region.captures[0] and region.captures[0].runs == 4
    assert len(again.captures) == 2 and len(region.captures) == 1
    assert again.compiles == 1 and len(again.captures[1].programs) == 1


def test_why_it_compiles_again():  # S3-19
    leaves = torch.ones(3, 2), torch.ones(2, 3).t(), torch.ones(5, 2)
    regions.reset()
    with fg.compiled_autograd(backend="aten", dynamic=False) as region:
        for leaf in leaves:
            leaf.requires_grad_().exp().sum().backward()
        with torch.autocast("cpu", torch.bfloat16):
            torch.ones(5, 2, requires_grad=True).exp().sum().backward()
    reasons = [event.why for event in region.events if event.what == "compiled"]
    assert reasons[0] == "a first run" and len(region.captures) == 1
    assert "inputs[1] has dimensions in memory order (1, 0), not (0, 1)" in reasons[1]
    assert "inputs[1] is f32[5, 2], not f32[3, 2]" in reasons[2]
    assert reasons[3] == "other modes of PyTorch are on"


def test_events_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(regions, "_MOST_EVENTS", 5)
    x = torch.ones(3, requires_grad=True)
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        for _ in range(9):
            x.grad = None
            x.exp().sum().backward()
    assert len(region.events) == 5 and region.explain().startswith("6 events before are gone\n6: ran backward0")
    assert region.compiles == 1 and region.captures[0].runs == 9


def test_a_region_that_is_over_keeps_no_graph_of_autograd():
    model = network()
    region = trained(model, 4)
    kept = [weakref.ref(p) for p in model.parameters()]
    del model
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4 and len(region.captures) == 1
