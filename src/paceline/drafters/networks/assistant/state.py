"""One text as far as the draft model has read it, in the target's tokens or in the draft model's own.

The draft model's cache follows the text. Rows of the text are committed; rows of the last draft are tentative, and
those that became text are kept. Where the tokenizers differ, the text is followed in the draft model's tokens. More
text may change its last tokens, so their rows are rolled back and read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.counters import Counter, Tally
from paceline.law import Distribution, Outlook
from paceline.law.table import Acts
from paceline.targets.base import Rows
from paceline.translate import LATTICE, WINDOW, Bridge, Follower, Habit, Strategy
from paceline.tree import Ints

if TYPE_CHECKING:
    import torch

DRAFT_FORWARDS = Counter("draft_forwards", "forwards of draft models")
DRAFT_TOKENS = Counter(
    "draft_tokens", "tokens that draft models drafted, in their own vocabulary, also those that were not sent"
)
ROWS_ROLLED_BACK = Counter(
    "rows_rolled_back", "rows of the text that were dropped: new bytes changed the tokens of another tokenizer"
)
BYTES_TRANSLATED = Counter("bytes_translated", "drafted bytes that became tokens of the target")

NO_ROWS: Ints = np.empty(0, np.int64)
TRUSTED = 32
"""Target tokens that the first guess of the draft model's tokens per target token counts as."""


@dataclass(eq=False)
class AssistantState:
    """A text in tokens that both models share."""

    context: Context
    rows: Rows
    outlook: Outlook
    vocab_size: int | None = None
    """The number of ids of the target, if it is known."""
    parents: Ints = field(default_factory=lambda: NO_ROWS)
    """Parents of the tentative rows, which are those of the last draft."""
    tally: Tally = field(default_factory=Tally)

    @property
    def length(self) -> int:
        """The draft model's tokens of the text."""
        return len(self.context)

    def since(self, start: int) -> Ints:
        """The draft model's tokens of the text from a place on."""
        return self.context.tokens[start:]

    def branched(self, context: Context, rows: Rows) -> AssistantState:
        """The same for a text that may become of this one; ``rows`` are a copy of its committed ones."""
        other = copy(self)
        other.context, other.rows, other.parents, other.tally = context, rows, NO_ROWS, Tally()
        return other

    def catch_up(self) -> None:
        """Keep the rows of the last draft that became text; drop the others."""
        path: list[int] = []
        row, drafted = -1, self.rows.drafted
        for token in self.since(self.rows.committed)[:-1].tolist():
            below = np.flatnonzero((self.parents == row) & (drafted[: len(self.parents)] == token))
            if len(below) == 0:
                break
            row = int(below[0])
            path.append(row)
        self.rows.keep(path)
        self.parents = NO_ROWS

    @property
    def unread(self) -> Ints:
        """The end of the text without rows: at least the last token, whose row predicts the next one."""
        return self.since(self.rows.committed)

    def read(self, count: int) -> None:
        """Commit the first tentative rows: they are text."""
        self.rows.keep(range(count))

    def levels(self, depth: int) -> int:
        """How many tokens of the draft model ``depth`` tokens of the target take."""
        return depth

    def laws(self, rows: torch.Tensor, texts: Iterable[Ints]) -> list[Distribution]:
        """The law after each of the rows, over the tokens that a draft is made of."""
        return self.outlook.laws(rows[:, : self.vocab_size], texts)

    def fed(self, tokens: Ints) -> Ints:
        """The draft model's tokens for those that a draft is made of."""
        return tokens

    @property
    def ends(self) -> frozenset[int]:
        """Tokens of a draft that nothing follows."""
        return self.context.ending.eos


@dataclass(frozen=True, eq=False)
class Foreign:
    """A draft model whose tokenizer is not the target's, or is treated as if it were not."""

    bridge: Bridge
    strategy: Strategy
    target_size: int
    size: int
    eos: frozenset[int]
    """The draft model's tokens that end a text."""

    def follower(self, context: Context) -> Follower:
        """The prompt in the draft model's tokens."""
        start = sorted(self.eos)[:1]
        if (
            context.draft_prompt is not None
            and (given := self.bridge.rendered(context.draft_prompt, start)) is not None
        ):
            return given
        return self.bridge.follower(self.bridge.text(context.tokens.tolist()), start)

    @cached_property
    def columns(self) -> tuple[Ints, Ints]:
        """The tokens that spell the same in both: the target's, ascending, and the draft model's."""
        ours, theirs = self.bridge.shared
        inside = (ours < self.target_size) & (theirs < self.size)
        return ours[inside], theirs[inside]


