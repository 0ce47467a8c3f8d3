"""Pytrees: taking apart and putting together are inverse, and the printed forms mean the same."""

import collections
import dataclasses
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import funcgrad as fg
from funcgrad import trees

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


pytree.register_pytree_node(Registered, lambda r: (r.items, r.label), lambda items, label: Registered(list(items), label))

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
    ),
    max_leaves=8,
)


def printed_flatten(tree):
    names = [f"leaf{i}" for i in range(trees.count(tree))]
    constants = {"MISS": None}
    lines = trees.print_flatten(tree, "value", names, constants, "return MISS")
    text = "def apart(value):\n" + "".join(f"    {line}\n" for line in lines) + f"    return [{', '.join(names)}]\n"
    exec(text, constants)
    return constants["apart"]


def printed_unflatten(tree):
    names = [f"leaf{i}" for i in range(trees.count(tree))]
    constants = {}
    expression = trees.print_unflatten(tree, iter(names), constants)
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
        if "Registered" not in repr(value) and not any(isinstance(v, Registered) for v in _containers(value)):
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
