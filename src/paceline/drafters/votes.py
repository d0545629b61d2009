"""Grows a tree out of places that ended as the text does: each votes for the tokens that followed it.

As in prediction by partial matching, long matches weigh more than short ones, and some weight is kept for tokens that
were never seen: a place with a match of ``n`` tokens weighs ``TRUST[n]``, the unseen 1, and a token's probability is
its share of all weights. Down a path a place goes on voting as long as it agrees, and its match gets longer with every
step. The path with the highest probability grows first, until the draft is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush, heappushpop
from math import log
from typing import NamedTuple

import numpy as np

from paceline.drafters.noise import SharedNoise
from paceline.tree import EMPTY, ROOT, DraftTree

TRUST_AT = {1: 0.12, 2: 0.35, 3: 0.72, 4: 1.0, 6: 2.05, 8: 3.7, 12: 7.1, 16: 13.3, 24: 37.0}
"""Weights of some lengths of a match. They and `FADING` are fitted to novels, manuals and web pages in three languages
and two tokenizers."""
FADING = 0.7
"""How fast weights fall with the rank of a place."""

LONGEST = max(TRUST_AT)
TRUST: list[float] = np.exp(np.interp(range(LONGEST + 1), list(TRUST_AT), np.log(list(TRUST_AT.values())))).tolist()
"""Weights of all lengths, interpolated in their logarithms."""


class Weight(NamedTuple):
    """The weight of a place by the length of its match, and the score of its token where no other place votes."""

    by_length: list[float]
    alone: list[float]


def weight(share: float) -> Weight:
    """This share of the full weight."""
    by_length = [share * trust for trust in TRUST]
    return Weight(by_length, [log(weight / (1 + weight)) for weight in by_length])


@cache
def ranked(rank: int) -> Weight:
    """The weight of a place by its rank: 0 for the longest match, and of equals the latest."""
    return weight((1 + rank) ** -FADING)


class Vote(NamedTuple):
    """One place: what followed it, the length of its match, and its weight."""

    following: list[int]
    length: int
    weight: Weight = ranked(0)


@cache
def equal(count: int) -> Weight:
    """The weight of each of ``count`` places without an order: together they weigh as much as ranked ones."""
    return weight(sum((1 + rank) ** -FADING for rank in range(count)) / count)


def even(found: Sequence[tuple[list[int], int]], less: int = 0) -> list[Vote]:
    """Votes of places without an order, given as what followed and the length of the match, which counts as ``less``
    tokens shorter."""
    return [Vote(following, size - less, equal(len(found))) for following, size in found]


def grow(votes: Sequence[Vote], nodes: int, depth: int, source: str, noise: SharedNoise | None = None) -> DraftTree:
    """The ``nodes`` likeliest continuations, none longer than ``depth``; with ``noise``, likeliest to win its race
    wherever there is a choice.

    What places vote for is text as it was sampled, temperature and all, so weights are not sharpened again.
    """
    if not votes or nodes <= 0 or depth <= 0:
        return EMPTY
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # by path score, then age: minus the path's score, order, token, parent, score, the votes that agree, their step
    heap: list[tuple[float, int, int, int, float, Sequence[Vote], int]] = []
    order, parent, path, group, step = 0, ROOT, 0.0, votes, 0
    while len(tokens) < nodes:
        best = None
        if step < depth:
            if len(group) > 1:
                for token, score, agreeing in _split(group, step, noise):
                    order += 1
                    heappush(heap, (path - score, order, token, parent, score, agreeing, step + 1))
            else:
                following, length, (_, alone) = group[0]
                if step < len(following):
                    place = length + step
                    score = alone[place if place < LONGEST else LONGEST]
                    order += 1
                    best = heappushpop(heap, (path - score, order, following[step], parent, score, group, step + 1))
        if best is None:
            if not heap:
                break
            best = heappop(heap)
        path, _, token, above, score, group, step = best
        parent = len(tokens)
        tokens.append(token)
        parents.append(above)
        scores.append(score)
    return DraftTree(np.array(tokens, np.int64), np.array(parents, np.int64), np.array(scores), (source,) * len(tokens))


def _split(group: Sequence[Vote], step: int, noise: SharedNoise | None) -> list[tuple[int, float, list[Vote]]]:
    """The tokens that a group votes for next, each with its score and the votes for it."""
    weights: dict[int, float] = {}
    agreeing: dict[int, list[Vote]] = {}
    total = 1.0
    for vote in group:
        following, length, (by_length, _) = vote
        if step >= len(following):
            continue
        token, place = following[step], length + step
        weight = by_length[place if place < LONGEST else LONGEST]
        total += weight
        if token in weights:
            weights[token] += weight
            agreeing[token].append(vote)
        else:
            weights[token] = weight
            agreeing[token] = [vote]
    if noise is not None and len(weights) > 1:
        weights = noise.speeds(weights, step)
        total = 1.0 + sum(weights.values())
    return [(token, log(weight / total), agreeing[token]) for token, weight in weights.items()]
