"""What a draft is worth: tokens a round on the beginnings of texts that were not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.api.model import LanguageModel
from paceline.drafters.noise import NOISES
from paceline_make.texts.fields import Passage

PROMPTS, PROMPT, WRITTEN = 12, 40, 64
"""Held-out texts that are written with drafts, tokens of their beginnings, and tokens behind those."""


def by_noise(lm: LanguageModel, held: Sequence[Passage], method: str, temperature: float) -> dict[str, float]:
    """Tokens a round of a method, by ``noise``; without those that never drafted."""
    prompts = _beginnings(lm, held)
    found = {noise: _per_round(lm, prompts, f"{method},noise={noise}", temperature) for noise in NOISES if prompts}
    return {noise: tokens for noise, tokens in found.items() if tokens}


def _per_round(lm: LanguageModel, prompts: list[list[int]], method: str, temperature: float) -> float:
    """Of rounds with a draft; 0 where there was none."""
    texts = lm.generate_batch(
        prompts, method=method, planner="fixed", temperature=temperature, seed=0, max_new_tokens=WRITTEN
    )
    rounds = [each for (text,) in texts for each in text.rounds if each.drafted]
    return sum(each.emitted for each in rounds) / max(1, len(rounds))


def _beginnings(lm: LanguageModel, held: Sequence[Passage]) -> list[list[int]]:
    texts = [each for each in held if isinstance(each, str) and each]
    chosen = [texts[int(at)] for at in np.linspace(0, len(texts) - 1, min(PROMPTS, len(texts)))] if texts else []
    assert lm.vocabulary is not None, "texts are read by a tokenizer"
    ids = (lm.vocabulary.encode_prompt(each)[:PROMPT].tolist() for each in chosen)
    return [each for each in ids if each]
