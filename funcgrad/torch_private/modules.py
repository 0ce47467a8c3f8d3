"""What every ``nn.Module`` runs besides its own hooks."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as _module

_NAMES = ("_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks")


def hooks_of_all_modules() -> dict[str, dict[int, Any]]:
    """The tables of hooks that are registered for all modules (``register_module_forward_hook``), by name."""
    return {name: getattr(_module, name) for name in _NAMES}
