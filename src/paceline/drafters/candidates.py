"""Candidates for drafts, level by level, and trees of those that are chosen.

A call of numpy takes longer than its computation on the few dozen candidates of one text. So the candidates of all
texts that draft together are in one array, each with the number of its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.dictionary.keys import starts
from paceline.drafters.noise import Chances, Ids
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Floats, Ints

ONE_TEXT: Ints = np.empty(0, np.int64)


class Candidates(NamedTuple):
    """The candidates of one depth."""

    tokens: Ids
    odds: Chances
    """Each candidate's probability after its parent."""
    worth: Floats
    """The probability of its path, or another value by which candidates are chosen."""
    parents: Ints
    """Counted through all levels."""
    texts: Ints = ONE_TEXT
    """The number of each one's text, where several draft together."""

    def only(self, kept: Bools) -> Candidates:
        return Candidates(self.tokens[kept], self.odds[kept], self.worth[kept], self.parents[kept], self.texts[kept])


def added(texts: Ints, ids: Ids, weights: Chances) -> tuple[Ints, Ints, Floats]:
    """Every token of a text once, with the sum of its weights; texts and their tokens ascend."""
    several = bool(texts[-1])
    keys, span = ids.astype(np.int64), int(ids.max()) + 1 if several else 0
    if several:
        keys += texts * span
    order = keys.argsort(kind="stable")
    keys = keys[order]
    fresh = starts(keys)
    keys, sums = keys[fresh], np.add.reduceat(weights[order], fresh)
    return (keys // span, keys % span, sums) if several else (texts[: len(keys)], keys, sums)


def best_of(worth: Floats, count: int) -> Ints:
    """The places of the ``count`` worthiest, in no order."""
    if count >= len(worth):
        return np.arange(len(worth))
    return (-worth).argpartition(count - 1)[:count]


def worth_of(levels: Sequence[Candidates]) -> Floats:
    """The worth of all candidates."""
    return np.concatenate([level.worth for level in levels])


def renumbered(parents: Ints, chosen: Ints) -> Ints:
    """The parents of the chosen nodes, which ascend and have theirs among them, counted in the chosen ones."""
    place = np.empty(len(parents) + 1, np.int64)
    place[chosen] = np.arange(len(chosen))
    place[-1] = ROOT
    return place[parents[chosen]]


def tree_of(levels: Sequence[Candidates], chosen: Ints, sources: tuple[str, ...]) -> DraftTree:
    """The chosen candidates of one text, which ascend and have their parents among them."""
    tokens = np.concatenate([level.tokens for level in levels])[chosen]
    odds = np.concatenate([level.odds for level in levels])[chosen]
    parents = renumbered(np.concatenate([level.parents for level in levels]), chosen)
    return DraftTree(tokens.astype(np.int64), parents, np.fmin(np.log(odds, dtype=np.float64), 0.0), sources)


def trees_of(levels: Sequence[Candidates], nodes: Sequence[int], source: str) -> list[DraftTree]:
    """The worthiest candidates of each text, as many as its number of ``nodes``. Worth falls from parent to child."""
    if len(nodes) == 1:
        chosen = best_of(worth_of(levels), nodes[0])
        chosen.sort()
        return [tree_of(levels, chosen, (source,) * len(chosen)) if len(chosen) else EMPTY]
    tokens, odds, worth, parents, texts = map(np.concatenate, zip(*levels, strict=True))
    several = _worthiest(texts, worth, nodes)
    place = np.empty(len(texts) + 1, np.int64)
    place[-1] = ROOT
    for own in several:
        place[own] = np.arange(len(own))
    whole = np.concatenate(several)
    tokens, parents = tokens[whole], place[parents[whole]]
    scores = np.fmin(np.log(odds[whole]), 0.0)
    trees, start = [], 0
    for own in several:
        part = slice(start, start + len(own))
        start = part.stop
        trees.append(DraftTree(tokens[part], parents[part], scores[part], (source,) * len(own)) if len(own) else EMPTY)
    return trees


def _worthiest(texts: Ints, worth: Floats, nodes: Sequence[int]) -> list[Ints]:
    """The places of the worthiest candidates of each text, ascending."""
    order = texts.argsort(kind="stable")
    bounds = texts[order].searchsorted(np.arange(len(nodes) + 1)).tolist()
    found = []
    for count, start, end in zip(nodes, bounds, bounds[1:], strict=False):
        own = order[start:end]
        chosen = own[best_of(worth[own], count)]
        chosen.sort()
        found.append(chosen)
    return found
