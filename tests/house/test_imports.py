"""House rules on imports: what a module needs it imports at its head, and no module needs itself, however far
around."""

import ast
import graphlib
from pathlib import Path

import pytest

import funcgrad as fg

PACKAGE = Path(fg.__file__).resolve().parent


def modules():
    """Dotted name → source of each module of the package."""
    names = {p: (PACKAGE.name, *p.relative_to(PACKAGE).with_suffix("").parts) for p in PACKAGE.rglob("*.py")}
    return {
        ".".join(n[:-1] if n[-1] == "__init__" else n): (p.name == "__init__.py", p.read_text())
        for p, n in names.items()
    }


def imports(sources):
    """Which modules each module imports, wherever in it the import stands, also where only a type checker reads it."""
    found = {}
    for name, (is_package, source) in sources.items():
        found[name] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                package = name.split(".") if is_package else name.split(".")[:-1]
                steps = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*steps, *([node.module] if node.module else [])])
                named = {f"{base}.{alias.name}" for alias in node.names}
                found[name] |= (named & sources.keys()) or ({base} & sources.keys())
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names} & sources.keys()
    return found


def circle(sources):
    """The modules of a circle of imports, or None."""
    try:
        graphlib.TopologicalSorter(imports(sources)).prepare()
    except graphlib.CycleError as error:
        return error.args[1]


def test_no_circle_of_imports():
    assert sum(map(len, imports(modules()).values())) > 1000
    assert circle(modules()) is None


@pytest.mark.parametrize("name", modules())
def test_no_import_for_a_type_checker_alone(name):
    """A circle hides there: who needs a type, needs the module."""
    assert "TYPE_CHECKING" not in modules()[name][1]


@pytest.mark.parametrize(
    "source", ["from .b import x", "from . import b", "import p.b", "from p.b import x", "if TYPE_CHECKING:\n from .b "
                                                                                         "import x",
               "def f():\n from .b import x"],
)  # fmt: skip
def test_a_circle_is_found(source):
    assert circle({"p": (True, ""), "p.a": (False, source), "p.b": (False, "from .a import y")}) is not None
