"""Texts among the arguments that a function does not read: calls that bring others are hits. Those that it reads, or
may have read, are part of the key."""

import copy
import dataclasses
import datetime
import json
import pathlib
import uuid
import warnings

import pytest
import torch

import funcgrad as fg

X = torch.arange(3.0)


@dataclasses.dataclass
class Image:
    pixels: torch.Tensor
    name: str


def _moved(v):
    return v.to("cpu") if isinstance(v, torch.Tensor) else v


class Step:
    def __init__(self):
        self.last, self.seen = None, []

    def keeps(self, batch):
        self.last = batch
        return batch["x"] * 2


UNREAD = {
    "a text": (lambda b: b["x"] * 2, lambda i: {"x": X, "name": f"image{i}"}),
    "texts": (lambda b: b["x"] * 2, lambda i: {"x": X, "words": [f"a{i}", f"b{i}"], "n": len(str(i))}),
    "bytes": (lambda b: b["x"] * 2, lambda i: {"x": X, "raw": b"a%d" % i}),
    "a path": (lambda b: b["x"] * 2, lambda i: {"x": X, "at": pathlib.Path(f"a{i}")}),
    "a date": (lambda b: b["x"] * 2, lambda i: {"x": X, "at": datetime.datetime(2020, 1, 1 + i)}),
    "an id": (lambda b: b["x"] * 2, lambda i: {"x": X, "id": uuid.UUID(int=i)}),
    "unpacked": (lambda pair: pair[0] * 2, lambda i: (X, f"image{i}")),
    "of a dataclass": (lambda image: image.pixels * 2, lambda i: Image(X, f"image{i}")),
    "moved": (lambda b: {k: _moved(v) for k, v in b.items()}["x"] * 2, lambda i: {"x": X, "name": f"image{i}"}),
    "asked for its type": (
        lambda b: b["x"] * (2 if isinstance(b["name"], str) and b["name"] is not None else 3),
        lambda i: {"x": X, "name": f"image{i}"},
    ),
    "handed on": (lambda b: Image(b["x"], b["name"]).pixels * 2, lambda i: {"x": X, "name": f"image{i}"}),
    "beside a size": (lambda b: b["x"] * 2, lambda i: {"x": torch.ones(i + 2), "name": f"image{i}"}),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_is_no_part_of_the_key(name):
    f, make = UNREAD[name]
    compiled = fg.jit(f)
    for i in range(6):
        assert torch.equal(compiled(make(i)), f(make(i)))
    assert len(compiled._cache.programs) == 2
    assert any("any " in str(program.key) for program in compiled._cache.programs)


def _caught(b):
    try:
        return b["x"] * len(b["name"])
    except Exception:
        return b["x"]


def _tabled(b):
    return b["x"] * {"image0": 2.0, "image3": 3.0}.get(b["name"], 5.0)


def _joined(b):
    return b["x"] * len("".join([b["name"], "a"]))


READ = {
    "compared": lambda b: b["x"] * (2 if b["name"] == "image3" else 3),
    "compared from the right": lambda b: b["x"] * (2 if "image3" == b["name"] else 3),  # noqa: SIM300
    "among": lambda b: b["x"] * (2 if b["name"] in ("image1", "image3") else 3),
    "a part": lambda b: b["x"] * (2 if "3" in b["name"] else 3),
    "begins": lambda b: b["x"] * (2 if b["name"].startswith("image3") else 3),
    "length, caught": _caught,
    "a key": _tabled,
    "joined": _joined,
    "formatted": lambda b: b["x"] * len(f"{b['name']}!"),
    "as a number": lambda b: b["x"] * int(b["name"][5:]),
    "an item": lambda b: b["x"] * (2 if b["name"][-1] == "3" else 3),
    "is true": lambda b: b["x"] * (2 if b["name"] else 3),
    "matched": lambda b: b["x"] * {"image3": 2}.get(copy.copy(b["name"]), 3),
    "as JSON": lambda b: b["x"] * len(json.dumps(b["name"])),
    "its type by type()": lambda b: b["x"] * (2 if type(b["name"]) is str else 3),
    "of another": lambda b: b["x"] * (2 if b["name"] + "s" == "image3s" else 3),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", READ)
@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
def test_what_is_read_is_part_of_the_key(name):
    f = READ[name]
    compiled = fg.jit(f)
    for i in (0, 1, 2, 3, 4, 11, 3, 0):
        batch = {"x": X, "name": f"image{i}"}
        assert torch.equal(compiled(batch), f(batch))


def test_what_is_returned_or_stored_is_that_of_the_call():
    returns = fg.jit(lambda b: (b["x"] * 2, b["name"]))
    both = fg.jit(lambda b: {k: v * 2 if k == "x" else v for k, v in b.items()})
    step = Step()
    keeps = fg.jit(step.keeps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for i in range(5):
            batch = {"x": X, "name": f"image{i}"}
            assert returns(batch)[1] == both(batch)["name"] == f"image{i}"
            keeps(batch)
            assert step.last is batch


def test_what_is_stored_beside_a_number_is_that_of_the_call():
    log = []

    def f(b):
        log.append((b["name"], b["x"].sum().item()))
        return b["x"] * 2

    compiled = fg.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for i in range(5):
            compiled({"x": X + i, "name": f"image{i}"})
    assert log == [(f"image{i}", 3.0 + 3 * i) for i in range(5)]


def test_gradients_and_derivatives_of_these():
    f = fg.value_and_grad_compiled(lambda p, b: ((p * b["x"]) ** 2).sum())
    p = torch.ones(3)
    for i in range(5):
        _, gradient = f(p, {"x": X, "name": f"image{i}"})
        assert torch.equal(gradient, 2 * p * X**2)
        mapped = torch.func.vmap(lambda q, i=i: f(q, {"x": X, "name": f"image{i}"})[1])(torch.ones(2, 3))
        assert torch.equal(mapped, (2 * p * X**2).expand(2, 3))
    assert len(f._cache.programs) == 2


def test_of_several_those_that_are_not_read_are_no_part_of_the_key():
    f = fg.jit(lambda b: b["x"] * (2 if b["mode"] == "train" else 3))
    for i in range(8):
        batch = {"x": X, "mode": ("train", "test")[i % 2], "name": f"image{i}"}
        assert torch.equal(f(batch), X * (3 if i % 2 else 2))
    assert len(f._cache.programs) <= 4


def test_one_that_is_read_and_another_in_each_call_is_warned_of():
    compiled = fg.jit(lambda b: b["x"] * len(b["name"]))
    with pytest.warns(fg.RecompileWarning, match="says something else in each call"):
        for i in range(5):
            compiled({"x": X, "name": "a" * i})


def test_an_explanation_says_that_it_may_be_any():
    compiled = fg.jit(lambda b: b["x"] * 2)
    for i in range(2):
        compiled({"x": X, "name": f"image{i}"})
    assert "any str" in str(compiled.explain({"x": X, "name": "another"}))


def test_a_structure_that_is_another_in_each_call_is_warned_of():
    compiled = fg.jit(lambda b: b["x"] * 2)
    with pytest.warns(fg.RecompileWarning, match="of another structure in each call"):
        for i in range(8):
            compiled({"x": X, "words": ["a"] * i})
