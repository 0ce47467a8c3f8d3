"""Python state that was read, or written to, where nobody looked: eager PyTorch is the oracle, step by step.

A case is a source with a function ``f``, and a script (see ``test_state_mended.py``); those of one cause stand in one
test.
"""

import pytest
import torch
from test_state import X, world
from test_state_mended import run

import funcgrad as fg

pytestmark = pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning", "ignore::funcgrad.UnwatchedStateWarning")


def check(**cases):
    """Each does what it does in eager PyTorch."""
    for case, (source, script) in cases.items():
        want = run(source, script, lambda f: f)
        assert run(source, script, lambda f: fg.jit(f, backend="aten")) == want, case


def test_arrays_without_dimensions_and_without_items():
    check(
        read=(
            "a = np.array(3.0)\ndef f(x): return x * float(a)",
            "call(); a[...] = 5.0; call(); a = np.array(2); call()",
        ),
        written=("a = np.array(3.0)\ndef f(x):\n    a[...] += 1\n    return x * float(a)", "call(); call(); call()"),
        empty=("a = np.zeros((0, 3))\ndef f(x): return x * a.shape[1]", "call(); a.shape = (0, 5); call()"),
        of_truth=("a = np.array(False)\ndef f(x): return x * 2 if a else x", "call(); a[...] = True; call()"),
    )


def test_what_is_set_of_tensors_that_are_reached_in_any_way():
    use, calls = (
        "def f(x):\n    {0}.k += 1\n    return x * {0} * {0}.k",
        "call(); call(); call(); p.k = 7; call(); call()",
    )
    made = "p = torch.ones(1); p.k = 0\n"
    reached = {
        "a namespace": "o = types.SimpleNamespace(p=p)|o.p",
        "a list in one": "o = types.SimpleNamespace(p=[p])|o.p[0]",
        "a tuple in one": "o = types.SimpleNamespace(p=(0, (p,)))|o.p[1][0]",
        "a function": "def o(): pass\no.p = p|o.p",
        "a class": "class O: pass\nO.p = p|O.p",
        "a deque": "o = collections.deque([p])|o[0]",
        "a dict of another class": "o = collections.OrderedDict(p=p)|o['p']",
        "a dict with keys of any kind": "o = {(1, 2): p}|o[1, 2]",
        "arguments": "import argparse\no = argparse.Namespace(p=p)|o.p",
    }
    check(
        **{
            case: (made + (own := text.split("|"))[0] + "\n" + use.format(own[1]), calls)
            for case, text in reached.items()
        }
    )
    source = "o = types.SimpleNamespace(p=torch.ones(1)); o.p.k = 0\n" + use.format("o.p")
    check(another=(source, "call(); call(); o.p = torch.full((1,), 2.0); o.p.k = 3; call(); call()"))


def test_what_a_tensor_lacks_that_is_only_asked_for_that():
    set_later = "call(); p.k = 5.0; call(); del p.k; call(); p = torch.zeros(1); p.k = 3.0; call()"
    asks = {
        "by name": "def f(x): return x * getattr(p, 'k', 1.0)",
        "whether": "def f(x): return x * 2 if hasattr(p, 'k') else x",
        "in its dict": "def f(x): return x * 2 if 'k' in vars(p) else x",
        "caught": "def f(x):\n    try: return x * p.k\n    except AttributeError: return x",
        "of a parameter": "m = nn.Linear(1, 1)\np = m.weight\ndef f(x): return x * getattr(m.weight, 'k', 1.0)",
        "where it varies": "def f(x): return x * getattr(p, 'k', 1.0) * len(p)",
    }
    check(**{case: ("p = torch.ones(1)\n" + source, set_later) for case, source in asks.items()})


def test_views_of_dicts():
    views = {
        "values": (
            "d = {'a': 1.0}\nv = d.values()\ndef f(x): return x * sum(v)",
            "call(); d['b'] = 5.0; call(); d['a'] = 2; call()",
        ),
        "keys": (
            "d = {'a': 1.0}\nv = d.keys()\ndef f(x): return x * 2 if 'b' in v else x",
            "call(); d['b'] = 5.0; call()",
        ),
        "items": (
            "d = {'a': 1.0}\nv = [d.items()]\ndef f(x): return x * dict(v[0])['a']",
            "call(); d['a'] = 5.0; call()",
        ),
        "in order": (
            "d = collections.OrderedDict(a=1.0, b=2.0)\nv = d.values()\ndef f(x): return x * next(iter(v))",
            "call(); d.move_to_end('a'); call(); d['b'] = 7; call()",
        ),
        "of tensors": (
            "d = {'a': torch.ones(1)}\nv = d.values()\ndef f(x): return x * sum(v)",
            "call(); d['a'] = torch.full((1,), 2.0); call(); d['a'] += 1; call()",
        ),
        "written": (
            "d = {'a': 1.0}\nv = d.values()\ndef f(x):\n    d['a'] += 1\n    return x * sum(v)",
            "call(); call(); d['b'] = 3.0; call()",
        ),
        "of an object": (
            "c = Config(); v = vars(c).values()\ndef f(x): return x * len(v)",
            "call(); c.more = 5.0; call()",
        ),
        "of a class": ("class C: k = 1\nv = vars(C).keys()\ndef f(x): return x * len(v)", "call(); C.l = 5.0; call()"),
    }
    check(**views)


