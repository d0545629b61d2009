"""What is swept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.dictionaries import paper
from paceline.bench.dictionaries.emulator import BUDGET
from paceline.dictionary.corpus import open_corpus
from paceline.dictionary.sources import HUB

FORMAT = 1
DIGITS = 16
"""Of a checksum."""
TEST_WORDS = 100_000
NGRAMS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every choice that decides the results."""

    tokenizers: Mapping[str, str]
    """Name -> where it is opened from."""
    texts: Mapping[str, Sequence[str]]
    """Language -> the sources of its corpus."""
    orders: Sequence[int] = paper.ORDERS
    sizes: Sequence[int] = paper.SIZES
    min_probabilities: Sequence[float] = paper.MIN_PROBABILITIES
    test_words: int = TEST_WORDS
    budget: int = BUDGET
    ngrams: int = NGRAMS
    """N-grams of each number of words that are counted on with, the most frequent."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of the tokenizers, by name."""

    def __post_init__(self) -> None:
        for what, values in (("order", self.orders), ("size", self.sizes), ("tokenizer", list(self.tokenizers))):
            if not values:
                raise ValueError(f"a sweep needs at least one {what}; name one, or leave the option out")
        if not all(1 <= order <= 5 for order in self.orders):
            raise ValueError(f"orders are numbers of words from 1 to 5, not {_listed(self.orders)}")
        if not all(size >= 1 for size in self.sizes):
            raise ValueError(f"sizes are numbers of entries, 1 or more, not {_listed(self.sizes)}")
        if not self.min_probabilities or not all(0 < one <= 1 for one in self.min_probabilities):
            raise ValueError(f"probabilities are above 0 and at most 1, not {_listed(self.min_probabilities)}")
        if self.test_words < 1:
            raise ValueError(f"a test text has at least 1 word, not {self.test_words}")
        if not 1 <= self.budget <= BUDGET:
            raise ValueError(f"a draft has from 1 to {BUDGET} tokens, not {self.budget}")
        if self.ngrams < 1:
            raise ValueError(f"at least 1 n-gram of each number of words is looked at, not {self.ngrams}")
        for source in (one for sources in self.texts.values() for one in sources):
            if source.startswith(HUB):
                raise ValueError(f"a sweep can't tell whether {source} stays the same; save it, and name its folder")
        names = [slug(name) for name in (*self.tokenizers, *self.texts)]
        if len(set(names)) < len(names):
            raise ValueError(f"names of tokenizers and languages must differ as file names do: {_listed(names)}")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(tokenizer, language) for language in self.texts for tokenizer in self.tokenizers]

    @property
    def cells_per_order(self) -> int:
        return len(self.sizes) * len(self.min_probabilities)

    def identity(self) -> dict[str, Any]:
        """As it is kept; a sweep goes on only where this is equal."""
        return {
            "format": FORMAT,
            "tokenizers": dict(self.fingerprints),
            "texts": {language: [_named(source) for source in sources] for language, sources in self.texts.items()},
            "orders": list(self.orders),
            "sizes": list(self.sizes),
            "min_probabilities": list(self.min_probabilities),
            "test_words": self.test_words,
            "budget": self.budget,
            "ngrams": self.ngrams,
        }


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _named(source: str) -> str:
    """A file or a folder by its name and the checksum of what is read of it."""
    path = Path(source)
    files = [file for one in open_corpus([source]).sources for file in _files(Path(one.name))]
    if files == [path]:
        return f"{path.name} {_checksum(path)}"
    listed = "".join(f"{file.relative_to(path).as_posix()}\0{_checksum(file)}\n" for file in files)
    return f"{path.name} {hashlib.sha256(listed.encode(errors='surrogateescape')).hexdigest()[:DIGITS]}"


def _files(place: Path) -> list[Path]:
    """A file, or all of a saved data set."""
    return [place] if not place.is_dir() else sorted(file for file in place.rglob("*") if file.is_file())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values)) or "none"
