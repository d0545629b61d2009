"""Bias, penalties, bans and custom processors, by operations of torch: the steps of `adjust`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import CallbackError, called, name_of
from paceline.law.on_device import sent

if TYPE_CHECKING:
    from paceline.law.settings import Processor

Tokens = NDArray[np.int64]
Step: TypeAlias = Callable[[torch.Tensor, Tokens, int], torch.Tensor]
"""``(scores, tokens, prompt length) -> scores``; it may write to the scores that it is given."""


class Bias:
    """Adds a number to the scores of some tokens."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._tokens = torch.tensor(list(biases), dtype=torch.int64)
        self._biases = torch.tensor(list(biases.values()), dtype=torch.float64)
        self._added = self._biases  # where the rows are, and of their type

    def __call__(self, scores: torch.Tensor, tokens: Tokens, prompt_length: int) -> torch.Tensor:
        if (self._added.dtype, self._added.device) != (scores.dtype, scores.device):
            self._tokens, self._added = self._tokens.to(scores.device), self._biases.to(scores)
        scores[self._tokens] += self._added
        return scores


class Repetition:
    """Divides the positive scores of tokens in the text by the penalty, and multiplies the negative ones."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    def __call__(self, scores: torch.Tensor, tokens: Tokens, prompt_length: int) -> torch.Tensor:
        seen = _scored(np.unique(tokens), scores)
        before = scores[seen]
        scores[seen] = torch.where(before < 0, before * self._penalty, before / self._penalty)
        return scores


class Emitted:
    """Subtracts from the scores of emitted tokens: once each, and every time."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def __call__(self, scores: torch.Tensor, tokens: Tokens, prompt_length: int) -> torch.Tensor:
        ids, counts = np.unique(tokens[prompt_length:], return_counts=True)
        seen = _scored(ids, scores)
        penalties = self._presence + self._frequency * counts[: seen.numel()]
        scores[seen] -= sent(torch.from_numpy(penalties).to(scores.dtype), scores.device)
        return scores


class Bans:
    """Makes the last token of a sequence impossible where the others stand before it."""

    def __init__(self, entries: Sequence[Sequence[int]]) -> None:
        self._tokens = torch.tensor([entry[0] for entry in entries if len(entry) == 1]).long()
        self._phrases: dict[int, list[tuple[int, ...]]] = {}  # longer entries by their last token but one
        for entry in entries:
            if len(entry) > 1:
                self._phrases.setdefault(entry[-2], []).append(tuple(entry))

    def __call__(self, scores: torch.Tensor, tokens: Tokens, prompt_length: int) -> torch.Tensor:
        if self._tokens.numel():
            self._tokens = self._tokens.to(scores.device)
            scores.index_fill_(0, self._tokens, -torch.inf)
        if self._phrases and tokens.size:
            for *prefix, last in self._phrases.get(int(tokens[-1]), []):
                if tokens[-len(prefix) :].tolist() == prefix:
                    scores[last] = -torch.inf
        return scores


class Processors:
    """The user's own functions, each called once and in order."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self._processors = processors

    def __call__(self, scores: torch.Tensor, tokens: Tokens, prompt_length: int) -> torch.Tensor:
        ids = torch.tensor(tokens, device=scores.device)[None]  # a copy, which a processor may keep
        rows = scores[None]
        for processor in self._processors:
            rows = called("logits processor", processor, ids, rows)
            if getattr(rows, "shape", None) != (1, scores.numel()):
                given = tuple(rows.shape) if isinstance(rows, torch.Tensor) else type(rows).__name__
                shape = f"scores of shape (1, {scores.numel()})"
                raise CallbackError(f"the logits processor {name_of(processor)} returned {given}, not {shape}")
        return rows[0]


def _scored(ids: Tokens, scores: torch.Tensor) -> torch.Tensor:
    """Those of the ascending ids that have a score: embeddings may hold more tokens than the output layer."""
    return sent(torch.from_numpy(ids[: np.searchsorted(ids, scores.numel())]), scores.device)
