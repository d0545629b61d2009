"""From an early exit: what the target may choose behind each node in flight, and which outcomes are worth a window.

An outcome is a node at which the walk stops, and the token that is emitted there instead of the node's children. Its
chance is that of the walk to reach the node, times that of the token, both by the laws of the early exit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from paceline.context import Context
from paceline.drafters.noise import SharedNoise, foremost
from paceline.law import Outlook
from paceline.tree import DraftTree, Floats, Ints

CANDIDATES = 64
"""The best tokens of an early row, which come to the host. Settings and noise choose the proxies among them."""


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
    logits: torch.Tensor, tree: DraftTree, context: Context, outlook: Outlook, *, kappa: int, shared: bool
) -> Outcomes:
    """Of the early rows ``[1 + nodes, vocabulary]`` of a root and its tree, ``kappa`` proxies each."""
    best, columns = (part.cpu().numpy() for part in _best(logits))
    reached = np.zeros(1 + len(tree))
    reached[0] = 1.0
    found: list[tuple[float, int, int]] = []
    for row, node in enumerate(range(-1, len(tree))):
        if not reached[row]:
            continue
        text = context.extended(tree.tokens[tree.path(node)])
        law = outlook.over(columns[row], best[row], logits.shape[1], text.tokens)
        noise = SharedNoise.of(text, shared)
        ids, scores = foremost(law, len(law.ids), None if noise is None else noise.exponentials(0, law.ids))
        chance = dict(zip(ids.tolist(), (reached[row] * np.exp(scores)).tolist(), strict=True))
        children = tree.children(node)
        for child, token in zip(children.tolist(), tree.tokens[children].tolist(), strict=True):
            reached[child + 1] = chance.get(token, 0.0)
        left_out = {*tree.tokens[children].tolist(), *context.ending.eos}
        found += ((chance[token], node, token) for token in ids[:kappa].tolist() if token not in left_out)
    found.sort(key=lambda each: -each[0])
    chances, stops, proxies = zip(*found, strict=True) if found else ((), (), ())
    return Outcomes(np.array(stops, np.int64), np.array(proxies, np.int64), np.array(chances, np.float64))


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best candidates of each row, in order of their ids."""
    values, ids = logits.float().topk(min(CANDIDATES, logits.shape[1]), dim=-1)
    ids, order = ids.sort(dim=-1)
    return values.gather(1, order).double(), ids
