"""``c.explain(*args)``: what a program reads, writes and takes for granted."""

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
  what               is                           compiles again
  x                  float32[2, 3] on cpu         another dtype, device or requires_grad; another
                                                    size: at first once, then a symbol
  scale              any float                    none: it is a symbol
  w                  float32[3] on cpu, captured  another dtype, device, size or requires_grad
  model.temperature  2.0                          another one
  model              <test_explain.Model object>  another one
  note               <funcgrad opaque <lambda>>   another one
  model.step         present                      another one

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
    text = str(compiled.explain(torch.ones(2)))
    assert "a value, test_explain.py:" in text and "any float" in text and "what it decides otherwise" in text
