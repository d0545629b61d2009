"""Streams behind rows of a model that `lean` knows, by its own modules and maps of low rank (`targets.streams`).

Rows of the text are computed first, by any path; their keys and values are read from the cache. So streams cost a
second pass through the last layers, for a few rows behind the one row that the draft goes on from, and none behind
rows whose tokens are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import stream_attention
from paceline.targets.hf.operations import CosSin, Operations
from paceline.targets.hf.shares import LowRankMap, SharedLinear
from paceline.targets.hf.variants import Layer, LlamaModules, TracksModules
from paceline.targets.streams import MAPS, LookAhead, StreamAdapter, Streams

Maps: TypeAlias = Mapping[str, LowRankMap]
"""What is added to the linear maps of a layer: by their names, ``a [rank, inputs]`` and ``b [outputs, rank]``. Empty
where nothing is added."""
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries, keys and values ``[1, heads, n, width]``; gives what the queries find."""
Rotation = Callable[[torch.Tensor, int], CosSin]
"""The angles of positions short of an end."""
Sizes = dict[str, tuple[int, int]]
"""Of the linear maps of a layer, by their names: outputs and inputs."""


def through(
    layer: Layer,
    states: torch.Tensor,
    cos_sin: CosSin,
    attend: Attend,
    operations: Operations,
    maps: Maps | None,
    first: int = 0,
) -> torch.Tensor:
    """States ``[1, n, width]`` behind a layer, with these maps added to its own in the rows from ``first`` on. In a
    segment of a model in tracks they are ``[tracks, n, width]``; ``attend`` is given the heads of all tracks."""
    states = layer.opens(states)
    given = operations.norm(states, layer.before)
    size, linears = layer.attention.head_dim, dict(zip("qkv", layer.qkv, strict=True))
    query, key, value = (
        _mapped(linears[name], given, name, maps, first).unflatten(-1, (-1, size)) for name in ("q", "k", "v")
    )
    if layer.norms is not None:
        query, key = operations.norm(query, layer.norms[0]), operations.norm(key, layer.norms[1])
    query, key = (operations.rotated(heads, cos_sin) for heads in (query, key))
    found = attend(*(heads.transpose(1, 2).flatten(0, 1)[None] for heads in (query, key, value)))
    mixed = found[0].unflatten(0, (len(states), -1)).transpose(1, 2).flatten(2)
    states = states + _mapped(layer.out, mixed, "o", maps, first)
    given = operations.norm(states, layer.between)
    gate, up = (_mapped(linear, given, name, maps, first) for linear, name in ((layer.gate, "gate"), (layer.up, "up")))
    states = states + _mapped(layer.down, operations.gated(gate, up, layer.act), "down", maps, first)
    return layer.closes(states)


def _mapped(linear: torch.nn.Module, rows: torch.Tensor, name: str, maps: Maps | None, first: int) -> torch.Tensor:
    found: torch.Tensor = linear(rows)
    if not maps:
        return found
    if not first:
        return found + _low_rank(linear, rows, maps[name])
    more = _low_rank(linear, rows[:, first:], maps[name])
    return torch.cat([found[:, :first], found[:, first:] + more], dim=1)


def _low_rank(linear: torch.nn.Module, rows: torch.Tensor, added: LowRankMap) -> torch.Tensor:
    if isinstance(linear, SharedLinear):
        return linear.more(rows, added)
    inward, outward = added
    return F.linear(F.linear(rows, inward), outward)


def linears_of(layer: Layer) -> dict[str, Any]:
    """The linear layers of a layer, by the names of an adapter's maps."""
    return dict(zip(MAPS, (*layer.qkv, layer.out, layer.gate, layer.up, layer.down), strict=True))


def sizes_of(layer: Layer) -> Sizes:
    """The sizes that an adapter's maps have in a layer."""
    return {name: (part.out_features, part.in_features) for name, part in linears_of(layer).items()}


