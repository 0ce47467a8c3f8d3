"""Python state that was read, or written to, where nobody looked: eager PyTorch is the oracle, step by step.

A case is a source with a function ``f``, and a script (see ``test_state_mended.py``); those of one cause stand in one
test.
"""

import warnings

import pytest
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
        read=("a = np.array(3.0)\ndef f(x): return x * float(a)", "call(); a[...] = 5.0; call(); a = np.array(2); call()"),
        written=("a = np.array(3.0)\ndef f(x):\n    a[...] += 1\n    return x * float(a)", "call(); call(); call()"),
        empty=("a = np.zeros((0, 3))\ndef f(x): return x * a.shape[1]", "call(); a.shape = (0, 5); call()"),
        of_truth=("a = np.array(False)\ndef f(x): return x * 2 if a else x", "call(); a[...] = True; call()"),
    )
