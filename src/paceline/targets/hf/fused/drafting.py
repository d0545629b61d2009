"""Drafts of several texts, a token after another, as one job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law import Draw
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.chains import chained
from paceline.targets.hf.fused.placed import PlacedWeights, Workspace, rows_of, texts_of
from paceline.targets.hf.fused.team import TEAM, Table
from paceline.targets.hf.threads import compiled_threads
from paceline.tree import Ints

LARGEST = 1 << 31
"""A number of tokens beyond all vocabularies."""


class DraftJob(ABC):
    """One job over some texts. What it names by address is held here."""

    def __init__(self, chains: Sequence[Chain], weights: PlacedWeights, angles: torch.Tensor, spare: int) -> None:
        """``spare`` rows of each text have room behind its draft."""
        assert weights.embedding is not None, "tokens are read in between"
        self._chains, self._weights, self._depth = chains, weights, max(chain.depth for chain in chains)
        self._requests = [_with_room(chain, self._depth + spare) for chain in chains]
        self._places = texts_of(self._requests, weights)
        self._draws = np.zeros((len(chains), at.RACE), np.int64)
        self._ends = [np.array(sorted(chain.ends), np.int64) for chain in chains]
        for line, chain, over in zip(self._draws, chains, self._ends, strict=True):
            fill_race(line, chain.draw, chain.depth, over)
            line[at.SIZE_OF_RACE] = min(weights.vocabulary, chain.size or weights.vocabulary)
        self._drafted = np.zeros((len(chains), self._depth), np.int64)
        self._chances = np.zeros((len(chains), self._depth))
        self._meeting = np.zeros(1, np.int64)
        self._threads = compiled_threads()
        self._drawn = np.empty((self._threads, 2 * weights.vocabulary), np.int64)
        self._texts = np.array([place.ctypes.data for place in self._places], np.int64)
        self._angles = angles

    @property
    def _length(self) -> int:
        """Of the longest text, with its draft and what is spare."""
        return max(request.end for request in self._requests)

    def _placed(self, function: int, logits: torch.Tensor, arrays: Mapping[int, NDArray[Any]]) -> Table:
        """The job, which begins with this function, with the addresses of what all drafts have and of these arrays."""
        job, weights = self._weights.job.copy(), self._weights
        assert weights.embedding is not None
        job[at.STEP], job[at.FUNCTION], job[at.THREADS] = job[at.FUNCTION], function, self._threads
        job[at.CHAINS], job[at.DEPTH] = len(self._chains), self._depth
        shared = {
            at.TEXTS: self._texts,
            at.RACES: self._draws,
            at.CHAIN_MEETING: self._meeting,
            at.DRAWN: self._drawn,
            at.DRAFTED: self._drafted,
            at.CHANCES: self._chances,
            at.EMBEDDING: weights.embedding,
        }
        for place, array in {**shared, **arrays}.items():
            assert array.flags.c_contiguous, "rows lie one behind the other"
            job[place] = array.ctypes.data
        job[at.NARROW_EMBEDDING] = weights.embedding.dtype == np.int16
        job[at.ANGLES], job[at.LOGITS] = self._angles.data_ptr(), logits.data_ptr()
        return job

    @abstractmethod
    def run(self) -> list[ChainDraft]:
        """Draft. Rows of the unread tokens are committed then, and those of the draft are tentative."""

    def _drafts(self, job: Table) -> list[ChainDraft]:
        """Compute the job."""
        TEAM.run(job)
        found = []
        for number, chain in enumerate(self._chains):
            length = int(self._draws[number, at.LENGTH])
            tokens = self._drafted[number, :length]
            chain.rows.keep(range(len(chain.tokens)))
            chain.rows.note(tokens[:-1])
            forwards = int(self._draws[number, at.READ])
            found.append(ChainDraft(tokens.tolist(), self._chances[number, :length].tolist(), forwards))
        texts_of(self._held(found), self._weights)
        return found

    def _held(self, found: Sequence[ChainDraft]) -> list[Request]:
        """Requests for the tentative rows, which are written already."""
        lengths = [max(0, len(one.tokens) - 1) for one in found]
        pairs = zip(self._chains, lengths, strict=True)
        return [Request(chain.rows, chain.rows.drafted, np.arange(-1, length - 1)) for chain, length in pairs]


class ChainJob(DraftJob):
    """A token for each forward."""

    def __init__(self, chains: Sequence[Chain], weights: PlacedWeights, space: Workspace, angles: torch.Tensor) -> None:
        super().__init__(chains, weights, angles, 0)
        table, further = rows_of(self._requests)
        ends = np.cumsum([len(request.tokens) for request in self._requests])
        last = ends - self._depth - 1  # the unread token whose row predicts the first of the draft
        counts = [len(chain.tokens) for chain in chains]
        unread = np.concatenate([np.arange(end - n, end) for end, n in zip(last + 1, counts, strict=True)])
        count, texts = len(unread), len(chains)
        tokens = np.concatenate([request.tokens for request in self._requests])[unread]
        self._logits = torch.empty((texts, weights.vocabulary), dtype=torch.float32, device="cpu")
        self._arrays: dict[int, NDArray[Any]] = {
            at.ROWS: table[unread].copy(),
            at.NEXT_ROWS: table[last + 1].copy(),
            at.EXTRAS: further,
            at.STATES: np.ascontiguousarray(weights.embedded(tokens)),
            at.CHOICE: np.searchsorted(unread, last),
            at.NEXT_CHOICE: np.arange(texts),
        }
        self._job = self._placed(chained(), self._logits, self._arrays)
        self._job[at.COUNT], self._job[at.CHOSEN] = count, texts
        self._job[at.FIRST], self._job[at.LAST], self._job[at.HEAD] = 0, len(weights.layers), 1
        space.into(self._job, max(count, texts), self._length)

    def run(self) -> list[ChainDraft]:
        return self._drafts(self._job)


def _with_room(chain: Chain, more: int) -> Request:
    """The unread tokens, and one behind another ``more`` rows whose tokens come later."""
    tokens = np.concatenate([chain.tokens, np.zeros(more, np.int64)])
    chain.rows.note(tokens)
    return Request(chain.rows, tokens, np.arange(-1, len(tokens) - 1))


def fill_race(line: Table, draw: Draw, depth: int, ends: Ints) -> None:
    """How a text's tokens are chosen, as a job has it."""
    numbers, warps = line.view(np.float64), draw.warps
    line[at.LENGTH], line[at.MOST] = depth, min(warps.most, LARGEST)
    numbers[at.TEMPERATURE], numbers[at.MASS], numbers[at.LEAST] = warps.temperature, warps.mass, warps.least
    if draw.noise is not None:
        line[at.IS_NOISY], line[at.INDEX], line[at.SAMPLE] = 1, draw.place, draw.noise.sample
        line[at.SEED : at.SEED + 2] = draw.noise.key
    line[at.ENDS], line[at.END_COUNT] = ends.ctypes.data, len(ends)
