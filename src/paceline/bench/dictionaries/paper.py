"""What the DictSpec paper measured, by its tables and figures, under the names of `paceline.bench.fertility`."""

from __future__ import annotations

from typing import NamedTuple

ORDERS = (1, 2, 3)
SIZES = (10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
MIN_PROBABILITIES = (0.2, 0.5, 0.8, 0.9, 1.0)
"""Section 4.4: what was swept."""


class Corpus(NamedTuple):
    """A row of Table 2, in words."""

    train: int
    valid: int


CORPORA = {
    "uk": Corpus(251_618_586, 124_703),
    "crh-Cyrl": Corpus(1_333_103, 535_156),
    "crh-Latn": Corpus(118_749, 16_020),
}


class Best(NamedTuple):
    """A row of Table 4: the best configuration of a tokenizer and language."""

    speed_up: float
    coverage: float
    accepted_per_draft: float
    acceptance: float


TABLE_4 = {
    ("Gemma 3", "uk"): Best(1.26, 0.59, 0.44, 0.17),
    ("Gemma 3", "crh-Cyrl"): Best(1.45, 0.71, 0.63, 0.18),
    ("Gemma 3", "crh-Latn"): Best(1.19, 0.57, 0.33, 0.10),
    ("Mistral", "uk"): Best(1.43, 0.70, 0.61, 0.17),
    ("Mistral", "crh-Cyrl"): Best(1.65, 0.77, 0.84, 0.18),
    ("Mistral", "crh-Latn"): Best(1.35, 0.69, 0.50, 0.08),
    ("Mistral NeMo", "uk"): Best(1.34, 0.64, 0.53, 0.18),
    ("Mistral NeMo", "crh-Cyrl"): Best(1.51, 0.73, 0.70, 0.18),
    ("Mistral NeMo", "crh-Latn"): Best(1.21, 0.61, 0.34, 0.07),
    ("Qwen 3.5", "uk"): Best(1.34, 0.63, 0.54, 0.18),
    ("Qwen 3.5", "crh-Cyrl"): Best(1.51, 0.72, 0.71, 0.19),
    ("Qwen 3.5", "crh-Latn"): Best(1.21, 0.58, 0.36, 0.11),
    ("Llama 3.3", "uk"): Best(1.28, 0.61, 0.46, 0.18),
    ("Llama 3.3", "crh-Cyrl"): Best(1.61, 0.77, 0.79, 0.18),
    ("Llama 3.3", "crh-Latn"): Best(1.22, 0.62, 0.36, 0.07),
}

CORRELATION = 0.72, 0.002
"""Figure 1: Pearson's r of fertility and best speed-up, and its p."""
FLAT_FROM = 200_000
"""Section 4.5.4: speed-ups rise quickly up to some 100,000 to 200,000 entries, then flatten (Figure 2)."""
