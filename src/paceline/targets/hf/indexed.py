"""What models with an indexer read of the layers of a cache."""

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
