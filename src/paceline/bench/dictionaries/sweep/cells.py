"""What a sweep measures: a cell for each dictionary, and what is known of the text it was tried on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from paceline.bench.dictionaries.tally import Some, Tally
from paceline.files.shape import Amount, Count, shaped


@dataclass(frozen=True, kw_only=True)
class About:
    """A tokenizer in a language."""

    tokenizer: str
    language: str
    fingerprint: str
    """Of the tokenizer."""
    train_words: Count
    test_words: Some
    test_tokens: Some
    """Tokens to write, one step each without a dictionary."""
    fertility: Amount
    """Tokens per word of the test text, line by line."""

    @property
    def pair(self) -> tuple[str, str]:
        return self.tokenizer, self.language

    @property
    def steps_per_word(self) -> float:
        """Without a dictionary."""
        return self.test_tokens / self.test_words


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A dictionary, and what it brings."""

    tokenizer: str
    language: str
    order: int
    size: int
    """Entries that were asked for."""
    min_probability: float
    entries: Count
    """Entries that there are."""
    tally: Tally

    @property
    def pair(self) -> tuple[str, str]:
        return self.tokenizer, self.language

    @property
    def filled(self) -> bool:
        """Whether there were as many candidates as were asked for."""
        return self.entries >= self.size

    def as_dict(self, about: About) -> dict[str, Any]:
        """A line of results: with the ratios drawn from the counts."""
        told = {name: value for name, value in vars(self).items() if name != "tally"}
        steps = {"steps_per_word": self.tally.steps / about.test_words, "tokens_per_word": about.steps_per_word}
        return told | {"filled": self.filled} | self.tally.as_dict() | steps

    @classmethod
    def of(cls, row: dict[str, Any]) -> Cell:
        """From such a line; ValueError where it is none."""
        of_tally = {field.name for field in fields(Tally)}
        counts = {name: value for name, value in row.items() if name in of_tally}
        known = {field.name for field in fields(cls)} - {"tally"}
        return shaped(cls, {name: value for name, value in row.items() if name in known} | {"tally": counts})


@dataclass(frozen=True)
class Swept:
    """All that a sweep found."""

    abouts: Sequence[About]
    cells: Sequence[Cell]

    @property
    def languages(self) -> list[str]:
        return list(dict.fromkeys(about.language for about in self.abouts))

    @property
    def tokenizers(self) -> list[str]:
        return list(dict.fromkeys(about.tokenizer for about in self.abouts))

    def about(self, pair: tuple[str, str]) -> About:
        return next(about for about in self.abouts if about.pair == pair)

    def of(self, pair: tuple[str, str], order: int | None = None) -> list[Cell]:
        return [cell for cell in self.cells if cell.pair == pair and order in (None, cell.order)]

    def rows(self) -> list[dict[str, Any]]:
        """Every cell as plain data."""
        by_pair = {about.pair: about for about in self.abouts}
        return [cell.as_dict(by_pair[cell.pair]) for cell in self.cells]

    def as_dict(self) -> dict[str, Any]:
        return {"texts": [asdict(about) for about in self.abouts], "cells": self.rows()}


def best(cells: Iterable[Cell]) -> Cell:
    """The fewest steps; of equals the smallest dictionary, then the one that is surest."""
    return min(cells, key=lambda cell: (cell.tally.steps, cell.size, -cell.min_probability, cell.order))


def ngrams(order: int) -> str:
    """What the paper calls dictionaries of n-grams of up to so many words: n1, n12, n123."""
    return "n" + "".join(map(str, range(1, order + 1)))
