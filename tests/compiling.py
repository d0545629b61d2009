"""Compiles every kernel that their trial starts, for GPUs that need not be here. Run as a script outside of Triton's
interpreter, with types and compute capabilities, it prints for each the device, the kernel, and the bytes of what was
compiled."""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline import launching
from paceline.law import Noise, Sampling
from paceline.law.kernel_rows import KernelRows, gumbel
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.gpu import running, trial
from paceline.targets.hf.gpu.block import KernelBlock
from paceline.targets.hf.gpu.operations import LayerKernels

NAMES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.float64: "*fp64",
}
OPTIONS = ("num_warps", "num_stages")


def kind(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return NAMES[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def compiler(capability: int) -> Any:
    done = set[Any]()

    def compile_instead(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        names = kernel.arg_names
        fixed = {name: value for name, value in constants.items() if name not in OPTIONS}
        signature = {name: kind(value) for name, value in zip(names, arguments, strict=False)}
        signature |= dict.fromkeys(fixed, "constexpr")
        options = {name: constants[name] for name in OPTIONS if name in constants}
        key = (kernel.__name__, *signature.items(), *fixed.items())
        if key in done:
            return
        done.add(key)
        source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
        found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        print(capability, kernel.__name__, arguments[0].dtype, len(found.asm["cubin"]))

    return compile_instead


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
                    torch.zeros(2, 5000, dtype=dtype), Sampling(temperature=1.0, **cut), [(Noise(1), 2)] * 2
                ).lines()
            gumbel(torch.zeros((2, 5), dtype=torch.int64), torch.zeros((2, 64), dtype=torch.int64), 0)
            block.write(0, *(case.heads.all[:, :, :2].transpose(1, 2),) * 2)


if __name__ == "__main__":
    main()
