"""A dictionary of a text that nobody wrote, to time look-ups with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary import file
from paceline.dictionary.entries import Entries, level
from paceline.dictionary.statistics import LONGEST, NOWHERE
from paceline.tree import Ints

ENTRIES = 50_000
KEY, COMPLETION = 2, 3


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
