"""One first call: ``python -m benchmarks.first_call CONTESTANT WORKLOAD`` prints how many seconds it takes, imports
aside.

``python -m benchmarks.first_call stages STEPS``: how many nodes the integrator of so many steps has, and its seconds by
stage. JSON both.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

import funcgrad as fg

from .contestants import contestant
from .integrator import integrator
from .steady import ALL

LAZY = {
    "funcgrad": ("torch._dynamo", "scipy.sparse.csgraph"),
    "torch.compile": ("torch._dynamo", "torch._inductor.compile_fx"),
    "jax": ("jax.numpy",),
}
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


def stages(steps: int) -> tuple[int, dict[str, float]]:
    """Nodes, and seconds by stage, after a first small program has been compiled."""
    for workload in (integrator(1), integrator(steps)):
        program = fg.value_and_grad_compiled(workload.loss).program(*workload.inputs(False))
    return len(program.joint.graph.fx.nodes), dict(program.seconds)


if __name__ == "__main__":
    what, which = sys.argv[1:]
    print(json.dumps(stages(int(which)) if what == "stages" else seconds(what, which)))
