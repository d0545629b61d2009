"""The bundled models: the shape, the tokenizer and the training of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline_make.models.schedule import ModelSchedule

POSITIONS = 4096
"""Longest text the models accept; they were trained on windows of 512 and 2,048 tokens."""
WRITES = {"do_sample": True, "temperature": 0.8, "top_k": 0}
"""The settings of generation that the models bring along: greedy, models of this size fall into loops."""
SMALL = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3, "num_attention_heads": 2}


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model: its shape, its tokenizer, its teacher, how long it is trained."""

    name: str
    tokenizer: str
    shape: dict[str, Any]
    schedule: ModelSchedule
    teacher: str | None = None


PLANS = (
    ModelPlan(
        name="pocket",
        tokenizer="byte-level",
        shape={"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 4},
        schedule=ModelSchedule(tokens=9_500_000),
    ),
    ModelPlan(
        name="pocket-draft",
        tokenizer="byte-level",
        shape=SMALL,
        schedule=ModelSchedule(tokens=3_200_000, seed=1),
        teacher="pocket",
    ),
    ModelPlan(
        name="pocket-foreign", tokenizer="unigram", shape=SMALL, schedule=ModelSchedule(tokens=4_000_000, seed=2)
    ),
)
