"""Medusa's heads as a network: the candidates of all places are computed at once, for all texts together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.drafters.networks.fitting import place_of
from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.marginals import Marginals, best_tokens, on_host
from paceline.drafters.networks.medusa.head import MedusaHeads
from paceline.drafters.networks.network import Network
from paceline.drafters.networks.reading import DRAFT_FORWARDS
from paceline.law import Distribution
from paceline.targets.base import Target


class MedusaNetwork(Network):
    """Heads beside their target."""

    def __init__(self, heads: MedusaHeads, target: Target) -> None:
        self.heads, self._target = heads, target
        kinds = (weight.dtype for weight in heads.parameters())
        self._type = next(kinds, torch.float32)  # none is left where all are matrices of integers
        if not heads.shape.own_output:  # a target without an output is refused before any text
            target.unembed(torch.zeros(1, heads.shape.width, dtype=self._type, device=place_of(target)))

    def begin(self, growths: Sequence[Growth]) -> None:
        """Compute the candidates of all places, and copy them to the host at once."""
        hidden = torch.stack([growth.state.last.hidden for growth in growths]).to(self._type)
        depth = max(growth.depth for growth in growths)

        def logits(hidden: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.heads(hidden, self._target.unembed, depth)
            return found.float().transpose(0, 1)

        with torch.inference_mode():
            found = self._target.played((id(self.heads), depth, len(growths)), logits, [hidden])
            ids, best, _ = best_tokens(found, ids=self.heads.token_ids)
            texts = zip(growths, *on_host([ids, best]), strict=True)
        for growth, own, rows in texts:
            growth.state.tally.add(DRAFT_FORWARDS)
            growth.kept = Marginals(own, rows)

    def level(self, growths: Sequence[Growth]) -> Sequence[Sequence[Distribution]]:
        return [growth.kept.laws(growth) for growth in growths]
