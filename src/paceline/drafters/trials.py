"""Trials of several ways to do the same work: which one brings the most tokens a second on this machine.

Way 0 leads at first. A trial does a *block* of pieces of work in each way in turn. A piece is worth its tokens less
what its seconds bring in the leading way. A way that clearly loses against the leader has no more blocks. One that
clearly gains leads from then on, and the leader before it is out. One that has had its share of pieces is decided by
its speed. So a trial's cost is bounded, and way 0 is left only where another way is measured to be faster.

The result is kept in the cache directory (`KeptChoice`). Another trial is due after `AGAIN` seconds, and each further
one after a time that is `SELDOMER` times as long, up to `LATEST`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Annotated

from paceline.files import keep_record, kept_record
from paceline.files.shape import LARGEST_EXACT_INTEGER, Bounds, Count
from paceline.targets.setup import versions

BLOCK = 6
"""Pieces in one way in a row."""
SETTLING = 1
"""Pieces at the beginning of a block that are not compared: caches still hold what the way before needed."""
FEW, ENOUGH, MOST = 4, 12, 40
"""Compared pieces of a way before its loss is believed, before a gain is, and before it is decided by its speed."""
SURE = 2.0
"""Standard errors that a clear loss or gain is away from nothing."""
WORTH = 1.02
"""How many times as fast as the leader a way must be then."""
STALLED = 3.0
"""A piece counts as at most this many times the median of its way: longer ones are stalls."""
AGAIN, SELDOMER, LATEST = 600.0, 8.0, 60 * 86400.0
"""Seconds until the second trial, the factor to each further one, and the longest time between two."""
FOLDER = "trials"
"""In the cache directory."""


@dataclass(eq=False)
class SpeedTrial:
    """Pieces of work in several ways, in alternating blocks. A record of it can be read again."""

    ways: Count
    few: Count = FEW
    enough: Count = ENOUGH
    most: Count = MOST
    stalled: float = STALLED
    tokens: list[list[float]] = field(default_factory=list)
    """Of the compared pieces, by way."""
    seconds: list[list[float]] = field(default_factory=list)
    leader: Count = 0
    out: list[Count] = field(default_factory=list)
    """The ways that have lost."""
    way: Count = 0
    """The way of the next piece."""
    pieces: Count = 0
    """Done so far in this block."""

    def __post_init__(self) -> None:
        self.tokens = self.tokens or [[] for _ in range(self.ways)]
        self.seconds = self.seconds or [[] for _ in range(self.ways)]
        pieces = [list(map(len, each)) for each in (self.tokens, self.seconds)]
        positive = all(each > 0 for seconds in self.seconds for each in seconds)
        going = set(range(self.ways)) - set(self.out)
        known = {self.leader, self.way} <= going and len(going) + len(self.out) == self.ways
        if not (len(self.tokens) == self.ways and pieces[0] == pieces[1] and positive and known):
            raise ValueError("a trial is at odds with itself")

    @property
    def rules(self) -> tuple[float, ...]:
        return self.ways, self.few, self.enough, self.most, self.stalled

    def note(self, way: int, tokens: float, seconds: float) -> None:
        """A piece was done. One in another way than that of the block was begun before."""
        if way != self.way or seconds <= 0:
            return
        if self.pieces >= SETTLING:
            self.tokens[way].append(tokens)
            self.seconds[way].append(seconds)
            self._judge(way)
        self.pieces += 1
        if self.pieces >= BLOCK or way in self.out:
            self.way, self.pieces = self._next(way), 0

    def _judge(self, way: int) -> None:
        if way == self.leader or (gains := self._gains(way)) is None:
            return
        self.out.append(self.leader if gains else way)
        self.leader = way if gains else self.leader

    def _next(self, way: int) -> int:
        going = [each for each in range(self.ways) if each not in self.out]
        return next((each for each in going if each > way), going[0])

    @property
    def best(self) -> int | None:
        """The way that brings the most tokens a second; None while that is open."""
        return self.leader if len(self.out) == self.ways - 1 else None

    @property
    def ahead(self) -> bool:
        """Whether a way was faster than the leader so far, clearly or not."""
        tried = [way for way in range(self.ways) if self.tokens[way]]
        return self.leader in tried and max(map(self._rate, tried)) > self._rate(self.leader)

    def _rate(self, way: int) -> float:
        return sum(self.tokens[way]) / sum(self._seconds(way))

    def _seconds(self, way: int) -> list[float]:
        most = self.stalled * median(self.seconds[way])
        return [min(each, most) for each in self.seconds[way]]

    def _worth(self, way: int, rate: float) -> tuple[float, float]:
        """The mean of what its pieces are worth, and the square of that mean's error."""
        pairs = zip(self.tokens[way], self._seconds(way), strict=True)
        worth = [tokens - rate * seconds for tokens, seconds in pairs]
        mean, count = fmean(worth), len(worth)
        return mean, sum((each - mean) ** 2 for each in worth) / (count - 1) / count

    def _gains(self, way: int) -> bool | None:
        """Whether a way is faster than the leader; None while that is open."""
        count = len(self.tokens[way])
        if min(count, len(self.tokens[self.leader])) < self.few:
            return None
        rate = self._rate(self.leader)
        (_, theirs), (gain, own) = (self._worth(each, rate) for each in (self.leader, way))
        error = math.sqrt(theirs + own)
        if gain + SURE * error < 0:
            return False
        if count >= self.enough and gain - SURE * error > 0:
            return True
        return self._rate(way) > WORTH * rate if count >= self.most else None


