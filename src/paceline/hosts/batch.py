"""Several texts written together: what a program does that has a list of prompts, or users who come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from paceline.decode.batch import AT_ONCE, Batch, Turn
from paceline.decode.session import Session
from paceline.hosts.settings import split_settings
from paceline.hosts.writing import Piece, Prompt, Writer, Writing
from paceline.targets.lending import KeptRows


class Progress(NamedTuple):
    """What a step brought one text. With ``ended`` its `result` can be had, or raises what went wrong."""

    writing: Writing
    pieces: list[Piece]
    ended: bool


class TextBatch:
    """Texts that are written together, each as it would be written alone; more may be added at any time.

    >>> with lm.batch() as batch:                                             # doctest: +SKIP
    ...     first = batch.add("Once upon a time", temperature=0.8, seed=1)
    ...     second = batch.add("Dawno temu", max_new_tokens=40)
    ...     for writing, pieces, ended in batch:
    ...         ...
    >>> first.result().text                                                   # doctest: +SKIP

    At most ``at_once`` are written at a time; the others wait for their turn. Belongs to one thread.
    """

    def __init__(self, lm: Writer, *, at_once: int = AT_ONCE) -> None:
        self._lm = lm
        self._batch = Batch(lm.target, at_once=at_once)
        self._at_once = at_once
        self._kept = KeptRows(lm.target, at_once)
        self._waiting: deque[Writing] = deque()
        self._writing: dict[Session, Writing] = {}

    def add(self, prompt: Prompt, *, sample: int = 0, **settings: Any) -> Writing:
        """One more text, with the settings of `LanguageModel.generate`. Texts of one prompt and seed differ by their
        ``sample`` number."""
        writing = Writing(self._lm, prompt, sample, *split_settings(settings))
        self._waiting.append(writing)
        return writing

    def cancel(self, writing: Writing) -> None:
        """Stop writing a text. What was written of it stands in ``writing.context``."""
        if writing in self._waiting:
            self._waiting.remove(writing)
        elif writing.session is not None and self._writing.pop(writing.session, None) is not None:
            try:
                self._batch.leave(writing.session)
            finally:
                writing.end()

    def step(self) -> list[Progress]:
        """One round of every text; tells of those that it brought something."""
        try:
            refused = []
            while self._waiting and len(self._writing) < self._at_once:
                refused += self._begin(self._waiting.popleft())
            return [*refused, *map(self._progress, self._batch.step())]
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Progress]:
        """What happens, until nothing is left to write."""
        while len(self):
            yield from self.step()

    def __len__(self) -> int:
        """How many texts are being written or wait."""
        return len(self._writing) + len(self._waiting)

    def close(self) -> None:
        """Stop writing all texts, and give their memory back."""
        self._waiting.clear()
        try:
            self._batch.close()
        finally:
            for writing in self._writing.values():
                writing.end()
            self._writing.clear()
            self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _begin(self, writing: Writing) -> list[Progress]:
        """Have a text written; it has ended where it cannot be."""
        try:
            session = writing.begin(self._kept)
        except Exception as error:
            writing.error = error
            writing.end()
            return [Progress(writing, [], True)]
        self._writing[session] = writing
        self._batch.join(session)
        return []

    def _progress(self, turn: Turn) -> Progress:
        writing = self._writing[turn.session]
        writing.error = turn.error
        pieces = writing.feed(turn.emissions)
        if turn.ended:
            del self._writing[turn.session]
            writing.end()
        return Progress(writing, pieces, turn.ended)
