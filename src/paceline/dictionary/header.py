"""The header of a dictionary's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from paceline.dictionary.keys import LONGEST
from paceline.files.shape import Bounds
from paceline.vocabulary import Vocabulary, check_ids

MOST = 1 << 24
"""Entries, completions and different tokens at most."""
Number = Annotated[int, Bounds(0, MOST)]
Length = Annotated[int, Bounds(1, LONGEST)]


class EntryRule(StrEnum):
    """The rule by which entries propose."""

    TOKEN = "token"
    """One token after the other, as long as each is likely enough after those before it."""
    PAPER = "paper"
    """The most probable ending, if it is likely enough as a whole."""


@dataclass(frozen=True, kw_only=True)
class DictionaryHeader:
    """The description of a dictionary in its file."""

    entries: Number
    completions: Number
    """Different ones."""
    highest: Annotated[int, Bounds(0, 2**31 - 1)]
    """The highest token id."""
    longest_prefix: Length
    longest_completion: Length
    tokenizer: str
    """The fingerprint of the vocabulary that its ids belong to."""
    language: str
    order: Length
    """Words of an n-gram at most."""
    min_probability: Annotated[float, Bounds(0, 1)]
    rule: EntryRule = EntryRule.TOKEN
    """The rule by which entries propose."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """The corpus that it was built from: fingerprint, words, documents, bytes, n-grams."""
    licence: str = ""
    """The licence of the corpus, as its builder stated it."""
    tokenizer_name: str = ""
    """The tokenizer's name where the dictionary was built."""

    def check(self, path: str | Path, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer."""
        check_ids(path, self.tokenizer, self.highest, vocab_size, vocabulary, self.tokenizer_name)
