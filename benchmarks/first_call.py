"""One first call: ``python -m benchmarks.first_call CONTESTANT WORKLOAD`` prints how many seconds it takes, imports aside, as JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time

from .contestants import contestant
from .integrator import integrator
from .steady import ALL

LAZY = {"torch.compile": ("torch._dynamo", "torch._inductor.compile_fx"), "jax": ("jax.numpy",)}
"""What a contestant imports only when it is first called: imports are not what is measured here."""


def seconds(name: str, workload_name: str) -> float:
    """Of the first call, with the inputs there."""
    workload = next(w for w in (*ALL, integrator(40)) if w.name == workload_name)
    for module in LAZY.get(name, ()):
        importlib.import_module(module)
    call = contestant(name, workload, workload.inputs(False))
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(seconds(*sys.argv[1:])))