@dataclass(frozen=True, kw_only=True)
class TrialFacts:
    """The result of the last trial for one setup."""

    setup: str
    versions: Mapping[str, str]
    trials: Count
    """How many were counted."""
    when: Annotated[float, Bounds(0, LARGEST_EXACT_INTEGER)]
    """When the last one was, in seconds since 1970."""
    best: Count = 0
    """The way that it found; 0 if none has ended."""
    trial: SpeedTrial | None = None
    """The one that a program has left unfinished."""

    @property
    def due(self) -> bool:
        """Whether it is time for another trial."""
        return not 0 <= time.time() - self.when < min(LATEST, AGAIN * SELDOMER ** (min(self.trials, 20) - 1))


@dataclass(eq=False)
class KeptChoice:
    """The choice between several ways in one setup: the best one known on this machine, or that of a trial."""

    setup: str
    ways: int
    best: int = 0
    trial: SpeedTrial | None = None
    """The trial that is under way."""

    @classmethod
    def known(cls, setup: str, ways: int) -> KeptChoice:
        """As the last trial on this machine left it; way 0 if there was none."""
        facts = cls(setup, ways).facts
        return cls(setup, ways, 0 if facts is None or facts.best >= ways else facts.best)

    @property
    def facts(self) -> TrialFacts | None:
        found = kept_record(FOLDER, self.setup, TrialFacts)
        return found if found is not None and found.setup == self.setup and dict(found.versions) == versions() else None

    @property
    def due(self) -> bool:
        """Whether it is time for a trial."""
        facts = self.facts
        return self.ways > 1 and (facts is None or facts.due)

    @property
    def way(self) -> int:
        """The way of the next piece of work."""
        return self.best if self.trial is None else self.trial.way

    @property
    def lost(self) -> bool:
        """Whether nothing but way 0 is used for now."""
        return self.trial is None and self.best == 0

    def begin(self, trial: SpeedTrial) -> None:
        """Begin a trial, or go on with the one of these rules that an earlier program left unfinished."""
        facts = self.facts
        left = None if facts is None else facts.trial
        self.trial = left if left is not None and left.rules == trial.rules else trial

    def count(self, trials: int = 1) -> None:
        """Keep the choice, with so many more trials; the next one is due later then."""
        facts = self.facts
        self._keep(max(1, trials + (0 if facts is None else facts.trials)), time.time())

    def keep(self) -> None:
        """Keep the trial that is under way, for a program that goes on with it. Where another program has ended one
        meanwhile, its result stays."""
        facts = self.facts
        if facts is None or facts.due:
            self._keep(*((0, 0.0) if facts is None else (facts.trials, facts.when)), trial=self.trial)

    def _keep(self, trials: int, when: float, trial: SpeedTrial | None = None) -> None:
        kept = TrialFacts(setup=self.setup, versions=versions(), trials=trials, when=when, best=self.best, trial=trial)
        keep_record(FOLDER, self.setup, kept)

    def note(self, way: int, tokens: float, seconds: float) -> bool:
        """A piece of work was done, and whether that ended the trial."""
        if self.trial is None:
            return False
        self.trial.note(way, tokens, seconds)
        best = self.trial.best
        if best is None:
            return False
        self.best, self.trial = best, None
        return True
