"""Python state that no hook hears of, or that is read after it was written: eager PyTorch is the oracle, step by step.

Each case is the source of a small world with a function ``f``, and a script: ``call()`` calls it, other lines change
the world.
"""

import array
import builtins
import collections
import contextlib
import contextvars
import csv
import dataclasses
import functools
import io
import itertools
import logging
import math
import operator
import os
import queue
import random
import sys
import threading
import time
import types
import unittest.mock
import warnings
import weakref

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_state import X, all_of, outcome, world
from torch import nn

import funcgrad as fg

SCRIPTS = {
    # what no hook heard of
    "a copy": ("c = Config()\ndef f(x): return x * copy.copy(c).lr", "call(); c.lr = 7.0; call(); call()"),
    "a deep copy": (
        "c = Config()\ndef f(x): return x * copy.deepcopy(c).nested['a']['b']",
        "call(); c.nested['a']['b'] = 7.0; call(); call()",
    ),
    "a memoryview": ("b = bytearray(b'ab')\nm = memoryview(b)\ndef f(x): return x * m[0]", "call(); b[0] = 3; call()"),
    "a memoryview that is written to": (
        "b = bytearray(b'ab')\nm = memoryview(b)\ndef f(x):\n    m[1] = m[1] + 1\n    return x * m[0]",
        "call(); call(); m.release(); b[0] = 3",
    ),
    "a weak proxy": (
        "c = Config()\np = weakref.proxy(c)\ndef f(x): return x * p.lr",
        "call(); c.lr = 7.0; call(); p = 0",
    ),
    "a value in a context": (
        "v = contextvars.ContextVar('v', default=2.0)\nk = contextvars.copy_context()\n"
        "def f(x): return k.run(lambda: x * v.get())",
        "call(); k.run(v.set, 3.0); call(); k.run(v.set, 4.0); call(); v = k = 0",
    ),
    "the names of a pattern": (
        "class P:\n    __match_args__ = ('a',)\n    def __init__(self): self.a, self.b = 2.0, 5.0\np = P()\n"
        "def f(x):\n    match p:\n        case P(v): return x * v",
        "call(); P.__match_args__ = ('b',); call()",
    ),
    "what a default factory reads": (
        "k = [2.0]\nd = collections.defaultdict(lambda: k[0])\ndef f(x): return x * d['a']",
        "call(); del d['a']; k[0] = 3.0; call(); d.default_factory = 0",
    ),
    "another default factory": (
        "d = collections.defaultdict(int)\ndef f(x): return x * (1 + d['a'])",
        "call(); d.clear(); d.default_factory = lambda: 4.0; call(); d.default_factory = 0",
    ),
    "a missing item that the length gives": (
        "class D(dict):\n    def __missing__(self, k): self[k] = len(self) + 1.0; return self[k]\nd = D()\n"
        "def f(x): return x * d['a']",
        "call(); d.clear(); d['z'] = 1; call()",
    ),
    "an attribute of an enum's member": (
        "class E(enum.Enum):\n    A = 1\nE.A.by = 2.0\ndef f(x): return x * E.A.by",
        "call(); E.A.by = 3.0; call()",
    ),
    "an enum's method": (
        "k = [2.0]\nclass E(enum.Enum):\n    A = 1\n    def by(self): return k[0]\nc = Config()\nc.e = E.A\n"
        "def f(x): return x * c.e.by()",
        "call(); k[0] = 3.0; call(); E.by = lambda self: 9.0; call()",
    ),
    "__getattr__ of a module": (
        "k = [2.0]\nm = types.ModuleType('m')\nm.__getattr__ = lambda n: k[0]\ndef f(x): return x * m.by",
        "call(); k[0] = 3.0; call()",
    ),
    "an attribute of a module that comes before its __getattr__": (
        "m = types.ModuleType('m')\nm.__getattr__ = lambda n: 2.0\ndef f(x): return x * m.by",
        "call(); m.by = 3.0; call(); del m.by; call()",
    ),
    "an attribute that a module lacked": (
        "m = types.ModuleType('m')\ndef f(x):\n    try: return x * m.by\n    except AttributeError: return x + 1",
        "call(); m.by = 3.0; call(); del m.by; call()",
    ),
    # read after it was written, by what no hook hears of
    "a counter of the class that is read": (
        "class T:\n    n = 0\n    def __enter__(self): type(self).n += 1; return self\n    def __exit__(self, *_): "
        "pass\n"
        "t = T()\ndef f(x):\n    with t as own: return x * own.n",
        "call(); call(); call()",
    ),
    "a counter by name, of a class that is reached by its object": (
        "c = Config()\ndef f(x):\n    type(c).count = getattr(type(c), 'count', 0) + 1\n    return x * 2",
        "call(); call(); call()",
    ),
    "a first attempt on a class": (
        "class C: pass\ndef f(x):\n    try: v = C.attempts\n    except AttributeError: v = 2\n    C.attempts = v + "
        "1\n    return x * v",
        "call(); call(); call()",
    ),
    "a first attempt on a function": (
        "def g(x): return x\ndef f(x):\n    try: v = g.attempts\n    except AttributeError: v = 2\n    g.attempts = v "
        "+ 1\n    return x * v",
        "call(); call(); call()",
    ),
    # what was taken for a counter or a log, and is stored
    "an item of a list counts": ("v = [1.5, 2]\ndef f(x):\n    v[0] += 1\n    return x * 2",
    "call(); call(); v[0] = 7; call()"),
    "an item of a list counts, and the last is read": ("v = [1.5]\ndef f(x):\n    v[0] += 1\n    return x * v[-1]",
    "call(); call()"),
    "a bool in a dict counts": ("d = {'n': True}\ndef f(x):\n    d['n'] += 1\n    return x * 2",
    "call(); call(); d['n'] = 7; call()"),
    "a text in a dict grows": ("d = {'n': 'a'}\ndef f(x):\n    d['n'] += 'b'\n    return x * 2", "call(); call()"),
    "a full deque": ("d = collections.deque([1, 2], maxlen=2)\ndef f(x):\n    d.append(3)\n    return x * 2",
    "call(); d.append(4); call()"),
    "a deque grows to the left": ("d = collections.deque([1])\ndef f(x):\n    d.appendleft(3)\n    return x * 2",
    "call(); call(); call()"),
    "a log that begins with what is read": ("v = [2.0]\ndef f(x):\n    v.append(1)\n    return x * v[0]",
    "call(); call(); call()"),
    "a list gets what it holds": ("v = [Config()]\ndef f(x):\n    v.append(v[0])\n    return x * 2",
    "call(); call(); call()"),
    "an argument of a partial counts": (
        "p = functools.partial(lambda x, by: x * by, by=1.5)\ndef f(x):\n    p.keywords['by'] += 1\n    return p(x)",
        "call(); call()",
    ),
    "a keyword default counts": (
        "def g(x, *, by=1.5): return x * by\ndef f(x):\n    g.__kwdefaults__['by'] += 1\n    return g(x)",
        "call(); call()",
    ),
    "a counter that is inf": ("c = Config(); c.n = 0.5\ndef f(x):\n    c.n += 1\n    return x * 2",
    "call(); c.n = float('inf'); call(); c.n = 3; call()"),
    "a counter that begins at inf": ("c = Config(); c.n = float('inf')\ndef f(x):\n    c.n += 1\n    return x * 2",
    "call(); c.n = 0.5; call()"),
    "a sum of tenths": ("c = Config(); c.n = 0.3\ndef f(x):\n    c.n += 0.1\n    return x * 2",
    "[call() for _ in range(9)]"),
    "two tenths at once": ("c = Config(); c.n = 0.3\ndef f(x):\n    for _ in range(2): c.n += 0.1\n    return x * 2",
    "[call() for _ in range(9)]"),
    # written, and left as it was
    "a slot is set to what it was": ("c = Slots()\ndef f(x):\n    c.lr = 0.5\n    return x * 2",
    "call(); c.lr = 9.0; call()"),
    "an environment variable is set to what it was": (
        "os.environ['FUNCGRAD_TEST_K'] = '3'\ndef f(x):\n    os.environ['FUNCGRAD_TEST_K'] = '3'\n    return x * 2",
        "call(); os.environ['FUNCGRAD_TEST_K'] = '4'; call(); made = os.environ['FUNCGRAD_TEST_K']",
    ),
    # places that were not looked at
    "an object becomes one of another class": ("c = Child()\ndef f(x): return c.scaled(x)",
    "call(); c.__class__ = Config; call()"),
    "the class of an object is asked for": ("c = Child()\ndef f(x): return x * len(type(c).__mro__)",
    "call(); c.__class__ = Config; call()"),
    "the code of a function": ("def g(x): return x.sin()\ndef h(x): return x.cos()\ndef f(x): return g(x)",
    "call(); g.__code__ = h.__code__; call()"),
    "keyword defaults of a function": ("def g(x, *, by=1.5): return x * by\ndef f(x): return g(x)",
    "call(); g.__kwdefaults__ = {'by': 3.0}; call()"),
    "__getattr__ lacks what comes later": (
        "class A:\n    def __init__(self): self.data = {}\n    def __getattr__(self, name):\n        try: return "
        "self.__dict__['data'][name]\n"
        "        except KeyError: raise AttributeError(name) from None\na = A()\ndef f(x): return x * 2 if hasattr(a, "
        "'k') else x",
        "call(); a.data['k'] = 1; call()",
    ),
    "a list of a class that grows": ("class B: names = ['p']\ndef f(x):\n    if len(B.names) < 3: B.names.append(1)\n "
                                     "   return x * len(B.names)", "call(); call(); call()"),
    "tensors in a list of a class": ("class B: seen = []\ndef f(x):\n    B.seen.append(x * 2)\n    return x * 3",
    "call(); call(); seen = [*B.seen]"),
    "an object of a class": ("class B: own = Config()\ndef f(x): return x * B.own.lr",
    "call(); B.own.lr = 5.0; call()"),
    "a namespace of a class": ("class B: own = types.SimpleNamespace(lr=1.0)\ndef f(x):\n    B.own.lr += 1\n    "
                               "return x * B.own.lr", "call(); call()"),
    "a module by name": ("sys.modules['funcgrad_test_k'] = LIBRARY\ndef f(x): return x * "
                         "sys.modules['funcgrad_test_k'].scale", "call(); LIBRARY.scale = 9.0; call()"),
    "threading.local": ("t = threading.local(); t.k = 1.5\ndef f(x):\n    y = x * t.k\n    t.k = 3.0\n    return y",
    "call(); call(); t.k = 7.0; call()"),
    "a class of threading.local": ("class L(threading.local): k = 1.5\nt = L()\ndef f(x): return x * t.k",
    "call(); t.k = 3.0; call(); del t.k; call()"),
    "a context variable is not set": (
        "v = contextvars.ContextVar('v', default=1.5)\ndef f(x):\n    y = x * v.get(2)\n    v.set(3)\n    return y",
        "call(); call(); v.set(1.5); call()",
    ),
    "a name that is imported": ("LIBRARY.k = 1.5; sys.modules['funcgrad_test_k'] = lib = LIBRARY\ndef f(x):\n    "
                                "lib.k += 1\n    from funcgrad_test_k import k\n    return x * k", "call(); call()"),
    "vars of a module whose parameter was read": ("m = nn.Linear(3, 3); m.k = 2.0\ndef f(x):\n    y = x + m.bias\n    "
                                                  "return y * dict(vars(m).items())['k']", "call(); m.k = 3.0; call()"),
    "what a module says it has": ("m = nn.Linear(3, 3)\ndef f(x): return x * len([k for k in dir(m) if k[:5] == 'extra'])",
                                  "call(); m.extra = 1.5; call(); m.extra_2 = nn.ReLU(); call(); del m.extra; call()"),
    "a counter that asdict reads": ("d = Data()\ndef f(x):\n    d.lr += 1\n    return x * sum(v for v in "
                                    "dataclasses.asdict(d).values() if v != 'a')", "call(); call()"),
    "a counter that attrgetter reads": ("import operator\nc = Config()\ndef f(x):\n    c.lr += 1\n    return x * "
                                        "operator.attrgetter('lr')(c)", "call(); call()"),
    "a counter that a pattern reads": ("d = Data()\ndef f(x):\n    d.lr += 1\n    match d:\n        case "
                                       "Data(lr=1.5): return x * 2\n        case Data(2.5): return x * 3\n    return "
                                       "x", "call(); call(); call()"),
    "__missing__ of an own dict": ("class D(dict):\n    def __missing__(self, key): return 2.5\nd = D(k=1.5)\ndef "
                                   "f(x):\n    y = x * d['zz']\n    d['zz'] = 3\n    return y", "call(); call(); del "
                                                                                                "d['zz']; call()"),
    "an item of a defaultdict is gone": ("d = collections.defaultdict(lambda: 2.0, k=1.5)\ndef f(x): return x * d['k']",
    "call(); del d['k']; n = len(d); call()"),
    "the attributes of an object are another dict": ("c = Config()\ndef f(x): return x * c.lr",
    "call(); c.__dict__ = dict(c.__dict__, lr=7.0); call(); c.lr = 8.0; call()"),
    "an enum is stored again": ("c = types.SimpleNamespace(m=Mode.FAST)\ndef f(x):\n    c.m = Mode.SLOW\n    return x "
                                "* 2", "call(); call(); c.m = 1; call()"),
    "a decorated function gets an attribute": ("@contextlib.contextmanager\ndef h(x):\n    h.k = 4\n    yield x\ndef "
                                               "f(x):\n    with h(x) as y: return y * 2", "call(); h.k = 5; call()"),
    "a logger's level": ("import logging\nlog = logging.getLogger('funcgrad.test.k'); log.setLevel(40)\ndef f(x): "
                         "return x * (2 if log.isEnabledFor(20) else 3)", "call(); log.setLevel(10); call()"),
    "a new dict, and all attributes": ("m = nn.Module()\ndef f(x):\n    m.named = {'y': x * 2}\n    return x * "
                                       "len(vars(m))", "call(); call(); n = m.named['y']"),
    "a new module, which is called": (
        "m = nn.Module()\ndef f(x):\n    m.bn = nn.BatchNorm1d(3, affine=False)\n    return m.bn(torch.stack([x, x * "
        "2]))",
        "call(); mean = m.bn.running_mean; call(); again = m.bn.running_mean",
    ),
    "what a distribution computes when asked": (
        "d = torch.distributions.Categorical(logits=torch.arange(3.0))\ndef f(x): return d.probs * x",
        "call(); call(); p = d.probs; d.probs = torch.ones(3); call()",
    ),
    "the bases of a class": (
        "class A:\n    def g(self, x): return x\nclass L(A):\n    def g(self, x): return super().g(x) + 1\nclass "
        "R(A):\n    def g(self, x): return super().g(x) * 2\n"
        "class M(L, R): pass\nm = M()\ndef f(x): return L.g(m, x)",
        "call(); M.__bases__ = (R, L); call()",
    ),
    # read where no hook hears of it
    "object.__getattribute__": (
        "class H: j = 1.5\nh = H(); h.a = 1.5\ndef f(x): return x * object.__getattribute__(h, 'a') * "
        "object.__getattribute__(h, 'j')",
        "call(); h.a = 2.5; call(); h.j = 3.0; call(); del h.j; H.j = 7.0; call()",
    ),
    "object.__getattribute__ of a slot": ("c = Slots()\ndef f(x): return x * object.__getattribute__(c, 'lr')",
    "call(); c.lr = 9.0; call()"),
    "object.__getattribute__ of what is counted": ("c = Config()\ndef f(x):\n    c.lr += 1\n    return x * "
                                                   "object.__getattribute__(c, 'lr')", "call(); call()"),
    "object.__getattribute__ of what comes later": (
        "c = Config()\ndef f(x):\n    try: return x * object.__getattribute__(c, 'later')\n    except AttributeError: "
        "return x",
        "call(); c.later = 5; call()",
    ),
    "inspect.getattr_static": ("import inspect\nc = Config()\ndef f(x): return x * inspect.getattr_static(c, 'lr')",
    "call(); c.lr = 2.5; call()"),
    # stored where it was
    "a tensor is left in an attribute": ("c = Config()\ndef f(x):\n    c.last = x\n    return x * 2",
    "c.last = X; call(); c.last = None; call()"),
    "a tensor is left in an attribute of a module": ("m = nn.Module()\ndef f(x):\n    m.last = x\n    return x * 2",
    "m.last = X; call(); m.last = None; call()"),
    "a captured tensor is left": ("c = Config(); W = torch.ones(3)\ndef f(x):\n    c.last = W\n    return x * 2",
    "c.last = W; call(); c.last = None; call(); c.last is W"),
    "a captured tensor that is read is left": ("c = Config(); W = torch.ones(3)\ndef f(x):\n    c.last = W\n    "
                                               "return x * W", "c.last = W; call(); c.last = None; call()"),
    "a list of tensors is left": ("c = Config(); W = [torch.ones(3)]\ndef f(x):\n    c.last = W\n    return x * 2",
    "c.last = W; call(); c.last = [torch.ones(3)]; call(); same = c.last is W"),
    "setattr leaves a tensor": ("c = Config()\ndef f(x):\n    setattr(c, 'last', x)\n    return x * 2",
    "c.last = X; call(); c.last = None; call()"),
    "setattr leaves a number": ("c = Config()\ndef f(x):\n    setattr(c, 'lr', 3)\n    return x * 2",
    "c.lr = 3; call(); c.lr = 4; call()"),
    "object.__setattr__ leaves a number": ("c = Config()\ndef f(x):\n    object.__setattr__(c, 'lr', 3)\n    return x "
                                           "* 2", "c.lr = 3; call(); c.lr = 4; call()"),
    "an object in a shared list is another one than the list": (
        "c = Config()\ndef f(x):\n    o = types.SimpleNamespace(y=x * 2)\n    c.a = c.b = [o]\n    c.o = o\n    return x",
        "call(); call(); same = c.a is c.b, c.a[0] is c.o, c.o.y",
    ),
    # functions that are made
    "functions that share a variable are stored": (
        "c = Config()\ndef f(x):\n    n = 1\n    def get(): return n, y\n    def more(by=2, *, of=3):\n        "
        "nonlocal n\n        n += by * of\n        return n\n    y = x * 2\n    c.get, c.more = get, more\n    more()\n"
        "    return x",
        "call(); call(); n = c.get(), c.more(), c.get(), c.more.__qualname__, c.more.__kwdefaults__",
    ),
    "a function that calls itself is stored": (
        "c = Config()\ndef f(x):\n    def g(k): return x if k == 0 else g(k - 1)\n    c.g = g\n    return x * 2",
        "call(); call(); y = c.g(2), c.g.__closure__[0].cell_contents is c.g",
    ),
    "a function closes over what the function does": (
        "c = Config()\nk = 2\ndef made(by):\n    def f(x):\n        nonlocal by\n        by += 1\n        c.g = lambda: by\n"
        "        return x\n    return f\nf = made(3)",
        "call(); n = c.g(); call(); m = c.g()",
    ),
    "a function is made once, and called": (
        "c = Config(); c.g = None\ndef f(x):\n    if c.g is None:\n        w = x.detach() * 2\n        c.g = lambda y: y * w\n"
        "    return c.g(x)",
        "call(); call(); call(); y = c.g(torch.ones(3))",
    ),
    "methods of an object that is new are stored": (
        "class M:\n    def __init__(self, y):\n        self.y, self.own = y, self.times\n        self.wrapped = "
        "self.wrap(self.times)\n        self.part = functools.partial(self.times, 3)\n    def wrap(self, g):\n        "
        "@functools.wraps(g)\n        def w(*a):\n            w.n = getattr(w, 'n', 0) + 1\n            return g(*a)\n"
        "        return w\n    def times(self, k=1): return self.y * k\nc = Config()\ndef f(x):\n    c.m = m = M(x)\n    "
        "c.other = m.times\n    return m.wrapped()",
        "call(); call(); y = c.m.own.__self__ is c.m, c.other(), c.m.part(), c.m.wrapped(2), c.m.wrapped.n, "
        "c.m.wrapped.__wrapped__ == c.m.own",
    ),
    "functions of modules are stored": (
        "import json\nc = Config()\ndef f(x):\n    c.g, c.p, c.h = nn.functional.relu, nn.functional.max_pool2d, [json.dumps, Config.__init__]\n"
        "    return c.g(x)",
        "call(); call(); same = c.g is nn.functional.relu, c.p is nn.functional.max_pool2d, c.h[0] is json.dumps, c.h[1] is Config.__init__",
    ),
    "proxies of dicts are stored": (
        "c = Config()\nown = {'k': 1}\ndef f(x):\n    c.p = types.MappingProxyType({'y': x * 2}), "
        "types.MappingProxyType(own)\n    return x",
        "call(); call(); own['k'] = 2; y = dict(c.p[0]), dict(c.p[1])",
    ),
    "a child that is new is trained": (
        "m = nn.Sequential(nn.Linear(3, 3))\ndef f(x):\n    m.train(not m.training)\n    return x * 2",
        "call(); m[0] = nn.Linear(3, 3); call(); call(); call(); mode = m[0].training",
    ),
    # counted, and gone
    "a counter of the class is gone": ("class C: a = 1\ndef f(x):\n    C.a += 1\n    return x * 2",
    "call(); del C.a; call()"),
    "a counter goes on from that of the class": ("class C: a = 1\nc = C(); c.a = 3\ndef f(x):\n    c.a += 1\n    "
                                                 "return x * 2", "call(); del c.a; call()"),
    "a counter is gone": ("c = types.SimpleNamespace(a=3)\ndef f(x):\n    c.a += 1\n    return x * 2",
    "call(); del c.a; call()"),
    "a counter in a global is gone": ("n = 1\ndef f(x):\n    global n\n    n += 1\n    return x * 2",
    "call(); del n; call()"),
    "a function is given other attributes": (
        "def g(): pass\ng.n = 1\ndef f(x):\n    g.n += 1\n    return x * 2",
        "call(); g.__dict__ = dict(g.__dict__); call(); n = g.n"
    ),
    "a set gets a tensor": ("s = {'a'}\ndef f(x):\n    s.add(x * 2)\n    return x * 2",
    "call(); call(); n = len(s); s = None"),
    # what shows a value that is gone
    "the repr of what was read raises": (
        "import attrs\n@attrs.define\nclass D: a: float = 1.5\nd = D()\ndef f(x): return x * 2 if hasattr(d, 'extra') "
        "else x",
        "del d.a; call(); d = D(0.5); call()",
    ),
    # in which order
    "attributes of a class in their order": ("class C: pass\ndef f(x):\n    C.z, C.a, C.m, C.b = 1, 2, 3, 4\n    "
                                             "return x * 2", "call(); names = list(vars(C))"),
    "an item moves to the end": ("d = collections.OrderedDict(k=1.5, j=2)\ndef f(x):\n    d.move_to_end('k')\n    "
                                 "return x * next(iter(d.values()))", "call(); call(); call()"),
    "an item is made anew": ("d = {'k': torch.ones(3), 'j': 2}\ndef f(x):\n    d['k'] = d.pop('k')\n    return x * "
                             "d['k']", "call(); call(); d['n'] = 3; call()"),
    "a counter moves": ("d = {'k': 1, 'j': 2}\ndef f(x):\n    d['j'] += 1\n    k = d.pop('k')\n    d['k'] = k + 1\n   "
                        " return x * 2", "call(); call(); call()"),
    # what functools.lru_cache keeps
    "what is kept is changed": ("@functools.cache\ndef g(): return [1.5]\ndef f(x): return x * g()[0]",
    "call(); call(); g()[0] = 5; call()"),
    "what is kept was there": ("@functools.lru_cache\ndef g(k=1): return [1.5]\ng()\ndef f(x): return x * g()[0]",
    "call(); call(); g()[0] = 5; call()"),
    "an object is kept": ("@functools.cache\ndef g(): return Config()\ndef f(x): return x * g().lr",
    "call(); call(); g().lr = 5; call()"),
    # what a tuple holds, and what a call returns
    "a number in a tuple beside a tensor": ("d = {'p': (torch.ones(3), 2)}\ndef f(x):\n    d['p'] = (x * 2, d['p'][1] "
                                            "+ 1)\n    return x * d['p'][1]", "call(); call(); call(); call()"),
    "the type of an attribute of what a call returns": (
        "c = Config()\ndef own(): return c\ndef f(x): return x * (2 if type(own().lr) is float else 3)",
        "call(); c.lr = 2.5; call(); c.lr = 3.5; call()",
    ),
    # one object that was written to
    "a tensor that is written to is the object it was": ("c = Config(); c.w = c.h = torch.ones(3)\ndef f(x):\n    c.w "
                                                         "+= 1\n    return x * (2 if c.w is c.h else 3)",
                                                         "call(); call(); w = c.w; h = c.h"),
    "a tensor that is as it shall be is the object it was": ("W = torch.ones(3)\ndef f(x): return x * (2 if "
                                                             "W.contiguous() is W.to(W.dtype) is W else 3)",
                                                             "call(); call()"),
    "a tensor becomes the one it is compared with": ("c = Config(); c.h = torch.zeros(3); c.w = torch.ones(3)\ndef "
                                                     "f(x): return x * c.h + (2 if c.h is c.w else 3)", "call(); h = "
                                                                                                        "c.h; c.h = "
                                                                                                        "c.w; call(); "
                                                                                                        "c.h = h; call()"),
    "a tensor becomes the one in a list": ("c = Config(); c.h = torch.zeros(3); k = [torch.ones(3), "
                                           "torch.zeros(3)]\ndef f(x): return x + c.h * (2 if any(t is c.h for t in "
                                           "k) else 3)", "call(); c.h = k[0]; call(); k[0] = torch.ones(3); call()"),
    "a tensor that is written to becomes the one it is compared with": (
        "c = Config(); c.h = torch.zeros(3); c.w = torch.ones(3)\ndef f(x):\n    c.h.add_(1)\n    return x + (2 if "
        "c.h is c.w else 3)",
        "call(); c.h = c.w; call(); w = c.w; h = c.h",
    ),
    # named by globals()
    "globals() reads": ("S = 2.0\ndef f(x): return x * globals()['S']", "call(); S = 3.0; call(); del S; call()"),
    "globals() writes": ("S = 2.0\ndef f(x):\n    globals()['S'] = 5\n    globals()['made'] = x * 2\n    return x * 2",
    "call(); S = 2.0; call(); del S; call()"),
    "globals() counts": ("S = 2.0\ndef f(x):\n    globals()['S'] += 1\n    return x * S",
    "call(); call(); call(); call()"),
    # what is written before an exception
    "an exception after a counter": ("c = Config(); c.n = 0\ndef f(x):\n    c.n += 1\n    if c.n > 1: raise "
                                     "ValueError('again')\n    return x * 2", "call(); call(); call()"),
    "an exception after a log of tensors": ("log = []\ndef f(x):\n    log.append(x * 2)\n    return x * {1: "
                                            "2.0}[len(log)]", "call(); call(); call()"),
    "an exception after a write to a tensor": ("W = torch.ones(3); k = 2\ndef f(x):\n    W.add_(x)\n    assert k == "
                                               "2, 'another k'\n    return x * W", "call(); k = 3; call(); k = 2; "
                                                                                   "call()"),
    "an exception of PyTorch's": ("W = torch.ones(3); n = [3]\ndef f(x):\n    W.add_(x); n[0] += 1\n    return "
                                  "W.view(n[0])", "call(); call()"),
    "an exception of an attribute that lacks": ("c = Config(); c.n = 0\ndef f(x):\n    c.n += 1\n    return x * "
                                                "c.later", "call(); call(); c.later = 2; call()"),
    "an exception of a draw": ("k = 2\ndef f(x):\n    r = torch.rand(3)\n    if k > 2: raise ValueError('no')\n    "
                               "return x * r", "call(); k = 3; call(); k = 2; call()"),
    # a counter that is read by a name which no code mentions as an attribute
    **{
        f"a counter of {what} that is read by {how}": (f"import operator\n{made}KEY = 'n'\nget = "
                                                       "operator.attrgetter('n')\ndef f(x):\n    o.n += 1\n    "
                                                       f"{read}", "call(); call(); call()")
        for what,
        made in {"a class": "class o: n = 0\n", "a namespace": "o = types.SimpleNamespace(n=0)\n",
        "a function": "def o(): pass\no.n = 0\n", "a module": "o = types.ModuleType('o')\no.n = 0\n"}.items()
        for how,
        read in {"an attrgetter": "return x * operator.attrgetter('n')(o)",
        "an attrgetter of before": "return x * get(o)", "a pattern": "match o:\n        case object(n=v): return x * v",
        "a name in a global": "return x * getattr(o, KEY)"}.items()
    },
    "an exception in a cached function": ("n = 0\n@functools.cache\ndef g(k):\n    global n\n    n += 1\n    return "
                                          "2\ndef f(x):\n    g(1)\n    raise KeyError(n)", "call(); call(); g(1)"),
    "what is kept is forgotten": ("k = 2.0\n@functools.lru_cache\ndef g(): return k\ng(); k = 3.0\ndef f(x): return x "
                                  "* g()", "call(); g.cache_clear(); call()"),
}  # fmt: skip


