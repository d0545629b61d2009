"""One forward of a fixed shape: it reads `Inputs`, writes to the slab, and leaves its result at a fixed address.

It can be recorded because nothing in `Step.compute` depends on a number of the host that may change, and nothing in it
waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch

from paceline.targets.base import Want
from paceline.targets.hf.attention import KVCache
from paceline.targets.hf.fixed.block import LeanBlock
from paceline.targets.hf.fixed.capture import Leave, hear_nothing
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.kernels import splits_here
from paceline.targets.hf.fixed.shapes import ForwardShape, slots_of
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.interface import ATTENTION_NAME, ForwardCache, attention_is, computing, experts_are
from paceline.targets.hf.lean import Lean, cos_sin_at
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.own import OwnForward
from paceline.targets.hf.path import ForwardJob, Found, OnExit, Outputs, Taps, ignore
from paceline.targets.hf.taps import tapped

BATCHED = "batched_mm"


class Result(NamedTuple):
    """Logits and states of all rows, padding included, ``[count * rows, ...]``."""

    logits: torch.Tensor
    hidden: dict[int, torch.Tensor]


class Step:
    """The forward of a shape, with the memory that it reads."""

    def __init__(
        self,
        own: OwnForward,
        slab: Slab,
        shape: ForwardShape,
        lean: Lean | None = None,
        *,
        kernels: bool = False,
        apart: bool = False,
    ) -> None:
        """``kernels``: whether layers are computed by those of `gpu`. ``apart``: whether each row multiplies with
        copies of its experts, for where products of groups of rows ask the device how large the groups are."""
        self._own, self._slab, self._lean, self.shape = own, slab, lean, shape
        self._kernels, self._apart = kernels, apart
        self._want = Want(hidden=shape.hidden, early_exit=shape.exit)
        self.inputs = Inputs(shape.count, shape.rows, own.model.device)
        cached = next(iter(slab.keys.values()))
        self._splits = not kernels and splits_here(cached.device, cached.dtype, cached.shape[3])

    def fill(self, job: ForwardJob) -> None:
        """Copy a job into the memory that `compute` reads."""
        places = [slot - self.shape.first for slot in slots_of(job)]
        self.inputs.fill(list(zip(places, job.requests, strict=True)), self._slab.capacity - 1)

    def fill_single(self, ends: list[tuple[int, int]]) -> None:
        """The memory for one row behind each text: slots, and the lengths of their texts."""
        self.inputs.fill_single([(slot - self.shape.first, end) for slot, end in ends], self._slab.capacity - 1)

    def compute(self, leave: Leave, outlet: torch.Tensor | None = None) -> Result:
        """The forward itself; by `lean` it takes a third of the kernels. Logits are left in ``outlet``, if given, the
        early ones first."""

        def left(logits: torch.Tensor) -> torch.Tensor:
            return logits if outlet is None else outlet[: len(logits)].copy_(logits)

        block, operations = self._ways()
        outputs = Outputs(self._want, on_exit=lambda early: leave(left(early))())
        if self._lean is None:
            result = self._by_model(block, outputs)
        else:
            result = self._by_lean(self._lean, block, outputs, operations)
        return result._replace(logits=left(result.logits))

    def _ways(self) -> tuple[KVCache, Operations | None]:
        """How keys and values are written and read, and how the lean forward computes what lies between."""
        if not self._kernels:
            return LeanBlock(self._slab, self.shape, self.inputs, splits=self._splits), None
        from paceline.targets.hf.gpu.block import KernelBlock
        from paceline.targets.hf.gpu.operations import LayerKernels

        return KernelBlock(self._slab, self.shape, self.inputs), LayerKernels()

    def _by_lean(self, lean: Lean, block: KVCache, outputs: Outputs, operations: Operations | None) -> Result:
        states = lean.modules.embedding(self.inputs.tokens.view(1, -1))
        cos_sin = cos_sin_at(self.inputs.positions.view(-1), lean.modules.rotary, states)
        found = lean.computed(states, cos_sin, block, outputs, operations)
        assert found.logits is not None, "all rows are wanted"
        return Result(found.logits, found.taps.hidden)

    def _by_model(self, block: KVCache, outputs: Outputs) -> Result:
        with ExitStack() as stack:
            stack.enter_context(attention_is(ATTENTION_NAME, self._own.model))
            if self._apart:
                stack.enter_context(experts_are(BATCHED, self._own.model))
            stack.enter_context(computing(forward := ForwardCache(block)))
            taps = stack.enter_context(tapped(self._own.anatomy, outputs))
            logits = self._own.model(
                input_ids=self.inputs.tokens.view(1, -1),
                position_ids=self.inputs.positions.view(1, -1),
                use_cache=True,
                **self._own.with_cache(forward),
            ).logits[0]
        return Result(logits, taps.hidden)

    def found(self, play: Callable[[Leave], Result], job: ForwardJob, hear: OnExit = ignore) -> Found:
        """The result of `compute` or of its recording for the rows of the job. ``hear`` is called in its middle with
        their early logits, if any are wanted."""
        early = list[torch.Tensor]()

        def leave(logits: torch.Tensor) -> Callable[[], None]:
            early.append(self._pick(logits, job, job.early))
            return partial(hear, early[0]) if hear is not ignore else hear_nothing

        result, everyone = play(leave), range(len(job.requests))
        hidden = {layer: self._pick(states, job, everyone) for layer, states in result.hidden.items()}
        return Found(self._pick(result.logits, job, everyone), Taps(hidden, early[0] if early else None))

    def _pick(self, rows: torch.Tensor, job: ForwardJob, numbers: Iterable[int]) -> torch.Tensor:
        """Copies of the rows of these requests: the next forward overwrites the others."""
        slots, found = slots_of(job), list[torch.Tensor]()
        for number in numbers:
            start = (slots[number] - self.shape.first) * self.shape.rows
            found.append(rows[start : start + len(job.requests[number].tokens)])
        return found[0].clone() if len(found) == 1 else torch.cat(found)
