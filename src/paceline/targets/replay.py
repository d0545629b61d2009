"""A target whose oracle is a text: after the text's own tokens it says the text's next one, and nothing is computed.

Decoding with it counts steps exactly: how many rounds a method needs for a given text, with no model and no noise of
the clock. Any sampling settings write the text, for a row holds one token that can be.

    >>> target = ReplayTarget([[5, 6, 7, 8]], vocab_size=10)
    >>> rows = target.open()
    >>> scores = target.submit([Request.of_tree(rows, 5, DraftTree.chain([6, 9]))]).result()[0]
    >>> scores.choices()
    array([6, 7, 0])

A row off the text says token 0, and so does one at the text's end, unless there is an end-of-text token to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from paceline.errors import InputError
from paceline.targets.base import Done, Pending, Request, Rows, Target
from paceline.targets.reading import Floats, Top
from paceline.targets.scores import Scores
from paceline.tree import DraftTree, Ints
from paceline.vocabulary import Vocabulary

__all__ = ["DraftTree", "ReplayRows", "ReplayScores", "ReplayTarget", "Request", "open_vocabulary"]

ELSEWHERE = 0
"""What a row says that is on no text."""
AT_ONCE = 1 << 20
"""Prompt tokens per request: none of them costs anything."""


class ReplayRows(Rows):
    """Rows that hold nothing but their tokens, and which text these have followed so far."""

    def __init__(self) -> None:
        super().__init__()
        self.text: Ints | None = None
        self.followed = 0
        """How many of the committed tokens are known to be the text's."""

    def _copy(self, other: Rows, count: int) -> None:
        self._truncate()

    def _gather(self, rows: Ints) -> None:
        pass

    def _truncate(self) -> None:
        self.text, self.followed = None, 0

    def check(self) -> None:
        assert self.followed <= self.committed, "no more tokens are followed than are there"
        if self.text is not None:
            seen = self.text[: self.followed]
            assert np.array_equal(seen, self.tokens[: self.followed]), "the rows are of another text than they follow"


class ReplayTarget(Target):
    """Says the ``texts``, each from its first token to its last, whichever one the rows have begun. Of texts that begin
    alike it says the first, so a prompt should be as long as it takes to tell them apart."""

    first_token_with_prompt = False
    """Rounds are what a replay counts, and a draft belongs to each of them; a forward costs nothing."""

    context_length = None
    prefill_chunk = AT_ONCE

    def __init__(
        self,
        texts: Sequence[Sequence[int] | Ints],
        vocab_size: int,
        *,
        eos: frozenset[int] = frozenset(),
        name: str = "replay",
    ) -> None:
        self.name = name
        self.texts = [np.array(text, np.int64) for text in texts]
        self.vocab_size = vocab_size
        self.eos = eos
        self.forwards = 0
        for number, text in enumerate(self.texts, start=1):
            if len(text) == 0:
                raise InputError(f"text {number} of {len(self.texts)} to replay is empty")
            if text.min() < 0 or text.max() >= vocab_size:
                raise InputError(
                    f"text {number} to replay has tokens from {text.min()} to {text.max()}, and the vocabulary "
                    f"{vocab_size} ids; encode it with this vocabulary's tokenizer"
                )

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def open(self, capacity: int = 0) -> ReplayRows:
        return ReplayRows()

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.forwards += 1
        return Done([self._score(request) for request in requests])

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.vocab_size, sorted(self.eos))).encode())
        for text in self.texts:
            digest.update(text.tobytes() + b";")
        return digest.hexdigest()[:16]

    def _score(self, request: Request) -> ReplayScores:
        rows = request.rows
        assert isinstance(rows, ReplayRows), "a text is replayed on the rows it opened"
        if request.want.hidden or request.want.early_exit is not None:
            raise InputError(f"{self.name} is a text and has no hidden states; drafters that read them need a model")
        rows.note(request.tokens, request.held)
        said = self._said(rows, self._text(rows), request.parents)[request.held :]
        cut = request.prompt if request.prompt < len(said) else 0
        scores = ReplayScores(request, said, self.vocab_size, slice(cut, len(said)))
        scores.prompt = ReplayScores(request, said, self.vocab_size, slice(0, cut)) if cut else None
        return scores

    def _text(self, rows: ReplayRows) -> Ints | None:
        """The text that the committed rows follow: still the same one, or the first that begins as they do."""
        for text in self.texts if rows.text is None else [rows.text, *self.texts]:
            fresh = rows.followed if text is rows.text else 0
            if np.array_equal(text[fresh : rows.committed], rows.tokens[fresh:]) and self._begun(rows, text):
                rows.text, rows.followed = text, rows.committed
                return text
        return None

    def _begun(self, rows: ReplayRows, text: Ints) -> bool:
        """Where nothing is committed yet, the first token must tell which text it is."""
        return rows.committed > 0 or (len(rows.drafted) > 0 and rows.drafted[0] == text[0])

    def _said(self, rows: ReplayRows, text: Ints | None, parents: Ints) -> Ints:
        """What every tentative row says: a row is on the text if its parent is and its token is the text's."""
        said = np.full(len(parents), ELSEWHERE, np.int64)
        if text is None:
            return said
        ahead = text[rows.committed :]
        if np.array_equal(parents, np.arange(-1, len(parents) - 1)):
            drafted = rows.drafted[: len(ahead)]
            differ = np.flatnonzero(drafted != ahead[: len(drafted)])
            on = int(differ[0]) if len(differ) else len(drafted)
            said[:on] = [*ahead[1 : on + 1], self._end] if on == len(ahead) else ahead[1 : on + 1]
            return said
        depths = np.zeros(len(parents), np.int64)  # rows on the path to one on the text, itself included; 0 off it
        for row, (token, parent) in enumerate(zip(rows.drafted.tolist(), parents.tolist(), strict=True)):
            above = 0 if parent < 0 else int(depths[parent])
            if (parent < 0 or above) and above < len(ahead) and token == ahead[above]:
                depths[row] = above + 1
                said[row] = ahead[above + 1] if above + 1 < len(ahead) else self._end
        return said

    @property
    def _end(self) -> int:
        return min(self.eos, default=ELSEWHERE)