def run(source, script, transform):
    """What the calls of a script give, and all that can be seen afterwards."""
    space, results = {}, []
    space = world("import contextlib, copy, sys, threading, weakref\n" + source)
    f, space["X"] = transform(space["f"]), X
    steps = script.split("; ")
    for step in steps:
        exec(step, space | {"call": lambda: results.append(outcome(f, X))} if "call()" in step else space)
    return results, all_of({k: v for k, v in space.items() if not isinstance(v, threading.local)})


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.delenv("FUNCGRAD_TEST_K", raising=False)
    monkeypatch.setitem(sys.modules, "funcgrad_test_k", None)


SPECIAL_METHODS = {
    "__init__": "class Q:\n    def __init__(self): self.k = S\ndef f(x): return x * Q().k",
    "__init__ of a base": "class B:\n    def __init__(self): self.k = S\nclass Q(B): pass\ndef f(x): return x * Q().k",
    "__init__ of a class in a list": "class Q:\n    def __init__(self): self.k = S\nqs = [Q]\ndef f(x): return x * "
                                     "qs[0]().k",
    "__init__ of a type": "class Q:\n    def __init__(self): self.k = S\nq = Q()\ndef f(x): return x * type(q)().k",
    "__init__ by a classmethod": "class Q:\n    def __init__(self): self.k = S\n    @classmethod\n    def make(cls): "
                                 "return cls()\nclass R(Q): pass\ndef f(x): return x * R.make().k",
    "__init__ of a module": "class Q(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k "
                            "= S\n    def forward(self, x): return x * self.k\ndef f(x): return Q()(x)",
    "__init__ of an exception": "class Q(Exception):\n    def __init__(self): self.k = S\ndef f(x):\n    try: raise "
                                "Q()\n    except Q as e: return x * e.k",
    "__new__": "class Q:\n    def __new__(cls): q = object.__new__(cls); q.k = S; return q\ndef f(x): return x * Q().k",
    "__post_init__": "@dataclasses.dataclass\nclass Q:\n    k: float = 1.0\n    def __post_init__(self): self.k = "
                     "S\ndef f(x): return x * Q().k",
    "a default factory": "@dataclasses.dataclass\nclass Q:\n    k: float = dataclasses.field(default_factory=lambda: "
                         "S)\ndef f(x): return x * Q().k",
    "__call__ of a new object": "class Q:\n    def __call__(self, x): return x * S\ndef f(x): return Q()(x)",
    "__add__ of a new object": "class Q:\n    def __add__(self, x): return x + S\ndef f(x): return Q() + x",
    "__enter__ of a new object": "class Q:\n    def __enter__(self): return S\n    def __exit__(self, *_): pass\ndef "
                                 "f(x):\n    with Q() as k: return x * k",
    "__iter__ of a new object": "class Q:\n    def __iter__(self): return iter([S])\ndef f(x):\n    for k in Q(): x = "
                                "x * k\n    return x",
    "__getattribute__": "class Q:\n    k = 1.0\n    def __getattribute__(self, n):\n        v = "
                        "object.__getattribute__(self, n)\n        return v * S if n == 'k' else v\nq = Q()\ndef "
                        "f(x): return x * q.k",
    "__setattr__": "class Q:\n    def __setattr__(self, n, v): object.__setattr__(self, n, v * S)\nq = Q()\ndef "
                   "f(x):\n    q.k = 1.0\n    return x * q.k",
    "__getstate__": "import copy\nclass Q:\n    k = 1.0\n    def __getstate__(self): return {'k': S}\nq = Q()\ndef "
                    "f(x): return x * copy.copy(q).k",
    "__class_getitem__": "class Q:\n    def __class_getitem__(cls, i): return S\ndef f(x): return x * Q[0]",
    "__init_subclass__": "class Q:\n    def __init_subclass__(cls): cls.k = S\ndef f(x):\n    class R(Q): pass\n    "
                         "return x * R.k",
    "__set_name__": "class D:\n    def __set_name__(self, o, n): setattr(o, 'j', S)\ndef f(x):\n    class Q: k = "
                    "D()\n    return x * Q.j",
    "__getattr__ of a metaclass": "class M(type):\n    def __getattr__(cls, n): return S\nclass Q(metaclass=M): "
                                  "pass\ndef f(x): return x * Q.zz",
    "__call__ of a metaclass": "class M(type):\n    def __call__(cls): return S\nclass Q(metaclass=M): pass\ndef "
                               "f(x): return x * Q()",
    "__len__ of a metaclass": "class M(type):\n    def __len__(cls): return int(S)\nclass Q(metaclass=M): pass\ndef "
                              "f(x): return x * len(Q)",
}  # fmt: skip
"""Special methods that read a global."""
SCRIPTS |= {
    f"{name} reads a global": (f"S = 2.0\n{source}", "call(); S = 5.0; call(); S = 2.0; call()")
    for name, source in SPECIAL_METHODS.items()
}


