"""Recurrent heads, for the method `redrafter`: at each position the target's last state, and token after token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import REDRAFTER
from paceline.drafters.networks.redrafter.checkpoint import read_head, write_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline_make.heads.kinds.base import SPREAD, Ground, HeadKind, begin_as
from paceline_make.heads.labels import Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective


class RecurrentLesson(Lesson[RecurrentHead]):
    """Predicts the tokens behind each position, one step after the other, along the labels' own tokens."""

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        return batch, self._predictions(batch)

    def _predictions(self, batch: Labels) -> Predictions:
        steps = batch.tokens.shape[1] - 1
        embedded = self.embed(batch.tokens[:, :steps])
        state = self.head.first(embedded[:, 0])
        for step in range(steps):
            state = self.head.next(state, embedded[:, step]) if step else state
            yield self.head.logits(batch.states, state)


@dataclass(frozen=True, kw_only=True)
class RecurrentKind(HeadKind[RecurrentHead]):
    """A recurrent head of this shape."""

    method: ClassVar[str] = REDRAFTER
    title: ClassVar[str] = "recurrent head"
    smaller: ClassVar[str] = "--exit, --blocks, --rank, --kept"

    exit: int | None = None
    """The width of the blocks; None for the model's own width."""
    blocks: int = 2
    rank: int = 0
    kept: int = 0
    recurrent: bool = True

    def shape(self, ground: Ground) -> HeadShape:
        return HeadShape(
            width=ground.width,
            vocab_size=ground.target.vocab_size,
            exit=self.exit or ground.width,
            blocks=self.blocks,
            recurrent=self.recurrent,
            rank=self.rank,
            kept=self.kept,
        )

    def output_width(self, head: RecurrentHead) -> int:
        return head.shape.exit

    def made(self, ground: Ground) -> RecurrentHead:
        return RecurrentHead(self.shape(ground))

    def blank(self, ground: Ground) -> RecurrentHead:
        """An output of the model's width begins as the model's own."""
        head, shape = self.drawn(ground), self.shape(ground)
        with torch.no_grad():
            for weight in head.parameters():
                if weight.ndim == 2:
                    weight.normal_(0, SPREAD if weight.shape[0] == shape.known else weight.shape[1] ** -0.5)
                else:
                    weight.zero_()
        if not shape.rank and shape.exit == shape.width:  # what states mean is known then
            begin_as(head.lm_head[shape.blocks], ground.own_rows(head))
        return head

    def lesson(self, head: RecurrentHead, ground: Ground, objective: Objective) -> RecurrentLesson:
        return RecurrentLesson(head, ground.embedding, objective)

    def write(self, folder: Path, head: RecurrentHead, about: Provenance) -> None:
        write_head(folder, head, about)

    @staticmethod
    def read(folder: Path) -> RecurrentHead:
        return read_head(folder)[0]

    def rows(self, head: RecurrentHead) -> list[tuple[str, str]]:
        shape = head.shape
        recurrent, thin = "recurrent" if shape.recurrent else "cumulative", f", rank {shape.rank}" if shape.rank else ""
        return [
            ("shape", f"width {shape.width}, exit {shape.exit}, {shape.blocks} blocks, {recurrent}{thin}"),
            ("tokens it knows", f"{shape.known:,} of {shape.vocab_size:,}"),
        ]
