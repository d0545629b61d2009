"""Losses of a head's predictions, and its measures in evaluation.

``labels`` is the loss of the papers: cross-entropy with the label, or divergence from the model's law where labels have
one. The others are what acceptance is, as minus the logarithm of a chance: ``overlap`` that a token drawn from the
head's law is accepted by the model's, the sum of the smaller of both shares (rejection, no public noise); ``race`` that
both laws pick the same token under the same public noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from paceline.errors import InputError
from paceline_make.heads.labels import NOTHING

LEAST = 1e-6
LOSSES = ("labels", "overlap", "race")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a head's predictions are judged by. Each step ahead weighs ``decay`` times the one before."""

    loss: str = "labels"
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InputError(f"the loss is {', '.join(LOSSES)}, not {self.loss!r}")
        if not 0 < self.decay <= 1:
            raise InputError(f"steps ahead weigh above 0 and at most 1 of the one before, not {self.decay}")

    def weights(self, steps: int, device: torch.device) -> torch.Tensor:
        """Of the steps ahead, 1 on average."""
        powers = self.decay ** torch.arange(steps, dtype=torch.float32, device=device)
        return powers / powers.mean()


class Learnt(NamedTuple):
    """Of a batch: the mean loss, and for each position and step whether the head's best token was right."""

    loss: torch.Tensor
    right: torch.Tensor
    counted: torch.Tensor
    """``[positions, steps]``: whether there was anything to predict."""


def surprise(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Of labels in these columns, the mean over all rows, so that parts of a batch add up; `NOTHING` costs nothing."""
    return F.cross_entropy(logits, columns, ignore_index=NOTHING, reduction="sum") / len(logits)


class Laws(NamedTuple):
    """The model's law of each row and the head's, over the model's best tokens; what is left is the ``rest``. Tokens
    that the head does not know belong to the rest."""

    shares: torch.Tensor
    logs: torch.Tensor
    own: torch.Tensor
    """The head's logarithms."""
    rest: torch.Tensor
    own_rest: torch.Tensor
    known: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, columns: torch.Tensor, logs: torch.Tensor) -> Laws:
        """``columns`` are those of the model's best tokens in the head's logits, `NOTHING` for those it lacks."""
        known = columns != NOTHING
        shares = logs.float().exp() * known
        own = logits.log_softmax(dim=-1).gather(1, columns.clamp_min(0))
        rest = (1 - shares.sum(dim=-1)).clamp_min(LEAST)
        own_rest = (1 - (own.exp() * known).sum(dim=-1)).clamp_min(LEAST)
        return cls(shares, logs.float(), own, rest, own_rest, known)

    def divergence(self) -> torch.Tensor:
        """KL from the model's law to the head's; the rest counts as one token."""
        divergence = (self.shares * (self.logs - self.own)).sum(dim=-1)
        return divergence + self.rest * (self.rest.log() - self.own_rest.log())

    def overlap(self) -> torch.Tensor:
        """The chance that a token of the head's law is accepted. What the rest would add is left out."""
        return torch.minimum(self.shares, self.own.exp() * self.known).sum(dim=-1)

    def race(self) -> torch.Tensor:
        """The chance that both laws pick the same token by the same noise: token i wins both races with
        ``1 / sum_j max(p_j / p_i, q_j / q_i)``. The rest runs as one token, and its win counts for nothing."""
        lost = torch.finfo(torch.float32).min / 4
        of_model = torch.cat([self.logs.masked_fill(~self.known, lost), self.rest.log()[:, None]], dim=1)
        of_head = torch.cat([self.own.masked_fill(~self.known, lost), self.own_rest.log()[:, None]], dim=1)
        ahead = torch.maximum(*(each[:, None, :] - each[:, :-1, None] for each in (of_model, of_head)))
        return (torch.exp(-ahead.logsumexp(dim=-1)) * self.known).sum(dim=-1)

    def losses(self, loss: str) -> torch.Tensor:
        """Of each row."""
        if loss == "labels":
            return self.divergence()
        return -(self.overlap() if loss == "overlap" else self.race()).clamp_min(LEAST).log()


def expected_tokens(right: torch.Tensor, counted: torch.Tensor) -> float:
    """Tokens a round with a draft of one line: the model's own, and what is right from the first step on."""
    return 1 + float((right & counted).long().cumprod(dim=1).sum()) / max(len(right), 1)
