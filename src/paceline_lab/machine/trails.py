"""Tokens that drafts of every size would have brought, counted from rounds with large drafts.

A round with the largest draft is fully known: its nodes with their scores, and the emitted tokens. A draft of g nodes
would have been its best g nodes, so the accepted tokens can be counted exactly. If that draft ends earlier, another
round follows from a place inside the large draft; its draft is taken to be the best g nodes below that place. So the
rounds of a smaller size are counted along the whole text, not only where rounds of the largest began, which are the
places behind all easy tokens.

For a source whose drafts do not depend on scored rows, a run with g nodes does exactly this. A source that learns from
scored rows learns less from fewer: `corrected` corrects for this by a run at one small size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.context import Ints
from paceline.planning.acceptance import Point, Spot
from paceline.tree import DraftTree, ancestors

SIZES = (*range(17), 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True, eq=False)
class Trail:
    """A round with a large draft, from which rounds with smaller drafts are simulated."""

    ranks: tuple[tuple[int, ...], ...]
    """For each place on the way that was accepted, and for every node further on: how many nodes below that place
    would be drafted before it."""
    nodes: int
    """How many the draft held."""
    probes: int
    emitted: int

    @classmethod
    def of(cls, tree: DraftTree, tokens: Sequence[int]) -> Trail:
        path = tree.along(tokens)
        order, below = places(tree), ancestors(tree.parents) & ~np.eye(len(tree), dtype=np.bool_)
        probes = np.zeros(len(tree), np.bool_) if tree.probes is None else tree.probes
        ranks = []
        for start in range(len(path)):
            nodes = order[~probes & (below[:, path[start - 1]] if start else True)]
            ranks.append(tuple(int((nodes < order[later]).sum()) for later in path[start:]))
        return cls(tuple(ranks), len(tree) - int(probes.sum()), int(probes.sum()), len(tokens))

    def rounds(self, size: int) -> int:
        """How many rounds of that size the tokens would have taken."""
        at = count = 0
        while at < self.emitted:
            at += 1 + next((n for n, rank in enumerate(self._ahead(at)) if rank >= size), len(self._ahead(at)))
            count += 1
        return count

    def sent(self, size: int) -> int:
        """Rows beside the root, in each of those rounds."""
        return min(size, self.nodes) + (self.probes if size else 0)

    def _ahead(self, at: int) -> tuple[int, ...]:
        return self.ranks[at] if at < len(self.ranks) else ()


def places(tree: DraftTree) -> Ints:
    """Which comes when a draft is cut to its best nodes, as `DraftTree.top` ranks them; sampled ones are cut in the
    order of the draft."""
    index = np.arange(len(tree))
    if tree.drawn:
        return index
    found = np.empty(len(tree), np.int64)
    found[np.lexsort((index, tree.depths(), -tree.path_scores()))] = index
    return found


def sizes_to(most: int) -> list[int]:
    """The sizes at which tokens are counted."""
    return sorted({*(size for size in SIZES if size < most), most})


def point_at(trails: Sequence[Trail], size: int) -> Point:
    """The tokens that drafts of up to ``size`` nodes would have brought along the same texts."""
    tokens, rounds = 0, Counter[int]()
    for trail in trails:
        tokens += trail.emitted
        rounds[trail.sent(size)] += trail.rounds(size)
    count = sum(rounds.values())
    sent = {rows: number / count for rows, number in sorted(rounds.items())}
    return Point(nodes=size, tokens=tokens / count, sent=sent)


def corrected(points: Iterable[Point], spot: Spot | None) -> tuple[Point, ...]:
    """Simulated points, corrected by a run at one small size: its ratio of found to simulated tokens holds up to that
    size and decays from there, by the logarithm of the size, to 1 at the largest, which was not simulated."""
    points = tuple(points)
    if spot is None:
        return points
    most = points[-1].nodes
    if spot.nodes >= most:
        return points

    def mended(point: Point) -> Point:
        past = np.log(max(point.nodes, spot.nodes) / spot.nodes) / np.log(most / spot.nodes)
        share = float(np.exp(np.log(spot.ratio) * (1 - past))) if point.nodes else 1.0
        return Point(nodes=point.nodes, tokens=1 + (point.tokens - 1) * share, sent=point.sent)

    return tuple(map(mended, points))
