"""What is kept of one text that one contestant wrote: a line of ``records.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from paceline.errors import InputError
from paceline.files.shape import Amount, Bounds, Count, LogProbability, shaped


class Verdict(StrEnum):
    """How a text compares with plain decoding's."""

    REFERENCE = "reference"
    """It is plain decoding's."""
    EQUAL = "equal"
    NEAR_TIE = "near tie"
    BUG = "bug"
    NOT_RESCORED = "not re-scored"
    DIFFERENT = "different"
    """It parts from plain decoding's; it is another library's, which nobody can re-score."""
    FOLLOWED = "followed"
    """It walked plain decoding's text; `flips` counts where it would have gone another way."""
    OWN = "own"
    """It is not meant to be equal: sampled with other coins."""


ROUND_COLUMNS = (
    *("position", "drafted", "depth", "accepted", "refused", "emitted"),
    *("seconds_draft", "seconds_score", "seconds_read", "seconds_judge"),
)
EXPECTED = {f"expected_{name}": name for name in ("tokens", "seconds", "seconds_plain", "rate")}
"""What the planner expected of the round, by the names that it has there; absent where none of a text's rounds says,
and 0 of a round that does not."""
NEW_COLUMNS = "proposed", "rows"
LATER_COLUMNS = (*NEW_COLUMNS, *EXPECTED)
"""Columns that runs of the first format do not have. ``drafted`` counts what was sent, ``proposed`` what there was."""
InRound = Annotated[float, Bounds(0, 2**24)]
"""A count of a round, or its seconds."""
DEEPEST = 2**16
"""Tokens on the longest path of a draft."""
SPLIT = ("prefill", "draft", "score", "read", "judge", "rest")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One text. Texts of equal ``unit``, ``turn`` and ``repeat`` were written right after one another by all entries:
    they are what is compared."""

    entry: str
    prompt: str
    task: str
    language: str
    unit: Count
    """The number of the prompt in the run, or of the batch that it was written in."""
    turn: Count = 0
    """Which turn of a conversation, from 0."""
    repeat: Count = 0
    place: Count = 0
    """When its turn came among the entries: 0 went first."""
    prompt_tokens: Count
    text: str
    tokens: list[Count]
    finish: str
    seconds: Amount
    """The whole call, or from the arrival to the last token where prompts arrive on their own."""
    seconds_first: Amount
    """Until the first token was there."""
    seconds_waited: Amount = 0.0
    """Of these, in a queue."""
    decoded: Count
    """How many tokens `seconds_decode` brought: the speed of a text is one over the other."""
    seconds_decode: Amount
    """Decoding, prefill apart; of a text in a batch its share of the time that the batch took, prefill included."""
    split: dict[str, Amount] | None = None
    """Seconds by what they went to (`SPLIT`); None of a peer."""
    rounds: dict[str, list[InRound]] | None = None
    """Column -> one value per round (`ROUND_COLUMNS`, and those of `LATER_COLUMNS` that are told); None of a peer."""
    forwards: Count | None = None
    sources: list[str] = field(default_factory=list)
    """Per token, who proposed it; empty of a peer, "" where it is the model's own."""
    scores: list[LogProbability] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Per token, the text that became certain with it."""
    verdict: Verdict
    parts_at: Count | None = None
    """The first token that is not plain decoding's."""
    flips: Count = 0
    joules: Amount | None = None
    peak_bytes: Count | None = None
    batch: Count = 1

    @property
    def speed(self) -> float | None:
        """Tokens per second; None where all tokens came at once."""
        return self.decoded / self.seconds_decode if self.decoded and self.seconds_decode > 0 else None

    @property
    def pair(self) -> tuple[int, int, int]:
        """What texts of several entries have in common that are compared."""
        return self.unit, self.turn, self.repeat

    @classmethod
    def of(cls, row: Any) -> Record:
        """From a line's data. ValueError where it is none."""
        record = shaped(cls, row)
        if (columns := record.rounds) is not None:
            odd = (set(columns) - set(LATER_COLUMNS)) ^ set(ROUND_COLUMNS)
            if odd:
                raise InputError(f"'rounds' {'has' if min(odd) in columns else 'lacks'} {min(odd)!r}")
            if len(set(map(len, columns.values()))) > 1:
                raise InputError("the columns of 'rounds' are not of one length")
            if (depth := max(columns["depth"], default=0)) > DEEPEST:
                raise InputError(f"'rounds.depth' has {depth}")
        return record
