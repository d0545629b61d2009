"""Block heads (DFlash, DSpark): whole texts, of which they read the target's states of several layers, and blocks of
mask tokens behind anchors.

Each step draws other positions of a window. An anchor is the token that the model chose behind its position, and the
block predicts the model's own continuation. A Markov head (DSpark) is shown the true token before each place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from paceline.drafters.networks.block.checkpoint import read_block, write_block
from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.shape import BlockShape
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import BLOCK
from paceline.targets.base import Target
from paceline_make.heads.kinds.base import (
    ROPE,
    SPREAD,
    Ground,
    HeadKind,
    begin_as,
    layer_of,
    states_of,
)
from paceline_make.heads.labels import HeadReading, Labels
from paceline_make.heads.lesson import Lesson, Predictions
from paceline_make.heads.loss import Objective


class BlockLesson(Lesson[BlockHead]):
    """Predicts blocks behind some positions of each window, the same in all windows of a step."""

    anchors = 64
    """Positions of a window that are learnt in a step."""
    seed = 0

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        assert batch.text is not None, "it learns from whole windows"
        states, text, tokens = (part.unflatten(0, (-1, self.unit)) for part in (batch.states, batch.text, batch.tokens))
        chosen = self._chosen(number).to(text.device)
        rows = torch.arange(len(text), device=text.device)[:, None] * self.unit + chosen
        # a block reads the states of its position and those before it, and the model's own token behind them
        own = torch.cat([text[:, :1], tokens[:, :-1, 0]], dim=1)
        hidden = self.head(states, own, (chosen + 1).expand(len(text), -1), self.embed).flatten(0, 1)
        return batch.rows(rows.flatten()), self._predictions(hidden, batch.tokens[rows.flatten()])

    def _chosen(self, number: int) -> torch.Tensor:
        """Positions with one more behind them."""
        coins = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        count = self.unit - 1
        return torch.randperm(count, generator=coins)[: min(self.anchors, count)].sort().values

    def _predictions(self, hidden: torch.Tensor, tokens: torch.Tensor) -> Predictions:
        """Of the states ``[anchors, places, width]`` of blocks, behind which stand these tokens."""
        head = self.head
        for place in range(tokens.shape[1] - 1):
            logits = head.logits(hidden[:, place], self.unembed)
            if head.markov_head is not None:
                before = tokens[:, place : place + 1].clamp_min(0)
                logits = logits + head.markov_head(before, hidden[:, place : place + 1])[:, 0]
            yield logits


@dataclass(frozen=True, kw_only=True)
class BlockKind(HeadKind[BlockHead]):
    """A block head of this shape, for blocks of as many tokens as are learnt ahead."""

    method: ClassVar[str] = BLOCK
    title: ClassVar[str] = "block head"
    smaller: ClassVar[str] = "--output model, --layers, --units, --markov, --rank, --kept"

    states: tuple[int, ...] = ()
    """The target's states that it reads; empty for some from all over its layers."""
    layers: int = 2
    units: int | None = None
    """Of the MLPs; None for three times the width."""
    markov: int = 0
    """The rank of the bias by the token before (DSpark); 0 without one (DFlash)."""
    anchors: int = 64
    own_output: bool = False
    rank: int = 0
    kept: int = 0

    def fitted(self, target: Target) -> BlockKind:
        return self if self.states else replace(self, states=states_of(target))

    @property
    def reading(self) -> HeadReading:
        return HeadReading(self.states, whole=True)

    def made(self, ground: Ground) -> BlockHead:
        spark = self.markov > 0
        return BlockHead(
            BlockShape(
                layer=layer_of(ground.width, self.units, head_norms=True),
                vocab_size=ground.target.vocab_size,
                block=ground.ahead + (not spark),
                mask_token=ground.rarest,
                states=self.states,
                windows=(None,) * self.layers,
                causal=(False,) * self.layers,
                from_anchor=spark,
                target_layers=ground.target.layers,
                rope=ROPE,
                own_output=self.own_output,
                rank=self.rank,
                kept=self.kept,
                markov_rank=self.markov,
            )
        )

    def blank(self, ground: Ground) -> BlockHead:
        """Layers begin at random and not as nothing: a block reads the text through their attention alone, and nothing
        would be learnt of it in the first steps."""
        head = self.drawn(ground)
        if head.lm_head is not None:
            begin_as(head.lm_head, ground.own_rows(head))
        for module in (head.fc, *head.layers.modules()):
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=SPREAD)
        if head.markov_head is not None:
            torch.nn.init.zeros_(head.markov_head.markov_w2.weight)
        return head

    def lesson(self, head: BlockHead, ground: Ground, objective: Objective) -> BlockLesson:
        lesson = BlockLesson(head, ground.embedding, objective, ground.output)
        lesson.anchors, lesson.seed = self.anchors, ground.seed
        return lesson

    def write(self, folder: Path, head: BlockHead, about: Provenance) -> None:
        write_block(folder, head, about)

    @staticmethod
    def read(folder: Path) -> BlockHead:
        return read_block(folder)[0]

    def rows(self, head: BlockHead) -> list[tuple[str, str]]:
        shape = head.shape
        thin = f", rank {shape.rank}" if shape.rank else ""
        output = f"an output of its own{thin}" if shape.own_output else "the model's output"
        markov = f", a Markov head of rank {shape.markov_rank}" if shape.markov_rank else ""
        layers = f"{shape.layers} layers, width {shape.width}, MLP {shape.layer.units}, {output}{markov}"
        return [
            ("shape", f"blocks of {shape.places} tokens, {layers}"),
            ("reads", f"the states {', '.join(map(str, self.states))} of the model"),
        ]
