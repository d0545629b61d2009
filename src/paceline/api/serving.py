"""Serving: texts of many requests that event loops read, for a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from paceline.api.asynchronous import SharedBatch
from paceline.api.piece import Piece
from paceline.api.schedule import RowSchedule, Stage
from paceline.api.writing import Writing
from paceline.errors import InputError
from paceline.law.values import require_whole
from paceline.targets.base import SPARE_ROWS, Target
from paceline.targets.lending import KeptRows

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel

SHARE = 0.45
"""The share of the free memory that rows take by default. Their buffers double as they grow, so with twice as much they
stay within the free memory."""


class Serving(AbstractContextManager["Serving"]):
    """Texts written together for requests that come and go, each as it would be written alone.

    >>> serving = lm.serving(at_once=16)                                      # doctest: +SKIP
    ... async for pieces in serving.read(lambda: lm.write("Once upon a time")):
    ...     ...

    A request begins with the longest prefix that a running text or one of the ``kept`` last texts has in common with
    its prompt. Any thread may `close` it.
    """

    def __init__(self, lm: LanguageModel, *, at_once: int, kept: int, max_rows: int | None) -> None:
        for name, value, least in (("at_once", at_once, 1), ("kept", kept, 0), ("max_rows", max_rows, 2)):
            if value is not None:
                require_whole(name, value)
                if value < least:
                    raise InputError(f"{name} is {least} or more, not {value}")
        self._lm = lm
        most = rows_that_fit(lm.target, at_once) if max_rows is None else max_rows
        self.kept = KeptRows(lm.target.open, lm.target.look, at_once + kept, copies_lent=True, spare=kept)
        self._shared = SharedBatch(RowSchedule(self.kept, at_once, most))

    def __repr__(self) -> str:
        return f"<serving {self._lm.target.name}: {self.running} texts running, {self.waiting} waiting>"

    def read(self, write: Callable[[], Writing]) -> AsyncGenerator[list[Piece], None]:
        """The pieces of a text that ``write`` makes, in another thread: each time all that are there, such as those of
        a round. Closing the generator, or cancelling the task that reads it, ends the text within a round; then its
        rows are given back before this returns. A text whose prompt needs all of `max_rows` is refused; one that comes
        to need more ends there, with the finish ``context``."""
        return self._shared.read(self._lm, write)

    @property
    def waiting(self) -> int:
        """Texts that have not begun."""
        return self._shared.count(Stage.WAITING)

    @property
    def running(self) -> int:
        """Texts that are being written, or wait for their readers."""
        return self._shared.count(Stage.JOINED)

    @property
    def paused(self) -> int:
        """Texts that have begun and wait for memory."""
        return self._shared.count(Stage.PAUSED)

    @property
    def pauses(self) -> int:
        """How often a text was paused."""
        return self._shared.schedule.pauses

    @property
    def rows(self) -> int:
        """Rows, one a token, that the texts and the kept ones hold."""
        return self.kept.rows

    @property
    def max_rows(self) -> int | None:
        """The most rows that all texts hold together; None without a limit."""
        return self._shared.schedule.max_rows

    @property
    def closed(self) -> bool:
        """Whether it takes no more texts."""
        return self._shared.closed

    def close(self) -> None:
        """End all texts, as if they were cancelled, and give all rows back. A second call changes nothing."""
        self._shared.close()
        self.kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def rows_that_fit(target: Target, at_once: int, models: int = 1) -> int | None:
    """The rows that a share of the free memory holds, beside those of drafts; None where that is unknown. Several
    ``models`` on one device divide the share."""
    free, size = target.free_memory(), target.row_bytes()
    if free is None or not size:  # a model without attention has no rows
        return None
    share = SHARE * free / models - at_once * target.sequence_bytes()
    return max(2, int(share / size) - at_once * SPARE_ROWS)
