"""One forward of a fixed shape: it reads `Inputs`, writes to the slab, and leaves its result at a fixed address.

It can be recorded because nothing in `Step.compute` depends on a number of the host that may change, and nothing in it
waits for the device.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import torch

from paceline.targets.base import Want
from paceline.targets.hf.fixed.block import Block
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import splits_here
from paceline.targets.hf.fixed.shapes import ForwardShape, slots_of
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.interface import NAME, ForwardCache, attention_is, computing
from paceline.targets.hf.lean import Lean, cos_sin_at
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import ForwardJob, Found, Outputs, Taps
from paceline.targets.hf.taps import tapped


class Result(NamedTuple):
    """Logits and states of all rows, padding included, ``[count * rows, ...]``."""

    logits: torch.Tensor
    hidden: dict[int, torch.Tensor]


class Step:
    """The forward of a shape, with the memory that it reads."""

    def __init__(self, own: OwnForward, slab: Slab, shape: ForwardShape, lean: Lean | None = None) -> None:
        self._own, self._slab, self._lean, self.shape = own, slab, lean, shape
        self._want = Want(hidden=shape.hidden)
        self.inputs = Inputs(shape.count, shape.rows, own.model.device)
        cached = next(iter(slab.keys.values()))
        self._splits = splits_here(cached.device, cached.dtype, cached.shape[3])

    def fill(self, job: ForwardJob) -> None:
        """Copy a job into the memory that `compute` reads."""
        places = [slot - self.shape.first for slot in slots_of(job)]
        self.inputs.fill(list(zip(places, job.requests, strict=True)), self._slab.capacity - 1)

    def compute(self, outlet: torch.Tensor | None = None) -> Result:
        """The forward itself; by `lean` it takes a third of the kernels. Logits are left in ``outlet``, if given."""
        block = Block(self._slab, self.shape, self.inputs, splits=self._splits)
        result = self._by_model(block) if self._lean is None else self._by_lean(self._lean, block)
        return result if outlet is None else result._replace(logits=outlet[: len(result.logits)].copy_(result.logits))

    def _by_lean(self, lean: Lean, block: Block) -> Result:
        states = lean.modules.embedding(self.inputs.tokens.view(1, -1))
        cos_sin = cos_sin_at(self.inputs.positions.view(-1), lean.modules.rotary, states)
        found = lean.computed(states, cos_sin, block, Outputs(self._want))
        assert found.logits is not None, "all rows are wanted"
        return Result(found.logits, found.taps.hidden)

    def _by_model(self, block: Block) -> Result:
        with ExitStack() as stack:
            stack.enter_context(attention_is(NAME, self._own.model))
            stack.enter_context(computing(forward := ForwardCache(block)))
            taps = stack.enter_context(tapped(self._own.anatomy, Outputs(self._want)))
            logits = self._own.model(
                input_ids=self.inputs.tokens.view(1, -1),
                position_ids=self.inputs.positions.view(1, -1),
                past_key_values=forward,
                use_cache=True,
            ).logits[0]
        return Result(logits, taps.hidden)

    def pick(self, result: Result, job: ForwardJob) -> Found:
        """Copies of the rows of the job: the next forward overwrites the result."""
        starts = [(slot - self.shape.first) * self.shape.rows for slot in slots_of(job)]
        spans = [slice(start, start + len(request.tokens)) for start, request in zip(starts, job.requests, strict=True)]

        def wanted(rows: torch.Tensor) -> torch.Tensor:
            return rows[spans[0]].clone() if len(spans) == 1 else torch.cat([rows[span] for span in spans])

        hidden = {layer: wanted(states) for layer, states in result.hidden.items()}
        return Found(wanted(result.logits), Taps(hidden))
