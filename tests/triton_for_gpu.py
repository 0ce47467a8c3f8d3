"""Compiles kernels of every form for an H100 that need not be there: ``python tests/triton_for_gpu.py``, without
TRITON_INTERPRET."""

import sys
from pathlib import Path

import torch
import triton as real_triton
from attrs import evolve
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parent))

from golden.test_kernels import CASES
from triton_samples import FORWARD, column_totals, draws, scans

import funcgrad as fg
from funcgrad.backends import triton, triton_language
from funcgrad.backends.fused import TritonBackend
from funcgrad.machine import GPU
from funcgrad.memory.steps import Launch
from funcgrad.source import compile_module

NAMES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip


def every_operation(x, w, half, truth):
    return (
        x.tan() + x.erf() * x.sigmoid(), x.remainder(0.7), (w % 5).abs(), x.amax(0), truth.any(1),
        (half * half).exp().sum(0), half.amin(1),
        torch.where(truth, x, -0.0).round(), ~w, w.to(torch.uint8), x.double().pow(2.3).sum(), x.prod(1), w.sum(0),
        truth < ~truth,
    )  # fmt: skip


def compile_all(program):
    backend = TritonBackend(torch.device("cpu"), machine)
    for kernels in program.kernels:
        schedule = backend.schedule(backend.lower(kernels.graph))
        module = compile_module(backend.emit(schedule)[1])
        for kernel in (k for step in schedule.steps if isinstance(step, Launch) for k in step.kernels):
            printed = triton.print_kernel(kernel, machine)
            dtypes = {b.name: b.dtype for b in kernel.parameters}
            compile_one(module[printed.name], [*dtypes.values(), *(p.dtype for p in printed.partials)], printed.warps)
            for i, p in enumerate(printed.partials):
                compile_one(module[f"{printed.name}_total{i}"], [p.dtype, dtypes[p.buffer]], 4)


compiled_before = set()
machine = GPU


def compile_one(kernel, dtypes, warps):
    if (kernel.__name__, *dtypes) in compiled_before:
        return
    compiled_before.add((kernel.__name__, *dtypes))
    signature = {name: f"*{NAMES[dtype]}" for name, dtype in zip(kernel.arg_names, dtypes, strict=True)}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(dtypes))}
    source = ASTSource(fn=kernel, signature=signature, constexprs={}, attrs=aligned)
    compiled = real_triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert ".entry" in compiled.asm["ptx"]


x = torch.zeros(6, 40)
fg.jit(lambda x: x.sin() * 2, backend="c")(x)
assert "funcgrad.backends.triton_functions" not in sys.modules  # Triton is none of the others' business
compile_all(fg.jit(every_operation, backend="aten").program(x, x.to(torch.int16), x.bfloat16(), x > 0))
for f, argument in CASES.values():
    compile_all(fg.grad_compiled(f, backend="aten").program(argument))
for f, *arguments in FORWARD.values():
    compile_all(fg.jit(f, backend="aten").program(*arguments))
compile_all(fg.jit(draws, backend="aten", rng="philox").program(x))
triton._LONGEST, triton._STEP, triton._STRIP, triton._TILE = 8, 16, 16, 64
machine = evolve(GPU, programs=2)
compile_all(fg.grad_compiled(column_totals, backend="aten").program(x))
compile_all(fg.jit(scans, backend="aten").program(x))
triton_language.WIDE_FROM = 0
compile_all(fg.grad_compiled(column_totals, backend="aten").program(x))
print("all compiled")
