"""Of every node that was sent: what its source thought of it, and whether it was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.drafters.base import Budget
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room
from paceline.tree import ROOT, DraftTree


@dataclass
class Nodes:
    """Nodes of one entry, in the order of their rounds."""

    score: list[float] = field(default_factory=list)
    """The product of the scores on the way to it, as a probability."""
    accepted: list[int] = field(default_factory=list)

    def note(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """A round: what was sent, and what came."""
        if not len(tree):
            return
        taken = np.zeros(len(tree), np.int64)
        node = ROOT
        for token in tokens:
            child = tree.child(node, token)
            if child is None:
                break
            taken[child] = 1
            node = child
        shown = np.ones(len(tree), np.bool_) if tree.probes is None else ~tree.probes
        scores = np.exp(np.minimum(tree.path_scores(), 0.0))
        self.score += [round(float(one), 5) for one in scores[shown]]
        self.accepted += [int(one) for one in taken[shown]]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"score": self.score, "accepted": self.accepted}


@dataclass(eq=False)
class Onlooker(Planner):
    """A planner that does what another does and notes what became of it."""

    planner: Planner
    nodes: Nodes

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        return self.planner.plan(rooms)

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        return self.planner.cut(drafts)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.nodes.note(outcome.sent, outcome.tokens)
        self.planner.review(outcomes)


def onlookers(found: dict[str, Nodes]) -> Any:
    """Who looks on at each entry, by its name."""

    def planned(name: str, planner: Planner) -> Planner:
        return Onlooker(planner, found.setdefault(name, Nodes()))

    return planned
