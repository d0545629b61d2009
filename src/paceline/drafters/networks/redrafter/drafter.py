"""Drafts by a small recurrent head on the target's last hidden state, as beams that share their beginnings.

Three things differ from ReDrafter. Candidates are ranked by probability / shared noise, so drafts guess samples. All
choices of the search become the draft, not only those of the last beams. And the text is exact at every temperature.
``noise=none`` and ``keep=beams`` are the paper's forms. If ``noise`` is not given, the head's configuration decides:
after a short training the likeliest tokens alone may be the better guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from paceline.drafters.networks.beams import BeamDrafter, HeadState
from paceline.drafters.networks.heads import SHIPPED
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.vocabulary import Vocabulary

__all__ = ["HeadState", "ReDrafter"]

KEEP = ("all", "beams")


class ReDrafter(BeamDrafter):
    """A head and the shape of its beams. The head is read when a target is known."""

    name = "redrafter"
    summary = "a small trained head on the model's last state drafts beams, which share their beginnings"
    source = "ReDrafter (recurrent drafter with dynamic tree attention); public noise after Daliri 2024"
    requires = "a head trained for the model: head=FOLDER, or the one that comes with paceline for bundled models"
    skips = True
    unfit = "a model for which no head was trained, and text unlike that of the training"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"noise": "none", "keep": "beams", "width": 50, "length": 4}}
    )

    def __init__(
        self,
        *,
        head: str | Path = SHIPPED,
        width: int = 4,
        length: int = 4,
        noise: str | None = None,
        keep: str = "all",
    ) -> None:
        super().__init__(width, length, noise)
        if keep not in KEEP:
            raise InputError(f"redrafter takes keep={' or keep='.join(KEEP)}, not {keep!r}")
        self.keep, self.whole_beams = keep, keep == "beams"
        self._named = head

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        from paceline.drafters.networks.redrafter.fitting import head_for

        self.use(head_for(self._named, target), target, target.layers)