@pytest.mark.parametrize(
    "use",
    [
        "isinstance(x, Q)",
        "isinstance(x, (int, Q))",
        "type(x) is Q",
        "Q.k > 3",
    ],
)
def test_a_class_that_is_only_looked_at_makes_no_objects(use):
    space = world(
        "import itertools\nids = itertools.count()\nclass Q:\n    k = 2\n    def __init__(self): self.id, self.scale "
        "= next(ids), S\n"
        f"S = 2.0\ndef f(x): return x * (2 if {use} else 3)"
    )
    compiled = fg.jit(space["f"], backend="aten")
    for space["S"] in (2.0, 3.0):
        assert torch.equal(compiled(X), X * 3)
    assert compiled.cache_info().misses == 1


def test_what_a_constructor_assigns_is_not_read_of_other_objects():
    space = world(
        "class Q:\n    def __init__(self): self.n, self.k = 0, 2\nq = Q()\ndef f(x): return x * (Q().k + q.k)"
    )
    compiled = fg.jit(space["f"], backend="aten")
    for space["q"].n in range(3):
        assert torch.equal(compiled(X), X * 4)
    assert compiled.cache_info().misses == 1


KNOWN_TEXTS = {
    "an attribute": ("c = Config()\ndef f(x): return x * eval('c.lr')",
    "call(); c.lr = 7.0; call(); c = Config(); call()"),
    "an item": ("c = {'k': [1.5]}\ndef f(x): return x * eval('c[\"k\"][0]')", "call(); c['k'][0] = 7.0; call()"),
    "locals": ("c = {'k': 1.5}\ndef f(x):\n    own = c\n    return eval('x * own[\"k\"]')", "call(); c['k'] = 7.0; call()"),
    "a function": ("k = 2.0\ndef g(x): return x * k\ndef f(x): return eval('g(x)')",
    "call(); k = 3.0; call(); g = torch.sin; call()"),
    "a lambda": ("k = 2.0\ndef f(x): return eval('lambda x: x * k')(x)", "call(); k = 3.0; call()"),
    "an attribute that is set": ("c = Config()\ndef f(x):\n    exec('c.made = 5; c.lr += 1')\n    return x * c.lr",
    "call(); c.made = 3; call(); made = c.made; c.lr = 3.0; call(); call()"),
    "a global that is set": ("n = 0\ndef f(x):\n    exec('global n; n += 1')\n    return x * n", "call(); call(); n = 9; call()"),
    "an item that is set": ("c = {}\ndef f(x):\n    exec('c[\"k\"] = len(c)')\n    return x * c['k']", "call(); call(); c.clear(); call()"),
    "globals": ("k = 2.0\nc = Config()\ndef f(x): return x * globals()['k'] + globals()['c'].lr",
    "call(); k = 3.0; call(); c.lr = 7.0; call(); c = Config(); call()"),
}  # fmt: skip
"""What code says in a text that stands in it (``eval``), or by it."""
SCRIPTS |= {f"{case}, by a text": script for case, script in KNOWN_TEXTS.items()}


