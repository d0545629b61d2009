"""A target that is an explicit conditional table over a few tokens: small enough to enumerate every text it can write.

It is the public test double. The author of a plug-in sees within milliseconds whether a drafter keeps the law, and our
own tests compute output laws exactly. The table gives log2 weights: if these are integers, every probability after
every warp is a fraction.

    >>> target = TableTarget(lambda history: [0, 1, 2] if len(history) % 2 else [3, 0, 0], vocab_size=3)
    >>> rows = target.open()
    >>> scores = target.submit([Request.of_tree(rows, 0, DraftTree.chain([2]))]).result()[0]
    >>> scores.choice(-1), scores.choice(0)
    (2, 0)

Its rows store the tokens, and every history is read from them, so a row gathered from the wrong place changes the
result as it would in a model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from paceline.law.scores import Array, Row
from paceline.targets.base import Done, Pending, Request, Rows, Target
from paceline.targets.scores import Scores
from paceline.tree import DraftTree, Ints

__all__ = ["DraftTree", "Request", "TableRows", "TableTarget", "random_table"]

Table = Callable[[tuple[int, ...]], Sequence[float]]
"""All tokens so far -> the log2 weight of each next token; ``-inf`` forbids one."""
ROWS_READ = 128
"""Rows that a fingerprint reads at most: a whole table of thousands of tokens takes seconds."""


class TableRows(Rows):
    """One integer per row, the token, in place of a model's keys and values."""

    def __init__(self, capacity: int = 0) -> None:
        super().__init__()
        self.cells = np.full(max(capacity, 16), -1, np.int64)

    def write(self, tokens: Ints, held: int = 0) -> None:
        self.note(tokens, held)
        end = self.committed + self.tentative
        if end > len(self.cells):
            self.cells = np.concatenate([self.cells, np.full(max(end, len(self.cells)), -1, np.int64)])
        self.cells[self.committed + held : end] = tokens

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, TableRows), "rows are copied from a sequence of the same target"
        self.write(other.cells[:count])

    def _gather(self, rows: Ints) -> None:
        self.cells[self.committed : self.committed + len(rows)] = self.cells[self.committed + rows]

    def check(self) -> None:
        assert (self.cells[: self.committed] == self.tokens).all(), "a cached row holds another token than its own"


class TableTarget(Target):
    """``table(history)`` gives the log2 weights of the next token; logits are those times ln 2, in float64.

    It counts as one layer, and embeds a token as a 1 in its own place. The hidden state of a row says the same in every
    layer: the last token, and by half the one before it. An early exit has the logits themselves. What networks read,
    states, embeddings and early logits, are tensors of torch; all else is numpy's.
    """

    def __init__(
        self,
        table: Table,
        vocab_size: int,
        *,
        eos: frozenset[int] = frozenset(),
        context_length: int | None = None,
        dtype: str = "float64",
        prefill_chunk: int = 4,
    ) -> None:
        self.name = "table"
        self.table = table
        self.vocab_size = vocab_size
        self.eos = eos
        self.context_length = context_length
        self._dtype = dtype
        self.prefill_chunk = prefill_chunk
        self.forwards = 0
        """How many forwards there were, for tests that count them."""

    @property
    def dtype(self) -> str:
        return self._dtype

    @property
    def layers(self) -> int:
        return 1

    def embed(self, tokens: Array) -> Array:
        return _tensor(np.eye(self.vocab_size, dtype=self._dtype))[tokens]

    def open(self, capacity: int = 0) -> TableRows:
        return TableRows(capacity)

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.forwards += 1
        return Done([self._score(request) for request in requests])

    def _score(self, request: Request) -> Scores:
        rows = request.rows
        assert isinstance(rows, TableRows), "a table scores the rows it opened"
        rows.write(request.tokens, request.held)
        prefix = rows.cells[: rows.committed]
        tentative = rows.cells[rows.committed : request.end]
        seen = [(*prefix.tolist(), *tentative[ids].tolist()) for ids in request.visible]
        scored, early = seen[request.scored], None
        if request.want.early_exit is not None:
            early = _tensor(self._logits(seen))
            if request.on_early is not None:
                request.on_early(early)
        states = self._states(seen) if request.want.hidden else None
        hidden = {} if states is None else dict.fromkeys(request.want.hidden, states)
        return Scores.of(request, self._logits(scored) if scored else None, hidden, early)

    def _logits(self, histories: Sequence[tuple[int, ...]]) -> Row:
        weights = np.array([list(self.table(history)) for history in histories], np.float64)
        return (weights * math.log(2)).astype(self._dtype)

    def _states(self, histories: Sequence[tuple[int, ...]]) -> Array:
        states = np.zeros((len(histories), self.vocab_size), self._dtype)
        for state, history in zip(states, histories, strict=True):
            for token, weight in zip(history[::-1], (1.0, 0.5), strict=False):
                state[token] += weight
        return _tensor(states)

    def fingerprint(self) -> str:
        every = -(-self.vocab_size // ROWS_READ)
        probe = [list(self.table((token,))) for token in range(0, self.vocab_size, every)]
        return hashlib.sha256(repr(probe).encode()).hexdigest()[:16]


def _tensor(numbers: Row) -> Array:
    import torch

    return torch.from_numpy(numbers)


def random_table(vocab_size: int, *, seed: int = 0, memory: int = 3, spread: int = 4, step: int = 1) -> Table:
    """A table whose law depends on the last ``memory`` tokens and on the length: integer log2 weights, multiples of
    ``step``, within ``spread``."""

    def table(history: tuple[int, ...]) -> list[float]:
        key = f"{seed}:{len(history)}:{history[-memory:]}".encode()
        state = np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))
        return [float(step * weight) for weight in state.integers(0, spread + 1, vocab_size)]

    return table