ADDED = {
    "__bool__": ("2 if a else 1", "lambda s: False"),
    "__len__": ("2 if a else 1", "lambda s: 0"),
    "__call__": ("2 if callable(a) else 1", "lambda s: 1"),
    "__eq__": ("2 if a == 3 else 1", "lambda s, o: True"),
    "__getattr__": ("getattr(a, 'lr', 1)", "lambda s, n: 5"),
    "__radd__": ("g(lambda: 1 + a)", "lambda s, o: 5"),
    "__iter__": ("g(lambda: sum(a))", "lambda s: iter([1, 2])"),
    "__contains__": ("g(lambda: 7 if 3 in a else 6)", "lambda s, o: True"),
    "__float__": ("g(lambda: float(a))", "lambda s: 3.0"),
    "__getattribute__": ("g(lambda: a.lr)", "lambda s, n: 5 if n == 'lr' else object.__getattribute__(s, n)"),
}
G = "def g(h):\n    try: return h()\n    except (TypeError, AttributeError): return 1\n"


def test_special_methods_that_are_added():
    for method, (use, code) in ADDED.items():
        steps = f"call(); A.{method} = {code}; call(); A.{method} = None; del A.{method}; call(); B.{method} = {code}; call(); del B.{method}"
        of = {
            kind: f"{G}class B({kind}): pass\nclass A(B): pass\na = A()\ndef f(x): return x * {{}}"
            for kind in ("", "Exception")
        }
        check(**{f"{method} {kind}": (source.format(use), steps) for kind, source in of.items()})
    of_class = f"{G}class M(type): pass\nclass A(metaclass=M): pass\ndef f(x): return x * (2 if A else 1)"
    check(
        property=(
            "class A: pass\na = A(); a.k = 1.0\ndef f(x): return x * a.k",
            "call(); A.k = property(lambda s: 5.0); call(); del A.k; call()",
        ),
        lacking=(
            "class M(type): pass\nclass B: pass\nclass A(B, metaclass=M): pass\ndef f(x): return x * getattr(A, 'k', 1.0)",
            "call(); M.k = 5.0; call(); B.k = 7.0; call(); A.k = 9.0; call()",
        ),
    )
    check(meta=(of_class, "call(); M.__bool__ = lambda s: False; call(); M.k = 1; call()"))


def test_special_methods_of_modules():
    called = "call(); old = {0}.__call__; {0}.__call__ = lambda s, x: old(s, x) * 10; call(); {1}; call()"
    add, back = (
        "class M(nn.Linear):\n    def forward(self, x): return x * getattr(self, 'scale', 1.0)\nm = M(1, 1)\ndef f(x): return m(x)",
        "{0}.__call__ = old",
    )
    try:
        check(
            of_all=(add, called.format("nn.Module", back.format("nn.Module"))),
            of_torch=(add, called.format("nn.Linear", "del nn.Linear.__call__")),
            own=(add, called.format("M", "del M.__call__")),
            kept=(
                "class M(nn.Module):\n    def forward(self, x):\n        self.k = 3\n        return x * self.k\nm = M()\n"
                "def f(x): return m(x)",
                "call(); old = nn.Module.__setattr__; "
                "nn.Module.__setattr__ = lambda s, n, v: old(s, n, v * 2 if n == 'k' else v); call(); "
                "nn.Module.__setattr__ = old; call()",
            ),
        )
    finally:
        assert "__call__" not in vars(torch.nn.Linear)
    more = "call(); M.__getattr__ = lambda s, n: 5.0 if n == 'scale' else nn.Module.__getattr__(s, n); call()"
    check(asked=(add, more))


