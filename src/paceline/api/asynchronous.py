"""Texts that event loops read: those of one model share a batch, which one thread writes while the loops go on.

A text joins between two rounds, and leaves when it ends, fails or is left by its reader. A text with `AHEAD` unread
pieces is left out of the rounds until some of them are read: it keeps its KV rows, and its seat is free for another
text. The thread ends when no text can go on, and a new one begins when one can.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from paceline.api.batch import TextBatch
from paceline.targets.lending import Tray

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.piece import Piece
    from paceline.api.writing import Writing

AHEAD = 32
THREAD = "paceline-astream"


class StreamReader:
    """One text between the thread that writes it and the event loop that reads it. Made in the event loop."""

    def __init__(self, lm: LanguageModel, writing: Writing) -> None:
        self.lm = lm
        self.writing = writing
        self.unread: deque[Piece] = deque()
        self.gone = False
        """Whether no more of the text is wanted."""
        self.ended = False
        """Whether no piece follows those that are unread."""
        self.error: BaseException | None = None
        """The error that ended the text too early."""
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        """Set after every round that brought pieces, and at the end."""
        self.left: asyncio.Future[None] = self.loop.create_future()
        """Done once the text has left the batch and its rows are given back; an error is one of leaving."""

    @property
    def full(self) -> bool:
        """Whether the text waits for its reader."""
        return len(self.unread) >= AHEAD

    def feed(self, pieces: Sequence[Piece]) -> None:
        """In the thread that writes: more to read."""
        self.unread.extend(pieces)
        self._call(self.news.set)

    def end(self, error: BaseException | None = None, leaving: Exception | None = None) -> None:
        """In the thread that writes: the text has left the batch."""
        self.error, self.ended = error, True
        self._call(self._leave, leaving)

    def _call(self, do: Callable[..., object], *given: object) -> None:
        try:
            self.loop.call_soon_threadsafe(do, *given)
        except RuntimeError:  # the event loop is closed, so this text has no reader
            self.gone = True

    def _leave(self, error: Exception | None) -> None:
        self.news.set()
        if error is None:
            self.left.set_result(None)
        else:
            self.left.set_exception(error)


class SharedBatch:
    """The batch of all texts of a model that event loops read. Several loops, each in its own thread, may read."""

    def __init__(self) -> None:
        self._tray = Tray(self._note)
        self._changed = list[StreamReader]()
        """Readers that came, left, or have room again; like the thread, guarded by the tray's lock."""
        self._thread: threading.Thread | None = None
        self._batch: TextBatch | None = None
        self._readers: dict[Writing, StreamReader] = {}

    async def read(self, lm: LanguageModel, write: Callable[[], Writing]) -> AsyncGenerator[Piece, None]:
        """The pieces of a text that ``write`` makes. However this ends, the text has left the batch and given its rows
        back before it returns."""
        reader, ended = StreamReader(lm, await _apart(write)), False
        with self._joined(reader):
            try:
                while not ended:
                    await reader.news.wait()
                    reader.news.clear()
                    ended = reader.ended  # asked before the pieces are read, so that none follows
                    while reader.unread:
                        piece = reader.unread.popleft()
                        if len(reader.unread) == AHEAD - 1:
                            self._tray.give(reader)
                        yield piece
                if reader.error is not None:
                    raise reader.error
            finally:
                self._part(reader)
                if not reader.loop.is_closed():
                    await asyncio.shield(reader.left)

    @contextmanager
    def _joined(self, reader: StreamReader) -> Iterator[None]:
        """A text is part of the batch. Of a stream that is dropped with its event loop closed, this still ends."""
        self._tray.give(reader)
        try:
            yield
        finally:
            self._part(reader)

    def _part(self, reader: StreamReader) -> None:
        """End a text, if it has not ended. Safe in a finalizer."""
        if not (reader.ended or reader.gone):
            reader.gone = True
            reader.writing.cancel()
            self._tray.give(reader)

    def _note(self, reader: StreamReader) -> None:
        """Have the thread look at a reader."""
        self._changed.append(reader)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name=THREAD)
            try:
                self._thread.start()
            except BaseException:  # also an interrupt after it has started: then it ends by itself
                self._thread = None
                raise

    # in the thread

    def _write(self) -> None:
        """Write until no text can go on."""
        while (changed := self._news()) is not None:
            try:
                self._round(changed)
            except BaseException as error:  # not of a single text, which would have ended that text alone
                self._fail(error)

    def _news(self) -> list[StreamReader] | None:
        """The readers to look at; None where there is nothing to do and the thread ends."""
        with self._tray.held():
            if self._thread is not threading.current_thread():
                return None
            changed, self._changed = self._changed, []
            for reader in changed:
                if not reader.ended:
                    self._readers[reader.writing] = reader
            if not changed and all(reader.full for reader in self._readers.values()):
                self._thread = None
                return None
        return changed

    def _round(self, changed: Sequence[StreamReader]) -> None:
        """One round of every text that can go on."""
        for reader in changed:
            if not reader.ended:
                self._look_at(reader)
        if self._batch is None:
            return
        full = [reader.writing for reader in self._readers.values() if reader.full]
        for writing, pieces, ended in self._batch.step(full):
            reader = self._readers[writing]
            reader.feed(pieces)
            if ended:
                del self._readers[writing]
                reader.end(writing.error)
            elif reader.gone:
                self._cancel(self._batch, reader)
        if not self._readers:
            self._batch.close()
            self._batch = None

    def _look_at(self, reader: StreamReader) -> None:
        """Let a text join that has not, and leave if its reader is gone."""
        if self._batch is None:
            self._batch = TextBatch(reader.lm, kept=reader.lm.kept)
        if not reader.writing.batched:
            self._batch.join(reader.writing)
        if reader.gone:
            self._cancel(self._batch, reader)

    def _cancel(self, batch: TextBatch, reader: StreamReader) -> None:
        del self._readers[reader.writing]
        failed: Exception | None = None
        try:
            batch.cancel(reader.writing)
        except Exception as error:
            failed = error
        reader.end(leaving=failed)

    def _fail(self, error: BaseException) -> None:
        """End all texts."""
        batch, self._batch = self._batch, None
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.end(error)
        with suppress(Exception):  # the first error is the one to report
            if batch is not None:
                batch.close()


async def _apart(write: Callable[[], Writing]) -> Writing:
    """Make a text in a thread: its drafter may have to be loaded first, which takes seconds."""
    thread = ThreadPoolExecutor(1, THREAD)
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, write)
    finally:
        thread.shutdown(wait=False)
