"""What is kept of one text that one contestant wrote: a line of ``records.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from paceline.measure.run.fitting import misfit


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
SPLIT = ("prefill", "draft", "score", "read", "judge", "rest")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One text. Texts of equal ``unit``, ``turn`` and ``repeat`` were written right after one another by all entries:
    they are what is compared."""

    entry: str
    prompt: str
    task: str
    language: str
    unit: int
    """The number of the prompt in the run, or of the batch that it was written in."""
    turn: int = 0
    """Which turn of a conversation, from 0."""
    repeat: int = 0
    place: int = 0
    """When its turn came among the entries: 0 went first."""
    prompt_tokens: int
    text: str
    tokens: list[int]
    finish: str
    seconds: float
    """The whole call, or from the arrival to the last token where prompts arrive on their own."""
    seconds_first: float
    """Until the first token was there."""
    seconds_waited: float = 0.0
    """Of these, in a queue."""
    decoded: int
    """How many tokens `seconds_decode` brought: the speed of a text is one over the other."""
    seconds_decode: float
    """Decoding, prefill apart; of a text in a batch its share of the time that the batch took, prefill included."""
    split: dict[str, float] | None = None
    """Seconds by what they went to (`SPLIT`); None of a peer."""
    rounds: dict[str, list[float]] | None = None
    """Column -> one value per round (`ROUND_COLUMNS`, and those of `LATER_COLUMNS` that are told); None of a peer."""
    forwards: int | None = None
    sources: list[str] = field(default_factory=list)
    """Per token, who proposed it; empty of a peer, "" where it is the model's own."""
    scores: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Per token, the text that became certain with it."""
    verdict: Verdict
    parts_at: int | None = None
    """The first token that is not plain decoding's."""
    flips: int = 0
    joules: float | None = None
    peak_bytes: int | None = None
    batch: int = 1

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
        if (told := misfit(row, cls)) is not None:
            raise ValueError(told)
        if (columns := row.get("rounds")) is not None and (
            set(columns) - set(LATER_COLUMNS) != set(ROUND_COLUMNS)
            or len({len(column) for column in columns.values()}) > 1
        ):
            raise ValueError("its rounds are not whole")
        return cls(**{**row, "verdict": Verdict(row["verdict"])})
