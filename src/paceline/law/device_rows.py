"""The race of `contenders` by torch's operations, on any device that has float64: the bound on the time, the tokens
that reach it, and the nucleus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law.distribution import Distribution
from paceline.law.noise import Stream
from paceline.law.on_device import ascending, upper_words
from paceline.law.shortlist import Coins, Shortlist
from paceline.law.warp import Warps

HEAVY = 4
MARGIN = 2.0**-20
BLOCK_TOKENS = 128
"""Tokens that are compared with one number."""
CROSSING = 512
"""Tokens of a row that there is room for in the transfer to the host."""


class DeviceRows:
    """Adjusted rows ``[rows, vocabulary]`` on a device that has float64, whose races are computed together."""

    def __init__(self, rows: torch.Tensor, warps: Warps, coins: Sequence[Coins]) -> None:
        self._rows, self._warps, self._coins = rows, warps, coins
        most, size = warps.most, rows.shape[1]
        self._kth = rows.topk(most, dim=1).values[:, -1:].contiguous() if 0 < most < size else None

    @cached_property
    def _words(self) -> torch.Tensor:
        return upper_words(self._coins, -(-self._rows.shape[1] // BLOCK_TOKENS) * BLOCK_TOKENS, self._rows.device)

    @cached_property
    def _maxima(self) -> torch.Tensor:
        return block_maxima(self._rows)

    @cached_property
    def _peaks(self) -> torch.Tensor:
        return self._maxima.amax(dim=1, keepdim=True)

    def laws(self) -> list[Distribution | None]:
        """Each row's law, restricted to tokens that can win; None where the whole row has to decide."""
        return [self._law(number, short) for number, short in enumerate(self._shortlists())]

    def _law(self, number: int, short: Shortlist) -> Distribution | None:
        if not (short.ids.size and math.isfinite(short.peak)):
            return None
        law = short.law(self._warps)
        if self._warps.mass == 1:
            return law
        noise, index = self._coins[number]
        times = noise.exponential(Stream.TARGET, index, law.ids) / law.weights
        return self._first_in_nucleus(number, law, np.argsort(times, kind="stable"))

    def _shortlists(self) -> list[Shortlist]:
        """The shortlist of each row, copied to the host in one transfer, the only wait. A row with more tokens than
        there is room for takes another one."""
        size, room, reached = self._rows.shape[1], min(CROSSING, self._rows.shape[1]), self._reached
        places = reached.cumsum(dim=1) - 1
        counts = places[:, -1:] + 1
        places = torch.where(reached, places, room).clamp_max_(room)  # behind the room, for those that are left out
        every = ascending(size, places.device).expand_as(places)
        ids = places.new_zeros((len(places), room + 1)).scatter_(1, places, every)[:, :room]
        unsure = self._bound == math.inf
        peaks = self._peaks.double().masked_fill(unsure, -math.inf)  # of such a row the whole law decides
        crossing = torch.cat([peaks, counts.double(), ids.double(), self._rows.gather(1, ids).double()], dim=1)
        found = [_shortlist(line, room) for line in crossing.numpy(force=True)]
        return [short or self._long(number) for number, short in enumerate(found)]

    @cached_property
    def _reached(self) -> torch.Tensor:
        """Which tokens can win, ``[rows, vocabulary]``. Of a row without a bound nearly none."""
        weights = self._logs(self._maxima).exp()
        chances = torch.exp(self._bound.masked_fill(self._bound == math.inf, 0.0) * weights * -(1 + MARGIN))
        least = (chances * 2.0**32 - 2).ceil().clamp_min(0).long()
        reached: torch.Tensor = (self._words.unflatten(1, (-1, BLOCK_TOKENS)) >= least[:, :, None]).flatten(1)[
            :, : self._rows.shape[1]
        ]
        if self._kth is not None:
            reached &= self._rows >= self._kth
        return reached

    def winners(self) -> list[int | None]:
        """Of each row the token that is chosen; None where the whole row has to decide."""
        return [None if law is None else self._winner(number, law) for number, law in enumerate(self.laws())]

    def _winner(self, number: int, law: Distribution) -> int:
        noise, index = self._coins[number]
        return int(law.ids[(noise.exponential(Stream.TARGET, index, law.ids) / law.weights).argmin()])

    def _long(self, number: int) -> Shortlist:
        """The tokens of a row that did not fit."""
        ids = self._reached[number].nonzero()[:, 0]
        crossing = torch.cat([self._peaks[number].double(), ids.double(), self._rows[number, ids].double()])
        numbers = crossing.numpy(force=True)
        return Shortlist(numbers[1 : 1 + len(ids)].astype(np.int64), numbers[1 + len(ids) :], float(numbers[0]))

    def _logs(self, scores: torch.Tensor) -> torch.Tensor:
        """The logarithms of the weights of scores ``[rows, some]``."""
        return (scores.double() - self._peaks) / self._warps.temperature

    @cached_property
    def _bound(self) -> torch.Tensor:
        """V, the bound on the time, of every row, ``[rows, 1]``; infinite where no token is certain."""
        size = self._rows.shape[1]
        most = self._maxima.topk(min(HEAVY + 1, self._maxima.shape[1]), dim=1)
        blocks = most.indices[:, :HEAVY, None] * BLOCK_TOKENS
        ids = (blocks + ascending(BLOCK_TOKENS, blocks.device)).flatten(1)
        scores = self._rows.gather(1, ids.clamp_max(size - 1)).masked_fill(ids >= size, -math.inf)
        if self._kth is not None:
            scores = scores.masked_fill(scores < self._kth, -math.inf)
        logs = self._logs(scores)
        weights = logs.exp()
        certain = (weights > self._warps.least * (1 + MARGIN)) | (scores == self._peaks)
        if self._warps.mass < 1:
            others = (
                self._logs(most.values[:, HEAVY:]).amax(dim=1, keepdim=True)
                if size > HEAVY * BLOCK_TOKENS
                else -math.inf
            )
            certain &= self._inside(logs, weights) & (logs > others + MARGIN)
        heard = -torch.log(self._words.gather(1, ids).double() * 2.0**-32)
        return torch.where(certain, heard / weights, math.inf).amin(dim=1, keepdim=True)

    def _inside(self, logs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Which heavy tokens are in the nucleus if only heavy tokens are before them."""
        heaviest = logs.sort(dim=1, descending=True).values
        sums = heaviest.exp().cumsum(dim=1)
        ahead = torch.searchsorted(-heaviest, MARGIN - logs, right=True)
        before = sums.gather(1, (ahead - 1).clamp_min(0)) - weights
        return before < self._warps.mass * sums[:, -1:] * (1 - MARGIN)

    def _first_in_nucleus(self, number: int, law: Distribution, order: NDArray[np.int64]) -> Distribution | None:
        """The first token, in this order, that top-p keeps; None where rounding leaves it open."""
        row = self._rows[number : number + 1]
        logs = ((row.double() - self._peaks[number]) / self._warps.temperature)[0]
        if self._kth is not None:
            logs = logs.masked_fill(row[0] < self._kth[number], -math.inf)
        weights = logs.exp()
        for place in order.tolist():
            weight = law.weights[place]
            own = math.log(weight)
            sums = [weights.sum(), weights[logs > own + MARGIN].sum(), weights[logs >= own - MARGIN].sum()]
            mass, before, up_to = torch.stack(sums).tolist()
            doubt = mass * MARGIN
            if up_to - weight + doubt < self._warps.mass * mass:
                return Distribution(law.ids[place : place + 1], law.weights[place : place + 1])
            if before - doubt < self._warps.mass * mass:
                return None
        return None


def _shortlist(line: NDArray[np.float64], room: int) -> Shortlist | None:
    """From the peak of a row, the number of its tokens, their ids and their scores; None if they are more than there is
    room for."""
    count = int(line[1])
    if count > room:
        return None
    ids, scores = line[2 : 2 + count], line[2 + room : 2 + room + count]
    return Shortlist(ids.astype(np.int64), scores, float(line[0]))


def block_maxima(rows: torch.Tensor) -> torch.Tensor:
    """``[rows, blocks]``: the greatest score among every `BLOCK_TOKENS` ids."""
    whole = rows.shape[1] // BLOCK_TOKENS * BLOCK_TOKENS
    maxima = rows[:, :whole].unflatten(1, (-1, BLOCK_TOKENS)).amax(dim=2)
    return maxima if whole == rows.shape[1] else torch.cat([maxima, rows[:, whole:].amax(dim=1, keepdim=True)], dim=1)
