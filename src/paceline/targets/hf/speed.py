"""The fast types of this processor, measured: a few products of one linear layer, in some milliseconds.

Flags of a processor do not say how fast its libraries are, so nothing here looks at them. Some processors compute in
bfloat16 at twice the speed of float32, others take many times as long; and plain decoding, which waits for memory,
shows this least.

Other kernels round differently, so a choice between them can change a text at a near tie. The measurements are kept in
the cache directory, so that a machine makes the same choice in every process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.files import cached
from paceline.files.shape import Amount
from paceline.targets.hf.packed import is_ordinary, ordinary, packed_here, parameter_count
from paceline.targets.place import free_memory
from paceline.targets.setup import kernels, processor, versions

TIMED_ROWS = (1, 4, 16)
"""A single row, and drafts."""
TURNS = 5
"""Each time is the shortest of this many turns."""
CACHES = 1 << 25
"""Bytes that are written before each product: weights of a real model do not come from the processor's caches."""
LARGEST = 1 << 24
"""Values of the layer at most: a larger one takes longer to measure and says the same."""
SLOWER = 1.1
"""A type, or packed weights, are given up if they take this many times as long as the alternative."""
FAVOUR = 0.7
"""The weight of a compiled product's time: the forward around it saves more than can be timed with one product."""
SMALL_MODEL_PARAMETERS = 10_000_000
"""Models of fewer parameters are fast enough in any type."""
FOLDER = "kernels"
"""In the cache directory."""
SPARE = 0.8
"""The share of free memory that wider weights may take."""

Layer = Callable[[torch.Tensor], object]


def relative(layers: Sequence[Layer], inputs: Sequence[torch.Tensor], clock: Callable[[], float]) -> list[float]:
    """The time of each layer over its ``inputs`` of each number of `TIMED_ROWS`, as a share of the quickest one's: the
    mean of all numbers. An input is cut to its first rows."""
    totals = [0.0] * len(layers)
    for count in TIMED_ROWS:
        # each its turns at a stretch: another library's threads look for work for a while after each of its calls
        least = [
            min(_seconds(layer, rows[:count].clone(), clock) for _ in range(TURNS))
            for layer, rows in zip(layers, inputs, strict=True)
        ]
        totals = [total + took / min(least) / len(TIMED_ROWS) for total, took in zip(totals, least, strict=True)]
    return totals


def _seconds(layer: Layer, rows: torch.Tensor, clock: Callable[[], float]) -> float:
    np.ones(CACHES, np.uint8)  # by this thread: torch's others would look for more work for some milliseconds
    began = clock()
    layer(rows)
    return clock() - began


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A stored ratio of times, with its subject and the libraries that it holds for."""

    of: str
    versions: Mapping[str, str]
    times: Amount


Measure = Callable[[torch.dtype, int, int, int], float]
"""A ratio of times of a linear layer: of its type, inputs, outputs and threads."""


def once(measure: Measure) -> Measure:
    """Measure once on a machine: in this process, and in the cache directory for the next ones."""

    @cache
    @wraps(measure)
    def times(*layer: Any) -> float:
        of = " ".join([measure.__name__, *map(str, layer), processor(), kernels()])

        def made() -> Ratio:
            return Ratio(of=of, versions=versions(), times=measure(*layer))

        def usable(known: Ratio) -> bool:
            return known.of == of and dict(known.versions) == versions()

        return cached(FOLDER, of, Ratio, made, usable).times

    return times


@once
def slowness(dtype: torch.dtype, inputs: int, outputs: int, threads: int) -> float:
    """How many times as long a linear layer takes in a type as in float32, with the kernels that would be used."""
    kinds = (dtype, torch.float32)
    layers = [layer_of(kind, inputs, outputs) for kind in kinds]
    rows = [torch.ones(max(TIMED_ROWS), inputs, dtype=kind) for kind in kinds]
    packed = [(packed_here(layer) if is_ordinary(layer) else None) or layer for layer in layers]
    took = relative(packed, rows, time.perf_counter)
    return took[0] / took[1]


@once
def slowness_of_packing(dtype: torch.dtype, inputs: int, outputs: int, threads: int) -> float:
    """How many times as long a linear layer takes packed as it does ordinary; 1 where it cannot be packed."""
    layer = layer_of(dtype, inputs, outputs)
    packed = packed_here(layer)
    if packed is None:
        return 1.0
    took = relative([packed, layer], [torch.ones(max(TIMED_ROWS), inputs, dtype=dtype)] * 2, time.perf_counter)
    return took[0] / took[1]


def layer_of(dtype: torch.dtype, inputs: int, outputs: int) -> nn.Linear:
    """A layer to be timed, of zeros."""
    return ordinary(torch.zeros(min(outputs, max(1, LARGEST // inputs)), inputs, dtype=dtype), None)


def packing_pays(model: nn.Module) -> bool:
    """Whether packed weights are at least about as fast as ordinary ones. Small models are not timed: there the calls
    count."""
    largest = typical_layer(model)
    if largest is None or not is_ordinary(largest) or parameter_count(model) < SMALL_MODEL_PARAMETERS:
        return True
    kind = largest.weight.dtype, largest.in_features, largest.out_features
    return slowness_of_packing(*kind, torch.get_num_threads()) < SLOWER


def typical_layer(model: nn.Module) -> nn.Linear | None:
    """The largest linear layer."""
    linears = (layer for layer in model.modules() if type(layer) is nn.Linear)
    return max(linears, key=lambda layer: layer.weight.numel(), default=None)


@torch.no_grad()
def widened(model: nn.Module) -> str | None:
    """Turn a model on the CPU into float32 where that is faster than its own type, and a sentence that says so. None
    where it stays as it is."""
    dtype: Any = model.dtype
    largest = typical_layer(model)
    if (
        dtype not in (torch.bfloat16, torch.float16)
        or parameter_count(model) < SMALL_MODEL_PARAMETERS
        or largest is None
    ):
        return None
    if getattr(model, "is_quantized", False):  # transformers then refuses other types
        return None
    times = slowness(dtype, largest.in_features, largest.out_features, torch.get_num_threads())
    if times < SLOWER:
        return None
    name = str(dtype).removeprefix("torch.")
    slow = f"products in {name}, the checkpoint's type, take {times:.1f} times as long on this processor"
    free = free_memory(torch.device("cpu"))
    if free is not None and _wider_by(model) > SPARE * free:
        return f"computed in {name}: {slow}, but wider ones do not fit into memory; try --quantize int8"
    to_float32(model)
    return f"computed in float32: {slow}; --dtype {name} keeps it"


def to_float32(model: nn.Module) -> None:
    """Turn a model into float32, unless it is quantised: transformers then refuses other types."""
    if getattr(model, "is_quantized", False):
        return
    model.float()
    config: Any = model.config
    config.get_text_config().dtype = torch.float32


def _wider_by(model: nn.Module) -> int:
    """Bytes by which the weights grow; each is replaced before the next one."""
    return sum(weight.numel() * (4 - weight.element_size()) for weight in model.parameters())
