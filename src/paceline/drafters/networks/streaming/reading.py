"""One text as a draft model with streams drafts behind it: the draft, and guesses of how it goes on.

A forward reads the newest token of a draft, whose row says the next one, and behind it the guesses as a tree. The draft
then grows along the guesses as far as the model itself chooses these tokens. So it is the draft that the model makes
alone, token for token, under every rule and at every temperature. Rows of refused guesses are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.context import Context
from paceline.drafters.candidates import renumbered
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.products import ProductGrowth
from paceline.drafters.networks.reading import DRAFT_FORWARDS, ReadText
from paceline.drafters.noise import hides_noise
from paceline.law import Distribution
from paceline.targets.base import Request, Want
from paceline.targets.chains import Chain
from paceline.targets.scores import Scores
from paceline.targets.streams import LookAhead, Streams, StreamsBeside
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints, offsets

if TYPE_CHECKING:
    import torch

TOP = 4
"""Tokens of each stream that guesses are made of, at most."""


class StreamedGrowth(Growth):
    """A draft with guesses of its next tokens."""

    guesses: DraftTree = EMPTY
    """How it may go on behind its newest token."""
    entering: Any = None
    """What entered the first layer with streams at the row of the newest token that was read."""
    streamed: torch.Tensor | None = None
    """Logits of that row's streams, where the forward that read it computed them beside it."""

    @property
    def further(self) -> int:
        """How many tokens behind the next one it may still have."""
        return 0 if self.done else max(0, self.depth - self.level - 1)

    @property
    def ahead(self) -> list[int]:
        """The rows of the newest token and its guesses, which are 0 and those behind it, whose streams can guess a
        token that the draft has room for."""
        depths = [0, *(1 + offsets(self.guesses.parents)).tolist()]
        return [row for row, depth in enumerate(depths) if self.further > 1 + depth]

    def confirm(self, logits: torch.Tensor) -> list[int]:
        """Grow by a token behind the newest one, and one behind each guess that the model chooses, whose ``logits``
        follow those of the newest. The rows of these, the newest one's first, which is row 0."""
        node, path = ROOT, [0]
        while True:
            self.add(self.laws(logits[path[-1] : path[-1] + 1]))
            found = None if self.done else self.guesses.child(node, int(self.tokens[0]))
            if found is None:
                return path
            node = found
            path.append(1 + found)


class Guesses(ProductGrowth):
    """The likeliest paths through the laws of streams, raced with the numbers that the draft itself will race with."""

    def __init__(self, state: StreamedText, shared: bool, nodes: int, depth: int, text: Context) -> None:
        super().__init__(state, DraftShape(beams=TOP, top=TOP, shared=shared), nodes, depth, text=text)
        self._coins = self.of_target and hides_noise(text)

    def _exponentials(self, laws: Sequence[Distribution]) -> Sequence[Floats | None]:
        if self._coins:
            return [self.texts[0].next_draft_coins(0, law.ids) for law in laws]
        return super()._exponentials(laws)


@dataclass(eq=False)
class StreamedText(ReadText):
    """A text, and the streams of its next rows."""

    streams: Streams | None = field(default=None, kw_only=True)
    """What the rows read next have; None for a draft of the model alone."""
    first: int = field(kw_only=True)
    """The layer that streams enter."""
    guesses: int = field(kw_only=True)
    """Guessed tokens that a forward reads, at most."""
    beside: bool = field(default=False, kw_only=True)
    """Whether forwards compute streams beside all rows that a draft may go on from (`HFTarget.streams_beside`)."""

    def growth(
        self, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None, row: int = ROOT
    ) -> StreamedGrowth:
        return StreamedGrowth(self, shape, nodes, depth, text=text, row=row)

    def chain(self, growth: Growth) -> Chain | None:
        chain = super().chain(growth)
        if chain is None or self.streams is None or chain.depth < 2:
            return chain
        return replace(chain, streams=self.streams, guesses=self.guesses)

    def request(self, growths: Sequence[Growth]) -> Request:
        """The unread text at first, then the newest token of each draft with its guesses."""
        if self.streams is None:
            return super().request(growths)
        want = Want() if self.beside else Want(hidden=frozenset({self.first}))
        if not self.begun:
            request = replace(super().request(growths), want=want)
            length = len(request.tokens) - len(self._ahead[0])
            return self._with_streams(request, [length + growth.row for growth in growths if growth.depth > 2])
        tokens, parents, first, behind = list[Ints](), [self.parents], len(self.parents), list[int]()
        for growth in growths:
            assert isinstance(growth, StreamedGrowth), "its drafts have guesses"
            tokens += [growth.tokens, growth.guesses.tokens]
            parents += [growth.kept, first + 1 + growth.guesses.parents]  # the root of guesses is row ``first``
            behind += [first - len(self.parents) + row for row in growth.ahead]
            first += 1 + len(growth.guesses)
        found = Request(self.rows, np.concatenate(tokens), np.concatenate(parents), want=want, held=len(self.parents))
        return self._with_streams(found, behind)

    def _with_streams(self, request: Request, behind: list[int]) -> Request:
        """The same with streams behind these of its fresh rows, where they are computed beside them."""
        if self.streams is None or not (self.beside and behind):
            return request
        return replace(request, streams=StreamsBeside(self.streams, np.unique(behind)))

    def confirm(self, scores: Scores, growths: Sequence[StreamedGrowth]) -> None:
        """Let drafts grow by what a forward found, and drop the rows of refused guesses."""
        if not self.begun:
            length = len(scores.tokens) - len(self._ahead[0])
            for growth, laws in zip(growths, self.found(scores, growths), strict=True):
                self._look(growth, scores, length + growth.row)
                growth.add(laws)
            return
        self.tally.add(DRAFT_FORWARDS)
        held, first = len(self.parents), 0
        parents, kept = np.concatenate([self.parents, scores.parents]), list(range(held))
        for growth in growths:
            end = first + 1 + len(growth.guesses)
            path = growth.confirm(scores.logits[first:end])
            self._look(growth, scores, first + path[-1])
            kept += [held + first + row for row in path]
            growth.kept = np.array([len(kept) - 1])
            first = end
        self.rows.hold(kept)
        self.parents = renumbered(parents, np.array(kept, np.int64))

    def _look(self, growth: StreamedGrowth, scores: Scores, row: int) -> None:
        """Remember what streams behind a row are made of, or those that were computed beside it."""
        if self.beside:
            growth.streamed = scores.streamed.get(row)
        else:
            growth.entering = scores.hidden(self.first)[row]

    def look_ahead_of(self, growth: StreamedGrowth) -> LookAhead:
        """The row that a draft grows behind, for its streams."""
        seen, row = list[int](), int(growth.kept[0])
        while row != ROOT:
            seen.append(row)
            row = int(self.parents[row])
        return LookAhead(self.rows, np.array(seen[::-1], np.int64), growth.entering)

    def guess(self, growth: StreamedGrowth, logits: torch.Tensor) -> None:
        """Guess how a draft goes on, from the logits of its streams; those of tokens beyond its end are left out."""
        depth, (text,) = min(len(logits), growth.further), growth.texts
        guesses = Guesses(self, growth.shape.shared, self.guesses, depth, text)
        for law in self.laws(logits[:depth], [text.tokens] * depth):
            if not guesses.done:
                guesses.add([law])
        growth.guesses = guesses.tree("")
