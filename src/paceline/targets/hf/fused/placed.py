"""The inputs of a forward, by address: a model's weights, its rows, and memory to work in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused import mixing
from paceline.targets.hf.fused.forward import forward
from paceline.targets.hf.fused.heads import own_floats
from paceline.targets.hf.fused.stages import reach, size_of
from paceline.targets.hf.fused.team import Table
from paceline.targets.hf.fused.tiles import OUTPUTS
from paceline.targets.hf.fused.weights import FUSED_KINDS, OF_TYPE, WeightKind, Weights, can_be, of_floats, padded
from paceline.targets.hf.integers.kernels import Compiled
from paceline.targets.hf.integers.linear import IntegerLinear
from paceline.targets.hf.integers.operations import coarseness
from paceline.targets.hf.joined import LinearSlice
from paceline.targets.hf.snapshot import is_altered
from paceline.targets.hf.variants import Layer, LlamaModules, is_silu
from paceline.tree import Ints

VALUE_BITS = 23
"""Next to 1.5 * 2^23 steps, floats are a step apart."""
FLOATS_OF_LINE = 16
"""Of a cache line."""


class Unplaceable(Exception):
    """Something computes in its own way here."""


class PlacedLayers:
    """Tables of layers. All that they name is held, so its memory stays."""

    def __init__(self, layers: Sequence[Layer], value_steps: dict[int, float] | None = None) -> None:
        """``value_steps`` are those of integers. `Unplaceable` where a linear layer is hooked, or another than these
        tables are for. A first layer without a norm before it is given what it reads."""
        self._held: list[torch.Tensor] = []
        """Memory that tables name, so that it stays."""
        count, first = len(layers), layers[0]
        self.layers = np.zeros((count, at.LAYER), np.int64)
        self.numbers = np.zeros((count, at.NUMBERS))
        self.places = [int(layer.attention.layer_idx) for layer in layers]
        self.size = int(first.attention.head_dim)
        self.width, self.inner = _outputs(first.out), _outputs(first.gate)
        self.heads, self.shared = (_outputs(linear) // self.size for linear in first.qkv[:2])
        self.reads = self.width if first.before is not None else int(getattr(first.qkv[0], "in_features", 0))
        """The width of what the first layer reads."""
        self.kind = self.head_kind = weights_of(first.out)[0].kind
        if not can_be(OF_TYPE[self.dtype], self.size):
            raise Unplaceable  # keys, which are multiplied with queries
        for number, layer in enumerate(layers):
            if not is_silu(layer.act) or is_altered(layer.act):
                raise Unplaceable
            table, numbers = self.layers[number], self.numbers[number]
            if layer.before is not None:
                table[at.BEFORE], numbers[at.EPS_BEFORE] = self._norm(layer.before, self.width)
            elif number:
                raise Unplaceable
            table[at.BETWEEN], numbers[at.EPS_BETWEEN] = self._norm(layer.between, self.width)
            if layer.norms is not None:
                table[at.QUERY_NORM], numbers[at.EPS_QUERY] = self._norm(layer.norms[0], self.size)
                table[at.KEY_NORM], numbers[at.EPS_KEY] = self._norm(layer.norms[1], self.size)
            table[at.WINDOW] = layer.window(layer.attention) or 0
            numbers[at.SCALE] = layer.attention.scaling
            if value_steps is not None:
                numbers[at.VALUE_SHIFT] = 1.5 * 2.0**VALUE_BITS * value_steps[layer.attention.layer_idx]
            linears = (*layer.qkv, layer.out, layer.gate, layer.up, layer.down)
            shapes = self._shapes(self.width if number else self.reads)
            for place, linear, shape in zip(range(at.QUERY, at.LAYER, at.LINEAR), linears, shapes, strict=True):
                table[place : place + at.LINEAR] = self._linear(linear, self.kind, shape)
        self.job = self._table()

    def _shapes(self, reads: int) -> list[tuple[int, int]]:
        """Outputs and inputs of a layer's linear layers."""
        heads, shared, width, inner = self.heads * self.size, self.shared * self.size, self.width, self.inner
        around = [(heads, reads), (shared, reads), (shared, reads), (width, heads)]
        return [*around, (inner, width), (inner, width), (width, inner)]

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return torch.bfloat16 if self.kind == FUSED_KINDS["brains"] else torch.float32

    def _norm(self, norm: Any, size: int) -> tuple[int, float]:
        return self._vector(norm._parameters["weight"], size), float(norm.variance_epsilon)

    def _linear(self, linear: nn.Module, kind: WeightKind, shape: tuple[int, int]) -> tuple[int, int, int, int, int]:
        """A linear layer's addresses."""
        outputs, inputs = shape
        if is_altered(linear):
            raise Unplaceable
        weights, first = weights_of(linear)
        given: Any = linear
        if weights.kind != kind or (_outputs(linear), int(given.in_features)) != (outputs, inputs) or first % OUTPUTS:
            raise Unplaceable
        if first + outputs > weights.outputs or weights.inputs != padded(kind, inputs):
            raise Unplaceable
        for tensor in (weights.memory, weights.scales, weights.multipliers):
            if tensor is not None:
                self._held.append(tensor.detach())
        bias = linear._parameters.get("bias")
        return weights.at(first, 0 if bias is None else self._vector(bias, outputs))

    def _vector(self, tensor: torch.Tensor | None, size: int) -> int:
        """The address of a norm's weight or of a bias, which is in the type of keys and values."""
        if tensor is None or tensor.shape != (size,) or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise Unplaceable
        if tensor.dtype != self.dtype:
            raise Unplaceable
        self._held.append(tensor.detach())
        return tensor.data_ptr()

    def _table(self) -> Table:
        """A job without rows."""
        table = np.zeros(at.JOB, np.int64)
        table[at.FUNCTION], table[at.FORM], table[at.HEAD_FORM] = forward(), self.kind.form, self.kind.form
        table[at.LAYERS], table[at.WIDTH], table[at.INNER] = len(self.layers), self.width, self.inner
        table[at.HEADS], table[at.SHARED], table[at.SIZE] = self.heads, self.shared, self.size
        table[at.LAYER_TABLE], table[at.LAYER_NUMBERS] = self.layers.ctypes.data, self.numbers.ctypes.data
        table[at.COARSENESS], table[at.NARROW] = _bits(coarseness(self.size)), self.dtype == torch.bfloat16
        table[at.SCORING] = OF_TYPE[self.dtype].product()
        table[at.MIXING] = (mixing.of_brains if self.dtype == torch.bfloat16 else mixing.of_floats)()
        return table


