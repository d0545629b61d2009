"""Bias, penalties and bans of several texts on a device, as they act on the logits of their drafts.

A draft need not be exact, so two things are left out: processors, and banned phrases of several tokens. What acts on
the best candidates alone is in `draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law.settings import Sampling
from paceline.law.table import Acts, function, grouped

Ints = NDArray[np.int64]
Step: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""``(logits, seen, emitted) -> logits``, all ``[texts, width, known]``; the others count tokens of the text with its
prompt, and those after it."""


class Places:
    """Where the target's tokens are in the vocabulary of drafts, which may hold only some of them, ``ids``."""

    def __init__(self, ids: torch.Tensor | None, size: int) -> None:
        self._ids = None if ids is None else ids.numpy(force=True)
        self.known = size if self._ids is None else len(self._ids)

    def of(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Numbers of the tokens that the vocabulary holds, and their places."""
        if self._ids is None:
            inside = np.flatnonzero(tokens < self.known)
            return inside, tokens[inside]
        places = np.minimum(np.searchsorted(self._ids, tokens), self.known - 1)
        found = np.flatnonzero(self._ids[places] == tokens)
        return found, places[found]


def steps(settings: Sequence[Sampling], places: Places, device: torch.device) -> Iterator[Step]:
    """The adjustments of the logits of texts with these settings, in order."""
    rows = {row.name: row for each in settings for row in each.rows if row.acts is Acts.ON_LOGITS}
    for group in grouped(rows.values()):
        columns = [[getattr(each, row.name, row.default) for each in settings] for row in group]
        pairs = zip(group, columns, strict=True)
        if group[0].side_by_side and any(row.active(value) for row, column in pairs for value in column):
            yield function(group[0].side_by_side)(*columns, places, device)


class Bias:
    """Adds numbers to the logits of tokens."""

    def __init__(self, biases: Sequence[Mapping[int, float]], places: Places, device: torch.device) -> None:
        rows = np.zeros((len(biases), places.known), np.float32)
        for row, values in zip(rows, biases, strict=True):
            biased, at = places.of(np.array(list(values), np.int64))
            row[at] = np.array(list(values.values()), np.float32)[biased]
        self._added = torch.from_numpy(rows).to(device)[:, None]

    def __call__(self, logits: torch.Tensor, seen: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        return logits + self._added


class Repetition:
    """Divides positive logits of tokens in the text by the penalty, and multiplies negative ones."""

    def __init__(self, penalties: Sequence[float], places: Places, device: torch.device) -> None:
        self._factors = _column(penalties, device)

    def __call__(self, logits: torch.Tensor, seen: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        penalised = torch.where(logits < 0, logits * self._factors, logits / self._factors)
        return torch.where(seen > 0, penalised, logits)


class Emitted:
    """Subtracts from the logits of emitted tokens: once each, and every time."""

    def __init__(
        self, presence: Sequence[float], frequency: Sequence[float], places: Places, device: torch.device
    ) -> None:
        self._presence, self._frequency = _column(presence, device), _column(frequency, device)

    def __call__(self, logits: torch.Tensor, seen: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        return logits - (emitted > 0) * self._presence - emitted * self._frequency


class Bans:
    """Makes single tokens impossible."""

    def __init__(self, entries: Sequence[Sequence[Sequence[int]]], places: Places, device: torch.device) -> None:
        masks = np.zeros((len(entries), places.known), np.bool_)
        for mask, own in zip(masks, entries, strict=True):
            _, at = places.of(np.array([entry[0] for entry in own if len(entry) == 1], np.int64))
            mask[at] = True
        self._masks = torch.from_numpy(masks).to(device)[:, None]

    def __call__(self, logits: torch.Tensor, seen: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        return logits.masked_fill(self._masks, -torch.inf)


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """``[texts, 1, 1]``."""
    return torch.tensor(list(values), dtype=torch.float32, device=device)[:, None, None]
