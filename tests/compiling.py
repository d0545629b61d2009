"""Compiles every kernel that their trial starts, for GPUs that need not be here. Run as a script outside of Triton's
interpreter, with types and compute capabilities, it prints for each the device, the kernel, a type, the bytes of shared
memory, and how many bytes of a thread do not fit into registers."""

import re
import subprocess
import sys
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline import launching
from paceline.law import Noise, Sampling
from paceline.law.kernel_rows import KernelRows, in_one_kernel
from paceline.law.warp import Warps
from paceline.targets.hf.attention import AttentionOptions
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.gpu import running, trial
from paceline.targets.hf.gpu.block import KernelBlock
from paceline.targets.hf.gpu.operations import LayerKernels
from paceline.targets.hf.recurrent.scans import DeltaRows, DiagonalRows, Visits
from paceline.targets.hf.recurrent.scans_gpu import VisitTable, scan

NAMES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
    torch.float64: "*fp64",
}
OPTIONS = ("num_warps", "num_stages")
HEADS = [(64, 1), (64, 16), (128, 1), (128, 16), (256, 16)]
"""Widths of heads, and rows of a forward."""


def kind(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return NAMES[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def spilled(ptx: str, capability: int) -> int:
    """Bytes of a thread that do not fit into registers."""
    with NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [
            ptxas(capability),
            "-v",
            f"--gpu-name=sm_{capability}{'a' * (capability == 90)}",
            file.name,
            "-o",
            "/dev/null",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))


def ptxas(capability: int) -> str:
    found = knobs.nvidia.ptxas_blackwell if capability >= 100 else knobs.nvidia.ptxas
    return str(found.path)


def compiler(capability: int) -> Any:
    done = set[Any]()

    def compile_instead(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        names = kernel.arg_names
        fixed = {name: value for name, value in constants.items() if name not in OPTIONS}
        signature = {name: kind(value) for name, value in zip(names, arguments, strict=False)}
        signature |= dict.fromkeys(fixed, "constexpr")
        options = {name: constants[name] for name in OPTIONS if name in constants}
        free = {*(kernel.do_not_specialize or ()), *(kernel.do_not_specialize_on_alignment or ())}
        even = {
            (place,): [["tt.divisibility", 16]]
            for place, (name, value) in enumerate(zip(names, arguments, strict=False))
            if name not in free and (isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0))
        }
        ones = {
            name: 1
            for name, value in zip(names, arguments, strict=False)
            if isinstance(value, int) and value == 1 and name not in free
        }
        key = (kernel.__name__, *signature.items(), *fixed.items(), *ones, *even)
        if key in done:
            return
        done.add(key)
        for attributes, single in (({}, {}), (even, ones)):
            types = signature | dict.fromkeys(single, "constexpr")
            source = ASTSource(fn=kernel, signature=types, constexprs=fixed | single, attrs=attributes)
            found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            said = found.metadata.shared, spilled(found.asm["ptx"], capability)
            print(capability, kernel.__name__, arguments[0].dtype, *said)

    return compile_instead


def recurrences(dtype: torch.dtype) -> None:
    """Those of usual layers: 128 keys and values a head, decays of heads and of keys; Mamba's."""
    table = VisitTable([(Visits([-1, 0, 0], 2), 0)], torch.device("cpu"))
    zeros, states = partial(torch.zeros, dtype=dtype), torch.zeros(1, 4, 128, 128)
    for decay in ((3, 4), (3, 4, 128)):
        rows = DeltaRows(*(zeros(3, 4, 128) for _ in range(3)), zeros(decay), zeros(3, 4), raw=True)
        scan(table, states, rows, zeros(3, 4, 128), states.clone())
    for rates, decay in ((None, (3, 4)), (torch.zeros(4, 128, 16), (3, 4, 128))):
        size = 128 if rates is None else 16
        before = torch.zeros(3, 4, size)
        even = DiagonalRows(torch.zeros(3, 4, 128), torch.zeros(decay), before, before, rates)
        scan(table, states[..., :size].contiguous(), even, torch.zeros(3, 4, 128), states[..., :size].clone())


def main() -> None:
    running.processors = lambda device: 100
    types, *capabilities = sys.argv[1:]
    for capability in map(int, capabilities):
        launching.launch = compiler(capability)
        for dtype in (getattr(torch, name) for name in types.split()):
            case = trial._Case(torch.device("cpu"), dtype)
            shape = ForwardShape(0, 1, trial.NODES, case.slab.capacity)
            block = KernelBlock(case.slab, shape, case.inputs)
            case.results(block, LayerKernels())
            for cut in ({}, {"top_k": 50}):
                KernelRows(
                    torch.zeros(2, 5000, dtype=dtype), Warps.of(Sampling(temperature=1.0, **cut)), [(Noise(1), 2)] * 2
                ).lines()
            in_one_kernel(torch.zeros((2, 5), dtype=torch.int64), torch.zeros((2, 64), dtype=torch.int64), 0)
            for width, rows in HEADS:
                slots = (torch.zeros((1, 2, 4096, width), dtype=dtype),) * 2
                queries = torch.zeros((1, 8, rows, width), dtype=dtype)
                running.attend(queries, slots, Inputs(1, rows, torch.device("cpu")), AttentionOptions(0.1))
            recurrences(dtype)
            block.write(0, *(case.heads.all[:, :, :2].transpose(1, 2),) * 2)


if __name__ == "__main__":
    main()
