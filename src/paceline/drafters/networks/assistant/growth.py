"""One growing draft: a tree that gets a level with each forward of the draft model.

The draft model's cache follows the text. Rows of the text are committed; rows of the draft are tentative, each level
below the one before, so nothing is read twice while a draft grows. When the text has gone on, rows that became text are
kept, and the other new tokens are read with the first forward of the next draft.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.networks.assistant.state import DRAFT_FORWARDS, DRAFT_TOKENS, NO_ROWS, AssistantState
from paceline.drafters.noise import SharedNoise, foremost, hides_noise
from paceline.law import Distribution
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.scores import Scores
from paceline.tree import ROOT, DraftTree, Floats, Ints

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class DraftShape:
    """The shape of a draft: ``beams`` nodes of every level go on, each into its ``top`` likeliest tokens.

    ``length`` bounds its depth. A path with a probability below ``confidence`` ends. With ``shared`` noise candidates
    are ranked by its race, else by probability alone.
    """

    beams: int = 1
    top: int = 1
    length: int | None = None
    confidence: float = 0.0
    shared: bool = True

    def depth(self, nodes: int) -> int:
        """The depth of a draft of so many nodes, if nothing else limits it."""
        return self.length or -(-nodes // max(self.beams, self.top))

    @property
    def chained(self) -> DraftShape:
        """The same for a model that cannot read siblings: one node of every level goes on."""
        return replace(self, beams=1, top=max(self.top, self.beams))


class Growth:
    """A draft of ``depth`` levels at most: score its `request` and `grow` by the scores, until it is `done`."""

    of_target = True
    """Whether it is made of the target's tokens, so that the text's noise and coins are theirs."""

    def __init__(
        self,
        reading: AssistantState,
        shape: DraftShape,
        nodes: int,
        depth: int,
        *,
        text: Context | None = None,
        row: int = -1,
    ) -> None:
        """``text`` is what it follows, by default the text that is read, and ``row`` that text's last tentative row."""
        self._reading, self._shape = reading, shape
        self._nodes, self._depth = nodes, depth
        context = reading.context if text is None else text
        self._sampled = self.of_target and hides_noise(context) and shape.beams == 1
        self._shared = self.of_target and SharedNoise.of(context, shape.shared) is not None
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._paths: list[float] = []
        self._drawn: dict[int, Distribution] = {}
        self._row_of: dict[int, int] = {ROOT: row}  # tentative row of a node that was read; -1 is a committed one
        self._texts: dict[int, Context] = {ROOT: context}  # up to each node that goes on
        self._frontier = [ROOT] if depth > 0 else []
        self._level = 0

    def __len__(self) -> int:
        """The tokens drafted so far."""
        return len(self._tokens)

    @property
    def done(self) -> bool:
        return not self._frontier

    def request(self) -> Request:
        """The rows to score next: the unread text at first, then the nodes that go on."""
        reading = self._reading
        if self._level == 0:
            unread = reading.unread.copy()
            return Request(reading.rows, unread, np.arange(-1, len(unread) - 1))
        tokens, above = self.fresh()
        return Request(reading.rows, tokens, np.concatenate([reading.parents, above]), held=len(reading.parents))

    def fresh(self) -> tuple[Ints, Ints]:
        """Behind the first level: the tokens to read next, and the tentative row that each follows."""
        above = [self._row_of[self._parents[node]] for node in self._frontier]
        tokens = np.array([self._tokens[node] for node in self._frontier], np.int64)
        return self._reading.fed(tokens), np.array(above, np.int64)

    def chain(self) -> Chain | None:
        """The whole draft as one chain, where its tokens need nothing but their rows; before it has grown."""
        reading, shape = self._reading, self._shape
        plain = type(reading) is AssistantState and shape.beams == shape.top == 1 and not shape.confidence
        if self.done or self._level or self._sampled or not plain:
            return None
        context = self._texts[ROOT]
        draw = reading.outlook.draw(context.noise if self._shared else None, len(context))
        if draw is None:
            return None
        return Chain(reading.rows, reading.unread.copy(), self._depth, draw, reading.vocab_size, reading.ends)

    def follow(self, drafted: ChainDraft) -> None:
        """Be the draft that `chain` became."""
        reading, count = self._reading, len(drafted.tokens)
        reading.tally.add(DRAFT_FORWARDS, drafted.forwards)
        reading.parents = np.arange(-1, count - 2) if count > 1 else NO_ROWS
        self._tokens, self._scores, self._parents = drafted.tokens, drafted.scores, list(range(-1, count - 1))
        self._frontier = []

    def moved(self, by: int) -> None:
        """The row of the text that it follows has another number, while nothing has grown yet."""
        self._row_of[ROOT] += by

    def grow(self, scores: Scores) -> None:
        """Add the next level below the rows of `request`."""
        reading, first = self._reading, len(self._reading.parents)
        reading.tally.add(DRAFT_FORWARDS)
        if self._level == 0:
            reading.read(len(scores.tokens))
            self.add(scores.logits[-1:])
            return
        reading.parents = np.concatenate([reading.parents, scores.parents])
        self.add(scores.logits, first)

    def add(self, rows: torch.Tensor, first: int = 0) -> None:
        """Add the next level below the nodes that go on, by their logits, and choose those that go on then. ``first``
        is the tentative row of the first of them."""
        for number, node in enumerate(self._frontier if self._level else ()):
            self._row_of[node] = first + number
        laws = self._reading.laws(rows, (self._texts[node].tokens for node in self._frontier))
        newest = len(self._tokens)
        for node, law in zip(self._frontier, laws, strict=True):
            self._branch(node, law)
        self._level += 1
        self._frontier = self._going_on(newest) if self._level < self._depth else []
        for node in self._frontier:
            self._texts[node] = self._texts[self._parents[node]].extended([self._tokens[node]])

    def _branch(self, node: int, law: Distribution) -> None:
        text, shape = self._texts[node], self._shape
        if law.ids.size == 0:
            return
        exponentials: Floats | None = None
        if self._shared:
            exponentials = text.exponentials(0, law.ids)
        elif self._sampled:
            exponentials = text.draft_coins(0, law.ids)
        ids, scores = foremost(law, max(shape.top, shape.beams), exponentials)
        if self._sampled:
            self._drawn[node] = law
            scores = np.log(law.probs[np.searchsorted(law.ids, ids)])
        above = 0.0 if node == ROOT else self._paths[node]
        for token, score in zip(ids.tolist(), scores.tolist(), strict=True):
            if not self._sampled and np.exp(above + score) < shape.confidence:
                continue
            self._tokens.append(token)
            self._parents.append(node)
            self._scores.append(score)
            self._paths.append(above + score)

    def _going_on(self, first: int) -> list[int]:
        """The best nodes of the newest level; of sampled ones the first drawn. Nothing follows an end-of-text token."""
        newest = list(range(first, len(self._tokens)))
        if self._sampled:
            going = newest[:1]
            if going and np.exp(self._paths[going[0]]) < self._shape.confidence:
                return []
        else:
            going = sorted(newest, key=lambda node: -self._paths[node])[: self._shape.beams]
        return sorted(node for node in going if self._tokens[node] not in self._reading.ends)

    def tree(self, source: str) -> DraftTree:
        """The draft, cut to its nodes: sampled children in the order they were drawn, others by their probability."""
        self._reading.tally.add(DRAFT_TOKENS, len(self._tokens))
        tree = DraftTree.build(self._tokens, self._parents, source=source, scores=self._scores, drawn=self._drawn)
        return tree.head(self._nodes) if self._sampled else tree.top(self._nodes)
