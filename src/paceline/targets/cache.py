"""Keys and values of one sequence, in buffers that are written in place.

A layer's buffer is ``[1, heads, capacity, width]``. Rows ``0 .. committed`` belong to the text, the rows behind them
to the draft being scored. Keeping a path moves its rows forward inside the buffer, so a round copies as many rows as
it accepts and allocates nothing that grows with the context. Sliding-window layers keep every row too: attention reads
the window only, and a rewind needs the rows before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.law.on_device import sent
from paceline.targets.base import Rows
from paceline.tree import Ints


@contextmanager
def persistent_tensors() -> Iterator[None]:
    """No gradients, and no inference mode of the caller: tensors that are made in it cannot be written to later."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        with torch.no_grad():
            yield


@dataclass
class LayerRows:
    """The buffers of one layer; allocated with the shape, type and device of its first rows."""

    capacity: int
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None
    filled: int = 0

    def write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write new rows ``[1, heads, n, width]`` at ``start``."""
        end = start + keys.shape[2]
        if self.keys is None or self.values is None:
            capacity = max(self.capacity, end)
            self.keys, self.values = _room(keys, capacity), _room(values, capacity)
            self.capacity = capacity
        elif end > self.capacity:
            capacity = max(end, 2 * self.capacity)
            self.keys, self.values = _moved(self.keys, capacity, start), _moved(self.values, capacity, start)
            self.capacity = capacity
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        self.filled = end

    def make_room(self, end: int, used: int, heads: int, width: int, dtype: torch.dtype) -> None:
        """Buffers for rows up to ``end``, of which the first ``used`` are kept."""
        if self.keys is None or self.values is None:
            capacity = max(self.capacity, end)
            like = torch.empty((1, heads, 1, width), dtype=dtype, device="cpu")
            self.keys, self.values = _room(like, capacity), _room(like, capacity)
            self.capacity = capacity
        elif end > self.capacity:
            capacity = max(end, 2 * self.capacity)
            self.keys, self.values = _moved(self.keys, capacity, used), _moved(self.values, capacity, used)
            self.capacity = capacity  # last, so an interrupted layer does not claim more than it has
        assert self.keys.dtype == self.values.dtype == dtype, "rows have one type as long as they are kept"
        self.filled = end

    @property
    def heads(self) -> int:
        assert self.keys is not None, "a layer has buffers once rows are written"
        return self.keys.shape[1]

    def span(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the rows ``start .. end``."""
        assert self.keys is not None and self.values is not None and end <= self.filled, "rows are written before read"
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def gather(self, start: int, index: torch.Tensor) -> None:
        """Move the rows ``index`` (ascending) to ``start``, in place."""
        if self.keys is None or self.values is None:
            return
        index = index.to(self.keys.device)
        self.keys[:, :, start : start + len(index)] = self.keys.index_select(2, index)
        self.values[:, :, start : start + len(index)] = self.values.index_select(2, index)


def _room(like: torch.Tensor, capacity: int) -> torch.Tensor:
    with persistent_tensors():
        return like.new_empty((*like.shape[:2], capacity, like.shape[3]))


def _moved(rows: torch.Tensor, capacity: int, used: int) -> torch.Tensor:
    moved = _room(rows, capacity)
    moved[:, :, :used] = rows[:, :, :used]
    return moved


class CacheRows(Rows):
    """The layers of one sequence. Only the first ``committed`` rows of a layer count, so a forward that was interrupted
    half-way leaves nothing to repair."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self.layers: dict[int, LayerRows] = {}
        self._places: Ints | None = None
        self._kind: tuple[Any, ...] = ()
        """Of the layers whose places these are."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerRows:
        """Write the rows that were last noted, in one layer."""
        rows = self.layers.get(layer)
        if rows is None:
            rows = self.layers[layer] = LayerRows(self._capacity)
        rows.write(self.committed + self.tentative - keys.shape[2], keys, values)
        self._places = None
        return rows

    def places(self, layers: Sequence[int], heads: int, width: int, fresh: int, dtype: torch.dtype) -> Ints:
        """For each layer how many rows its buffers have room for, and the addresses of its keys and of its values.
        There is room for the ``fresh`` rows that were last noted, which somebody else writes."""
        end = self.committed + self.tentative
        kind = (tuple(layers), heads, width, dtype)
        if self._places is None or kind != self._kind or end > self._places[:, 0].min():
            self._places = None  # layers move one after the other, and may be interrupted
            found = list[tuple[int, int, int]]()
            for layer in layers:
                rows = self.layers.setdefault(layer, LayerRows(self._capacity))
                rows.make_room(end, end - fresh, heads, width, dtype)
                assert rows.keys is not None and rows.values is not None, "there is room"
                found.append((rows.capacity, rows.keys.data_ptr(), rows.values.data_ptr()))
            self._places, self._kind = np.array(found, np.int64), kind
        for rows in self.layers.values():
            rows.filled = end
        return self._places

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, CacheRows), "rows are copied from a sequence of the same target"
        for number, layer in other.layers.items():
            self.write(number, *layer.span(0, count))

    def _gather(self, rows: Ints) -> None:
        start, end = self.committed, self.committed + len(rows)
        for layer in self.layers.values():
            layer.filled = end
        first = int(np.count_nonzero(rows == np.arange(len(rows))))  # a row that moves is followed by others that do
        if first == len(rows):
            return
        index = here = torch.from_numpy(start + rows[first:])
        for layer in self.layers.values():
            if layer.keys is not None:
                if index.device != layer.keys.device:  # sent once, as long as layers share a device
                    index = sent(here, layer.keys.device)
                layer.gather(start + first, index)

    def _truncate(self) -> None:
        for layer in self.layers.values():
            layer.filled = self.committed

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in all layers that are written."""
        buffers = [buffer for layer in self.layers.values() for buffer in (layer.keys, layer.values)]
        return sum(b.element_size() * b.shape[1] * b.shape[3] for b in buffers if b is not None)

    def check(self) -> None:
        expected = self.committed + self.tentative
        for number, layer in self.layers.items():
            assert layer.filled == expected, f"layer {number} holds {layer.filled} rows, the sequence {expected}"
            assert layer.keys is not None and layer.keys.shape[2] == layer.capacity >= expected

    def close(self) -> None:
        self.layers.clear()
        self._places = None
        self.committed = self.tentative = 0
