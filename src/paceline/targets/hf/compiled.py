"""Whether a model's forwards in floats are compiled (`fused`) instead of left to torch's kernels."""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.targets.hf.integers.kernels import without_numba
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.packed import packed_here, parameter_count
from paceline.targets.hf.speed import (
    FAVOUR,
    SLOWER,
    TIMED_ROWS,
    layer_of,
    once,
    relative,
    typical_layer,
)
from paceline.targets.hf.variants import is_silu, modules_of

TYPES = (torch.float32, torch.bfloat16)
CALLS_COUNT = 100_000_000
"""Models of fewer parameters are not timed: what torch spends between products is more than products differ by. Of 30
million a token took 1.7 ms compiled and 4.3 by torch, of 100 million 4.4 and 6.4 (bfloat16)."""


def compiled_beside(lean: Lean) -> Lean | None:
    """The path that computes the same model in one call; None where its layers are computed in another way."""
    from paceline.targets.hf.fused.path import Fused

    return Fused.beside(lean)


def compiling_pays(model: Any) -> bool:
    """Whether a model has the structure for it, and torch's kernels are not faster. Small models are not timed: there
    the calls count."""
    if model.device.type != "cpu" or model.dtype not in TYPES or getattr(model, "is_quantized", False):
        return False
    modules = modules_of(model)
    if modules is None or not all(is_silu(layer.act) for layer in modules.layers):
        return False
    if without_numba() is not None:
        return False
    largest = typical_layer(model)
    if largest is None or parameter_count(model) < CALLS_COUNT:
        return True
    kind = model.dtype, largest.in_features, largest.out_features
    try:
        return slowness_of_compiling(*kind, torch.get_num_threads()) < SLOWER
    except Exception:  # compilers raise errors of every kind; where the path is made, a note names them
        return True


@once
def slowness_of_compiling(dtype: torch.dtype, inputs: int, outputs: int, threads: int) -> float:
    """How many times as long a compiled product takes as the fastest of torch's, in this type or in float32."""
    from paceline.targets.hf.fused.weights import of_floats, product

    weights = of_floats(layer_of(dtype, inputs, outputs).weight.detach())
    if weights is None:
        return float("inf")
    theirs = [layer_of(kind, inputs, outputs) for kind in dict.fromkeys((dtype, torch.float32))]
    layers = [packed_here(layer) or layer for layer in theirs]
    rows = [torch.ones(max(TIMED_ROWS), inputs, dtype=layer.weight.dtype) for layer in theirs]

    def ours(given: torch.Tensor) -> torch.Tensor:
        return product(given, weights)

    took = relative([ours, *layers], [torch.ones(max(TIMED_ROWS), inputs), *rows], time.perf_counter)
    return FAVOUR * took[0] / min(took[1:])