class PlacedWeights(PlacedLayers):
    """Those of a model, and of its head."""

    def __init__(self, modules: LlamaModules, value_steps: dict[int, float] | None) -> None:
        super().__init__(modules.layers, value_steps)
        self._modules = modules
        self.norm, self.eps = self._norm(modules.norm, self.width)
        self.vocabulary = _outputs(modules.head)
        self.head_kind = FUSED_KINDS[self.kind.head]
        self.head = self._linear(modules.head, self.head_kind, (self.vocabulary, self.width))
        self.embedding = self._rows_of_tokens(modules.embedding)
        self.job[at.HEAD_FORM], self.job[at.VOCABULARY] = self.head_kind.form, self.vocabulary
        self.job[at.NORM], self.job[at.EPS] = self.norm, _bits(self.eps)
        self.job[at.UNEMBEDDING : at.UNEMBEDDING + at.LINEAR] = self.head

    def _rows_of_tokens(self, embedding: Any) -> NDArray[Any] | None:
        """The embedding's weight, if it is nothing but that."""
        if type(embedding) is not nn.Embedding or is_altered(embedding):
            return None
        weight = embedding._parameters["weight"]
        if weight is None or weight.dtype not in (torch.float32, torch.bfloat16) or embedding.max_norm is not None:
            return None
        if not weight.is_contiguous() or weight.shape[1] != self.width:
            return None
        self._held.append(weight.detach())
        plain = weight.detach()
        return (plain if plain.dtype == torch.float32 else plain.view(torch.int16)).numpy()

    def embedded(self, tokens: Ints) -> NDArray[np.float32]:
        """The states ``[n, width]`` that enter the first layer."""
        if self.embedding is None:
            found: torch.Tensor = self._modules.embedding(torch.from_numpy(tokens))
            return found.float().contiguous().numpy().copy()
        rows = self.embedding.take(tokens, axis=0)
        return rows if rows.dtype == np.float32 else (rows.astype(np.int32) << 16).view(np.float32)


