"""The law of an exact target: the same tokens have the same logits, bit by bit, however they were scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np

from paceline.engine.observe import Observed
from paceline.law.scores import Array, fetched, full_precision
from paceline.tree import Ints

SHOWN = 3
"""Rows that are named where many differ."""


class RowWitness:
    """Observes texts: remembers every row that is scored by the tokens before it, and finds those that differ from
    before."""

    def __init__(self) -> None:
        self._digests: dict[bytes, bytes] = {}
        self.again = 0
        """Rows that had been scored before."""
        self.different: list[str] = []

    def __call__(self, seen: Observed) -> None:
        """Note the rows of a round: of the root, and of the nodes of its draft."""
        scores = seen.scores
        before = seen.context.tokens[: seen.round.position - 1]
        paths = list[Ints]()
        for token, parent in zip(scores.tokens, scores.parents.tolist(), strict=True):
            paths.append(np.append(paths[parent] if parent >= 0 else before, token))
        self.note(paths, scores.logits, beside=len(paths) - 1)

    def note(self, texts: Sequence[Ints], logits: Array, beside: int) -> None:
        """Note the row after each of these texts, which was scored ``beside`` others of its sequence."""
        for text, row in zip(texts, fetched(full_precision(logits)), strict=True):
            found = blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest()
            known = self._digests.setdefault(blake2b(text.tobytes(), digest_size=16).digest(), found)
            self.again += known is not found
            if known != found:
                self.different.append(f"after {len(text)} tokens, beside {beside} rows of its text")

    def faults(self) -> Iterator[str]:
        """A sentence, if any row differed."""
        if self.different:
            shown = "; ".join(self.different[:SHOWN])
            yield f"{len(self.different)} of {self.again} rows that were scored again have other bits: {shown}"
