"""The emitted text: its tokens, each with its source, and why it ended with the last one."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.context import Finish
from paceline.verify import Kind


@dataclass(frozen=True)
class TokenLogprobs:
    """The model's own log-probability of an emitted token (no warp applied), and its best alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Emission:
    """One emitted token and where it came from: a source's name, or "" for the target's own of a round."""

    token: int
    source: str
    logprobs: TokenLogprobs | None = None
    round: int = 0
    """The number of the round that emitted it."""
    score: float = 0.0
    """The log-probability that its source gave it; 0 from a source without scores, and for the target's own."""
    kind: Kind = Kind.PLAIN
    finish: Finish | None = None
    """Why the text ends with this token."""
