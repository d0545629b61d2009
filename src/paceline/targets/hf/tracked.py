"""The lean path of a model in tracks, which computes streams beside the rows that have them, in the same forward.

Several processes may hold the tracks, and what they exchange costs more than a few rows. So streams do not wait for the
choice of a row, as on other paths (`streams`): they are computed behind every row that may be chosen, and meet where
the rows do. A forward has two sums, one of states where the segments meet, and one of logits, with streams as without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from paceline.targets.hf.attention import AttentionOptions, KVCache
from paceline.targets.hf.lean import Lean, select
from paceline.targets.hf.operations import CosSin, Operations
from paceline.targets.hf.path import ForwardJob, Found, Outputs, Taps
from paceline.targets.hf.streams import BehindRows, Maps, Rotation, through
from paceline.targets.hf.variants import Layer, LlamaModules, TracksModules, modules_in_tracks
from paceline.targets.streams import LookAhead, Streams, looking_ahead


class TracksPath(Lean):
    """Computes models in tracks."""

    @staticmethod
    def known(model: Any) -> LlamaModules | None:
        return modules_in_tracks(model)

    @property
    def streams_beside(self) -> bool:
        return self.ready()

    def streamed(self, asked: Sequence[LookAhead], streams: Streams) -> None:
        """No streams in a second pass: behind the first segment a row has a state in each track."""
        return

    def _run(self, job: ForwardJob) -> Found:
        states, cos_sin, rows = self._begun(job)
        beside = self._beside(job, states) if job.streamed else None
        return self.computed(states, cos_sin, rows, job.outputs, None, beside)

    def _beside(self, job: ForwardJob, like: torch.Tensor) -> RowsBeside:
        modules = self.modules
        return RowsBeside(
            job,
            len(modules.layers),
            lambda positions, end: self._rotary.at(positions.to(like.device), end, modules.rotary, like),
        )

    def computed(
        self,
        states: torch.Tensor,
        cos_sin: CosSin,
        rows: KVCache,
        outputs: Outputs,
        operations: Operations | None = None,
        beside: RowsBeside | None = None,
    ) -> Found:
        modules, taps, operations = self.modules, Taps(), operations or self._operations
        assert isinstance(modules, TracksModules), "only models in tracks are taken"
        own, last = states.shape[1], len(modules.layers)
        for number, layer in enumerate(modules.layers):
            self._tap(number, states[:, :own], outputs, taps)
            if beside is not None and number == beside.first:
                states, cos_sin = beside.joined(states, cos_sin)
            maps = None if beside is None else beside.maps(number)
            attend = partial(self._attended, layer, rows, own, beside)
            states = through(layer, states, cos_sin, attend, operations, maps, own)
        if last in outputs.want.hidden:
            taps.hidden[last] = modules.read(operations.norm(states[:, :own], modules.norm))[0]
        if not outputs.logits and beside is None:
            return Found(None, taps)
        wanted = select(outputs.logit_rows, states[:, :own])
        final = operations.norm(torch.cat([wanted, states[:, own:]], dim=1), modules.norm)
        logits, streamed = modules.head(final)[0].split([wanted.shape[1], states.shape[1] - own])
        return Found(logits, taps, None if beside is None else streamed.unflatten(0, (-1, beside.count)))

    def _attended(
        self,
        layer: Layer,
        rows: KVCache,
        own: int,
        beside: RowsBeside | None,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Rows of the texts write and read the cache; streams read it, and each other."""
        place = layer.attention.layer_idx
        rows.write(place, keys[:, :, :own], values[:, :, :own])
        options = AttentionOptions(layer.attention.scaling, layer.window(layer.attention))
        found = rows.attend(place, query[:, :, :own], options)
        if beside is None or query.shape[2] == own:
            return found
        behind = BehindRows(layer, beside.asked, beside.count)
        ahead = behind(query[:, :, own:], keys[:, :, own:], values[:, :, own:])
        return torch.cat([found, ahead], dim=2)


class RowsBeside:
    """The streams of a forward: which rows they stand behind, and where they enter the layers."""

    def __init__(self, job: ForwardJob, layers: int, rotation: Rotation) -> None:
        asking = [
            (request, span, request.streams)
            for request, span in zip(job.requests, job.spans, strict=True)
            if request.streams is not None
        ]
        kinds = {(beside.streams.adapter, beside.streams.count) for _, _, beside in asking}
        assert len(kinds) == 1, "a forward has one kind of streams"
        ((self._adapter, self.count),) = kinds
        self.first = layers - self._adapter.depth
        """The layer that they enter."""
        self.asked = [row for request, _, _ in asking for row in looking_ahead(request)]
        self._behind = torch.cat([span.start + torch.from_numpy(beside.behind) for _, span, beside in asking])
        """The numbers of these rows among all rows of the forward."""
        places = torch.tensor([row.position for row in self.asked])
        positions = (places[:, None] + 1 + torch.arange(self.count)).flatten()
        self._angles = rotation(positions, int(positions.max()) + 1)

    def maps(self, layer: int) -> Maps | None:
        """What is added to a layer's linear maps, in rows of streams."""
        return self._adapter.layers[layer - self.first] if layer >= self.first else None

    def joined(self, states: torch.Tensor, cos_sin: CosSin) -> tuple[torch.Tensor, CosSin]:
        """States and angles of the texts' rows, and behind them those of their streams: in each track the row's state
        there, with the stream's embedding."""
        entering = states[:, self._behind.to(states.device), None]
        embedded = torch.as_tensor(self._adapter.embedding)[: self.count].to(entering)
        ahead = (entering + embedded).flatten(1, 2)
        cosines, sines = (torch.cat(pair) for pair in zip(cos_sin, self._angles, strict=True))
        return torch.cat([states, ahead], dim=1), (cosines, sines)
