"""The numbers of the DictSpec paper, and the names that its tokenizers have elsewhere."""

from __future__ import annotations

import re
from typing import NamedTuple

ORDERS = (1, 2, 3)
SIZES = (10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
MIN_PROBABILITIES = (0.2, 0.5, 0.8, 0.9, 1.0)
"""Section 4.4: what was swept."""

NAMED = {
    "Gemma 3": r"gemma-?3(?!\d)",
    "Mistral": r"mistral-(7b|v[0-3])",
    "Mistral NeMo": r"mistral-nemo",
    "Qwen 3.5": r"qwen-?3\.5",
    "Llama 3.3": r"llama-?3(?![\db])",
}
"""The paper's tokenizers, by what is in the names of folders and models that hold them."""

STAND_INS = {"Qwen 3.5": r"qwen2"}
"""Other tokenizers of the same families as the paper's."""

CORPORA = {"uk": (251_618_586, 124_703), "crh-Cyrl": (1_333_103, 535_156), "crh-Latn": (118_749, 16_020)}
"""Table 2: words counted and words tested."""

FERTILITY = {
    "Gemma 3": {"en": 1.28, "uk": 2.38, "crh-Cyrl": 3.30, "crh-Latn": 2.98},
    "Mistral": {"en": 1.42, "uk": 3.18, "crh-Cyrl": 4.20, "crh-Latn": 3.92},
    "Mistral NeMo": {"en": 1.26, "uk": 2.62, "crh-Cyrl": 3.51, "crh-Latn": 3.07},
    "Qwen 3.5": {"en": 1.30, "uk": 2.59, "crh-Cyrl": 3.51, "crh-Latn": 3.01},
    "Llama 3.3": {"en": 1.23, "uk": 2.38, "crh-Cyrl": 3.89, "crh-Latn": 2.94},
}
"""Table 3: tokens per word on FLORES+, and for crh-Cyrl on the validation split of the crh-Cyrl corpus."""


class Best(NamedTuple):
    """A row of Table 4: the best dictionary of a tokenizer and language."""

    speed_up: float
    coverage: float
    accepted_per_draft: float
    acceptance: float


BEST = {
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
"""Section 4.5: the speed-up rises quickly up to 100,000 to 200,000 entries, then flattens (Figure 2)."""


def paper_name(name: str) -> str | None:
    """The paper's tokenizer that a folder or model is named after."""
    return next((known for known, pattern in NAMED.items() if re.search(pattern, name.lower())), None)


def is_comparable(name: str) -> bool:
    """Whether a folder or model is named after a tokenizer of the paper, or a substitute for one."""
    return paper_name(name) is not None or any(re.search(one, name.lower()) for one in STAND_INS.values())


def paper_best(tokenizer: str, language: str) -> Best | None:
    """The row of Table 4, where there is one."""
    return BEST.get((paper_name(tokenizer) or "", language))