@pytest.mark.parametrize("case", KNOWN_TEXTS)
def test_what_a_text_says_that_stands_in_code_is_watched(case):
    compiled = fg.jit(world(KNOWN_TEXTS[case][0])["f"], backend="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.UnwatchedStateWarning)
        compiled(X)


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning", "ignore::funcgrad.UnwatchedStateWarning")
@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_does_what_it_does_in_eager(case):
    source, script = SCRIPTS[case]
    want = run(source, script, lambda f: f)
    os.environ.pop("FUNCGRAD_TEST_K", None)
    assert run(source, script, lambda f: fg.jit(f, backend="aten")) == want


@pytest.mark.parametrize(
    "source, want",
    [
        ("@functools.cache\ndef g(): return [1.5]\ndef f(x):\n    g().append(2)\n    return x * len(g())", [2, 3, 4]),
        (
            "n = 1\n@functools.cache\ndef g():\n    global n\n    n += 1\n    return 2\ndef f(x): return x * g() * n",
            [4, 4, 4],
        ),
        (
            "n = 1\n@functools.cache\ndef g():\n    global n\n    n += 1\n    return torch.ones(3)\n"
            "def f(x): return x * g() * n",
            [2, 2, 2],
        ),
    ],
)
def test_the_call_that_fills_a_cache_is_one_of_eager_pytorch(source, want):
    space = world(source)
    compiled = fg.jit(space["f"], backend="aten")
    for k in want:
        assert torch.equal(compiled(X), X * k)
    assert space["g"].cache_info().currsize == 1 and compiled.cache_info().misses < len(want)
    with pytest.raises(fg.ImpureFunctionError, match=r"fills the functools\.lru_cache g"):
        fg.jit(world(source)["f"], backend="aten").program(X)


def test_a_function_that_raises_where_it_is_traced_alone_is_named():
    def f(x):
        log.append(1)
        return x * {torch.Tensor: 2.0}[(lambda: type)()(x)]

    log = []
    with pytest.raises(fg.TraceError, match=r"raises KeyError where it is traced .* where it raises none") as caught:
        fg.jit(f)(X)
    assert "in f: return x * {" in str(caught.value) and isinstance(caught.value.__cause__, KeyError) and log == [1]


def test_what_globals_writes_is_undone_where_the_call_is_refused():
    space = world("import random\nS = 2.0\ndef f(x):\n    globals()['S'] = 5\n    return x * random.random()")
    with pytest.raises(fg.ImpureFunctionError, match="draws from random"):
        fg.jit(space["f"])(X)
    assert space["S"] == 2.0


def test_a_program_that_is_only_asked_for_leaves_what_a_function_wrote_that_raises_undone():
    def f(x):
        log.append(1)
        raise ValueError("none")

    log = []
    with pytest.raises(ValueError, match="none"):
        fg.jit(f).program(X)
    assert log == []


class Box:
    """A container that pytrees know, with attributes of no name."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


torch.utils._pytree.register_pytree_node(Box, lambda box: ([box.held], None), lambda held, _: Box(*held))


def keeps(d, xs, ring, *, config, counts):
    """Stores of every kind into what it was given."""
    d["y"] = d.pop("x") * config.scale
    d["sub"]["same"] = xs[0]
    d.setdefault("log", []).append(d["y"].detach())
    xs.append(d["y"] + 1)
    xs.reverse()
    ring.append(xs[0])
    counts["calls"].append(1)
    counts["n"] += 1
    config.last, config.scale = d["y"].sum(), config.scale + 1
    return len(xs) * sum(ring)


def brought(n):
    counts = collections.defaultdict(list, n=n)
    config = Config(2.0)
    return ({"x": torch.full((2,), 1.0 + n), "sub": {}}, [torch.ones(2)], collections.deque([torch.ones(2)], maxlen=2)), {
        "config": config, "counts": counts
    }  # fmt: skip


@dataclasses.dataclass
class Config:
    scale: float
    last: object = None


def test_what_is_stored_into_containers_of_a_call_is_stored_on_each_call():
    compiled = fg.jit(keeps, backend="aten")
    for n in range(4):
        (args, kwargs), (own, named) = brought(n), brought(n)
        torch.testing.assert_close(compiled(*own, **named), keeps(*args, **kwargs))
        assert repr((own, named)) == repr((args, kwargs))
        assert own[0]["sub"]["same"] is own[1][1]
    assert compiled.cache_info().misses <= 3  # a count among the arguments is a symbol at its third value


def test_a_container_of_the_call_that_is_stored_is_that_one():
    owner = types.SimpleNamespace(last=None)

    def f(batch):
        batch["loss"] = (batch["x"] ** 2).sum()
        owner.last = batch

    compiled = fg.jit(f)
    for n in range(3):
        batch = {"x": torch.full((2,), 1.0 + n, requires_grad=True)}
        compiled(batch)
        batch["loss"].backward()
        assert owner.last is batch and batch["x"].grad.tolist() == [2.0 + 2 * n] * 2


def test_a_store_into_a_container_that_is_in_two_places_is_refused():
    held = {"x": X}

    def f(a, b):
        a["y"] = b["x"] + held["x"]
        return len(b)

    compiled, d = fg.jit(f, backend="aten"), {"x": X}
    assert compiled({"x": X}, {"x": X}) == 1  # and this program is for others alone
    for args in ((d, d), (held, {"x": X})):
        with pytest.raises(fg.MutationError, match="twice, or which Python state holds"):
            compiled(*args)
    assert list(d) == list(held) == ["x"]


@pytest.mark.parametrize("make", [Box, attrs.make_class("Slotted", ["held"], slots=True), Config])
def test_an_attribute_of_a_container_that_was_given_is_stored(make):
    name = "held" if make is not Config else "last"

    def f(box):
        setattr(box, name, getattr(box, name) * 2)
        return getattr(box, name) + 1

    compiled = fg.jit(f, backend="aten")
    for n in range(3):
        own = make(torch.ones(2)) if make is not Config else Config(2.0, torch.ones(2))
        assert compiled(own).tolist() == [3, 3] and getattr(own, name).tolist() == [2, 2]
    assert compiled.cache_info().misses == 1


@pytest.mark.parametrize(
    "source",
    [
        "d = {'i': it}\ndef f(x): return x * next(d['i'])",
        "d = [it]\ndef f(x): return x * next(d[0])",
        "d = {'i': it}\ndef f(x):\n    for i in d.values(): x = x * next(i)\n    return x",
        "class D: i = it\ndef f(x): return x * next(D.i)",
        "d = Config(); d.c = {'i': it}\ndef f(x): return x * next(d.c['i'])",
        "d = types.SimpleNamespace(i=it)\ndef g(): return (lambda x: x * next(d.i))\ndef f(x): return g()(x) * "
        "len(vars(d))",
        "d = types.SimpleNamespace(c={'k': types.SimpleNamespace(i=it)})\ndef later(o): return next(o['k'].i)\ndef "
        "f(x): return x * later(d.c)",
    ],
)
def test_an_iterator_is_refused_before_it_goes_on(source):
    space = world("import itertools\nit = itertools.count(1)\n" + source)
    with pytest.raises(fg.ImpureFunctionError, match=r"an iterator that goes on with each call"):
        fg.jit(space["f"], backend="aten")(X)
    assert next(space["it"]) == 1


def test_an_iterator_beside_what_is_read_is_none_of_the_functions():
    space = world("import itertools\nd = {'i': itertools.count(1), 'j': 2}\ndef f(x): return x * d['j']")
    assert torch.equal(fg.jit(space["f"], backend="aten")(X), X * 2)


@pytest.mark.parametrize(
    "source",
    [
        "b = {'list': [torch.ones(3), torch.ones(3)]}\ndef f(x):\n    b['list'][0] = x * 2\n    return x * 2",
        "b = {'k': 2.0}\ndef f(x):\n    b['new'] = x * 2\n    return x * 2",
        "b = {'k': torch.ones(3)}\ndef f(x):\n    b['new'] = x * 2\n    return x * 2",
        "c = Config(); c.b = {'k': {'j': torch.ones(3)}}\ndef f(x):\n    c.b['k'] = {'j': x * 2}\n    return x * 2",
    ],
)
def test_what_is_stored_anew_on_each_call_is_no_reason_to_compile(source):
    compiled = fg.jit(world(source)["f"], backend="aten")
    for _ in range(5):
        compiled(X)
    assert compiled.cache_info().misses <= 2


def test_an_item_of_a_counter_that_is_counted_compiles_once():
    compiled = fg.jit(
        world("c = collections.Counter()\ndef f(x):\n    c['a'] += 1\n    return x * 2")["f"], backend="aten"
    )
    for _ in range(5):
        compiled(X)
    assert compiled.cache_info().misses <= 2


class _Gone:
    by = 2.0


def test_a_weak_reference_to_what_the_program_keeps_is_named():
    held = _Gone()
    refers = weakref.ref(held)
    with pytest.warns(fg.UnwatchedStateWarning, match="reads refers, a weak reference"):
        assert torch.equal(fg.jit(lambda x: x * refers().by, backend="aten")(X), X * 2)


def test_a_write_by_a_method_taken_from_a_stream_is_named(tmp_path):
    with open(tmp_path / "log", "w") as stream:
        write = stream.write
        with pytest.warns(fg.UnwatchedStateWarning, match="writes to a stream by write, which was taken from it"):
            fg.jit(lambda x: (write("a"), x * 2)[1], backend="aten")(X)


def test_a_write_in_a_context_of_its_own_is_refused():
    variable, context = contextvars.ContextVar("variable", default=2.0), contextvars.copy_context()
    context.run(variable.set, 3.0)
    with pytest.raises(fg.MutationError, match="a value in a context of its own"):
        fg.jit(lambda x: x * (context.run(variable.set, 4.0), 2)[1], backend="aten")(X)
    assert context[variable] == 3.0


class _Sequence:
    def __getitem__(self, i):
        return float(i)


ITERATORS = {
    "of a callable": lambda: iter(lambda: 1.0, None),
    "of values": lambda: iter({"a": 1.0, "b": 2.0}.values()),
    "of a sequence": lambda: iter(_Sequence()),
    "of a deque": lambda: iter(collections.deque([1.0, 2.0])),
    "of bytes": lambda: iter(b"ab"),
    "of an array": lambda: iter(array.array("d", [1.0, 2.0])),
    "of rows": lambda: map(len, csv.reader(["1,2"])),
    "rows": lambda: csv.reader(["1,2"]),
}


@pytest.mark.parametrize("case", ITERATORS)
def test_iterators_of_c_are_refused(case):
    held = types.SimpleNamespace(it=ITERATORS[case]())
    with pytest.raises(fg.ImpureFunctionError, match="an iterator that goes on with each call"):
        fg.jit(lambda x: (next(held.it), x * 2)[1], backend="aten")(X)
    next(held.it)  # it has not gone on


@pytest.mark.parametrize(
    "source, words",
    [
        (
            "@functools.cache\ndef g(): return 2.0\ndef f(x):\n    g.cache_clear()\n    return x * g()",
            r"asks for cache_clear\(\)",
        ),
        ("class B: pass\ndef f(x): return x * (2 + len(B.__subclasses__()))", r"calls __subclasses__\(\)"),
    ],
)
def test_what_cannot_be_watched_is_named(source, words):
    with pytest.warns(fg.UnwatchedStateWarning, match=words):
        assert torch.equal(fg.jit(world(source)["f"], backend="aten")(X), X * 2)


def test_a_partial_that_is_stored_has_keywords_of_its_own():
    """A copy shares them: what the caller did to one was in the next call's."""
    space = world(
        "class O: pass\no = O()\ndef g(x, by): return x * by\ndef f(x):\n    o.p = functools.partial(g, by=4)\n    return x * 1"
    )
    compiled = fg.jit(space["f"])
    for _ in range(3):
        compiled(torch.ones(2))
        assert space["o"].p.keywords == {"by": 4}
        space["o"].p.keywords["by"] = 9


@pytest.mark.parametrize(
    "stored",
    [
        "functools.partial(g, by=None)",
        "functools.partial(g, None)",
        "{None, 3}",
        "frozenset([None, 3])",
        "[{None}, None]",
    ],
)
def test_what_is_stored_may_hold_none(stored):
    given = "class O: pass\no = O()\ndef g(x, by): return x\n"
    space = world(f"{given}def f(x):\n    o.p = {stored}\n    return x * 1")
    compiled, seen = fg.jit(space["f"]), []
    for _ in range(3):
        compiled(torch.ones(2))
        seen.append(space["o"].p)
    assert compiled.cache_info().misses == 1
    assert len({repr(p) for p in seen}) == 1 and "None" in repr(seen[0])


def test_what_cannot_be_watched_is_named_of_each_partial():
    for _ in range(2):
        space = world("S = 2.0\ndef g(k, x): return x * k * globals().get('S')\nf = functools.partial(g, 1.0)")
        with pytest.warns(fg.UnwatchedStateWarning, match=r"calls globals\(\)"):
            assert torch.equal(fg.jit(space["f"], backend="aten")(X), X * 2)


class Registry(dict):
    """Whose ``get`` is another one than that of a dict."""

    def get(self, model):
        return super().get(str(model)) or {}


REGISTRY = Registry(a=1.0)


def test_a_dict_with_a_get_of_its_own():
    f = lambda x: x * REGISTRY["a"] + len(REGISTRY.get("b"))  # noqa: E731
    compiled = fg.jit(f)
    x = torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    REGISTRY["a"] = 2.0
    assert torch.equal(compiled(x), f(x))


def test_packages_of_another_environment_are_installed(installed):
    """Environments lie on top of one another: what a package asks for by name is not guarded class by class,
    wherever it is installed."""
    asked = ", ".join(f"'name_{i}'" for i in range(50))
    package = installed(
        "installed_elsewhere",
        "class Model:\n    scale = 2.0\n    def __call__(self, x):\n"
        f"        return x * self.scale * sum(getattr(type(self), name, 1) for name in ({asked},))\n",
    )
    model = package.Model()
    compiled = fg.jit(lambda x: model(x))
    assert torch.equal(compiled(X), X * 100)
    guards = compiled.program(X).facts.state.guards
    assert not [guard for guard in guards if guard.how == "absent" and "name_" in str(guard.place.key)]
    package.Model.scale = 3.0
    assert torch.equal(compiled(X), X * 150)


def test_an_installed_package_asks_what_there_is_to_work_with(installed):
    """``einops`` does: which of its classes are for packages that are imported. Nobody is warned of it."""
    package = installed(
        "installed_backends",
        "import sys\nclass Backend:\n    pass\nclass OfTorch(Backend):\n    name = 'torch'\n"
        "class OfNothing(Backend):\n    name = 'no_such_package'\nFOUND = {}\n"
        "def doubled(x):\n    if type(x) not in FOUND:\n"
        "        FOUND[type(x)] = [b.name for b in Backend.__subclasses__() if b.name in sys.modules]\n"
        "    return x * 2 * len(FOUND[type(x)])\n",
    )
    compiled = fg.jit(lambda x: package.doubled(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.equal(compiled(X), X * 2)
    assert compiled.cache_info().misses <= 2  # the first call fills the table


def test_a_property_stands_before_a_slot_of_its_name():
    """The constants of ``mpmath`` are such objects. What it computes is nothing that a trace could put back."""

    class Slotted:
        __slots__ = ("value",)

    class Computed(Slotted):
        value = property(lambda self: [factor])

    factor, computed = 2.0, Computed()
    compiled = fg.jit(lambda x: x * computed.value[0])
    assert torch.equal(compiled(X), X * 2)
    factor = 3.0
    assert torch.equal(compiled(X), X * 3)


def test_a_list_grows_beside_what_would_copy_its_owner(installed):
    """Metrics of an installed package append what they are given; how one is copied is not what a call does."""
    package = installed(
        "installed_metrics",
        "class Metric:\n    def __init__(self):\n        self.kept = []\n"
        "    def update(self, x):\n        self.kept.append(x.sin())\n"
        "    def __setstate__(self, state):\n        self.__dict__.update(state)\n"
        "        self.names = [name for name in vars(self) if len(getattr(self, name)) > 3]\n"
        "    def __reduce__(self):\n        return Metric, (), {'kept': list(self.kept)}\n",
    )
    metric = package.Metric()

    def f(x):
        metric.update(x)
        return x.sum()

    compiled = fg.jit(f)
    for i in range(4):
        compiled(X + i)
    assert compiled.cache_info().misses == 1
    torch.testing.assert_close(metric.kept, [(X + i).sin() for i in range(4)])


def _imports_inside(x):
    from math import sqrt as root

    import torch.nn.functional as functional

    return functional.relu(x) * root(3.0)


SEQUENTIAL, NORMAL = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.distributions.Normal(0.0, 1.0)
NINE = types.SimpleNamespace(relu=lambda x: x * 9)


class _Overrides(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class _Holds:
    library = F

    def __init__(self):
        self.own = F


def _by_another_name(x):
    other = torch.nn.functional
    return other.relu(x)


HOLDS, OVERRIDES, ACTIVATION, GETTER = (
    _Holds(),
    _Overrides(2, 2),
    {"act": "relu"},
    operator.attrgetter("nn.functional.relu"),
)
LIBRARY_FUNCTIONS = {
    "of an attribute": (lambda x: HOLDS.own.relu(x), F, "relu", lambda x: x * 7),
    "of a class attribute": (lambda x: HOLDS.library.relu(x), F, "relu", lambda x: x * 7),
    "of a default": (lambda x, by=F: by.relu(x), F, "relu", lambda x: x * 7),
    "of a keyword default": (lambda x, *, by=F: by.relu(x), F, "relu", lambda x: x * 7),
    "of a variable": (_by_another_name, F, "relu", lambda x: x * 7),
    "of an argument": (lambda x: (lambda by: by.relu(x))(F), F, "relu", lambda x: x * 7),
    "by getattr": (lambda x: getattr(F, "relu")(x), F, "relu", lambda x: x * 7),
    "by a name that is read": (lambda x: getattr(F, ACTIVATION["act"])(x), F, "relu", lambda x: x * 7),
    "by vars": (lambda x: vars(F)["relu"](x), F, "relu", lambda x: x * 7),
    "by an attrgetter": (lambda x: GETTER(torch)(x), F, "relu", lambda x: x * 7),
    "by super": (lambda x: OVERRIDES(x), nn.Linear, "forward", lambda self, x: x * 3),
    "of a class by its name": (lambda x: nn.Linear.forward(OVERRIDES, x), nn.Linear, "forward", lambda self, x: x * 3),
    "by the whole name": (lambda x: torch.nn.functional.relu(x), F, "relu", lambda x: x * 7),
    "by an alias": (lambda x: F.relu(x), F, "relu", lambda x: x * 7),
    "an object": (lambda x: F.relu(x), F, "relu", functools.partial(lambda by, x: x * by, 7)),
    "a module of a module": (lambda x: torch.nn.functional.relu(x), torch.nn, "functional", NINE),
    "a module": (lambda x: F.relu(x), sys.modules[__name__], "F", NINE),
    "of torch": (lambda x: torch.relu(x), torch, "relu", lambda x: x * 7),
    "of numbers": (lambda x: x * math.sqrt(2.0), math, "sqrt", lambda v: v * 5),
    "a number": (lambda x: x * math.pi, math, "pi", 3.0),
    "of NumPy": (lambda x: x * float(np.sqrt(2.0)), np, "sqrt", lambda v: v * 5),
    "imported inside": (_imports_inside, F, "relu", lambda x: x * 7),
    "imported inside by its name": (_imports_inside, math, "sqrt", lambda v: v * 5),
    "of a module's class": (lambda x: SEQUENTIAL(x), nn.Linear, "forward", lambda self, x: x * 3),
    "of a class": (lambda x: NORMAL.log_prob(x), torch.distributions.Normal, "log_prob", lambda self, x: x * 3),
}


@pytest.mark.parametrize("case", LIBRARY_FUNCTIONS)
def test_a_library_function_that_is_replaced(case, monkeypatch):
    function, owner, name, other = LIBRARY_FUNCTIONS[case]
    compiled, x = fg.jit(function, backend="aten"), torch.tensor([-1.0, 2.0])
    for _ in range(2):
        assert torch.equal(compiled(x), function(x))
        before = function(x)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            assert not torch.equal(function(x), before)
            assert torch.equal(compiled(x), function(x))
    assert compiled.cache_info().misses == 2


WRAPPED = {
    "gelu": (F, "gelu", lambda x: F.gelu(x)),
    "softmax": (F, "softmax", lambda x: F.softmax(x, 0)),
    "relu": (F, "relu", lambda x: F.relu(x)),
    "layer_norm": (F, "layer_norm", lambda x: F.layer_norm(x, (2,))),
    "einsum": (torch, "einsum", lambda x: torch.einsum("i,j->i", x, x)),
    "a method": (torch.Tensor, "norm", lambda x: x * x.norm()),
}


@pytest.mark.parametrize("is_wrapped", [functools.wraps, lambda _: lambda f: f])
@pytest.mark.parametrize("case", WRAPPED)
def test_a_wrapper_of_a_library_function_is_applied_once(case, is_wrapped, monkeypatch):
    owner, name, function = WRAPPED[case]
    compiled, x = fg.jit(function, backend="aten"), torch.tensor([1.0, 2.0])
    for _ in range(1 if owner is torch.Tensor else 2):  # before the first call, and between calls
        old = getattr(owner, name)
        monkeypatch.setattr(owner, name, is_wrapped(old)(lambda *args, old=old: old(*args) * 2))
        torch.testing.assert_close(compiled(x), function(x))


def test_a_mock_in_a_library_functions_place_counts_its_calls(monkeypatch):
    mock = unittest.mock.MagicMock(return_value=torch.tensor([5.0, 7.0]))
    monkeypatch.setattr(F, "relu", mock)
    compiled = fg.jit(lambda x: F.relu(x) * 2, backend="aten")
    for n in (1, 2, 3):
        assert torch.equal(compiled(X), torch.tensor([10.0, 14.0]))
        assert mock.call_count == n
    mock.return_value = torch.ones(2)
    assert torch.equal(compiled(X), torch.full((2,), 2.0))


def test_what_a_replaced_library_function_reads_is_watched(monkeypatch):
    monkeypatch.setattr(F, "relu", world("by = 2.0\ndef f(x): return x * by")["f"])
    compiled = fg.jit(lambda x: F.relu(x), backend="aten")
    assert torch.equal(compiled(X), X * 2)
    F.relu.__globals__["by"] = 3.0
    assert torch.equal(compiled(X), X * 3)


def test_what_a_trace_replaces_in_torch_is_no_change():
    """Of torch, and in other threads that trace meanwhile."""
    compiled = fg.jit(lambda x: (torch.manual_seed(0), x * 2)[1], backend="aten")
    compiled(X)
    fg.jit(lambda x: compiled(x) + 1, backend="aten")(X)
    compiled(X)
    assert compiled.cache_info().misses == 1


@pytest.mark.parametrize("make", [lambda: sys.stdout, io.StringIO, lambda: io.TextIOWrapper(io.BytesIO())])
def test_standard_output_is_the_stream_it_is(make, monkeypatch, capsys):
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)

    def f(x):
        print("one")
        sys.stdout.writelines(["two\n", "three\n"])
        return x * (2 if sys.stdout is stream and type(sys.stdout) is type(stream) else 3)

    compiled = fg.jit(f, backend="aten")
    assert torch.equal(compiled(X), X * 2)
    assert torch.equal(compiled(X), X * 2)
    assert "write" not in vars(stream)
    if not isinstance(stream, io.StringIO):  # what is in that, it may read
        assert compiled.cache_info().misses == 1
    if hasattr(stream, "seekable") and stream.seekable():
        stream.seek(0)
        assert stream.read() == "one\ntwo\nthree\n" * 2


BUFFERS = {
    "a text": ("io.StringIO('abc')", "b.write('ab'); b.writelines(['c', 'd'])", 1),
    "bytes": ("io.BytesIO(b'123')", "b.write(b'ab')", 1),
    "an array": ("array.array('d')", "b.append(1.5); b.extend([2.0, 3.0])", 1),
    "a byte array": ("bytearray()", "b.append(7); b.extend(b'ab')", 1),
    "a text whose lines end otherwise": ("io.StringIO(newline='\\r\\n')", "b.write('ab\\n')", 4),
    "one that is read": ("bytearray()", "b.append(7); x = x * len(b)", 4),
    "one that is read elsewhere": ("bytearray()", "b.append(7); x = (lambda: x * len(b))()", 4),
    "one whose item is replaced": ("bytearray()", "b.append(7); b[0] = 3", 4),
}


@pytest.mark.parametrize("case", BUFFERS)
def test_a_buffer_that_is_only_added_to_compiles_once(case):
    make, adds, misses = BUFFERS[case]
    held = []
    for transform in (lambda f: f, lambda f: fg.jit(f, backend="aten")):
        space, own = world(f"import array, io\nb = {make}\ndef f(x):\n    {adds}\n    return x * 2"), []
        b, call = space["b"], transform(space["f"])
        changes = ("b.seek(1)", "b.truncate(2)", "b.seek(30)", "b.close()") if hasattr(b, "seek") else ("b.pop()",)
        for i, change in enumerate((*[""] * 4, *changes)):
            exec(change, space)
            own.append(outcome(call, X))
            if not getattr(b, "closed", False):
                own.append((b.getvalue(), b.tell()) if hasattr(b, "getvalue") else bytes(b))
            if i == 3 and hasattr(call, "cache_info"):
                assert call.cache_info().misses == misses
        held.append(own)
    assert held[0] == held[1]


class Cell(nn.Module):
    """A compiled method that keeps tensors: in itself, in a list that grows, in what it holds."""

    def __init__(self):
        super().__init__()
        self.linear, self.h, self.log, self.held = nn.Linear(2, 2), None, [], types.SimpleNamespace()

    def step(self, x):
        if self.h is None:
            self.h = torch.zeros_like(x)
        self.h = torch.tanh(self.linear(x) + self.h)
        self.log.append(self.h.detach())
        self.held.mean = self.h.mean()
        return self.h


def test_a_method_stores_tensors_on_its_object():
    results, x = [], torch.ones(2)
    for step in (Cell.step, fg.jit(Cell.step, backend="aten")):
        torch.manual_seed(0)
        cells = Cell(), Cell()
        for _ in range(4):
            for cell in cells:
                assert step(cell, x) is cell.h
        cells[0].h.sum().backward()
        results.append([[c.h, c.log, c.held.mean, c.linear.weight.grad] for c in cells])
        if step is not Cell.step:
            assert step.cache_info().misses == 4  # two for each
    torch.testing.assert_close(results[1], results[0])


@dataclasses.dataclass
class Held:
    rate: float = 1.5


def test_attributes_of_an_argument_that_python_state_holds_are_not_stored():
    held = types.SimpleNamespace(config=Held())

    def f(x, config):
        config.__dict__.update(a=7)
        return x * held.config.rate

    with pytest.raises(fg.MutationError, match="holds"):
        fg.jit(f, backend="aten")(X, held.config)
    assert vars(held.config) == {"rate": 1.5}


def test_an_object_nobody_watches_that_would_hold_a_tensor_of_the_trace_is_refused():
    with pytest.raises(fg.MutationError, match="stores into"):
        fg.jit(lambda values, x: values.put(x * 2), backend="aten")(queue.SimpleQueue(), X)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, lambda f: lambda x: torch.func.vjp(f, x)[0]])
def test_a_tensor_of_a_transform_inside_is_not_stored(transform):
    kept = types.SimpleNamespace()

    def f(x):
        kept.last = x * 3
        return (x * x).sum()

    with pytest.raises(fg.MutationError, match="that has ended by then"):
        fg.jit(transform(f), backend="aten")(torch.ones(2))
    assert not vars(kept)


class Logs:
    """Keeps a log of tensors."""

    def __init__(self):
        self.log = [torch.zeros(1)]


def test_a_log_that_is_read_by_way_of_what_an_object_has_is_no_log():
    logs, eager = Logs(), Logs()

    def f(s, x):
        s.log.append(x)
        return x * sum(len(v) for v in vars(s).values())

    compiled = fg.jit(lambda x: f(logs, x))
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), f(eager, torch.ones(3)))


