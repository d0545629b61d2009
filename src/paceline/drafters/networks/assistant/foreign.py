"""Texts that a draft model with another tokenizer reads: in its own tokens, which follow the text by way of bytes.

More text may change the last of these tokens, so their rows are rolled back and read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from paceline.context import Context
from paceline.drafters.counters import Counter
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.reading import NO_ROWS, ReadText, TokenColumns
from paceline.law import Outlook
from paceline.law.table import Acts
from paceline.targets.base import Rows
from paceline.targets.chains import Chain
from paceline.translate import (
    CONTEXT,
    LATTICE,
    WORD_WINDOW,
    Bridge,
    Follower,
    Habit,
    Lattice,
    Strategy,
    TranslatedDraft,
)
from paceline.tree import EMPTY, ROOT, DraftTree, Ints, merge

ROWS_ROLLED_BACK = Counter(
    "rows_rolled_back", "rows of the text that were dropped: new bytes changed the tokens of another tokenizer"
)
BYTES_TRANSLATED = Counter("bytes_translated", "drafted bytes that became tokens of the target")

TRUSTED = 32
"""Target tokens that the first guess of the draft model's tokens per target token counts as."""


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


class ForeignState(ReadText):
    """A text of the target, followed in the draft model's tokens. Its drafts are of these, too: of the text's settings
    they know the cuts, for all others act on tokens of the target."""

    def __init__(self, context: Context, rows: Rows, foreign: Foreign, follower: Follower) -> None:
        outlook = Outlook(context.sampling.without(lambda row: row.acts is Acts.ON_LOGITS), 0)
        super().__init__(context, outlook, rows=rows)
        self.foreign, self.follower = foreign, follower
        self.habit = Habit()
        self._followed = len(context)
        self._began = len(follower.ids), len(context)

    def branched(self, context: Context, rows: Rows) -> ReadText:
        other = super().branched(context, rows)
        assert isinstance(other, ForeignState), "it is a copy"
        other.follower, other.habit = self.follower.copy(), replace(self.habit)
        return other

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        return Translated(self, shape, nodes, min(shape.length or depth, self.levels(depth)))

    def chain(self, growth: Growth) -> Chain | None:
        return None

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
        return self.foreign.bridge.window(self.context.tokens[max(0, length - WORD_WINDOW) : length].tolist())

    def levels(self, depth: int) -> int:
        """As many as ``depth`` tokens of the target took in this text."""
        own, target = self._began
        guess = min(2.0, max(0.5, own / target)) * TRUSTED
        rate = (self.length - own + guess) / (self._followed - target + TRUSTED)
        return max(1, round(depth * rate)) if depth > 0 else 0

    @property
    def ends(self) -> frozenset[int]:
        return self.foreign.eos

    @property
    def end(self) -> int | None:
        """The target's token for the end of a text."""
        return min(self.context.ending.eos, default=None)


class Translated(Growth):
    """A draft in the draft model's tokens, translated into the target's when it is grown.

    The draft model follows its own choices: the noise names tokens of the target, and it has none.
    """

    of_target = False
    state: ForeignState

    def tree(self, source: str) -> DraftTree:
        own = DraftTree.build(self._tokens, self._parents, scores=self._scores)
        drafts = [self._draft(own, leaf) for leaf in range(len(own)) if leaf not in self._parents]
        self.state.tally.add(BYTES_TRANSLATED, sum(len(draft.data) for draft in drafts))
        trees = [self._translated(draft, source) for draft in drafts if draft.data or draft.ends]
        tree = EMPTY if not trees else trees[0] if len(trees) == 1 else merge(trees)
        return tree.top(self._nodes)

    def _draft(self, own: DraftTree, leaf: int) -> TranslatedDraft:
        """The bytes of one path. A special token ends it: none arises from drafted text."""
        of = self.state.foreign.bridge.drafter.of
        pieces: list[tuple[bytes, float]] = []
        for node in own.path(leaf):
            token, score = self._tokens[node], self._scores[node]
            spelled = of[token] if token < len(of) else b""
            if not spelled:
                return TranslatedDraft.of(pieces, score if token in self.state.ends else None)
            pieces.append((spelled, score))
        return TranslatedDraft.of(pieces)

    def _translated(self, draft: TranslatedDraft, source: str) -> DraftTree:
        state, strategy = self.state, self.state.foreign.strategy
        bridge, end = state.foreign.bridge, state.end
        if strategy.name == LATTICE:
            lattice = Lattice(bridge.target, state.window(len(state.context)), draft)
            found = lattice.tree(self._nodes, state.habit.leaving, end)
        else:
            before = state.context.tokens[-strategy.prefix :].tolist() if strategy.prefix else []
            ids = bridge.behind(before, draft.data) if strategy.name == CONTEXT else bridge.naive(draft.data)
            found = draft.chain([(token, len(bridge.target.of[token])) for token in ids], end)
        scores = np.minimum(found.scores, 0.0)
        return DraftTree.build(found.tokens, found.parents, source=source, scores=scores)


class SharedState(ForeignState):
    """A text of the target, for drafts of the tokens that spell the same in both vocabularies."""

    def __init__(self, context: Context, rows: Rows, foreign: Foreign, follower: Follower) -> None:
        super().__init__(context, rows, foreign, follower)
        self.outlook = Outlook(context.sampling, context.prompt_length)
        self._ours, self._theirs = self._pairs()
        self.columns = TokenColumns(foreign.target_size, self._ours, self._theirs)

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        return ReadText.growth(self, shape, nodes, depth, text=text, row=row)

    def fed(self, growth: Growth) -> tuple[Ints, Ints]:
        """The draft model's tokens for those of the draft, which are the target's."""
        tokens, above = super().fed(growth)
        return self._theirs[np.searchsorted(self._ours, tokens)], above

    @property
    def ends(self) -> frozenset[int]:
        return self.context.ending.eos

    def _pairs(self) -> tuple[Ints, Ints]:
        """The pairs of equal tokens, and with them the tokens that end a text."""
        ours, theirs = self.foreign.columns
        end, their_end = self.end, min(self.foreign.eos, default=None)
        if end is None or their_end is None or end in ours:
            return ours, theirs
        place = int(np.searchsorted(ours, end))
        return np.insert(ours, place, end), np.insert(theirs, place, their_end)
