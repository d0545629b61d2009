"""From an early exit: the target's possible choices behind each node in flight, and the outcomes that are worth a
window.

An outcome is a node at which the walk stops, and the token that is emitted there instead of the node's children. Its
chance is that of the walk to reach the node, times that to stop there, times that of the token. Half-way through its
layers a target is less certain than at the end, so the chance of a drafted token is the larger of two: the exit's, and
the draft model's own.

In the paper the proxies of a node are simply the best tokens of the exit there. A drafted child may be one of them: no
walk stops with it, but one that goes on from it may end inside of the window behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.context import Context
from paceline.drafters.noise import TINIEST, SharedNoise, foremost
from paceline.law import Outlook
from paceline.tree import ROOT, DraftTree, Floats, Ints

if TYPE_CHECKING:
    import torch

CANDIDATES = 64
"""The best tokens of an early row, which come to the host. Settings and noise choose the proxies among them."""


SUREST = 0.98
"""No drafted token is surer than that, so that stopping before it keeps a chance."""


class Outcomes(NamedTuple):
    """Likeliest first: the node that the walk stops at, the token there, and its chance."""

    stops: Ints
    proxies: Ints
    chances: Floats

    def __len__(self) -> int:
        return len(self.stops)

    def first(self, count: int | None) -> Outcomes:
        return Outcomes(self.stops[:count], self.proxies[:count], self.chances[:count])


def outcomes(
    logits: torch.Tensor,
    tree: DraftTree,
    context: Context,
    outlook: Outlook,
    *,
    kappa: int,
    shared: bool,
    drafted: bool = False,
) -> Outcomes:
    """Of the early rows ``[1 + nodes, vocabulary]`` of a root and its tree, ``kappa`` proxies each. With ``drafted``
    tokens these are the best of all, as in the paper, else the best of those that are not drafted there; the chance of
    a drafted one is that of the walk to go on with it."""
    reached = np.zeros(1 + len(tree))
    reached[0] = 1.0
    found: list[tuple[float, int, int]] = []
    for node, (ids, logs) in enumerate(choices(logits, tree, context, outlook, shared=shared), start=ROOT):
        children = tree.children(node)
        inside = np.isin(ids, tree.tokens[children])
        early = dict(zip(ids[inside].tolist(), np.exp(logs[inside]).tolist(), strict=True))
        going = [
            min(SUREST, max(early.get(token, 0.0), own))
            for token, own in zip(tree.tokens[children].tolist(), np.exp(tree.scores[children]).tolist(), strict=True)
        ]
        shrink = min(1.0, SUREST / max(sum(going), TINIEST))
        reached[children + 1] = [reached[node + 1] * chance * shrink for chance in going]
        stays = reached[node + 1] - reached[children + 1].sum()
        others, chances = ids[~inside], np.exp(logs[~inside])
        chances = stays * chances / max(float(chances.sum()), TINIEST)
        ends = context.ending.eos
        pairs = list(zip(others.tolist(), chances.tolist(), strict=True))
        if drafted:
            pairs += zip(tree.tokens[children].tolist(), reached[children + 1].tolist(), strict=True)
            best = set(ids[:kappa].tolist())
            pairs = [pair for pair in pairs if pair[0] in best]
        found += ((chance, node, token) for token, chance in pairs[:kappa] if token not in ends)
    found.sort(key=lambda each: -each[0])
    likelihood, stops, proxies = zip(*found, strict=True) if found else ((), (), ())
    return Outcomes(np.array(stops, np.int64), np.array(proxies, np.int64), np.array(likelihood, np.float64))


def choices(
    logits: torch.Tensor, tree: DraftTree, context: Context, outlook: Outlook, *, shared: bool
) -> Iterator[tuple[Ints, Floats]]:
    """The likely choices of the target behind the root and each node, best first, with their log-probabilities."""
    best, columns = (part.cpu().numpy() for part in _best(logits))
    for row, node in enumerate(range(ROOT, len(tree))):
        text = context.extended(tree.tokens[tree.path(node)])
        law = outlook.over(columns[row], best[row], logits.shape[1], text.tokens)
        noise = SharedNoise.of(text, shared)
        yield foremost(law, len(law.ids), None if noise is None else noise.exponentials(0, law.ids))


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best candidates of each row, in order of their ids."""
    values, ids = logits.float().topk(min(CANDIDATES, logits.shape[1]), dim=-1)
    ids, order = ids.sort(dim=-1)
    return values.gather(1, order).double(), ids
