"""Pytrees: taking apart and putting together are inverse, and the printed forms mean the same."""

import collections
import dataclasses
import enum
import time
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import funcgrad as fg
from funcgrad import printed_trees, trees

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Data:
    a: Any
    b: Any = None


@attrs.define
class Attrs:
    left: Any
    right: Any


class Registered:
    def __init__(self, items, label):
        self.items, self.label = items, label


pytree.register_pytree_node(
    Registered, lambda r: (r.items, r.label), lambda items, label: Registered(list(items), label)
)


class Mapping(dict):
    """Its attributes are part of it; its constructor, and what it does to items, are its own."""

    def __init__(self, label, **items):
        super().__init__(**items)
        self.label = label

    def __iter__(self):
        return iter(())

    def values(self):
        raise AssertionError("taken apart by code of the class's own")


class Attributed(dict):
    __getattr__ = dict.__getitem__

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Slotted(list):
    __slots__ = ("label",)


class Ordered(collections.OrderedDict):
    def __init__(self, size):
        super().__init__()
        self.size = size


class Defaulting(collections.defaultdict):
    pass


class Items(tuple):
    pass


class Located(collections.namedtuple("Located", "x y")):
    def __new__(cls, both):
        return super().__new__(cls, both, both)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As transformers' ModelOutput: a field that is not None is an item, too."""

    loss: Any = None
    hidden: Any = None

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if getattr(self, f.name) is not None:
                super().__setitem__(f.name, getattr(self, f.name))

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]


@dataclasses.dataclass
class Computed:
    a: Any

    def __post_init__(self):
        self.twice = [self.a, self.a]


def slotted(items):
    value = Slotted(items)
    value.label = "slot"
    return value


def ordered(items):
    value = Ordered(3)
    value.update(items)
    if items:
        value.move_to_end(next(iter(items)))
    return value


EXTENDED = [
    Mapping(2, x=1, y=[2]),
    Attributed(x=1, y=(2, 3)),
    slotted([1, 2]),
    ordered({"b": 1, "a": 2}),
    Defaulting(list, {"a": 1}),
    Items([1, [2]]),
    Located([3]),
    Output(loss=1, hidden=[2, 3]),
    Output(hidden=2.5),
    Computed(4),
    collections.Counter("aab"),
    collections.UserDict({"a": 1}),
    collections.UserList([1, 2]),
    collections.ChainMap({"a": 1}, {"b": 2}),
]

LEAVES = st.integers(0, 5) | st.sampled_from(["s", True, 2.5])
TREES = st.recursive(
    LEAVES | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", 3, "κ"]), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Data, inner, inner)
        | st.builds(Attrs, inner, inner)
        | st.lists(inner, max_size=2).map(lambda items: Registered(items, "label"))
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(collections.OrderedDict)
        | st.dictionaries(st.sampled_from("xy"), inner, max_size=2).map(lambda items: Mapping("m", **items))
        | st.dictionaries(st.sampled_from("xy"), inner, max_size=2).map(ordered)
        | st.dictionaries(st.sampled_from("xy"), inner, max_size=2).map(Attributed)
        | st.lists(inner, max_size=2).map(slotted)
        | st.builds(Output, inner, inner)
        | st.builds(Located, inner)
        | st.builds(Computed, inner)
    ),
    max_leaves=8,
)


def printed_flatten(tree):
    names = [f"leaf{i}" for i in range(trees.count(tree))]
    constants = {"MISS": None}
    lines = printed_trees.print_flatten(tree, "value", names, constants, "return MISS")
    text = "def apart(value):\n" + "".join(f"    {line}\n" for line in lines) + f"    return [{', '.join(names)}]\n"
    exec(text, constants)
    return constants["apart"]


def printed_unflatten(tree):
    names = [f"leaf{i}" for i in range(trees.count(tree))]
    constants = {}
    expression = printed_trees.print_unflatten(tree, iter(names), constants)
    return lambda leaves: eval(expression, dict(constants, **dict(zip(names, leaves, strict=True))))


def same(a, b):
    return trees.flatten(a)[1] == trees.flatten(b)[1] and trees.flatten(a)[0] == trees.flatten(b)[0]


@given(TREES)
def test_round_trip(value):
    leaves, tree, paths = trees.flatten(value)
    assert len(leaves) == len(paths) == trees.count(tree) == len(trees.leaf_paths(tree))
    assert same(trees.unflatten(leaves, tree), value)


