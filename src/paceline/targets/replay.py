"""A target that replays a text: behind the text's own tokens it predicts the text's next one. Nothing is computed.

Decoding with it counts how many rounds a method needs for a given text, without a model. Any sampling settings write
the text, since each row has only one possible token.

    >>> target = ReplayTarget([[5, 6, 7, 8]], vocab_size=10)
    >>> rows = target.open()
    >>> scores = target.submit([Request.of_tree(rows, 5, DraftTree.chain([6, 9]))]).result()[0]
    >>> scores.choices()
    array([6, 7, 0])

A row that is not on the text predicts token 0; a row at the text's end the end-of-text token, or 0 if there is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.context import common_length
from paceline.errors import InputError
from paceline.law.scores import Array, Row
from paceline.targets.base import Done, Pending, Request, Rows, Target
from paceline.targets.gguf.file import named_file
from paceline.targets.mlx.names import is_mlx
from paceline.targets.reading import Floats, Top
from paceline.targets.scores import Scores
from paceline.tree import DraftTree, Ints, is_chain
from paceline.vocabulary import Vocabulary

__all__ = ["DraftTree", "ReplayRows", "ReplayScores", "ReplayTarget", "Request", "open_vocabulary"]

ELSEWHERE = 0
"""The prediction of a row that is not on the text."""


class ReplayRows(Rows):
    """Rows that hold only their tokens, and the text that these follow."""

    def __init__(self) -> None:
        super().__init__()
        self.text: Ints | None = None
        self.followed = 0
        """How many committed tokens are known to be the text's."""

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
    """Predicts the one of the ``texts`` that the rows begin with. Of texts that begin alike it takes the first, so a
    prompt should be long enough to tell them apart."""

    first_token_with_prompt = False
    """A replay counts rounds, and each of them has a draft."""
    context_length = None
    prefill_chunk = 1 << 20
    """Prompt tokens cost nothing."""

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
        for number, text in enumerate(self.texts, start=1):
            if len(text) == 0:
                raise InputError(f"text {number} of {len(self.texts)} to replay is empty")
            if text.min() < 0 or text.max() >= vocab_size:
                raise InputError(
                    f"text {number} to replay has tokens from {text.min()} to {text.max()}, and the vocabulary "
                    f"{vocab_size} ids; encode it with this vocabulary's tokenizer"
                )

    @property
    def dtype(self) -> str:
        return "float32"

    def open(self, capacity: int = 0) -> ReplayRows:
        return ReplayRows()

    def submit(self, requests: Sequence[Request]) -> Pending:
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
        predicted = self._predicted(rows, self._text(rows), request.parents)[request.held :]
        cut = request.prompt if request.prompt < len(predicted) else 0
        scores = ReplayScores(request, predicted, self.vocab_size, slice(cut, len(predicted)))
        scores.prompt = ReplayScores(request, predicted, self.vocab_size, slice(0, cut)) if cut else None
        return scores

    def _text(self, rows: ReplayRows) -> Ints | None:
        """The text that the committed rows follow: the same as before, or the first that begins with them."""
        for text in self.texts if rows.text is None else [rows.text, *self.texts]:
            fresh = rows.followed if text is rows.text else 0
            if np.array_equal(text[fresh : rows.committed], rows.tokens[fresh:]) and self._begun(rows, text):
                rows.text, rows.followed = text, rows.committed
                return text
        return None

    def _begun(self, rows: ReplayRows, text: Ints) -> bool:
        """Where nothing is committed yet, the first token decides."""
        return rows.committed > 0 or (len(rows.drafted) > 0 and rows.drafted[0] == text[0])

    def _predicted(self, rows: ReplayRows, text: Ints | None, parents: Ints) -> Ints:
        """The prediction of every tentative row: a row is on the text if its parent is and its token is the text's."""
        predicted = np.full(len(parents), ELSEWHERE, np.int64)
        if text is None:
            return predicted
        ahead = text[rows.committed :]
        if is_chain(parents):
            on = common_length(rows.drafted, ahead)
            predicted[:on] = [*ahead[1 : on + 1], self._end] if on == len(ahead) else ahead[1 : on + 1]
            return predicted
        depths = np.zeros(len(parents), np.int64)  # of rows on the text; 0 for the others
        for row, (token, parent) in enumerate(zip(rows.drafted.tolist(), parents.tolist(), strict=True)):
            above = 0 if parent < 0 else int(depths[parent])
            if (parent < 0 or above) and above < len(ahead) and token == ahead[above]:
                depths[row] = above + 1
                predicted[row] = ahead[above + 1] if above + 1 < len(ahead) else self._end
        return predicted

    @property
    def _end(self) -> int:
        return min(self.eos, default=ELSEWHERE)


class ReplayScores(Scores):
    """One token per row. Rows of logits are made when they are read: 0 for the token, minus infinity for all others."""

    def __init__(self, request: Request, predicted: Ints, vocab_size: int, rows: slice) -> None:
        super().__init__(request, None, rows=rows)
        self._predicted = predicted[rows]
        self._vocab_size = vocab_size

    @property
    def _best(self) -> tuple[Ints, Floats]:
        return self._predicted, np.zeros(len(self._predicted), np.float32)

    @property
    def logits(self) -> Array:
        return np.stack([self._row(token) for token in self._predicted.tolist()])

    def row(self, node: int) -> Row:
        return self._row(self.choice(node))

    def _row(self, token: int) -> Row:
        row = np.full(self._vocab_size, -np.inf, np.float32)
        row[token] = 0.0
        return row

    def top(self, k: int) -> Top:
        """The predicted token, then the lowest of the other ids."""
        width = min(k, self._vocab_size)
        others = np.arange(width)[None, : width - 1]
        ids = np.concatenate([self._predicted[:, None], others + (others >= self._predicted[:, None])], axis=1)
        logits = np.full(ids.shape, -np.inf, np.float32)
        logits[:, :1] = 0
        return Top(ids, logits, np.zeros(len(ids)))


def open_vocabulary(model: str | Path) -> Vocabulary:
    """The vocabulary of a bundled model, of a folder that holds at least a tokenizer, of a GGUF file, or of a model on
    the hub. No weights are read, but those of a GGUF file."""
    from paceline.targets.pocket.names import BALLAST_MARK, is_bundled

    if isinstance(model, str) and is_bundled(model):
        from paceline.targets.pocket.bundle import BundledTokenizer
        from paceline.targets.pocket.shape import read_ballast

        bundled: Any = BundledTokenizer(read_ballast(model).source if BALLAST_MARK in model else model)
        return Vocabulary(bundled)
    if is_mlx(model):
        from paceline.targets.mlx.load import load_tokenizer as load_mlx_tokenizer

        return Vocabulary(load_mlx_tokenizer(str(model)))
    tokenizer: Any
    if (file := named_file(model)) is not None:
        from paceline.targets.gguf.load import load_file_tokenizer

        tokenizer = load_file_tokenizer(file)
    else:
        from paceline.targets.hf.load import load_tokenizer

        tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise InputError(f"no tokenizer at {str(model)!r}: neither a folder that holds one nor a model within reach")
    return Vocabulary(tokenizer)
