"""funcgrad: JAX-style functional transforms for PyTorch, compiled from one joint graph of forward and backward."""

from . import checkpoint_policies
from .errors import (
    AliasContractError,
    ArgumentError,
    AutocastWarning,
    AuxError,
    BuildError,
    CacheTrustError,
    CapturedTransformError,
    ContainerError,
    DataDependentControlFlowError,
    DataDependentShapeError,
    FuncgradError,
    GraphError,
    ImpureFunctionError,
    LargeBaseWarning,
    MissingCompilerWarning,
    MutationError,
    NonDifferentiableArgumentError,
    NonScalarOutputError,
    OptionError,
    PartitionError,
    ResultError,
    RetraceError,
    TraceError,
    TreeMismatchError,
    UnresolvedCaptureWarning,
    UnsupportedTensorError,
    UnsupportedTransformError,
    UnwatchedStateWarning,
    VerificationError,
)
from .options import Options
from .runtime.program import Program
from .runtime.stages import StageEvent, watch_compile
from .transforms.checkpoint import checkpoint, checkpoint_name
from .transforms.compiled import Compiled, no_retrace
from .transforms.grad import grad_and_value_compiled, grad_compiled, jit, value_and_grad_compiled
from .trees import tree_map

__version__ = "0.1.0"

__all__ = [
    "AliasContractError",
    "ArgumentError",
    "AutocastWarning",
    "AuxError",
    "BuildError",
    "CacheTrustError",
    "CapturedTransformError",
    "Compiled",
    "ContainerError",
    "DataDependentControlFlowError",
    "DataDependentShapeError",
    "FuncgradError",
    "GraphError",
    "ImpureFunctionError",
    "LargeBaseWarning",
    "MissingCompilerWarning",
    "MutationError",
    "NonDifferentiableArgumentError",
    "NonScalarOutputError",
    "OptionError",
    "Options",
    "PartitionError",
    "Program",
    "ResultError",
    "RetraceError",
    "StageEvent",
    "TraceError",
    "TreeMismatchError",
    "UnresolvedCaptureWarning",
    "UnsupportedTensorError",
    "UnsupportedTransformError",
    "UnwatchedStateWarning",
    "VerificationError",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "grad_and_value_compiled",
    "grad_compiled",
    "jit",
    "no_retrace",
    "tree_map",
    "value_and_grad_compiled",
    "watch_compile",
]
