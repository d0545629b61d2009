"""Forwards of a draft model with streams. A draft of several tokens takes fewer of them than it has tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.network import RowNetwork
from paceline.drafters.networks.streaming.counts import DraftKind, StreamCounts
from paceline.drafters.networks.streaming.reading import StreamedGrowth, StreamedText
from paceline.targets.streams import StreamAdapter, Streams
from paceline.tree import EMPTY

if TYPE_CHECKING:
    from paceline.targets.hf.target import HFTarget

FEWER = (2, 2), (9, 1)
"""From so many drafts in a forward on so many streams at most, as the paper has it in batches: a forward's cost grows
with its rows, and with many texts it is no longer hidden behind reading the weights."""


class StreamingNetwork(RowNetwork):
    """A draft model, the streams of its rows, and how many of them a row has."""

    def __init__(
        self, model: HFTarget, adapter: StreamAdapter, count: int | None, counts: Callable[[], StreamCounts]
    ) -> None:
        """A row has ``count`` streams, or where that is None as many as ``counts`` finds to be fastest."""
        super().__init__(model)
        self._target, self.adapter, self._count, self._counts = model, adapter, count, counts
        self.first = model.layers - adapter.depth
        """The layer that streams enter."""

    @property
    def beside(self) -> bool:
        """Whether the model computes streams beside the rows that have them."""
        return self._target.streams_beside

    @cached_property
    def counts(self) -> StreamCounts:
        return self._counts()

    def begin(self, growths: Sequence[Growth]) -> None:
        while self.read_pieces([growth.state for growth in growths]):  # no seconds of a draft
            pass
        self._with_streams(growths, super().begin, whole=True)

    def add_level(self, growths: Sequence[Growth]) -> None:
        """Let drafts grow by a token, and by as many more as they had guessed. Drafts of one text are read as one
        tree."""
        if growths:
            self._with_streams(growths, self._add_level, whole=False)

    def _with_streams(
        self, growths: Sequence[Growth], grow: Callable[[Sequence[Growth]], None], *, whole: bool
    ) -> None:
        """Let drafts grow with as many streams as are asked for or fastest. In the latter case note the seconds."""
        texts, asked = len(growths), self._count
        most = min([asked or self.adapter.streams, *(few for drafts, few in FEWER if texts >= drafts)])
        kind = DraftKind.of(growths[0], texts, most, whole=whole)
        if asked is not None or not kind.depth or any(growth.sampled for growth in growths):
            self._grown(growths, grow, most if asked else 0)
            return
        counts = self.counts
        count, began = counts.count(kind), counts.clock()
        if tokens := self._grown(growths, grow, count):
            counts.note(kind, count, tokens / texts, counts.clock() - began)

    def _grown(self, growths: Sequence[Growth], grow: Callable[[Sequence[Growth]], None], count: int) -> int:
        """The tokens by which drafts grow with ``count`` streams."""
        for growth in growths:
            growth.state.streams = Streams(self.adapter, count) if count else None
        before = sum(map(len, growths))
        grow(growths)
        return sum(map(len, growths)) - before

    def _add_level(self, growths: Sequence[Growth]) -> None:
        texts = dict[StreamedText, list[StreamedGrowth]]()
        for growth in growths:
            assert isinstance(growth, StreamedGrowth), "its drafts have guesses"
            texts.setdefault(growth.state, []).append(growth)
        streams = growths[0].state.streams
        if streams is None:
            for own in texts.values():
                for growth in own:
                    growth.guesses = EMPTY
            super().add_level(growths)
            return
        asked = [state.request(own) for state, own in texts.items()]
        for (state, own), scores in zip(texts.items(), self._submit(asked).result(), strict=True):
            state.confirm(scores, own)
        self._guess([growth for own in texts.values() for growth in own], streams)

    def _guess(self, growths: Sequence[StreamedGrowth], streams: Streams) -> None:
        """Compute streams where a guess can be confirmed, unless the forward computed them beside its rows."""
        for growth in growths:
            growth.guesses = EMPTY
            if growth.further and growth.streamed is not None:
                growth.state.guess(growth, growth.streamed)
        going = [growth for growth in growths if growth.further and not growth.state.beside]
        if not going:
            return
        logits = self._target.streamed([growth.state.look_ahead_of(growth) for growth in going], streams)
        if logits is None:  # the model was changed since it was loaded
            return
        for growth, rows in zip(going, logits.split(streams.count), strict=True):
            growth.state.guess(growth, rows)
