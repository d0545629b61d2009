"""What steps over a known text amount to, in the words of the DictSpec paper.

speed_up            tokens / steps
coverage            steps with a draft / steps
accepted_per_draft  accepted tokens / steps with a draft (the paper's mean accepted draft length)
acceptance          accepted tokens / proposed tokens

A step writes the tokens that it accepts and one more, the model's own. So does a text's last step: a draft is cut to
leave the last token to the model, as `paceline.engine.loop` cuts it to the room that is left, and what is cut off
counts neither as proposed nor as accepted. Hence tokens = steps + accepted, and

    speed_up = 1 + coverage * accepted_per_draft

holds without a remainder. In the engine's words (`paceline.engine.account`) steps are rounds, proposed tokens are
drafted ones, and the speed-up is the tokens per round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from paceline.engine.account import Totals
from paceline.files.shape import Bounds, Count

Some = Annotated[int, Bounds(1)]


@dataclass(frozen=True)
class Tally:
    """Sums over the steps of a text, or of many."""

    tokens: Some
    steps: Some
    drafts: Count
    """Steps that had a draft."""
    proposed: Count
    accepted: Count

    @classmethod
    def of(cls, totals: Totals) -> Tally:
        """What the engine counted."""
        return cls(totals.tokens, totals.rounds, totals.drafting_rounds, totals.drafted, totals.accepted)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.drafts + other.drafts,
            self.proposed + other.proposed,
            self.accepted + other.accepted,
        )

    @property
    def speed_up(self) -> float:
        return _ratio(self.tokens, self.steps)

    @property
    def coverage(self) -> float:
        return _ratio(self.drafts, self.steps)

    @property
    def accepted_per_draft(self) -> float:
        return _ratio(self.accepted, self.drafts)

    @property
    def acceptance(self) -> float:
        return _ratio(self.accepted, self.proposed)

    def as_dict(self) -> dict[str, float]:
        """The sums and the ratios drawn from them; a ratio over nothing is 0."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "drafts": self.drafts,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "speed_up": self.speed_up,
            "coverage": self.coverage,
            "accepted_per_draft": self.accepted_per_draft,
            "acceptance": self.acceptance,
        }


def total(tallies: Iterable[Tally]) -> Tally:
    """The sums over many texts."""
    return sum(tallies, Tally(0, 0, 0, 0, 0))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
