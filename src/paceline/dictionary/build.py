"""From text to a dictionary: count, spell, ask what usually follows, keep the most frequent, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.dictionary import file
from paceline.dictionary.counting import Counts
from paceline.dictionary.running import spelled
from paceline.dictionary.statistics import LONGEST, statistics
from paceline.dictionary.table import entries
from paceline.vocabulary import Vocabulary

Advance = Callable[[str, int, int], None]
"""What is being done, how much is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a dictionary holds."""

    order: int = 3
    """Words of an n-gram at most."""
    entries: int = 200_000
    min_probability: float = 0.8
    """How likely each proposed token must be after those before it."""
    longest_prefix: int = LONGEST
    longest_completion: int = LONGEST

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 3:
            raise ValueError(f"a dictionary is of n-grams of 1 to 3 words, not {self.order}")
        if not 1 <= self.entries <= file.MOST:
            raise ValueError(f"a dictionary has 1 to {file.MOST} entries, not {self.entries}")
        if not 0 < self.min_probability <= 1:
            raise ValueError(f"a probability is above 0 and at most 1, not {self.min_probability}")
        for name in ("longest_prefix", "longest_completion"):
            if not 1 <= (size := getattr(self, name)) <= LONGEST:
                raise ValueError(f"the {name.replace('_', ' ')} of an entry is 1 to {LONGEST} tokens, not {size}")


def build(
    out: Path,
    counts: Counts,
    vocabulary: Vocabulary,
    recipe: Recipe,
    *,
    corpus: Mapping[str, Any],
    language: str = "",
    licence: str = "",
    tokenizer_name: str = "",
    advance: Advance = lambda *_: None,
) -> file.Header:
    """Write the dictionary of a counted corpus, all of it or nothing. ``corpus`` tells what was counted."""
    advance("spelling n-grams", 0, 0)
    found = spelled(counts.grams, vocabulary)[: recipe.order]
    advance("asking what follows", 0, 0)
    table = entries(
        statistics(found, recipe.longest_prefix),
        count=recipe.entries,
        min_probability=recipe.min_probability,
        longest=recipe.longest_completion,
    )
    if not len(table):
        raise ValueError(
            f"nothing in this corpus goes on in one way with a probability of {recipe.min_probability}; "
            "give more text or a lower --min-prob"
        )
    return file.write(
        out,
        table,
        tokenizer=vocabulary.fingerprint,
        tokenizer_name=tokenizer_name,
        language=language,
        licence=licence,
        order=recipe.order,
        min_probability=recipe.min_probability,
        longest_prefix=recipe.longest_prefix,
        longest_completion=recipe.longest_completion,
        corpus=dict(corpus),
    )
