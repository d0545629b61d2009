"""Steps of texts and what drafts saved of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass

from paceline.engine.counters import Totals


@dataclass(frozen=True)
class StepTally:
    """Sums over the steps of a text, or of many, and the ratios of the DictSpec paper; one over nothing is 0.

    A step emits the tokens that it accepts and one of the model's own. So does a text's last step: a draft is cut to
    leave the last token to the model, as `paceline.engine.loop` cuts it to the room that is left. Tokens that are cut
    off count neither as proposed nor as accepted. Hence tokens = steps + accepted, and exactly

        speed_up = 1 + coverage * accepted_per_draft

    In the engine's words (`paceline.engine.counters`) steps are rounds, proposed tokens are drafted ones, and the
    speed-up is the tokens per round.
    """

    tokens: int
    steps: int
    drafts: int
    """Steps with a draft."""
    proposed: int
    accepted: int

    @classmethod
    def of(cls, totals: Totals) -> StepTally:
        """From the counts of the engine."""
        return cls(totals.tokens, totals.rounds, totals.drafting_rounds, totals.drafted, totals.accepted)

    @property
    def speed_up(self) -> float:
        return _ratio(self.tokens, self.steps)

    @property
    def coverage(self) -> float:
        return _ratio(self.drafts, self.steps)

    @property
    def accepted_per_draft(self) -> float:
        """The paper's mean accepted draft length."""
        return _ratio(self.accepted, self.drafts)

    @property
    def acceptance(self) -> float:
        return _ratio(self.accepted, self.proposed)

    def as_dict(self) -> dict[str, float]:
        """The sums and the ratios."""
        return asdict(self) | {name: getattr(self, name) for name in RATIOS}


RATIOS = ("speed_up", "coverage", "accepted_per_draft", "acceptance")


def total(tallies: Iterable[StepTally]) -> StepTally:
    """The sums over many texts."""
    return StepTally(*map(sum, zip((0,) * 5, *map(astuple, tallies), strict=True)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
