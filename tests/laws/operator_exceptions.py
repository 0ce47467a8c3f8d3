"""What compiled functions do otherwise than eager PyTorch on samples of its own databases, and why. The list only
shrinks: one that agrees on all samples fails ``tests/laws/operators.py``."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Exceptional:
    """Part of what is said of an operator, why it is, and of which operators it may be said, by kind."""

    says: str
    why: str
    of: Mapping[str, str]
    """The kinds of a line, and names."""

    def names(self, kind: str) -> list[str]:
        return [name for kinds, names in self.of.items() if kind in kinds.split() for name in names.split()]


READS = "a program is of one path of its function: which one, values decide"

EXCEPTIONS: tuple[Exceptional, ...] = (
    Exceptional("DataDependentControlFlowError", READS, {
        "second": "as_strided_scatter",
        "engine": "svd linalg.svd svd_lowrank pca_lowrank",
    }),
    Exceptional("DataDependentShapeError", READS, {"engine": "index_fill index_put"}),
    Exceptional("sparse", "graphs are of dense tensors", {
        "value gradient second": "sparse.sampled_addmm",
        "value gradient engine": "sparse.mm.reduce",
        "value gradient second engine": "to_sparse",
    }),
    Exceptional("attempting to assign a gradient",
    "Python may not give a sparse leaf the dense gradient that the engine gives it", {
        "engine": "sparse.sampled_addmm",
    }),
    Exceptional("2 results for 3", "the gradient of one factor, or none, does not depend on it, and requires no grad",
    {"second": "prod"}),
    Exceptional("for [0.0", "eager PyTorch's kernel has a sixth in single precision",
    {"gradient": "nn.functional.hardsigmoid"}),
    Exceptional("bfloat16: [0.0, 1.19", "the gradient is zero; eager PyTorch rounds each operation",
    {"gradient": "nn.functional.normalize"}),
    Exceptional("aten::expand() Expected",
    "PyTorch's decomposition of the batched call takes the other end, a number, for a tensor", {
        "vmap": "linspace.tensor_overload logspace.tensor_overload",
    }),
)  # fmt: skip
