"""Slab: keys and values of many sequences in one buffer per layer, ``[slots, heads, capacity, width]``.

A recorded forward reads and writes the addresses it was recorded with, so rows must not move from round to round.
Sequences therefore share buffers that outlive them: an open sequence has a slot, and a later one reuses it. Growth:
the number of slots doubles; the capacity, which all slots share, follows the rows that are written (`bucket`), at most
`AHEAD` rows in front of them, however large the requested capacity is, since every slot pays for it. Growing moves the
buffers layer by layer and drops every recording. Memory is given back by `release`, once no slot is taken; not with the
last slot, because the next text would have to record everything again.

The last row of every slot is scratch: padding rows of a fixed shape are written there. Buffers start as zeros and a
reused slot is zeroed, since a masked key still enters a product, and zero times infinity is not a number.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable

import torch

from paceline.targets.base import Rows
from paceline.targets.cache import CacheRows, LayerRows
from paceline.tree import Ints

GRAIN = 512
"""The least capacity of a slot."""
AHEAD = 1024
"""Requested rows for which a growing slab makes room before they are written."""
SHARE = 0.8
"""The share of a device's free memory that a growing slab may take."""


class Slab:
    """The buffers of all layers, and the sequences in their slots. ``spare`` returns the bytes it may still take."""

    def __init__(self, spare: Callable[[], int] | None = None, on_move: Callable[[], None] | None = None) -> None:
        self.slots = 0
        self.capacity = 0
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self.lock = threading.RLock()
        """Held while buffers move, and by every forward, so that they do not move meanwhile."""
        self._spare = spare
        self.on_move = [on_move] if on_move is not None else []
        """The callback before buffers move or are given back."""
        self._taken: dict[int, weakref.ref[SlabRows]] = {}
        self._used: set[int] = set()

    @property
    def taken(self) -> list[SlabRows]:
        """The rows that have a slot. Rows that were dropped without being closed have none. The garbage collector may
        close rows at any time, also during a loop over these."""
        return [rows for ref in list(self._taken.values()) if (rows := ref()) is not None]

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in (*self.keys.values(), *self.values.values()))

    def open(self, capacity: int = 0) -> CacheRows:
        """Rows in the lowest free slot; separate rows if there is no memory for another slot."""
        with self.lock:
            return self._open(capacity)

    def _open(self, capacity: int) -> CacheRows:
        held = {rows.slot for rows in self.taken}
        slot = next(i for i in range(len(held) + 1) if i not in held)
        if not self._fits(slot + 1, 0, requested=capacity):
            return CacheRows(capacity)
        rows = SlabRows(self, slot, capacity)
        if slot in self._used:
            for buffer in (*self.keys.values(), *self.values.values()):
                buffer[slot].zero_()
        self._used.add(slot)
        self._taken[slot] = weakref.ref(rows)
        for layer in self.keys:
            self._attach(rows, layer)
        return rows

    def fits(self, end: int) -> bool:
        """Make room for ``end`` rows in every slot; whether there is room."""
        with self.lock:
            return self._fits(self.slots, end)

    def _fits(self, slots: int, end: int, requested: int = 0) -> bool:
        """Make room for what is needed, and for what was requested beyond it where that fits too."""
        if slots <= self.slots and end < self.capacity:
            return True
        slots, requested = max(self.slots, power(slots)), max([requested, *(rows.requested for rows in self.taken)])
        for wanted in (max(end + 1, min(requested + 1, end + AHEAD)), end + 1):
            capacity = max(self.capacity, bucket(wanted))
            grown = self.nbytes * slots * capacity // max(1, self.slots * self.capacity)
            if not self.keys or grown - self.nbytes <= self._left():
                self._resize(slots, capacity)
                return True
        return False

    def _left(self) -> int:
        """Bytes that may still be taken."""
        if self._spare is not None:
            return self._spare()
        device = next(iter(self.keys.values())).device
        if device.type != "cuda":
            return sys.maxsize
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(SHARE * (torch.cuda.mem_get_info(device)[0] + unused))

    def _resize(self, slots: int, capacity: int) -> None:
        """Move the buffers, then set the counters: if memory ends half-way, no buffer is smaller than they say."""
        if self.keys:
            self._announce()
        for layer in self.keys:
            for buffers in (self.keys, self.values):
                old = buffers[layer]
                buffers[layer] = moved = blank(old, slots, capacity)
                moved[: old.shape[0], :, : old.shape[2] - 1] = old[:, :, :-1]
                del old
            for rows in self.taken:
                self._attach(rows, layer)
        self.slots, self.capacity = slots, capacity
        for rows in self.taken:
            for layer in self.keys:
                self._attach(rows, layer)

    def _announce(self) -> None:
        for listener in self.on_move:
            listener()

    def ensure_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Make a layer's buffers, with the heads, width, type and device of its first rows."""
        if layer not in self.keys:
            self.keys[layer] = blank(keys, self.slots, self.capacity)
            self.values[layer] = blank(values, self.slots, self.capacity)
            for rows in self.taken:
                self._attach(rows, layer)

    def _attach(self, rows: SlabRows, number: int) -> None:
        """Point a sequence's rows of a layer to its slot, if it still has one."""
        if rows.slot is None:
            return
        layer = rows.layers.setdefault(number, LayerRows(self.capacity))
        place = slice(rows.slot, rows.slot + 1)
        layer.keys = self.keys[number][place, :, : self.capacity]
        layer.values = self.values[number][place, :, : self.capacity]
        layer.capacity = self.capacity

    def free(self, rows: SlabRows) -> None:
        """Take a slot back, unless other rows have it by now: a slot of garbage is free before its rows are closed."""
        assert rows.slot is not None, "a slot is given back once"
        holder = self._taken.get(rows.slot)
        if holder is not None and holder() in (rows, None):
            self._taken.pop(rows.slot)

    def release(self) -> bool:
        """Give all memory back, recordings included, if no slot is taken; whether that was so."""
        with self.lock:
            if self.taken:
                return False
            self._announce()
            self.keys.clear()
            self.values.clear()
            self.slots = self.capacity = 0
            self._used.clear()
            return True


