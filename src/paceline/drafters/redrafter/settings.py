"""Bias, bans and penalties of several texts, on the target's device, as they act on the logits of a beam search.

Two settings are left out, since a draft need not be exact: processors, and banned phrases of several tokens. What acts
on the best candidates alone is in `law.draws`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.context import Context
from paceline.law import Sampling
from paceline.tree import Ints


class Adjusting:
    """Bias, bans and penalties over the tokens that a head knows, of texts side by side."""

    def __init__(self, contexts: Sequence[Context], ids: torch.Tensor | None, size: int, device: torch.device) -> None:
        self._places = Places(ids, size)
        settings = [context.sampling for context in contexts]
        self.active = any(each.adjusts for each in settings)
        if not self.active:
            return
        self._bias = self._stacked([self._bias_of(each) for each in settings], device)
        self._factors = _column([each.repetition_penalty for each in settings], device)
        self._presence = _column([each.presence_penalty for each in settings], device)
        self._frequency = _column([each.frequency_penalty for each in settings], device)
        self._seen = self._stacked([self._counts(context.tokens) for context in contexts], device)
        self._emitted = self._stacked([self._counts(context.emitted) for context in contexts], device)

    def _stacked(self, rows: list[np.ndarray], device: torch.device) -> torch.Tensor:
        return torch.from_numpy(np.stack(rows)).to(device)[:, None]

    def _bias_of(self, sampling: Sampling) -> np.ndarray:
        row = np.zeros(self._places.known, np.float32)
        biased, at = self._places.of(np.array(list(sampling.logit_bias), np.int64))
        row[at] = np.array(list(sampling.logit_bias.values()), np.float32)[biased]
        _, banned = self._places.of(np.array([entry[0] for entry in sampling.banned if len(entry) == 1], np.int64))
        row[banned] = -np.inf
        return row

    def _counts(self, tokens: Ints) -> np.ndarray:
        _, at = self._places.of(tokens)
        return np.bincount(at, minlength=self._places.known).astype(np.float32)

    def apply(self, logits: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
        """``logits`` ``[texts, width, known]`` behind beams whose drafted tokens are at the places ``path`` of the
        head's vocabulary, ``[texts, width, drafted]``."""
        if not self.active:
            return logits
        ones = torch.ones_like(path, dtype=logits.dtype)
        seen = self._seen.expand_as(logits).scatter_add(2, path, ones)
        emitted = self._emitted.expand_as(logits).scatter_add(2, path, ones)
        banned = self._bias == -torch.inf
        logits = logits + self._bias.masked_fill(banned, 0.0)
        penalised = torch.where(logits < 0, logits * self._factors, logits / self._factors)
        logits = torch.where(seen > 0, penalised, logits)
        logits = logits - (emitted > 0) * self._presence - emitted * self._frequency
        return logits.masked_fill(banned, -torch.inf)


class Places:
    """Where the target's tokens are in the head's vocabulary."""

    def __init__(self, ids: torch.Tensor | None, size: int) -> None:
        self._ids = None if ids is None else ids.numpy(force=True)
        self.known = size if self._ids is None else len(self._ids)

    def of(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Numbers of the tokens that the head knows, and their places."""
        if self._ids is None:
            inside = np.flatnonzero(tokens < self.known)
            return inside, tokens[inside]
        places = np.minimum(np.searchsorted(self._ids, tokens), self.known - 1)
        found = np.flatnonzero(self._ids[places] == tokens)
        return found, places[found]


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """``[texts, 1, 1]``."""
    return torch.tensor(list(values), dtype=torch.float32, device=device)[:, None, None]
