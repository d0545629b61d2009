"""RowSchedule of texts that share a batch: which are written, which wait, and which are paused for want of memory.

First come, first served: a text begins when a seat and memory for its rows are free, and no later text begins before
it. All texts and the kept rows of ended ones hold at most ``max_rows`` rows between two rounds; drafts come on top, at
most `SPARE_ROWS` a text. Where rows are short, the kept ones are closed first, then texts are paused: those whose
readers are slow, then the youngest. The oldest one whose reader reads is never paused, so there is always progress.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import Protocol

from paceline.api.batch import TextBatch
from paceline.api.writing import Writing
from paceline.errors import InputError
from paceline.targets.lending import KeptRows

CALM = 64
"""Rounds without a shortage of memory after which texts may hold twice as many rows; twice as long where more were
tried and memory was short again."""
LONGEST_CALM = 4096
FLOOR = 64
"""Rows that texts may hold after any shortage; with fewer they would be written one at a time."""
UNLIMITED = 1 << 32
"""Rows from which on there is no limit, where none was given."""
GROWTH = 8
"""Rows that must be free for each text when another one begins, so that it is not paused at once."""


class Stage(Enum):
    """Where a text is."""

    WAITING = auto()
    JOINED = auto()
    """In the batch."""
    PAUSED = auto()
    """Begun, and without rows."""


class Scheduled(Protocol):
    """A text with its reader."""

    writing: Writing
    stage: Stage

    @property
    def full(self) -> bool:
        """Whether it waits for its reader."""
        ...


class RowSchedule:
    """What happens between two rounds. Belongs to the thread that writes; the counters may be read by others."""

    def __init__(self, kept: KeptRows, at_once: int, max_rows: int | None = None) -> None:
        self.kept, self.at_once, self.max_rows = kept, at_once, max_rows
        self.pauses = 0
        """How often a text was paused."""
        self._most = max_rows
        """`max_rows`, or fewer after memory was short; None for no limit."""
        self._calm, self._wait = 0, CALM
        """Rounds since memory was short, and those until more rows are tried."""

    def bound(self, writing: Writing) -> None:
        """Refuse a text that can never have its rows, and end one that needs more where its rows end."""
        if self.max_rows is None:
            return
        if (length := writing.context.prompt_length) >= self.max_rows:
            raise InputError(
                f"the prompt has {length} tokens and all texts together may hold {self.max_rows} rows; "
                "shorten the prompt so that at least one token can follow, or raise max_rows"
            )
        writing.context.end_at(self.max_rows)

    def prepare(self, batch: TextBatch, texts: Collection[Scheduled]) -> list[Writing]:
        """Pause texts and let others begin or go on, all in the order of their arrival; those that the next round
        leaves out."""
        joined = [text for text in texts if text.stage is Stage.JOINED]
        self._make_room(batch, joined)
        able = [text for text in joined if not text.full]
        others = [text for text in texts if not text.full]
        paused = [text for text in others if text.stage is Stage.PAUSED]
        for text in [*paused, *(text for text in others if text.stage is Stage.WAITING)]:
            if len(able) >= self.at_once or not self._admits(batch, joined, text):
                break
            self._seat(batch, text)
            joined.append(text)
            able.append(text)
        if self._most is not None:
            self.kept.shrink(max(0, self._most - _rows(joined)))
        return [text.writing for text in (*(text for text in joined if text.full), *able[self.at_once :])]

    def note(self, batch: TextBatch, texts: Collection[Scheduled]) -> None:
        """After a round: texts that lacked memory for their rows are paused, and all hold no more than now for a while.
        Memory may be short for a moment only, so more is tried after some rounds without a shortage."""
        paused = batch.paused
        short = [text for text in texts if text.stage is Stage.JOINED and text.writing in paused]
        if not short:
            self._recover()
            return
        for text in short:
            text.stage = Stage.PAUSED
            self.pauses += 1
        self.kept.shrink(0)
        left = _rows([text for text in texts if text.stage is Stage.JOINED])
        self._wait = CALM if self._most == self.max_rows else min(2 * self._wait, LONGEST_CALM)
        most = max(left, FLOOR)
        self._most = most if self._most is None else min(most, self._most)
        self._calm = 0

    def _recover(self) -> None:
        """After a round without a shortage: every so many, allow twice as many rows, up to `max_rows`."""
        if self._most is None or self._most == self.max_rows:
            return
        self._calm += 1
        if self._calm < self._wait:
            return
        self._calm, self._most = 0, min(2 * self._most, self.max_rows or UNLIMITED)
        if self._most == UNLIMITED and self.max_rows is None:
            self._most = None

    def _make_room(self, batch: TextBatch, joined: list[Scheduled]) -> None:
        """Pause texts until the others can go on."""
        while self._most is not None and _rows(joined) > self._most and self._pause(batch, joined):
            pass

    def _admits(self, batch: TextBatch, joined: list[Scheduled], text: Scheduled) -> bool:
        """Whether there are rows for another text; slow readers give theirs up for it. A text has them all if no other
        one goes on."""
        if self._most is None:
            return True
        wanted = _rows([text]) + GROWTH * sum(not one.full for one in joined)
        while _rows(joined) + wanted > self._most and any(one.full for one in joined):
            self._pause(batch, joined)
        return not joined or _rows(joined) + wanted <= self._most

    def _pause(self, batch: TextBatch, joined: list[Scheduled]) -> bool:
        """Pause one text; whether there was one that may be paused."""
        slow, able = ([text for text in joined if text.full is full] for full in (True, False))
        if not slow and len(able) < 2:
            return False
        text = (slow or able)[-1]
        batch.pause(text.writing)
        text.stage = Stage.PAUSED
        joined.remove(text)
        self.pauses += 1
        return True

    @staticmethod
    def _seat(batch: TextBatch, text: Scheduled) -> None:
        if text.stage is Stage.PAUSED:
            batch.resume(text.writing)
        else:
            batch.join(text.writing)
        text.stage = Stage.JOINED


def _rows(texts: Sequence[Scheduled]) -> int:
    """The rows of texts after a round that gives each one token; those of their prompts count from the beginning."""
    return sum(len(text.writing.context) for text in texts)
