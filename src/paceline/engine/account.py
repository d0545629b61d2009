"""Records of rounds, and what a run of rounds amounts to, in one set of words.

The forward over the end of a prompt is no round, though it has a record, and a text's first token comes with it.

tokens_in_rounds    emitted tokens, those apart that came with a prompt
tokens_per_second   tokens in rounds / their seconds
tokens_per_round    tokens in rounds / rounds, the target's own token included
mean_accepted       accepted draft tokens / rounds
accepted_per_draft  accepted draft tokens / rounds that drafted
acceptance_rate     accepted draft tokens / drafted tokens (of a tree: all its nodes)
coverage            rounds that drafted / rounds
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass

from paceline.planning.base import Why

NO_ROOM = "there was room for one token only"


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
    draft_forwards: int = 0
    """Forwards of draft models."""
    draft_tokens: int = 0
    """Tokens that they drafted, in their own vocabulary."""
    rows_rolled_back: int = 0
    """Rows of the text that they dropped, since new bytes changed the tokens of another tokenizer."""
    bytes_translated: int = 0
    """Drafted bytes that became tokens of the target."""
    levels_ahead: int = 0
    """Of a draft, the levels that were there before the target had decided what it follows."""
    drafts_anew: int = 0
    """Drafts that began only then, since the target decided something that nothing was drafted ahead for."""
    bytes_exchanged: int = 0
    """With the process of the draft model, both ways."""
    rounds_foreseen: int = 0
    """1 where tokens were foreseen and drafted behind while the round was scored."""
    overlap_mass: float = 0.0
    """The target's probability of these tokens at the place where the round ended, without the noise that chooses."""


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
        """The seconds so far; the next ones count anew."""
        spent, self.spent = self.spent, Spent()
        return spent


@dataclass(frozen=True)
class Totals:
    """Sums over rounds; prefill stands apart."""

    rounds: int
    """Forwards behind the prompts."""
    tokens: int
    """All that were emitted, also those that came with a prompt."""
    drafted: int
    accepted: int
    drafting_rounds: int
    seconds_prefill: float
    seconds_draft: float
    seconds_score: float
    seconds_read: float
    seconds_judge: float
    tokens_of_prefill: int = 0
    """Tokens that came with the end of a prompt: their seconds are the prompt's."""
    draft_forwards: int = 0
    draft_tokens: int = 0
    rows_rolled_back: int = 0
    bytes_translated: int = 0
    levels_ahead: int = 0
    drafts_anew: int = 0
    bytes_exchanged: int = 0
    rounds_foreseen: int = 0
    overlap_mass: float = 0.0
    """A sum, as all of these: over ``rounds_foreseen`` it is a mean."""

    @classmethod
    def of(cls, rounds: Sequence[Round], seconds_prefill: float) -> Totals:
        return cls(
            rounds=sum(not r.prefill for r in rounds),
            tokens=sum(r.emitted for r in rounds),
            drafted=sum(r.drafted for r in rounds),
            accepted=sum(r.accepted for r in rounds),
            drafting_rounds=sum(r.drafted > 0 for r in rounds),
            seconds_prefill=seconds_prefill,
            seconds_draft=sum(r.seconds_draft for r in rounds),
            seconds_score=sum(r.seconds_score for r in rounds),
            seconds_read=sum(r.seconds_read for r in rounds),
            seconds_judge=sum(r.seconds_judge for r in rounds),
            tokens_of_prefill=sum(r.emitted for r in rounds if r.prefill),
            draft_forwards=sum(r.draft_forwards for r in rounds),
            draft_tokens=sum(r.draft_tokens for r in rounds),
            rows_rolled_back=sum(r.rows_rolled_back for r in rounds),
            bytes_translated=sum(r.bytes_translated for r in rounds),
            levels_ahead=sum(r.levels_ahead for r in rounds),
            drafts_anew=sum(r.drafts_anew for r in rounds),
            bytes_exchanged=sum(r.bytes_exchanged for r in rounds),
            rounds_foreseen=sum(r.rounds_foreseen for r in rounds),
            overlap_mass=sum(r.overlap_mass for r in rounds),
        )

    @classmethod
    def joined(cls, totals: Iterable[Totals]) -> Totals:
        """The totals of several texts together."""
        columns = zip(*map(astuple, (cls.of([], 0.0), *totals)), strict=True)
        return cls(*map(sum, columns))

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
        return self.tokens - self.tokens_of_prefill

    @property
    def tokens_per_round(self) -> float:
        return _ratio(self.tokens_in_rounds, self.rounds)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(self.tokens_in_rounds, self.seconds)

    @property
    def mean_accepted(self) -> float:
        return _ratio(self.accepted, self.rounds)

    def as_dict(self) -> dict[str, float]:
        """The sums and the ratios drawn from them; a ratio over nothing is 0."""
        return {
            **asdict(self),
            "tokens_in_rounds": self.tokens_in_rounds,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_round": self.tokens_per_round,
            "mean_accepted": self.mean_accepted,
            "accepted_per_draft": _ratio(self.accepted, self.drafting_rounds),
            "acceptance_rate": _ratio(self.accepted, self.drafted),
            "coverage": _ratio(self.drafting_rounds, self.rounds),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
