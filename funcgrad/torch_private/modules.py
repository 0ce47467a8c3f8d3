"""What every ``nn.Module`` runs besides its own hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

HOOKS_OF_ALL_MODULES: Mapping[str, dict[int, Any]] = {
    "_global_backward_pre_hooks": _global_backward_pre_hooks,
    "_global_backward_hooks": _global_backward_hooks,
    "_global_forward_pre_hooks": _global_forward_pre_hooks,
    "_global_forward_hooks": _global_forward_hooks,
}
"""The tables of hooks that are registered for all modules (``register_module_forward_hook``), by name."""
