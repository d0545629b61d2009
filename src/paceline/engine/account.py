"""What a run of rounds amounts to, in one set of words.

tokens_per_round    emitted tokens / rounds, the target's own token included
mean_accepted       accepted draft tokens / rounds
accepted_per_draft  accepted draft tokens / rounds that drafted
acceptance_rate     accepted draft tokens / drafted tokens (of a tree: all its nodes)
coverage            rounds that drafted / rounds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from paceline.engine.loop import Round


@dataclass(frozen=True)
class Totals:
    """Sums over rounds; prefill stands apart."""

    rounds: int
    tokens: int
    drafted: int
    accepted: int
    drafting_rounds: int
    seconds_prefill: float
    seconds_draft: float
    seconds_score: float
    seconds_read: float
    seconds_judge: float

    @classmethod
    def of(cls, rounds: Sequence[Round], seconds_prefill: float) -> Totals:
        return cls(
            rounds=len(rounds),
            tokens=sum(r.emitted for r in rounds),
            drafted=sum(r.drafted for r in rounds),
            accepted=sum(r.accepted for r in rounds),
            drafting_rounds=sum(r.drafted > 0 for r in rounds),
            seconds_prefill=seconds_prefill,
            seconds_draft=sum(r.seconds_draft for r in rounds),
            seconds_score=sum(r.seconds_score for r in rounds),
            seconds_read=sum(r.seconds_read for r in rounds),
            seconds_judge=sum(r.seconds_judge for r in rounds),
        )

    @property
    def seconds(self) -> float:
        """Decoding time, prefill apart."""
        return self.seconds_draft + self.seconds_score + self.seconds_read + self.seconds_judge

    def as_dict(self) -> dict[str, float]:
        """The sums and the ratios drawn from them; a ratio over nothing is 0."""
        return {
            **asdict(self),
            "tokens_per_second": _ratio(self.tokens, self.seconds),
            "tokens_per_round": _ratio(self.tokens, self.rounds),
            "mean_accepted": _ratio(self.accepted, self.rounds),
            "accepted_per_draft": _ratio(self.accepted, self.drafting_rounds),
            "acceptance_rate": _ratio(self.accepted, self.drafted),
            "coverage": _ratio(self.drafting_rounds, self.rounds),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