def test_what_else_a_class_is_given_costs_no_program():
    class A:
        pass

    a = A()
    compiled = fg.jit(lambda x: x * 2 if a else x, backend="aten")
    for name in ("k", "l", "__slotnames__"):
        compiled(torch.ones(1))
        setattr(A, name, ["m"])
    compiled(torch.ones(1))
    assert compiled.cache_info().misses == 1


def test_what_an_autograd_function_does_that_is_replaced():
    class Base(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    class Own(Base):
        pass

    def values(apply, between=lambda: None):
        x = torch.ones(1, requires_grad=True)
        y = apply(x)
        between()
        y.backward()
        return y.item(), x.grad.item()

    def of(kind, name, by, *how):
        return lambda: setattr(kind, name, staticmethod(lambda ctx, v: v * by))

    changes = [of(Base, "backward", 7), of(Own, "forward", 5), of(Own, "backward", 3), of(Own, "forward", 4)]

    def f(x):
        return Own.apply(x)

    compiled = fg.jit(f, backend="aten")
    assert values(compiled) == values(f) == (2, 2)
    for change in changes:
        change()
        assert values(compiled) == values(f)
    later = of(Own, "backward", 11)
    assert values(compiled, later) == (4, 11)
    assert values(compiled) == values(f)
    Own.setup_context = staticmethod(lambda ctx, inputs, output: None)
    Own.forward = staticmethod(lambda x: x * 9)
    assert values(compiled) == values(f) == (9, 11)


BESIDES = {
    "IntEnum": "class K(enum.IntEnum): A = 1\no = K.A",
    "a text that is an enum": "class K(str, enum.Enum): A = 'a'\no = K.A",
    "float": "class P(float): pass\no = P(1.0)",
    "int in a list": "class P(int): pass\no = P(1)\nheld = [o]",
    "str": "class P(str): pass\no = P('a')",
    "bytes": "class P(bytes): pass\no = P(b'a')",
    "complex": "class P(complex): pass\no = P(1)",
    "np.float64": "class P(np.float64): pass\no = P(1)",
    "partial": "o = functools.partial(int)",
    "partial of the caller's": "class P(functools.partial): pass\no = P(int)",
    "lru_cache": "@functools.lru_cache\ndef o(n): return n",
    "LoggerAdapter": "import logging\no = logging.LoggerAdapter(logging.getLogger('funcgrad_test'))",
    "ndarray": "class A(np.ndarray): pass\no = np.ones(3).view(A)",
    "OrderedDict": "o = collections.OrderedDict(a=1)",
    "Counter": "o = collections.Counter(a=1)",
    "deque": "class D(collections.deque): pass\no = D([1])",
    "an error": "o = ValueError()",
    "an error of the caller's": "class E(ValueError): pass\no = E()",
    "a set": "class D(set): pass\no = D([1])",
    "a list": "class L(list): pass\no = L([1])",
}


@pytest.mark.parametrize("case", BESIDES)
def test_what_objects_were_given_besides_what_they_are(case):
    made = BESIDES[case] + "\no.n = 0; o.k = 1.0\n"
    check(
        read=(made + "def f(x): return x * o.k", "call(); o.k = 5.0; call(); del o.k; call()"),
        written=(
            made + "def f(x):\n    o.n += 1\n    return x * o.n",
            "call(); call(); call(); o.n = 7; call(); x = o.n",
        ),
        stored=(made + "def f(x):\n    o.last = x\n    return x * o.n", "call(); call(); x = o.last"),
    )
    if case != "LoggerAdapter":  # into which nobody looks
        check(asked=(made + "def f(x): return x * getattr(o, 'l', 1.0)", "call(); o.l = 5.0; call()"))


def test_what_classes_say_whose_objects_are_plain_values():
    source = "class P({}):\n    k = 1.0\n    def m(self): return self.k\nclass Q(P): pass\no = Q({})\n"
    script = "call(); P.k = 5.0; call(); P.m = lambda self: 7.0; call(); Q.m = lambda self: 9.0; call()"
    for kind, given in {"float": "1.0", "int": "1", "str": "'a'", "ValueError": "2", "np.float64": "1"}.items():
        check(**{kind: (source.format(kind, given) + "def f(x): return x * o.k * o.m()", script)})


def test_numbers_and_texts_of_the_caller_s_classes_that_are_replaced():
    source = "class P({}): pass\nst = types.SimpleNamespace(v=P({}))\ndef f(x): return x * {}"
    script = "call(); st.v = P({0}); call(); st.v = P({1}); call(); st.v = P({0}); call()"
    for kind, use in {"float": "st.v", "int": "st.v", "str": "len(st.v)", "np.float64": "st.v"}.items():
        first, *others = ("'a'", "'ab'", "'abc'") if kind == "str" else (1, 2, 3)
        check(**{kind: (source.format(kind, first, use), script.format(*others))})


def test_a_function_that_counts_its_calls_and_keeps_results():
    counts = "@functools.lru_cache\ndef g(n):\n    g.calls += 1\n    return n\ng.calls = 0\n"
    use = "def f(x): return x * g(2) * g.calls"
    steps = "call(); call(); g(3); call(); n = g.calls"
    check(filled=(counts + "g(2)\n" + use, steps), by_the_call=(counts + use, steps))


def test_how_much_a_deque_takes_that_is_replaced():
    steps = "; ".join(f"st.d = D([1.0], maxlen={n}); call(); call()" for n in (2, 3, 9, 5, None, 3))
    source = "{}\nst = types.SimpleNamespace(d=D([1.0], maxlen=1))\n"
    kinds = {"deque": "D = collections.deque", "own": "class D(collections.deque): pass"}
    for kind, made in kinds.items():
        check(**{kind: (source.format(made) + "def f(x): return x * (st.d.maxlen or 7)", f"call(); {steps}")})
    adds = "def f(x):\n    st.d.append(2)\n    return x * len(st.d)"
    check(full=(source.format(kinds["deque"]) + adds, f"call(); {steps}"))


def test_what_is_asked_of_objects_of_python_s_own():
    texts = "call(); {0}.__name__ = 'hhhhh'; {0}.__doc__ = 'aaaa'; {0}.__qualname__ = 'A.hhh'; call()"
    asks = "def f(x): return x * len({0}.__name__) * len({0}.__doc__) * len({0}.__qualname__)"
    check(
        function=("def h(): 'a'\n" + asks.format("h"), texts.format("h")),
        of_class=("class A: 'a'\n" + asks.format("A"), texts.format("A")),
        args=("e = ValueError(2.0)\ndef f(x): return x * e.args[0]", "call(); e.args = (5.0,); call()"),
        args_written=(
            "e = ValueError(2.0)\ndef f(x):\n    e.args = (e.args[0] + 1,)\n    return x * e.args[0]",
            "call(); call(); call()",
        ),
        objects=("a = np.array([1, None], dtype=object)\ndef f(x): return x * a[0]", "call(); a[0] = 5; call()"),
        of_objects=(
            "c = Config(); a = np.array([[c]], dtype=object)\ndef f(x): return x * a[0, 0].lr",
            "call(); c.lr = 5.0; call(); a = 0",
        ),
        wrapped=(
            "@functools.wraps(len)\ndef w(x): return w.__wrapped__(x)\nw.__wrapped__ = lambda x: x\n"
            "def f(x): return w(x)",
            "call(); w.__wrapped__ = lambda x: x * 5; call()",
        ),
        annotations=(
            "class A: z: int\ndef f(x): return x * len(A.__annotations__)",
            "call(); A.__annotations__.update(q=int); call()",
        ),
        of_dir=("class A: pass\na = A()\ndef f(x): return x * ('k' in dir(a))", "call(); A.k = 1; call()"),
    )


def test_what_is_written_to_an_array_of_objects_is_refused_by_name():
    for item in ("x", "7"):
        source = f"a = np.array([1, None], dtype=object)\ndef f(x):\n    a[0] = {item}\n    return x * 2"
        with pytest.raises(fg.MutationError, match="an item of an array of objects"):
            run(source, "call()", lambda f: fg.jit(f, backend="aten"))


def _is_named_as_unwatched(imports, made, use, match):
    source = f"import {imports}\nv = {made}\ndef f(x): return x * {use}"
    with pytest.warns(fg.UnwatchedStateWarning, match=match):
        run(source, "call()", lambda f: fg.jit(f, backend="aten"))


def test_memory_of_c_is_named():
    for made, use in (
        ("ctypes.c_double(1)", "v.value"),
        ("multiprocessing.Value('d', 1)", "v.value"),
        ("(ctypes.c_int * 2)(1, 2)", "v[0]"),
        ("np.rec.array([(1.0,)], dtype=[('a', float)])[0]", "v.a"),
        ("type('S', (ctypes.Structure,), {'_fields_': [('a', ctypes.c_int)]})(1)", "v.a"),
    ):
        _is_named_as_unwatched("ctypes, multiprocessing", made, use, r"v.* cannot be watched")


def test_what_is_asked_of_threads_and_of_numpy_is_named():
    for source, name in (
        ("import threading\ndef f(x): return x * len(threading.current_thread().name)", "current_thread"),
        ("from threading import get_ident\ndef f(x): return x * (get_ident() > 0)", "get_ident"),
        ("def f(x): return x * len(np.geterr())", "geterr"),
        ("k = 2.0\ndef g(): pass\ndef f(x): return x * g.__globals__['k']", "__globals__"),
        ("import signal\ndef f(x): return x * (signal.getsignal(2) is None)", "getsignal"),
        ("def f(x): return x * os.umask(os.umask(0))", "umask"),
        ("import sys\ndef f(x): return x * sys.stdout.isatty()", "isatty"),
        ("import sys\ndef f(x): return x * sys.getrefcount(x)", "getrefcount"),
    ):
        with pytest.warns(fg.UnwatchedStateWarning, match=name):
            run(source, "call()", lambda f: fg.jit(f, backend="aten"))


def test_what_functions_and_classes_say_of_themselves_however_they_are_reached():
    says = {"__name__": "'hhhhh'", "__qualname__": "'A.hhhhh'", "__doc__": "'aaaa'", "__module__": "'m'"}
    reached = {
        "the type": "class A: 'a'\no = A()|type(o)",
        "the class": "class A: 'a'\no = A()|o.__class__",
        "in a list": "def A(): 'a'\nfs = [A]|fs[0]",
    }
    for case, text in reached.items():
        made, use = text.split("|")
        for name, other in says.items():
            source = f"{made}\ndef f(x): return x * len({use}.{name})"
            check(**{f"{case} {name}": (source, f"call(); A.{name} = {other}; call()")})
    noted = "class A: k: int\no = A()\ndef f(x): return x * len({})"
    steps = "call(); A.__annotations__['l'] = int; call()"
    check(
        by_name=(
            "def A(): 'a'\nfs = [A]\ndef f(x): return x * len(getattr(fs[0], '__name__'))",
            "call(); A.__name__ = 'bcd'; call()",
        ),
        noted=(noted.format("type(o).__annotations__"), steps),
        hints=("import typing\n" + noted.format("typing.get_type_hints(A)"), steps),
        of_function=("def A(k: int): pass\ndef f(x): return x * len(A.__annotations__)", steps),
        hints_of_function=(
            "import typing\ndef A(k: int): pass\ndef f(x): return x * len(typing.get_type_hints(A))",
            steps,
        ),
    )


def test_fields_of_a_dataclass():
    source = "@dataclasses.dataclass\nclass D:\n    a: float = dataclasses.field(default=1.0, metadata=dict(k=1))\n    b: float = 2.0\nd = D()\n"
    own = "D.__dataclass_fields__"
    check(
        fewer=(
            source + "def f(x):\n    for own in dataclasses.fields(d): x = x * getattr(d, own.name)\n    return x",
            f"call(); b = {own}.pop('b'); call(); b = 0",
        ),
        default=(
            source + "def f(x): return x * dataclasses.fields(D)[0].default",
            f"call(); {own}['a'].default = 5.0; call()",
        ),
        metadata=(
            source + "def f(x): return x * dataclasses.fields(D)[0].metadata['k']",
            f"call(); {own}['a'].metadata = dict(k=7); call()",
        ),
    )


def test_what_a_partialmethod_gives():
    source = "class Q:\n    def g(self, k, x, l=1): return x * k * l\n    h = functools.partialmethod(g, 2.0)\nq = Q()\ndef f(x): return q.h(x)"
    check(
        args=(source, "call(); vars(Q)['h'].args = (5.0,); call()"),
        keywords=(source, "call(); vars(Q)['h'].keywords['l'] = 5.0; call()"),
    )


def test_what_a_member_of_an_enum_is():
    source = "class E(enum.Enum): A = 1\nc = Config(); c.e = E.A\ndef f(x): return x * {}"
    missing = (
        "class E(enum.Enum):\n    A = 3\n    @classmethod\n    def _missing_(cls, v): return cls.A if k else None\n"
    )
    tries = "k = 1\ndef f(x):\n    try: return x * E(7).value\n    except ValueError: return x"
    check(
        value=(source.format("E.A.value"), "call(); E.A._value_ = 5; call()"),
        of_object=(source.format("c.e.value"), "call(); E.A._value_ = 5; call()"),
        name=(source.format("len(E.A.name)"), "call(); E.A._name_ = 'BCD'; call()"),
        missing=(missing + tries, "call(); k = 0; call()"),
    )


def test_what_a_generator_of_the_caller_s_class_has():
    for base in ("random.Random", "np.random.RandomState"):
        made = f"import random\nclass R({base}):\n    def g(self): return self.k\nr = R(0); r.k = 2.0\n"
        check(
            attribute=(made + "def f(x): return x * r.k", "call(); r.k = 5.0; call(); r = 0"),
            method=(
                made + "def f(x): return x * r.g()",
                "call(); r.k = 5.0; call(); R.g = lambda self: 7.0; call(); r = 0",
            ),
        )


def test_what_is_lacking_that_is_asked_for_by_a_text():
    logger = "import logging\nlog = logging.getLogger('funcgrad.tests.lacking')\n"
    steps = "call(); log.z = 5.0; call(); del log.z; call(); log = 0"
    builtin = "call(); import builtins; builtins.funcgrad_test = 1; call(); del builtins.funcgrad_test; call()"
    check(
        whether=(logger + "def f(x): return x * 2 if hasattr(log, 'z') else x", steps),
        value=(logger + "def f(x): return x * getattr(log, 'z', 3.0)", steps),
        builtin=("import builtins\ndef f(x): return x * 2 if hasattr(builtins, 'funcgrad_test') else x", builtin),
    )


def test_what_texts_of_arrays_look_like():
    put, back = "np.set_printoptions(precision=2)", "np.set_printoptions(precision=8)"
    for text in ("str(a)", "f'{a}'", "'%s' % a", "'{}'.format(a)", "repr(a)"):
        source = f"a = np.array([1 / 3])\ndef f(x): return x * len({text})"
        check(**{text: (source, f"call(); {put}; call(); {back}; call()")})


def test_what_a_cache_keeps_that_is_full():
    source = (
        "n = [0]\n@functools.lru_cache(maxsize=2)\ndef g(k):\n    {}return k + {}\ng(1); g(2)\n"
        "def f(x): return x * g(3) * (g(1) if again else 1)\nagain = False"
    )
    of_state, of_tensors = source.format("", "n[0]"), source.format("", "torch.full((1,), float(n[0]))")
    steps = "call(); call(); n[0] = 100; call(); again = True; call(); call()"
    check(state=(of_state, steps), tensors=(of_tensors, steps))
    with pytest.raises(fg.ImpureFunctionError, match=r"fills the functools\.lru_cache g, which is full"):
        run(of_state, "call()", lambda f: lambda x: fg.jit(f, backend="aten").program(x))


def test_local_time_and_how_many_digits_a_number_may_have():
    zone = (
        "call(); os.environ['TZ'] = 'Asia/Tokyo'; import time; time.tzset(); call(); del os.environ['TZ']; time.tzset()"
    )
    digits = "call(); sys.set_int_max_str_digits(5000); call(); sys.set_int_max_str_digits(4300); call()"
    check(
        zone=("import time\ndef f(x): return x * time.localtime(0).tm_hour", zone),
        digits=("def f(x): return x * sys.get_int_max_str_digits()", digits),
    )


def test_a_tensor_of_an_object_as_a_key():
    made = "class K: pass\na, b = K(), K()\na.t, b.t = torch.ones(1), torch.ones(1)\nd = {{{}: 5.0}}\nk = a\n"
    steps = "call(); k = b; call(); k = a; call(); b.t = a.t; k = b; call(); d = 0"
    for key, use in {"a.t": "k.t", "id(a.t)": "id(k.t)"}.items():
        check(**{key: (made.format(key) + f"def f(x): return x * d.get({use}, 1.0)", steps)})

    class Held:
        def __init__(self):
            self.t = torch.ones(1)

    a, b = Held(), Held()
    known, ids = {a.t: 5.0}, {id(a.t): 5.0}
    for f in (lambda own: own.t * known.get(own.t, 1.0), lambda own: own.t * ids.get(id(own.t), 1.0)):
        compiled = fg.jit(f, backend="aten")
        for own in (a, b, a, b):
            assert torch.equal(compiled(own), f(own))


ASK_FOR_IDS = (
    "def f(x, g=id): return x * d.get(g(x), 1)",
    "g = id\ndef f(x): return x * d.get(g(x), 1)",
    "import builtins\ndef f(x): return x * d.get(builtins.id(x), 1)",
    "def f(x): return x * d.get(hash(x), 1)",
)


def test_the_id_of_a_tensor_by_another_name_is_refused_as_a_key():
    for made in ASK_FOR_IDS:
        with pytest.raises(fg.UnsupportedTensorError, match="d has tensors, or their ids, as keys"):
            run("t = torch.ones(1)\nd = {id(t): 1.0}\n" + made, "call()", lambda f: fg.jit(f, backend="aten"))


def test_what_is_refused_of_code_in_a_file_is_refused_of_code_that_is_typed_in():
    typed = {
        "x._version": "version counter",
        "x.data_ptr()": "the address of a tensor",
        "({x: 1}, x in d)[1]": "d has tensors",
    }
    for use, says in typed.items():
        with pytest.raises(fg.UnsupportedTensorError, match=says):
            run(f"d = {{torch.ones(1): 1}}\ndef f(x): return x * {use}", "call()", lambda f: fg.jit(f, backend="aten"))


def test_what_is_shown_of_an_object_where_texts_are_made():
    source = "k = 'a'\nclass A:\n    n = 0\n    def __repr__(self): return k + 'z' * self.n\na = A()\n"
    steps = "call(); k = 'abc'; call(); a.n = 5; call(); A.__repr__ = lambda s: ''; call()"
    for text in ("repr(a)", "f'{a}'", "str([a])", "'%s' % a", "'{}'.format(a)"):
        check(**{text: (f"{source}def f(x): return x * len({text})", steps)})
    counts = "def f(x):\n    a.n += 1\n    return x * len({})"
    check(
        counted=(source + counts.format("repr(a)"), "call(); call(); a.n = 9; call()"),
        of_class=(
            "k = 'a'\nclass M(type):\n    def __repr__(cls): return k\nclass A(metaclass=M): pass\n"
            "def f(x): return x * len(repr(A))",
            "call(); k = 'abc'; call()",
        ),
    )
    source += "def g(x):\n    a.n += 1\n    return x * 2\ng = fg.jit(g, backend='aten')\n"
    world = run(
        "import funcgrad as fg\n" + source + "def f(x): return g(x)",
        "call(); call(); n = g.cache_info().misses; call()",
        lambda f: f,
    )
    assert ("'n'", "1") in world[1][1], "what no text is made of is not guarded"


def test_all_environment_variables():
    steps = "call(); os.environ['FUNCGRAD_TEST_K'] = '3'; call(); os.environ['FUNCGRAD_TEST_K'] = '4'; call(); del os.environ['FUNCGRAD_TEST_K']; call()"
    check(
        number=("def f(x): return x * (len(os.environ) % 100)", steps),
        copied=("def f(x): return x * float(os.environ.copy().get('FUNCGRAD_TEST_K', 1))", steps),
        unpacked=("def f(x): return x * float({**os.environ}.get('FUNCGRAD_TEST_K', 1))", steps),
        items=("def f(x): return x * sum(v == '3' for k, v in os.environ.items())", steps),
    )


def test_objects_in_c_that_hold_state_are_named():
    for made, use in (
        ("hashlib.md5(b'a')", "v.digest()[0]"),
        ("hashlib.blake2b(b'a')", "v.digest()[0]"),
        ("xml.etree.ElementTree.Element('a', k='1')", "float(v.get('k'))"),
        ("decimal.Context(prec=3)", "float(v.divide(decimal.Decimal(1), decimal.Decimal(3)))"),
        ("weakref.finalize(Config(), print)", "(2 if v.alive else 1)"),
    ):
        _is_named_as_unwatched("decimal, hashlib, xml.etree.ElementTree", made, use, r"v \(an? .* cannot be watched")
    with pytest.raises(fg.ImpureFunctionError, match="draws from v"):
        run(
            "v = np.random.MT19937(0)\ndef f(x): return x * v.random_raw()",
            "call()",
            lambda f: fg.jit(f, backend="aten"),
        )


def test_a_count_that_is_read_by_another_name():
    reads = {
        "a dict in a dict": ("d = {'n': 0}; e = {'inner': d}", "d['n']", "e['inner']['n']", "d['n'] = 9"),
        "a list in a list": ("l = [0]; m = [l]", "l[0]", "m[0][0]", "l[0] = 9"),
        "a dict of an object": ("d = {'n': 0}; c = Config(); c.d = d", "c.d['n']", "d['n']", "d['n'] = 9"),
    }
    for case, (made, counted, read, put) in reads.items():
        source = f"{made}\ndef f(x):\n    {counted} += 1\n    return x * {read}"
        check(**{case: (source, f"call(); call(); {put}; call()")})


def test_an_array_that_is_the_memory_of_a_tensor():
    made = "a = np.zeros(3, dtype=np.float32); t = torch.from_numpy(a); b = a[1:]\n"
    writes = {
        "the tensor": "    t.add_(1)\n    return x * float(a[0])",
        "the array": "    a[0] += 1\n    return x * t",
        "a part of it": "    b[0] += 1\n    return x * t",
    }
    for own in writes.values():
        with pytest.raises(fg.MutationError, match="which are one memory"):
            run(f"{made}def f(x):\n{own}", "call()", lambda f: fg.jit(f, backend="aten"))
    for made_of in ("bytearray(12)", "array.array('f', [0, 0, 0])"):
        source = f"import array\na = {made_of}; t = torch.frombuffer(a, dtype=torch.float32)\ndef f(x):\n"
        for own in ("    t.add_(1)\n    return x * a[0]", "    a[0] += 1\n    return x * t"):
            with pytest.raises(fg.MutationError, match="which are one memory"):
                run(source + own, "call()", lambda f: fg.jit(f, backend="aten"))
    steps = "call(); a[0] = 5; call(); t[1] = 7; call(); b = 0"
    check(read=(made + "def f(x): return x * t + float(a[0])", steps), apart=(made + "def f(x): return x * t", steps))


def test_what_stands_for_a_module_that_is_imported():
    source = "def f(x):\n    import funcgrad_test_k as k\n    return x * k.by"
    put = "sys.modules['funcgrad_test_k'] = types.SimpleNamespace(by={})"
    again = "sys.modules['funcgrad_test_k'].by = 7.0"
    check(namespace=(source, f"{put.format(3.0)}; call(); {put.format(5.0)}; call(); {again}; call()"))


def test_what_classes_alone_are_asked_for_is_not_guarded_of_functions():
    source = "class A: pass\nclass B: o = A()\no = A()\ndef g(x): return x\ndef f(x): return g(x) * len({})"
    for use in ("type(o).__name__", "type(B.o).__name__", "o.__class__.__name__", "g.__name__", "[g][0].__name__"):
        space = world(source.format(use))
        guards = fg.jit(space["f"], backend="aten").program(X).facts.state.guards
        named = {g.place.name for g in guards if g.place.key == "__name__"}
        assert named and ("g.__name__" in named) == ("g" in use), use


def test_what_a_function_counts_that_is_named_in_each_call_of_a_transform():
    for made in (lambda: {"n": 0}, lambda: [0]):
        held = made()
        key = "n" if isinstance(held, dict) else 0

        def counted(held):
            def f(x):
                held[key] += 1
                return x * x

            return f

        f, other = counted(held), counted(made())
        for n in (1, 2, 3):
            _, pullback = fg.vjp_compiled(f, torch.ones(3))
            pullback(torch.ones(3))
            fg.vjp_compiled(other, torch.ones(3))
            assert held[key] == n


LACKS = {
    "except": "try: {o}.bar\n    except AttributeError: return x * 3\n    return x * 2",
    "all": "try: {o}.bar\n    except: return x * 3\n    return x * 2",
    "several": "try: {o}.bar\n    except (KeyError, AttributeError): return x * 3\n    return x * 2",
    "suppress": "with contextlib.suppress(AttributeError): return x * {o}.bar\n    return x * 3",
}
LACKING = {
    "a namespace": "o = types.SimpleNamespace()",
    "a function": "def o(): pass",
    "a partial": "import functools\no = functools.partial(int)",
    "a class": "class o: pass",
    "an exception": "o = Exception()",
    "an object": "class A: pass\no = A()",
    "a module": "o = nn.Identity()",
}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_code_catches_the_lack_of_it_may_have_later(lacking):
    for how, body in LACKS.items():
        source = f"import contextlib\n{LACKING[lacking]}\ndef f(x):\n    {body.format(o='o')}"
        check(**{how: (source, "call(); o.bar = 5.0; call(); del o.bar; call()")})


def test_what_isinstance_and_signature_look_for():
    protocol = "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n    bar: float\n{}\n"
    isinstance_of = "def f(x): return x * 2 if isinstance(o, P) else x * 3"
    signature = "import inspect\ndef o(a, b): pass\ndef f(x): return x * len(inspect.signature(o).parameters)"
    signs = "import inspect; o.__signature__ = inspect.Signature([]); call()"
    check(
        **{
            name: (protocol.format(made) + isinstance_of, "call(); o.bar = 5.0; call()")
            for name, made in LACKING.items()
        },
        signature=(signature, f"call(); {signs}; del o.__signature__; call()"),
    )


def test_a_dictionary_with_tensors_for_keys_that_keeps_none_alive():
    source = "from torch.utils.weak import WeakTensorKeyDictionary\nk = torch.ones(1); d = WeakTensorKeyDictionary()\n"
    steps = "call(); d[k] = 5.0; call(); d[k] = 7.0; call(); del d[k]; call()"
    check(
        item=(source + "def f(x): return x * d[k] if k in d else x", steps),
        get=(source + "def f(x): return x * d.get(k, 3.0)", steps),
        length=(source + "def f(x): return x * len(d)", steps),
    )
