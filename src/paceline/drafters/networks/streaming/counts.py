"""How many streams drafts have: none, or as many as draft a token in the least time, measured while texts are written.

Drafts are the same tokens with any number of streams, so the number may change with every draft, and nothing but time
depends on it. Drafts with each number, 0 among them, are compared in a trial (`paceline.drafters.trials`), apart for
each kind of draft. Its result is kept for this machine, draft model and adapter.

A draft that is sampled, as under the rejection rule, has no streams here: its law is a part of the text's, and rows
that are computed beside others may round differently. So no clock has a say in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.heads import STREAMING, folder_of
from paceline.drafters.sharing import stamp
from paceline.drafters.trials import KeptChoice, SpeedTrial
from paceline.once import once
from paceline.targets.base import Target
from paceline.targets.setup import kernels, setup_of

FEW, ENOUGH, MOST = 5, 30, 120
"""Compared drafts of a trial, as in `trials`: more than there, for numbers of streams differ by a few hundredths, and a
draft takes a small part of a round."""
STALLED = 1.5
"""Stalls, as there: no draft of a kind takes this many times as many forwards as most."""
HEATS = 2.0
"""Classes of temperatures in one degree: at a higher one guesses come true less often."""
HOTTEST = 4
LOOKED = 1000
"""Drafts of a kind after which it is asked again whether a trial is due."""
WATCHED, WATCHED_LEAST = 100, 1600
"""Drafts between two comparisons of the best number with none, at first, and at most: twice as many after each that
confirms it."""
Clock = Callable[[], float]


class DraftKind(NamedTuple):
    """What the best number of streams depends on, beside the machine and the draft model."""

    whole: bool
    """Whether a draft is one compiled call. Else each level is compared by itself."""
    texts: int
    """Binary digits of the number of drafts that grow together."""
    depth: int
    """Binary digits of the tokens behind the first one."""
    heat: int
    """The class of temperature; 0 where the likeliest token is drafted."""
    most: int
    """Streams that it may have."""

    @classmethod
    def of(cls, growth: Growth, texts: int, most: int, *, whole: bool) -> DraftKind:
        """Of several drafts, by one of them."""
        heat = 0
        if growth.shared:
            heat = min(HOTTEST, max(1, round(HEATS * growth.state.context.sampling.temperature)))
        return cls(whole, texts.bit_length(), max(0, growth.depth - 1).bit_length(), heat, most)


class StreamWatch:
    """Now and then compares the number that a trial has found with none. Machines change long before another trial is
    due: where memory became half as fast again, streams that had gained a tenth lost as much."""

    def __init__(self, best: int) -> None:
        self.best = best
        self._rest = self._resting = WATCHED
        self._trial = self._fresh()

    @staticmethod
    def _fresh() -> SpeedTrial:
        return SpeedTrial(2, few=FEW, enough=ENOUGH, most=MOST, stalled=STALLED)

    def count(self) -> int:
        """The streams of the next draft."""
        return self.best if self._rest > 0 or self._trial.way == 0 else 0

    def note(self, count: int, tokens: float, seconds: float) -> bool:
        """A draft was made, and whether none is clearly better by now."""
        if self._rest > 0:
            self._rest -= 1
            return False
        trial = self._trial
        trial.note(int(count == 0), tokens, seconds)
        if trial.best is not None:
            lost = trial.best == 1
            self._resting, self._trial = min(WATCHED_LEAST, 2 * self._resting), self._fresh()
            self._rest = self._resting
            return lost
        if trial.way == 0 and not trial.pieces and not trial.ahead:  # a block of each is over, and none is no faster
            self._rest = self._resting
        return False


class StreamCounts:
    """The numbers of streams of one draft model and adapter on this machine, by kinds of drafts."""

    def __init__(self, setup: str, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self._setup, self._lock = setup, RLock()
        self._choices: dict[DraftKind, KeptChoice] = {}
        self._watches: dict[DraftKind, StreamWatch] = {}
        self._used = Counter[DraftKind]()

    def count(self, kind: DraftKind) -> int:
        """How many streams the next draft of this kind has."""
        with self._lock:
            ways = kind.most + 1
            if kind not in self._choices:
                self._choices[kind] = KeptChoice.known(f"{self._setup} {tuple(kind)}", ways)
            choice = self._choices[kind]
            if self._used[kind] % LOOKED == 0 and choice.trial is None and choice.due:
                choice.begin(SpeedTrial(ways, few=FEW, enough=ENOUGH, most=MOST, stalled=STALLED))
            self._used[kind] += 1
            return choice.way if choice.trial is not None or not choice.best else self._watch(kind, choice).count()

    def _watch(self, kind: DraftKind, choice: KeptChoice) -> StreamWatch:
        watch = self._watches.get(kind)
        if watch is None or watch.best != choice.best:
            watch = self._watches[kind] = StreamWatch(choice.best)
        return watch

    def note(self, kind: DraftKind, count: int, tokens: float, seconds: float) -> None:
        """Drafts with ``count`` streams grew by so many ``tokens`` each."""
        with self._lock, once():  # no draft's seconds
            choice = self._choices[kind]
            if choice.trial is None and choice.best and self._watch(kind, choice).note(count, tokens, seconds):
                choice.best = 0
                choice.count(trials=0)
            elif choice.note(count, tokens, seconds):
                choice.count()
            elif (trial := choice.trial) is not None and count == trial.leader and not trial.pieces:
                choice.keep()  # once in a turn of all ways: many programs draft for one text only


_KNOWN: WeakKeyDictionary[Target, dict[str, StreamCounts]] = WeakKeyDictionary()


def counts_of(model: Target, head: str | Path, guesses: int) -> StreamCounts:
    """Those of a draft model with an adapter, which all drafters of a process share."""
    with once():  # no draft's seconds
        folder = folder_of(head, model.bundled or model.name, STREAMING)
        setup = f"{STREAMING} {setup_of(model).digest} {kernels()} {stamp(folder)} {guesses}"
    return _KNOWN.setdefault(model, {}).setdefault(setup, StreamCounts(setup))