def test_another_standard_output_is_no_other_program():
    def f(x):
        print("said", file=sys.stdout)
        return x * 2

    compiled = fg.jit(f)
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            compiled(torch.ones(3))
        assert out.getvalue() == "said\n"
    assert compiled.cache_info().misses == 1


def test_what_another_thread_traces_takes_no_output():
    entered, done = threading.Event(), threading.Event()

    def slow(x):
        entered.set()
        done.wait(10)
        return x + 1

    def loud(x):
        print("loud")
        return x * 2

    thread = threading.Thread(target=lambda: fg.jit(slow)(torch.ones(3)))
    compiled = fg.jit(loud)
    thread.start()
    try:
        entered.wait(10)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for _ in range(3):
                compiled(torch.ones(3))
    finally:
        done.set()
        thread.join()
    assert out.getvalue() == "loud\n" * 3


def test_a_function_imported_by_another_name_is_noticed(monkeypatch):
    def f(x):
        from torch.nn import functional as other

        return other.relu(x)

    compiled = fg.jit(f)
    compiled(torch.ones(3))
    monkeypatch.setattr(torch.nn.functional, "relu", lambda x: x * 5)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 5.0))


def test_what_is_made_at_places_that_read_alike_is_each_its_own():
    """Keys that are tensors of one shape, and variables of one name in two closures: both were given one tensor."""

    def made():
        held: dict[torch.Tensor, torch.Tensor] = {}
        keys = torch.ones(3), torch.ones(3)

        def counted(n):
            last: dict[str, torch.Tensor] = {}

            def count(x):
                last["value"] = last.get("value", torch.zeros(3)) + x * n
                return last["value"]

            return count, last

        (first, of_first), (second, of_second) = counted(1), counted(2)

        def f(x):
            for n, key in enumerate(keys, 1):
                if key not in held:
                    held[key] = torch.zeros(3)
                held[key].add_(x * n)
            return first(x) + second(x)

        return f, lambda: (*held.values(), *of_first.values(), *of_second.values())

    (f, left), (g, left_by_eager) = made(), made()
    compiled = fg.jit(f)
    for n in range(3):
        x = torch.full((3,), n + 1.0)
        torch.testing.assert_close(compiled(x), g(x))
        for a, b in zip(left(), left_by_eager(), strict=True):
            torch.testing.assert_close(a, b)


