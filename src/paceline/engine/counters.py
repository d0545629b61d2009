"""The counters of every round, and the sums over rounds, in one set of words.

The engine names here what every round has: tokens, drafted and accepted ones, seconds by part. What one drafter counts
beside that is declared where it is counted (`drafters.counters`) and is in ``counts``, by name: nothing here, and
nothing that shows a `Round` or `Totals` by iteration, changes with a new counter.

The forward over the end of a prompt is no round, though it has a record, and a text's first token comes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.drafters.counters import Counts
from paceline.drafters.given import GIVEN
from paceline.drafters.spec import BUILT_IN
from paceline.planning.base import Why

NO_ROOM = "there was room for one token only"
SOURCES = (*BUILT_IN.values(), *GIVEN.values())
NO_COUNTS = Counts.zero(counter for source in SOURCES for counter in getattr(source, "counters", ()))
"""Of a round in which no drafter counted anything. It has the counters of all built-in methods, so records of different
methods have the same fields."""


@dataclass(kw_only=True, slots=True)
class Round:
    """The record of one round. ``position`` counts the tokens before it, prompt included. (It is not frozen, since that
    would triple the time to make one.)"""

    position: int
    drafted: int
    depth: int
    """How many levels the draft had."""
    accepted: int
    refused: bool
    """Whether the draft went on where the target went another way; its last token then is a correction."""
    emitted: int
    seconds_draft: float
    """The method's own seconds, beside the target's: planning, proposing, learning."""
    seconds_score: float
    seconds_read: float
    """From logits to laws, and to what the drafter learns. On a device that works ahead of the host, the waiting for it
    is part of this."""
    seconds_judge: float
    proposed: int = 0
    """How many nodes the drafter proposed; those that the planner left out are not in ``drafted``."""
    why: Why | None = None
    """The planner's expectations, where it has any."""
    rows: int = 0
    """How many rows were scored: root, nodes and probes."""
    prefill: bool = False
    """Whether the root was scored with the end of the prompt: there was no draft, and the seconds are the prompt's.
    Such a record is no round in `Totals`."""
    unasked: str = ""
    """Why the drafter was not asked for a draft, if it was not."""
    counts: Counts = NO_COUNTS
    """The drafter's counts, by name."""

    @property
    def seconds(self) -> float:
        """All of the round."""
        return self.seconds_draft + self.seconds_score + self.seconds_read + self.seconds_judge

    def as_dict(self) -> dict[str, Any]:
        """Plain data, the counts among the other fields."""
        return _flat(asdict(self))


@dataclass(slots=True)
class Spent:
    """Seconds by what they were spent on."""

    draft: float = 0.0
    score: float = 0.0
    law: float = 0.0
    top: float = 0.0
    judge: float = 0.0

    @property
    def read(self) -> float:
        """From logits to laws, and to what the drafter learns."""
        return self.law + self.top

    @property
    def total(self) -> float:
        return self.draft + self.score + self.read + self.judge


ANSWERS = {"score": "score", "law": "law", "read": "top"}
"""Call -> the account of its answer's seconds; other calls belong to the draft."""
OWN = {"law": "judge", "read": "judge"}
"""Call -> the account of the loop's own seconds before it; before other calls they belong to the draft."""


class Ledger:
    """The seconds of one round, or of the prompt, call by call."""

    def __init__(self) -> None:
        self.spent = Spent()
        """The seconds so far."""

    def note(self, verb: str, seconds: float, own: float) -> None:
        """A call was answered: what the answer took, and what the loop had done before it."""
        spent, answer, before = self.spent, ANSWERS.get(verb, "draft"), OWN.get(verb, "draft")
        setattr(spent, answer, getattr(spent, answer) + seconds)
        setattr(spent, before, getattr(spent, before) + own)

    def close(self) -> Spent:
        """The seconds so far; counting restarts at 0."""
        spent, self.spent = self.spent, Spent()
        return spent


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over rounds, which add. Prefill stands apart."""

    rounds: int = 0
    """Forwards behind the prompts."""
    tokens: int = 0
    """All that were emitted, also those that came with a prompt."""
    drafted: int = 0
    accepted: int = 0
    drafting_rounds: int = 0
    seconds_prefill: float = 0.0
    seconds_draft: float = 0.0
    seconds_score: float = 0.0
    seconds_read: float = 0.0
    seconds_judge: float = 0.0
    tokens_of_prefill: int = 0
    """Tokens that came with the end of a prompt: their seconds are the prompt's."""
    counts: Counts = NO_COUNTS
    """The drafters' counts, by name."""

    @classmethod
    def of(cls, rounds: Sequence[Round], seconds_prefill: float) -> Totals:
        """The sums over the rounds of one text."""
        return cls(
            rounds=sum(not r.prefill for r in rounds),
            tokens=sum(r.emitted for r in rounds),
            drafting_rounds=sum(r.drafted > 0 for r in rounds),
            seconds_prefill=seconds_prefill,
            tokens_of_prefill=sum(r.emitted for r in rounds if r.prefill),
            counts=sum((r.counts for r in rounds if r.counts is not NO_COUNTS), NO_COUNTS),
            **{name: sum(getattr(r, name) for r in rounds) for name in SUMMED},
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def seconds(self) -> float:
        """Decoding time, prefill apart."""
        return self.seconds_draft + self.seconds_score + self.seconds_read + self.seconds_judge

    @property
    def forwards(self) -> int:
        """Forwards that brought a token: the rounds, and those over the ends of prompts, which bring one each."""
        return self.rounds + self.tokens_of_prefill

    @property
    def tokens_in_rounds(self) -> int:
        """Emitted tokens, those apart that came with a prompt."""
        return self.tokens - self.tokens_of_prefill

    @property
    def tokens_per_round(self) -> float:
        return self.ratio("tokens_per_round")

    @property
    def tokens_per_second(self) -> float:
        return self.ratio("tokens_per_second")

    @property
    def mean_accepted(self) -> float:
        return self.ratio("mean_accepted")

    def ratio(self, name: str) -> float:
        """One of `RATIOS`; over nothing it is 0."""
        part, whole = (getattr(self, field) for field in RATIOS[name])
        return part / whole if whole else 0.0

    def as_dict(self) -> dict[str, float]:
        """The sums and the ratios drawn from them."""
        ratios = {name: self.ratio(name) for name in RATIOS}
        return {**_flat(asdict(self)), "tokens_in_rounds": self.tokens_in_rounds, **ratios}


RATIOS = {
    "tokens_per_second": ("tokens_in_rounds", "seconds"),
    "tokens_per_round": ("tokens_in_rounds", "rounds"),
    "mean_accepted": ("accepted", "rounds"),
    "accepted_per_draft": ("accepted", "drafting_rounds"),
    "acceptance_rate": ("accepted", "drafted"),
    "coverage": ("drafting_rounds", "rounds"),
}
"""Ratio -> numerator and denominator. Rounds emit the target's own token, too; ``drafted`` counts all nodes of a
tree."""
SECONDS = [f.name for f in fields(Round) if f.name.startswith("seconds_")]
"""The seconds of a round, by part."""
SUMMED = [f.name for f in fields(Totals) if f.name != "counts" and f.name in Round.__slots__]
"""Fields of `Totals` that are sums over a field of the same name."""


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record with each count as a field, behind the others."""
    counts = record.pop("counts")
    return {**record, **counts}


TAKEN = {f.name for f in fields(Round)} | Totals().as_dict().keys() - NO_COUNTS.keys()
"""Names of the engine's own numbers, which no counter of a drafter can have."""
