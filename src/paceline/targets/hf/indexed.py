"""What some models read of a cache besides rows: positions of all rows, and what makes positions of their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.targets.base import Request


class IndexedLayers(list[Any]):
    """Any layer of the cache, which tells the positions of all rows before those of a forward."""

    def __init__(self, request: Request | None, moved: int, device: torch.device) -> None:
        super().__init__()
        self._request, self._moved, self._device = request, moved, device

    def __getitem__(self, index: Any) -> Any:
        return self

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """``[3, 1, rows]``; three of each, as for pictures."""
        if self._request is None:
            return None
        held = self._request.tentative_positions[: self._request.held]
        before = np.concatenate([np.arange(self._request.rows.committed), held]) + self._moved
        return torch.from_numpy(before).to(self._device).expand(3, 1, -1)

    @indexer_position_ids.setter
    def indexer_position_ids(self, position_ids: torch.Tensor) -> None:
        """Rows know their positions."""


def offsets(request: Request, moved: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What is added to the numbers of the fresh rows, and of all rows, to get their positions."""
    keys = np.concatenate([np.arange(request.rows.committed), request.tentative_positions])
    found = (positions - np.arange(len(positions)) + moved for positions in (request.positions, keys))
    queries, rows = (torch.from_numpy(each).to(device) for each in found)
    return queries, rows
