"""How many drafted tokens are worth their time.

A token is worth the chance that it and all before it come true. The chance that its source states is corrected by what
that source has brought: in this request, and in all. What a row costs is measured: the time of a step by its number of
rows. A token is drafted where it brings more than its row's time would bring elsewhere, at the pace of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.recent import RecentMean, RecentRatio

FADING = 0.98
"""The weight that earlier steps keep with each new one."""
KEPT = 0.999
"""The weight that what was drafted keeps with each token."""
LIKE_ALL = 8.0
"""Expected tokens of all requests that a request's own record begins with."""
EXPLORED = 64
"""Every so many steps drafts have their full length, so that it is seen what longer ones bring."""
IDLE = 8.0
"""A gap of so many usual steps is no step: there was nothing to write."""
RISEN = 16
"""So many gaps in a row are steps: the load has risen."""


@dataclass(eq=False)
class SourceRecord(RecentRatio):
    """What a source has brought: the tokens that came true, over those expected by their stated chances."""

    kept: float = KEPT
    above: float = 2.0
    below: float = 2.0

    def note(self, chance: float, true: bool) -> None:
        self.add(true, chance)


@dataclass(eq=False)
class Pace:
    """The time of a step by its rows, a line through the recent ones, and the tokens of a second."""

    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    _usual: RecentMean = field(default_factory=lambda: RecentMean(FADING))
    _gaps: int = 0
    """In a row, until now."""
    _rate: RecentRatio = field(default_factory=lambda: RecentRatio(FADING))

    def note(self, rows: int, tokens: int, seconds: float) -> None:
        if self._usual.times and seconds > IDLE * self._usual.value:
            self._gaps += 1
            if self._gaps < RISEN:
                return
            self._usual.value = seconds
        self._gaps = 0
        self._usual.add(seconds)
        new = (1.0, rows, rows * rows, seconds, rows * seconds)
        self._sums = [FADING * old + each for old, each in zip(self._sums, new, strict=True)]
        self._rate.add(tokens, seconds)

    @property
    def least(self) -> float:
        """The tokens that a row must bring: 0 as long as nothing is known of its time."""
        count, rows, squares, seconds, products = self._sums
        spread = count * squares - rows * rows
        if not self._rate.below or spread <= 1e-6 * max(1.0, count * squares):
            return 0.0
        slope = (count * products - rows * seconds) / spread
        return max(0.0, slope) * self._rate.above / self._rate.below


class Lengths:
    """The records of all sources."""

    def __init__(self) -> None:
        self._all: dict[str, SourceRecord] = {}
        self.pace = Pace()
        self.steps = 0

    def judge(
        self, record: dict[str, SourceRecord], sources: Sequence[str], chances: Sequence[float], accepted: int
    ) -> None:
        """Of a request's draft so many tokens came true; the one behind them did not."""
        source, overall, own = "", SourceRecord(), SourceRecord()
        for place in range(min(len(chances), accepted + 1)):
            if sources[place] != source:
                source = sources[place]
                overall, own = self._records(record, source)
            overall.note(chances[place], place < accepted)
            own.note(chances[place], place < accepted)

    def _records(self, record: dict[str, SourceRecord], source: str) -> tuple[SourceRecord, SourceRecord]:
        """Of a source: that of all requests, and that of one."""
        overall = self._all.get(source)
        if overall is None:
            overall = self._all[source] = SourceRecord()
        own = record.get(source)
        if own is None:
            own = record[source] = SourceRecord(above=LIKE_ALL * overall.value, below=LIKE_ALL)
        return overall, own

    def step(self) -> float:
        """The least that a token must bring in this step."""
        self.steps += 1
        return 0.0 if self.steps % EXPLORED == 0 else self.pace.least

    def worth(
        self, record: dict[str, SourceRecord], sources: Sequence[str], chances: Sequence[float], least: float
    ) -> int:
        """How many of a draft's tokens bring so much."""
        if not least:
            return len(chances)
        ratio, source, path = 1.0, "", 1.0
        for place, chance in enumerate(chances):
            if sources[place] != source:
                source = sources[place]
                known = record.get(source) or self._all.get(source)
                ratio = 1.0 if known is None else known.value
            path *= min(1.0, chance * ratio)
            if path < least:
                return place
        return len(chances)
