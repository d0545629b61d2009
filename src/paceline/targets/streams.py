"""Speculative streams of a draft model: rows that guess tokens further ahead than the next one.

Behind a row of the text at position ``p``, whose logits say the token at ``p + 1``, stream ``j`` guesses the token at
``p + 1 + j``. It is one more row in the model's last layers ::

    input       the state that enters these layers at the row, + the stream's embedding
    position    p + j
    layer       the layer's own modules; each linear map is W x + b (a x), of low rank, on rows of streams only
    sees        all that its row sees, the row itself, and the streams up to j of that row
    logits      by the model's own last norm and head

No row of the text sees a stream, and ``a`` and ``b`` act on streams only. So the model's own rows do not change, bit
for bit, and neither do its drafts: streams guess what the model chooses next, and the model confirms or refuses that.

A model whose own weights were trained for its streams, too, has an adapter of rank 0: embeddings alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.law.scores import Array
from paceline.targets.base import Request, Rows
from paceline.tree import Ints

MAPS = ("q", "k", "v", "o", "gate", "up", "down")
"""The linear maps of a layer, by their names in an adapter."""


@dataclass(frozen=True, eq=False)
class StreamAdapter:
    """What makes streams of a model's rows: embeddings of the streams, and maps of low rank for the last layers."""

    embedding: Array
    """Of each stream, ``[streams, width]``: float32, of numpy or of torch."""
    layers: Sequence[Mapping[str, tuple[Array, Array]]]
    """Of each of the last layers, first to last, by `MAPS`: ``a [rank, inputs]`` and ``b [outputs, rank]``. Empty
    mappings for rank 0."""
    key: Hashable
    """Equal for equal adapters, different for different ones."""

    def __post_init__(self) -> None:
        named = set(self.layers[0]) if self.layers else None
        assert named in (set(), set(MAPS)), "a layer has every map or none"
        assert all(set(layer) == named for layer in self.layers), "all layers have the same maps"

    @property
    def streams(self) -> int:
        """How many streams a row has at most."""
        return len(self.embedding)

    @property
    def depth(self) -> int:
        """In how many layers, the last ones of the model, streams are computed."""
        return len(self.layers)

    @property
    def rank(self) -> int:
        return len(self.layers[0]["q"][0]) if self.layers[0] else 0


@dataclass(frozen=True)
class Streams:
    """The streams that a forward computes behind its rows: the first ``count`` of an adapter's."""

    adapter: StreamAdapter
    count: int

    def __post_init__(self) -> None:
        assert 1 <= self.count <= self.adapter.streams, f"{self.count} of {self.adapter.streams} streams"


@dataclass(frozen=True, eq=False)
class StreamsBeside:
    """Streams that a forward computes beside the rows of a request."""

    streams: Streams
    behind: Ints
    """The numbers of the fresh rows that have them, ascending."""


@dataclass(frozen=True, eq=False)
class LookAhead:
    """A row whose streams are wanted: one that a target has scored, and that is cached."""

    rows: Rows
    seen: Ints
    """The tentative rows on its path, itself the last of them; none if it is the last committed row."""
    state: Array | None = None
    """What enters the first layer that has streams, ``[width]``; None in the forward that computes it."""

    @property
    def position(self) -> int:
        """Its place in its text."""
        return self.rows.committed + len(self.seen) - 1


def looking_ahead(request: Request) -> list[LookAhead]:
    """The rows of a request that have streams."""
    assert request.streams is not None, "it asks for streams"
    return [LookAhead(request.rows, np.flatnonzero(request.visible[row])) for row in request.streams.behind]
