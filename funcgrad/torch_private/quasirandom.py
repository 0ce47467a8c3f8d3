"""Functions by which ``torch.quasirandom.SobolEngine`` computes its sequence."""

from __future__ import annotations

from typing import Any

import torch

# 2.11, 2.13, 2.15

INITIALIZE_STATE: Any = torch._sobol_engine_initialize_state_
SCRAMBLE: Any = torch._sobol_engine_scramble_
FAST_FORWARD: Any = torch._sobol_engine_ff_
DRAW: Any = torch._sobol_engine_draw
