"""Tests keep what they compute in a folder of their own."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, as the test helpers of some torch do

import collections
import gc
import sys
import tempfile
import zlib

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


OF_KERNELS = {
    "archive", "benchmarks", "common_subexpressions", "computations", "copies", "fusion", "fusion_order", "in_place",
    "index", "jax_programs", "kernels", "library", "normalised", "numbers", "op_table", "operators", "order", "philox",
    "products", "programs", "recurrent", "sizes", "store", "strided", "training_programs", "transformers",
    "user_models", "vector_math",
}  # fmt: skip
"""Tests of what C kernels compute, and of files that other processes share. In all others the C compiler, which takes
half of the time of a first call, does not optimise; ``make test-long`` compiles all as users do."""


def pytest_runtest_setup(item):
    from funcgrad.backends import build  # not before the environment above is set

    is_of_kernels = item.path.stem.removeprefix("test_") in OF_KERNELS
    effort = "-O0" if item.config.option.markexpr == "not long" and not is_of_kernels else "-O3"
    build.FLAGS = tuple(effort if flag in ("-O0", "-O3") else flag for flag in build.FLAGS)


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


SOME, MANY, VERY_MANY = 3, 8, 16
WHOLE = ("house/", "laws/", "test_errors.py", "test_mechanisms.py")
"""What runs whole whatever it takes: rows of which each stands for itself, and laws, which say how many they are."""


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items):
    """Of the cases of a ``sweep(n)``, one in n runs by default, which goes by its name; the others are ``long``. So it
    is with two in three cases of a function that has some, five in six of one that has many, and eleven in twelve of
    one that has very many."""
    cases = collections.Counter(item.nodeid.partition("[")[0] for item in items)
    for item in items:
        function, sweep = item.nodeid.partition("[")[0], item.get_closest_marker("sweep")
        n = cases[function]
        one_in = 12 if n > VERY_MANY else 6 if n > MANY else 3 if n > SOME else 1
        if any(part in function for part in WHOLE):
            one_in = 1
        if sweep is not None:
            one_in = sweep.args[0]
        if zlib.crc32(item.nodeid.encode()) % one_in:
            item.add_marker(pytest.mark.long)
