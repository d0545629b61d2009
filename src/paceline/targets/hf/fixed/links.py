"""Drafts of one token after another, recorded: a forward over the unread tokens that chooses the first token, and one
over a single token that chooses the next. All are played one behind the other, and the host waits once.

Where a link reads and writes, and what it chooses by, are numbers on the device that move on with every link. The host
fills them in before a draft, and reads all tokens behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from paceline.law import log_normalizer
from paceline.law.draws import DRAW_NUMBERS, INDEX, Draws, cuts, numbers_of
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fixed.capture import Leave, pass_by
from paceline.targets.hf.fixed.shapes import ForwardShape, slots_of
from paceline.targets.hf.fixed.step import Result, Step
from paceline.targets.hf.path import ForwardJob
from paceline.tree import Floats

CANDIDATES = 256
"""The best tokens, of which one is chosen."""
DEPTH = 64
"""The longest draft that is recorded."""
LAST, LIVE = DRAW_NUMBERS, DRAW_NUMBERS + 1
"""Behind the numbers of a text's draws: its last unread row, and whether it is there at all."""
FEWEST_LINKS = 2
"""Links that are tried when a draft is recorded: one of each kind."""
SPARE = 4
"""Levels that only a recording in the making reaches."""
TOKENS, CHANCES = 0, 1
NEAR = 0.05
"""How far logarithms of chances may lie apart."""


@dataclass(frozen=True)
class LinkShape:
    """The properties that all drafts by a recording share."""

    first: ForwardShape
    size: int | None
    """Only the first ``size`` ids are drafted; None for all."""
    cut: bool
    noisy: bool

    @classmethod
    def of(cls, chains: Sequence[Chain], first: ForwardShape) -> LinkShape:
        sizes = {chain.size for chain in chains}
        assert len(sizes) == 1, "chains of one target end in one vocabulary"
        return cls(
            first,
            sizes.pop(),
            any(cuts(chain.draw.warps) for chain in chains),
            any(chain.draw.noise is not None for chain in chains),
        )


def job_of(chains: Sequence[Chain]) -> ForwardJob:
    """The forward over the unread tokens."""
    return ForwardJob([Request(chain.rows, chain.tokens, np.arange(-1, len(chain.tokens) - 1)) for chain in chains])


class Links:
    """The functions to be recorded, with the memory that they share."""

    def __init__(self, shape: LinkShape, step_of: Callable[[ForwardShape], Step]) -> None:
        self.shape = shape
        count = shape.first.count
        self._first, self._next = step_of(shape.first), step_of(replace(shape.first, rows=1))
        device = self._first.inputs.tokens.device
        pinned = device.type == "cuda"
        with torch.inference_mode(False):
            self._host = torch.zeros((count, LIVE + 1), dtype=torch.int64, pin_memory=pinned)
            self._numbers = torch.zeros((count, LIVE + 1), dtype=torch.int64, device=device)
            self._level = torch.zeros(1, dtype=torch.int64, device=device)
            self._drafted = torch.zeros((2, DEPTH + SPARE, count), dtype=torch.float64, device=device)
        self._draws = Draws(self._numbers[:, :DRAW_NUMBERS], cut=shape.cut, noisy=shape.noisy)
        self.functions: tuple[Callable[[Leave], Result], Callable[[Leave], Result]] = self._begin, self._go_on

    def fill(self, chains: Sequence[Chain], job: ForwardJob) -> None:
        """Fill the memory for a draft whose first forward is the job."""
        self._first.fill(job)
        slots = slots_of(job)
        self._next.fill_single([(slot, request.end) for slot, request in zip(slots, job.requests, strict=True)])
        self._host.zero_()
        numbers = self._host.numpy()
        for slot, chain in zip(slots, chains, strict=True):
            draw = chain.draw
            coins = None if draw.noise is None else (draw.noise, draw.place)
            numbers[slot - self.shape.first.first] = [*numbers_of(draw.warps, coins), len(chain.tokens) - 1, 1]
        self._numbers.copy_(self._host, non_blocking=True)
        self._level.zero_()

    def _begin(self, leave: Leave) -> Result:
        """Read the unread tokens, and choose the first of the draft."""
        result = self._first.compute(leave)
        rows = torch.arange(self.shape.first.count, device=self._level.device) * self.shape.first.rows
        return self._chosen(result, result.logits.index_select(0, rows + self._numbers[:, LAST]))

    def _go_on(self, leave: Leave) -> Result:
        """Read the newest token, and choose the next."""
        result = self._next.compute(leave)
        live, inputs = self._numbers[:, LIVE], self._next.inputs
        for moving in (inputs.positions[:, 0], inputs.places[:, 0], inputs.committed, inputs.tentative[:, 0]):
            moving += live
        self._numbers[:, INDEX] += live
        return self._chosen(result, result.logits)

    def _chosen(self, result: Result, logits: torch.Tensor) -> Result:
        """Note each text's next token, its log-probability, and that it is the one to read."""
        logits = logits[:, None, : self.shape.size].float() / self._draws.temperatures
        best, ids = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
        logs, rest = self._draws.logs(best, log_normalizer(logits))
        chances = self._draws.favoured(ids, logs, rest)[:, 0].nan_to_num(nan=-torch.inf)
        chance, place = chances.max(dim=-1)
        tokens = ids[:, 0].gather(1, place[:, None])[:, 0]
        self._next.inputs.tokens[:, 0] = tokens
        found = torch.stack([tokens.double(), chance.double()])
        self._drafted.index_copy_(1, self._level, found[:, None])
        self._level += 1
        return result

    def play(self, plays: Sequence[Callable[[Leave], Result]], depth: int) -> None:
        """A draft that was filled in."""
        first, following = plays
        first(pass_by)
        for _ in range(depth - 1):
            following(pass_by)

    def read(self, chains: Sequence[Chain], job: ForwardJob) -> list[ChainDraft]:
        """The drafts; each ends behind the first token that nothing follows."""
        depth = max(chain.depth for chain in chains)
        levels = self.levels(job, depth)
        return [_cut(chain, levels[:, :, number], depth) for number, chain in enumerate(chains)]

    def levels(self, job: ForwardJob, depth: int) -> Floats:
        """Tokens and logarithms of chances ``[2, depth, texts]``, in one copy."""
        places = [slot - self.shape.first.first for slot in slots_of(job)]
        found: Floats = self._drafted[:, :depth].numpy(force=True)[:, :, places]
        return found


def alike(one: Floats, other: Floats) -> bool:
    """Whether what was played twice differs by rounding alone, as far as each text has the same tokens."""
    same = np.cumprod(one[TOKENS] == other[TOKENS], axis=0)
    before = np.concatenate([np.ones_like(same[:1]), same[:-1]])
    gaps = np.abs(np.nan_to_num(one[CHANCES], neginf=-1e9) - np.nan_to_num(other[CHANCES], neginf=-1e9))
    return bool((gaps * before <= NEAR).all())


def _cut(chain: Chain, drafted: Floats, forwards: int) -> ChainDraft:
    """The draft up to the first token that nothing follows, or to a row of no numbers."""
    tokens = drafted[TOKENS, : chain.depth].astype(np.int64).tolist()
    scores = drafted[CHANCES, : chain.depth].tolist()
    count = 0
    while count < len(tokens) and scores[count] > -np.inf and (count == 0 or tokens[count - 1] not in chain.ends):
        count += 1
    return ChainDraft(tokens[:count], scores[:count], forwards)
