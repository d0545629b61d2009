"""Drafts of one token after another, for targets that choose the tokens themselves, forward after forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.tree import Ints

if TYPE_CHECKING:
    from paceline.law import Draw
    from paceline.targets.base import Rows
    from paceline.targets.streams import Streams


@dataclass(frozen=True, eq=False)
class Chain:
    """Draft ``depth`` tokens behind the unread ``tokens`` of a text, whose rows are committed by that. The rows of the
    draft are tentative, one below the other, but for the last token, which has none."""

    rows: Rows
    tokens: Ints
    depth: int
    draw: Draw
    size: int | None
    """Only the first ``size`` ids are drafted; None for all."""
    ends: frozenset[int]
    """Nothing follows these."""
    streams: Streams | None = None
    """Rows that guess further ahead, so that one forward confirms several tokens. The draft is the same without."""
    guesses: int = 0
    """How many guessed tokens a forward may read beside the last certain one."""


@dataclass(frozen=True)
class ChainDraft:
    """The tokens of a draft, and the log-probability of choosing each there."""

    tokens: list[int]
    scores: list[float]
    forwards: int
    """That read the text."""
