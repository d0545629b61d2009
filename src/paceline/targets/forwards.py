"""A submitted forward, and what a forward of a target may hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from paceline.targets.base import Scores

OnEarly = Callable[[int, "torch.Tensor"], None]
"""Called in the middle of a forward: the number of the request, and the early-exit logits of all its fresh rows."""

Heard = Callable[["torch.Tensor"], None] | None
"""Called with the early-exit logits of one request, if anything is."""


def on_early_of(heard: Sequence[Heard]) -> OnEarly | None:
    """Hands early-exit logits on to the requests that ask for them."""
    if not any(heard):
        return None

    def on_early(number: int, logits: torch.Tensor) -> None:
        if (hear := heard[number]) is not None:
            hear(logits)

    return on_early


class Pending(ABC):
    """A submitted forward. `result` waits for it: the serial driver at once, an overlapped one drafts meanwhile."""

    @abstractmethod
    def result(self) -> list[Scores]: ...


class Done(Pending):
    """A forward that was finished when `submit` returned."""

    def __init__(self, scores: list[Scores]) -> None:
        self._scores = scores

    def result(self) -> list[Scores]:
        return self._scores


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What drafts a target can score without one row depending on another (`Target.reach`)."""

    trees: bool = True
    """Whether siblings may be scored together; otherwise chains only."""
    depth: int | None = None
    """How many tokens a draft may reach past the root; None where nothing limits it."""
    alone: bool = False
    """Whether a forward may hold one sequence only."""
