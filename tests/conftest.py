"""Tests keep what they compute in a folder of their own."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as the test helpers of some torch do

import collections
import gc
import importlib
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings
from torch.testing._internal import common_utils

os.environ.setdefault("FUNCGRAD_CACHE_DIR", tempfile.mkdtemp(prefix="funcgrad-tests-"))
# The database of operators asks for each operator which unittest.TestCase runs, by the source of every frame on the
# stack; none does.
common_utils.extract_test_fn = lambda: None

THREADS = torch.get_num_threads()

# A first example may import or compile; how long it takes says nothing about what is tested.
# the same programs in every run: make fuzz looks for others
settings.register_profile("funcgrad", deadline=None, derandomize=True)
settings.load_profile("funcgrad")

gc.set_threshold(2000, 20, 20)  # traces make many objects, and few of them rings that hold memory


_frozen = 0


def pytest_runtest_teardown():
    """A test that sets the number of threads does not set it for others. What was imported stays: each full
    collection would walk it again, a quarter of a second, and traces cause many."""
    global _frozen
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)
    if len(sys.modules) > _frozen + 200:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


def pytest_configure(config):
    """Here and not in pyproject.toml, as pytest would import funcgrad for it before the environment above is set."""
    config.addinivalue_line("filterwarnings", "error::funcgrad.errors.UnresolvedCaptureWarning")


SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().splitlines())
"""Tests that take more than three seconds, as ``--durations=0`` tells."""
ONE_IN = 8
"""Of slow tests, and of the cases of a function, one in so many runs by default."""
WHOLE = ("house/", "laws/", "test_errors.py", "test_mechanisms.py")
"""What runs whole, but for what is slow: rows of which each stands for itself, and laws, which say how many they
are."""


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items):
    """What does not run by default is marked ``long``. Cases are chosen by their names: of each function one in
    ``ONE_IN``, one at least; of a ``sweep(n)`` one in n."""
    functions = collections.defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    for function, cases in functions.items():
        whole = any(part in function for part in WHOLE)
        cases.sort(key=_draw)
        for place, item in enumerate(cases):
            sweep = item.get_closest_marker("sweep")
            chosen = not _draw(item) % sweep.args[0] if sweep else whole or place * ONE_IN < len(cases)
            if not chosen or (item.nodeid in SLOW and _draw(item) % ONE_IN):
                item.add_marker(pytest.mark.long)


def _draw(item):
    return zlib.crc32(item.nodeid.encode())


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """Imports a module, of this name and source, as one of an installed package."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, source: str) -> ModuleType:
        (site / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return install
