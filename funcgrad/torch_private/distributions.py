"""Whether ``torch.distributions`` checks arguments."""

from __future__ import annotations

from torch.distributions import Distribution


def checks_arguments() -> bool:
    """What ``Distribution.set_default_validate_args`` has set."""
    return bool(Distribution._validate_args)
