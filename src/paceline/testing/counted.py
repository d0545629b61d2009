"""A drafter that is watched for states that stay open."""

from __future__ import annotations

from typing import Any

from paceline.context import Context
from paceline.drafters.base import Drafter
from paceline.drafters.compose import Fallback, PartStates


class Counted(Fallback):
    """Another drafter, with a count of its open states. Failures name the other one."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__([inner])
        self.spec = inner.spec or inner.name or type(inner).__name__
        self.open_states = 0

    def open(self, context: Context) -> PartStates:
        states = super().open(context)
        self.open_states += 1
        return states

    def close(self, state: list[Any]) -> None:
        super().close(state)
        self.open_states -= 1
