"""The kinds of Python state random programs are made of: see ``python_kinds.Kind``."""

from __future__ import annotations

from .python_kinds import Kind

OBJECTS = (
    Kind(
        "plain object",
        "box$",
        """
class Box$:
    def __init__(self):
        self.a = 1.5
        self.n = 2
box$ = Box$()
""",
        attributes=(("@", "a"), ("@", "n")),
        writes=("@.__dict__ = dict(@.__dict__, a=@.a + 1)", "vars(@)['n'] = vars(@)['a']"),
        changes=("@ = Box$()", "@ = copy.copy(@)", "@.__class__ = type('Box$b', (Box$,), {'a': 4})"),
    ),
    Kind(
        "class attribute",
        "made$",
        """
class Base$:
    a = 1.5
    names = ['p']
class Made$(Base$):
    n = 2
made$ = Made$()
""",
        attributes=(("@", "a"), ("@", "n"), ("type(@)", "n"), ("Base$", "a"), ("Made$", "a")),
        lists=("@.names", "Base$.names"),
        reads=("y = y * Made$.__mro__[1].a", "y = y * super(Made$, @).a"),
        writes=(
            "type(@).count = getattr(type(@), 'count', 0) + 1",
            "Base$.a += 1",
            "@.a += 1",
            "@.__class__ = Base$ if type(@) is Made$ else Made$",
        ),
        changes=("Base$.a = 3.5", "Made$.a = 0.5", "@.a = 5", "del Base$.a", "Made$.n = 7", "@.__class__ = Base$"),
    ),
    Kind(
        "slots",
        "slots$",
        """
class Slots$:
    __slots__ = ('a', 'n', 'free')
    def __init__(self):
        self.a, self.n = 1.5, 2
slots$ = Slots$()
""",
        slots=(("@", "a"), ("@", "n")),
        reads=("y = y * (2 if hasattr(@, 'free') else 3)", "y = y * sum(getattr(@, s, 1) for s in @.__slots__)"),
        writes=("@.free = 1", "@.free = y.detach()", "if not hasattr(@, 'free'):\n    @.free = 3\ny = y * @.free"),
        changes=("@.free = 2.5", "@ = Slots$()"),
    ),
    Kind(
        "dataclass",
        "config$",
        """
@dataclasses.dataclass
class Inner$:
    rate: float = 0.5
    steps: list = dataclasses.field(default_factory=lambda: [1.5, 2])
@dataclasses.dataclass
class Config$:
    a: float = 1.5
    n: int = 2
    inner: Inner$ = dataclasses.field(default_factory=Inner$)
config$ = Config$()
""",
        attributes=(("@", "a"), ("@", "n"), ("@.inner", "rate")),
        lists=("@.inner.steps",),
        reads=(
            "y = y * dataclasses.asdict(@)['inner']['rate']",
            "y = y * dataclasses.replace(@, n=3).a",
            "y = y * len(dataclasses.fields(@))",
            "match @:\n    case Config$(a=v, n=2):\n        y = y * v\n    case _:\n        y = y.sin()",
            "y = y * (2 if @ == Config$() else 3)",
        ),
        changes=("@ = dataclasses.replace(@, a=2.5)", "@.inner = Inner$(7.0)", "@.inner = Inner$()"),
    ),
    Kind(
        "frozen dataclass",
        "frozen$",
        """
@dataclasses.dataclass(frozen=True)
class Frozen$:
    a: float = 1.5
    mode: str = 'relu'
frozen$ = Frozen$()
""",
        numbers=("@.a",),
        reads=(
            "y = getattr(torch, @.mode)(y)",
            "y = y * {'relu': 2, 'sin': 3}[@.mode]",
            "y = y * (hash(@) == hash(Frozen$()))",
        ),
        changes=(
            "@ = Frozen$(2.5)",
            "@ = dataclasses.replace(@, mode='sin')",
            "object.__setattr__(@, 'a', 4)",
            "@ = Frozen$()",
        ),
    ),
    Kind(
        "namespace",
        "space$",
        "space$ = types.SimpleNamespace(a=1.5, n=2, sub=types.SimpleNamespace(rate=3.0))",
        attributes=(("@", "a"), ("@", "n"), ("@.sub", "rate")),
        changes=(
            "@.sub = types.SimpleNamespace(rate=0.5)",
            "@ = types.SimpleNamespace(a=1.5, n=2, sub=@.sub)",
            "@.sub.rate = 8",
        ),
    ),
    Kind(
        "module object",
        "const$",
        """
import sys as _sys
const$ = types.ModuleType('const$')
const$.a = 1.5
const$.n = 2
const$.names = ['relu']
exec('def helper(t): return t * a', const$.__dict__)
""",
        attributes=(("@", "a"), ("@", "n")),
        reads=("y = @.helper(y)", "y = y * len(@.names)"),
        writes=("@.calls = getattr(@, 'calls', 0) + 1",),
        changes=("@.helper = scaled", "@.names.append('sin')", "@.a = 3.5"),
    ),
    Kind(
        "function attribute",
        "tool$",
        """
def tool$(t): return t * tool$.a
tool$.a = 1.5
tool$.count = 0
""",
        attributes=(("@", "a"), ("@", "count")),
        reads=("y = @(y)",),
        writes=("@.count += 1",),
        changes=("@.a = 4",),
    ),
    Kind(
        "property",
        "prop$",
        """
class Prop$:
    def __init__(self): self._a, self.n = 1.5, 0
    @property
    def a(self): return self._a * 2
    @a.setter
    def a(self, v): self._a = v
    @property
    def counted(self):
        self.n += 1
        return self.n
    @functools.cached_property
    def cached(self): return self._a + 3
prop$ = Prop$()
""",
        numbers=("@.a", "@.cached", "@.counted", "getattr(@, 'a')"),
        writes=("@.a = 3", "@.a += 1", "vars(@).pop('cached', None)", "@.cached = 2"),
        changes=(
            "@._a = 2.5",
            "@.a = 4",
            "Prop$.a = property(lambda self: 9)",
            "@.__dict__.pop('cached', None)",
            "@.n = 5",
        ),
    ),
    Kind(
        "descriptor",
        "held$",
        """
class Field$:
    def __set_name__(self, owner, name): self.name = '_' + name
    def __get__(self, o, owner=None): return self if o is None else o.__dict__.get(self.name, 1.5)
    def __set__(self, o, v): o.__dict__[self.name] = v
class Held$:
    a = Field$()
    n = Field$()
held$ = Held$()
""",
        slots=(("@", "a"), ("@", "n")),
        changes=("@.a = 2.5", "@.__dict__['_a'] = 3.5", "Held$.a = 5"),
    ),
    Kind(
        "fallback attribute",
        "any$",
        """
class Any$:
    def __init__(self): self.data = {'a': 1.5, 'n': 2}
    def __getattr__(self, name):
        try: return self.__dict__['data'][name]
        except KeyError: raise AttributeError(name) from None
any$ = Any$()
""",
        numbers=("@.a", "@.n", "getattr(@, 'zz', 3)", "float(hasattr(@, 'zz'))"),
        writes=("@.data['a'] += 1", "@.data['zz'] = 2", "@.a = 4"),
        changes=("@.data['a'] = 2.5", "@.data = {'a': 3, 'n': 4}", "@.a = 5", "@.data['zz'] = 8", "del @.data['n']"),
    ),
    Kind(
        "dunder methods",
        "items$",
        """
class Items$:
    def __init__(self): self.items, self.k = [1.5, 2.0], 0
    def __getitem__(self, i): return self.items[i]
    def __setitem__(self, i, v): self.items[i] = v
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __contains__(self, v): return v in self.items
    def __call__(self, t): return t * self.items[0]
    def __bool__(self): return self.k == 0
    def __float__(self): return float(self.k + 1)
    def __mul__(self, t): return t * (self.k + 2)
    def __enter__(self):
        self.k += 1
        return self
    def __exit__(self, *_): self.k -= 1
    def __eq__(self, other): return self.k == other
    def __hash__(self): return 7
items$ = Items$()
""",
        numbers=("@[0]", "len(@)", "float(@)", "sum(@)", "(2.0 in @)", "bool(@)", "[*@][-1]", "(@ == 0)"),
        reads=(
            "y = @(y)",
            "y = @ * y",
            "with @ as it:\n    y = y * it.k",
            "for v in @:\n    y = y + v",
            "y = y * (2 if @ else 3)",
        ),
        writes=("@[0] = 3", "@.k += 1", "@.items.append(2)"),
        changes=(
            "@.items[0] = 2.5",
            "@.k = 3",
            "@.items.append(4)",
            "Items$.__call__ = lambda self, t: t * 9",
            "@.items = [4.0]",
            "@[0] = 8",
            "Items$.__len__ = lambda self: 5",
        ),
    ),
    Kind(
        "methods",
        "low$",
        """
class Top$:
    rate = 1.5
    def gain(self): return self.rate
    @classmethod
    def of_class(cls): return cls.rate * 2
    @staticmethod
    def fixed(v=2.0): return v
class Low$(Top$):
    def __init__(self): self.count = 0
    def gain(self): return super().gain() + 1
    def bump(self, by=1):
        self.count += by
        return self.count
low$ = Low$()
""",
        attributes=(("@", "rate"), ("@", "count")),
        numbers=("@.gain()", "@.of_class()", "@.fixed()", "Low$.gain(@)", "@.bump()", "Top$.gain(@)"),
        reads=("g = @.gain\ny = y * g()", "y = y * functools.partial(Low$.gain, @)()"),
        writes=("@.bump()", "@.bump(by=2)", "@.gain = lambda: 3.0"),
        changes=(
            "Top$.rate = 2.5",
            "Top$.gain = lambda self: 4.0",
            "@.gain = lambda: 5.0",
            "Low$.gain = Top$.gain",
            "Low$.rate = 3.5",
            "Top$.fixed = staticmethod(lambda v=3.0: v)",
            "Top$.fixed.__defaults__ = (6.0,)",
            "@.count = 9",
        ),
    ),
    Kind(
        "enum",
        "mode$",
        """
class Mode$(enum.Enum):
    SIN = 1
    COS = 2
class Level$(enum.IntEnum):
    LOW = 1
    HIGH = 3
mode$ = types.SimpleNamespace(m=Mode$.SIN, level=Level$.LOW)
""",
        numbers=("@.level", "@.m.value", "@.level * 2"),
        reads=(
            "y = y.sin() if @.m is Mode$.SIN else y.cos()",
            "y = y * {Mode$.SIN: 2, Mode$.COS: 3}[@.m]",
            "y = y * len(@.m.name)",
            "match @.m:\n    case Mode$.SIN:\n        y = y.sin()\n    case Mode$.COS:\n        y = y.cos()",
            "y = y * len(list(Mode$))",
            "y = getattr(torch, @.m.name.lower())(y)",
        ),
        writes=("@.m = Mode$.COS", "@.m = Mode$.COS if @.m is Mode$.SIN else Mode$.SIN", "@.level = Level$.HIGH"),
        changes=("@.m = Mode$.COS", "@.m = Mode$.SIN", "@.level = Level$.HIGH", "@.level = 1"),
    ),
    Kind(
        "attrs class",
        "defined$",
        """
@attrs.define
class Defined$:
    a: float = 1.5
    n: int = 2
@attrs.frozen
class Fixed$:
    a: float = 2.5
defined$ = Defined$()
fixed$ = Fixed$()
""",
        slots=(("@", "a"), ("@", "n")),
        numbers=("attrs.asdict(@)['a']", "fixed$.a", "attrs.evolve(@, n=3).a"),
        changes=("@ = Defined$(7)", "fixed$ = Fixed$(4)", "@ = attrs.evolve(@, a=0.5)"),
    ),
    Kind(
        "object chain",
        "chain$",
        """
class Node$:
    def __init__(self, v, child=None): self.a, self.child = v, child
chain$ = Node$(1.5, Node$(2.0, Node$(3)))
""",
        attributes=(("@", "a"), ("@.child", "a"), ("@.child.child", "a")),
        reads=(
            "node = @\nwhile node is not None:\n    y = y * node.a\n    node = node.child",
            "y = y * operator.attrgetter('child.a')(@)",
            "y = y * getattr(getattr(@, 'child'), 'a', 2)",
            "y = y * (2 if @.child is @.child.child else 3)",
        ),
        writes=(
            "@.child = Node$(7)",
            "@.child.child = None",
            "@.child.parent = @",
            "@.child, @.spare = Node$(4), @.child",
        ),
        changes=(
            "@.child = Node$(4.0)",
            "@.child.child = None",
            "@.child = @.child.child",
            "@.child.child = Node$(0.5)",
            "@.child = None",
            "@.child.a = 6",
        ),
    ),
    Kind(
        "reading through metaclass",
        "ofmeta$",
        """
class Meta$(type):
    rate = 1.5
    @property
    def twice(cls): return cls.rate * 2
class OfMeta$(metaclass=Meta$):
    n = 2
ofmeta$ = OfMeta$
""",
        attributes=(("@", "n"),),
        numbers=("@.rate", "@.twice", "type(@).rate"),
        changes=("Meta$.rate = 2.5", "@.rate = 3.5", "@.n = 5", "Meta$.twice = 7"),
    ),
    Kind(
        "overridden attribute access",
        "logged$",
        """
class Logged$:
    def __init__(self): self.a, self.n = 1.5, 0
    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value * 2 if name == 'a' else value
    def __setattr__(self, name, v): object.__setattr__(self, name, v)
logged$ = Logged$()
""",
        attributes=(("@", "a"), ("@", "n")),
        weight=0.5,
    ),
    Kind(
        "registry of classes",
        "registry$",
        """
registry$ = {}
class Plugin$:
    gain = 1.5
    def __init_subclass__(cls, key, **rest):
        super().__init_subclass__(**rest)
        registry$[key] = cls
    def run(self, t): return t * self.gain
class Up$(Plugin$, key='up'): gain = 2.5
class Down$(Plugin$, key='down'):
    def run(self, t): return super().run(t) - 1
""",
        attributes=(("@['up']", "gain"), ("Plugin$", "gain")),
        numbers=("len(@)", "('new' in @)", "@['down']().gain", "sum(c.gain for c in @.values())"),
        reads=(
            "y = @['up']().run(y)",
            "for cls in @.values():\n    y = cls().run(y)",
            "y = y * len(Plugin$.__subclasses__())",
            "y = y * (2 if issubclass(@['up'], Plugin$) else 3)",
        ),
        writes=(
            "@['new'] = Up$",
            "@['up'], @['down'] = @['down'], @['up']",
            "class Late(Plugin$, key='late'): gain = 3",
        ),
        changes=(
            "@['up'] = Down$",
            "Up$.run = lambda self, t: t * 4",
            "class Third$(Plugin$, key='third'): gain = 2",
            "Plugin$.gain = 0.5",
            "del @['down']",
            "del Up$.gain",
        ),
    ),
    Kind(
        "mixins",
        "mixed$",
        """
class Root$:
    scale = 2
    def out(self, t): return t * self.scale
class Left$(Root$):
    def out(self, t): return super().out(t) + 1
class Right$(Root$):
    scale = 1.5
    def out(self, t): return super().out(t) * 2
class Mixed$(Left$, Right$):
    def __init__(self): self.on = True
mixed$ = Mixed$()
""",
        attributes=(("@", "scale"), ("@", "on"), ("Right$", "scale")),
        reads=(
            "y = @.out(y)",
            "y = Left$.out(@, y)",
            "y = super(Left$, @).out(y)",
            "y = y * (2 if isinstance(@, Right$) else 3)",
            "y = y * len(type(@).__mro__)",
        ),
        writes=("@.on = not @.on", "@.out = lambda t: t", "type(@).seen = True"),
        changes=(
            "Right$.out = lambda self, t: t * 5",
            "Mixed$.__bases__ = (Right$, Left$)",
            "del Right$.scale",
            "del Left$.out",
            "@.scale = 3",
            "Mixed$.out = lambda self, t: t",
            "@.__class__ = Left$",
        ),
    ),
    Kind(
        "single dispatch",
        "act$",
        """
class Cat$: a = 2
class Dog$(Cat$): a = 3
@functools.singledispatch
def act$(o, t): return t
@act$.register
def _(o: Cat$, t): return t * o.a
pets$ = [Cat$(), Dog$()]
""",
        attributes=(("pets$[0]", "a"),),
        reads=("y = @(pets$[0], y)", "for pet in pets$:\n    y = @(pet, y)", "y = @(3, y)"),
        changes=("pets$[0] = Dog$()", "Cat$.a = 4", "@.register(Dog$)(lambda o, t: t + 7)", "pets$.append(Cat$())"),
        weight=0.6,
    ),
    Kind(
        "flags in bits",
        "flags$",
        """
class Flag$(enum.Flag):
    READ = 1
    WRITE = 2
    EXEC = 4
flags$ = types.SimpleNamespace(on=Flag$.READ | Flag$.WRITE, version=(1, 2), text='1.5', raw=b'ab', none=None)
""",
        numbers=(
            "(Flag$.READ in @.on)",
            "@.on.value",
            "float(@.text)",
            "@.version[1]",
            "len(@.raw)",
            "(@.version >= (1, 2))",
            "len(@.text.split('.'))",
            "int(@.text.replace('.', ''))",
            "(@.none or 2)",
            "(@.none is None)",
        ),
        reads=(
            "y = y.sin() if @.on & Flag$.WRITE else y.cos()",
            "y = y * (2 if @.text.startswith('1') else 3)",
            "y = y * TABLE[@.text]",
            "major, minor = @.version\ny = y * major + minor",
            "y = y * len('%s-%s' % (@.text, @.none))",
            "y = y * len(f'{@.text!r:>5}{@.version}')",
        ),
        writes=(
            "@.on |= Flag$.EXEC",
            "@.on ^= Flag$.READ",
            "@.text += '0'",
            "@.version = (*@.version, 3)",
            "@.none = @.none or 3",
        ),
        changes=(
            "@.on = Flag$.EXEC",
            "@.text = '7'",
            "@.version = (1, 3)",
            "@.raw = b'abc'",
            "@.none = 4",
            "@.on |= Flag$.EXEC",
            "@.none = False",
        ),
    ),
)

