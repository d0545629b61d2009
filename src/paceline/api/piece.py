"""A piece of a text: a token and what became certain with it. Reports have pieces, too, and need no model for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.verify import Kind

if TYPE_CHECKING:
    from paceline.engine.loop import TokenLogprobs


@dataclass(frozen=True)
class Piece:
    """What a stream hands out: the text that became certain with one token (often none, when a character is cut).
    The last piece may have text and no token: what was held back because it might have begun a stop string."""

    text: str
    token: int | None
    source: str
    logprobs: TokenLogprobs | None = None
    round: int = 0
    kind: str = Kind.UNTOLD
    """What the token is to the draft of its round: accepted, corrected, bonus or plain."""
    score: float = 0.0
    """The log-probability that its source gave it; 0 from a source without an opinion."""
