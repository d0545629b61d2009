"""Medusa's heads: at each position the target's last state, and one place behind it each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import MEDUSA
from paceline.drafters.networks.medusa.checkpoint import read_heads, write_heads
from paceline.drafters.networks.medusa.head import MedusaHeads, MedusaShape
from paceline_make.heads.kinds.base import Ground, HeadKind, begin_as
from paceline_make.heads.labels import Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective


class MedusaLesson(Lesson[MedusaHeads]):
    """Every head predicts the token at its place. It reads none of those before."""

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        return batch, iter(self.head(batch.states, self.unembed, batch.tokens.shape[1] - 1))


@dataclass(frozen=True, kw_only=True)
class MedusaKind(HeadKind[MedusaHeads]):
    """As many heads as tokens are learnt ahead."""

    method: ClassVar[str] = MEDUSA
    title: ClassVar[str] = "set of Medusa's heads"
    smaller: ClassVar[str] = "--output model, --rank, --kept, --blocks"

    blocks: int = 1
    own_output: bool = True
    rank: int = 0
    kept: int = 0

    def made(self, ground: Ground) -> MedusaHeads:
        return MedusaHeads(
            MedusaShape(
                width=ground.width,
                vocab_size=ground.target.vocab_size,
                heads=ground.ahead,
                blocks=self.blocks,
                tied=False,
                own_output=self.own_output,
                rank=self.rank,
                kept=self.kept,
            )
        )

    def blank(self, ground: Ground) -> MedusaHeads:
        """Heads begin as the target's own output, as published."""
        heads = self.drawn(ground)
        for head in heads if self.own_output else ():
            begin_as(list(head.children())[-1], ground.own_rows(heads))
        return heads

    def lesson(self, head: MedusaHeads, ground: Ground, objective: Objective) -> MedusaLesson:
        return MedusaLesson(head, ground.embedding, objective, ground.output)

    def write(self, folder: Path, head: MedusaHeads, about: Provenance) -> None:
        write_heads(folder, head, about)

    @staticmethod
    def read(folder: Path) -> MedusaHeads:
        return read_heads(folder)[0]

    def rows(self, head: MedusaHeads) -> list[tuple[str, str]]:
        shape = head.shape
        thin = f", rank {shape.rank}" if shape.rank else ""
        output = f"outputs of their own{thin}" if shape.own_output else "the model's output"
        return [("shape", f"{shape.heads} heads of {shape.blocks} blocks, width {shape.width}, {output}")]
