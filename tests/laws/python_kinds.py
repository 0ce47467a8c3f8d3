"""The kinds of Python state random programs read and write, as tables of source text.

``$`` is the number of the state in its program (``box$`` is ``box0``), ``@`` an expression for the place that is read
or written (``box0``, ``box0.cfg["lr"]``), ``%`` the name of an attribute of it. Statements compute with ``y``, a tensor
of three numbers.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Kind:
    """One kind of state: its name, the source that makes it, the places in it that generic syntax reads and writes,
    and its own."""

    name: str
    root: str
    world: str = attrs.field(converter=lambda source: source.strip("\n"))
    attributes: tuple[tuple[str, str], ...] = ()
    """Objects with a ``__dict__``, and an attribute that holds a number."""
    slots: tuple[tuple[str, str], ...] = ()
    """Objects without one."""
    dicts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    weight: float = 1.0
    keeps_history: bool = False
    """Whether it stores a tensor with its history, of which a gradient makes no promise."""
    reads_values: bool = False
    """Whether what the function does depends on values of tensors, of its arguments too: then another value is
    another world."""


# ── syntax that fits any place ───────────────────────────────────────────────────────────────────────────────────

NUMBER_USES = (
    "y = y * @", "y = y + @", "y = @ - y", "y = y * float(@)",
    "if @ > 1.7:\n    y = y.sin()\nelse:\n    y = y.cos()",
    "y = y * (3 if @ else 2)",
    "y = y * len(str(@))",
    "y = y * TABLE.get(f'{@}', 2.5)",
    "if (n := @) > 0.5:\n    y = y * n",
    "for _ in range(int(@) % 4):\n    y = y.sin()",
    "y = y * (2 if isinstance(@, int) else 3)",
    "y = y.clamp(max=float(@))",
    "y = torch.full_like(y, @) + y",
    "y = scaled(y, @)", "y = scaled(y, by=@)",
    "y = y * (lambda v: v * 2)(@)",
    "match @:\n    case int():\n        y = y.tanh()\n    case _:\n        y = y * 0.5",
    "y = y * sum([@, @])",
    "y = (y * @ for _ in range(2)).__next__()",
    "if @ > 6.5:\n    raise ValueError(f'too large: {@}')\ny = y.cos()",
    "assert @ != 4, 'is four'\ny = y.cos()",
    "y = torch.cat([y] * (1 + int(@) % 2))[:3] + int(@) % 2",
    "y = y * math.sqrt(abs(@))", "y = y + round(@, 1)", "y = y * max(@, 1.5)", "y = y * (1 if @ is None else 2)",
    "y = y * (not @)",
    "y = y * (2 if type(@) is float else 3)",
    "y = y.roll(int(@) % 3)", "y = y[int(@) % 2 :].sum() + y", "y = y.reshape(1, 3).expand(1 + int(@) % 2, 3).sum(0)",
    "y = y * {1: 2.0, 7: 3.0}.get(int(@), 1.1)", "y = torch.where(y > @, y, -y)",
    "y = y.to(torch.float64 if @ > 5 else torch.float32)",
)  # fmt: skip
"""What a program does with a number."""

ATTRIBUTE_READS = (
    "@.%", "@.%", "@.%", "getattr(@, '%')", "getattr(@, '%', 2.5)", "operator.attrgetter('%')(@)", "(lambda o: o.%)(@)",
    "[@.% for _ in range(2)][1]", "(t := @).%", "float(hasattr(@, '%'))", "float(hasattr(@, 'extra'))",
    "getattr(@, 'extra', 2.0)",
    "getattr(@, KEY_OF['%'])",
)  # fmt: skip
DICT_ATTRIBUTE_READS = (
    "vars(@)['%']", "@.__dict__['%']", "@.__dict__.get('%', 1)", "dict(vars(@).items())['%']",
    "sum(v for k, v in vars(@).items() if k == '%')", "('%' in vars(@))", "('extra' in dir(@))", "len(vars(@))",
    "len([k for k in vars(@) if not k.startswith('_')])",
)  # fmt: skip
ATTRIBUTE_WRITES = (
    "@.% += 1", "@.% += 1", "@.% = @.% * 2", "@.% = 3", "@.% = 3.5", "setattr(@, '%', 4)",
    "object.__setattr__(@, '%', 5)", "del @.%",
    "for _ in range(2):\n    @.% += 1", "@.% = None", "@.% = 'text'", "@.% = @.% + 1 if @.% < 3 else 0",
    "@.% = torch.float32",
)  # fmt: skip
DICT_ATTRIBUTE_WRITES = (
    "vars(@)['%'] = 6", "@.__dict__.update(%=7)", "@.fresh = 1", "@.notes = [1, 2]", "@.made = Plain(2)", "@.other = @",
    "@.last = y", "@.last = y.detach()", "@.last = x", "@.pair = (y.detach(), 2)", "@.shape = y.shape",
    "@.named = {'y': y.detach()}",
    "if not hasattr(@, 'lazy'):\n    @.lazy = 1.5\ny = y * @.lazy",
    "if getattr(@, 'cached', None) is None:\n    @.cached = torch.ones(3) * 2\ny = y * @.cached",
    "try:\n    v = @.attempts\nexcept AttributeError:\n    v = 2\n@.attempts = v + 1\ny = y * v",
    "y = y + getattr(@, 'state', 0)\n@.state = y.detach()",
    "@.%, @.second = 3, 4", "@.__dict__.pop('%', None)", "@.hook = lambda v: v * 2",
    "@.seen = getattr(@, 'seen', 0) + 1",
    "@.size = y.numel()", "@.mean = y.detach().mean()", "@.twice = @.% * 2\ny = y * @.twice",
)  # fmt: skip
ATTRIBUTE_CHANGES = (
    "@.% = 2.5", "@.% = 7", "@.% = 1", "@.% = 1.0", "@.% = True", "@.% = 1.5", "setattr(@, '%', 9.0)",
    "object.__setattr__(@, '%', 6)",
    "del @.%", "@.% = None", "@.% = -0.0", "@.% = float('inf')", "@.% = float('nan')", "@.% = 0",
)  # fmt: skip
DICT_ATTRIBUTE_CHANGES = (
    "@.extra = 1.25", "vars(@)['%'] = 6.5", "vars(@).update(%=0.25)", "@.__dict__.pop('%', None)", "@.lazy = 4.0",
    "@.last = None",
    "@.__dict__['extra'] = 3", "vars(@).pop('lazy', None)", "@.__dict__ = dict(@.__dict__)",
)  # fmt: skip

DICT_READS = (
    "@['k']", "@['k']", "@.get('k', 1)", "@.get('zz', 3)", "len(@)", "sum(@.values())", "('j' in @)", "('zz' in @)",
    "[v for v in @.values()][0]", "{**@}['k']", "dict(@)['k']", "(list(@)[0] == 'k')",
    "max(@.items(), key=lambda p: p[1])[1]",
    "operator.itemgetter('k')(@)", "(@ | {'q': 1})['k']", "next(iter(@.values()))", "@[f\"{'k'}\"]", "@[KEY]",
    "sum(1 for k in @)",
    "bool(@)", "(@ == {'k': 1.5, 'j': 2})", "min(@.values())", "({k: v for k, v in @.items() if v}).get('k', 4)",
    "@['k'] * @['j']",
    "keyword(**@)", "@.__getitem__('j')", "@.copy()['k']", "sorted(@.items())[0][1]", "len(@.keys() & {'k', 'zz'})",
    "hash(tuple(@)) % 1",
    "[*@.values()][-1]",
)  # fmt: skip
DICT_STATEMENTS = (
    "for key, v in @.items():\n    y = y * v", "try:\n    v = @['zz']\nexcept KeyError:\n    v = 2\ny = y * v",
    "match @:\n    case {'zz': v}:\n        y = y * v\n    case {'k': v}:\n        y = y + v",
    "first, *rest = @.values()\ny = y * first + len(rest)", "if @:\n    y = y.sin()",
    "y = y * sum(v for k, v in @.items() if k != 'j')",
    "if 'zz' not in @:\n    y = y.exp().tanh()",
)  # fmt: skip
DICT_WRITES = (
    "@['k'] = 3", "@['k'] += 1", "@['n'] = 1", "@['n'] = @.get('n', 0) + 1", "@.update(j=5)", "@.setdefault('s', 2)",
    "y = y * @.setdefault('s', 1.5)", "@.pop('j', None)", "del @['j']", "@['y'] = y", "@['y'] = y.detach()",
    "@['x'] = x", "@.clear()",
    "@['list'] = [1]", "@['self'] = @", "@.setdefault('log', []).append(1)", "@['shape'] = tuple(y.shape)",
    "@.popitem()",
    "@[len(@)] = 'n'",
)  # fmt: skip
DICT_CHANGES = (
    "@['k'] = 2.5", "@['k'] = 7", "@['k'] += 1", "@['zz'] = 4", "@['j'] = 2.0", "del @['j']", "@.pop('k', None)",
    "@.update(k=0.5)",
    "@.clear()", "@['new'] = 1.75", "@['j'] = @.pop('j', 1)", "@['k'] = 1.5", "@['s'] = 3",
)  # fmt: skip

LIST_READS = (
    "@[0]", "@[0]", "@[-1]", "len(@)", "sum(@)", "sum(@[1:])", "max(@)", "[*@][0]", "(2 in @)", "list(reversed(@))[0]",
    "sorted(@)[0]",
    "[v * 2 for v in @][-1]", "bool(@)", "tuple(@)[0]", "list(@)[:1][0]", "@.count(2)",
    "sum(a * b for a, b in zip(@, [2, 3]))",
    "functools.reduce(operator.add, @)", "[i for i, v in enumerate(@)][-1]", "next(iter(@))", "(list(@) + [5])[-1]",
    "positional(*@)", "max(map(float, @))", "len({*@})", "(lambda a, *b: a + len(b))(*@)", "any(v > 6 for v in @)",
    "math.prod(@)", "len(@[:2])", "(@ == [1.5, 2])", "hash(tuple(@)) % 1 + 2",
)  # fmt: skip
LIST_STATEMENTS = (
    "first, *rest = @\ny = y * first + len(rest)", "for v in @:\n    y = y * v", "if @:\n    y = y.sin()",
    "for i, v in enumerate(@):\n    y = y * v + i", "while len(@) > 4:\n    y = y * 2\n    break",
    "match @:\n    case [a, b]:\n        y = y * a + b\n    case [a, *_]:\n        y = y - a",
    "it = iter(@)\ny = y * next(it) + sum(it)", "try:\n    v = @[2]\nexcept IndexError:\n    v = 2\ny = y * v",
)  # fmt: skip
LIST_WRITES = (
    "@.append(3)", "@.append(float(len(@)))", "@.pop()", "@.extend([1, 2])", "@.insert(0, 4)", "@[0] = 5", "@[0] += 1",
    "@.clear()",
    "del @[0]", "@.reverse()", "@.append(y)", "@.append(y.detach())", "@.append(x)", "@.append([1])",
    "@.append(Plain(1))",
    "@.append(tuple(y.shape))", "if len(@) < 4:\n    @.append(1)\ny = y * len(@)", "@.append('s')",
    "@.append(y.detach().sum())",
    "@.append(@[-1] + 1)", "for i in range(2):\n    @.append(i)", "@.remove(2)",
)  # fmt: skip
LIST_CHANGES = (
    "@.append(2.5)", "@[0] = 7", "@[0] = 2.25", "@.pop()", "@.clear()", "@.insert(0, 3)", "@.reverse()",
    "@.extend([4, 5])", "@[-1] += 1",
    "del @[0]", "@[0] = @[0]",
)  # fmt: skip

SET_READS = ("len(@)", "('a' in @)", "('zz' in @)", "bool(@)", "len(@ & {'a', 'zz'})", "(@ == {'a', 'b'})",
"sum(len(v) for v in @)",
             "len(sorted(@)[0])", "@.isdisjoint({'zz'})")  # fmt: skip
SET_WRITES = ("@.add('s')", "@.discard('a')", "@.update({'t', 'u'})", "@.add(y.dtype)", "@.add(y)", "@.clear()",
"@.remove('a')",
              "if 's' not in @:\n    @.add('s')\n    y = y * 2")  # fmt: skip
SET_CHANGES = ("@.add('zz')", "@.discard('a')", "@.clear()", "@.add('a')", "@.update({'long', 'b'})")

TENSOR_READS = (
    "y = y + @", "y = y * @.sum()", "y = torch.stack([y, @]).mean(0)", "if @ is not None:\n    y = y + @",
    "y = y * @.shape[0]",
    "if @.requires_grad:\n    y = y * 2", "y = y * (2 if isinstance(@, nn.Parameter) else 3)",
    "y = y * (2 if @ is SHARED else 3)",
    "y = y + @.detach()", "y = y * @.dim()", "y = y * (@.dtype == torch.float32)", "y = y - @.view(-1)[0]",
    "y = y * len(@)",
    "y = y + @[1:].sum()", "y = torch.tanh(y * @ + @)",
)  # fmt: skip
TENSOR_WRITES = (
    "@ = y", "@ = y.detach()", "@ = @ * 0.9 + y.detach() * 0.1", "@.add_(1)", "@.copy_(y.detach())",
    "with torch.no_grad():\n    @.mul_(0.5)", "@ = @.clone()", "@ = torch.zeros(3)", "@ = x", "@ = None", "@[0] = 2.0",
    "@ += 1",
    "@ = SHARED", "@ = @.detach()",
)  # fmt: skip
TENSOR_CHANGES = (
    "@ = torch.full((3,), 0.5)", "with torch.no_grad():\n    @.add_(1)", "@ = @.clone()", "@ = @.detach().double()",
    "@ = SHARED",
    "@ = torch.ones(3, requires_grad=True)", "@ = nn.Parameter(torch.ones(3) / 2)", "@ = None",
    "@.requires_grad_(not @.requires_grad)",
    "@ = torch.arange(6.).view(2, 3)", "with torch.no_grad():\n    @.copy_(SHARED)", "@.grad = torch.ones(3)",
    "@ = torch.arange(3)",
)  # fmt: skip

RESULTS = ("y", "y", "y", "y, 2", "{'y': y, 'x': x}", "[y, (y.sum(),)]", "Result(y, 1)", "y, None", "(y, y)")
"""What a program returns, if it is not asked for state too."""

PRELUDE = """
import collections, contextlib, contextvars, copy, dataclasses, enum, functools, inspect, io, itertools
import logging, math, operator, os, random, sys, threading, time, types, weakref
import attrs
import numpy as np
import torch
from torch import nn

TABLE = {"1.5": 3.0, "7": 0.5, "2": 1.25, "True": 0.75, "None": 4.0}
KEY = "k"
KEY_OF = {name: name for name in ("a", "b", "k", "n", "count", "scale", "rate")}
SHARED = torch.tensor([0.5, 1.0, -0.5])
Result = collections.namedtuple("Result", "y n")

class Plain:
    def __init__(self, v): self.v = v

def scaled(t, by=2.0): return t * by

def keyword(k=1, j=2, **rest): return k * j + len(rest)

def positional(a=1, b=2, *rest): return a + b + len(rest)
"""
"""What every world has."""
