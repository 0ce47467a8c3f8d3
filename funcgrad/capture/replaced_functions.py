"""Python functions of torch in whose place somebody has put another (``F.gelu = wrapper``).

Such a function tells a torch-function mode of itself by the name under which its module finds it: of what stands there
now, which may well be what has called it. What a mode is to run is the function itself.
"""

from __future__ import annotations

import types
from typing import Any

import torch

_OWNERS: tuple[Any, ...] = (torch.nn.functional, torch.functional, torch.nn.init, torch.Tensor, torch)
_ORIGINALS = {
    (owner, name): value
    for owner in _OWNERS
    for name, value in vars(owner).items()
    if isinstance(value, types.FunctionType) and value.__globals__["__name__"].partition(".")[0] == "torch"
}
_IDENTITIES = set(map(id, _ORIGINALS.values()))
_OF_C = types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType


def original_of(function: Any) -> Any:
    """The function of torch that tells of itself as ``function``."""
    is_operator = type(function).__module__.partition(".")[0] == "torch"
    if is_operator or isinstance(function, _OF_C) or id(function) in _IDENTITIES:
        return function
    found = (original for (owner, name), original in _ORIGINALS.items() if vars(owner).get(name) is function)
    return next(found, function)
