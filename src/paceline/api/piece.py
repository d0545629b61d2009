"""A piece of a text: a token and what became certain with it. Reports have pieces, too, and need no model for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.verify import Kind

IMPOSSIBLE = -9999.0
"""What OpenAI writes for the log-probability of a token that cannot be, since JSON has no number for it."""


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of one token: the model's own, before any setting acts on it."""

    token: int
    """The token's id."""
    text: str
    """What it spells; bytes that are no character by themselves as ``\\xf0``. Empty without a tokenizer."""
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
    """What a stream hands out: the text that became certain with one token (often none, when a character is cut).
    The last piece may have text and no token: what was held back because it might have begun a stop string."""

    text: str
    token: int | None
    source: str
    logprobs: Logprobs | None = None
    round: int = 0
    """The index of its record in `Generation.rounds`, where the forward over the prompt may have the first."""
    kind: str = Kind.UNTOLD
    """What the token is to the draft of its round: accepted, corrected, bonus or plain."""
    score: float = 0.0
    """The log-probability that its source gave it; 0 from a source without an opinion."""

    def __repr__(self) -> str:
        if self.token is None:
            return f"Piece({self.text!r}, held back)"
        whose = f"accepted from {self.source}" if self.source else Kind(self.kind).value
        return f"Piece({self.text!r}, token {self.token}, {whose}, rounds[{self.round}])"
