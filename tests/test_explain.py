"""``c.explain(*args)``: what a program reads, writes and takes for granted."""

import contextvars
import os
import pathlib
import re

import torch

import funcgrad as fg


class Model:
    def __init__(self):
        self.temperature, self.step, self.last = 2.0, 0, None


EXPLAINED = """
f: 7 read, 4 written, 6 assumed
  reads    x, scale, w, model.temperature, model, note, model.step
  writes   copy final(x) into x, model.step += 1, model.last = stored(model.last), what callback
             does
  assumes  grad mode, autocast, default dtype, x, (scale > 1), (not 3.4028234663852886e+38 < abs(
             scale) < math.inf)

reads
  what          is                         read at                   compiles again
  x             float32[2, 3] on cpu                                 another dtype, device or
                                                                       requires_grad; another size:
                                                                       at first once, then a symbol
  scale         any float                                            none: it is a symbol
  w             float32[3] on cpu,         test_explain.py:N in f   another dtype, device, size or
                  captured                                             requires_grad
  model.temper  2.0                        test_explain.py:N in f   another one
    ature
  model         <test_explain.Model        test_explain.py:N in f,  another one
                  object>                    test_explain.py:N in
                                             f, test_explain.py:N
                                             in f
  note          <funcgrad opaque           test_explain.py:N in f   another one
                  <lambda>>
  model.step    present                    test_explain.py:N in f   another one

writes
  what                             by
  copy final(x) into x             layer mutation
  model.step += 1                  Python state
  model.last = stored(model.last)  Python state
  what callback does               an opaque call, test_explain.py:N in f

assumes
  what                                                  is
  grad mode                                             on
  autocast                                              off
  default dtype                                         float32
  x                                                     untracked
  (scale > 1)                                           holds
  (not 3.4028234663852886e+38 < abs(scale) < math.inf)  holds
"""


def test_one_of_each_kind():
    model, w = Model(), torch.ones(3)
    note = fg.opaque(lambda a: None, like=None)

    @fg.jit
    def f(x, scale):
        model.step += 1
        x.add_(1)
        model.last = x.sum()
        note(x)
        return (x * w * model.temperature).sin() * scale if scale > 1 else x

    x = torch.ones(2, 3)
    f(x, 2.0)
    f(x, 3.0)  # a float is a symbol from its second value on
    found = f.explain(x, 3.0)
    text = str(found)
    assert re.sub(r"py:\d+", "py:N", text).strip() == EXPLAINED.strip()
    assert all(len(line) <= 100 for line in text.splitlines())
    page = found._repr_html_()
    assert page.index("model.temperature") < page.index("<details") < page.index("another size")
    assert f.cache_info().currsize == 2 and torch.equal(x, torch.full((2, 3), 3.0))


def test_what_it_says_is_so():
    """What it names as compiled again is."""
    model, w = Model(), torch.ones(3)
    c = fg.jit(lambda x: x * w * model.temperature)
    x = torch.ones(2, 3)
    assert "model.temperature" in str(c.explain(x)) and c.cache_info().currsize == 1
    c(x)
    assert c.cache_info().currsize == 1
    model.temperature = 3.0
    assert "model.temperature" in c.explain_miss(x)


def test_values_that_python_reads():
    compiled = fg.jit(lambda x: x * 2 if x.sum() > 0 else x * x.max().item())
    for v in (1.0, -1.0, -2.0):
        compiled(torch.full((2,), v))
    text = str(compiled.explain(torch.full((2,), -3.0)))
    assert re.search(r"a value +\w+ +test_explain.py:\d+ in <lambda>", text)
    assert "any float" in text and "what it decides otherwise" in text


RATES, LISTED, CHANNEL = {"lr": 0.5, "unread": 3}, [1.0, 2.0], contextvars.ContextVar("CHANNEL", default=2.0)


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


class Config:
    rate = 0.1


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.cfg = torch.nn.Linear(3, 3), {"a": 1.5}

    def forward(self, x):
        return self.linear(x) * self.cfg["a"]  # layer


def helper(x):
    return x * RATES["lr"]  # helper


def test_state_is_named_with_the_line_that_reads_it(monkeypatch):
    slotted, layer, cell, plain = Slotted(), Layer(), 3, Model()

    def f(x, k=2.5):  # default
        y = helper(x) * k  # call
        y = y * slotted.scale  # slots
        y = y * Config.rate  # class
        for v in LISTED:  # list
            y = y + v
        if os.environ.get("FUNCGRAD_NOBODY_SETS"):  # environment
            y = y + 1
        y = y * cell * CHANNEL.get()  # cell
        y = y * getattr(plain, "temperature")  # by name
        return layer(y)  # module

    compiled, x = fg.jit(f), torch.ones(2, 3)
    found = compiled.explain(x)
    rows = {row[0]: row for row in found._reads()}
    source = pathlib.Path(__file__).read_text().splitlines()

    def is_read_at(name, comment, function="f"):
        at = next(i for i, line in enumerate(source, 1) if line.endswith(f"# {comment}"))
        return rows[name][2] == f"test_explain.py:{at} in {function}"

    assert is_read_at("RATES['lr']", "helper", "helper") and is_read_at("RATES", "helper", "helper")
    assert is_read_at("helper", "call") and is_read_at("slotted.scale", "slots") and is_read_at("slotted", "slots")
    assert is_read_at("Config.rate", "class") and is_read_at("LISTED", "list") and is_read_at("cell", "cell")
    assert is_read_at("os.environ['FUNCGRAD_NOBODY_SETS']", "environment") and is_read_at("CHANNEL", "cell")
    assert is_read_at("plain.temperature", "by name") and is_read_at("layer._forward_hooks", "module")
    assert is_read_at("layer.linear.weight", "layer", "forward") and is_read_at("layer.cfg['a']", "layer", "forward")
    page = found._repr_html_()
    assert "read at" in page and rows["slotted.scale"][2] in page
    monkeypatch.setattr("funcgrad.state.found.reading_line", None)
    compiled(x)  # a hit looks for no line
    assert compiled.cache_info().currsize == 1 and compiled.cache_info().hits >= 1


def test_defaults_and_names_that_two_functions_read():
    def g(x, c=None, *, by=2.0):  # keyword
        return x * by + RATES["lr"]  # second

    compiled = fg.jit(lambda x: helper(g(x)))
    rows = {row[0]: row for row in compiled.explain(torch.ones(2))._reads()}
    assert rows["by"][2].endswith(" in g") and rows["by"][2].startswith("test_explain.py:")
    assert {at.split()[-1] for at in rows["RATES['lr']"][2].split(", ")} == {"g", "helper"}
