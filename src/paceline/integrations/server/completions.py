"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.integrations.server.chat import as_piece
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.forms import form_settings
from paceline.integrations.server.job import TextJob
from paceline.integrations.server.requests import CompletionRequest
from paceline.integrations.server.sse import DONE, frame
from paceline.integrations.server.wishes import ignored_fields, prompts_of, settings_of

OBJECT = "text_completion"
USUAL_TOKENS = 16
"""Of the protocol, where a request names none."""
FINISHES = {"length": "length", "context": "length"}


def finish_of(finish: str | None) -> str:
    """Why a text ended, in OpenAI's words."""
    return FINISHES.get(str(finish), "stop")


class CompletionJob(TextJob[CompletionRequest]):
    """The continuations of one or several prompts, ``n`` of each."""

    prefix = "cmpl-"

    async def begin(self) -> None:
        body = self.body
        if body.best_of not in (None, body.n or 1):
            raise ApiError("best_of is served only if it equals n; leave it out", param="best_of", code="unsupported")
        if body.echo and body.logprobs is not None:
            raise ApiError("echo with logprobs is not served; leave one of them out", param="echo", code="unsupported")
        prompts = prompts_of(body.prompt, self.served)
        await self.answer.begin(prompts, body.n or 1, self._settings)
        self.texts = [self._echo(number) for number in range(len(self.answer.writings))]
        self.offsets = [len(text) for text in self.texts]

    def ignored(self) -> list[str]:
        return ignored_fields(self.body)

    def _settings(self) -> Options:
        most = USUAL_TOKENS if self.body.max_tokens is None else self.body.max_tokens
        given = settings_of(self.body, self.served, self.limits, most=most, seed=self.seed)
        if self.body.logprobs is not None:
            given["logprobs"] = self.body.logprobs
        body = self.body
        return form_settings(self.served, given, form=body.response_format, structured=body.structured_outputs)

    def _echo(self, number: int) -> str:
        if not self.body.echo:
            return ""
        prompt = self.answer.writings[number].context.tokens.tolist()
        return self.served.vocabulary.text(prompt)

    # --- the whole answer ---

    def take(self, number: int, pieces: list[Piece]) -> None:
        self.texts[number] += "".join(piece.text for piece in pieces)

    def whole(self) -> dict[str, Any]:
        choices = [self._whole_choice(number) for number in range(len(self.texts))]
        return {"id": self.id, "object": OBJECT, **self.answer.about(), "choices": choices, **self.numbers()}

    def _whole_choice(self, number: int) -> dict[str, Any]:
        result = self.answer.results[number]
        return self._choice(number, self.texts[number], result.pieces, finish_of(result.finish))

    def _choice(self, number: int, text: str, pieces: Sequence[Piece], finish: str | None) -> dict[str, Any]:
        found = {
            "index": number,
            "text": text,
            "logprobs": self._logprobs(number, pieces),
            "finish_reason": finish,
        }
        if self.body.return_token_ids:
            found["token_ids"] = [piece.token for piece in pieces if piece.token is not None]
        return found

    def _logprobs(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """OpenAI's older form: lists beside each other."""
        if self.body.logprobs is None:
            return None
        found = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        offsets = []
        for one in found:
            offsets.append(self.offsets[number])
            self.offsets[number] += len(one.text)
        return {
            "tokens": [one.text for one in found],
            "token_logprobs": [one.openai()["logprob"] for one in found],
            "top_logprobs": [{top.text: top.openai()["logprob"] for top in one.top} for one in found],
            "text_offset": offsets,
        }

    # --- the stream ---

    async def frames(self) -> AsyncGenerator[bytes, None]:
        for number, echoed in enumerate(self.texts):
            if echoed:
                yield self._chunk(number, echoed, ())
        options, ended, last = self.body.stream_options, 0, None
        async with aclosing(self.answer.bursts()) as bursts:
            async for number, pieces in bursts:
                finish = next((piece.finish for piece in pieces if piece.finish is not None), None)
                ended += finish is not None
                text = "".join(piece.text for piece in pieces)
                held = ended == len(self.texts) and options is None
                if text or finish or self.body.logprobs is not None or self.body.return_pieces:
                    chunk = number, text, pieces, None if finish is None else finish_of(finish)
                    if held:
                        last = chunk
                    else:
                        yield self._chunk(*chunk)
        if last is not None:
            yield self._chunk(*last, **self.numbers())
        elif options is not None and options.include_usage:
            about = {"id": self.id, "object": OBJECT, **self.answer.about()}
            yield frame({**about, "choices": [], **self.numbers()})
        yield DONE

    def _chunk(self, number: int, text: str, pieces: Sequence[Piece], finish: str | None = None, **more: Any) -> bytes:
        choice = self._choice(number, text, pieces, finish)
        found = {"id": self.id, "object": OBJECT, **self.answer.about(), "choices": [choice]}
        options = self.body.stream_options
        if options is not None and options.include_usage:
            found["usage"] = self._usage_so_far() if options.continuous_usage_stats else None
        if self.body.return_pieces and pieces:
            found["paceline"] = {"pieces": [as_piece(piece) for piece in pieces]}
        return frame({**found, **more})

    def _usage_so_far(self) -> dict[str, int]:
        prompt, completion = self.answer.prompt_tokens, self.answer.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
