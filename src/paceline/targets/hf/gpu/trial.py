"""Whether the kernels can be used: they compile for the device, and compute what torch's operations compute, with and
without windows, soft-caps and sinks."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from paceline import launching
from paceline.once import once
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import AttentionOptions
from paceline.targets.hf.fixed.block import LeanBlock
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import SPLIT_TOLERANCE, TYPE_STEPS
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.operations import Heads, Operations

TYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTH, NODES = 300, 5
"""Of the text and of the draft that are tried."""
PARENTS = (-1, 0, 0, 1, 3)
HEADS, KV_HEADS, WIDTH = 4, 2, 32


def obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot be used on this device; None where they can."""
    if dtype not in TYPES:
        return f"they know no {str(dtype).removeprefix('torch.')}"
    if not launching.installed():
        return launching.NOT_INSTALLED
    try:
        with _disable_current_modes(), once():
            return _difference(device, dtype)
    except Exception as error:  # anything that a compiler for an untested device may raise
        return f"{type(error).__name__}: {error}".splitlines()[0]


@cache
def _difference(device: torch.device, dtype: torch.dtype) -> str | None:
    from paceline.targets.hf.gpu.block import KernelBlock
    from paceline.targets.hf.gpu.operations import LayerKernels

    with torch.inference_mode(False), torch.no_grad():
        case = _Case(device, dtype)
        shape = ForwardShape(0, 1, len(PARENTS), case.slab.capacity)
        found, expected = (
            case.results(block, operations)
            for block, operations in (
                (KernelBlock(case.slab, shape, case.inputs), LayerKernels()),
                (LeanBlock(case.slab, shape, case.inputs, splits=False), Operations()),
            )
        )
    for name, result in found.items():
        if not close(result, expected[name]):
            return f"{name} differs from torch's"
    return None


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results differ by their last roundings alone."""
    step = torch.finfo(other.dtype).eps * other.float().abs().max()
    gap = (one.float() - other.float()).abs().max()
    return bool(gap <= TYPE_STEPS * step + SPLIT_TOLERANCE * other.float().std())


class _Case:
    """A text of random numbers in a slot, and a draft behind it."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        random = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random).to(device, dtype)

        self.slab = Slab()
        self.slab.slots, self.slab.capacity = 1, 512
        for buffers in (self.slab.keys, self.slab.values):
            buffers[0] = drawn(1, KV_HEADS, self.slab.capacity, WIDTH)
        rows = CacheRows(0)
        rows.note(np.zeros(LENGTH, np.int64))
        rows.keep(range(LENGTH))
        self.inputs = Inputs(1, NODES, device)
        request = Request(rows, np.arange(NODES), np.array(PARENTS))
        self.inputs.fill([(0, request)], self.slab.capacity - 1)
        self.states, self.more = drawn(1, NODES, 200), drawn(1, NODES, 200)
        self.heads = Heads(drawn(1, NODES, HEADS + 2 * KV_HEADS, WIDTH), HEADS, KV_HEADS)
        self.cos_sin = drawn(NODES, 1, WIDTH), drawn(NODES, 1, WIDTH)
        self.sinks = drawn(HEADS)
        self.norm = _norm(drawn(200))
        self.layer: Any = SimpleNamespace(norms=(_norm(drawn(WIDTH)), _norm(drawn(WIDTH))))

    def results(self, block: Any, operations: Operations) -> dict[str, torch.Tensor]:
        total, normed = operations.added(self.states, self.more, self.norm)
        queries = operations.placed(self.heads, self.layer, 0, self.cos_sin, block)
        keys, values = (
            buffers[0][:, :, LENGTH : LENGTH + NODES].clone() for buffers in (self.slab.keys, self.slab.values)
        )
        found = {
            "the sum of states": total,
            "their norm": normed,
            "the gate": operations.gated(self.states, self.more, torch.nn.SiLU()),
            "the rotation of queries": queries,
            "the rotation of keys": keys,
            "the writing of values": values,
        }
        for name, options in _attentions(self.sinks).items():
            found[name] = block.attend(0, queries, options)
        return found


def _attentions(sinks: torch.Tensor) -> dict[str, AttentionOptions]:
    return {
        "attention": AttentionOptions(0.2),
        "attention with a window": AttentionOptions(0.2, window=100),
        "attention with a soft-cap": AttentionOptions(0.2, softcap=5.0),
        "attention with sinks": AttentionOptions(0.2, sinks=sinks),
    }


def _norm(weight: torch.Tensor) -> Any:
    return SimpleNamespace(_parameters={"weight": weight}, variance_epsilon=1e-5)
