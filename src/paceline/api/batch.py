"""Several texts written together, for a list of prompts or for users who come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

from paceline.api.piece import Piece
from paceline.api.prompts import Prompt
from paceline.api.settings import Options
from paceline.api.writing import Writing
from paceline.engine.batch import AT_ONCE, Batch, Turn
from paceline.engine.loop import Session
from paceline.errors import InputError, OutOfMemory, lacks_memory, out_of_memory
from paceline.law.values import require_whole
from paceline.targets.lending import KeptRows

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel


class Progress(NamedTuple):
    """The new pieces of one text. With ``ended`` its `result` can be had, or raises what went wrong."""

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

    def __init__(
        self, lm: LanguageModel, *, at_once: int = AT_ONCE, kept: KeptRows | None = None, patient: bool = False
    ) -> None:
        """``kept`` lends the rows, and keeps them after the batch; by default rows are the batch's own. A ``patient``
        batch pauses a text that lacks memory for its rows, while others are being written, and does not end it."""
        require_whole("at_once", at_once)
        self._lm = lm
        self._batch = Batch(lm.target, at_once=at_once)
        self._at_once = at_once
        self._own = KeptRows(lm.target.open, lm.target.look, at_once)
        self._kept = self._own if kept is None else kept
        self._waiting: deque[Writing] = deque()
        self._writing: dict[Session, Writing] = {}
        self._paused: list[Writing] = []
        self._unreported: deque[Progress] = deque()
        self._patient = patient
        self._closed = False

    def __repr__(self) -> str:
        return f"<batch of {len(self._writing)} texts being written, {len(self._waiting)} waiting>"

    def add(self, prompt: Prompt, *, sample: int = 0, **settings: Unpack[Options]) -> Writing:
        """One more text, with the settings of `LanguageModel.generate`. Texts of one prompt and seed differ by their
        ``sample`` number."""
        if self._closed:
            raise InputError("this batch is closed; open another one")
        return self.join(Writing(self._lm, prompt, sample, *self._lm.settings_for(prompt, settings)))

    def join(self, writing: Writing) -> Writing:
        """Write this text, too, which has not begun yet."""
        writing.batched = True
        self._waiting.append(writing)
        return writing

    def pause(self, writing: Writing) -> None:
        """Give a text's seat and rows to others for now. `resume` goes on with it: the text comes out the same, and
        rows that were not kept are computed again. Under the rejection rule it follows the same law. A text that has
        ended stays as it is."""
        self._batch.refuse_inside()
        session = writing.session
        if writing in self._waiting:
            self._waiting.remove(writing)
            self._paused.append(writing)
        elif session is not None and session in self._writing:
            self._batch.leave(session)
            del self._writing[session]
            writing.rest()
            self._paused.append(writing)

    def resume(self, writing: Writing) -> None:
        """Go on with a paused text as soon as there is a seat."""
        if writing not in self._paused:
            raise InputError("this text is not paused, so it cannot be resumed")
        self._paused.remove(writing)
        self._waiting.append(writing)

    @property
    def paused(self) -> list[Writing]:
        """The texts that wait for `resume`."""
        return list(self._paused)

    def cancel(self, writing: Writing) -> None:
        """Stop writing a text. Its `result` holds what was written of it. One that has ended stays as it is."""
        session = writing.session
        if (left := next((some for some in (self._waiting, self._paused) if writing in some), None)) is not None:
            left.remove(writing)
            writing.end()
        elif session is not None and session in self._writing:
            try:
                self._batch.leave(session)
            finally:
                if session not in self._batch.sessions:  # it cannot leave from inside itself
                    self._leave(writing)
        else:
            return
        writing.cancel()
        writing.feed(ended=True)
        self._unreported = deque(progress for progress in self._unreported if progress.writing is not writing)

    def step(self, without: Collection[Writing] = ()) -> list[Progress]:
        """One round of every text; those in ``without`` are left out, and their seats are free for others. Returns the
        progress that was not reported yet, that of this round included."""
        self._round(without)
        found = list(self._unreported)
        self._unreported.clear()
        return found

    def __iter__(self) -> Iterator[Progress]:
        """Progress, until nothing is left to write or to report. The loop may be left and entered again."""
        while len(self):
            if self._unreported:
                yield self._unreported.popleft()
            else:
                self._round()

    def __len__(self) -> int:
        """How many texts are being written, wait, or have an end to report; none that are paused."""
        ended = {id(progress.writing) for progress in self._unreported if progress.ended}
        return len(self._writing) + len(self._waiting) + len(ended)

    def close(self) -> None:
        """Stop writing all texts, and give their memory back."""
        self._batch.refuse_inside()
        self._closed = True
        for writing in (*self._waiting, *self._paused):
            writing.end()
        self._waiting.clear()
        self._paused.clear()
        self._unreported.clear()
        try:
            self._batch.close()
        finally:
            for writing in list(self._writing.values()):
                self._leave(writing)
            self._own.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _round(self, without: Collection[Writing] = ()) -> None:
        self._batch.refuse_inside()
        try:
            # A text that waits for another's prompt has no seat yet; others begin meanwhile.
            for _ in range(min(len(self._waiting), self._at_once - self._batch.seated)):
                self._begin(self._waiting.popleft())
            for turn in self._batch.step({writing.session for writing in without if writing.session is not None}):
                self._note(turn)
        except BaseException:
            self.close()
            raise

    def _begin(self, writing: Writing) -> None:
        """Hand a text to the engine. One that cannot begin has ended."""
        try:
            session = (writing.begin if writing.session is None else writing.go_on)(self._kept)
        except Exception as error:
            short = lacks_memory(error)
            if short and self._patient and self._writing:
                self._paused.append(writing)
                return
            writing.error = out_of_memory(error) if short else error
            writing.end()
            self._unreported.append(Progress(writing, [], True))
            return
        self._writing[session] = writing
        self._batch.join(session)

    def _note(self, turn: Turn) -> None:
        """Report a turn, unless its text was cancelled meanwhile."""
        if (writing := self._writing.get(turn.session)) is None:
            return
        ended = turn.ended
        if isinstance(turn.error, OutOfMemory) and self._patient and len(self._writing) > 1:
            ended = False
            del self._writing[turn.session]
            writing.rest()
            self._paused.append(writing)
        else:
            writing.error = turn.error
        pieces = writing.feed(ended=ended)
        if ended:
            self._leave(writing)
        self._unreported.append(Progress(writing, pieces, ended))

    def _leave(self, writing: Writing) -> None:
        assert writing.session is not None, "only what has begun can leave"
        del self._writing[writing.session]
        writing.end()