# ── what a function logs ─────────────────────────────────────────────────────────────────────────────────────────


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage(), time.time() - record.created < 5))


def logged(make):
    """What four calls log, the last with another size."""
    log, handler = logging.getLogger("funcgrad.test.lines"), Lines()
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    count = {"n": 0}

    @functools.lru_cache
    def once(text):
        log.warning(text)
        print(text)

    def f(x):
        once("of a cached function")
        count["n"] += 1
        log.info("step %d of %s", count["n"], tuple(x.shape))
        log.debug("not this")
        log.log(25, f"sum {x.sum().item():.2f}")
        return x * 2

    compiled = make(f)
    for n in (2, 2, 2, 3):
        compiled(torch.ones(n))
    log.handlers = []
    return handler.lines


def test_what_is_logged_is_logged_on_each_call(capsys):
    expected, printed = logged(lambda f: f), capsys.readouterr().out
    assert logged(lambda f: fg.jit(f, backend="aten")) == expected
    assert capsys.readouterr().out == printed == "of a cached function\n"


def filtered(make):
    log, handler, asked = logging.Logger("filtered", logging.INFO), Lines(), []
    log.addHandler(handler)

    def every_other(record):
        asked.append(record.getMessage())
        record.msg = f"{record.msg}, heard by a filter"
        return len(asked) % 2 == 1

    def f(x):
        log.info("called")
        return x * 2

    compiled = make(f)
    for n in range(6):
        if n == 2:
            log.addFilter(every_other)
        compiled(torch.ones(2))
    misses = 0 if compiled is f else compiled.cache_info().misses
    return (handler.lines, asked), misses


