"""Heads of EAGLE-3: whole texts, the target's states of several layers, and in drafts the head's own outputs.

Rows of the text are read from its tokens, each beside the target's state of the token before. From each row hangs a
draft along the model's own continuation there, a token longer with each step. Its rows see those of the text before
them and those of the draft above. That is the training-time test of the paper: keys of the text are causal, of later
steps each row sees its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.eagle.checkpoint import read_head, write_head
from paceline.drafters.networks.eagle.head import EAGLE3, EagleHead, EagleShape
from paceline.drafters.networks.heads import EAGLE
from paceline.drafters.networks.layers import WindowRows
from paceline.drafters.networks.rotary import Rotary
from paceline.targets.base import Target
from paceline_make.heads.kinds.base import (
    ROPE,
    Ground,
    HeadKind,
    begin_as,
    begin_layers,
    layer_of,
    states_of,
)
from paceline_make.heads.labels import HeadReading, Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective


class EagleLesson(Lesson[EagleHead]):
    """Predicts behind every position of a window on its own outputs."""

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        assert batch.text is not None, "it learns from whole windows"
        windows = (-1, self.unit)
        return batch, self._predictions(
            *(part.unflatten(0, windows) for part in (batch.states, batch.text, batch.tokens))
        )

    def _predictions(self, states: torch.Tensor, text: torch.Tensor, tokens: torch.Tensor) -> Predictions:
        """Of windows of states ``[windows, positions, ...]``, tokens of the text, and tokens that follow."""
        head, rows = self.head, WindowRows()
        places = torch.arange(self.unit, device=text.device)
        before = places[:, None] > places
        own, seen = torch.eye(self.unit, dtype=torch.bool, device=text.device), [before]
        given = taken = head.taken(states)
        embedded = head.embedded(text.roll(-1, dims=1), self.embed)  # the last row is of no text, and nothing sees it
        head(embedded, taken, places, rows.step(before | own))
        for step in range(tokens.shape[2] - 1):
            seen.append(own)
            embedded = head.embedded(tokens[:, :, step].clamp_min(0), self.embed)
            given, read = head(embedded, given, places + step, rows.step(torch.cat(seen, dim=1)))
            yield head.logits(read.flatten(0, 1), self.unembed)


@dataclass(frozen=True, kw_only=True)
class EagleKind(HeadKind[EagleHead]):
    """A head of EAGLE-3 of this shape."""

    method: ClassVar[str] = EAGLE
    title: ClassVar[str] = "head of EAGLE-3"
    smaller: ClassVar[str] = "--output model, --units, --rank, --kept"

    states: tuple[int, ...] = ()
    """The target's states that it reads; empty for some from all over its layers."""
    units: int | None = None
    """Of the MLP; None for three times the width."""
    own_output: bool = False
    rank: int = 0
    kept: int = 0

    def fitted(self, target: Target) -> EagleKind:
        return self if self.states else replace(self, states=states_of(target))

    @property
    def reading(self) -> HeadReading:
        return HeadReading(self.states, whole=True)

    def made(self, ground: Ground) -> EagleHead:
        width = ground.width
        shape = EagleShape(
            form=EAGLE3,
            layer=layer_of(width, self.units),
            vocab_size=ground.target.vocab_size,
            state_width=width,
            aux=len(self.states),
            own_output=self.own_output,
            rank=self.rank,
            kept=self.kept,
        )
        return EagleHead(shape, Rotary.of(ROPE, shape.layer.head_size))

    def blank(self, ground: Ground) -> EagleHead:
        head = self.drawn(ground)
        if self.own_output:
            begin_as(head.lm_head, ground.own_rows(head))
        begin_layers(head, ground, self.states)
        return head

    def lesson(self, head: EagleHead, ground: Ground, objective: Objective) -> EagleLesson:
        return EagleLesson(head, ground.embedding, objective, ground.output)

    def write(self, folder: Path, head: EagleHead, about: Provenance) -> None:
        write_head(folder, head, ROPE, about, layer_ids=self.states)

    @staticmethod
    def read(folder: Path) -> EagleHead:
        return read_head(folder)[0]

    def rows(self, head: EagleHead) -> list[tuple[str, str]]:
        shape = head.shape
        thin = f", rank {shape.rank}" if shape.rank else ""
        output = f"an output of its own{thin}" if shape.own_output else "the model's output"
        layer = f"{shape.layers} layer, width {shape.width}, MLP {shape.layer.units}, {output}"
        return [("shape", layer), ("reads", f"the states {', '.join(map(str, self.states))} of the model")]
