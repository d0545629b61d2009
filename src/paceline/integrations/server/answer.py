"""The texts of one request while they are written: their pieces in bursts, and their counters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.api.prompts import Prompt
from paceline.api.settings import Options
from paceline.api.writing import Generation, Writing
from paceline.engine.counters import Round, Totals
from paceline.integrations.server.errors import ApiError, busy
from paceline.integrations.server.flows import merged, within
from paceline.integrations.server.models import Limits, ServedModel
from paceline.vocabulary.transcript import Transcripts

if TYPE_CHECKING:
    from paceline.api.piece import Piece
    from paceline.engine.loop import Session


class Answer:
    """One or several texts of one model, written for one request."""

    def __init__(self, served: ServedModel, limits: Limits, request_id: str) -> None:
        self.served, self.limits, self.request_id = served, limits, request_id
        self.created = int(time.time())
        self.writings: list[Writing] = []
        self.results: list[Generation] = []
        """The finished texts, once all are."""
        self.tokens: list[int] = []
        """How many tokens of each text were handed out."""
        self.began = time.perf_counter()
        self.first: float | None = None
        """When the first tokens came."""
        self.ended: float | None = None
        self._admitted = 0
        """Texts that count as this server's load until `close`."""
        self._closed = False
        self._early = 0
        """Tokens that came with the first burst."""
        self._samples = 1
        """Texts of each prompt, which follow each other."""
        self.sources = Counter[str]()
        """How many tokens came from each source."""

    async def begin(self, prompts: Sequence[Prompt], samples: int, settings: Callable[[], Options]) -> None:
        """Read the prompts and prepare their texts; what is wrong with them is raised here. ``settings`` are made for
        each prompt, since some hold what belongs to one prompt."""
        count = len(prompts) * samples
        if samples > self.limits.samples:
            raise ApiError(f"n is at most {self.limits.samples} here, not {samples}", param="n")
        if count > self.limits.waiting:
            raise ApiError(f"a request has at most {self.limits.waiting} texts, not {count}", param="prompt")
        self._admit(count)
        self._samples = samples
        lm = self.served.lm
        transcripts = Transcripts(self.served.vocabulary, remembers=False)  # the same text, whatever was written before

        def write(prompt: Prompt) -> Writing:
            return Writing(lm, prompt, 0, *lm.settings_for(prompt, settings()), transcripts=transcripts)

        def write_all() -> None:
            for prompt in prompts:
                for number in range(samples):
                    if self._closed:
                        return  # the client left meanwhile
                    self.writings.append(self.writings[-1].another(number) if number else write(prompt))

        try:
            await asyncio.to_thread(write_all)
        except BaseException:
            self.close()
            raise
        self.tokens = [0] * len(self.writings)

    def _admit(self, count: int) -> None:
        """Count texts as load, unless too many wait. Those whose prompts are still being read count, too: requests
        that come at the same time would all be let in otherwise."""
        served, limits = self.served, self.limits
        waiting = max(served.serving.waiting, served.admitted - limits.at_once)
        if waiting + count > limits.waiting:
            raise busy(max(0, waiting))
        served.admitted += count
        self._admitted = count

    def close(self) -> None:
        """End the texts that were never begun; readers end the others. A second call changes nothing."""
        self.served.admitted -= self._admitted
        self._admitted, self._closed = 0, True
        for writing in self.writings:
            if writing.session is None:
                writing.end()

    async def bursts(self) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        """The pieces of all texts as they come, with the numbers of their texts."""
        seconds = self.limits.seconds
        try:
            async with aclosing(within(self._bursts(), seconds)) as bursts:
                async for number, pieces in bursts:
                    self._note(number, pieces)
                    yield number, pieces
        except TimeoutError:
            said = f"the answer was not complete after {seconds:g} seconds"
            raise ApiError(said, status=504, kind="timeout_error", code="timeout") from None
        finally:
            self.ended = time.perf_counter()
            self.close()
        self.results = [writing.result() for writing in self.writings]

    async def _bursts(self) -> AsyncGenerator[tuple[int, list[Piece]], None]:
        texts = [self.served.serving.read(partial(_same, writing)) for writing in self.writings]
        if len(texts) > 1:
            async with aclosing(merged(texts)) as bursts:
                async for burst in bursts:
                    if burst is not None:
                        yield burst
            return
        async with aclosing(texts[0]) as read:
            async for pieces in read:
                yield 0, pieces

    def _note(self, number: int, pieces: Sequence[Piece]) -> None:
        count = sum(piece.token is not None for piece in pieces)
        self.tokens[number] += count
        self.sources.update(piece.source for piece in pieces if piece.source)
        if self.first is None:
            self.first = time.perf_counter()
            self._early = count

    # --- what is counted ---

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts; samples of one prompt share it."""
        return sum(writing.context.prompt_length for writing in self.writings[:: self._samples])

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts whose rows were there already, for the first of the samples of each prompt."""
        first = [writing.session for writing in self.writings[:: self._samples]]
        return sum(session.reused or 0 for session in first if session is not None)

    @property
    def completion_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def sessions(self) -> list[Session]:
        """The sessions of the texts that were begun."""
        return [writing.session for writing in self.writings if writing.session is not None]

    @property
    def rounds(self) -> list[Round]:
        """The rounds of all texts, also of texts that were stopped before their ends."""
        return [one for session in self.sessions for one in session.rounds]

    @property
    def totals(self) -> Totals:
        """The counters of all texts together."""
        return sum((Totals.of(one.rounds, one.seconds_prefill) for one in self.sessions), Totals())

    @property
    def seconds_to_first(self) -> float | None:
        return None if self.first is None else self.first - self.began

    @property
    def seconds_after_first(self) -> float:
        return 0.0 if self.first is None or self.ended is None else self.ended - self.first

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens behind the first burst."""
        later = self.completion_tokens - self._early
        return later / self.seconds_after_first if self.seconds_after_first > 0 else 0.0

    def about(self) -> dict[str, Any]:
        """What each answer and each chunk says of its origin."""
        return {
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.system_fingerprint,
        }


def _same(writing: Writing) -> Writing:
    return writing
