"""The planner ``fixed:n``."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.base import Budget
from paceline.errors import InputError
from paceline.planning.base import Planner, Room


class Fixed(Planner):
    """The same number of nodes in every round."""

    def __init__(self, nodes: int) -> None:
        if nodes < 0:
            raise InputError(f"a draft cannot hold {nodes} tokens; choose 0 (no draft) or more")
        self._nodes = nodes

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        return [Budget(self._nodes, room.depth) for room in rooms]
