"""Forwards of a draft model with streams. A draft of several tokens takes fewer of them than it has tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.network import RowNetwork
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

    def __init__(self, model: HFTarget, adapter: StreamAdapter, count: int) -> None:
        super().__init__(model)
        self._target, self.adapter, self._count = model, adapter, min(count, adapter.streams)
        self.first = model.layers - adapter.depth
        """The layer that streams enter."""

    @property
    def beside(self) -> bool:
        """Whether the model computes streams beside the rows that have them."""
        return self._target.streams_beside

    def streams(self, drafts: int) -> Streams:
        """Of each row, where so many drafts grow together."""
        most = min([self._count, *(few for texts, few in FEWER if drafts >= texts)])
        return Streams(self.adapter, most)

    def begin(self, growths: Sequence[Growth]) -> None:
        streams = self.streams(len(growths))
        for growth in growths:
            growth.state.streams = streams
        super().begin(growths)

    def add_level(self, growths: Sequence[Growth]) -> None:
        """Let drafts grow by a token, and by as many more as they had guessed. Drafts of one text are read as one
        tree."""
        texts = dict[StreamedText, list[StreamedGrowth]]()
        for growth in growths:
            assert isinstance(growth, StreamedGrowth), "its drafts have guesses"
            texts.setdefault(growth.state, []).append(growth)
        if not texts:
            return
        streams = self.streams(len(growths))
        for state in texts:
            state.streams = streams
        asked = [state.request(own) for state, own in texts.items()]
        for (state, own), scores in zip(texts.items(), self._submit(asked).result(), strict=True):
            state.confirm(scores, own)
        self._guess([growth for own in texts.values() for growth in own])

    def _guess(self, growths: Sequence[StreamedGrowth]) -> None:
        """Compute streams where a guess can be confirmed, unless the forward computed them beside its rows."""
        for growth in growths:
            growth.guesses = EMPTY
            if growth.further and growth.streamed is not None:
                growth.state.guess(growth, growth.streamed)
        going = [growth for growth in growths if growth.further and not growth.state.beside]
        if not going:
            return
        streams = self.streams(len(growths))
        logits = self._target.streamed([growth.state.look_ahead_of(growth) for growth in going], streams)
        if logits is None:  # the model was changed since it was loaded
            return
        for growth, rows in zip(going, logits.split(streams.count), strict=True):
            growth.state.guess(growth, rows)
