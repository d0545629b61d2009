"""The bundled models: the shape, the tokenizer and the training of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

POSITIONS = 4096
"""Longest text the models accept; they were trained on windows of 512 and 2,048 tokens."""
WRITES = {"do_sample": True, "temperature": 0.8, "top_k": 0}
"""The settings of generation that the models bring along: greedy, models of this size fall into loops."""
SMALL = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3, "num_attention_heads": 2}


@dataclass(frozen=True, kw_only=True)
class Schedule:
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


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model: its shape, its tokenizer, its teacher, how long it is trained."""

    name: str
    tokenizer: str
    shape: dict[str, Any]
    schedule: Schedule
    teacher: str | None = None


PLANS = (
    ModelPlan(
        name="pocket",
        tokenizer="byte-level",
        shape={"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4},
        schedule=Schedule(tokens=9_500_000),
    ),
    ModelPlan(
        name="pocket-draft",
        tokenizer="byte-level",
        shape=SMALL,
        schedule=Schedule(tokens=3_200_000, seed=1),
        teacher="pocket",
    ),
    ModelPlan(name="pocket-foreign", tokenizer="unigram", shape=SMALL, schedule=Schedule(tokens=4_000_000, seed=2)),
)
