"""The first call in a fresh process: seconds by stage, with an empty cache folder and with one an earlier process filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from rich.table import Table

_CODE = """
import sys, time, json
sys.path.insert(0, "examples")
start = time.perf_counter(); import torch; torch_seconds = time.perf_counter() - start
start = time.perf_counter(); import funcgrad as fg; import_seconds = time.perf_counter() - start
import char_transformer as demo
params = demo.make_params(); tokens = torch.zeros(demo.BATCH, demo.CONTEXT, dtype=torch.int64)
c = fg.value_and_grad_compiled(demo.loss)
start = time.perf_counter(); program = c.program(params, tokens, tokens); total = time.perf_counter() - start
print(json.dumps({"import torch": torch_seconds, "import funcgrad": import_seconds, "compile": total, **program.seconds}))
"""


def table() -> Table:
    """One row per stage, seconds cold and warm (medians of three processes each)."""
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_run(folder))
            warm.append(_run(folder))
    rows = Table(title="First call of the demo's gradient in a fresh process, ms")
    for column in ("", "cold", "warm"):
        rows.add_column(column, justify="right")
    for stage in cold[0]:
        rows.add_row(stage, *(f"{sorted(run[stage] for run in runs)[1] * 1e3:.1f}" for runs in (cold, warm)))
    return rows


def _run(folder: str) -> dict[str, float]:
    env = {**os.environ, "FUNCGRAD_CACHE_DIR": f"{folder}/cache"}
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, env=env, check=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds
