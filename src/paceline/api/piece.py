"""The events that a text is made of: one for each token, with the text that became certain by it.

Every part that shows or sends a text reads these: streams, chats, pictures, records. `Pieces` alone makes them, of the
tokens that the engine committed, one after the other. So they do not depend on how rounds or readers cut the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.verify import Kind
from paceline.vocabulary import Detokenizer, TextStream

if TYPE_CHECKING:
    from paceline.engine.emission import Emission
    from paceline.vocabulary import Vocabulary

IMPOSSIBLE = -9999.0
"""What OpenAI writes for the log-probability of a token that cannot be, since JSON has no number for it."""


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of one token: the model's own, before any setting acts on it."""

    token: int
    """The token's id."""
    text: str
    """Its text; bytes that are no character by themselves as ``\\xf0``. Empty without a tokenizer."""
    bytes: bytes
    logprob: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data; the bytes as numbers."""
        return {"token": self.token, "text": self.text, "bytes": list(self.bytes), "logprob": self.logprob}

    def openai(self) -> dict[str, Any]:
        """The shape that OpenAI gives it."""
        return {"token": self.text, "logprob": max(self.logprob, IMPOSSIBLE), "bytes": list(self.bytes) or None}


@dataclass(frozen=True)
class Logprobs(TokenLogprob):
    """The log-probability of a token of a text, and of the most probable tokens in its place."""

    top: tuple[TokenLogprob, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"top": [one.as_dict() for one in self.top]}

    def openai(self) -> dict[str, Any]:
        return super().openai() | {"top_logprobs": [one.openai() for one in self.top]}


@dataclass(frozen=True)
class Piece:
    """An item of a stream: a token, and the text that became certain with it. Often that is none, when a character is
    cut, or what might begin a stop string is held back; the token that ends the text brings all of it. Only a text that
    is cancelled between two tokens may end with a piece of text without a token."""

    text: str
    token: int | None
    source: str
    logprobs: Logprobs | None = None
    round: int = 0
    """The index of its record in `Generation.rounds`, where the forward over the prompt may have the first."""
    kind: str = Kind.UNTOLD
    """The relation of the token to the draft of its round: accepted, corrected, bonus or plain."""
    score: float = 0.0
    """The log-probability that its source gave it; 0 from a source without an opinion."""
    bytes: bytes = b""
    """The text of the token itself, the end-of-text token included; empty without a tokenizer."""
    finish: str | None = None
    """Why the text ends with this token."""

    def __repr__(self) -> str:
        if self.token is None:
            return f"Piece({self.text!r}, held back)"
        whose = f"accepted from {self.source}" if self.source else Kind(self.kind).value
        return f"Piece({self.text!r}, token {self.token}, {whose}, rounds[{self.round}])"


class Pieces:
    """Makes the pieces of one text, token by token."""

    def __init__(self, vocabulary: Vocabulary | None, stops: Sequence[str], prompt: Sequence[int]) -> None:
        self._vocabulary, self._stops, self._prompt = vocabulary, stops, prompt
        self._text: Detokenizer | TextStream | None = None
        """Begun with the first token: some tokenizers decode the whole prompt for that, and many texts may wait."""
        self._ended = False

    def of(self, emission: Emission) -> Piece:
        """The next one."""
        said = self._push(emission.token)
        return Piece(
            text=said if emission.finish is None else said + self.rest(),
            token=emission.token,
            source=emission.source,
            logprobs=self._logprobs(emission),
            round=emission.round,
            kind=emission.kind,
            score=emission.score,
            bytes=self._bytes(emission.token),
            finish=emission.finish,
        )

    def rest(self) -> str:
        """The text that was held back, when no token follows; once."""
        text, self._text, self._ended = self._text, None, True
        return "" if text is None else text.finish()

    def _push(self, token: int) -> str:
        if self._vocabulary is None or self._ended:
            return ""
        if self._text is None:
            stops, prompt = self._stops, self._prompt
            self._text = (
                TextStream(self._vocabulary, stops, prompt) if stops else Detokenizer(self._vocabulary, prefix=prompt)
            )
        return self._text.push(token)

    def _logprobs(self, emission: Emission) -> Logprobs | None:
        if (found := emission.logprobs) is None:
            return None
        top = tuple(TokenLogprob(token, *self._spelled(token), value) for token, value in found.top)
        return Logprobs(emission.token, *self._spelled(emission.token), found.logprob, top)

    def _spelled(self, token: int) -> tuple[str, bytes]:
        spelling = self._bytes(token)
        return spelling.decode(errors="backslashreplace"), spelling

    def _bytes(self, token: int) -> bytes:
        return b"" if self._vocabulary is None else self._vocabulary.token_bytes(token)
