"""Seconds of vLLM's steps. vLLM does not say how long one took, but the time between two calls does."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.recent import RecentMean

KEPT = 0.98
"""The weight that earlier steps keep with each new one."""
IDLE = 8.0
"""A gap of this many usual steps is no step: there was nothing to write."""
RISEN = 16
"""This many gaps in a row are steps: the load has risen."""


@dataclass(eq=False)
class Gaps:
    """The usual time between two calls, and how many longer ones there were in a row."""

    usual: RecentMean = field(default_factory=lambda: RecentMean(KEPT))
    idle: int = 0

    def seconds(self, gap: float) -> float:
        """Seconds of the step that lies in a gap; 0 where there was none."""
        if self.usual.times and gap > IDLE * self.usual.value:
            self.idle += 1
            if self.idle < RISEN:
                return 0.0
            self.usual.value = gap
        self.idle = 0
        self.usual.add(gap)
        return gap
