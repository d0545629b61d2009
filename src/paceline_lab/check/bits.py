"""The law of an exact target: the same tokens have the same logits, bit by bit, however they were scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from paceline.targets.base import Done, Pending, Request, Target
from paceline.tree import Ints

SHOWN = 3
"""Rows that are named where many differ."""


class RowWitness:
    """Remembers every row that a target scores by the tokens before it, and finds those that differ from before."""

    def __init__(self) -> None:
        self._digests: dict[bytes, bytes] = {}
        self.rows = self.again = 0
        """Rows that were scored, and those of them that had been before."""
        self.different: list[str] = []

    @contextmanager
    def watching(self, target: Target) -> Iterator[None]:
        """Compare all rows that the target scores inside."""
        submit = target.submit

        def watched(requests: Sequence[Request]) -> Pending:
            texts = [request.rows.tokens.copy() for request in requests]
            scores = submit(requests).result()
            for text, request, found in zip(texts, requests, scores, strict=True):
                if len(request.tokens) > request.scored.start:
                    logits = found.logits if found.prompt is None else found.logits[-len(found.tokens) :]
                    self._note(text, request, logits.numpy(), len(requests))
            return Done(scores)

        vars(target)["submit"] = watched
        try:
            yield
        finally:
            del vars(target)["submit"]

    def _note(self, text: Ints, request: Request, logits: NDArray[np.generic], beside: int) -> None:
        """Note the last rows of a request, as many as there are logits of."""
        before, drafted = blake2b(text.tobytes(), digest_size=16), request.rows.drafted
        paths = list[bytes]()
        for row, parent in enumerate(request.parents.tolist()):
            paths.append((paths[parent] if parent >= 0 else b"") + drafted[row].tobytes())
        for path, row in zip(paths[-len(logits) :], logits, strict=True):
            key = before.copy()
            key.update(path)
            found = blake2b(np.ascontiguousarray(row).tobytes(), digest_size=16).digest()
            known = self._digests.setdefault(key.digest(), found)
            self.rows += 1
            self.again += known is not found
            if known != found:
                place = (len(text) * text.itemsize + len(path)) // text.itemsize
                self.different.append(f"after {place} tokens, with {len(drafted)} rows of its text and {beside} texts")

    def faults(self) -> Iterator[str]:
        """A sentence, if any row differed."""
        if self.different:
            shown = "; ".join(self.different[:SHOWN])
            yield f"{len(self.different)} of {self.again} rows that were scored again have other bits: {shown}"
