"""One text of `mirror`, and what is counted of its overlapped drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.context import Context
from paceline.drafters.counters import Counter, Tally
from paceline.drafters.networks.mirror.flight import (
    BYTES_EXCHANGED,
    DRAFTS_ANEW,
    DRAFTS_INSIDE,
    LEVELS_AHEAD,
    RemoteText,
)
from paceline.drafters.networks.mirror.proxies import Outcomes
from paceline.drafters.networks.reading import ReadText
from paceline.law import Outlook
from paceline.targets.scores import Scores
from paceline.tree import ROOT
from paceline.verify import Verdict

ROUNDS_OVERLAPPED = Counter("rounds_overlapped", "rounds whose drafts were made while the target worked")
ROUNDS_FORESEEN = Counter(
    "rounds_foreseen", "rounds during which tokens were foreseen and drafts behind them were made"
)
OVERLAP_MASS = Counter(
    "overlap_mass",
    "the target's probability of these tokens where the round ended, without the noise; over rounds_foreseen a mean",
    zero=0.0,
)

COUNTERS = (
    *(LEVELS_AHEAD, DRAFTS_ANEW, BYTES_EXCHANGED, ROUNDS_FORESEEN, OVERLAP_MASS),
    *(DRAFTS_INSIDE, ROUNDS_OVERLAPPED),
)
"""Beside those of drafts in turns."""


@dataclass(eq=False)
class MirrorState:
    """One text."""

    context: Context
    outlook: Outlook
    turns: ReadText | None = None
    """The text as the draft model in this process has it; None where all drafts are overlapped."""
    remote: RemoteText | None = None
    """The text as the draft model's process has it; None until it is needed and the process is there."""
    left: float = 0.0
    """When it had its last draft; 0 until then."""
    round: float = 0.0
    """Seconds from there until the target had decided."""
    early: float = 0.0
    """When the later layers of the forward under way began; 0 between forwards."""
    foreseen: Outcomes | None = None
    """The outcomes of that forward that are drafted behind."""
    drafts: bool = False
    """Whether an overlapped draft was asked for in this round. Else the draft model's process rests, and the target has
    all cores."""
    tally: Tally = field(default_factory=Tally)


def overlap_mass(state: MirrorState, verdict: Verdict, scores: Scores, foreseen: Outcomes) -> float:
    """The paper's overlap mass: what the target gives to the foreseen tokens of the node where the walk stopped. Its
    law is taken without the noise, and of a greedy text as at temperature 1."""
    stop = verdict.path[-1] if verdict.path else ROOT
    there = foreseen.proxies[foreseen.stops == stop].tolist()
    if not there:
        return 0.0
    (law,) = state.outlook.laws(scores.row(stop)[None], [state.context.tokens[:-1]])
    return sum(float(law.probability(token)) for token in there)