def weights_of(linear: Any) -> tuple[Weights, int]:
    """The weights that compute a linear layer, and its first output among theirs."""
    whole, first = (linear.joint.layer, linear.rows.start) if isinstance(linear, LinearSlice) else (linear, 0)
    if isinstance(whole, IntegerLinear) and isinstance(whole.product, Compiled):
        return whole.product.weights, first
    if type(whole) is nn.Linear and not is_altered(whole):
        weight = whole._parameters["weight"]
        if weight is not None and weight.device.type == "cpu" and (weights := of_floats(weight.detach())) is not None:
            return weights, first
    raise Unplaceable


def _outputs(linear: Any) -> int:
    return int(linear.out_features)


class Workspace:
    """Memory for the stages of a forward, kept for the next one."""

    def __init__(self, weights: PlacedLayers) -> None:
        heads = weights.heads * weights.size
        most = max(weights.width, weights.reads, weights.inner, heads)
        forms = {weights.kind.form, weights.head_kind.form}
        prepared = max(size_of.py_func(reach.py_func(most, form), form) for form in forms)
        self._sizes = {
            at.NORMED: (weights.width, torch.float32),
            at.PREPARED: (prepared, torch.int8),
            at.STEPS: (1, torch.float32),
            at.PROJECTED: (heads + 2 * weights.shared * weights.size, torch.float32),
            at.MIXED: (heads, torch.float32),
            at.GATE: (weights.inner, torch.float32),
            at.UP: (weights.inner, torch.float32),
            at.OUT: (weights.width, torch.float32),
        }
        self._group, self._size = weights.heads // weights.shared, weights.size
        self._memory: dict[int, np.ndarray[Any, Any]] = {}
        self._rows = self._length = self._threads = 0
        self._fields, self._places = list[int](), np.zeros(0, np.int64)

    def into(self, job: Table, rows: int, length: int) -> None:
        """Addresses of memory for ``rows`` rows of texts up to this length."""
        threads = int(job[at.THREADS])
        if rows > self._rows or length > self._length or threads > self._threads:
            self._grow(max(rows, self._rows), length, threads)
        job[self._fields] = self._places

    def _grow(self, rows: int, length: int, threads: int) -> None:
        had = self._rows, self._length, self._threads
        self._rows = self._length = self._threads = 0  # an interruption leaves nothing that is promised
        if rows > had[0]:
            self._memory |= {place: _empty(rows, size, kind) for place, (size, kind) in self._sizes.items()}
        if length > had[1] or threads > had[2]:
            had = rows, max(2 * length, had[1]), max(threads, had[2])
            floats = -(-own_floats(self._group, self._size, had[1]) // FLOATS_OF_LINE) * FLOATS_OF_LINE
            self._memory[at.SCRATCH] = _empty(had[2], floats, torch.float32)
        self._fields = [*self._memory, at.SCRATCH_SIZE]
        places = [memory.ctypes.data for memory in self._memory.values()]
        self._places = np.array([*places, self._memory[at.SCRATCH].strides[0]], np.int64)
        self._rows, self._length, self._threads = rows, had[1], had[2]


def _empty(rows: int, size: int, dtype: torch.dtype) -> NDArray[Any]:
    """Torch's memory begins with a cache line, so that of no row of whole lines is read twice."""
    found: NDArray[Any] = torch.empty((rows, size), dtype=dtype, device="cpu").numpy()
    return found


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


def texts_of(requests: Sequence[Request], weights: PlacedLayers) -> list[Table]:
    """Where the keys and values of each text lie, in each layer; there is room for those of its fresh rows."""
    tables = []
    for request in requests:
        rows = request.rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        fresh = len(request.tokens)
        tables.append(rows.places(weights.places, weights.shared, weights.size, fresh, weights.dtype))
    return tables


def _bits(value: float) -> np.int64:
    """A double, as a table has it."""
    return np.float64(value).view(np.int64)
