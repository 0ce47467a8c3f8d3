"""vmap over so many samples at a time: a map over chunks, whose body is compiled once; and as many at a time as
memory allows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..backends.peak import predicted_peak
from ..capture.inputs import Inputs
from ..capture.trace import active_trace
from ..errors import PartitionError
from ..graph_primitives import Path
from ..options import Options, log
from ..runtime.program import Program
from ..torch_private.levels import broadcast_dims, map_over, mapped_leaves
from ..trees import flatten, unflatten
from .compiled import Compiled
from .definition import Definition
from .packed import with_values

Fn = Callable[..., Any]
_UNROLLED = 4
"""So many chunks are written out one after the other."""


def in_chunks(f: Fn, in_dims: Any, out_dims: Any, randomness: str, chunk_size: int) -> Fn:
    """``torch.func.vmap(f, in_dims, out_dims, randomness, chunk_size=chunk_size)``. In a trace a map over the
    chunks; few chunks, samples that draw, and results that have no batch dimension as torch has them."""
    whole: Fn = torch.func.vmap(f, in_dims, out_dims, randomness, chunk_size=chunk_size)

    def call(*args: Any, **kwargs: Any) -> Any:
        size, dims, leaves, rebuilt = mapped_leaves(in_dims, args, f)
        plain = isinstance(size, int) and randomness == "error" and all(d is not None for d in flatten(out_dims)[0])
        if active_trace() is None or not plain or size <= _UNROLLED * chunk_size:
            return whole(*args, **kwargs)
        batched = [i for i, d in enumerate(dims) if d is not None]
        shared = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and dims[i] is None]

        def of_one(samples: Sequence[Tensor], *same: Tensor) -> Any:
            return f(*rebuilt(with_values(leaves, (*batched, *shared), (*samples, *same))), **kwargs)

        of_chunk, same = torch.func.vmap(of_one, (0, *(None for _ in shared))), [leaves[i] for i in shared]
        first = [leaves[i].movedim(dims[i], 0) for i in batched]
        n, rest = divmod(size, chunk_size)
        chunks = [v.narrow(0, 0, n * chunk_size).unflatten(0, (n, chunk_size)) for v in first]
        outs, tree, _ = flatten(map_over(of_chunk, chunks, *same))
        outs = [v.flatten(0, 1) for v in outs]
        if rest:
            more = flatten(of_chunk([v.narrow(0, n * chunk_size, rest) for v in first], *same))[0]
            outs = [torch.cat(pair) for pair in zip(outs, more, strict=True)]
        at = broadcast_dims(out_dims, unflatten(outs, tree))
        return unflatten([v.movedim(0, d) for v, d in zip(outs, at, strict=True)], tree)

    return call


class Fitting(Compiled):
    """A vmap over as many samples at a time as memory allows: ``memory_budget`` in bytes, or most of what is free
    when it compiles."""

    def __init__(self, make: Callable[[int | None], Definition], options: Options) -> None:
        """``make``: the definition of so many samples at a time; None for all at once."""
        super().__init__(make(None), options)
        self._make = make

    def _compile(self, inputs: Inputs, path: Path) -> Program:
        limit = _limit(self._options.memory_budget, [t.device for _, t in inputs.tensors])
        most = max((max(t.shape, default=1) for _, t in inputs.tensors), default=1)
        chunk: int | None = None
        while True:
            own = Compiled(self._make(chunk), self._options)
            own._effects_lock = self._effects_lock
            try:
                program = own._compile(inputs, path)
                peak = predicted_peak(program.schedule)
                if peak <= limit or chunk == 1:
                    return program
            except PartitionError:
                if chunk == 1:
                    raise
                peak = int(2 * limit)
            log(1, f"{self.__name__}: {chunk or 'all'} samples at a time take {peak} bytes, of {limit:.0f}")
            # what the results take does not shrink: at least by half
            chunk = max(1, min((chunk or most) // 2, int((chunk or most) * limit / peak)))

    @property
    def _made_of(self) -> Any:
        return self._make


_SHARE = 0.8
"""Of what is free."""


def _limit(budget: Any, devices: list[torch.device]) -> float:
    if isinstance(budget, int):
        return budget
    cuda = next((device for device in devices if device.type == "cuda"), None)
    if cuda is not None:
        return _SHARE * torch.cuda.mem_get_info(cuda)[0]
    return _SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
