"""One text as a network drafts behind it, and as far as a network with rows of its own has read it.

Rows of the text are committed. Rows of the draft are tentative, each level below the one before, so nothing is read
twice while a draft grows. When the text has gone on, rows that became text are kept, and the other new tokens are read
with the first level of the next draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.counters import Counter, Tally
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.law import Distribution, Outlook
from paceline.targets.base import Request, Rows
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.scores import Scores
from paceline.tree import ROOT, Ints

if TYPE_CHECKING:
    import torch

DRAFT_FORWARDS = Counter("draft_forwards", "forwards of draft models")
DRAFT_TOKENS = Counter(
    "draft_tokens", "tokens that draft models drafted, in their own vocabulary, also those that were not sent"
)

NO_ROWS: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Columns:
    """Which of the target's tokens the columns of a network's logits are: those below ``size`` (None for all), or
    ``ids`` of these, ascending, in the columns ``places`` (by default the first ones)."""

    size: int | None = None
    ids: Ints | None = None
    places: Ints | None = None

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits over the target's tokens; those that the network lacks are impossible."""
        if self.ids is None:
            return rows[:, : self.size]
        import torch

        assert self.size is not None, "part of a vocabulary has a size"
        spread = rows.new_full((len(rows), self.size), -torch.inf)
        known = rows[:, : len(self.ids)] if self.places is None else rows[:, torch.from_numpy(self.places)]
        spread[:, torch.from_numpy(self.ids)] = known
        return spread

    def fed(self, tokens: Ints) -> Ints:
        """The network's tokens for the target's, where it reads its own."""
        return tokens if self.ids is None or self.places is None else self.places[np.searchsorted(self.ids, tokens)]


@dataclass(eq=False)
class Following:
    """A text, and how logits behind it become laws of the tokens that a draft is made of."""

    context: Context
    outlook: Outlook
    columns: Columns = Columns()
    tally: Tally = field(default_factory=Tally, kw_only=True)

    def laws(self, rows: torch.Tensor, texts: Iterable[Ints]) -> list[Distribution]:
        """The law of each row of logits; ``texts`` are the tokens before each, read only if needed."""
        return self.outlook.laws(self.columns.spread(rows), texts)

    @property
    def ends(self) -> frozenset[int]:
        """Tokens of a draft that nothing follows."""
        return self.context.ending.eos


@dataclass(eq=False)
class Reading(Following):
    """A text in tokens that the network reads, and its rows."""

    rows: Rows = field(kw_only=True)
    parents: Ints = field(default_factory=lambda: NO_ROWS, kw_only=True)
    """Parents of the tentative rows, which are those of the last draft."""
    _begun: bool = field(default=False, init=False)
    """Whether the first level of this draft is read."""
    _ahead: tuple[Ints, Ints] = field(default=(NO_ROWS, NO_ROWS), init=False)
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

    def branched(self, context: Context, rows: Rows) -> Reading:
        """The same for a text that may become of this one; ``rows`` are a copy of its committed ones."""
        other = copy(self)
        other.context, other.rows, other.parents, other.tally = context, rows, NO_ROWS, Tally()
        return other

    def catch_up(self) -> None:
        """Keep the rows of the last draft that became text; drop the others. The last token is read again where nothing
        has followed it, for its row predicts the next one."""
        if self.rows.committed >= self.length:
            self.rows.rewind(self.length - 1)
        self.rows.keep(self.became_text())
        self.parents, self._begun, self._ahead = NO_ROWS, False, (NO_ROWS, NO_ROWS)

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
        self.parents, self._begun = np.arange(-1, count - 2) if count > 1 else NO_ROWS, True
        growth.follow(drafted.tokens, drafted.scores)

    def request(self, growths: Sequence[Growth]) -> Request:
        """The rows to score next: the unread text at first, then the nodes that go on."""
        if self._begun:
            fed = [self.fed(growth) for growth in growths]
            self._counts = [len(tokens) for tokens, _ in fed]
            tokens, above = (np.concatenate(column) for column in zip(*fed, strict=True))
            return Request(self.rows, tokens, np.concatenate([self.parents, above]), held=len(self.parents))
        (ahead, parents), unread = self._ahead, self.unread
        chain = np.arange(-1, len(unread) - 1)
        return Request(self.rows, np.concatenate([unread, ahead]), np.concatenate([chain, len(unread) + parents]))

    def fed(self, growth: Growth) -> tuple[Ints, Ints]:
        """The tokens to read for a level of a draft, and the tentative row that each follows."""
        return self.columns.fed(growth.tokens), growth.kept[growth.above]

    def found(self, scores: Scores, growths: Sequence[Growth]) -> list[list[Distribution]]:
        """The laws behind each draft's nodes that go on, from the scores of `request`."""
        self.tally.add(DRAFT_FORWARDS)
        if self._begun:
            held, self.parents = len(self.parents), np.concatenate([self.parents, scores.parents])
            starts = np.cumsum([0, *self._counts[:-1]]).tolist()
            counts = self._counts
        else:
            held, starts, counts = self._first_read(scores, growths)
        each = zip(growths, starts, counts, strict=True)
        return [self.behind(growth, held + at, scores.logits[at : at + count]) for growth, at, count in each]

    def _first_read(self, scores: Scores, growths: Sequence[Growth]) -> tuple[int, list[int], list[int]]:
        """The tentative row of the first logits, where each draft's begin, and how many they are."""
        length, self._begun = len(scores.tokens) - len(self._ahead[0]), True
        starts = [length + growth.row for growth in growths]
        if length == len(scores.tokens):
            self.read(length)
            return -length, starts, [1] * len(growths)
        self.parents = scores.parents  # those of the text stay tentative, beside those ahead of it
        return 0, starts, [1] * len(growths)

    def behind(self, growth: Growth, row: int, logits: torch.Tensor) -> list[Distribution]:
        """The laws behind a draft's nodes that go on, from the logits of what was read for it, from ``row`` on."""
        growth.kept = np.arange(row, row + len(logits))
        return growth.laws(logits)
