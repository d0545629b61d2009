"""A text for drafts in the target's tokens, by a draft model with other tokens, ranked by the shared noise.

The noise names tokens of the target. So the continuations that the draft model expects are grouped by the target's
token that they begin with, and a group's weight is that token's. The last bytes of a chosen token may be the beginning
of a token that only the draft model has. As long as such longer tokens are likelier than an end there, the draft goes
on inside of them, without a forward. Otherwise the bytes are read as tokens, and the next law is the one behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from paceline.context import Context
from paceline.drafters.networks.assistant.foreign import BYTES_TRANSLATED, Foreign, ForeignState
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.law import Distribution, Outlook, Sampling
from paceline.targets.base import Rows
from paceline.translate import Follower
from paceline.tree import ROOT, DraftTree, Ints

if TYPE_CHECKING:
    import torch

EXPECTED = 96
"""Tokens of a law that are grouped."""
RAW = Outlook(Sampling(), 0)
"""Probabilities as the draft model has them: settings act on the target's tokens."""


@dataclass(frozen=True)
class Expected:
    """The possible continuations of a row: bytes and their weights. No bytes are the end of the text."""

    pieces: Sequence[tuple[bytes, float]]

    @classmethod
    def of(cls, law: Distribution, foreign: Foreign) -> Expected:
        of, eos = foreign.bridge.drafter.of, foreign.eos
        ids, weights = law.ids, law.weights
        if len(ids) > EXPECTED:
            best = np.argpartition(-weights, EXPECTED)[:EXPECTED]
            ids, weights = ids[best], weights[best]
        pieces = [
            (of[token] if token < len(of) else b"", weight)
            for token, weight in zip(ids.tolist(), weights.tolist(), strict=True)
            if token in eos or (token < len(of) and of[token])
        ]
        return cls(pieces)

    def behind(self, pending: bytes) -> list[tuple[bytes, float]]:
        """The possible continuations of these bytes, if the token goes on behind them."""
        if not pending:
            return list(self.pieces)
        cut = len(pending)
        return [
            (spelled[cut:], weight)
            for spelled, weight in self.pieces
            if len(spelled) > cut and spelled.startswith(pending)
        ]

    def goes_on(self, pending: bytes) -> bool:
        """Whether a token that goes on behind these bytes is likelier than one that ends with them or in them."""
        longer = sum(weight for _, weight in self.behind(pending))
        ending = sum(weight for spelled, weight in self.pieces if spelled and pending.startswith(spelled))
        return longer > ending


NOTHING_EXPECTED = Expected(())


@dataclass(frozen=True, eq=False)
class Tip:
    """Where a node that goes on stands among the draft model's tokens."""

    row: int
    """The last row read before it; the root's, -1, is committed."""
    pending: bytes = b""
    """Its bytes behind that row."""
    expected: Expected | None = None
    """The possible continuations of the row; None while ``feed`` must be read first."""
    feed: tuple[int, ...] = ()


class SpelledGrowth(Growth):
    """Its ``kept`` are the tips of the nodes that go on."""

    state: SpelledState

    def __init__(self, state: SpelledState, shape: DraftShape, nodes: int, depth: int) -> None:
        super().__init__(state, shape, nodes, depth)
        self.kept = [Tip(ROOT)]
        self._fed = 0

    @property
    def drafted(self) -> int:
        return self._fed

    @property
    def waiting(self) -> list[Tip]:
        """The tips whose bytes must be read."""
        return [tip for tip in self.kept if tip.expected is None]

    def add(self, laws: Sequence[Distribution]) -> None:
        """As many levels as the rows that were read lead to."""
        self._add(laws)
        while self.kept and not self.waiting:
            self._add(self.state.spelled(self))

    def _add(self, laws: Sequence[Distribution]) -> None:
        super().add(laws)
        pairs = zip(self.above.tolist(), self.tokens.tolist(), strict=True)
        self.kept = [self.state.ready(self.kept[above], token) for above, token in pairs]

    def expect(self, row: int, logits: torch.Tensor) -> None:
        """Note what may follow the waiting tips, from the logits of the rows that were read for them."""
        place, tips = 0, list[Tip]()
        for tip in self.kept:
            if tip.expected is None:
                place += len(tip.feed) or 1
                self._fed += len(tip.feed)
                (law,) = RAW.laws(logits[place - 1 : place], ())
                tip = Tip(row + place - 1, expected=Expected.of(law, self.state.foreign))
            tips.append(tip)
        self.kept = tips

    def tree(self, source: str) -> DraftTree:
        of = self.state.foreign.bridge.target.of
        self.state.tally.add(BYTES_TRANSLATED, sum(len(of[token]) for token in self._tokens))
        return super().tree(source)


class SpelledState(ForeignState):
    """A text of the target, followed in the draft model's tokens, for drafts in the target's."""

    def __init__(self, context: Context, rows: Rows, foreign: Foreign, follower: Follower) -> None:
        super().__init__(context, rows, foreign, follower)
        self.outlook = Outlook(context.sampling, context.prompt_length)

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> Growth:
        return SpelledGrowth(self, shape, nodes, depth)

    @property
    def ends(self) -> frozenset[int]:
        return self.context.ending.eos

    def fed(self, growth: Growth) -> tuple[Ints, Ints]:
        """The bytes that were chosen and not read, as the draft model's tokens."""
        assert isinstance(growth, SpelledGrowth), "it is made by this state"
        tokens, above, next_row = list[int](), list[int](), len(self.parents)
        for tip in growth.waiting:
            row = tip.row
            for token in tip.feed:
                tokens.append(token)
                above.append(row)
                row, next_row = next_row, next_row + 1
        return np.array(tokens, np.int64), np.array(above, np.int64)

    def behind(self, growth: Growth, row: int, logits: torch.Tensor) -> list[Distribution]:
        assert isinstance(growth, SpelledGrowth), "it is made by this state"
        growth.expect(row, logits)
        return self.spelled(growth)

    def spelled(self, growth: SpelledGrowth) -> list[Distribution]:
        """The laws over the target's next token behind the tips, as far as the draft model tells."""
        return [self._law(tip, text) for tip, text in zip(growth.kept, growth.texts, strict=True)]

    def _law(self, tip: Tip, text: Context) -> Distribution:
        assert tip.expected is not None, "its row is read"
        begun, size, weights = self.foreign.bridge.begun, self.foreign.target_size, dict[int, float]()
        for spelled, weight in tip.expected.behind(tip.pending):
            token = begun(spelled) if spelled else self.end
            if token is not None and token < size:
                weights[token] = weights.get(token, 0.0) + weight
        ids: Ints = np.array(sorted(weights), np.int64)
        logs = np.log([weights[token] for token in ids.tolist()]) if len(ids) else np.empty(0)
        return self.outlook.over(ids, logs, size, text.tokens)

    def ready(self, tip: Tip, token: int) -> Tip:
        """The tip behind one more token: inside of the draft model's next token, or where that is read first."""
        assert tip.expected is not None, "its row is read"
        pending = tip.pending + self.foreign.bridge.target.of[token]
        if tip.expected.goes_on(pending):
            return replace(tip, pending=pending)
        feed = self.foreign.bridge.drafter.encode(pending)
        return Tip(tip.row, pending, None if feed else NOTHING_EXPECTED, tuple(feed))
