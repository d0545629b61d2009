"""Drafts of which a network computes all places at once: the best candidates of every place, in one copy to the host.

A place has its own law of tokens, apart from the places before it (Medusa, DFlash); or what its candidates weigh also
depends on the token before them (DSpark, DFlash2), which is known for all pairs beforehand. So a level of a draft only
reads them: no forward, no copy, and no row as wide as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.drafters.networks.growth import Growth
from paceline.law import Distribution
from paceline.law.contenders import DEVICES
from paceline.law.device_rows import BLOCK_TOKENS
from paceline.law.scores import HOST_DEVICE
from paceline.tree import Ints

CANDIDATES = 64
"""Tokens of a place that settings and noise choose from."""


class Marginals:
    """The candidates of one draft: their target ids ``[places, candidates]``, ascending, and their logits.

    ``gains`` ``[places, before, candidates]`` are what is added to the logits behind each candidate of the place
    before; those of the first place are all the same, for it follows the text. ``trust`` ``[places, before]`` are
    logarithms of the chance that the best candidate is accepted, where the network predicts that.
    """

    def __init__(
        self,
        ids: NDArray[Any],
        logits: NDArray[Any],
        gains: NDArray[Any] | None = None,
        trust: NDArray[Any] | None = None,
    ) -> None:
        self._ids, self._logits = ids.astype(np.int64), logits.astype(np.float64)
        self._gains, self._trust = gains, trust

    def laws(self, growth: Growth) -> list[Distribution]:
        """The laws behind the nodes of a draft that go on; nodes with one law share the object."""
        place = growth.level
        if self._trust is not None:
            growth.trust = self._trust[place, self._before(growth)]
        rows, gained = self._logits[place : place + 1], self.gained(growth)
        if gained is not None:
            rows = rows + gained
        found: list[Distribution] = growth.state.among(self._ids[place], rows, growth.texts)
        return found

    def gained(self, growth: Growth) -> NDArray[Any] | None:
        """What is added to the logits behind each node that goes on."""
        return None if self._gains is None else self._gains[growth.level, self._before(growth)]

    def _before(self, growth: Growth) -> Ints:
        """For each node that goes on, which candidate of the place before it is."""
        if growth.level == 0:
            return np.zeros(1, np.int64)
        found: Ints = np.searchsorted(self._ids[growth.level - 1], growth.tokens)
        return found


def best_tokens(
    logits: torch.Tensor, count: int = CANDIDATES, ids: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The target's ids of the best tokens of each row of logits ``[..., columns]``, ascending, and their logits and
    columns, ``[..., count]`` each. ``ids`` are the target's ids of the columns, if these are others."""
    best, columns = _best(logits, min(count, logits.shape[-1]))
    tokens, order = (columns if ids is None else ids[columns]).sort(dim=-1)
    return tokens, best.gather(-1, order), columns.gather(-1, order)


def _best(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `torch.topk`. The best tokens are in as many blocks, those with the greatest maxima: finding the maxima is one
    pass over a row, several times as fast as sorting it."""
    size = logits.shape[-1]
    if size < 4 * count * BLOCK_TOKENS:
        return logits.topk(count, dim=-1, sorted=False)
    whole = size // BLOCK_TOKENS * BLOCK_TOKENS
    blocks = logits[..., :whole].unflatten(-1, (-1, BLOCK_TOKENS))
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices
    columns = chosen[..., None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=logits.device)
    rest = torch.arange(whole, size, device=logits.device).expand(*logits.shape[:-1], -1)
    columns = torch.cat([columns.flatten(-2), rest], dim=-1)
    best, at = logits.gather(-1, columns).topk(count, dim=-1, sorted=False)
    return best, columns.gather(-1, at)


def on_host(tensors: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
    """Tensors that begin with the same dimension on the host, in one copy; numpy has no bfloat16."""
    first = tensors[0]
    if first.device.type == HOST_DEVICE:
        return [(each.float() if each.is_floating_point() else each).numpy(force=True) for each in tensors]
    kind = torch.float64 if first.device.type in DEVICES else torch.float32  # which holds all ids, too
    packed = torch.cat([each.flatten(1).to(kind) for each in tensors], dim=1).numpy(force=True)
    parts = np.split(packed, np.cumsum([each[0].numel() for each in tensors])[:-1], axis=1)
    return [part.reshape(each.shape) for part, each in zip(parts, tensors, strict=True)]