class SlabRows(CacheRows):
    """The rows of one sequence in a slot. If the slab cannot grow they move to separate buffers."""

    def __init__(self, slab: Slab, slot: int, capacity: int) -> None:
        super().__init__(capacity)
        self.requested = capacity
        self.slab = slab
        self.slot: int | None = slot

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerRows:
        if self.slot is not None and not self.slab.fits(self.committed + self.tentative):
            self.leave()
        if self.slot is not None:
            self.slab.ensure_layer(layer, keys, values)
        return super().write(layer, keys, values)

    def mark_written(self) -> None:
        """The noted rows were written into the slot by a recording."""
        for layer in self.layers.values():
            layer.filled = self.committed + self.tentative

    def leave(self) -> None:
        """Move out of the slab."""
        with self.slab.lock:
            for layer in self.layers.values():
                assert layer.keys is not None and layer.values is not None, "a slot shows keys and values"
                layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
            self._give_back()

    def _gather(self, rows: Ints) -> None:
        with self.slab.lock:
            super()._gather(rows)

    def _copy(self, other: Rows, count: int) -> None:
        with self.slab.lock:
            super()._copy(other, count)

    def _give_back(self) -> None:
        with self.slab.lock:
            if self.slot is not None:
                self.slab.free(self)
                self.slot = None

    def close(self) -> None:
        self._give_back()
        super().close()

    def check(self) -> None:
        super().check()
        assert self.slot is None or self.committed + self.tentative < self.slab.capacity, "the last row is scratch"


def bucket(rows: int) -> int:
    """A capacity, rounded up to a multiple of `GRAIN`, or by at most a quarter where that is more. Lengths of shapes
    grow in the same steps, so a text that makes the slab grow needs new recordings anyway."""
    grain = max(GRAIN, power(rows) // 8)
    return -(-rows // grain) * grain


def power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


def blank(like: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
    """Zeros for the rows of ``slots`` sequences, with the heads, width, type and device of ``[1, heads, n, width]``."""
    with torch.inference_mode(False):  # they are written to outside of it too
        return like.new_zeros((slots, like.shape[1], capacity, like.shape[3]))
