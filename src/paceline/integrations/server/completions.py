"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.integrations.server.choices import ChoicesJob, Json
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.forms import grammar_of, with_grammar
from paceline.integrations.server.prompts import prompts_of
from paceline.integrations.server.replies import finish_reason
from paceline.integrations.server.requests import CompletionRequest
from paceline.integrations.server.settings import settings_of

USUAL_TOKENS = 16
"""OpenAI's number of new tokens, if a request names none."""


class CompletionJob(ChoicesJob[CompletionRequest]):
    """The continuations of one or several prompts, ``n`` of each."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"
    nothing: ClassVar[Json] = {"text": ""}
    empty: ClassVar[Json] = {"text": ""}

    async def begin(self) -> None:
        body = self.body
        if body.best_of not in (None, body.n or 1):
            raise ApiError("best_of is served only if it equals n; leave it out", param="best_of", code="unsupported")
        if body.echo and body.logprobs is not None:
            raise ApiError("echo with logprobs is not served; leave one of them out", param="echo", code="unsupported")
        prompts = await asyncio.to_thread(prompts_of, body.prompt, self.served)
        await self.answer.begin(prompts, body.n or 1, self._settings)
        self.asks_logprobs = self.has_empty_logprobs = body.logprobs is not None
        self.texts = [self._echo(number) for number in range(len(self.answer.writings))]
        self.finishes: list[str | None] = [None] * len(self.texts)
        self.offsets = [0] * len(self.texts)
        """The characters of each text before the next token."""

    def _settings(self) -> Options:
        body = self.body
        most = USUAL_TOKENS if body.max_tokens is None else body.max_tokens
        given = settings_of(body, self.served, self.limits, most=most, seed=self.seed)
        if body.logprobs is not None:
            given["logprobs"] = body.logprobs
        return with_grammar(given, grammar_of(body.response_format, body.structured_outputs))

    def _echo(self, number: int) -> str:
        if not self.body.echo:
            return ""
        prompt = self.answer.writings[number].context.tokens.tolist()
        return self.served.vocabulary.text(prompt)

    def take(self, number: int, pieces: list[Piece]) -> None:
        self.texts[number] += "".join(piece.text for piece in pieces)
        self.finishes[number] = next((piece.finish for piece in pieces if piece.finish is not None), None)

    def whole_choice(self, number: int) -> Json:
        pieces = self.answer.results[number].pieces
        found = {"index": number, "text": self.texts[number], "logprobs": self.logprobs(number, pieces)}
        return found | {"finish_reason": self.finish_of(number)} | self._tokens(pieces) | self._pieces(pieces)

    def opening(self) -> list[tuple[int, Json]]:
        return [(number, {"text": echoed}) for number, echoed in enumerate(self.texts) if echoed]

    def parts(self, number: int, pieces: list[Piece], *, finished: bool) -> list[Json]:
        self.take(number, pieces)
        text = "".join(piece.text for piece in pieces)
        return [{"text": text}] if text else []

    def finish_of(self, number: int) -> str:
        return finish_reason(self.finishes[number])

    def logprobs(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """OpenAI's older form: lists beside each other."""
        if self.body.logprobs is None:
            return None
        found, offsets = [], []
        for piece in pieces:
            if piece.logprobs is not None:
                found.append(piece.logprobs)
                offsets.append(self.offsets[number])
            self.offsets[number] += len(piece.text)
        return {
            "tokens": [one.text for one in found],
            "token_logprobs": [one.openai()["logprob"] for one in found],
            "top_logprobs": [{top.text: top.openai()["logprob"] for top in one.top} for one in found],
            "text_offset": offsets,
        }
