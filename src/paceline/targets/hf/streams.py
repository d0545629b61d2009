"""Streams behind rows of a model that `lean` knows, by its own modules and maps of low rank (`targets.streams`).

Rows of the text are computed first, by any path; their keys and values are read from the cache. So streams cost a
second pass through the last layers, for a few rows behind the one row that the draft goes on from, and none behind
rows whose tokens are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import stream_attention
from paceline.targets.hf.operations import CosSin, Operations
from paceline.targets.hf.variants import Layer, LlamaModules
from paceline.targets.streams import MAPS, LookAhead, Streams

Maps: TypeAlias = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""What is added to the linear maps of a layer: by their names, ``a [rank, inputs]`` and ``b [outputs, rank]``. Empty
where nothing is added."""
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries, keys and values ``[1, heads, n, width]``; gives what the queries find."""
Sizes = dict[str, tuple[int, int]]
"""Of the linear maps of a layer, by their names: outputs and inputs."""


def through(
    layer: Layer, states: torch.Tensor, cos_sin: CosSin, attend: Attend, operations: Operations, maps: Maps | None
) -> torch.Tensor:
    """States ``[1, n, width]`` behind a layer, with these maps added to its own."""
    given = operations.norm(states, layer.before)
    size, linears = layer.attention.head_dim, dict(zip("qkv", layer.qkv, strict=True))
    query, key, value = (
        _mapped(linears[name], given, name, maps).unflatten(-1, (-1, size)) for name in ("q", "k", "v")
    )
    if layer.norms is not None:
        query, key = operations.norm(query, layer.norms[0]), operations.norm(key, layer.norms[1])
    query, key = (operations.rotated(heads, cos_sin).transpose(1, 2) for heads in (query, key))
    found = attend(query, key, value.transpose(1, 2)).transpose(1, 2).flatten(2)
    states = states + _mapped(layer.out, found, "o", maps)
    given = operations.norm(states, layer.between)
    gate, up = _mapped(layer.gate, given, "gate", maps), _mapped(layer.up, given, "up", maps)
    return states + _mapped(layer.down, operations.gated(gate, up, layer.act), "down", maps)


def _mapped(linear: torch.nn.Module, rows: torch.Tensor, name: str, maps: Maps | None) -> torch.Tensor:
    found: torch.Tensor = linear(rows)
    if not maps:
        return found
    inward, outward = maps[name]
    return found + F.linear(F.linear(rows, inward), outward)


def linears_of(layer: Layer) -> dict[str, Any]:
    """The linear layers of a layer, by the names of an adapter's maps."""
    return dict(zip(MAPS, (*layer.qkv, layer.out, layer.gate, layer.up, layer.down), strict=True))


def sizes_of(layer: Layer) -> Sizes:
    """The sizes that an adapter's maps have in a layer."""
    return {name: (part.out_features, part.in_features) for name, part in linears_of(layer).items()}


@dataclass(frozen=True, eq=False)
class StreamPass:
    """One pass of the streams behind several rows through a model's last layers."""

    modules: LlamaModules
    operations: Operations
    streams: Streams

    def logits(self, asked: Sequence[LookAhead], rotation: Callable[[torch.Tensor, int], CosSin]) -> torch.Tensor:
        """Logits ``[rows * streams, vocabulary]``. ``rotation`` gives the angles of positions short of an end."""
        adapter, count = self.streams.adapter, self.streams.count
        entering = torch.stack([torch.as_tensor(row.state) for row in asked])
        embedded = torch.as_tensor(adapter.embedding)[:count].to(entering)
        states = (entering[:, None] + embedded).flatten(0, 1)[None]
        positions = torch.tensor([[row.position + 1 + stream for stream in range(count)] for row in asked])
        end = int(positions.max()) + 1
        cos_sin = rotation(positions.flatten().to(states.device), end)
        last = self.modules.layers[-adapter.depth :]
        for layer, maps in zip(last, adapter.layers, strict=True):
            attend = _Behind(layer, asked, count)
            states = through(layer, states, cos_sin, attend, self.operations, maps)
        found: torch.Tensor = self.modules.head(self.operations.norm(states, self.modules.norm))[0]
        return found


class _Behind:
    """Attention of streams over the cached rows of their texts, and themselves."""

    def __init__(self, layer: Layer, asked: Sequence[LookAhead], count: int) -> None:
        self._attention, self._window = layer.attention, layer.window(layer.attention)
        self._asked, self._count = asked, count

    def __call__(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = zip(self._asked, *(each.split(self._count, dim=2) for each in (query, keys, values)), strict=True)
        return torch.cat([self._of(row, own, key, value) for row, own, key, value in parts], dim=2)

    def _of(self, row: LookAhead, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Of one row: its text's keys from the window's first to its own."""
        rows = row.rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        first = max(0, row.position + 1 - self._window) if self._window else 0
        end = rows.committed + (int(row.seen[-1]) + 1 if len(row.seen) else 0)
        cached = rows.layers[self._attention.layer_idx].span(min(first, rows.committed), end)
        near = tuple(each.to(query.dtype) for each in cached)
        hidden = _hidden(row, min(first, rows.committed), end, first)
        mask = None if hidden is None else torch.from_numpy(hidden).to(query.device)
        return stream_attention(query, (near[0], near[1]), (key, value), self._count, mask, self._attention.scaling)


def _hidden(row: LookAhead, start: int, end: int, first: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]] | None:
    """``[1, keys]``: which of the rows ``start .. end`` a row does not see, if any: those of other paths, and on its
    own those before the place ``first``."""
    committed = row.rows.committed
    if first == start and end - committed == len(row.seen):
        return None
    seen = np.zeros(end - start, np.bool_)
    seen[: committed - start] = np.arange(start, committed) >= first
    seen[committed - start + row.seen] = committed + np.arange(len(row.seen)) >= first
    return ~seen[None]
