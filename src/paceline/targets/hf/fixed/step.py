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
from paceline.targets.hf.fixed.block import Block
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import splits_here
from paceline.targets.hf.fixed.shapes import Shape, slots_of
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.forward import Attention, Forward, Mode
from paceline.targets.hf.lean import Lean, turns_at
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import Asking, Found, Job, Taps
from paceline.targets.hf.taps import tapped


class Result(NamedTuple):
    """Logits and states of all rows, filling ones included, ``[count * rows, ...]``."""

    logits: torch.Tensor
    hidden: dict[int, torch.Tensor]


class Step:
    """A shape with the memory that its forward reads."""

    def __init__(self, own: OwnForward, slab: Slab, shape: Shape, lean: Lean | None = None) -> None:
        self._own, self._slab, self._lean, self.shape = own, slab, lean, shape
        self._want = Want(hidden=shape.hidden)
        self.inputs = Inputs(shape.count, shape.rows, own.model.device)
        cached = next(iter(slab.keys.values()))
        self._splits = splits_here(cached.device, cached.dtype, cached.shape[3])

    def fill(self, job: Job) -> None:
        """Put a job where `compute` finds it."""
        places = [slot - self.shape.first for slot in slots_of(job)]
        self.inputs.fill(list(zip(places, job.requests, strict=True)), self._slab.capacity - 1)

    def compute(self, outlet: torch.Tensor | None = None) -> Result:
        """The forward itself; a model that `lean` computes is a third of the kernels there. Logits are left in
        ``outlet``, if there is one."""
        block = Block(self._slab, self.shape, self.inputs, splits=self._splits)
        result = self._by_model(block) if self._lean is None else self._by_lean(self._lean, block)
        return result if outlet is None else result._replace(logits=outlet[: len(result.logits)].copy_(result.logits))

    def _by_lean(self, lean: Lean, block: Block) -> Result:
        states = lean.build.embedding(self.inputs.tokens.view(1, -1))
        turns = turns_at(self.inputs.positions.view(-1), lean.build.rotary, states)
        found = lean.computed(states, turns, block, Asking(self._want))
        assert found.logits is not None, "all rows are wanted"
        return Result(found.logits, found.taps.hidden)

    def _by_model(self, block: Block) -> Result:
        with ExitStack() as stack:
            stack.enter_context(Attention(self._own.model, NAME))
            stack.enter_context(serving(forward := StaticForward(block)))
            taps = stack.enter_context(tapped(self._own.anatomy, self._want))
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
    """The cache that the model is handed: a block instead of each sequence's own rows."""

    def __init__(self, block: Block) -> None:
        super().__init__([], Mode.PACKED, MaskScratch())
        self._block = block

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._written = layer_idx, key_states, value_states
        self._block.write(layer_idx, key_states, value_states)
        return key_states, value_states

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        return self._block.seen(self.enter_layer(keys, values, asked.window, asked.others), query, asked)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing that is the same for all sequences: positions are given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0
