"""What a draft is worth: tokens a round on the beginnings of texts that were not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.api.model import LanguageModel
from paceline.drafters.noise import NOISES
from paceline.engine.counters import Round
from paceline_make.texts.fields import Passage

Measure = Callable[[Sequence[Round]], float]
PROMPTS, PROMPT, WRITTEN = 12, 40, 64
"""Held-out texts that are written with drafts, tokens of their beginnings, and tokens behind those."""


def tokens_per_round(rounds: Sequence[Round]) -> float:
    return sum(each.emitted for each in rounds) / max(1, len(rounds))


def by_noise(
    lm: LanguageModel,
    held: Sequence[Passage],
    method: str,
    temperature: float,
    noises: Sequence[str] = NOISES,
    measure: Measure = tokens_per_round,
) -> dict[str, float]:
    """What the rounds of a method measure, by ``noise``; without those that never drafted."""
    found = {noise: measure(rounds) for noise, rounds in rounds_of(lm, held, method, temperature, noises).items()}
    return {noise: tokens for noise, tokens in found.items() if tokens}


def rounds_of(
    lm: LanguageModel,
    held: Sequence[Passage],
    method: str,
    temperature: float,
    noises: Sequence[str],
    together: int = PROMPTS,
) -> dict[str, list[Round]]:
    """The rounds of a method that drafted, by ``noise``, in batches of ``together`` texts."""
    prompts = _beginnings(lm, held)
    batches = [prompts[first : first + together] for first in range(0, len(prompts), together)]
    return {noise: _rounds(lm, batches, f"{method},noise={noise}", temperature) for noise in noises if prompts}


def _rounds(lm: LanguageModel, batches: list[list[list[int]]], method: str, temperature: float) -> list[Round]:
    """Those with a draft."""
    how: dict[str, Any] = {"planner": "fixed", "temperature": temperature, "seed": 0, "max_new_tokens": WRITTEN}
    texts = [text for batch in batches for (text,) in lm.generate_batch(batch, method=method, **how)]
    return [each for text in texts for each in text.rounds if each.drafted]


def _beginnings(lm: LanguageModel, held: Sequence[Passage]) -> list[list[int]]:
    texts = [each for each in held if isinstance(each, str) and each]
    chosen = [texts[int(at)] for at in np.linspace(0, len(texts) - 1, min(PROMPTS, len(texts)))] if texts else []
    assert lm.vocabulary is not None, "texts are read by a tokenizer"
    ids = (lm.vocabulary.encode_prompt(each)[:PROMPT].tolist() for each in chosen)
    return [each for each in ids if each]