def test_filters_of_a_logger_are_asked_on_each_call():
    expected, _ = filtered(lambda f: f)
    found, misses = filtered(lambda f: fg.jit(f, backend="aten"))
    assert found == expected and len(expected[0]) == 4
    assert misses <= 2


def test_a_number_beside_tensors_that_is_stored_again_is_a_symbol():
    """As a scheduler stores the rates of an optimiser, also where they stay what they are."""

    class Rates:
        def __init__(self):
            self.groups, self.n, self.last = [{"rate": 0.5 + i, "weights": [torch.ones(2)]} for i in range(2)], 0, None

        def step(self, x):
            for group in self.groups:
                x = x * group["rate"] * group["weights"][0]
            self.n += 1
            found = [group["rate"] * (1 if self.n % 3 else 0.5) for group in self.groups]
            for group, rate in zip(self.groups, found, strict=True):
                group["rate"] = rate if self.n % 3 == 0 else group["rate"]
            self.last = [group["rate"] for group in self.groups]
            return x

    ours, eager = Rates(), Rates()
    compiled = fg.jit(ours.step, backend="aten")
    for _ in range(9):
        torch.testing.assert_close(compiled(torch.ones(2)), eager.step(torch.ones(2)))
        assert ours.last == eager.last == [group["rate"] for group in ours.groups]
    assert compiled.cache_info().misses <= 6


# ── containers and objects whose class writes, too, where something is put into them ─────────────────────────────


class NotedDict(dict):
    def __init__(self):
        super().__init__()
        self.log = []

    def __setitem__(self, key, value):
        self.log.append(key)
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.log.append("del")
        super().__delitem__(key)


class CountedList(list):
    appended = extended = 0

    def append(self, value):
        self.appended += 1
        super().append(value)

    def extend(self, values):
        self.extended += 1
        super().extend(values)


class CountedSet(set):
    added = updated = 0

    def add(self, value):
        self.added += 1
        super().add(value)

    def update(self, values):
        self.updated += 1
        super().update(values)


class NotedSlots:
    __slots__ = ("k", "log")

    def __init__(self):
        object.__setattr__(self, "log", [])
        self.k = 1

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)


def puts_into_a_dict(held, x):
    held["k"], held["other"] = x.shape[0], x * 2
    del held["other"]


def appends(held, x):
    held.append(x.shape[0])


def adds(held, x):
    held.add(x.shape[0])


def sets(held, x):
    held.k = held.k + 1


@pytest.mark.parametrize(
    ("kind", "write"),
    [(NotedDict, puts_into_a_dict), (CountedList, appends), (CountedSet, adds), (NotedSlots, sets)],
)
def test_what_a_class_writes_of_its_own_is_written_once(kind, write):
    found = []
    for make in (lambda f: f, lambda f: fg.jit(f, backend="aten")):
        held = kind()
        call = make(lambda x, held=held: (write(held, x), x * 2)[1])
        for n in (2, 2, 3, 2):
            call(torch.ones(n))
        content = (held.k, held.log) if kind is NotedSlots else (list(held), vars(held))
        found.append((content, held.items() if kind is NotedDict else ()))
    assert found[0] == found[1]


# ── what a function warns of ─────────────────────────────────────────────────────────────────────────────────────


