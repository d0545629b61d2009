"""Texts that event loops read: those of one model share a batch, which one thread writes while the loops go on.

A text joins between two rounds, and leaves when it ends, fails or is left by its reader. `RowSchedule` says when. A
text with `AHEAD` unread pieces is left out of the rounds until they are read: it keeps its KV rows, unless they are
needed, and its seat is free for another text. The thread ends when no text can go on, and a new one begins when one
can.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from paceline.api.batch import TextBatch
from paceline.api.schedule import RowSchedule, Stage
from paceline.errors import ServingClosed
from paceline.targets.lending import Tray

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.piece import Piece
    from paceline.api.writing import Writing

AHEAD = 32
IN_ORDER = 0.2
"""Seconds that a text waits for an earlier one to be made, such as one whose drafter has to be loaded."""
THREAD = "paceline-astream"


class StreamReader:
    """One text between the thread that writes it and the event loop that reads it. Made in the event loop."""

    def __init__(self, lm: LanguageModel, writing: Writing) -> None:
        self.lm = lm
        self.writing = writing
        self.stage = Stage.WAITING
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
        self.woken = False
        """Whether `news` is set, or will be, for what is unread; so a loop that is behind is not woken again."""
        self.left: asyncio.Future[None] = self.loop.create_future()
        """Done once the text has left the batch and its rows are given back; an error is one of leaving."""

    @property
    def full(self) -> bool:
        """Whether the text waits for its reader."""
        return len(self.unread) >= AHEAD

    def taken(self) -> list[Piece]:
        """All unread pieces."""
        pieces: list[Piece] = []
        while self.unread:
            pieces.append(self.unread.popleft())
        return pieces

    def leave(self, error: Exception | None) -> None:
        """In the event loop: the text has left the batch."""
        self.news.set()
        if error is None:
            self.left.set_result(None)
        else:
            self.left.set_exception(error)


class SharedBatch:
    """The batch of all texts of a model that event loops read. Several loops, each in its own thread, may read."""

    def __init__(self, schedule: RowSchedule) -> None:
        self.schedule = schedule
        self.closed = False
        self._tray = Tray[StreamReader | None](self._note)
        self._changed = list[StreamReader]()
        """Readers that came, left, or have room again; like the thread, guarded by the tray's lock."""
        self._thread: threading.Thread | None = None
        self._batch: TextBatch | None = None
        self._readers: dict[Writing, StreamReader] = {}
        """Of texts that have not left, in the order of their arrival."""
        self._news_of: dict[asyncio.AbstractEventLoop, list[tuple[StreamReader, Callable[[], object]]]] = {}
        """What event loops have to do, each with one call for a round of all its texts."""
        self._last_made: threading.Event | None = None
        """Set once the last text that was asked for has been made and has joined."""
        self._making = 0

    def count(self, stage: Stage) -> int:
        """How many texts are there."""
        return sum(reader.stage is stage for reader in list(self._readers.values())) + (
            self._making if stage is Stage.WAITING else 0
        )

    def close(self) -> None:
        """End all texts, as if they were cancelled, and take no more. Waits for the round that is under way, unless it
        is called from inside it."""
        self.closed = True
        self._tray.give(None)
        with self._tray.held():
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    async def pieces(self, lm: LanguageModel, write: Callable[[], Writing]) -> AsyncGenerator[Piece, None]:
        """`read`, piece by piece."""
        async with aclosing(self.read(lm, write)) as bursts:
            async for burst in bursts:
                for piece in burst:
                    yield piece

    async def read(self, lm: LanguageModel, write: Callable[[], Writing]) -> AsyncGenerator[list[Piece], None]:
        """The pieces of a text that ``write`` makes, each time all that are there. However this ends, the text has left
        the batch and given its rows back before it returns."""
        with ExitStack() as making:
            make, ended = making.enter_context(self._made()), False
            reader = StreamReader(lm, await _apart(lambda: make(write)))
            if self.closed:
                reader.writing.cancel()
                return
            self.schedule.bound(reader.writing)
            with self._joined(reader):
                making.close()
                try:
                    while not ended:
                        await reader.news.wait()
                        reader.news.clear()
                        reader.woken = False
                        ended = reader.ended  # asked before the pieces are read, so that none follows
                        if pieces := reader.taken():
                            if len(pieces) >= AHEAD:
                                self._tray.give(reader)
                            yield pieces
                    if reader.error is not None:
                        raise reader.error
                finally:
                    self._part(reader)
                    if not reader.loop.is_closed():
                        await asyncio.shield(reader.left)

    @contextmanager
    def _made(self) -> Iterator[Callable[[Callable[[], Writing]], Writing]]:
        """A text is being made and joins, behind those that were asked for before it."""
        if self.closed:
            raise ServingClosed("this serving is closed and takes no more texts; open another one")
        made = threading.Event()
        with self._tray.held():
            before, self._last_made = self._last_made, made
            self._making += 1

        def make(write: Callable[[], Writing]) -> Writing:
            writing = write()
            if before is not None:
                before.wait(IN_ORDER)
            return writing

        try:
            yield make
        finally:
            made.set()
            with self._tray.held():
                self._making -= 1

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

    def _note(self, reader: StreamReader | None) -> None:
        """Have the thread look at a reader, or at whether this is closed."""
        if reader is not None:
            self._changed.append(reader)
        if self._thread is None and (self._changed or self._readers):
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
            idle = not self.closed and all(reader.full for reader in self._readers.values())
            if not changed and (idle or not self._readers):
                self._thread = None
                return None
        return changed

    def _round(self, changed: Sequence[StreamReader]) -> None:
        """One round of every text that can go on."""
        for reader in list(self._readers.values()) if self.closed else changed:
            if not reader.ended and (reader.gone or self.closed):
                self._cancel(reader)
        if self._readers:
            self._step(next(iter(self._readers.values())).lm)
        self._tell()
        if not self._readers and self._batch is not None:
            batch, self._batch = self._batch, None
            batch.close()

    def _step(self, lm: LanguageModel) -> None:
        """Write, and have the readers read."""
        if self._batch is None:
            self._batch = TextBatch(lm, at_once=self.schedule.at_once, kept=self.schedule.kept, patient=True)
        left_out = self.schedule.prepare(self._batch, self._readers.values())
        for writing, pieces, ended in self._batch.step(left_out):
            reader = self._readers[writing]
            reader.unread.extend(pieces)
            if ended:
                self._end(reader, writing.error)
            elif reader.gone:
                self._cancel(reader)
            elif not reader.woken:  # asked behind the new pieces, and unset before pieces are read
                reader.woken = True
                self._news_of.setdefault(reader.loop, []).append((reader, reader.news.set))
        self.schedule.note(self._batch, self._readers.values())

    def _end(self, reader: StreamReader, error: BaseException | None = None, leaving: Exception | None = None) -> None:
        """The text has left the batch, with an error of its own or one of leaving."""
        self._readers.pop(reader.writing, None)
        reader.error, reader.ended = error, True
        self._news_of.setdefault(reader.loop, []).append((reader, partial(reader.leave, leaving)))

    def _cancel(self, reader: StreamReader) -> None:
        failed: Exception | None = None
        try:
            if reader.stage is Stage.WAITING or self._batch is None:
                reader.writing.cancel()
                reader.writing.end()
            else:
                self._batch.cancel(reader.writing)
        except Exception as error:
            failed = error
        self._end(reader, leaving=failed)

    def _tell(self) -> None:
        """Have the event loops read."""
        news, self._news_of = self._news_of, {}
        for loop, calls in news.items():
            try:
                loop.call_soon_threadsafe(_all_of, [call for _, call in calls])
            except RuntimeError:  # the event loop is closed, so its texts have no reader
                for reader, _ in calls:
                    if not reader.ended:
                        self._cancel(reader)
                self._news_of.pop(loop, None)

    def _fail(self, error: BaseException) -> None:
        """End all texts."""
        batch, self._batch = self._batch, None
        for reader in list(self._readers.values()):
            self._end(reader, error)
        self._tell()
        with suppress(Exception):  # the first error is the one to report
            if batch is not None:
                batch.close()


def _all_of(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


async def _apart(write: Callable[[], Writing]) -> Writing:
    """Make a text in a thread: its drafter may have to be loaded first, which takes seconds."""
    thread = ThreadPoolExecutor(1, THREAD)
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, write)
    finally:
        thread.shutdown(wait=False)
