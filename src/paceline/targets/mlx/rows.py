"""Keys and values of one sequence in MLX arrays.

A layer's buffer is ``[1, heads, capacity, width]``: the rows of the text, then those of the draft. MLX computes lazily
and its streams belong to threads, so nothing stays uncomputed between two forwards: keeping a path notes which rows
move, and the next forward moves them.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from paceline.targets.base import Rows
from paceline.tree import Ints


class LayerBuffers:
    """The buffers of one layer; made with the shape and type of its first rows."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.filled = 0

    def write(self, start: int, keys: mx.array, values: mx.array) -> None:
        """Write new rows ``[1, heads, n, width]`` at ``start``."""
        end = start + keys.shape[2]
        if self.keys is None or self.values is None:
            self._capacity = max(self._capacity, end)
            self.keys, self.values = _room(keys, self._capacity), _room(values, self._capacity)
        elif end > self._capacity:
            self._capacity = max(end, 2 * self._capacity)
            self.keys = _moved(self.keys, self._capacity, start)
            self.values = _moved(self.values, self._capacity, start)
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.filled = end

    def first(self, count: int) -> tuple[mx.array, mx.array]:
        """The first rows."""
        assert self.keys is not None and self.values is not None and count <= self.filled, "rows are written first"
        return self.keys[:, :, :count], self.values[:, :, :count]

    def gather(self, start: int, index: mx.array) -> None:
        """Move the rows ``index`` (ascending) to ``start``."""
        assert self.keys is not None and self.values is not None, "rows are written first"
        end = start + index.size
        self.keys[:, :, start:end] = self.keys[:, :, index]
        self.values[:, :, start:end] = self.values[:, :, index]

    @property
    def buffers(self) -> list[mx.array]:
        return [buffer for buffer in (self.keys, self.values) if buffer is not None]


def _room(like: mx.array, capacity: int) -> mx.array:
    return mx.zeros((*like.shape[:2], capacity, like.shape[3]), like.dtype)


def _moved(rows: mx.array, capacity: int, used: int) -> mx.array:
    moved = _room(rows, capacity)
    moved[:, :, :used] = rows[:, :, :used]
    return moved


class MLXRows(Rows):
    """The layers of one sequence. Only the first ``committed`` rows of a layer count, so a forward that was interrupted
    leaves nothing to repair, but where rows were being moved."""

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__()
        self.layers = [LayerBuffers(capacity) for _ in range(layers)]
        self._moves: tuple[int, Ints] | None = None
        """Where kept rows belong, and where they are."""

    def settle(self) -> None:
        """Move the rows of the path that was kept last."""
        if self._moves is not None:
            start, index = self._moves
            rows = mx.array(index)
            try:
                for layer in self._written():
                    layer.gather(start, rows)
            except BaseException:
                self.rewind(start)  # behind it some layers have moved
                raise
            self._moves = None

    def write(self, layer: int, keys: mx.array, values: mx.array) -> LayerBuffers:
        """Write the rows that were last noted, in one layer."""
        rows = self.layers[layer]
        rows.write(self.committed + self.tentative - keys.shape[2], keys, values)
        return rows

    @property
    def buffers(self) -> list[mx.array]:
        return [buffer for layer in self.layers for buffer in layer.buffers]

    def _written(self) -> Iterator[LayerBuffers]:
        return (layer for layer in self.layers if layer.keys is not None)

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, MLXRows), "rows are copied from a sequence of the same target"
        other.settle()
        self._moves = None
        if count:
            for number, layer in enumerate(other.layers):
                if layer.keys is not None:
                    self.write(number, *layer.first(count))
        mx.eval(self.buffers, other.buffers)

    def _gather(self, rows: Ints) -> None:
        first = int(np.count_nonzero(rows == np.arange(len(rows))))  # a row that moves is followed by others that do
        if first < len(rows):
            self._moves = self.committed + first, self.committed + rows[first:]
        for layer in self._written():
            layer.filled = self.committed + len(rows)

    def _truncate(self) -> None:
        if self._moves is not None and self._moves[0] >= self.committed:
            self._moves = None
        for layer in self._written():
            layer.filled = self.committed

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in all layers that are written."""
        return sum(buffer.itemsize * buffer.shape[1] * buffer.shape[3] for buffer in self.buffers)

    def check(self) -> None:
        expected = self.committed + self.tentative
        for number, layer in enumerate(self.layers):
            assert layer.keys is None or layer.filled == expected, (
                f"layer {number} holds {layer.filled} rows, not {self.committed} and {self.tentative}"
            )

    def close(self) -> None:
        self.layers = [LayerBuffers(0) for _ in self.layers]
        self._moves = None
