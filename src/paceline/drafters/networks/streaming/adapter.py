"""What is trained for streams of a draft model: an embedding of each stream, and maps of low rank for its last layers.

Names of tensors are ``stream_embedding`` and ``layers.{i}.{map}.{a,b}``; layers count from the first that has streams.
A model whose own weights were trained with its streams needs the embeddings alone: an adapter of rank 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.errors import InputError
from paceline.targets.streams import MAPS, StreamAdapter

Maps = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Matrices ``a`` and ``b`` by the names of the maps."""
MOST_STREAMS = 8
"""Streams of an adapter; the paper has 3."""
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class StreamingShape:
    """The sizes of an adapter, for a draft model of ``width`` channels and ``vocab_size`` ids."""

    width: int
    vocab_size: int
    streams: int
    layers: int
    """The last ones of the model, in which streams are computed."""
    rank: int
    """0 without maps; the sizes that follow are those of maps."""
    queries: int = 0
    """Channels of all heads."""
    keys: int = 0
    """Channels of the heads of keys."""
    units: int = 0
    """Of the gated units."""
    tracks: int = 1
    """In which the model's layers run."""
    kept = 0
    """Streams know all tokens, as the model's output does."""

    def __post_init__(self) -> None:
        of_maps = ("rank", "queries", "keys", "units") if self.rank else ()
        for name in ("width", "vocab_size", "streams", "layers", "tracks", *of_maps):
            if (size := getattr(self, name)) < 1:
                raise InputError(f"{name} of an adapter of streams is at least 1, not {size}")
        if self.streams > MOST_STREAMS:
            raise InputError(f"an adapter has at most {MOST_STREAMS} streams, not {self.streams}")

    @property
    def known(self) -> int:
        return self.vocab_size

    @property
    def named(self) -> tuple[str, ...]:
        """The maps of a layer."""
        return MAPS if self.rank else ()

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of a layer's maps."""
        inward = {name: (units, self.width) for name, units in (("gate", self.units), ("up", self.units))}
        attention = {"q": (self.queries, self.width), "k": (self.keys, self.width), "v": (self.keys, self.width)}
        return {**attention, "o": (self.width, self.queries), **inward, "down": (self.width, self.units)}


class LowRank(nn.Module):
    """A linear map by two thin matrices. It begins as none."""

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))


def low_rank(layers: Sequence[Mapping[str, tuple[int, int]]], rank: int) -> nn.ModuleList:
    """Maps for layers of these sizes; none for rank 0."""
    named = MAPS if rank else ()
    return nn.ModuleList(nn.ModuleDict({name: LowRank(*sizes[name], rank) for name in named}) for sizes in layers)


def maps_in(layers: Any) -> list[Maps]:
    """The matrices of such maps, by layer and name."""
    return [{name: (one.a, one.b) for name, one in layer.items()} for layer in layers]


class StreamingAdapter(nn.Module):
    """An adapter as it is trained and stored."""

    token_ids = None
    """It knows all tokens."""

    def __init__(self, shape: StreamingShape) -> None:
        super().__init__()
        self.shape = shape
        self.number = next(_numbers)
        """Of no other adapter of the process. An ``id`` may be that of one that is gone."""
        self.stream_embedding = nn.Parameter(torch.zeros(shape.streams, shape.width))
        self.layers = low_rank([shape.sizes] * shape.layers, shape.rank)

    @property
    def maps(self) -> list[Maps]:
        """Of each layer, by the names of its linear maps."""
        return maps_in(self.layers)

    def as_adapter(self, key: Hashable) -> StreamAdapter:
        """The same for a target, sharing memory."""
        return StreamAdapter(self.stream_embedding, self.maps, key)
