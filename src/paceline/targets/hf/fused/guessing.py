"""Drafts of several texts, several tokens a forward, as one job: streams guess ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law.scores import Array
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.adapters import AT_ONCE
from paceline.targets.hf.fused.drafting import DraftJob
from paceline.targets.hf.fused.placed import PlacedWeights, Workspace
from paceline.targets.hf.fused.streams import streamed
from paceline.targets.streams import MAPS, StreamAdapter

LEAST_GUESS, LEAST_STREAM = 0.2, 0.2
"""No guess is read that is less likely to be confirmed, and no stream that is less likely to be asked: their rows would
cost more than they bring."""
FOR_FLOATS = 0.5
"""As much of these where weights are floats: a row then is cheaper beside reading the weights."""
LARGEST_INT8 = 127
LEAST_STEP = 1e-12
"""Rows of zeros have a step, too."""


class PlacedStreams:
    """An adapter's weights by address, beside the model that it is for."""

    def __init__(self, adapter: StreamAdapter, layers: int) -> None:
        self.first = layers - adapter.depth
        """The layer where rows of streams begin."""
        self.embedding = _floats(adapter.embedding)
        self.rank = -(-adapter.rank // AT_ONCE) * AT_ONCE
        self.table = np.zeros((adapter.depth, at.MAPS, at.ADAPTER), np.int64)
        self._held = list[NDArray[Any]]()
        for lines, layer in zip(self.table, adapter.layers, strict=True):
            for name, maps in layer.items():
                narrow, wide = map(_floats, maps)
                (down, steps), (up, more) = self._rounded(narrow), self._rounded(wide.T)
                parts = down, (steps * more).astype(np.float32), up
                lines[MAPS.index(name)] = [part.ctypes.data for part in parts]
                self._held += parts

    def _rounded(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Rows as integers, each with its step; as many as the rank has, the last ones zeros."""
        rows = np.pad(rows, ((0, self.rank - len(rows)), (0, 0)))
        steps = np.maximum(np.abs(rows).max(axis=1), LEAST_STEP) / LARGEST_INT8
        return np.rint(rows / steps[:, None]).astype(np.int8, order="C"), steps

    @classmethod
    def of(cls, adapter: StreamAdapter, weights: PlacedWeights) -> Self | None:
        """None where the adapter is for layers of other sizes."""
        heads, shared = weights.heads * weights.size, weights.shared * weights.size
        outputs = heads, shared, shared, weights.width, weights.inner, weights.inner, weights.width
        inputs = *[weights.width] * 3, heads, *[weights.width] * 2, weights.inner
        sizes = dict(zip(MAPS, zip(inputs, outputs, strict=True), strict=True))
        fits = adapter.depth <= len(weights.layers) and adapter.embedding.shape[1] == weights.width
        for layer in adapter.layers:
            for name, (narrow, wide) in layer.items():
                (reads, makes), rank = sizes[name], adapter.rank
                fits = fits and (*narrow.shape, *wide.shape) == (rank, reads, makes, rank)
        return cls(adapter, len(weights.layers)) if fits else None


def _floats(array: Array) -> NDArray[np.float32]:
    values = array.detach().cpu().float().numpy() if isinstance(array, torch.Tensor) else array
    return np.ascontiguousarray(values, np.float32)


class StreamJob(DraftJob):
    """Rows of guesses and of streams lie behind those of the draft. Only the draft's are kept."""

    def __init__(
        self,
        chains: Sequence[Chain],
        streams: PlacedStreams,
        weights: PlacedWeights,
        space: Workspace,
        angles: torch.Tensor,
    ) -> None:
        counts = [chain.streams.count if chain.streams and chain.guesses else 0 for chain in chains]
        guesses = [chain.guesses if count else 0 for chain, count in zip(chains, counts, strict=True)]
        most, ahead, texts = max(guesses), max(counts), len(chains)
        behind = most + (1 + most) * ahead
        super().__init__(chains, weights, angles, behind)
        self._streams = streams
        self._unread = [np.ascontiguousarray(chain.tokens, np.int64) for chain in chains]
        rows = sum(map(len, self._unread)) + texts * behind
        states = np.zeros((texts, at.GUESSED_TEXT), np.int64)
        for line, chain, unread, count, most_of in zip(states, chains, self._unread, counts, guesses, strict=True):
            line[at.CERTAIN], line[at.EARLIER] = chain.rows.committed + len(unread) - 1, len(unread) - 1
            line[at.UNREAD], line[at.STREAMS], line[at.GUESSES] = unread.ctypes.data, count, most_of
            line[at.GOES_ON] = line[at.NODE_COUNT] = 1
        nodes = np.zeros((texts, 1 + most, at.NODE), np.int64)
        nodes[:, 0, at.NODE_TOKEN], nodes[:, 0, at.NODE_ABOVE] = [unread[-1] for unread in self._unread], -1
        nodes.view(np.float64)[:, 0, at.NODE_CHANCE] = 1.0
        self._logits = torch.empty((texts * (1 + behind), weights.vocabulary), dtype=torch.float32, device="cpu")
        self._arrays: dict[int, NDArray[Any]] = {
            at.ROWS: np.zeros((rows, at.ROW), np.int64),
            at.EXTRAS: np.zeros(texts * (1 + most) * (2 * most + ahead), np.int64),
            at.STATES: np.zeros((rows, weights.width), np.float32),
            at.CHOICE: np.zeros(rows, np.int64),
            at.GUESSED: states,
            at.NODES: nodes,
            at.ORIGINS: np.zeros((max(1, texts * behind), at.ORIGIN), np.int64),
            at.CANDIDATES: np.zeros((self._threads, 2, max(1, ahead), max(1, most)), np.int64),
            at.THIN: np.zeros((self._threads, streams.rank), np.float32),
            at.ADAPTERS: streams.table,
            at.STREAM_EMBEDDING: streams.embedding,
        }
        self._job = self._placed(streamed(), self._logits, self._arrays)
        self._job[at.RANK], self._job[at.STREAMED_FROM] = streams.rank, streams.first
        self._job[at.MOST_GUESSES], self._job[at.MOST_STREAMS] = most, ahead
        chances = self._job.view(np.float64)
        share = FOR_FLOATS if weights.kind.form == at.FLOATS else 1.0
        chances[at.LEAST_GUESS], chances[at.LEAST_STREAM] = share * LEAST_GUESS, share * LEAST_STREAM
        space.into(self._job, rows, self._length)

    def run(self) -> list[ChainDraft]:
        return self._drafts(self._job)
