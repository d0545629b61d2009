"""The law of the next token as a drafter expects it, from its own logits.

The target's settings are applied to the drafter's row, since a target that samples at temperature 0.8 from its ten
best tokens has another law than the raw logits. Two things differ from `Law`. Custom processors are left out: they may
keep state, and only the calls of plain decoding may reach them. Grammars are left out, since they follow one text. And
negligible tokens are dropped before anything expensive is computed: a drafter need not be exact, since a wrong guess is
refused and never emitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.law.adjust import Adjustment
from paceline.law.distribution import Distribution
from paceline.law.scores import Array, Row, fetched, full_precision
from paceline.law.table import Acts
from paceline.law.warp import Warps, warped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.law.noise import Noise
    from paceline.law.settings import Sampling

NEGLIGIBLE = 1e-5
"""Tokens less likely than this share of the best one are not drafted."""

LOG_NEGLIGIBLE = math.log(NEGLIGIBLE)
NOTHING_LIKELY = Distribution(np.empty(0, np.int64), np.empty(0))

# Of searches with several beams.
CANDIDATES = 64
"""Tokens behind a beam that settings and noise choose from."""
NO_TOKEN = -1
"""Where nothing was chosen."""
IMPOSSIBLE = -1e30
"""Paths of a lower score are none."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """How a token is chosen after a row, where the row decides by itself. Without ``noise`` the likeliest wins."""

    warps: Warps
    noise: Noise | None
    place: int
    """Of the first such token in the text."""


class Outlook:
    """One sequence's settings as a drafter applies them. For greedy decoding the law is the raw probabilities, which
    rank the tokens."""

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        settings = sampling.without(lambda row: row.stateful or row.along_path)
        if sampling.greedy:
            settings = replace(settings.without(lambda row: row.acts is Acts.AS_CUT), temperature=1.0)
        self._adjusts, self._warps = settings.adjusts, Warps.of(settings)

        @lru_cache(maxsize=1)
        def adjustment(size: int) -> Adjustment:
            return Adjustment(settings.within(size), prompt_length)

        self._adjustment = adjustment

    def draw(self, noise: Noise | None, place: int) -> Draw | None:
        """None where more than the row decides, or by cuts that no kernel knows."""
        return Draw(self._warps, noise, place) if self._warps.in_kernels and not self._adjusts else None

    def laws(self, rows: Array, texts: Iterable[Ints]) -> list[Distribution]:
        """The law of each row of ``[rows, vocabulary]``; ``texts`` are the tokens before each, read only if needed."""
        scores: Iterable[Row] = (found := fetched(full_precision(rows)))
        if self._adjusts:
            adjustment = self._adjustment(rows.shape[1])
            scores = (adjustment.apply(row.copy(), text) for row, text in zip(scores, texts, strict=True))
        elif not self._warps.cuts:
            return self._uncut(found)
        return [self._law(row) for row in scores]

    def over(self, ids: Ints, logs: Floats, size: int, text: Ints) -> Distribution:
        """The law over a few tokens, ``ids`` ascending of ``size`` in all, whose log-probabilities are ``logs``."""
        if self._adjusts:
            row = np.full(size, -np.inf)
            row[ids] = logs
            logs = self._adjustment(size).apply(row, text)[ids]
        if not len(ids) or not np.isfinite(logs.max()):
            return NOTHING_LIKELY
        law = warped(logs, self._warps)
        return Distribution(ids[law.ids], law.weights)

    def among(self, ids: Ints, rows: Floats, size: int, texts: Sequence[Callable[[], Ints]]) -> list[Distribution]:
        """The same of several rows of logits over these tokens, each behind its text. One row holds for all texts;
        those whose law is the same get one object. Texts are called only if needed."""
        if self._adjusts:
            each = rows if len(rows) == len(texts) else np.broadcast_to(rows, (len(texts), len(ids)))
            return [self.over(ids, row, size, text()) for row, text in zip(each, texts, strict=True)]
        if self._warps.cuts or not np.isfinite(rows).all():
            found = [Distribution(ids[law.ids], law.weights) for law in map(self._law, rows)]
        else:
            found = self._tempered(ids, rows)
        return found if len(found) == len(texts) else found * len(texts)

    def _tempered(self, ids: Ints, rows: Floats) -> list[Distribution]:
        """The laws of finite rows where nothing is cut: those of `_law`, in fewer steps for several of them."""
        logs = (rows - rows.max(axis=1, keepdims=True)) / self._warps.temperature
        weights, likely = np.exp(logs), logs >= LOG_NEGLIGIBLE
        return [Distribution(ids[kept], row[kept]) for kept, row in zip(likely, weights, strict=True)]

    def _uncut(self, rows: Row) -> list[Distribution]:
        """Those of `_law` where nothing is cut, in one pass over all rows."""
        if not len(rows):
            return []
        peaks = rows.max(axis=1).astype(np.float64)
        if not np.isfinite(peaks).all():
            return [self._law(row) for row in rows]
        least = peaks + self._warps.temperature * LOG_NEGLIGIBLE
        kept = (rows >= least.astype(rows.dtype)[:, None]).ravel().nonzero()[0]
        whose, ids = np.divmod(kept, rows.shape[1])
        logs = np.subtract(rows.ravel()[kept], peaks[whose], dtype=np.float64)
        logs /= self._warps.temperature
        weights, ends = np.exp(logs, out=logs), np.searchsorted(whose, np.arange(1, len(rows)))
        return [Distribution(*each) for each in zip(np.split(ids, ends), np.split(weights, ends), strict=True)]

    def _law(self, row: Row) -> Distribution:
        """Empty where the row has no finite maximum: a drafter's broken row must not end the text."""
        peak = float(row.max())
        if not np.isfinite(peak):
            return NOTHING_LIKELY
        least = peak + self._warps.temperature * LOG_NEGLIGIBLE
        ids = np.flatnonzero(row >= least)
        law = warped(row[ids], self._warps)
        return Distribution(ids[law.ids], law.weights)
