"""How well an early exit foresees a text: at each place where a draft ended, the rank of the emitted token.

The draft model drafts in turns, so the text and its drafts are the same whatever the exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.api.model import LanguageModel
from paceline.drafters.base import Seen
from paceline.drafters.networks.assistant import Assistant
from paceline.drafters.networks.mirror.proxies import choices, outcomes
from paceline.law import Outlook
from paceline.targets.base import Target, Want
from paceline.tree import ROOT, DraftTree, Floats, Ints
from paceline.vocabulary import Vocabulary

UNFORESEEN = 10**6
"""The rank of a token that is no proxy."""


@dataclass(frozen=True)
class Stop:
    """Where a walk stopped: the rank of the emitted token among the proxies there, by noise and by probability, and the
    target's probability of the first of the latter, of the first two and so on."""

    rank: int
    plain_rank: int
    masses: Floats
    place: int
    """Its number among all outcomes of the proxies at each place, the likeliest first."""
    emitted: int


class Watching(Assistant):
    """The draft model in turns, and what an exit of the target would have foreseen."""

    def __init__(self, *, exit: float, kappa: int, **how: Any) -> None:
        super().__init__(**how)
        self.exit, self.kappa = exit, kappa
        self.stops: list[Stop] = []

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        super().fit(target, vocabulary)
        self.needs = Want(early_exit=round(self.exit * target.layers))

    def on_early(self, state: Any, tree: DraftTree, logits: Any) -> None:
        outlook = Outlook(state.context.sampling, state.context.prompt_length)
        self._foreseen = [
            list(choices(logits, tree, state.context, outlook, shared=shared)) for shared in (True, False)
        ]
        found = outcomes(logits, tree, state.context, outlook, kappa=self.kappa, shared=True)
        self._outcomes = list(zip(found.stops.tolist(), found.proxies.tolist(), strict=True))

    def observe(self, seen: Sequence[Seen]) -> None:
        super().observe(seen)
        for state, verdict, scores in seen:
            if not verdict.tokens or scores.prompt is not None:
                continue
            row = 1 + (verdict.path[-1] if verdict.path else ROOT)
            by_noise, by_chance = (rows[row][0][: self.kappa] for rows in self._foreseen)
            token = verdict.tokens[-1]
            outlook = Outlook(state.context.sampling, state.context.prompt_length)
            (law,) = outlook.laws(scores.row(row - 1)[None], [state.context.tokens[:-1]])
            masses = np.cumsum([float(law.probability(int(proxy))) for proxy in by_chance])
            came = (row - 1, token)
            place = self._outcomes.index(came) if came in self._outcomes else UNFORESEEN
            ranks = _rank(token, by_noise), _rank(token, by_chance)
            self.stops.append(Stop(*ranks, masses, place, len(verdict.tokens)))


def _rank(token: int, proxies: Ints) -> int:
    found = np.flatnonzero(proxies == token)
    return int(found[0]) + 1 if len(found) else UNFORESEEN


def foreseen(
    lm: LanguageModel, draft: str, prompts: Sequence[Any], *, exit: float, proxies: int, levels: int, **writing: Any
) -> list[Stop]:
    """Write behind the prompts with drafts of ``levels`` levels."""
    drafter = Watching(model=draft, length=levels, exit=exit, kappa=proxies)
    for prompt in prompts:
        lm.forget()
        lm.generate(prompt, method=drafter, planner=f"fixed:{levels}", ignore_eos=True, **writing)
    return drafter.stops
