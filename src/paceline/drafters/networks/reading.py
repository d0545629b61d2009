"""One text as a network drafts behind it, and as far as a network with rows has read it.

Rows of the text are committed. Rows of the draft are tentative, each level below the one before, so nothing is read
twice while a draft grows. When the text has gone on, rows that became text are kept, and the other new tokens are read
with the first level of the next draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.counters import Counter, Tally
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.law import Distribution, Outlook
from paceline.law.scores import Array
from paceline.targets.base import Request, Rows
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.scores import Scores
from paceline.tree import ROOT, Floats, Ints

if TYPE_CHECKING:
    import torch

DRAFT_FORWARDS = Counter("draft_forwards", "forwards of draft models")
DRAFT_TOKENS = Counter(
    "draft_tokens", "tokens that draft models drafted, in their own vocabulary, also those that were not sent"
)

NO_ROWS: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class TokenColumns:
    """Which of the target's tokens the columns of a network's logits are: those below ``size`` (None for all), or
    ``ids`` of these, ascending, in the columns ``places`` (by default the first ones)."""

    size: int | None = None
    ids: Ints | None = None
    places: Ints | None = None

    def spread(self, rows: Array) -> Array:
        """Logits over the target's tokens; those that the network lacks are impossible."""
        if self.ids is None:
            return rows if self.size is None else rows[:, : self.size]
        assert self.size is not None, "part of a vocabulary has a size"
        shape = len(rows), self.size
        spread = (
            np.full(shape, -np.inf, rows.dtype) if isinstance(rows, np.ndarray) else rows.new_full(shape, -math.inf)
        )
        spread[:, self.ids] = rows[:, : len(self.ids)] if self.places is None else rows[:, self.places]
        return spread


def _tokens(text: Context) -> Ints:
    return text.tokens


@dataclass(eq=False)
class DraftedText:
    """A text, and how logits behind it become laws of the tokens that a draft is made of."""

    context: Context
    outlook: Outlook
    columns: TokenColumns = TokenColumns()
    tally: Tally = field(default_factory=Tally, kw_only=True)

    def laws(self, rows: Array, texts: Iterable[Ints]) -> list[Distribution]:
        """The law of each row of logits; ``texts`` are the tokens before each, read only if needed."""
        return self.outlook.laws(self.columns.spread(rows), texts)

    def among(self, ids: Ints, rows: Floats, texts: Sequence[Context]) -> list[Distribution]:
        """The laws behind several texts over a few of the target's tokens, ``ids`` ascending, from rows of logits
        ``[texts, ids]``, or one row for all texts."""
        assert self.columns.size is not None, "a network that gives candidates knows the size of the vocabulary"
        return self.outlook.among(ids, rows, self.columns.size, [partial(_tokens, text) for text in texts])

    @property
    def ends(self) -> frozenset[int]:
        """Tokens of a draft that nothing follows."""
        return self.context.ending.eos


