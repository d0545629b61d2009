"""Hydra's heads: at each position the target's last state and the tokens before the predicted one. With a prefix layer
(Hydra++) the state is one of the whole text before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import HYDRA
from paceline.drafters.networks.hydra.checkpoint import read_heads, write_heads
from paceline.drafters.networks.hydra.head import HydraHeads, HydraShape
from paceline.drafters.networks.hydra.prefix import PrefixShape
from paceline_make.heads.kinds.base import Ground, HeadKind, begin_as, key_heads_of
from paceline_make.heads.labels import HeadReading, Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective


class HydraLesson(Lesson[HydraHeads]):
    """Every head predicts its token behind the labels' tokens before it."""

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        states, steps = batch.states, batch.tokens.shape[1] - 1
        if batch.text is not None:
            states = self.head.prefixed(states.unflatten(0, (-1, self.unit))).flatten(0, 1)
        return batch, iter(self.head(states, self.embed(batch.tokens[:, :steps])))


@dataclass(frozen=True, kw_only=True)
class HydraKind(HeadKind[HydraHeads]):
    """As many heads as tokens are learnt ahead."""

    method: ClassVar[str] = HYDRA
    title: ClassVar[str] = "set of Hydra's heads"
    smaller: ClassVar[str] = "--rank, --kept, --blocks"

    blocks: int = 1
    prefix: bool = False
    units: int | None = None
    """Of the prefix layer's MLP; None for three times the width."""
    rank: int = 0
    kept: int = 0

    @property
    def reading(self) -> HeadReading:
        return HeadReading(whole=self.prefix)

    def made(self, ground: Ground) -> HydraHeads:
        width = ground.width
        heads, shared = key_heads_of(width)
        prefix = PrefixShape(heads=heads, key_heads=shared, head_width=width // heads, units=self.units or 3 * width)
        return HydraHeads(
            HydraShape(
                width=width,
                vocab_size=ground.target.vocab_size,
                heads=ground.ahead,
                blocks=self.blocks,
                prefix=prefix if self.prefix else None,
                rank=self.rank,
                kept=self.kept,
            )
        )

    def blank(self, ground: Ground) -> HydraHeads:
        """Heads begin as the target's own output, as published, of the state alone."""
        head = self.drawn(ground)
        outputs: Any = head.hydra_lm_head
        for output in outputs:
            begin_as(output[1] if self.prefix else output, ground.own_rows(head))
        return head

    def lesson(self, head: HydraHeads, ground: Ground, objective: Objective) -> HydraLesson:
        return HydraLesson(head, ground.embedding, objective)

    def write(self, folder: Path, head: HydraHeads, about: Provenance) -> None:
        write_heads(folder, head, about)

    @staticmethod
    def read(folder: Path) -> HydraHeads:
        return read_heads(folder)[0]

    def rows(self, head: HydraHeads) -> list[tuple[str, str]]:
        shape = head.shape
        thin, prefix = f", rank {shape.rank}" if shape.rank else "", ", a prefix layer" if shape.prefix else ""
        return [("shape", f"{shape.heads} heads of {shape.blocks} blocks, width {shape.width}{thin}{prefix}")]
