"""Which recurrent head drafts for a model: one in a folder, or the one that comes with the package."""

from __future__ import annotations

from pathlib import Path

from paceline.drafters.networks.fitting import FittedHead, HeadFacts, fitted_head
from paceline.drafters.networks.redrafter.checkpoint import read_head
from paceline.drafters.networks.redrafter.head import RecurrentHead, widened
from paceline.targets.base import Target

__all__ = ["FittedHead", "head_for"]


def head_for(named: str | Path, target: Target) -> FittedHead[RecurrentHead]:
    """The head for a target, read once in a process."""

    def read(folder: Path) -> tuple[RecurrentHead, HeadFacts]:
        head, config = read_head(folder)
        shape = head.shape
        facts = HeadFacts(
            width=shape.width,
            vocab_size=shape.vocab_size,
            target=config.target,
            target_name=config.target_name,
            noise=config.noise,
        )
        return head, facts

    return fitted_head(named, target, "redrafter", read, widened)