def warned(make, action):
    """The warnings of four calls, the last with another size, and errors they became: where they were given, too."""

    def helper(x):
        warnings.warn(f"of {tuple(x.shape)}", DeprecationWarning, stacklevel=2)

    def f(x):
        if x.shape[0] > 1:
            warnings.warn("plain")
        helper(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("not this")
        with warnings.catch_warnings(record=True) as own:
            warnings.simplefilter("always")
            warnings.warn(UserWarning("looked at inside"))
        warnings.warn("of the caller", RuntimeWarning, stacklevel=2)
        return x * len(own)

    compiled, found = make(f), []
    for n in (2, 2, 2, 3):
        with warnings.catch_warnings(record=True) as given:
            for kind in (UserWarning, DeprecationWarning, RuntimeWarning):
                warnings.simplefilter(action if kind is not DeprecationWarning else "always", kind)
            warnings.simplefilter("ignore", fg.RecompileWarning)  # of the same code in other tests
            try:
                found.append(compiled(torch.ones(n)).tolist())
            except UserWarning as error:
                found.append(str(error))
        found.append([(str(w.message), w.category, w.filename, w.lineno) for w in given])
    return found


@pytest.mark.parametrize("action", ["always", "ignore", "error"])
def test_a_warning_is_given_on_each_call(action):
    assert warned(lambda f: fg.jit(f, backend="aten"), action) == warned(lambda f: f, action)


def test_a_warning_becomes_an_error_where_later_filters_say_so():
    @fg.jit
    def f(x):
        warnings.warn("careful")
        return x * 2

    with pytest.warns(UserWarning, match="careful"):
        f(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            f(torch.ones(2))
    with pytest.warns(UserWarning, match="careful"):
        f(torch.ones(2))


WITHOUT_A_MODULE = """
class Steps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    @property
    def scale(self):
        return self.steps * 2

    def forward(self, x):
        self.steps += 1
        return x * self.scale
"""


def test_a_class_of_code_without_a_module_is_the_callers():
    """Python takes it for a builtin, by the name of its module."""
    space = {"torch": torch}
    exec(WITHOUT_A_MODULE, space)
    eager, compiled = space["Steps"](), space["Steps"]()
    call = fg.jit(compiled, backend="aten")
    for _ in range(3):
        assert torch.equal(call(torch.ones(2)), eager(torch.ones(2)))
    assert compiled.steps == 3


def test_a_generator_without_a_state_may_stand_beside_what_is_read():
    held = {"factor": 1.5, "random": random.SystemRandom()}
    assert fg.jit(lambda x, key="factor": x * held[key], backend="aten")(torch.ones(2)).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("kind", [dict, functools.partial(collections.defaultdict, dict)])
def test_a_count_beside_tensors_that_are_stored_compiles_three_times(kind):
    """In a dict of which no code names the key: a tensor, as an optimiser's."""

    def made():
        weight, states = torch.ones(2), kind()
        states[weight] = {"n": 0, "mean": torch.zeros(2)}

        def step(x):
            state = states[weight]
            state["n"] += 1
            state["mean"] = state["mean"] + x / state["n"]
            return state["mean"] * 2

        return step, states[weight]

    (step, ours), (expected, eager) = made(), made()
    compiled = fg.jit(step, backend="aten")
    for n in range(7):
        torch.testing.assert_close(compiled(torch.ones(2) + n), expected(torch.ones(2) + n))
        assert ours["n"] == eager["n"] == n + 1
    assert compiled.cache_info().misses == 3


def test_a_dict_that_makes_what_it_holds_is_not_asked_for_all_of_it():
    """As a table of models that are imported when they are asked for."""
    asked = []

    class Lazy(collections.OrderedDict):
        def __getitem__(self, key):
            return 3.0

        def __contains__(self, key):
            return True

        def __len__(self):
            asked.append("len")
            return 2

        def __iter__(self):
            asked.append("iter")
            return iter(["a", "b"])

        keys = values = items = __iter__

    table = Lazy()

    def scaled(x):
        return x * table["a"] if "a" in table else x

    compiled = fg.jit(scaled, backend="aten")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert compiled.cache_info() == (1, 1, 64, 1)
    assert not asked


def test_a_tuple_that_has_no_length():
    class Pair(tuple):
        def __len__(self):
            raise NotImplementedError

    pair = Pair((2.0, 3.0))
    compiled = fg.jit(lambda x: x * pair[0], backend="aten")
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert compiled.cache_info().misses == 1


def test_a_full_deque_that_an_append_leaves_as_it_was():
    def made():
        recent = collections.deque([4.0, 4.0], maxlen=2)

        def step(x):
            recent.appendleft(4.0)
            return x * 1.0

        return step, recent

    (step, ours), (expected, eager) = made(), made()
    compiled = fg.jit(step, backend="aten")
    for first in (None, 7.0, None):
        if first is not None:
            ours[0] = eager[0] = first
        compiled(X)
        expected(X)
        assert ours == eager


def test_a_store_that_changes_nothing_does_where_another_tensor_lives():
    class Kept:
        def __init__(self):
            self.last, self.weight = torch.zeros(3), torch.ones(3)

    kept = Kept()

    def step(x):
        kept.last = kept.weight
        return x * 1.0

    compiled = fg.jit(step, backend="aten")
    compiled(X)
    kept = Kept()
    compiled(X)
    compiled(X.clone().requires_grad_())  # it is the weight by then
    kept.last = kept.weight.view(3)
    compiled(X.clone().requires_grad_())
    assert kept.last is kept.weight


@pytest.mark.parametrize("apart_first", [False, True])
def test_a_container_of_python_state_that_is_stored_into_may_be_no_argument(apart_first):
    settings = {"a": 1.5, "b": 2.0, "c": 3.0}

    def f(x, given):
        settings.popitem()
        return x * len(given)

    compiled = fg.jit(f, backend="aten")
    if apart_first:
        assert torch.equal(compiled(X, dict(settings)), X * 3)
        settings["d"] = 3.0
    with pytest.raises(fg.MutationError, match=r"it was given, given, which .* Python state holds, too"):
        compiled(X, settings)
    assert len(settings) == 3


@pytest.mark.parametrize(
    "source",
    [
        "@functools.cache\ndef g(): return torch.zeros(3)\ndef f(x):\n    t = g()\n    t.add_(x)\n    return t * 1",
        "@functools.lru_cache\ndef g(n): return torch.zeros(n)\ndef f(x):\n    g(3)[0] += 1\n    return g(3) + x",
        "@functools.cache\ndef g(): return [torch.zeros(3)]\ndef f(x): return torch.add(x, 1, out=g()[0][:]) * 1",
    ],
)
def test_what_a_cache_keeps_since_the_call_is_written_to(source):
    space, eager = world(source), world(source)
    compiled = fg.jit(space["f"], backend="aten")
    with pytest.raises(fg.ImpureFunctionError, match=r"writes to a tensor that the functools\.lru_cache g keeps"):
        compiled.program(X)
    for _ in range(4):
        assert torch.equal(compiled(X), eager["f"](X))
    assert compiled.cache_info().hits >= 2


def test_a_cache_that_the_function_fills_stays_filled():
    """What was drawn, or made of what changes, is made once; other arguments fill it anew."""

    def made():
        space = world(
            "k = 1.0\n@functools.lru_cache\ndef noise(n): return torch.rand(n)\n"
            "@functools.lru_cache(maxsize=9)\ndef of_state(n): return torch.full((n,), k)\n"
            "@functools.cache\ndef layer(n): return nn.Linear(n, n)\n"
            "def f(x):\n    n = x.shape[0]\n    return layer(n)(x * torch.rand(1) * noise(n) + of_state(n))"
        )
        torch.manual_seed(0)
        return space

    own, eager = made(), made()
    compiled = fg.jit(own["f"], backend="aten")
    found, wanted = [], []
    for results, space, f in ((found, own, compiled), (wanted, eager, eager["f"])):
        torch.manual_seed(3)
        for n in (2, 2, 3, 2, 3, 3, 2):
            results.append(f(torch.ones(n)).detach())
            space["k"] += 1
    assert all(map(torch.equal, found, wanted))
    assert own["noise"].cache_info().currsize == own["layer"].cache_info().currsize == 2
    assert compiled.cache_info().hits and own["noise"](2) is own["noise"](2)


def test_what_a_cached_function_writes_to_while_it_makes_a_tensor_is_its_own():
    space = world(
        "@functools.cache\ndef g():\n    t = torch.zeros(3)\n    t[0] = 2\n    return t\ndef f(x): return x + g()"
    )
    compiled = fg.jit(space["f"], backend="aten")
    for _ in range(2):
        assert torch.equal(compiled(X), X + torch.tensor([2.0, 0, 0]))


def test_an_object_that_is_a_number_of_what_it_counts():
    class Counted:
        def __init__(self):
            self.k = 0

        def __float__(self):
            return float(self.k + 1)

        def __int__(self):
            return int(self.k)

    def made():
        counted = Counted()

        def f(x):
            y = x * float(counted) + int(counted)
            counted.k += 1
            return y.to(torch.float64 if float(counted) > 5 else torch.float32)

        return f, counted

    (f, ours), (expected, eager) = made(), made()
    compiled = fg.jit(f, backend="aten")
    for _ in range(7):
        torch.testing.assert_close(compiled(X), expected(X))
        assert ours.k == eager.k


@pytest.mark.parametrize(
    "read",
    [
        "vars(b)['a'] * b.__dict__['n']",
        "(lambda d: d['a'])(vars(b)) * b.__dict__['n']",
        "list(vars(h).values())[0]['a'] * d['n']",
    ],
)
def test_what_an_object_holds_may_be_read_by_no_name(read):
    space = world(
        "class Box:\n    def __init__(self): self.a, self.n = 1.5, 2\n"
        "b, d = Box(), {'a': 1.5, 'n': 2}\nh = types.SimpleNamespace(d=d)\n"
        f"def f(x): return x * ({read})"
    )
    compiled = fg.jit(space["f"], backend="aten")
    assert torch.equal(compiled(X), X * 3)
    object.__setattr__(space["b"], "a", 6)
    space["d"]["a"] = 6
    assert torch.equal(compiled(X), X * 12)


def test_a_class_that_is_of_no_module():
    space = {"fg": fg}
    exec("C = type('C', (), dict(a=1.5))\ndef f(x): return x * C.a * C().a", space)
    compiled = fg.jit(space["f"], backend="aten")
    assert torch.equal(compiled(X), X * 2.25)
    space["C"].a = 2.0
    assert torch.equal(compiled(X), X * 4)


KIND = "class C:\n    def __init__(self): self.a = 1\nclass E(C): pass\nclass B: a = 7\nd = C()\n"
FUNCTION = "def g(a=1, *, b=2): return a + b\n"
MADE_OF = {
    "its attributes": (KIND, "d.__dict__ = dict(d.__dict__, a=d.a + 1)", "vars(d)"),
    "attributes written to before": (KIND, "d.a = 7; d.__dict__ = dict(d.__dict__, a=d.a + 1)", "vars(d)"),
    "its class": (KIND, "d.__class__ = E if type(d) is C else C", "type(d).__name__"),
    "bases": (KIND, "E.__bases__ = (B,)", "E.a"),
    "defaults": (FUNCTION, "g.__defaults__ = (g() + 1,)", "g()"),
    "keyword defaults": (FUNCTION, "g.__kwdefaults__ = {'b': g() + 1}", "g()"),
    "code": (FUNCTION, "g.__code__ = (lambda a=1, *, b=2: a * b + 5).__code__", "g()"),
    "a pattern": ("p = []\n", "p.append(re.compile('a' * len(p)))", "[q.pattern for q in p]"),
}


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("case", MADE_OF)
def test_what_objects_are_made_of_is_replaced_in_each_call(case):
    source, statement, shown = MADE_OF[case]
    spaces = [world(f"import re\n{source}def f(x):\n    {statement}\n    return x * 2.0") for _ in range(2)]
    steps = fg.jit(spaces[0]["f"], backend="aten"), spaces[1]["f"]
    for _ in range(4):
        seen = []
        for step, space in zip(steps, spaces, strict=True):
            step(X)
            seen.append(eval(shown, space))
        assert seen[0] == seen[1]


HOLDER = "class Holder:\n    def __getattribute__(self, name):\n        return 1.5 if name == 'z' else object.__getattribute__(self, name)\n"
ELSEWHERE = {
    "a module by its name": (
        "import importlib\nm = sys.modules['funcgrad_test_module'] = types.ModuleType('funcgrad_test_module')\nm.k = 2.0",
        "importlib.import_module('funcgrad_test_module').k", "m.k = 3.0",
    ),
    "an import by hand": (
        "m = sys.modules['funcgrad_test_module'] = types.ModuleType('funcgrad_test_module')\nm.k = 2.0",
        "__import__('funcgrad_test_module').k", "m.k = 3.0",
    ),
    "a builtin": ("import builtins\nbuiltins.funcgrad_test_k = 2.0", "funcgrad_test_k", "builtins.funcgrad_test_k = 3.0"),
    "a method of tensors": (
        "K = [1.0]\ntorch.Tensor.funcgrad_test_by = lambda self: K[0]", "x.funcgrad_test_by()", "K[0] = 3.0"
    ),
    "another method of tensors": (
        "torch.Tensor.funcgrad_test_by = lambda self: 2.0", "x.funcgrad_test_by()",
        "torch.Tensor.funcgrad_test_by = lambda self: 3.0",
    ),
    "an object with a word in what is read": (
        f"{HOLDER}d = Holder()\nd.n = 2.0", "vars(d)['n']", "d.__dict__ = dict(d.__dict__)\nd.n = 3.0"
    ),
    "an object that says to be of another class": (
        "class C: pass\nclass Like:\n    __class__ = property(lambda self: C)\nd = Like()\nd.k = 2.0", "d.k", "d.k = 3.0"
    ),
    "an object that says what it is": (f"{HOLDER}d = Holder()\nk = [2.0]", "d.z * k[0]", "k[0] = 3.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_lives_elsewhere_is_read_where_it_lives(case):
    source, read, change = ELSEWHERE[case]
    space = world(f"import sys\n{source}\ndef f(x): return x * ({read})")
    compiled = fg.jit(space["f"], backend="aten")
    try:
        for _ in range(2):
            assert torch.equal(compiled(X), space["f"](X))
            exec(change, space)
        assert torch.equal(compiled(X), space["f"](X))
    finally:
        sys.modules.pop("funcgrad_test_module", None)
        vars(builtins).pop("funcgrad_test_k", None)
        if hasattr(torch.Tensor, "funcgrad_test_by"):
            del torch.Tensor.funcgrad_test_by


@pytest.mark.parametrize(
    "made, asked",
    [("threading.Event()", "is_set()"), ("threading.Lock()", "locked()"), ("torch.Generator()", "initial_seed()")],
)
def test_what_nobody_hears_of_is_named(made, asked):
    space = world(f"import threading\nd = {made}\ndef f(x): return x * (2 if d.{asked} else 3)")
    with pytest.warns(fg.UnwatchedStateWarning, match=f"asks for {asked[:-2]} of a"):
        fg.jit(space["f"], backend="aten")(X)


def test_an_operator_that_is_given_no_number_where_numbers_were_symbols_raises_as_in_eager_pytorch():
    """Where numbers are symbols, the call goes by way of a file of its own: the error was taken for one of that file,
    and what the function had written before was lost."""

    def run(wrap):
        window = collections.deque([1.5, 2], maxlen=4)

        def f(x):
            window.append([1])
            return x * window[0]

        call, found = wrap(f), []
        for _ in range(5):
            try:
                call(torch.ones(3))
                found.append(list(window))
            except TypeError:
                found.append(("TypeError", list(window)))
        return found

    assert run(lambda f: fg.jit(f, backend="aten")) == run(lambda f: f)
    assert ("TypeError", [[1]] * 4) in run(lambda f: f)


def test_an_object_is_stored_that_cannot_be_written_down():
    """Two runs are compared by what objects say of themselves."""

    class Silent:
        def __repr__(self):
            raise ValueError

    module, silent = nn.Module(), Silent()
    listed = functools.cache(lambda: [2.0])

    def f(x):
        module.other = module
        module.kept = silent
        return x * listed()[0]

    compiled = fg.jit(f)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert module.other is module and module.kept is silent
    assert compiled.cache_info().misses == 1


def test_an_iterator_that_a_module_is_given_does_not_go_on():
    """The call was refused when it had gone on."""

    class Scaled(nn.Module):
        def forward(self, x, given):
            return x * next(given.it)

    given = types.SimpleNamespace(it=itertools.count(1))
    for _ in range(2):
        with pytest.raises(fg.ImpureFunctionError, match="iterator"):
            fg.jit(Scaled())(torch.ones(3), given)
    assert next(given.it) == 1


COUNTED_ANEW = {
    "an attribute": "host.n = 0\n    host.n += 1",
    "an attribute by an alias": "own = host\n    own.n = 1\n    own.n += 1",
    "in a loop": "host.n = 0\n    for _ in host.two: host.n += 1",
    "in a branch that is not taken": "if len(host.two) > 2: host.n += 1\n    else: host.n = 1",
    "a global": "global n\n    n = 0\n    n += 1",
    "by a function": "count(host)",
    "by a text": "exec('host.n = 0; host.n += 1', {'host': host})",
    "and backwards": "host.n = 3\n    host.n -= 2",
}


@pytest.mark.parametrize("how", COUNTED_ANEW)
def test_a_count_that_begins_anew_does_not_go_on(how):
    """What is left after the call was taken for what was there and one more."""

    def world():
        space = {"host": types.SimpleNamespace(n=0, two=[1, 1]), "n": 0}
        exec(f"def count(o):\n    o.n = 0\n    o.n += 1\ndef f(x):\n    {COUNTED_ANEW[how]}\n    return x * 2", space)
        return space

    ours, theirs = world(), world()
    compiled = fg.jit(ours["f"])
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(3)), theirs["f"](torch.ones(3)))
        assert (ours["host"].n, ours["n"]) == (theirs["host"].n, theirs["n"])


@dataclasses.dataclass
class Statistics:
    losses: list = dataclasses.field(default_factory=list)


LOGGED = {
    "in a dataclass": "st.losses.append(y.detach())",
    "by another name": "own = st.losses\n    own.append(y.detach())",
    "a number in a list": "own = lists[0]\n    own.append(len(x))",
    "where it is asked for elsewhere": "(st if x.shape[0] else repr(st)).losses.append(y.detach())",
}


@pytest.mark.parametrize("how", LOGGED)
def test_a_log_is_added_to_without_a_guard_on_what_it_holds(how):
    """What code reads that did not run (``Statistics.__repr__``, ``__eq__``) was taken for read."""

    def run(jit):
        space = {"st": Statistics(), "lists": [[]]}
        exec(f"def f(x):\n    y = x.sum()\n    {LOGGED[how]}\n    return y", space)
        f = jit(space["f"])
        for i in range(4):
            f(torch.ones(3) * i)
        return space["st"].losses, space["lists"], f

    (*found, compiled), (*expected, _) = run(fg.jit), run(lambda f: f)
    torch.testing.assert_close(found, expected)
    assert compiled.cache_info().misses == 1


def test_a_log_that_is_shown_is_read():
    def run(jit):
        st, shown = Statistics(), []
        f = jit(lambda x: (st.losses.append(len(st.losses)), shown.append(repr(st)), x * 2)[2])
        for _ in range(3):
            f(torch.ones(3))
        return st, shown

    assert run(fg.jit) == run(lambda f: f)


TREE = {"next": {"next": {"next": None, "k": 3.0}, "k": 2.0}, "k": 1.0}


def test_names_that_are_given_one_another():
    """Who is added to by which name was asked for ever."""

    def f(x):
        node, total = TREE["next"], x
        while node is not None:
            total = total * node["k"]
            node = node["next"]
        first = LOGGED
        second = first
        first = second
        return total * len(first)

    compiled = fg.jit(f)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 6.0 * len(LOGGED)))
    assert compiled.cache_info().misses == 1
