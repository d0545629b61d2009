"""A draft in the target's tokens, by a draft model with other tokens, ranked by the shared noise.

The noise names tokens of the target. So what the draft model expects is grouped by the target's token that it begins
with, and a group's weight is that token's. Of a chosen token's bytes the last ones may be the beginning of a token of
the draft model only. As long as such longer tokens are likelier than an end there, the draft goes on inside of them,
without a forward; else the bytes are read as tokens, and the next law comes from behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.context import Context
from paceline.drafters.networks.assistant.growth import DraftShape
from paceline.drafters.networks.assistant.state import BYTES_TRANSLATED, DRAFT_FORWARDS, DRAFT_TOKENS, ForeignState
from paceline.drafters.noise import foremost
from paceline.law import Distribution, Outlook, Sampling
from paceline.targets.base import Request
from paceline.targets.scores import Scores
from paceline.tree import ROOT, DraftTree, Ints

EXPECTED = 96
"""Tokens of a law that are grouped."""
RAW = Outlook(Sampling(), 0)
"""Probabilities as the draft model has them: settings act on the target's tokens."""


@dataclass(frozen=True)
class Expected:
    """What may follow a row: bytes and their weights. No bytes are the end of the text."""

    pieces: Sequence[tuple[bytes, float]]

    @classmethod
    def of(cls, law: Distribution, state: ForeignState) -> Expected:
        of, eos = state.foreign.bridge.drafter.of, state.ends
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
        """What may follow these bytes, if the token goes on behind them."""
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
    """A node that goes on."""

    node: int
    text: Context
    path: float
    """The log-probability of its path."""
    row: int
    """The last row read before it; the root's, -1, is committed."""
    pending: bytes = b""
    """Its bytes behind that row."""
    expected: Expected | None = None
    """What may follow the row; None where ``feed`` is to be read first."""
    feed: tuple[int, ...] = field(default=())


class NoisyGrowth:
    """A draft of ``depth`` target tokens at most: score its `request` and `grow` by the scores, until it is `done`."""

    def __init__(self, reading: ForeignState, shape: DraftShape, nodes: int, depth: int) -> None:
        self._reading, self._shape = reading, shape
        self._nodes, self._depth, self._level = nodes, depth, 0
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._bytes = self._drafted = 0
        self._begun = False
        self._tips = [Tip(ROOT, reading.context, 0.0, -1)] if depth > 0 else []

    def __len__(self) -> int:
        """The tokens drafted so far."""
        return len(self._tokens)

    @property
    def done(self) -> bool:
        return not self._tips

    def request(self) -> Request:
        """The rows to score next: the unread text at first, then the bytes that were chosen and not read."""
        reading = self._reading
        if not self._begun:
            unread = reading.unread.copy()
            return Request(reading.rows, unread, np.arange(-1, len(unread) - 1))
        held = len(reading.parents)
        tokens: list[int] = []
        parents = reading.parents.tolist()
        for tip in self._waiting:
            above = tip.row
            for token in tip.feed:
                tokens.append(token)
                parents.append(above)
                above = len(parents) - 1
        return Request(reading.rows, np.array(tokens, np.int64), np.array(parents, np.int64), held=held)

    @property
    def _waiting(self) -> list[Tip]:
        return [tip for tip in self._tips if tip.expected is None]

    def grow(self, scores: Scores) -> None:
        """Choose tokens of the target as far as the scored rows lead."""
        reading = self._reading
        reading.tally.add(DRAFT_FORWARDS)
        if not self._begun:
            self._begun = True
            reading.read(len(scores.tokens))
            (law,) = RAW.laws(scores.logits[-1:], ())
            self._tips = [replace(tip, expected=Expected.of(law, reading)) for tip in self._tips]
        else:
            self._read_tips(scores)
        while self._tips and not self._waiting:
            self._choose()

    def _read_tips(self, scores: Scores) -> None:
        """The rows of the tips that waited: what may follow the last of each."""
        reading = self._reading
        place, held = 0, len(reading.parents)
        reading.parents = np.concatenate([reading.parents, scores.parents])
        tips: list[Tip] = []
        for tip in self._tips:
            if tip.expected is None:
                place += len(tip.feed)
                (law,) = RAW.laws(scores.logits[place - 1 : place], ())
                tip = replace(tip, row=held + place - 1, pending=b"", expected=Expected.of(law, reading), feed=())
            tips.append(tip)
        self._drafted += place
        self._tips = tips

    def _choose(self) -> None:
        """A level: the foremost target tokens behind every tip, and which of them go on."""
        chosen = [tip for above in self._tips for tip in self._branch(above)]
        self._level += 1
        best = sorted(chosen, key=lambda tip: -tip.path)[: self._shape.beams]
        going = [] if self._level >= self._depth else [tip for tip in best if self._tokens[tip.node] != self._end]
        self._tips = [self._ready(tip) for tip in going]

    @property
    def _end(self) -> int | None:
        return self._reading.end

    def _branch(self, tip: Tip) -> list[Tip]:
        """The tokens that follow a tip, as nodes; those that may go on."""
        shape, reading = self._shape, self._reading
        law = self._law(tip)
        if law.ids.size == 0:
            return []
        ids, scores = foremost(law, max(shape.top, shape.beams), tip.text.exponentials(0, law.ids))
        found: list[Tip] = []
        of = reading.foreign.bridge.target.of
        for token, score in zip(ids.tolist(), scores.tolist(), strict=True):
            path = tip.path + score
            if np.exp(path) < shape.confidence:
                continue
            self._tokens.append(token)
            self._parents.append(tip.node)
            self._scores.append(score)
            self._bytes += len(of[token])
            text, pending = tip.text.extended([token]), tip.pending + of[token]
            found.append(replace(tip, node=len(self._tokens) - 1, text=text, path=path, pending=pending))
        return found

    def _law(self, tip: Tip) -> Distribution:
        """The law over the target's next token, as far as the draft model tells."""
        reading, weights = self._reading, dict[int, float]()
        assert tip.expected is not None, "its row is read"
        begun, size = reading.foreign.bridge.begun, reading.foreign.target_size
        for spelled, weight in tip.expected.behind(tip.pending):
            token = begun(spelled) if spelled else self._end
            if token is not None and token < size:
                weights[token] = weights.get(token, 0.0) + weight
        ids: Ints = np.array(sorted(weights), np.int64)
        logs = np.log([weights[token] for token in ids.tolist()]) if len(ids) else np.empty(0)
        return reading.outlook.over(ids, logs, size, tip.text.tokens)

    def _ready(self, tip: Tip) -> Tip:
        """Whether the draft goes on inside of the draft model's next token, or that is read first."""
        assert tip.expected is not None, "its row is read"
        if tip.expected.goes_on(tip.pending):
            return tip
        feed = self._reading.foreign.bridge.drafter.encode(tip.pending)
        if not feed:
            return replace(tip, expected=NOTHING_EXPECTED)
        return replace(tip, expected=None, feed=tuple(feed))

    def tree(self, source: str) -> DraftTree:
        reading = self._reading
        reading.tally.add(DRAFT_TOKENS, self._drafted)
        reading.tally.add(BYTES_TRANSLATED, self._bytes)
        tree = DraftTree.build(self._tokens, self._parents, source=source, scores=self._scores)
        return tree.top(self._nodes)