@given(TREES)
def test_paths_read_as_code(value):
    leaves, _, paths = trees.flatten(value, "value")
    for leaf, path in zip(leaves, paths, strict=True):
        if not any(isinstance(v, (Registered, Output)) for v in _containers(value)):
            assert eval(path, {"value": value}) is leaf


def _containers(value):
    shape = trees._open(value)
    return [] if shape is None else [value, *(c for child in shape.children for c in _containers(child))]


@given(TREES, TREES)
def test_printed_flatten_means_flatten(value, other):
    leaves, tree, _ = trees.flatten(value)
    apart = printed_flatten(tree)
    assert apart(value) == leaves
    other_leaves, other_tree, _ = trees.flatten(other)
    found = apart(other)
    if other_tree == tree:
        assert found == other_leaves
    else:  # a leaf takes whatever stands there: that it is no container is for the guards on leaves to see
        assert found is None or any(trees._open(v) is not None for v in found)


@given(TREES)
def test_printed_unflatten_means_unflatten(value):
    leaves, tree, _ = trees.flatten(value)
    assert same(printed_unflatten(tree)(leaves), value)


def whole(value):
    """All there is to a container: its class, its items in order, its attributes."""
    items = list(value.items()) if isinstance(value, dict) and not isinstance(value, Mapping) else None
    items = list(dict.items(value)) if isinstance(value, Mapping) else items
    items = list(value) if isinstance(value, (list, tuple)) else items
    attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if value is not v}
    others = [getattr(value, name) for name in ("label", "default_factory") if name in dir(type(value))]
    return type(value), items, attributes, others


@pytest.mark.parametrize("value", EXTENDED, ids=lambda value: type(value).__name__)
def test_a_container_of_a_class_of_its_own_comes_back_as_it_was(value):
    leaves, tree, _ = trees.flatten(value)
    for back in (trees.unflatten(leaves, tree), printed_unflatten(tree)(printed_flatten(tree)(value))):
        assert back is not value
        assert whole(back) == whole(value)


def test_what_is_kept_twice_is_one_leaf():
    value = Output(loss=object())
    leaves, tree, paths = trees.flatten(value, "out")
    assert paths == ["out['loss']", "out.hidden"][: len(paths)] and leaves == [value.loss]
    back = trees.unflatten(leaves, tree)
    assert back["loss"] is back.loss is value.loss and back.hidden is None
    kept = trees.unflatten(*trees.flatten(Attributed(x=1))[:2])
    kept.y = 2
    assert kept == {"x": 1, "y": 2}


def test_an_attribute_that_comes_or_goes_is_another_structure():
    class Bare:
        pass

    value = Computed(4)
    leaves, tree, _ = trees.flatten(value)
    apart = printed_flatten(tree)
    value.more = 1
    assert apart(value) is None and trees.flatten(value)[1] != tree
    del value.more
    assert apart(value) == leaves
    del value.twice
    assert apart(value) is None and trees.flatten(value)[1] != tree
    assert trees.flatten(Bare())[1] == trees.LEAF


@dataclasses.dataclass
class Affine(torch.nn.Module):
    size: int

    def __hash__(self):
        return id(self)


class Kind(tuple, enum.Enum):
    ONE = (1,)


@pytest.mark.parametrize("value", [Affine(3), Kind.ONE, time.gmtime(0), {1}, Data], ids=repr)
def test_what_cannot_be_made_again_is_a_leaf(value):
    assert trees.flatten(value)[:2] == ([value], trees.LEAF)


def test_the_order_of_a_dict_is_part_of_its_structure():
    assert trees.flatten({"a": 1, "b": 2})[1] != trees.flatten({"b": 2, "a": 1})[1]
    assert printed_flatten(trees.flatten({"a": 1, "b": 2})[1])({"b": 2, "a": 1}) is None


def test_as_torchs_pytree():
    value = {"a": [1, (2, None)], "b": Point(3, torch.return_types.max((4, 5)))}
    assert trees.flatten(value)[0] == [v for v in pytree.tree_leaves(value) if v is not None]


def test_tree_map():
    found = fg.tree_map(lambda a, b: a + b, {"x": [1, 2]}, {"x": [10, 20]})
    assert found == {"x": [11, 22]}
    with pytest.raises(fg.TreeMismatchError, match=r"tree\['x'\]"):
        fg.tree_map(lambda a, b: a, {"x": [1, 2]}, {"x": [1]})
