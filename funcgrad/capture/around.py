"""Memory around inputs: what a function looks at outside of the tensors it is given (``x.resize_(n)``, ``as_strided``).

A stand-in lies in no more memory than its own. Where what lies around it is written to, or there is to be more of it
than there is, the dry run starts again with a stand-in for all of the storage, which it is a view of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from ..state.restart import Known, Restart
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass, storage_id, unwrap_transform
from .memory import lies_within
from .trace import Trace
from .views import Geometry


def _input(trace: Trace, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """The stand-in that a tensor of the dry run is a view of, and the real tensor; None where it is made inside."""
    known, _, _ = trace.lineage.path(tensor, lambda t: id(t) in trace.reals, through=True)
    return known, trace.reals.get(id(known))


def room_for(trace: Trace, tensor: Tensor) -> int:
    """How many bytes there are in the storage of a tensor of the dry run."""
    known, real = _input(trace, tensor)
    with without_function_modes():  # a custom Function's write asks by torch's own code, which runs inside these
        room = unwrap_transform(known if real is None else real).untyped_storage().nbytes()
    return max(room, trace.memory_around.get(id(real), 0) * tensor.element_size())


def with_memory_of(trace: Trace, tensor: Tensor, look: Geometry) -> None:
    """Start again where a look at the memory of a tensor reaches around the input it lies in."""
    known, real = _input(trace, tensor)
    if real is not None and not lies_within(look, known):
        _start_again(trace, real, look.end)


def with_memory_written(trace: Trace, written: Iterable[Tensor]) -> None:
    """Start again where what is written to lies around an input."""
    for tensor in written:
        with_memory_of(trace, tensor, Geometry.of(tensor))


def looked(trace: Trace, tensor: Tensor, look: Geometry) -> None:
    """Write down a look at the memory of a tensor, if it reaches around an input."""
    known, real = _input(trace, tensor)
    if real is not None and not lies_within(look, known):
        trace.looked_around[id(real)] = max(look.end, trace.looked_around.get(id(real), 0))


def with_memory_looked_at(trace: Trace, named: Sequence[tuple[Any, Tensor]], written: Collection[int]) -> None:
    """Start again where such memory was written to, through any of the inputs."""
    storages = {storage_id(t) for _, t in named if id(t) in written}
    for _, real in named if trace.looked_around else ():
        if id(real) in trace.looked_around and storage_id(real) in storages:
            _start_again(trace, real, trace.looked_around[id(real)])


def _start_again(trace: Trace, real: Tensor, needed: int) -> None:
    """Returns where it is of no use: where autograd, or a class, would have to know what lies around."""
    is_plain = not (is_transform_wrapper(real) or is_wrapper_subclass(real) or real.requires_grad)
    if is_plain and trace.memory_around.get(id(real), 0) < needed:
        raise Restart(Known((real,) if id(real) in trace.captured else (), around={id(real): needed}))
