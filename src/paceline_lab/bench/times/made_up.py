"""A synthetic text, synthetic model outputs after each of its tokens, and a dictionary of it, to time drafting without
a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary import file
from paceline.dictionary.entries import Entries, level
from paceline.dictionary.keys import LONGEST, NOWHERE
from paceline.targets.reading import Top
from paceline.tree import Floats, Ints

VOCABULARY = 151_936
BEST = 10
"""Best tokens of every row, unless the drafter asks for more."""
TEXT = "made up: tokens by Zipf's law, a dozen or so at a time between passages of 4 to 40 tokens that stood before"
ENTRIES = 50_000
KEY, COMPLETION = 2, 3


@dataclass(frozen=True, eq=False)
class MadeUpModel:
    """A text, and the outputs of a model after each token: the best tokens of each row and their probabilities."""

    text: Ints
    ids: Ints
    logits: Floats

    @classmethod
    def made(cls, length: int, *, vocabulary: int = VOCABULARY) -> MadeUpModel:
        random = np.random.default_rng(0)
        names = random.permutation(vocabulary)
        text = _text(random, names, length)
        bands = np.concatenate([[0], np.cumsum(_bands(vocabulary))])
        ranks = random.integers(bands[:-1], bands[1:], size=(vocabulary, BEST))
        ids = names[random.permuted(ranks, axis=1)]
        for before, after in zip(text[:-1].tolist(), text[1:].tolist(), strict=True):
            others = [token for token in ids[before].tolist() if token != after]
            ids[before] = [after, *others[: BEST - 1]]
        weights = np.sort(random.exponential(size=(vocabulary, BEST)) ** 3, axis=1)[:, ::-1]
        shares = weights / weights.sum(axis=1, keepdims=True) * random.uniform(0.5, 1.0, (vocabulary, 1))
        return cls(text, ids, np.log(shares))

    def wide(self, best: int) -> MadeUpModel:
        """The same, with rows that name more tokens: behind the best ones such as stand together by Zipf's law, ever
        less likely."""
        if best <= (known := self.ids.shape[1]):
            return self
        vocabulary = len(self.ids)
        random = np.random.default_rng(best)
        names = random.permutation(vocabulary)
        starts = np.exp(random.random((vocabulary, 1)) * np.log(vocabulary)).astype(np.int64)
        ids = np.empty((vocabulary, best), np.int64)
        ids[:, :known] = self.ids
        for rows in np.array_split(np.arange(vocabulary), 64):
            more = names[(starts[rows] + np.arange(best)) % vocabulary]
            named = (more[:, :, None] == self.ids[rows, None, :]).any(axis=2)
            fresh = named.argsort(axis=1, kind="stable")[:, : best - known]
            ids[rows, known:] = np.take_along_axis(more, fresh, 1)
        shares = np.exp(self.logits)
        left = np.maximum(1 - shares.sum(axis=1, keepdims=True), 1e-9) / (best - known)
        others = np.minimum(left, shares[:, -1:]) * np.linspace(1, 0.1, best - known)
        return MadeUpModel(self.text, ids, np.hstack([self.logits, np.log(others)]))

    def top(self, tokens: Ints) -> Top:
        return Top(self.ids[tokens], self.logits[tokens].astype(np.float32), np.zeros(len(tokens)))


def _text(random: np.random.Generator, names: Ints, length: int) -> Ints:
    """Tokens by Zipf's law, with passages that stood before."""
    fresh: Ints = names[np.exp(random.random(length) * np.log(len(names))).astype(np.int64) - 1]
    place = 64
    while place < length:
        size, start = int(random.integers(4, 41)), int(random.integers(0, place - 40))
        fresh[place : place + size] = fresh[start : start + min(size, length - place)]
        place += size + int(random.integers(1, 24))
    return fresh


def _bands(vocabulary: int) -> Ints:
    """How many ranks each of a row's candidates is drawn from: ever more, and all of the vocabulary together."""
    shares = vocabulary ** (np.arange(1, BEST + 1) / BEST)
    sizes: Ints = np.maximum(1, shares * (vocabulary - BEST) / shares.sum()).astype(np.int64)
    return sizes


def write_dictionary(path: Path, text: Ints, vocabulary: int, tokenizer: str = "") -> None:
    """A dictionary that knows what follows most pairs of the text's tokens, among pairs of any tokens: one that is
    asked and has something to say as often as can be."""
    random = np.random.default_rng(0)
    own = np.lib.stride_tricks.sliding_window_view(text, KEY + COMPLETION)[:ENTRIES]
    others = random.integers(0, vocabulary, (ENTRIES - len(own), KEY + COMPLETION))
    rows = np.concatenate([own, others])
    backwards, first = np.unique(rows[:, KEY - 1 :: -1], axis=0, return_index=True)
    texts, which = np.unique(rows[first, KEY:], axis=0, return_inverse=True)
    levels = level(random.uniform(0.3, 0.9, (2, len(first))))
    entries = Entries(
        prefixes=_padded(backwards[:, ::-1], (LONGEST - KEY, 0)),
        completions=which.ravel().astype(np.int32),
        first=levels[0],
        rest=levels[1],
        texts=_padded(texts, (0, LONGEST - COMPLETION)),
    )
    file.write(
        path,
        entries,
        tokenizer=tokenizer,
        language="",
        order=1,
        min_probability=0.3,
        longest_prefix=LONGEST,
        longest_completion=LONGEST,
    )


def _padded(tokens: Ints, sides: tuple[int, int]) -> NDArray[np.int32]:
    return np.pad(tokens, ((0, 0), sides), constant_values=NOWHERE).astype(np.int32)
