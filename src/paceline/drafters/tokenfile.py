"""The description of files of token ids: datastores and memories.

Both hold the array ``tokens``, each one higher than its id, so that 0 is the border between two texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.files.shape import Bounds, Count
from paceline.vocabulary import Vocabulary, check_ids

Ids = NDArray[np.int64]

WIDEST = 2**31 - 2
"""The highest token id: two of them fit into one number of 64 bits, by which places are sorted."""


@dataclass(frozen=True)
class TokenHeader:
    """The description of a file of tokens."""

    tokenizer: str
    """Its fingerprint; empty where it is unknown."""
    texts: Count
    highest: Annotated[int, Bounds(0, WIDEST)]
    """The highest token id."""

    @classmethod
    def of(cls, tokens: Ids, tokenizer: str) -> TokenHeader:
        """That of tokens with a border behind each text."""
        highest = max(int(tokens.max(initial=0)) - 1, 0)
        if highest > WIDEST:
            raise InputError(f"token {highest} is too high an id for a file of tokens; the highest is {WIDEST}")
        return cls(tokenizer, len(tokens) - int(np.count_nonzero(tokens)), highest)

    @property
    def width(self) -> int:
        """How many bytes hold every id, and the border."""
        return 2 if self.highest + 1 < 2**16 else 4

    def check(self, path: str, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer."""
        check_ids(path, self.tokenizer, self.highest, vocab_size, vocabulary)
