"""Adjustments of the logits of several texts, on the target's device, for a beam search over their drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.context import Context
from paceline.law.side_by_side import Places, steps
from paceline.tree import Ints


class Adjusting:
    """Settings over the tokens that a head knows, of texts side by side."""

    def __init__(self, contexts: Sequence[Context], ids: torch.Tensor | None, size: int, device: torch.device) -> None:
        self._places = Places(ids, size)
        self._steps = list(steps([context.sampling for context in contexts], self._places, device))
        if self._steps:
            self._seen = self._counted([context.tokens for context in contexts], device)
            self._emitted = self._counted([context.emitted for context in contexts], device)

    def _counted(self, texts: Sequence[Ints], device: torch.device) -> torch.Tensor:
        rows = [np.bincount(self._places.of(tokens)[1], minlength=self._places.known) for tokens in texts]
        return torch.from_numpy(np.stack(rows).astype(np.float32)).to(device)[:, None]

    def apply(self, logits: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
        """``logits`` ``[texts, width, known]`` behind beams whose drafted tokens are at the places ``path`` of the
        head's vocabulary, ``[texts, width, drafted]``."""
        if not self._steps:
            return logits
        ones = torch.ones_like(path, dtype=logits.dtype)
        seen = self._seen.expand_as(logits).scatter_add(2, path, ones)
        emitted = self._emitted.expand_as(logits).scatter_add(2, path, ones)
        for step in self._steps:
            logits = step(logits, seen, emitted)
        return logits
