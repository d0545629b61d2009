"""The path of models in 8-bit integers whose products are compiled: the lean path's structure, computed in one call."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from paceline.targets.hf.attention import Segment
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.placed import PlacedWeights, Unplaceable, Workspace, rows_of, text_of
from paceline.targets.hf.fused.team import TEAM, Table
from paceline.targets.hf.int8.operations import ExactOperations
from paceline.targets.hf.lean import Lean, select
from paceline.targets.hf.own import OwnForward, joined
from paceline.targets.hf.path import ForwardJob, Found, Taps
from paceline.targets.hf.variants import Inspection


class Fused(Lean):
    """Where a forward's states are wanted in the middle, it is computed in pieces."""

    def __init__(self, own: OwnForward, inspection: Inspection, operations: ExactOperations) -> None:
        super().__init__(own, inspection, operations)
        self._value_steps = operations.value_steps
        self._weights = PlacedWeights(self.modules, self._value_steps)
        self._space = Workspace(self._weights)

    def takes(self, job: ForwardJob) -> bool:
        """Not where a linear layer was hooked or replaced: torch's operations keep keys and values in another way, so
        no forward of a text can be left to them."""
        if not super().takes(job):
            return False
        if not self._weights.are_of(self.modules):
            try:
                self._weights = PlacedWeights(self.modules, self._value_steps)
            except (Unplaceable, AttributeError, KeyError):
                return False
        return True

    def _run(self, job: ForwardJob) -> Found:
        modules, weights, outputs, taps = self.modules, self._weights, job.outputs, Taps()
        Segment.of_all(job.requests, self._scratch)
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        positions = torch.from_numpy(joined([request.positions for request in job.requests]))
        end, last = max(request.end for request in job.requests), len(weights.layers)
        states: torch.Tensor = modules.embedding(tokens[None]).float().clone(memory_format=torch.contiguous_format)
        cosines, sines = (each.contiguous() for each in self._rotary.at(positions, end, modules.rotary, states))
        assert states.shape == (1, len(tokens), weights.width) and cosines.shape[-1] == weights.size, "they fit"
        rows, further = rows_of(job.requests)
        texts = [text_of(request, weights) for request in job.requests]
        places = np.array([text.ctypes.data for text in texts], np.int64)
        whole = last in outputs.want.hidden  # then the head is for torch
        chosen = np.arange(len(tokens)) if outputs.logit_rows is None else outputs.logit_rows.numpy()
        logits = torch.empty(len(chosen), weights.vocabulary)
        table = self._table(len(tokens))
        table[at.CHOSEN], table[at.CHOICE], table[at.LOGITS] = len(chosen), chosen.ctypes.data, logits.data_ptr()
        table[at.ROWS], table[at.EXTRAS], table[at.TEXTS] = rows.ctypes.data, further.ctypes.data, places.ctypes.data
        table[at.COSINES], table[at.SINES], table[at.STATES] = cosines.data_ptr(), sines.data_ptr(), states.data_ptr()
        exits = {layer for layer in (*outputs.want.hidden, outputs.want.early_exit) if layer is not None}
        stops = sorted({0, last, *exits})
        for first, following in pairwise(stops):
            self._tap(first, states.clone() if first in exits else states, outputs, taps)
            table[at.FIRST], table[at.LAST], table[at.HEAD] = first, following, following == last and not whole
            self._space.into(table, len(tokens), end)  # a listener may have computed another forward
            TEAM.run(table)
        if whole:
            taps.hidden[last] = self._operations.norm(states, modules.norm)[0]
            if outputs.logits:
                logits = modules.head(select(outputs.logit_rows, taps.hidden[last][None]))[0]
        return Found(logits if outputs.logits else None, taps)

    def _table(self, rows: int) -> Table:
        """A job without its rows."""
        weights, table = self._weights, np.zeros(at.JOB, np.int64)
        table[at.KIND], table[at.THREADS], table[at.COUNT] = at.FORWARD, torch.get_num_threads(), rows
        table[at.LAYERS], table[at.WIDTH], table[at.INNER] = len(weights.layers), weights.width, weights.inner
        table[at.HEADS], table[at.SHARED], table[at.SIZE] = weights.heads, weights.shared, weights.size
        table[at.LAYER_TABLE], table[at.LAYER_NUMBERS] = weights.layers.ctypes.data, weights.numbers.ctypes.data
        table[at.NORM], table[at.EPS] = weights.norm, np.float64(weights.eps).view(np.int64)
        table[at.WEIGHT : at.WEIGHT + 3] = weights.head
        table[at.VOCABULARY] = weights.vocabulary
        return table
