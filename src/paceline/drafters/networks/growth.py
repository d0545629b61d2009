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
        self._root = ROOT
        """The last of its nodes that became text (`re_root`); the draft is what follows that."""
        self._going = [ROOT] if depth > 0 else []
        self._read, self._newest = list[int](), list[int]()
        """The nodes that the network read for the newest level, and the nodes of that level."""
        self._origin = context.extended(())
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
        self._read, self._newest = before, list(range(newest, len(self._tokens)))
        self._go_on(self._going_on(self._newest))

    def _go_on(self, going: list[int]) -> None:
        """These nodes of the newest level go on, if there is a level behind it."""
        going = going if self.level < self._depth else []
        above = [self._read.index(self._parents[node]) for node in going]
        self.texts = [self._origin.extended(self._path(node)) for node in going]
        self._going, self.above = going, np.array(above, np.int64)

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

    def _going_on(self, newest: list[int]) -> list[int]:
        """The best of these nodes; of sampled ones the first drawn. Nothing follows an end-of-text token."""
        if self.sampled:
            going = newest[:1]
            if going and np.exp(self._paths[going[0]]) < self.shape.confidence:
                return []
        else:
            going = sorted(newest, key=lambda node: -self._paths[node])[: self.shape.beams]
        return sorted(node for node in going if self._tokens[node] not in self.state.ends)

    # a draft whose first tokens became text

    def levels_behind(self, path: Sequence[int]) -> int:
        """How many of its levels follow these tokens of it; 0 also where it has no such path."""
        node = self._node(path)
        if node is None or not (node == ROOT or self._below(node)):
            return 0
        return self.level - len(path)

    def re_root(self, path: Sequence[int], depth: int) -> None:
        """Be the draft behind these tokens of it, which became text: what follows them is kept, and goes on growing to
        ``depth`` levels in all. The rest of the draft is left."""
        node = self._node(path)
        assert node is not None, "the draft has the path"
        self._root, self._depth, below = node, len(path) + depth, set(self._below(node))
        self._go_on(self._going_on([each for each in self._newest if each in below]))

    def _node(self, path: Sequence[int]) -> int | None:
        """The node at the end of these tokens, if there is one."""
        if path and not self.of_target:
            return None
        node = ROOT
        for token in path:
            below = (n for n, parent in enumerate(self._parents) if parent == node and self._tokens[n] == token)
            if (found := next(below, None)) is None:
                return None
            node = found
        return node

    def _below(self, node: int) -> list[int]:
        """The nodes that follow this one, at any distance."""
        found, below = {node}, list[int]()
        for number, parent in enumerate(self._parents):
            if parent in found:
                found.add(number)
                below.append(number)
        return below

    def _path(self, node: int) -> list[int]:
        """The tokens up to a node."""
        path = list[int]()
        while node != ROOT:
            path.append(self._tokens[node])
            node = self._parents[node]
        return path[::-1]

    def follow(self, tokens: list[int], scores: list[float]) -> None:
        """Be this chain, which the network has drafted as a whole."""
        self._tokens, self._scores, self._parents = tokens, scores, list(range(-1, len(tokens) - 1))
        self._going = []

    def tree(self, source: str) -> DraftTree:
        """The draft, cut to its nodes: sampled children in the order they were drawn, others by their probability."""
        nodes = range(len(self)) if self._root == ROOT else self._below(self._root)
        number = {self._root: ROOT, **{node: place for place, node in enumerate(nodes)}}
        tree = DraftTree.build(
            [self._tokens[node] for node in nodes],
            [number[self._parents[node]] for node in nodes],
            source=source,
            scores=[self._scores[node] for node in nodes],
            drawn={number[node]: law for node, law in self._drawn.items() if node in number},
        )
        return tree.head(self._nodes) if self.sampled else tree.top(self._nodes)