CONTAINERS = (
    Kind(
        "dict",
        "table$",
        "table$ = {'k': 1.5, 'j': 2}",
        dicts=("@",),
        changes=("@ = {'k': 3.5, 'j': 2}", "@ = dict(@)"),
    ),
    Kind(
        "nested dict",
        "nested$",
        "nested$ = {'opt': {'k': 1.5, 'j': 2}, 'list': [1.5, 2], 'deep': {'x': {'k': 3, 'j': 1}}}",
        dicts=("@['opt']", "@['deep']['x']", "@.get('opt')"),
        lists=("@['list']",),
        numbers=("@['deep']['x']['k']", "len(@)", "len(@['opt'])"),
        writes=(
            "@['new'] = {'k': 1}",
            "@['opt'] = {'k': 2, 'j': 3}",
            "@.setdefault('stats', {}).setdefault('n', 0)\n@['stats']['n'] += 1",
        ),
        changes=(
            "@['opt'] = {'k': 2.5, 'j': 1}",
            "@['deep'] = {'x': @['opt']}",
            "@['list'] = [3]",
            "@['opt'] = @['deep']['x']",
        ),
    ),
    Kind(
        "list",
        "items$",
        "items$ = [1.5, 2]",
        lists=("@",),
        changes=("@ = [3.5, 1]", "@ = list(@)"),
    ),
    Kind(
        "list of objects",
        "things$",
        """
class Thing$:
    def __init__(self, a): self.a = a
things$ = [Thing$(1.5), Thing$(2.0)]
""",
        attributes=(("@[0]", "a"), ("@[-1]", "a")),
        numbers=("len(@)", "sum(t.a for t in @)", "max(t.a for t in @)", "[t.a for t in @][0]"),
        writes=(
            "@.append(Thing$(3))",
            "@[0] = Thing$(4)",
            "@.pop()",
            "@.append(@[0])",
            "@[0], @[1] = @[1], @[0]",
            "for t in @:\n    t.a += 1",
        ),
        changes=("@.append(Thing$(0.5))", "@[0] = Thing$(2.5)", "@.reverse()", "@[1] = @[0]", "@.pop()"),
    ),
    Kind(
        "tuple",
        "pair$",
        "pair$ = types.SimpleNamespace(t=(1.5, 2), named=Result(1.5, 2), deep=((1.5, 'a'), [2, 3]))",
        numbers=(
            "@.t[0]",
            "len(@.t)",
            "sum(@.t)",
            "@.named.y",
            "@.deep[0][0]",
            "(2 in @.t)",
            "sum(@.named)",
            "@.deep[1][0]",
        ),
        reads=(
            "a, b = @.t\ny = y * a + b",
            "(a, _), rest = @.deep\ny = y * a + len(rest)",
            "y = y * @.named._asdict()['n']",
        ),
        writes=("@.t = (3, 4)", "@.t += (1,)", "@.named = @.named._replace(n=5)", "@.deep[1].append(1)"),
        changes=(
            "@.t = (2.5, 1)",
            "@.t = (1.5, 2)",
            "@.t = (1.5,)",
            "@.named = Result(4, 4)",
            "@.deep[1][0] = 7",
            "@.named = @.named._replace(y=8)",
        ),
    ),
    Kind(
        "set",
        "flags$",
        "flags$ = {'a', 'b'}",
        sets=("@",),
        changes=("@ = {'a'}", "@ = set(@)", "@ = frozenset(@)"),
    ),
    Kind(
        "logs of several names",
        "own$",
        """
def note$(log, value):
    log.append(value)
def note_count$(log, value):
    log.append(value)
    return len(log)
own$ = types.SimpleNamespace(log=[1.5], further=types.SimpleNamespace(), by=collections.defaultdict(list))
own$.also = own$.further.log = own$.by['k'] = own$.log
own$.again = own$.by
rows$ = [own$.log, own$.by['other']]
""",
        numbers=(
            "len(@.also)",
            "len(@.further.log)",
            "len(@.again['k'])",
            "len(rows$[0])",
            "len(rows$[1])",
            "len(@.log)",
        ),
        reads=(
            "y = y + sum(@.also)",
            "y = y + sum(rows$[0][-2:])",
            "y = y + float(@.further.log[-1])",
            "y = y * (2 if @.also else 3)",
            "for v in @.again['k'][-2:]:\n    y = y + v",
            "y = y + sum(1 for _ in @.further.log)",
        ),
        writes=(
            "@.log.append(y.detach().sum())",
            "@.further.log.append(y.detach().sum())",
            "@.by['k'].append(1.5)",
            "@.by['other'].append(y.detach().sum())",
            "rows$[0].append(y.detach()[0])",
            "note$(@.log, y.detach().sum())",
            "note$(rows$[1], 2.5)",
            "y = y * note_count$(@.also, 1.5)",
            "@.also += [y.detach().sum()]",
            "@.log.insert(0, y.detach().sum())",
            "@.also = list(@.log)",
            "rows$[1] = @.also",
        ),
        changes=(
            "@.log.append(0.5)",
            "@.also = list(@.log)",
            "@.also = @.log",
            "@.log.clear()",
            "@.by['k'] = rows$[1]",
            "rows$.reverse()",
            "@.further.log = []",
        ),
        keeps_history=True,
        weight=0.4,
    ),
    Kind(
        "deques that grow",
        "ends$",
        """
ends$ = types.SimpleNamespace(
    free=collections.deque(), full=collections.deque([torch.tensor(7.0)], maxlen=3), few=collections.deque(maxlen=2))
ends$.also = ends$.full
""",
        numbers=("len(@.free)", "len(@.also)", "len(@.few)"),
        reads=("y = y + sum(@.full)", "y = y + (@.few[0] if @.few else 1)", "y = y * (2 if @.free else 3)"),
        writes=(
            "@.free.append(y.detach().sum())",
            "@.free.appendleft(y.detach().sum())",
            "@.full.append(y.detach().sum())",
            "@.full.appendleft(y.detach().sum())",
            "@.few.appendleft(0.5)",
            "@.few.append(y.detach()[0])",
            "@.also.extend([y.detach()[0], y.detach()[1]])",
            "@.free.extendleft([y.detach()[0], 1.5])",
            "@.full.appendleft(0.5); @.full.append(y.detach().sum())",
            "if len(@.few) < 2:\n    @.few.insert(0, y.detach()[1])",
        ),
        changes=(
            "@.free.clear()",
            "@.full.append(torch.tensor(2.0))",
            "@.few.rotate(1)",
            "@.also = collections.deque(@.full)",
        ),
        keeps_history=True,
        weight=0.4,
    ),
    Kind(
        "collections",
        "col$",
        """
col$ = types.SimpleNamespace(
    q=collections.deque([1.5, 2], maxlen=4), c=collections.Counter('aab'), d=collections.defaultdict(lambda: 2.0, k=1.5, j=2),
    o=collections.OrderedDict(k=1.5, j=2), m=collections.ChainMap({'k': 1.5}, {'j': 2}))
""",
        dicts=("@.o", "@.d"),
        lists=("@.q",),
        numbers=("@.c['a']", "@.d['fresh']", "@.m['j']", "len(@.q)", "@.c['zz']", "@.q[0]", "@.c.total()"),
        writes=(
            "@.q.append(3)",
            "@.q.appendleft(4)",
            "@.c['a'] += 1",
            "@.c.update('ab')",
            "@.d['n'] += 1",
            "@.o.move_to_end('k')",
            "@.m['j'] = 7",
            "@.q.append(y.detach())",
            "@.q.rotate(1)",
            "@.q.popleft()",
        ),
        changes=(
            "@.q.append(2.5)",
            "@.c['a'] = 4",
            "@.d['k'] = 3",
            "@.o.move_to_end('k')",
            "@.m.maps[1]['j'] = 5",
            "@.m.maps[0]['j'] = 6",
            "@.q.rotate(1)",
            "@.d.default_factory = lambda: 9.0",
        ),
    ),
    Kind(
        "own container classes",
        "own$",
        """
class Dict$(dict):
    def __missing__(self, key): return 2.5
    def __getattr__(self, name): return self[name]
class List$(list):
    scale = 2
own$ = types.SimpleNamespace(d=Dict$(k=1.5, j=2), l=List$([1.5, 2]))
""",
        dicts=("@.d",),
        lists=("@.l",),
        numbers=("@.d['zz']", "@.d.k", "@.l.scale", "@.d.other"),
        writes=("@.l.note = 1", "@.d['zz'] = 3"),
        changes=("List$.scale = 3", "@.d['zz'] = 4", "@.l.scale = 5", "@.d['other'] = 6"),
    ),
    Kind(
        "read-only view",
        "proxy$",
        """
real$ = {'k': 1.5, 'j': 2}
proxy$ = types.MappingProxyType(real$)
""",
        numbers=("@['k']", "len(@)", "sum(@.values())", "('zz' in @)"),
        changes=("real$['k'] = 2.5", "real$['zz'] = 1", "real$.pop('j', None)"),
        weight=0.5,
    ),
    Kind(
        "list of modules in dict",
        "zoo$",
        """
zoo$ = {'ops': [torch.sin, torch.cos], 'pick': 0, 'by': {'sin': torch.sin, 'mine': lambda t: t * 2}}
""",
        numbers=("@['pick']", "len(@['ops'])", "len(@['by'])"),
        reads=(
            "y = @['ops'][@['pick']](y)",
            "y = @['by']['mine'](y)",
            "for op in @['ops']:\n    y = op(y)",
            "y = @['by'].get('zz', torch.tanh)(y)",
            "for name, op in @['by'].items():\n    y = op(y) + len(name)",
        ),
        writes=("@['pick'] = 1 - @['pick']", "@['ops'].append(torch.tanh)", "@['by']['new'] = scaled"),
        changes=(
            "@['pick'] = 1",
            "@['ops'][0] = torch.tanh",
            "@['by']['mine'] = lambda t: t * 3",
            "@['by']['zz'] = torch.sigmoid",
            "@['ops'].reverse()",
            "@['by']['mine'] = scaled",
        ),
    ),
)

