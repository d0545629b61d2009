"""A draft that grows level by level, whichever network reads its levels.

The network gives the law behind every node that is continued. The rest is here, once for all networks: the public
noise, or coins of the draft, choose the candidates behind each node; the best of all are continued; nothing follows an
end of the text; and the nodes become a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.context import Context
from paceline.drafters.noise import SharedNoise, foremost, hides_noise
from paceline.law import Distribution
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
        """The depth of a draft of ``nodes`` nodes, if nothing else limits it."""
        return self.length or -(-nodes // max(self.beams, self.top))

    @property
    def chained(self) -> DraftShape:
        """The same for a network that cannot read siblings: one node of every level goes on."""
        return replace(self, beams=1, top=max(self.top, self.beams))


class Growth:
    """A draft of ``depth`` levels at most: `add` the laws behind the nodes that go on, until it is `done`."""

    of_target = True
    """Whether it is made of the target's tokens, so that the text's noise and coins are theirs."""

    def __init__(
        self,
        state: Any,
        shape: DraftShape,
        nodes: int,
        depth: int,
        *,
        text: Context | None = None,
        row: int = ROOT,
    ) -> None:
        """``state`` is the text's (`DraftedText`). ``text`` is what the draft follows, by default that text; ``row`` is
        its last token among those that are read ahead of that text."""
        self.state, self.shape = state, shape
        self._nodes, self._depth = nodes, depth
        context = state.context if text is None else text
        self.sampled = self.of_target and hides_noise(context) and shape.beams == 1
        self.shared = self.of_target and SharedNoise.of(context, shape.shared) is not None
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._paths: list[float] = []
        self._drawn: dict[int, Distribution] = {}
        self.level = 0
        """How many levels it has."""
        self._going = [ROOT] if depth > 0 else []
        self.texts = [context] if depth > 0 else []
        """The text up to each node that goes on."""
        self.above: Ints = np.zeros(1, np.int64)
        """Of each node that goes on: the number of its parent among those that went on a level above."""
        self.row = row
        self.trust: Floats | None = None
        """Of each node that goes on: the logarithm of the chance that its best candidate is the target's choice, where
        the network predicts that itself."""
        self.kept: Any = None
        """The network's memory of the nodes that it read last, in their order: their rows, or recurrent states. So
        ``kept[above]`` is what it keeps of the parents of those that go on."""

    def __len__(self) -> int:
        """The tokens drafted so far."""
        return len(self._tokens)

    @property
    def done(self) -> bool:
        return not self._going

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def drafted(self) -> int:
        """The network's own tokens that it cost."""
        return len(self)

    @property
    def tokens(self) -> Ints:
        """The tokens of the nodes that go on; none before the first level, which follows the text."""
        return np.array([self._tokens[node] for node in self._going if node != ROOT], np.int64)

    def laws(self, rows: torch.Tensor) -> list[Distribution]:
        """The laws behind the nodes that go on, from the network's logits there, ``[nodes, columns]``."""
        laws: list[Distribution] = self.state.laws(rows, (text.tokens for text in self.texts))
        return laws

    def add(self, laws: Sequence[Distribution]) -> None:
        """Add the next level behind the nodes that go on, and choose those that go on then."""
        newest, before = len(self._tokens), self._going
        chosen = self._candidates(laws)
        for number, (node, law) in enumerate(zip(before, laws, strict=True)):
            if law.ids.size:
                self._branch(node, *chosen[id(law)], None if self.trust is None else float(self.trust[number]))
        self.level += 1
        self._going = self._going_on(newest) if self.level < self._depth else []
        above = [before.index(self._parents[node]) for node in self._going]
        pairs = zip(above, self._going, strict=True)
        self.texts = [self.texts[number].extended([self._tokens[node]]) for number, node in pairs]
        self.above = np.array(above, np.int64)

    def _candidates(self, laws: Sequence[Distribution]) -> dict[int, tuple[Ints, Floats]]:
        """The best tokens behind the nodes that go on, and the logarithms of their chances, by the law's identity:
        nodes with one law share them, since their place is the same. So is their noise, which is drawn at once."""
        different = list({id(law): law for law in laws if law.ids.size}.values())
        count, found = max(self.shape.top, self.shape.beams), dict[int, tuple[Ints, Floats]]()
        for law, exponentials in zip(different, self._exponentials(different), strict=True):
            ids, scores = foremost(law, count, exponentials)
            if self.sampled:
                (node,) = self._going
                self._drawn[node] = law
                scores = np.log(law.probs[np.searchsorted(law.ids, ids)])
            found[id(law)] = ids, scores
        return found

    def _exponentials(self, laws: Sequence[Distribution]) -> Sequence[Floats | None]:
        """What the tokens of each law race with; None where the likeliest wins."""
        if self.shared and laws:
            noise = self.texts[0].exponentials(0, np.concatenate([law.ids for law in laws]))
            return np.split(noise, np.cumsum([law.ids.size for law in laws])[:-1])
        return [self.texts[0].draft_coins(0, law.ids) if self.sampled else None for law in laws]

    def _branch(self, node: int, ids: Ints, scores: Floats, trust: float | None) -> None:
        if trust is not None:  # it is the best one's chance, and all of them together have 1 at most
            scores = scores + min(trust - float(scores[0]), -float(np.log(np.exp(scores).sum())))
        above = 0.0 if node == ROOT else self._paths[node]
        least = 0.0 if self.sampled else self.shape.confidence
        for token, score in zip(ids.tolist(), scores.tolist(), strict=True):
            if least and np.exp(above + score) < least:
                continue
            self._tokens.append(token)
            self._parents.append(node)
            self._scores.append(score)
            self._paths.append(above + score)

    def _going_on(self, first: int) -> list[int]:
        """The best nodes of the newest level; of sampled ones the first drawn. Nothing follows an end-of-text token."""
        newest = list(range(first, len(self._tokens)))
        if self.sampled:
            going = newest[:1]
            if going and np.exp(self._paths[going[0]]) < self.shape.confidence:
                return []
        else:
            going = sorted(newest, key=lambda node: -self._paths[node])[: self.shape.beams]
        return sorted(node for node in going if self._tokens[node] not in self.state.ends)

    def follow(self, tokens: list[int], scores: list[float]) -> None:
        """Be this chain, which the network has drafted as a whole."""
        self._tokens, self._scores, self._parents = tokens, scores, list(range(-1, len(tokens) - 1))
        self._going = []

    def tree(self, source: str) -> DraftTree:
        """The draft, cut to its nodes: sampled children in the order they were drawn, others by their probability."""
        tree = DraftTree.build(self._tokens, self._parents, source=source, scores=self._scores, drawn=self._drawn)
        return tree.head(self._nodes) if self.sampled else tree.top(self._nodes)
