"""The lean path's structure, computed in one compiled call: of models in 8-bit or 4-bit integers, and in floats."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

import numpy as np
import torch

from paceline.targets.hf.attention import Segment
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.forward import forward
from paceline.targets.hf.fused.placed import PlacedWeights, Unplaceable, Workspace, rows_of, text_of
from paceline.targets.hf.fused.team import TEAM, Table
from paceline.targets.hf.integers.operations import ExactOperations, coarseness, normed
from paceline.targets.hf.lean import Lean, select
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.own import OwnForward, joined
from paceline.targets.hf.path import ForwardJob, Found, Outputs, Taps
from paceline.targets.hf.variants import Inspection


class Fused(Lean):
    """Where a forward's states are wanted in the middle, it is computed in pieces."""

    def __init__(self, own: OwnForward, inspection: Inspection, operations: Operations | None = None) -> None:
        super().__init__(own, inspection, operations)
        self._value_steps = operations.value_steps if isinstance(operations, ExactOperations) else None
        self._weights = PlacedWeights(self.modules, self._value_steps)
        self._space = Workspace(self._weights)

    @classmethod
    def beside(cls, lean: Lean) -> Self | None:
        """Of the same model; None where its layers are computed in another way."""
        try:
            return cls(lean._own, Inspection(lean._own.model))
        except Unplaceable:
            return None

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
        whole = last in outputs.want.hidden  # then all rows are normed
        chosen = np.arange(len(tokens)) if outputs.logit_rows is None else outputs.logit_rows.numpy()
        logits = torch.empty(0 if whole else len(chosen), weights.vocabulary)
        table = self._table(states[0], logits)
        table[at.CHOSEN], table[at.CHOICE] = len(chosen), chosen.ctypes.data
        table[at.ROWS], table[at.EXTRAS], table[at.TEXTS] = rows.ctypes.data, further.ctypes.data, places.ctypes.data
        table[at.COSINES], table[at.SINES] = cosines.data_ptr(), sines.data_ptr()
        exits = {layer for layer in (*outputs.want.hidden, outputs.want.early_exit) if layer is not None}
        stops = sorted({0, last, *exits})
        for first, following in pairwise(stops):
            self._tap(first, states, outputs, taps)
            table[at.FIRST], table[at.LAST], table[at.HEAD] = first, following, following == last and not whole
            self._space.into(table, len(tokens), end)  # a listener may have computed another forward
            TEAM.run(table)
        if whole:
            taps.hidden[last] = self._normed(states)[0]
            if outputs.logits:
                logits = self._unembedded(select(outputs.logit_rows, states)[0].contiguous())
        return Found(logits if outputs.logits else None, taps)

    def _tap(self, number: int, states: torch.Tensor, outputs: Outputs, taps: Taps) -> None:
        """States go on changing, so what is recorded is a copy."""
        if number in (*outputs.want.hidden, outputs.want.early_exit):
            dtype = self.modules.norm.weight.dtype
            states = states.clone() if dtype == states.dtype else states.to(dtype)
        super()._tap(number, states, outputs, taps)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        norm = self.modules.norm
        return normed(states, norm.weight, norm.variance_epsilon).to(norm.weight.dtype)

    def _unembedded(self, states: torch.Tensor) -> torch.Tensor:
        """Logits of states behind the last layer, which are written to."""
        rows, last = np.arange(len(states)), len(self._weights.layers)
        logits = torch.empty(len(states), self._weights.vocabulary)
        table = self._table(states, logits)
        table[at.CHOSEN], table[at.CHOICE] = len(states), rows.ctypes.data
        table[at.FIRST], table[at.LAST], table[at.HEAD] = last, last, 1
        self._space.into(table, len(states), 1)
        TEAM.run(table)
        return logits

    def _table(self, states: torch.Tensor, logits: torch.Tensor) -> Table:
        """A job without its rows but their states."""
        weights, table = self._weights, np.zeros(at.JOB, np.int64)
        table[at.FUNCTION], table[at.FORM], table[at.HEAD_FORM] = forward(), *weights.forms
        table[at.THREADS], table[at.COUNT] = torch.get_num_threads(), len(states)
        table[at.LAYERS], table[at.WIDTH], table[at.INNER] = len(weights.layers), weights.width, weights.inner
        table[at.HEADS], table[at.SHARED], table[at.SIZE] = weights.heads, weights.shared, weights.size
        table[at.LAYER_TABLE], table[at.LAYER_NUMBERS] = weights.layers.ctypes.data, weights.numbers.ctypes.data
        table[at.NORM], table[at.EPS] = weights.norm, bits(weights.eps)
        table[at.COARSENESS] = bits(coarseness(weights.size))
        table[at.UNEMBEDDING : at.UNEMBEDDING + at.LINEAR] = weights.head
        table[at.VOCABULARY], table[at.NARROW] = weights.vocabulary, weights.dtype == torch.bfloat16
        table[at.STATES], table[at.LOGITS] = states.data_ptr(), logits.data_ptr()
        return table


def bits(value: float) -> np.int64:
    """A double, as a table has it."""
    return np.float64(value).view(np.int64)
