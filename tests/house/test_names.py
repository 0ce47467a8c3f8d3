"""House rules on names and sizes, read from the source: what is public, what is private to torch, who reads the
environment."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import funcgrad as fg

PACKAGE = Path(fg.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(), str(path)) for path in FILES}
EVERY_FILE = pytest.mark.parametrize("name", TREES)

NOT_PUBLIC = ("torch.fx.experimental",)
"""Modules of torch that are private though no underscore says so."""
LONGEST_FILE, LONGEST_FUNCTION = 525, 93


# ── public names ─────────────────────────────────────────────────────────────────────────────────────────────────


def imported_names(tree):
    """Public names a module imports from its own package."""
    own = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level > 0]
    return {
        alias.asname or alias.name
        for node in own
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_")
    }


def test_all_is_sorted_and_complete():
    assert list(fg.__all__) == sorted(fg.__all__)
    assert len(fg.__all__) == len(set(fg.__all__))
    assert set(fg.__all__) == imported_names(TREES["__init__.py"])


@pytest.mark.parametrize("name", fg.__all__)
def test_public_name_is_documented(name):
    thing = getattr(fg, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert own and own.strip(), f"fg.{name} has no docstring"


# ── private torch names ──────────────────────────────────────────────────────────────────────────────────────────


def is_private(dotted):
    if dotted.startswith("torch.ops."):
        return False  # operators are public by their schemas; an underscore in aten::_unsafe_view hides nothing
    if any(dotted == name or dotted.startswith(name + ".") for name in NOT_PUBLIC):
        return True
    return any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__")) for part in dotted.split(".")
    )


def torch_aliases(tree):
    """Local name → what of torch it stands for, from the imports (``F`` → ``torch.nn.functional``)."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def private_torch_names(tree):
    """``(line, dotted name)`` of each private torch name a module imports or reaches by attributes."""
    found = set()
    for node in ast.walk(tree):
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {(node.lineno, name) for name in imported if name.split(".")[0] == "torch" and is_private(name)}
    aliases = torch_aliases(tree)
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}  # only whole chains are reported
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        steps, below = [], node
        while isinstance(below, ast.Attribute):
            steps.append(below.attr)
            below = below.value
        if isinstance(below, ast.Name) and below.id in aliases:
            dotted = ".".join([aliases[below.id], *reversed(steps)])
            if is_private(dotted):
                found.add((node.lineno, dotted))
    return sorted(found)


@EVERY_FILE
def test_private_torch_names_stand_in_one_room(name):
    if name.startswith("torch_private/"):
        assert name.endswith("__init__.py") or private_torch_names(TREES[name]), (
            "the search found nothing in a file that is there for them"
        )
        return
    assert not [f"{name}:{line}: {dotted}" for line, dotted in private_torch_names(TREES[name])]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._len_torch_function_stack()",
        "import torch\ntorch.ops.x(torch._ops.OpOverload)",
        "from torch._ops import OpOverload",
        "from torch import _C",
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "import torch.utils._pytree as pytree",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
        "import torch.fx.experimental",
        "from torch import fx\nfx._pytree",
        "import torch.nn.functional as F\nF._verify_batch_size",
        "def f():\n    from torch._dynamo.source import ConstantSource",
    ],
)
def test_a_private_torch_name_is_found(source):
    assert private_torch_names(ast.parse(source))


@pytest.mark.parametrize(
    "source", ["import torch\ntorch.nn.Linear.__name__", "import torch\ntorch.__version__", "x._y", "from ._z import w"]
)
def test_other_names_are_not(source):
    assert not private_torch_names(ast.parse(source))


# ── docstrings, environment, sizes ───────────────────────────────────────────────────────────────────────────────


@EVERY_FILE
def test_module_has_a_docstring(name):
    assert (ast.get_docstring(TREES[name]) or "").strip(), f"{name} does not say what it owns"


def environment_reads(tree):
    """Lines that reach the environment: ``os.environ``, ``os.getenv`` and the like, however ``os`` is called."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    modules = {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names if a.name == "os"
    }
    lines = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "os" and any(a.name in names for a in node.names):
            lines.append(node.lineno)
    return lines


def test_the_environment_is_read_in_options_alone():
    reads = {name for name, tree in TREES.items() if environment_reads(tree)}
    # state watches the caller's reads of it
    assert {name for name in reads if not name.startswith("state/")} == {"options.py"}


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os as o\no.getenv('A')", "from os import environ"]
)
def test_a_read_of_the_environment_is_found(source):
    assert environment_reads(ast.parse(source))


@EVERY_FILE
def test_file_is_not_too_long(name):
    assert len((PACKAGE / name).read_text().splitlines()) <= LONGEST_FILE, "is asking whether it holds two subjects"


@EVERY_FILE
def test_functions_are_not_too_long(name):
    functions = [n for n in ast.walk(TREES[name]) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = {
        f"{name}:{n.lineno} {n.name}": n.end_lineno - n.lineno + 1
        for n in functions
        if n.end_lineno - n.lineno + 1 > LONGEST_FUNCTION
    }
    assert not long


# ── the reading order ────────────────────────────────────────────────────────────────────────────────────────────


PAGE = (PACKAGE / "README.md").read_text(encoding="utf-8")
FILE = r"[\w/]+\.py\b"


def test_the_reading_order_names_files_that_there_are():
    assert [f for f in re.findall(FILE, PAGE) if not any(f"/{name}".endswith(f"/{f}") for name in TREES)] == []


@pytest.mark.parametrize("row", [line for line in PAGE.splitlines() if re.match(rf"\| `{FILE}", line)])
def test_the_reading_order_names_what_is_in_its_files(row):
    first = row.split("|")[1]
    files = [name for name in TREES if any(f"/{name}".endswith(f"/{f}") for f in re.findall(FILE, row))]
    defined = {
        n.name for name in files for n in ast.walk(TREES[name]) if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    }
    asked = [text for text in re.findall(r"`([\w.]+)`", first) if not text.endswith(".py")]
    assert {part for text in asked for part in text.split(".")} <= defined


def test_the_tree_of_a_call_names_functions_that_there_are():
    words = {
        word
        for tree in TREES.values()
        for n in ast.walk(tree)
        for word in (getattr(n, "name", 0), getattr(n, "attr", 0))
    }
    tree = PAGE[PAGE.index("\n grad_compiled(loss)") : PAGE.index("**A second call**")]
    named = set(re.findall(r"\b_?[a-z]+(?:_[a-z]+)+\b", re.sub(FILE, "", tree)))
    assert {name for name in named - words if not (PACKAGE / name).is_dir()} == set()


# ── tests that are named elsewhere ───────────────────────────────────────────────────────────────────────────────


def missing_tests(ids):
    """The ids of tests that no file of tests defines."""
    root = Path(__file__).parents[2]
    asked = {tuple(test.partition("[")[0].split("::")) for test in ids}
    defined = {
        (file, *names)
        for file in {file for file, *_ in asked if (root / file).exists()}
        for outer in ast.parse((root / file).read_text()).body
        for names in ((getattr(outer, "name", None), getattr(n, "name", None)) for n in ast.walk(outer))
    }
    return {test for test in asked if test not in defined and (*test, test[-1]) not in defined}


def test_what_is_known_to_be_slow_is_there():
    assert missing_tests((Path(__file__).parents[1] / "slow.txt").read_text().splitlines()) == set()
    assert missing_tests(["tests/house/test_names.py::test_no_such_test[1]", "tests/no_such_file.py::test"])
