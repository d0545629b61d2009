"""From counts to a dictionary: encode the n-grams, find what usually follows, keep the most frequent, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.dictionary import file
from paceline.dictionary.entries import Entries, ascending, different, level
from paceline.dictionary.header import MOST, DictionaryHeader, EntryRule
from paceline.dictionary.keys import LONGEST, NOWHERE
from paceline.errors import InputError
from paceline.vocabulary import Vocabulary
from paceline_make.dictionary.counting import NgramCounts
from paceline_make.dictionary.endings import under
from paceline_make.dictionary.running import spelled
from paceline_make.dictionary.statistics import Statistics, statistics

Advance = Callable[[str, int, int], None]
"""Called with the current step, the work done, and the whole work."""


@dataclass(frozen=True, kw_only=True)
class DictionarySettings:
    """The settings of a new dictionary."""

    order: int = 3
    """The most words of an n-gram."""
    entries: int = 200_000
    rule: EntryRule = EntryRule.TOKEN
    min_probability: float = 0.8
    """The least probability of each proposed token after those before it, or of the whole proposal, by the rule."""
    longest_prefix: int = LONGEST
    longest_completion: int = LONGEST

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 3:
            raise InputError(f"a dictionary is of n-grams of 1 to 3 words, not {self.order}")
        if not 1 <= self.entries <= MOST:
            raise InputError(f"a dictionary has 1 to {MOST} entries, not {self.entries}")
        if not 0 < self.min_probability <= 1:
            raise InputError(f"a probability is above 0 and at most 1, not {self.min_probability}")
        for name in ("longest_prefix", "longest_completion"):
            if not 1 <= (size := getattr(self, name)) <= LONGEST:
                raise InputError(f"the {name.replace('_', ' ')} of an entry is 1 to {LONGEST} tokens, not {size}")


def build(
    out: Path,
    counts: NgramCounts,
    vocabulary: Vocabulary,
    settings: DictionarySettings,
    *,
    corpus: Mapping[str, Any],
    language: str = "",
    licence: str = "",
    tokenizer_name: str = "",
    advance: Advance = lambda *_: None,
) -> DictionaryHeader:
    """Write the dictionary of a counted corpus, all or nothing. ``corpus`` describes what was counted."""
    advance("spelling n-grams", 0, 0)
    found = spelled(counts.grams, vocabulary)[: settings.order]
    advance("finding what follows", 0, 0)
    entries = chosen(
        under(settings.rule, statistics(found, settings.longest_prefix), found, settings.longest_completion),
        count=settings.entries,
        min_probability=settings.min_probability,
        longest=settings.longest_completion,
    )
    if not len(entries):
        raise InputError(
            f"no n-gram of this corpus has a continuation with a probability of {settings.min_probability}; "
            "give more text or a lower --min-prob"
        )
    return file.write(
        out,
        entries,
        tokenizer=vocabulary.fingerprint,
        tokenizer_name=tokenizer_name,
        language=language,
        licence=licence,
        order=settings.order,
        rule=settings.rule,
        min_probability=settings.min_probability,
        longest_prefix=settings.longest_prefix,
        longest_completion=settings.longest_completion,
        corpus=dict(corpus),
    )


def chosen(found: Statistics, *, count: int, min_probability: float, longest: int) -> Entries:
    """The ``count`` most frequent keys with something to propose, and their proposals of up to ``longest`` tokens."""
    keys = found.candidates(min_probability)[:count]
    tokens, likely = found.completed(keys, min_probability, longest)
    prefixes = found.tokens(keys)
    order = ascending(prefixes[:, ::-1])
    texts, which = different(np.pad(tokens, ((0, 0), (0, LONGEST - longest)), constant_values=NOWHERE))
    there = tokens != NOWHERE
    more = there.sum(axis=1) - 1
    with np.errstate(divide="ignore"):
        later = np.exp(np.where(there, np.log(likely), 0.0)[:, 1:].sum(axis=1) / np.maximum(more, 1))
    return Entries(
        prefixes=prefixes[order],
        completions=which[order],
        first=level(likely[:, 0])[order],
        rest=level(np.where(more > 0, later, likely[:, 0]))[order],
        texts=texts,
    )