class ReplayScores(Scores):
    """One token per row. Rows of logits are made when somebody asks for them: 0 for the token, minus infinity for all
    others."""

    def __init__(self, request: Request, said: Ints, vocab_size: int, rows: slice) -> None:
        super().__init__(request, None, rows=rows)
        self._said = said[rows]
        self._vocab_size = vocab_size

    @cached_property
    def _best(self) -> tuple[Ints, Floats]:
        return self._said, np.zeros(len(self._said), np.float32)

    @property
    def logits(self) -> torch.Tensor:
        return torch.stack([self._row(token) for token in self._said.tolist()])

    def row(self, node: int) -> torch.Tensor:
        return self._row(self.choice(node))

    def _row(self, token: int) -> torch.Tensor:
        row = torch.full((self._vocab_size,), -torch.inf)
        row[token] = 0.0
        return row

    def top(self, k: int) -> Top:
        """The token that is said, then the lowest ids of those that cannot be."""
        width = min(k, self._vocab_size)
        others = np.arange(width)[None, : width - 1]
        ids = np.concatenate([self._said[:, None], others + (others >= self._said[:, None])], axis=1)
        logits = np.full(ids.shape, -np.inf, np.float32)
        logits[:, :1] = 0
        return Top(ids, logits, np.zeros(len(ids)))


def open_vocabulary(model: str | Path) -> Vocabulary:
    """The vocabulary of a bundled model, of a folder (one that holds nothing but a tokenizer will do) or of a model on
    the hub; no weights are read."""
    from paceline.targets.hf.load import load_tokenizer
    from paceline.targets.pocket.bundle import read_tokenizer
    from paceline.targets.pocket.open import is_bundled
    from paceline.targets.pocket.shape import MARK, read_ballast

    if isinstance(model, str) and is_bundled(model):
        return Vocabulary(read_tokenizer(read_ballast(model).source if MARK in model else model))
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise InputError(f"no tokenizer at {str(model)!r}: neither a folder that holds one nor a model within reach")
    return Vocabulary(tokenizer)
