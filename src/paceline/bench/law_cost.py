"""What the law costs per emitted token: from logits to probabilities, and the race that draws from them."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from paceline.law import KeyedDice, Law, Noise, Sampling

HISTORY = 2000
"""Tokens before the choice, which penalties look at."""
SETTINGS = {
    "greedy": Sampling(),
    "t=0.8 top-p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "t=0.8 top-k 50": Sampling(temperature=0.8, top_k=50),
    "t=0.8 min-p 0.05": Sampling(temperature=0.8, min_p=0.05),
    "t=1": Sampling(temperature=1.0),
    "t=0.8 top-p 0.9, penalties": Sampling(
        temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.3
    ),
}


def law_costs(vocabulary: int, repeats: int) -> dict[str, dict[str, float]]:
    """Median milliseconds by settings and by how certain a row of logits is."""
    table, tokens = _rows(vocabulary), np.random.default_rng(1).integers(0, vocabulary, HISTORY)
    return {
        name: {kind: _milliseconds(row, sampling, tokens, repeats) for kind, row in table.items()}
        for name, sampling in SETTINGS.items()
    }


def _rows(vocabulary: int) -> dict[str, torch.Tensor]:
    """From certain to uniform."""
    random = np.random.default_rng(0)
    spread = random.normal(0, 3, vocabulary).astype(np.float32)
    peaked, certain = spread.copy(), spread.copy()
    peaked[random.choice(vocabulary, 8, replace=False)] += 12
    certain[7] += 30
    flat = random.normal(0, 0.05, vocabulary).astype(np.float32)
    named = {"certain": certain, "a few peaks": peaked, "deviation 3": spread, "nearly flat": flat}
    return {name: torch.from_numpy(row) for name, row in named.items()}


def _milliseconds(row: torch.Tensor, sampling: Sampling, tokens: np.ndarray, repeats: int) -> float:
    """The median over positions, each with its own noise."""
    law, dice, taken = Law(sampling, len(tokens) // 2), KeyedDice(Noise(0)), list[float]()
    for index in range(repeats):
        started = time.perf_counter()
        dice.choose(index, law.distribution(row, tokens))
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken)
