"""One forward of a fixed shape: it reads what `Inputs` hold, writes to the slab, and leaves its result where it is.

Nothing in `Step.compute` depends on a number of the host that may differ the next time, and nothing in it waits for
the device: that is what makes it recordable.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from paceline.targets.base import Want
from paceline.targets.hf.attention import NAME, Asked, MaskScratch, serving
from paceline.targets.hf.fixed.attention import attention, mask_type, splits_here
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.shapes import Shape, slots_of
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.forward import Attention, Forward, Mode
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import Found, Job, Taps
from paceline.targets.hf.taps import tapped


class Result(NamedTuple):
    """Logits and states of all rows, filling ones included, ``[count * rows, ...]``."""

    logits: torch.Tensor
    hidden: dict[int, torch.Tensor]


class Looks(Job):
    """What a shape says of its jobs: a step outlives the job that it was made for, and must not keep its rows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__([])
        self.__dict__["want"] = Want(hidden=shape.hidden)


class Step:
    """A shape with the memory that its forward reads."""

    def __init__(self, own: OwnForward, slab: Slab, shape: Shape) -> None:
        self._own, self._slab, self.shape = own, slab, shape
        self.inputs = Inputs(shape.count, shape.rows, own.model.device)
        cached = next(iter(slab.keys.values()))
        self._splits = splits_here(cached.device, cached.dtype, cached.shape[3])

    def fill(self, job: Job) -> None:
        """Put a job where `compute` finds it."""
        places = [slot - self.shape.first for slot in slots_of(job)]
        self.inputs.fill(list(zip(places, job.requests, strict=True)), self._slab.capacity - 1)

    def compute(self) -> Result:
        """The forward itself."""
        with ExitStack() as stack:
            forward = StaticForward(self._slab, self.shape, self.inputs, splits=self._splits)
            stack.enter_context(Attention(self._own.model, NAME))
            stack.enter_context(serving(forward))
            taps = stack.enter_context(tapped(self._own.anatomy, Looks(self.shape)))
            logits = self._own.model(
                input_ids=self.inputs.tokens.view(1, -1),
                position_ids=self.inputs.positions.view(1, -1),
                past_key_values=forward,
                use_cache=True,
            ).logits[0]
        return Result(logits, taps.hidden)

    def pick(self, result: Result, job: Job) -> Found:
        """The rows that were asked for, copied: the next forward overwrites the result."""
        starts = [(slot - self.shape.first) * self.shape.rows for slot in slots_of(job)]
        spans = [slice(start, start + len(request.tokens)) for start, request in zip(starts, job.requests, strict=True)]

        def wanted(rows: torch.Tensor) -> torch.Tensor:
            return rows[spans[0]].clone() if len(spans) == 1 else torch.cat([rows[span] for span in spans])

        hidden = {layer: wanted(states) for layer, states in result.hidden.items()}
        return Found(wanted(result.logits), Taps(hidden))


class StaticForward(Forward):
    """The cache that the model is handed: every slot of a block at once, whoever is in it."""

    def __init__(self, slab: Slab, shape: Shape, inputs: Inputs, *, splits: bool) -> None:
        super().__init__([], Mode.PACKED, MaskScratch())
        self._slab, self._shape, self._inputs, self._splits = slab, shape, inputs, splits
        self._masks: dict[tuple[object, ...], torch.Tensor] = {}
        self._indices: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
        self._looked_at: dict[int | None, torch.Tensor | None] = {}

    def _slots(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[self._shape.first : self._shape.first + self._shape.count]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._written = layer_idx, key_states, value_states
        for buffers, states in ((self._slab.keys, key_states), (self._slab.values, value_states)):
            slots = self._slots(buffers[layer_idx])
            rows = states[0].unflatten(1, (self._shape.count, self._shape.rows)).transpose(0, 1)
            slots.index_put_((*self._first_two(slots), self._inputs.places[:, None]), rows)
        return key_states, value_states

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        layer = self.enter_layer(keys, values, asked.window, asked.others)
        heads, kv_heads, width = query.shape[1], keys.shape[1], query.shape[3]
        count, n, group = self._shape.count, self._shape.rows, heads // kv_heads
        rows = query[0].reshape(kv_heads, group, count, n, width).permute(2, 0, 1, 3, 4)
        rows = rows.reshape(count, kv_heads, group * n, width)
        cached, their_values = (self._cached(b[layer], asked.window) for b in (self._slab.keys, self._slab.values))
        mask = self._mask(asked.window, mask_type(query.dtype, asked), group)
        mixed = attention(rows, cached, their_values, mask, asked, self._splits)
        mixed = mixed.reshape(count, kv_heads, group, n, -1).permute(1, 2, 0, 3, 4)
        return mixed.reshape(1, heads, count * n, -1)

    def _cached(self, buffer: torch.Tensor, window: int | None) -> torch.Tensor:
        """The rows of each slot that a layer looks at, ``[count, kv heads, keys, width]``."""
        slots, keys = self._slots(buffer), self._keys(window)
        if keys is None:
            return slots[:, :, : self._shape.length]
        return slots[(*self._first_two(slots), keys[:, None])]

    def _keys(self, window: int | None) -> torch.Tensor | None:
        """Found by the first layer that asks for them, as masks are."""
        if window not in self._looked_at:
            self._looked_at[window] = self._inputs.keys(window, self._shape.length)
        return self._looked_at[window]

    def _mask(self, window: int | None, dtype: torch.dtype, group: int) -> torch.Tensor:
        key = (window, dtype, group)
        if key not in self._masks:
            keys = self._keys(window)
            if keys is None:
                keys = torch.arange(self._shape.length, device=self._inputs.tokens.device)
            self._masks[key] = self._inputs.mask(window, keys, dtype, group)
        return self._masks[key]

    def _first_two(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of all slots and heads, to stand beside numbers of rows ``[count, 1, some]``."""
        sizes = slots.shape[:2]
        if sizes not in self._indices:
            slot, head = (torch.arange(size, device=slots.device) for size in sizes)
            self._indices[sizes] = slot[:, None, None], head[None, :, None]
        return self._indices[sizes]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing that is the same for all sequences: positions are given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0