@dataclass(eq=False)
class ReadText(DraftedText):
    """A text in tokens that the network reads, and its rows."""

    rows: Rows = field(kw_only=True)
    parents: Ints = field(default_factory=lambda: NO_ROWS, kw_only=True)
    """Parents of the tentative rows, which are those of the last draft."""
    begun: bool = field(default=False, init=False)
    """Whether the first level of a draft is read, so that its rows are tentative."""
    _ahead: tuple[Ints, Ints] = field(default=(NO_ROWS, NO_ROWS), init=False)
    """Tokens that are read with the first level, and their parents."""
    _counts: list[int] = field(default_factory=list, init=False)
    """The rows of each draft in the request that was made last."""

    @property
    def length(self) -> int:
        """The network's tokens of the text."""
        return len(self.context)

    @property
    def known(self) -> int:
        """How many tokens of the text can be read by now."""
        return self.length

    def since(self, start: int) -> Ints:
        """The network's tokens of the text from a place on."""
        return self.context.tokens[start:]

    def branched(self, context: Context, rows: Rows) -> ReadText:
        """The same for a text that this one may become; ``rows`` are a copy of its committed ones."""
        other = copy(self)
        other.context, other.rows, other.parents, other.tally = context, rows, NO_ROWS, Tally()
        return other

    def catch_up(self) -> None:
        """Keep the rows of the last draft that became text; drop the others. The last token is read again where nothing
        has followed it, for its row predicts the next one."""
        if self.rows.committed >= self.length > 0:
            self.rows.rewind(self.length - 1)  # rows with a state may go back further, and then much is unread
            self.parents = NO_ROWS
        self.rows.keep(self.became_text())
        self.parents, self.begun, self._ahead = NO_ROWS, False, (NO_ROWS, NO_ROWS)

    def became_text(self) -> list[int]:
        """The rows of the last draft whose tokens followed, one below the other; rows that may be kept."""
        path: list[int] = []
        row, drafted = -1, self.rows.drafted
        for token in self.since(self.rows.committed)[:-1].tolist():
            below = np.flatnonzero((self.parents == row) & (drafted[: len(self.parents)] == token))
            if len(below) == 0:
                break
            row = int(below[0])
            path.append(row)
        return path

    @property
    def unread(self) -> Ints:
        """The end of the text without rows: at least the last token, whose row predicts the next one."""
        return self.since(self.rows.committed)

    def read(self, count: int) -> None:
        """Commit the first tentative rows: they are text."""
        self.rows.keep(range(count))

    def levels(self, depth: int) -> int:
        """How many tokens of the network ``depth`` tokens of the target take."""
        return depth

    # drafts

    def look_ahead(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Read these tokens with the first level: what may follow the text. Drafts grow behind any of them, or behind
        the text itself, which is parent -1."""
        self._ahead = np.array(tokens, np.int64), np.array(parents, np.int64)

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        """A draft behind the text, or behind the ``text`` whose last token is this row of those ahead."""
        return Growth(self, shape, nodes, depth, text=text, row=row)

    def chain(self, growth: Growth) -> Chain | None:
        """A draft as one chain, where its tokens need nothing but their rows; before it has grown."""
        shape = growth.shape
        simple = self.columns.ids is None and shape.beams == shape.top == 1 and not shape.confidence
        if growth.sampled or not simple:
            return None
        draw = self.outlook.draw(self.context.noise if growth.shared else None, len(self.context))
        if draw is None:
            return None
        return Chain(self.rows, self.unread.copy(), growth.depth, draw, self.columns.size, self.ends)

    def follow(self, growth: Growth, drafted: ChainDraft) -> None:
        """Take the draft that `chain` became."""
        count = len(drafted.tokens)
        self.tally.add(DRAFT_FORWARDS, drafted.forwards)
        self.parents, self.begun = np.arange(-1, count - 2) if count > 1 else NO_ROWS, True
        growth.follow(drafted.tokens, drafted.scores)

    def request(self, growths: Sequence[Growth]) -> Request:
        """The rows to score next: the unread text at first, then the nodes that go on."""
        if self.begun:
            fed = [self.fed(growth) for growth in growths]
            self._counts = [len(tokens) for tokens, _ in fed]
            tokens = np.concatenate([tokens for tokens, _ in fed])
            parents = np.concatenate([self.parents, *(above for _, above in fed)])
            return Request(self.rows, tokens, parents, held=len(self.parents))
        (ahead, parents), unread = self._ahead, self.unread
        chain = np.arange(-1, len(unread) - 1)
        return Request(self.rows, np.concatenate([unread, ahead]), np.concatenate([chain, len(unread) + parents]))

    def fed(self, growth: Growth) -> tuple[Ints, Ints]:
        """The tokens to read for a level of a draft, and the tentative row that each follows."""
        return growth.tokens, growth.kept[growth.above]

    def found(self, scores: Scores, growths: Sequence[Growth]) -> list[list[Distribution]]:
        """The laws behind each draft's nodes that go on, from the scores of `request`."""
        self.tally.add(DRAFT_FORWARDS)
        if not self.begun:
            return self._first_found(scores, growths)
        logits, first, laws = scores.logits, 0, list[list[Distribution]]()
        held, self.parents = len(self.parents), np.concatenate([self.parents, scores.parents])
        for growth, count in zip(growths, self._counts, strict=True):
            laws.append(self.behind(growth, held + first, logits[first : first + count]))
            first += count
        return laws

    def _first_found(self, scores: Scores, growths: Sequence[Growth]) -> list[list[Distribution]]:
        """The same of the first level, whose rows are the text's, and those ahead of it."""
        length, before, self.begun = len(scores.tokens) - len(self._ahead[0]), 0, True
        if length == len(scores.tokens):
            self.read(length)
            before = length
        else:
            self.parents = scores.parents  # those of the text stay tentative, beside those ahead of it
        pairs = [(growth, length + growth.row) for growth in growths]
        return [self.behind(growth, row - before, scores.logits[row : row + 1]) for growth, row in pairs]

    def behind(self, growth: Growth, row: int, logits: torch.Tensor) -> list[Distribution]:
        """The laws behind a draft's nodes that go on, from the logits of what was read for it, from ``row`` on."""
        growth.kept = np.arange(row, row + len(logits))
        return growth.laws(logits)