class ForeignState(AssistantState):
    """A text of the target, followed in the draft model's tokens."""

    def __init__(self, context: Context, rows: Rows, outlook: Outlook, foreign: Foreign, follower: Follower) -> None:
        super().__init__(context, rows, outlook, foreign.target_size)
        self.foreign, self.follower = foreign, follower
        self.habit = Habit()
        self._followed = len(context)
        self._began = len(follower.ids), len(context)
        self._own = Outlook(context.sampling.without(lambda row: row.acts is Acts.ON_LOGITS), 0)

    def branched(self, context: Context, rows: Rows) -> AssistantState:
        other = super().branched(context, rows)
        assert isinstance(other, ForeignState), "it is a copy"
        other.follower, other.habit = self.follower.copy(), replace(self.habit)
        return other

    @property
    def length(self) -> int:
        return len(self.follower.ids)

    def since(self, start: int) -> Ints:
        return np.array(self.follower.ids[start:], np.int64)

    def catch_up(self) -> None:
        """Follow the text. Rows of tokens that its new bytes have changed are rolled back."""
        kept = self._follow()
        committed = self.rows.committed
        stays = max(0, min(kept, self.length - 1, committed))
        if stays < committed:
            self.tally.add(ROWS_ROLLED_BACK, committed - self.rows.rewind(stays))
            self.parents = NO_ROWS
        super().catch_up()

    def _follow(self) -> int:
        """Read the text's new tokens as bytes. How many of the draft model's tokens stay."""
        new = self.context.tokens[self._followed :].tolist()
        if not new:
            return self.length
        bridge, before = self.foreign.bridge, self.window(self._followed)
        self._followed = len(self.context)
        if self.foreign.strategy.name == LATTICE:
            self.habit.learn(bridge.target, before, new)
        return self.follower.extend(bridge.target.spell(new))

    def window(self, length: int) -> bytes:
        """The last bytes of the first tokens of the text, from a word's beginning on."""
        return self.foreign.bridge.window(self.context.tokens[max(0, length - WINDOW) : length].tolist())

    def levels(self, depth: int) -> int:
        """As many as ``depth`` tokens of the target took in this text."""
        own, target = self._began
        guess = min(2.0, max(0.5, own / target)) * TRUSTED
        rate = (self.length - own + guess) / (self._followed - target + TRUSTED)
        return max(1, round(depth * rate)) if depth > 0 else 0

    def laws(self, rows: torch.Tensor, texts: Iterable[Ints]) -> list[Distribution]:
        """Over the draft model's tokens: of the text's settings only the cuts. All others act on tokens of the
        target."""
        return self._own.laws(rows, texts)

    @property
    def ends(self) -> frozenset[int]:
        return self.foreign.eos

    @property
    def end(self) -> int | None:
        """The target's token for the end of a text."""
        return min(self.context.ending.eos, default=None)


class SharedState(ForeignState):
    """A text of the target, for drafts of the tokens that spell the same in both vocabularies."""

    def laws(self, rows: torch.Tensor, texts: Iterable[Ints]) -> list[Distribution]:
        """Over the target's tokens; those that the draft model lacks are impossible."""
        import torch

        ours, theirs = self._columns
        mapped = rows.new_full((len(rows), self.foreign.target_size), -torch.inf)
        mapped[:, torch.from_numpy(ours)] = rows[:, torch.from_numpy(theirs)]
        return self.outlook.laws(mapped, texts)

    def fed(self, tokens: Ints) -> Ints:
        ours, theirs = self._columns
        return theirs[np.searchsorted(ours, tokens)]

    @property
    def ends(self) -> frozenset[int]:
        return self.context.ending.eos

    @cached_property
    def _columns(self) -> tuple[Ints, Ints]:
        """The pairs of equal tokens, and with them the tokens that end a text."""
        ours, theirs = self.foreign.columns
        end, their_end = self.end, min(self.foreign.eos, default=None)
        if end is None or their_end is None or end in ours:
            return ours, theirs
        place = int(np.searchsorted(ours, end))
        return np.insert(ours, place, end), np.insert(theirs, place, their_end)