def share_of(adapter: StreamAdapter, modules: TracksModules, device: str) -> StreamAdapter:
    """An adapter's maps as the one track needs them that this process holds."""
    (track,), count = modules.tracks.numbers, modules.tracks.count
    layers = []
    for layer, maps in zip(modules.layers[-adapter.depth :], adapter.layers, strict=True):
        linears, own = linears_of(layer), dict[str, LowRankMap]()
        for name, (inward, outward) in maps.items():
            linear, added = linears[name], (torch.as_tensor(inward), torch.as_tensor(outward))
            assert isinstance(linear, SharedLinear), "tracks share out all linear layers"
            inward, outward = (part.to(device, copy=True) for part in linear.shared_out(added, count)[track])
            own[name] = inward, outward
        layers.append(own)
    return StreamAdapter(torch.as_tensor(adapter.embedding).to(device), layers, adapter.key)


@dataclass(frozen=True, eq=False)
class StreamPass:
    """One pass of the streams behind several rows through a model's last layers."""

    modules: LlamaModules
    operations: Operations
    streams: Streams

    def logits(self, asked: Sequence[LookAhead], rotation: Rotation) -> torch.Tensor:
        """Logits ``[rows * streams, vocabulary]``."""
        adapter, count = self.streams.adapter, self.streams.count
        entering = torch.stack([torch.as_tensor(row.state) for row in asked])
        embedded = torch.as_tensor(adapter.embedding)[:count].to(entering)
        states = (entering[:, None] + embedded).flatten(0, 1)[None]
        positions = torch.tensor([[row.position + 1 + stream for stream in range(count)] for row in asked])
        end = int(positions.max()) + 1
        cos_sin = rotation(positions.flatten().to(states.device), end)
        last = self.modules.layers[-adapter.depth :]
        for layer, maps in zip(last, adapter.layers, strict=True):
            attend = BehindRows(layer, asked, count)
            states = through(layer, states, cos_sin, attend, self.operations, maps)
        found: torch.Tensor = self.modules.head(self.operations.norm(states, self.modules.norm))[0]
        return found


class BehindRows:
    """Attention of streams over the cached rows of their texts, and themselves. Rows of one text are ``asked`` one
    behind another."""

    def __init__(self, layer: Layer, asked: Sequence[LookAhead], count: int) -> None:
        self._attention, self._window = layer.attention, layer.window(layer.attention)
        self._texts, self._count = [list(each) for _, each in groupby(asked, lambda row: id(row.rows))], count

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        sizes = [len(text) * self._count for text in self._texts]
        parts = zip(self._texts, *(each.split(sizes, dim=2) for each in (query, keys, values)), strict=True)
        return torch.cat([self._of(text, own, key, value) for text, own, key, value in parts], dim=2)

    def _of(
        self, text: Sequence[LookAhead], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Of rows of one text: the text's keys from the first that any of them sees."""
        rows = text[0].rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        firsts = [max(0, row.position + 1 - self._window) if self._window else 0 for row in text]
        start = min(*firsts, rows.committed)
        end = rows.committed + max(int(row.seen[-1]) + 1 if len(row.seen) else 0 for row in text)
        cached = rows.layers[self._attention.layer_idx].span(start, end)
        near = tuple(each.to(query.dtype) for each in cached)
        hidden = _hidden(text, start, end, firsts)
        mask = None if hidden is None else torch.from_numpy(hidden).to(query.device)
        return stream_attention(query, (near[0], near[1]), (key, value), self._count, mask, self._attention.scaling)


def _hidden(
    text: Sequence[LookAhead], start: int, end: int, firsts: Sequence[int]
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]] | None:
    """``[rows, keys]``: which of the rows ``start .. end`` each row does not see, if any: those of other paths, and
    those before its window's first."""
    committed = text[0].rows.committed
    if all(first == start and end - committed == len(row.seen) for row, first in zip(text, firsts, strict=True)):
        return None
    seen = np.zeros((len(text), end - start), np.bool_)
    for line, row, first in zip(seen, text, firsts, strict=True):
        line[: committed - start] = np.arange(start, committed) >= first
        line[committed - start + row.seen] = committed + np.arange(len(row.seen)) >= first
    return ~seen
