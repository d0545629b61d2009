"""How long a model is trained, how much at a time, how fast."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class ModelSchedule:
    """How long, how much at a time, how fast. Most of the text is read in short windows, where attention is cheap, the
    last share in long ones, so that the model has seen the positions at which it will be used."""

    tokens: int
    window: int = 512
    long_window: int = 2048
    long_share: float = 0.1
    tokens_per_step: int = 8192
    matrix_rate: float = 4e-3
    other_rate: float = 3e-3
    warmup: int = 60
    seed: int = 0
    save_every: int = 100

    @property
    def steps(self) -> int:
        return max(1, self.tokens // self.tokens_per_step)

    @property
    def short_steps(self) -> int:
        return round(self.steps * (1 - self.long_share))

    def rate(self, step: int) -> float:
        """Share of the peak rate: a short warm-up, a plateau, and a straight line to nothing over the last half."""
        left = (self.steps - step) / self.steps
        return min((step + 1) / self.warmup, 1.0, left / 0.5)

    def within(self, longest: int) -> ModelSchedule:
        """The same with windows of at most so many tokens."""
        return replace(self, window=min(self.window, longest), long_window=min(self.long_window, longest))
