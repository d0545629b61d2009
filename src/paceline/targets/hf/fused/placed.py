"""What a forward reads, by its address: a model's weights, its rows, and memory to work in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.team import Table
from paceline.targets.hf.int8.kernels import Compiled
from paceline.targets.hf.int8.linear import Int8Linear
from paceline.targets.hf.joined import LinearSlice
from paceline.targets.hf.variants import LlamaModules

VALUE_BITS = 23
"""Next to 1.5 * 2^23 steps, floats are a step apart."""
LINE = 16
"""Floats of a cache line."""


class PlacedWeights:
    """Tables of a model's layers and of its head. The tensors are held, so their memory stays."""

    def __init__(self, modules: LlamaModules, value_steps: dict[int, float]) -> None:
        self._held: list[tuple[dict[str, Any], str, torch.Tensor | None]] = []
        """Parameters with their places in modules."""
        count, first = len(modules.layers), modules.layers[0]
        self.layers = np.zeros((count, at.LAYER), np.int64)
        self.numbers = np.zeros((count, at.NUMBERS))
        self.places = [int(layer.attention.layer_idx) for layer in modules.layers]
        self.size = int(first.attention.head_dim)
        self.width, self.inner = int(first.out.out_features), int(first.gate.out_features)  # type: ignore[arg-type]
        self.heads, self.shared = (int(linear.out_features) // self.size for linear in first.qkv[:2])  # type: ignore[arg-type]
        for number, layer in enumerate(modules.layers):
            table, numbers = self.layers[number], self.numbers[number]
            table[at.BEFORE], numbers[at.EPS_BEFORE] = self._norm(layer.before)
            table[at.BETWEEN], numbers[at.EPS_BETWEEN] = self._norm(layer.between)
            if layer.norms is not None:
                table[at.QUERY_NORM], numbers[at.EPS_QUERY] = self._norm(layer.norms[0])
                table[at.KEY_NORM], numbers[at.EPS_KEY] = self._norm(layer.norms[1])
            table[at.WINDOW] = layer.window(layer.attention) or 0
            numbers[at.SCALE] = layer.attention.scaling
            numbers[at.VALUE_SHIFT] = 1.5 * 2.0**VALUE_BITS * value_steps[layer.attention.layer_idx]
            linears = (*layer.qkv, layer.out, layer.gate, layer.up, layer.down)
            for place, linear in zip(range(at.QUERY, at.LAYER, 3), linears, strict=True):
                table[place : place + 3] = self._linear(linear)
        self.norm, self.eps = self._norm(modules.norm)
        self.head, self.vocabulary = self._linear(modules.head), int(modules.head.out_features)  # type: ignore[arg-type]

    def unchanged(self) -> bool:
        """Whether the model's parameters are still those in the tables."""
        return all(place[name] is held for place, name, held in self._held)

    def _norm(self, norm: Any) -> tuple[int, float]:
        weight = self._parameter(norm, "weight")
        assert weight is not None, "a norm has a weight"
        return weight.data_ptr(), float(norm.variance_epsilon)

    def _linear(self, linear: nn.Module) -> tuple[int, int, int]:
        """Addresses of a weight, its scales and its bias."""
        whole, first = (linear.joint.layer, linear.rows.start) if isinstance(linear, LinearSlice) else (linear, 0)
        assert isinstance(whole, Int8Linear) and isinstance(whole.product, Compiled), "all layers are of one kind"
        weight, scales = whole.product.integers, whole.product.scales
        bias = None if linear.bias is None else self._parameter(linear, "bias")
        place = weight.data_ptr() + first * weight.shape[1]
        return place, scales.data_ptr() + 4 * first, 0 if bias is None else bias.data_ptr()

    def _parameter(self, module: nn.Module, name: str) -> torch.Tensor | None:
        tensor = module._parameters[name]
        self._held.append((module._parameters, name, tensor))
        if tensor is not None:
            assert tensor.dtype == torch.float32 and tensor.is_contiguous(), "what is not quantised is widened"
        return tensor


class Workspace:
    """Memory for the stages of a forward, kept for the next one."""

    def __init__(self, weights: PlacedWeights) -> None:
        heads = weights.heads * weights.size
        self._sizes = {
            at.NORMED: (weights.width, np.float32),
            at.SHORTS: (max(weights.width, weights.inner, heads), np.int16),
            at.STEPS: (1, np.float32),
            at.PROJECTED: (heads + 2 * weights.shared * weights.size, np.float32),
            at.MIXED: (heads, np.float32),
            at.GATE: (weights.inner, np.float32),
            at.UP: (weights.inner, np.float32),
            at.OUT: (weights.width, np.float32),
        }
        self._own = 2 * weights.size
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._rows = self._length = self._threads = 0

    def into(self, job: Table, rows: int, length: int) -> None:
        """Addresses of memory for so many rows of texts up to this length."""
        threads = int(job[at.THREADS])
        if rows > self._rows:
            self._memory |= {place: np.empty((rows, size), kind) for place, (size, kind) in self._sizes.items()}
            self._rows = rows
        if length > self._length or threads > self._threads:
            self._length, self._threads = 2 * length, threads
            floats = -(-(self._own + self._length) // LINE) * LINE
            self._memory[at.SCRATCH] = np.empty((threads, floats), np.float32)
        for place, memory in self._memory.items():
            job[place] = memory.ctypes.data
        job[at.SCRATCH_SIZE] = self._memory[at.SCRATCH].strides[0]


def rows_of(requests: Sequence[Request]) -> tuple[Table, Table]:
    """The table of all rows, and the places that rows see beyond the first ones."""
    tables, further, begun = list[Table](), [np.zeros(1, np.int64)], 1
    for number, request in enumerate(requests):
        count, committed = len(request.tokens), request.rows.committed
        table = np.zeros((count, at.ROW), np.int64)
        table[:, at.TEXT], table[:, at.POSITION] = number, request.positions
        table[:, at.PLACE] = np.arange(committed + request.held, committed + request.held + count)
        if request.is_chain:
            table[:, at.PREFIX] = table[:, at.PLACE] + 1
        else:
            seen = request.visible
            counts = seen.sum(axis=1)
            table[:, at.PREFIX], table[:, at.FURTHER_COUNT] = committed, counts
            table[:, at.FURTHER] = begun + np.cumsum(counts) - counts
            further.append(np.nonzero(seen)[1] + committed)
            begun += len(further[-1])
        tables.append(table)
    return np.concatenate(tables), np.concatenate(further)


def text_of(rows: CacheRows, weights: PlacedWeights) -> Table:
    """The room of a text's buffers, and where its keys and values lie in each layer."""
    table = np.zeros(1 + 2 * len(weights.places), np.int64)
    for number, place in enumerate(weights.places):
        layer = rows.room(place, weights.shared, weights.size)
        assert layer.keys is not None and layer.values is not None, "there is room"
        table[0] = layer.capacity
        table[1 + 2 * number], table[2 + 2 * number] = layer.keys.data_ptr(), layer.values.data_ptr()
    return table
