"""The keys and values of a block of slots, as the layers of one forward write and read them."""

from __future__ import annotations

import torch

from paceline.targets.hf.attention import AttentionOptions, KVCache
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import attention, mask_type
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.fixed.slab import Slab


class LeanBlock(KVCache):
    """All slots of a block at once, used or not."""

    def __init__(self, slab: Slab, shape: ForwardShape, inputs: Inputs, *, splits: bool) -> None:
        self._slab, self._shape, self._inputs, self._splits = slab, shape, inputs, splits
        self._indices: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
        self._keys_read: dict[int | None, torch.Tensor | None] = {}
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}

    def _slots(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[self._shape.first : self._shape.first + self._shape.count]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for buffers, states in ((self._slab.keys, keys), (self._slab.values, values)):
            slots = self._slots(buffers[layer])
            rows = states[0].unflatten(1, (self._shape.count, self._shape.rows)).transpose(0, 1)
            slots.index_put_((*self._first_two(slots), self._inputs.places[:, None]), rows)

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        heads, kv_heads, width = query.shape[1], self._slab.keys[layer].shape[1], query.shape[3]
        count, n, group = self._shape.count, self._shape.rows, heads // kv_heads
        rows = query[0].reshape(kv_heads, group, count, n, width).permute(2, 0, 1, 3, 4)
        rows = rows.reshape(count, kv_heads, group * n, width)
        cached, their_values = (self._cached(b[layer], options.window) for b in (self._slab.keys, self._slab.values))
        mask = self._mask(options.window, mask_type(query.dtype, options), group)
        mixed = attention(rows, cached, their_values, mask, options, self._splits)
        mixed = mixed.reshape(count, kv_heads, group, n, -1).permute(1, 2, 0, 3, 4)
        return mixed.reshape(1, heads, count * n, -1)

    def _cached(self, buffer: torch.Tensor, window: int | None) -> torch.Tensor:
        """The rows of each slot that a layer reads, ``[count, kv heads, keys, width]``."""
        slots, keys = self._slots(buffer), self._keys(window)
        if keys is None:
            return slots[:, :, : self._shape.length]
        return slots[(*self._first_two(slots), keys[:, None])]

    def _keys(self, window: int | None) -> torch.Tensor | None:
        """The numbers of these rows, computed once for each window, as masks are."""
        if window not in self._keys_read:
            self._keys_read[window] = self._inputs.keys(window, self._shape.length)
        return self._keys_read[window]

    def _mask(self, window: int | None, dtype: torch.dtype, group: int) -> torch.Tensor:
        key = (window, dtype, group)
        if key not in self._masks:
            keys = self._keys(window)
            if keys is None:
                keys = torch.arange(self._shape.length, device=self._inputs.tokens.device)
            self._masks[key] = self._inputs.mask(window, keys, dtype, group)
        return self._masks[key]

    def _first_two(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of all slots and heads, to index with beside row numbers ``[count, 1, some]``."""
        sizes = slots.shape[:2]
        if sizes not in self._indices:
            slot, head = (torch.arange(size, device=slots.device) for size in sizes)
            self._indices[sizes] = slot[:, None, None], head[None, :, None]
        return self._indices[sizes]
