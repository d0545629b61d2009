"""The loss of a head in training, and its measures in evaluation."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from paceline.drafters.networks.redrafter.head import RecurrentHead
from paceline_make.redrafter.labels import NOTHING, Labels

LEAST = 1e-6


class Learnt(NamedTuple):
    """Of a batch: the mean loss, and for each position and step whether the head's best token was right."""

    loss: torch.Tensor
    right: torch.Tensor
    counted: torch.Tensor
    """``[positions, steps]``: whether there was anything to predict."""


class Lesson:
    """Predicts the tokens behind each position, one step after the other, along the labels' own tokens."""

    def __init__(self, head: RecurrentHead, embedding: torch.Tensor) -> None:
        """``embedding`` is the target's input embedding ``[ids, width]``; it is not trained."""
        self.head, self._embedding = head, embedding
        size = max(len(embedding), head.shape.vocab_size)
        self._places = torch.full((size + 1,), NOTHING)
        known = torch.arange(head.shape.known) if head.token_ids is None else head.token_ids.cpu()
        self._places[known] = torch.arange(len(known))  # the last place is that of no label
        self._places = self._places.to(embedding.device)

    def learn(self, batch: Labels) -> Learnt:
        states, tokens = batch.states, batch.tokens
        steps = tokens.shape[1] - 1
        embedded = F.embedding(tokens[:, :steps].clamp_min(0), self._embedding)
        state, losses, right = torch.empty(0), list[torch.Tensor](), list[torch.Tensor]()
        for step in range(steps):
            state = self.head.next(state, embedded[:, step]) if step else self.head.first(embedded[:, 0])
            logits = self.head.logits(states, state).float()
            labels = self._places[tokens[:, step + 1].clamp_min(-1)]
            losses.append(self._loss(logits, labels, batch, step))
            right.append((logits.detach().argmax(dim=-1) == labels) & (labels != NOTHING))
        counted = tokens[:, 1:] != NOTHING
        return Learnt(torch.stack(losses).mean(), torch.stack(right, dim=1), counted)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, batch: Labels, step: int) -> torch.Tensor:
        """Of one step, a sum over the positions divided by their number, so that parts of a batch add up."""
        if batch.law_ids is None or batch.law_logs is None:
            return F.cross_entropy(logits, labels, ignore_index=NOTHING, reduction="sum") / len(logits)
        counted = batch.tokens[:, step + 1] != NOTHING
        return (self._divergence(logits, batch.law_ids[:, step], batch.law_logs[:, step]) * counted).sum() / len(logits)

    def _divergence(self, logits: torch.Tensor, ids: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
        """KL from the model's best tokens and the rest of its law to the head's; tokens that the head does not know
        belong to the rest."""
        places = self._places[ids]
        known = places != NOTHING
        shares = logs.float().exp() * known
        own = logits.log_softmax(dim=-1).gather(1, places.clamp_min(0))
        rest = (1 - shares.sum(dim=-1)).clamp_min(LEAST)
        own_rest = (1 - (own.exp() * known).sum(dim=-1)).clamp_min(LEAST)
        divergence = (shares * (logs.float() - own)).sum(dim=-1)
        return divergence + rest * (rest.log() - own_rest.log())


def expected_tokens(right: torch.Tensor, counted: torch.Tensor) -> float:
    """Tokens a round with a draft of one line: the model's own, and what is right from the first step on."""
    return 1 + float((right & counted).long().cumprod(dim=1).sum()) / max(len(right), 1)
