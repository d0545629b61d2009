"""A lesson: what a head reads at positions of a text, and what it predicts there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import nn

from paceline_make.heads.labels import NOTHING, Labels
from paceline_make.heads.loss import Laws, Learnt, Objective, surprise

Head = TypeVar("Head", bound=nn.Module)
Predictions = Iterator[torch.Tensor]
"""Logits ``[positions, tokens that the head knows]`` of one step ahead after the other."""


class Lesson(ABC, Generic[Head]):
    """Lets a head predict the tokens behind positions, and compares them with the labels."""

    unit = 1
    """So many positions are learnt together: whole windows, by a head that attends to the text."""

    def __init__(
        self,
        head: Head,
        embedding: torch.Tensor,
        known: torch.Tensor | None = None,
        objective: Objective | None = None,
    ) -> None:
        """``embedding`` is the target's input embedding ``[ids, width]``; it is not trained. ``known`` are the target's
        tokens whose logits the head gives, None for all."""
        self.head, self.embedding = head, embedding
        self.objective = Objective() if objective is None else objective
        size = len(embedding)
        columns = torch.arange(size) if known is None else known.cpu()
        self._columns = torch.full((size + 1,), NOTHING)
        self._columns[columns] = torch.arange(len(columns))  # the last place is that of no label
        self._columns = self._columns.to(embedding.device)

    @abstractmethod
    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        """The labels that are learnt in the step of this number, all of the batch or some, and the predictions."""

    def learn(self, batch: Labels, number: int = 0) -> Learnt:
        labels, predictions = self.predict(batch, number)
        losses, right = list[torch.Tensor](), list[torch.Tensor]()
        for step, found in enumerate(predictions):
            logits = found.float()
            columns = self._columns[labels.tokens[:, step + 1].clamp_min(-1)]
            losses.append(self._loss(logits, columns, labels, step))
            right.append((logits.detach().argmax(dim=-1) == columns) & (columns != NOTHING))
        counted = labels.tokens[:, 1 : len(losses) + 1] != NOTHING
        weights = self.objective.weights(len(losses), self.embedding.device)
        return Learnt((torch.stack(losses) * weights).mean(), torch.stack(right, dim=1), counted)

    def _loss(self, logits: torch.Tensor, columns: torch.Tensor, labels: Labels, step: int) -> torch.Tensor:
        """Of one step, a sum over the positions divided by their number, so that parts of a batch add up."""
        if labels.law_ids is None or labels.law_logs is None:
            return surprise(logits, columns)
        counted = labels.tokens[:, step + 1] != NOTHING
        laws = Laws.of(logits, self._columns[labels.law_ids[:, step]], labels.law_logs[:, step])
        return (laws.losses(self.objective.loss) * counted).sum() / len(logits)