SCOPES = (
    Kind(
        "global",
        "GLOBAL$",
        """
GLOBAL$ = 1.5
COUNT$ = 0
NAME$ = 'sin'
""",
        numbers=("GLOBAL$", "globals()['GLOBAL$']", "COUNT$", "len(NAME$)"),
        reads=(
            "y = getattr(torch, NAME$)(y)",
            "y = y * TABLE.get(str(GLOBAL$), 2)",
            "y = y * (2 if 'LATER$' in globals() else 3)",
            "try:\n    v = LATER$\nexcept NameError:\n    v = 2\ny = y * v",
        ),
        writes=(
            "global COUNT$\nCOUNT$ += 1",
            "global GLOBAL$\nGLOBAL$ = GLOBAL$ + 1",
            "globals()['COUNT$'] = 5",
            "global LATER$\nLATER$ = 4",
            "global LAST$\nLAST$ = y.detach()",
            "global COUNT$\nCOUNT$ += 1\ny = y * COUNT$",
            "global COUNT$\nCOUNT$ += 2\nif COUNT$ > 3:\n    y = y.sin()",
            "global COUNT$\nCOUNT$ = 0\nCOUNT$ += 1",
        ),
        changes=(
            "GLOBAL$ = 2.5",
            "COUNT$ = 3",
            "NAME$ = 'cos'",
            "LATER$ = 5.0",
            "del GLOBAL$",
            "GLOBAL$ = 1",
            "GLOBAL$ = True",
            "GLOBAL$ = 1.5",
        ),
        weight=2.0,
    ),
    Kind(
        "closure",
        "closed$",
        """
def make$():
    a, n, log, cell = 1.5, 0, [], {'k': 2}
    def get(): return a
    def put(v):
        nonlocal a
        a = v
    def bump():
        nonlocal n
        n += 1
        return n
    def note(v): log.append(v)
    def scale(t): return t * a + len(log)
    def key(): return cell['k']
    return types.SimpleNamespace(get=get, put=put, bump=bump, note=note, scale=scale, log=log, key=key, cell=cell)
closed$ = make$()
""",
        numbers=("@.get()", "@.key()", "@.bump()", "@.get.__closure__[0].cell_contents"),
        reads=("y = @.scale(y)",),
        writes=("@.put(3)", "@.bump()", "@.note(1)", "@.note(y.detach())", "@.put(@.get() + 1)", "@.cell['k'] += 1"),
        changes=(
            "@.put(2.5)",
            "@.bump()",
            "@.note(3)",
            "@.cell['k'] = 7",
            "@.put(1.5)",
            "@.get.__closure__[0].cell_contents = 8",
        ),
        weight=1.5,
    ),
    Kind(
        "defaults",
        "with$",
        """
def with$(t, by=1.5, *, add=2, table={'k': 1.5, 'j': 2}, log=[]): return t * by + add + len(log) * table['k']
def counting$(t, log=[]):
    log.append(1)
    return t
def counted$(t, log=[]):
    log.append(1)
    return t * len(log)
""",
        dicts=("@.__kwdefaults__['table']",),
        numbers=("@.__defaults__[0]",),
        reads=("y = @(y)", "y = @(y, add=3)"),
        writes=("y = counting$(y)", "y = counted$(y)", "@.__kwdefaults__['log'].append(2)"),
        changes=(
            "@.__defaults__ = (2.5,)",
            "@.__kwdefaults__['add'] = 4",
            "@.__kwdefaults__['log'].append(1)",
            "@.__defaults__ = (1.5,)",
            "@ = scaled",
            "@.__code__ = scaled.__code__",
            "counted$.__defaults__[0].clear()",
        ),
    ),
    Kind(
        "partial",
        "part$",
        """
part$ = types.SimpleNamespace(p=functools.partial(scaled, by=1.5), q=functools.partial(keyword, 2, j=3))
""",
        numbers=("@.q()", "@.p.keywords['by']", "@.q.args[0]"),
        reads=("y = @.p(y)", "y = functools.partial(@.p, by=3)(y)", "y = y * @.q(zz=1)"),
        writes=("@.p = functools.partial(scaled, by=4)", "@.p.keywords['by'] += 1"),
        changes=(
            "@.p = functools.partial(scaled, by=2.5)",
            "@.p.keywords['by'] = 3.5",
            "@.p = functools.partial(scaled, by=1.5)",
            "@.q = lambda **_: 4",
            "@.p.note = 1",
            "@.p = scaled",
        ),
    ),
    Kind(
        "function",
        "tools$",
        """
def tool$(t): return t.sin()
def other$(t): return t.cos()
class Tools$:
    use = staticmethod(tool$)
tools$ = types.SimpleNamespace(use=tool$)
""",
        reads=(
            "y = @.use(y)",
            "y = tool$(y)",
            "y = Tools$.use(y)",
            "y = y * (2 if @.use is tool$ else 3)",
            "y = list(map(@.use, [y]))[0]",
            "y = y * (@.use.__name__ == tool$.__name__)",
        ),
        writes=("@.use = other$", "@.use = lambda t: t * 2", "@.use, @.old = other$, @.use"),
        changes=(
            "tool$ = other$",
            "@.use = other$",
            "Tools$.use = staticmethod(other$)",
            "tool$.__code__ = other$.__code__",
            "@.use = lambda t: t * 3",
            "@.use = torch.tanh",
            "tool$.__name__ = 'renamed'",
            "@.use = tool$",
        ),
    ),
    Kind(
        "environment",
        "env$",
        """
os.environ['FUZZ_$'] = '1.5'
os.environ.pop('FUZZ_$_LATER', None)
env$ = types.SimpleNamespace(name='FUZZ_$')
""",
        numbers=(
            "float(os.environ['FUZZ_$'])",
            "float(os.environ.get('FUZZ_$', 2))",
            "float(os.getenv('FUZZ_$_LATER', '3'))",
            "float(os.environ[@.name])",
            "('FUZZ_$_LATER' in os.environ)",
            "len(os.environ.get('FUZZ_$', ''))",
        ),
        writes=(
            "os.environ['FUZZ_$'] = '3'",
            "os.environ['FUZZ_$_LATER'] = '1'",
            "os.environ.pop('FUZZ_$_LATER', None)",
        ),
        changes=(
            "os.environ['FUZZ_$'] = '2.5'",
            "os.environ['FUZZ_$_LATER'] = '4'",
            "os.environ.pop('FUZZ_$', None)",
            "os.putenv('FUZZ_$', '6')",
            "@.name = 'FUZZ_$_LATER'",
            "os.environ['FUZZ_$'] = '1.5'",
        ),
    ),
    Kind(
        "context variable",
        "var$",
        """
VAR$ = contextvars.ContextVar('VAR$', default=1.5)
var$ = types.SimpleNamespace(v=VAR$)
""",
        numbers=("VAR$.get()", "@.v.get()", "VAR$.get(2)"),
        writes=("VAR$.set(3)", "token = VAR$.set(5)\nVAR$.reset(token)"),
        changes=("VAR$.set(2.5)", "VAR$.set(1.5)", "@.v = contextvars.ContextVar('other', default=4)"),
        weight=0.7,
    ),
    Kind(
        "lru_cache",
        "cache$",
        """
RATE$ = 1.5
@functools.lru_cache
def rate$(k=1): return RATE$ * k
@functools.cache
def table$(): return [1.5, 2]
@functools.cache
def kept$(): return torch.zeros(3)
cache$ = types.SimpleNamespace(f=rate$)
""",
        numbers=("rate$()", "@.f(2)", "rate$.cache_info().hits", "table$()[0]"),
        writes=("rate$.cache_clear()", "table$().append(1)", "kept$().add_(x.detach())\ny = y + kept$()"),
        changes=(
            "rate$.cache_clear()",
            "RATE$ = 2.5\nrate$.cache_clear()",
            "RATE$ = 3.5",
            "@.f = lambda k=1: 7",
            "table$()[0] = 5",
        ),
        weight=0.6,
    ),
    Kind(
        "imported name",
        "import_$",
        """
import_$ = types.ModuleType('fuzz_import_$')
import_$.a = 1.5
import_$.tool = torch.sin
sys.modules['fuzz_import_$'] = import_$
from fuzz_import_$ import a as imported_$
""",
        attributes=(("@", "a"),),
        numbers=("imported_$", "sys.modules['fuzz_import_$'].a"),
        reads=(
            "import fuzz_import_$ as m\ny = y * m.a",
            "from fuzz_import_$ import tool\ny = tool(y)",
            "from fuzz_import_$ import a\ny = y * a",
        ),
        changes=("@.a = 2.5", "@.tool = torch.cos", "imported_$ = 7", "@.__dict__.pop('a', None)"),
        weight=0.8,
    ),
    Kind(
        "state of torch",
        "torch",
        "",
        reads=(
            "y = y + torch.ones(3, dtype=torch.get_default_dtype())",
            "y = y * (2 if torch.is_grad_enabled() else 3)",
            "y = y * (2 if torch.get_default_dtype() == torch.float32 else 3)",
            "y = y + torch.tensor(1.5)",
            "y = y * (2 if torch.are_deterministic_algorithms_enabled() else 3)",
            "y = y * torch.tensor([1.0, 2.0, 3.0]).to(y.dtype)",
            "y = y * (2 if torch.is_inference_mode_enabled() else 3)",
        ),
        changes=("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
        weight=0.6,
    ),
    Kind(
        "decorator with state",
        "counted$",
        """
def counting$(g):
    @functools.wraps(g)
    def run(*args):
        run.calls += 1
        run.shapes.append(tuple(args[0].shape))
        return g(*args) * (run.gain if run.on else 1)
    run.calls, run.shapes, run.gain, run.on = 0, [], 1.5, True
    return run
@counting$
def counted$(t): return t.sin()
""",
        attributes=(("@", "gain"), ("@", "on")),
        numbers=("@.calls", "len(@.shapes)", "@.gain"),
        reads=("y = @.__wrapped__(y)",),
        writes=("y = @(y)", "@.calls = 0", "@.shapes.clear()"),
        changes=("@.calls = 7", "@.on = False", "@.gain = 2.5", "@ = @.__wrapped__", "@.shapes.append(1)"),
    ),
    Kind(
        "context manager",
        "scope$",
        """
STACK$ = [1.5]
@contextlib.contextmanager
def scale$(v):
    STACK$.append(v)
    try: yield STACK$[-1]
    finally: STACK$.pop()
class Timer$:
    n = 0
    def __enter__(self):
        type(self).n += 1
        return self
    def __exit__(self, kind, *_): return kind is KeyError
scope$ = types.SimpleNamespace(t=Timer$(), by=2.0)
""",
        attributes=(("@", "by"),),
        numbers=("STACK$[-1]", "Timer$.n", "len(STACK$)"),
        reads=(
            "with scale$(@.by) as v:\n    y = y * v * STACK$[-1]",
            "with scale$(2), scale$(3):\n    y = y * sum(STACK$)",
        ),
        writes=(
            "with @.t:\n    y = y * 2",
            "with @.t as t:\n    y = y * t.n",
            "with @.t:\n    raise KeyError('caught')",
            "STACK$.append(2)",
            "with contextlib.suppress(KeyError):\n    STACK$.append({}['k'])",
        ),
        changes=(
            "STACK$[0] = 2.5",
            "STACK$.append(3)",
            "@.by = 4",
            "Timer$.n = 5",
            "Timer$.__enter__ = lambda self: self",
        ),
    ),
    Kind(
        "nested functions",
        "config$",
        """
config$ = {'k': 1.5, 'j': 2, 'depth': 2}
def level$(t, n):
    if n <= 0: return t * config$['k']
    return level$(t, n - 1) + config$['j']
def deep$(t):
    def inner():
        def innermost(): return t * config$['k']
        return innermost
    return inner()()
def reads_all$(t): return t * sum(v for v in config$.values())
""",
        dicts=("@",),
        reads=(
            "y = level$(y, @['depth'])",
            "y = deep$(y)",
            "y = reads_all$(y)",
            "y = sum(level$(y, n) for n in range(@['depth']))",
            "y = [f(y) for f in (deep$, reads_all$)][1]",
            "y = functools.reduce(lambda t, f: f(t), [deep$, reads_all$], y)",
        ),
        changes=(
            "@['depth'] = 3",
            "@['k'] = 2.5",
            "deep$ = reads_all$",
            "level$ = lambda t, n: t * n",
            "@['depth'] = 1",
        ),
    ),
    Kind(
        "hidden state",
        "hidden$",
        """
local$ = threading.local()
local$.a = 1.5
class Hidden$:
    def __init__(self): self.a = 1.5
hidden$ = Hidden$()
log$ = logging.getLogger('fuzz_$')
log$.setLevel(logging.ERROR)
""",
        numbers=(
            "object.__getattribute__(@, 'a')",
            "local$.a",
            "globals()['hid' + 'den$'].a",
            "getattr(@, ''.join(['a']))",
            "eval('hidden$.a')",
            "(2 if log$.isEnabledFor(logging.INFO) else 3)",
            "len(inspect.signature(Hidden$.__init__).parameters)",
            "sys.getrecursionlimit() % 7",
        ),
        writes=(
            "local$.a = 3",
            "exec('hidden$.a = 5')",
            "setattr(local$, 'n', 1)",
            "log$.error('step')",
            "object.__setattr__(@, 'a', 4)",
        ),
        changes=("@.a = 2.5", "local$.a = 4.0", "log$.setLevel(logging.DEBUG)", "log$.setLevel(logging.ERROR)"),
        weight=0.5,
    ),
)

TORCH = (
    Kind(
        "module attribute",
        "net$",
        """
class Net$(nn.Module):
    rate = 0.5
    def __init__(self):
        super().__init__()
        self.a, self.n, self.cfg, self.log = 1.5, 0, {'k': 1.5, 'j': 2}, [1.5, 2]
        self.lin = nn.Linear(3, 3)
    def forward(self, t): return self.lin(t) * self.a
torch.manual_seed(3)
net$ = Net$()
""",
        attributes=(("@", "a"), ("@", "n"), ("@", "rate")),
        dicts=("@.cfg",),
        lists=("@.log",),
        reads=(
            "y = @(y)",
            "y = @.forward(y)",
            "y = y * (2 if @.training else 3)",
            "y = y * len(list(@.parameters()))",
            "y = y * @.lin.in_features",
            "y = y * len(repr(@))",
            "y = y * sum(p.numel() for p in @.parameters())",
            "y = y * len(@.state_dict())",
        ),
        writes=(
            "@.n += 1\ny = @(y)",
            "@.fresh = 2",
            "@.last = y.detach()",
            "@.train(not @.training)",
            "@.lin.note = 1",
        ),
        changes=(
            "@.eval()",
            "@.train()",
            "@.lin = nn.Linear(3, 3, bias=False)",
            "@.forward = lambda t: t * 2",
            "Net$.forward = lambda self, t: t * 5",
            "@.a = 2.5",
            "Net$.rate = 4",
            "@.requires_grad_(False)",
            "@.lin.weight.requires_grad_(False)",
            "@.lin.bias = None",
            "@.lin = nn.Identity()",
            "@.register_forward_hook(lambda m, a, o: o * 2)",
            "@.lin.in_features = 7",
        ),
        weight=2.0,
    ),
    Kind(
        "submodules",
        "tree$",
        """
torch.manual_seed(4)
seq$ = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(0.0))
mods$ = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
named$ = nn.ModuleDict({'up': nn.Linear(3, 3), 'act': nn.Sigmoid()})
class Tree$(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq, self.mods, self.named, self.pick = seq$, mods$, named$, 'up'
    def forward(self, t):
        for m in self.mods: t = m(t)
        return self.seq(t) + self.named[self.pick](t)
tree$ = Tree$()
""",
        numbers=("len(@.seq)", "len(@.mods)", "len(@.named)", "@.seq[2].p", "len(list(@.modules()))"),
        reads=(
            "y = @(y)",
            "y = @.seq(y)",
            "for m in @.mods:\n    y = m(y)",
            "y = @.named[@.pick](y)",
            "for name, m in @.named.items():\n    y = m(y) + len(name)",
            "y = @.seq[0](y)",
            "for m in @.children():\n    y = y + 1",
        ),
        writes=("@.pick = 'act'", "@.pick = 'act' if @.pick == 'up' else 'up'", "@.count = getattr(@, 'count', 0) + 1"),
        changes=(
            "@.seq[1] = nn.ReLU()",
            "@.mods.append(nn.Tanh())",
            "@.pick = 'act'",
            "@.named['up'] = nn.Identity()",
            "@.seq = nn.Identity()",
            "@.seq[1] = nn.Tanh()",
            "del @.mods[1]",
            "@.named['extra'] = nn.Tanh()",
            "@.seq.append(nn.Sigmoid())",
            "@.seq[0].weight = nn.Parameter(torch.eye(3))",
            "with torch.no_grad():\n    @.seq[0].weight.mul_(0.5)",
            "@.mods[1] = nn.LeakyReLU(0.3)",
            "@.mods[1].inplace = True",
            "@.mods[0] = @.seq[0]",
            "@.double()\n@.float()",
        ),
        weight=1.5,
    ),
    Kind(
        "buffers and parameters",
        "norm$",
        """
class Norm$(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(3))
        self.register_buffer('none', None)
        self.register_buffer('count', torch.zeros((), dtype=torch.long))
        self.w = nn.Parameter(torch.full((3,), 0.5))
        self.momentum = 0.1
    def forward(self, t):
        if self.training: self.mean.mul_(1 - self.momentum).add_(t.detach() * self.momentum)
        return (t - self.mean) * self.w
norm$ = Norm$()
""",
        attributes=(("@", "momentum"),),
        tensors=("@.mean", "@.w"),
        reads=("y = @(y)", "if @.none is None:\n    y = y.sin()", "y = y * len(list(@.buffers()))"),
        writes=(
            "@.count += 1",
            "@.count.add_(1)",
            "@.mean = y.detach()",
            "@.w.data.mul_(0.5)",
            "@.none = y.detach()",
            "@.mean = @.mean + 1",
        ),
        changes=(
            "@.mean = torch.ones(3)",
            "@.register_buffer('none', torch.ones(3))",
            "@.w = nn.Parameter(torch.ones(3))",
            "@.eval()",
            "del @.mean",
            "@.w.requires_grad_(False)",
            "@.mean.fill_(0.5)",
            "@.register_buffer('extra', torch.ones(3))",
            "@._buffers['mean'] = torch.ones(3)",
            "@.w = None",
            "@.count.fill_(4)",
        ),
        weight=1.5,
    ),
    Kind(
        "tensor on an object",
        "state$",
        """
class State$:
    def __init__(self): self.h, self.w = torch.zeros(3), torch.full((3,), 0.5)
state$ = State$()
""",
        tensors=("@.h", "@.w"),
        reads=("y = y + (2 if @.h is @.w else 3)",),
        writes=(
            "@.h, @.w = @.w, @.h",
            "@.h = @.w",
            "@.both = [@.h, y.detach()]",
            "@.view = @.h[:2]",
            "@.view = @.h.view(3, 1)",
        ),
        changes=("@.h = @.w", "@.w = @.h[:]", "@ = State$()", "@.h = @.w.clone()", "@.h = @.w.view(3)"),
        weight=1.5,
    ),
    Kind(
        "tensors in a container",
        "bag$",
        """
bag$ = {'h': torch.zeros(3), 'list': [torch.ones(3), torch.full((3,), 0.5)], 'pair': (torch.ones(3), 2)}
""",
        tensors=("@['h']", "@['list'][0]"),
        numbers=("len(@)", "len(@['list'])", "@['pair'][1]"),
        reads=(
            "y = sum(@['list']) + y",
            "for t in @['list']:\n    y = y * t",
            "t, k = @['pair']\ny = y * t + k",
            "y = torch.stack(@['list']).mean(0) + y",
            "y = y + torch.stack([t for t in @['list']]).sum(0)",
        ),
        writes=(
            "@['list'].append(y)",
            "@['list'].append(y.detach())",
            "@['h'] = @['list'][0]",
            "@['pair'] = (y.detach(), @['pair'][1] + 1)",
            "@['list'].pop()",
            "@['list'][0] = y.detach()",
            "@['list'] = [t * 0.5 for t in @['list']]",
            "@['new'] = torch.ones(3)",
        ),
        changes=(
            "@['list'].append(torch.ones(3) * 2)",
            "@['list'].pop()",
            "@['pair'] = (torch.zeros(3), 5)",
            "@['list'].reverse()",
            "@['list'] = []",
            "@['h'] = @['list'][0]",
        ),
    ),
    Kind(
        "recurrent cell",
        "cell$",
        """
class Cell$(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.h, self.steps = nn.Linear(3, 3), None, 0
    def reset(self): self.h, self.steps = None, 0
    def forward(self, t):
        if self.h is None: self.h = torch.zeros_like(t)
        self.h = torch.tanh(self.lin(t) + self.h)
        self.steps += 1
        return self.h
torch.manual_seed(5)
cell$ = Cell$()
""",
        numbers=("@.steps",),
        reads=("y = @(y)", "y = @(y).detach()", "y = y.sum() + y if @.h is None else y + @.h.detach()"),
        writes=("y = @(y)\n@.h = @.h.detach()", "@.reset()", "y = @(@(y))"),
        changes=(
            "@.reset()",
            "@.h = torch.ones(3)",
            "@.h = @.h if @.h is None else @.h.detach()",
            "@.steps = 5",
            "@.eval()",
        ),
        keeps_history=True,
    ),
    Kind(
        "lazily made parameter",
        "lazy$",
        """
class Lazy$(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = None
    def forward(self, t):
        if self.w is None: self.w = nn.Parameter(torch.ones(t.shape[-1]) * 2)
        return t * self.w
lazy$ = Lazy$()
""",
        reads=("y = @(y)",),
        writes=(
            "if not hasattr(@, 'mask'):\n    @.register_buffer('mask', torch.ones(3) / 2)\ny = y * @.mask",
            "if not hasattr(@, 'lin'):\n    @.lin = nn.Identity()\ny = @.lin(y)",
            "@.extra = nn.Parameter(torch.ones(3))",
        ),
        changes=("@.w = None", "@.w = nn.Parameter(torch.ones(3))", "@ = Lazy$()"),
        weight=0.6,
    ),
    Kind(
        "optimiser groups",
        "opt$",
        """
param$ = nn.Parameter(torch.full((3,), 0.5))
opt$ = types.SimpleNamespace(lr=0.1, groups=[{'params': [param$], 'lr': 0.1, 'k': 1.5}], state={})
""",
        attributes=(("@", "lr"),),
        numbers=("@.groups[0]['lr']", "@.lr", "len(@.groups)"),
        reads=("for g in @.groups:\n    for p in g['params']:\n        y = y + p * g['lr']",),
        writes=(
            "for g in @.groups:\n    g['lr'] *= 0.5",
            "with torch.no_grad():\n    param$.mul_(1 - @.groups[0]['lr'])",
            "@.state['step'] = @.state.get('step', 0) + 1",
            "st = @.state.setdefault(param$, {'step': 0})\nst['step'] += 1",
            "st = @.state.setdefault('m', torch.zeros(3))\nst.mul_(0.9).add_(y.detach())\ny = y + st",
        ),
        changes=(
            "@.groups[0]['lr'] = 0.5",
            "for g in @.groups:\n    g['lr'] *= 2",
            "@.groups.append({'params': [], 'lr': 1, 'k': 2})",
            "@.groups[0]['params'] = [SHARED]",
            "@.state.clear()",
            "@.groups[0]['params'].append(SHARED)",
        ),
    ),
    Kind(
        "numpy",
        "arr$",
        """
arr$ = types.SimpleNamespace(v=np.array([1.5, 2.0, 3.0]), i=np.int64(2), b=np.bool_(True), s=np.float32(0.5))
""",
        numbers=(
            "@.v[0]",
            "float(@.v[1])",
            "len(@.v)",
            "float(@.v.sum())",
            "@.v.shape[0]",
            "int(@.i)",
            "bool(@.b)",
            "@.v.tolist()[0]",
            "float(@.s)",
            "@.v.max()",
        ),
        reads=(
            "y = y * torch.tensor(@.v, dtype=torch.float32)",
            "y = y * torch.from_numpy(@.v).float()",
            "if @.b:\n    y = y.sin()",
            "y = y + torch.as_tensor(@.v).float()",
            "for v in @.v:\n    y = y * float(v)",
            "y = y * @.v.ndim",
        ),
        writes=("@.v[0] = 4", "@.v += 1", "@.v = @.v * 2", "@.i += 1", "@.v = np.append(@.v, 1.0)"),
        changes=(
            "@.v[0] = 2.5",
            "@.v = np.array([1.0, 1.0, 2.0])",
            "@.v *= 2",
            "@.i = np.int64(3)",
            "@.b = np.bool_(False)",
            "@.v = @.v.copy()",
            "@.s = np.float32(7)",
        ),
    ),
    Kind(
        "dtype and device",
        "spec$",
        """
spec$ = types.SimpleNamespace(dtype=torch.float32, shape=torch.Size([3]), device=torch.device('cpu'), op=torch.sin, name='cos')
""",
        numbers=("@.shape[0]", "len(@.shape)"),
        reads=(
            "y = y.to(@.dtype)",
            "y = y + torch.zeros(@.shape, dtype=@.dtype, device=@.device)",
            "y = @.op(y)",
            "y = getattr(y, @.name)()",
            "y = y * (2 if @.dtype.is_floating_point else 3)",
            "y = getattr(torch.nn.functional, 'relu' if @.name == 'cos' else 'silu')(y)",
        ),
        writes=("@.dtype = y.dtype", "@.shape = y.shape", "@.op = torch.cos", "@.device = y.device"),
        changes=(
            "@.dtype = torch.float64",
            "@.shape = torch.Size([2, 3])",
            "@.op = torch.tanh",
            "@.name = 'sin'",
            "@.shape = torch.Size([1])",
            "@.dtype = torch.float32",
        ),
    ),
    Kind(
        "hooks and parametrised",
        "hooked$",
        """
torch.manual_seed(6)
hooked$ = nn.Linear(3, 3)
scale$ = [2.0]
""",
        lists=("scale$",),
        reads=("y = @(y)", "y = y * len(@._forward_hooks)"),
        changes=(
            "@.register_forward_hook(lambda m, a, o: o * scale$[0])",
            "@.register_forward_pre_hook(lambda m, a: (a[0] * 2,))",
            "@._forward_hooks.clear()",
            "@.bias = None",
            "@.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,) if gi[0] is not None else None)",
            "@.forward = lambda t: t * scale$[0]",
        ),
        weight=0.7,
    ),
    Kind(
        "compiled inside",
        "gate$",
        """
gate$ = types.SimpleNamespace(a=1.5, n=0)
@transform_plainly
def inner$(t): return t * gate$.a
@transform_plainly
def counting$(t):
    gate$.n += 1
    return t + 1
""",
        attributes=(("@", "a"), ("@", "n")),
        reads=("y = inner$(y)", "y = inner$(inner$(y))", "y = inner$(y) + inner$(x)"),
        writes=("y = counting$(y)", "y = counting$(inner$(y))"),
        changes=("@.a = 2.5", "result = inner$(A)", "result = counting$(A)", "@.a = 1.5\nresult = inner$(A)"),
    ),
    Kind(
        "moving statistics",
        "stats$",
        """
class Stats$(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.total, self.best, self.history = 0.0, None, collections.deque(maxlen=3)
    def forward(self, t):
        out = self.bn(t.expand(2, 3) + torch.arange(2.0).unsqueeze(1)).mean(0)
        self.history.append(t.shape[-1])
        self.total += t.shape[-1] * 0.5
        return out
stats$ = Stats$()
""",
        tensors=("@.bn.running_mean",),
        numbers=("@.total", "len(@.history)", "@.bn.momentum", "@.bn.eps * 1e5"),
        reads=(
            "y = @(y)",
            "y = @.bn(y.reshape(1, -1)[:, :3].expand(2, 3) * 1.0).sum(0)",
            "y = y * (2 if @.best is None else 3)",
        ),
        writes=(
            "@.best = 1",
            "if @.best is None or @.total > @.best:\n    @.best = @.total",
            "@.bn.num_batches_tracked.zero_()",
            "@.total = 0.0",
        ),
        changes=(
            "@.eval()",
            "@.train()",
            "@.bn.momentum = 0.5",
            "@.bn.momentum = None",
            "@.bn.reset_running_stats()",
            "@.bn.track_running_stats = False",
            "@.bn.eps = 0.1",
            "@.history.clear()",
            "@.best = 2",
        ),
    ),
    Kind(
        "shared tensors",
        "tied$",
        """
weight$ = torch.full((3,), 0.5)
tied$ = types.SimpleNamespace(a=weight$, b=weight$, c=weight$[:2], d={'w': weight$}, n=0)
""",
        tensors=("@.a", "@.b", "@.d['w']"),
        reads=(
            "y = y * (2 if @.a is @.b else 3)",
            "y = y * (2 if @.d['w'] is weight$ else 3)",
            "y = y + @.a + @.b",
            "y = y + @.c.sum()",
            "y = y * (2 if @.a.data_ptr() == @.c.data_ptr() else 3)",
            "y = y * len({id(t) for t in (@.a, @.b, @.d['w'])})",
        ),
        writes=(
            "@.a.add_(1)",
            "@.c.mul_(2)",
            "@.b = @.a.clone()",
            "@.a, @.b = @.b, @.a",
            "@.d['w'] = @.a",
            "weight$.mul_(0.5)",
            "@.c = @.a[1:]",
        ),
        changes=(
            "@.b = @.a.clone()",
            "@.a = @.b",
            "@.d['w'] = SHARED",
            "weight$ = torch.ones(3)",
            "@.c = torch.ones(2)",
            "weight$.add_(1)",
        ),
    ),
)

IMPURE = (
    Kind(
        "random module",
        "random",
        "",
        numbers=("random.random()", "random.randint(1, 3)", "random.choice([1.5, 2])"),
        writes=("random.seed(5)",),
        changes=("random.seed(3)",),
        weight=0.3,
    ),
    Kind(
        "numpy random",
        "np",
        "",
        numbers=("np.random.rand()", "float(np.random.randint(1, 4))"),
        writes=("np.random.seed(1)",),
        changes=("np.random.seed(7)",),
        weight=0.3,
    ),
    Kind(
        "own generator",
        "rng$",
        """
rng$ = random.Random(3)
gen$ = np.random.default_rng(4)
""",
        numbers=("@.random()", "float(gen$.random())", "@.choice([1.5, 2])"),
        changes=("@ = random.Random(9)", "@.seed(5)", "gen$ = np.random.default_rng(6)"),
        weight=0.4,
    ),
    Kind(
        "torch random",
        "torch",
        "",
        reads=(
            "y = y + torch.rand(3)",
            "y = nn.functional.dropout(y, 0.5)",
            "y = y * torch.randn(())",
            "y = y + torch.randperm(3)",
        ),
        changes=("torch.manual_seed(11)", "torch.rand(2)"),
        weight=0.4,
    ),
    Kind(
        "clock",
        "time",
        "",
        reads=(
            "y = y * (2 if time.time() > 0 else 3)",
            "y = y * (2 if time.perf_counter() >= 0 else 3)",
            "y = y * min(time.monotonic_ns(), 2)",
        ),
        weight=0.2,
    ),
    Kind(
        "iterator",
        "iter$",
        """
iter$ = types.SimpleNamespace(it=itertools.count(1), gen=(i for i in [1.5, 2.0, 3.0, 4.0, 5, 6, 7, 8]), cyc=itertools.cycle([1.5, 2]),
    li=iter([1, 2, 3] * 9))
""",
        numbers=("next(@.it)", "next(@.gen)", "next(@.cyc)", "next(@.li)"),
        changes=("next(@.it)", "@.it = itertools.count(5)", "@.cyc = itertools.cycle([4])"),
        weight=0.5,
    ),
    Kind(
        "weak reference",
        "ref$",
        """
class Ref$:
    a = 1.5
held$ = Ref$()
ref$ = types.SimpleNamespace(r=weakref.ref(held$))
""",
        numbers=("@.r().a", "(1 if @.r() is None else 2)"),
        changes=("held$.a = 2.5", "Ref$.a = 4", "del held$", "held$ = Ref$()\n@.r = weakref.ref(held$)"),
        weight=0.4,
    ),
    Kind(
        "printing",
        "out$",
        """
out$ = types.SimpleNamespace(lines=[])
def tell$(*a): out$.lines.append(a)
""",
        numbers=("len(@.lines)",),
        writes=(
            "tell$('step')",
            "tell$(tuple(y.shape), y.dtype)",
            "tell$(1, 'k')",
            "print('step', file=types.SimpleNamespace(write=@.lines.append))",
        ),
        changes=("@.lines.clear()",),
        weight=0.5,
    ),
)

COUNTERS = (
    Kind(
        "step counter",
        "steps$",
        """
class Steps$:
    def __init__(self): self.step, self.n, self.lr, self.history = 0, 3, 0.5, [1.5, 2.0, 2.5]
steps$ = Steps$()
""",
        attributes=(("@", "step"), ("@", "n")),
        numbers=(
            "@.step",
            "(@.step + 1) * @.n",
            "(1 - 0.9 ** (@.step + 1))",
            "@.step // 2",
            "(@.step % 3)",
            "@.lr / (1 + @.step)",
            "min(1.0, (@.step + 1) / 4)",
            "(-@.step)",
            "(@.step & 1)",
            "0.5 * (1 + math.cos(math.pi * @.step / 8))",
            "abs(@.n - @.step)",
            "divmod(@.step, 3)[1]",
            "2 ** (2 - @.step % 5)",
            "@.history[@.step % 3]",
            "(@.step == @.n)",
            "round(@.step / 3, 1)",
        ),
        reads=(
            "if @.step % 3 == 0:\n    y = y * 2",
            "if 2 < @.step <= 5:\n    y = y + @.step",
            "y = y * (1 if @.step < @.n else @.lr)",
            "y = y.lerp(y.sin(), 1 / (1 + @.step))",
            "y = y ** (@.step % 2 + 1)",
            "y = torch.where(y > @.step, y, -y * @.step)",
            "y = y + torch.arange(3) * @.step",
            "y = y + torch.tensor(@.step)",
            "for i in range(@.step % 3):\n    y = y * (i + 1.5)",
            "y = y.add(y.cos(), alpha=@.step)",
        ),
        writes=(
            "@.step += 1",
            "@.step += 1",
            "@.step = @.step + 1",
            "@.step = min(@.step + 1, 6)",
            "@.step = (@.step + 1) % 4",
            "@.lr = 0.1 * (@.step + 1); @.step += 2",
            "@.n, @.step = @.step, @.step + @.n",
            "@.step += 1\nif @.step > 4:\n    @.n += 1",
            "@.history[@.step % 3] += @.step\n@.step += 1",
            "@.last, @.step = (@.step, y.detach() * @.step), @.step + 1",
            "@.step *= 3",
            "@.step = 0\nfor _ in range(2):\n    @.step += 1",
        ),
        changes=(
            "@.step = 0",
            "@.step = 5",
            "@.step += 1",
            "@.n += 2",
            "@.step = 2.5",
            "@.step = True",
            "@.step = 10 ** 12",
            "@ = Steps$()",
            "@.step = -1",
            "@.lr = 1",
        ),
        weight=1.5,
    ),
)
"""Numbers that are another in each call: programs of these alone."""

KINDS = (*OBJECTS, *CONTAINERS, *SCOPES, *TORCH, *IMPURE)
