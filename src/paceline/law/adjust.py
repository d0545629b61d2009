"""Bias, penalties, bans and custom processors: what acts on the logits before temperature does."""

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import CallbackError, InputError, called, name_of
from paceline.law.on_device import sent
from paceline.law.settings import Sampling

Tokens = NDArray[np.int64]


class Adjustment:
    """One `Sampling` applied to rows that follow a token list; each step writes to the row it is given.

    The order is transformers': sequence bias, repetition penalty, bad words, custom processors. Presence and
    frequency penalties, which it lacks, follow the repetition penalty.
    """

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        self._sampling = sampling
        self._prompt_length = prompt_length
        self._biased = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        self._biases = torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float64)
        self._added = self._biases  # where the rows are, and of their type
        self._banned = torch.tensor([entry[0] for entry in sampling.banned if len(entry) == 1]).long()
        self._phrases: dict[int, list[tuple[int, ...]]] = {}  # longer entries by their last token but one
        for entry in sampling.banned:
            if len(entry) > 1:
                self._phrases.setdefault(entry[-2], []).append(tuple(entry))
        self._largest = max([*sampling.logit_bias, *(entry[-1] for entry in sampling.banned)], default=-1)

    def apply(self, scores: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        if self._largest >= scores.numel():
            raise InputError(
                f"logit_bias or banned names token {self._largest}, and the model has {scores.numel()} tokens; "
                "use ids of the model's own tokenizer"
            )
        self._bias(scores)
        self._penalise_repetition(scores, tokens)
        self._penalise_emitted(scores, tokens[self._prompt_length :])
        self._ban(scores, tokens)
        return self._process(scores, tokens)

    def _bias(self, scores: torch.Tensor) -> None:
        if self._biased.numel():
            if (self._added.dtype, self._added.device) != (scores.dtype, scores.device):
                self._biased, self._added = self._biased.to(scores.device), self._biases.to(scores)
            scores[self._biased] += self._added

    def _penalise_repetition(self, scores: torch.Tensor, tokens: Tokens) -> None:
        penalty = self._sampling.repetition_penalty
        if penalty == 1:
            return
        seen = _scored(np.unique(tokens), scores)
        before = scores[seen]
        scores[seen] = torch.where(before < 0, before * penalty, before / penalty)

    def _penalise_emitted(self, scores: torch.Tensor, emitted: Tokens) -> None:
        presence, frequency = self._sampling.presence_penalty, self._sampling.frequency_penalty
        if presence == 0 and frequency == 0:
            return
        ids, counts = np.unique(emitted, return_counts=True)
        seen = _scored(ids, scores)
        penalties = presence + frequency * counts[: seen.numel()]
        scores[seen] -= sent(torch.from_numpy(penalties).to(scores.dtype), scores.device)

    def _ban(self, scores: torch.Tensor, tokens: Tokens) -> None:
        if self._banned.numel():
            self._banned = self._banned.to(scores.device)
            scores.index_fill_(0, self._banned, -torch.inf)
        if not self._phrases or tokens.size == 0:
            return
        for *prefix, last in self._phrases.get(int(tokens[-1]), []):
            if tokens[-len(prefix) :].tolist() == prefix:
                scores[last] = -torch.inf

    def _process(self, scores: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        if not self._sampling.processors:
            return scores
        ids = torch.tensor(tokens, device=scores.device)[None]  # a copy, which a processor may keep
        rows = scores[None]
        for processor in self._sampling.processors:
            rows = called("logits processor", processor, ids, rows)
            if getattr(rows, "shape", None) != (1, scores.numel()):
                given = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
                shape = f"scores of shape (1, {scores.numel()})"
                raise CallbackError(f"the logits processor {name_of(processor)} returned {given}, not {shape}")
        return rows[0]


def _scored(ids: Tokens, scores: torch.Tensor) -> torch.Tensor:
    """Those of the ascending ids that have a score: embeddings may hold more tokens than the output layer."""
    return sent(torch.from_numpy(ids[: np.searchsorted(ids, scores.numel())]), scores.device)
