"""Lookup that reaches further: two ways to draft more from the n-grams of a text than one copied piece.

*Many to one* (ANPD): the text is a model that says one token for the last few. It is asked for each token of a draft
anew, the longest n-gram first, with the tokens drafted so far; so a draft may go over from one place to another, where
a copy stays at its place.

*The next token but one* (LogitSpec): the row from which the target chose the last token often ranks high, too, what
comes after that token. Its best tokens are tried as the next one: each is drafted, and behind it what the text says of
its own end followed by that token. Where the text's own end never stood before this finds something all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen
from paceline.drafters.endings import Endings
from paceline.tree import EMPTY, UNSURE, DraftTree, merge

NEXT = "-next"
"""Behind the name of a source: what was drafted behind a guessed token, which is less reliable."""


@dataclass(eq=False)
class Reaching:
    """The n-grams of one text, of the given sizes, and what the target's last row ranked highest."""

    context: Context
    sizes: range
    anew: bool
    """Whether every token is looked up anew, not copied from where the first one was found."""
    guesses: int
    """How many tokens to try as the next one."""
    guessed: list[tuple[int, float]] = field(default_factory=list)
    endings: Endings = field(init=False)

    def __post_init__(self) -> None:
        self.endings = Endings(range(1, self.sizes.stop))
        self.catch_up()

    def catch_up(self) -> None:
        tokens = self.context.tokens
        if len(tokens) > len(self.endings):
            self.endings.extend(tokens[len(self.endings) :].tolist())

    def learn(self, seen: Seen) -> None:
        """Note the row that the last token was chosen from; of the prompt there is none."""
        self.catch_up()
        self.guessed = []
        if self.guesses and seen.verdict.tokens:
            row = seen.verdict.path[-1] + 1 if seen.verdict.path else 0
            top = seen.scores.top(self.guesses)
            scores = np.minimum(top.logits[row] - top.log_z[row], 0.0)
            self.guessed = list(zip(top.ids[row].tolist(), scores.tolist(), strict=True))

    def draft(self, budget: Budget, source: str) -> DraftTree:
        """What follows the text, and what follows it with each guessed token."""
        self.catch_up()
        count = min(budget.nodes, budget.depth)
        if not count:
            return EMPTY
        tree = DraftTree.chain(self._continued([], count), source=source)
        if not self.guessed:
            return tree
        beams = [[token, *self._continued([token], count - 1)] for token, _ in self.guessed]
        scores = [[score] + [UNSURE] * count for _, score in self.guessed]
        guesses = DraftTree.from_beams(beams, source=source + NEXT, scores=scores)
        return merge([tree, guesses]).top(budget.nodes)

    def _continued(self, ahead: list[int], count: int) -> list[int]:
        """Up to ``count`` tokens that follow the text and the tokens ``ahead`` of it."""
        text = self.endings.text
        drafted = list(ahead)
        while len(drafted) < len(ahead) + count and (place := self._place(drafted)) is not None:
            for start in range(place + 1, place + 2 if self.anew else place + 1 + count):
                drafted.append(text[start] if start < len(text) else drafted[start - len(text)])
        return drafted[len(ahead) : len(ahead) + count]

    def _place(self, drafted: list[int]) -> int | None:
        """Where the longest ending of the text with its draft last stood in the text."""
        ending = (self.endings.text[-self.sizes.stop :] + drafted)[-self.sizes.stop + 1 :]
        found = self.endings.like(ending, 1) if drafted else self.endings.before(1)
        least = self.sizes.start
        for place, _ in found:
            if self.endings.text[max(0, place + 1 - least) : place + 1] == ending[-least:]:
                return place
        return None
