"""A lesson: what a head reads at positions of a text, and what it predicts there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
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
    first = 1
    """The first of the tokens that follow a position, from 0, that is predicted: behind the one that the model has
    chosen, unless the model itself learns."""
    temperature = 1.0
    """Of the labels, for rows whose logits are divided by the temperature of a draft. Those of heads are not: they
    learn the law itself."""

    def __init__(
        self,
        head: Head,
        embedding: torch.Tensor,
        objective: Objective | None = None,
        output: torch.Tensor | None = None,
    ) -> None:
        """``embedding`` and ``output`` are the target's matrices ``[ids, width]``, which are not trained."""
        self.head, self.embedding = head, embedding
        self._output = embedding if output is None else output.to(embedding.device)
        self.objective = Objective() if objective is None else objective
        known = known_tokens(head)
        self._columns = torch.full((max(len(embedding), int(known.max()) + 1) + 1,), NOTHING)
        self._columns[known] = torch.arange(len(known))  # the last place is that of no label
        self._columns = self._columns.to(embedding.device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's input embeddings of labels; any where nothing is to learn."""
        return F.embedding(tokens.clamp_min(0), self.embedding)

    def unembed(self, states: torch.Tensor) -> torch.Tensor:
        """The target's logits of states, for heads without an output matrix."""
        return F.linear(states, self._output)

    @abstractmethod
    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        """The labels that are learnt in the step of this number, all of the batch or some, and the predictions."""

    def learn(self, batch: Labels, number: int = 0) -> Learnt:
        labels, predictions = self.predict(batch, number)
        losses, right = list[torch.Tensor](), list[torch.Tensor]()
        for step, found in enumerate(predictions):
            logits = found.float() / self.temperature
            columns = self._columns_of(labels.tokens[:, step + self.first])
            losses.append(self._loss(logits, columns, labels, step))
            right.append((logits.detach().argmax(dim=-1) == columns) & (columns != NOTHING))
        counted = labels.tokens[:, self.first : self.first + len(losses)] != NOTHING
        weights = self.objective.weights(len(losses), self.embedding.device)
        return Learnt((torch.stack(losses) * weights).mean(), torch.stack(right, dim=1), counted)

    def _columns_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The columns of tokens in a head's logits; `NOTHING` also of ids that only a larger target has, which pads its
        vocabulary further."""
        last = len(self._columns) - 1
        return self._columns[tokens.where(tokens < last, NOTHING).clamp_min(-1)]

    def _loss(self, logits: torch.Tensor, columns: torch.Tensor, labels: Labels, step: int) -> torch.Tensor:
        """Of one step, a sum over the positions divided by their number, so that parts of a batch add up."""
        if labels.law_ids is None or labels.law_logs is None:
            return surprise(logits, columns)
        counted = labels.tokens[:, step + self.first] != NOTHING
        laws = Laws.of(logits, self._columns_of(labels.law_ids[:, step]), labels.law_logs[:, step])
        return (laws.losses(self.objective.loss) * counted).sum() / len(logits)


def known_tokens(head: Any) -> torch.Tensor:
    """The target's ids of the tokens that a head knows, in the order of its columns."""
    ids: torch.Tensor = torch.arange(head.shape.known) if head.token_ids is None else head.token_ids.cpu()
    return ids
