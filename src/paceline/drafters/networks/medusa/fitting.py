"""Which heads draft for a model: those in a folder, or those that come with the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from paceline.drafters.networks.fitting import FittedHead, fitted_head
from paceline.drafters.networks.heads import MEDUSA
from paceline.drafters.networks.medusa.checkpoint import read_heads
from paceline.drafters.networks.medusa.head import MedusaHeads
from paceline.drafters.networks.residual import transplant
from paceline.targets.base import Target


def heads_for(named: str | Path, target: Target) -> FittedHead[MedusaHeads]:
    """The heads for a target, read once in a process."""
    return fitted_head(named, target, MEDUSA, read_heads, widened)


def widened(heads: MedusaHeads, ratio: int) -> MedusaHeads:
    """The same function for a target with ballast, whose channels are the small target's and then inert ones, at the
    cost of heads of that width."""
    small = heads.shape
    made = MedusaHeads(replace(small, width=small.width * ratio, rank=small.rank * ratio))
    real, thin, known = map(torch.arange, (small.width, small.rank, small.known))
    places = {"linear": (real, real), "": (known, real), "0": (thin, real), "1": (known, thin)}

    def place(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        _, _, *layer = name.split(".")
        return places[".".join(layer)]

    transplant(heads.state_dict(), made, place)
    made.token_ids = heads.token_ids
    return made
