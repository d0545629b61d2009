"""Adapters of speculative streams: whole texts, of which they read the states that enter the model's last layers.

The model's own rows are computed by its own layers, without gradients. Behind each of them hang the streams, as in a
draft: they see the rows up to theirs, and the streams before them. Stream *j* predicts the token that the model chooses
*j* places behind the one that its row predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import nn

from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.heads import STREAMING
from paceline.drafters.networks.reading import DRAFT_FORWARDS
from paceline.drafters.networks.streaming.adapter import StreamingAdapter, StreamingShape
from paceline.drafters.networks.streaming.checkpoint import read_adapter, write_adapter
from paceline.drafters.noise import SHARED
from paceline.engine.counters import Round
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.hf.attention import later, stream_attention
from paceline.targets.hf.lean import cos_sin_at
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.packed import ordinary
from paceline.targets.hf.shares import SharedLinear
from paceline.targets.hf.streams import Maps, linears_of, sizes_of, through
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import Layer, LlamaModules, TracksModules
from paceline_make.heads.kinds.base import Ground, HeadKind
from paceline_make.heads.labels import HeadReading, Labels
from paceline_make.heads.lesson import Head, Lesson, Predictions
from paceline_make.heads.loss import Objective

OPERATIONS = Operations()


class StreamingLesson(Lesson[StreamingAdapter]):
    """Predicts behind every position of a window."""

    modules: LlamaModules
    layers: Sequence[Layer]
    """The model's last ones, in float32; the streams enter as many of them as the adapter has maps for."""

    def predict(self, batch: Labels, number: int) -> tuple[Labels, Predictions]:
        states = batch.states[None]
        windows = StreamedWindows(states, self.unit, self.head.shape.streams, self.modules)
        maps, ahead = self.head.maps, None
        for number, layer in enumerate(self.layers, len(maps) - len(self.layers)):
            if number == 0:
                ahead = windows.entering(states, self.head.stream_embedding)
            with torch.no_grad():
                states, keys = windows.rows(layer, states)
            if ahead is not None:
                ahead = windows.streams(layer, ahead, keys, maps[number])
        assert ahead is not None, "streams enter a layer"
        return batch, map(self.unembed, windows.last(ahead))


class StreamedWindows:
    """Windows side by side, and the streams behind each of their rows, on their way through a model's layers."""

    def __init__(self, states: torch.Tensor, unit: int, streams: int, modules: LlamaModules) -> None:
        self._unit, self._streams, self._modules = unit, streams, modules
        places = torch.arange(unit, device=states.device).repeat(states.shape[1] // unit)
        behind = (places[:, None] + 1 + torch.arange(streams, device=states.device)).flatten()
        self._angles, self._ahead = (cos_sin_at(each, modules.rotary, states) for each in (places, behind))

    def entering(self, states: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """Streams where they enter, in each track of a model that has several: those of a row behind one another."""
        return (states[:, :, None] + embedding).flatten(1, 2)

    def rows(self, layer: Layer, states: torch.Tensor, maps: Maps | None = None) -> tuple[torch.Tensor, WindowKeys]:
        """The model's own rows behind a layer, and their keys there."""
        keys = WindowKeys(self._unit, self._streams, layer.attention.scaling)
        return through(layer, states, self._angles, keys.of_text, OPERATIONS, maps), keys

    def streams(self, layer: Layer, ahead: torch.Tensor, keys: WindowKeys, maps: Maps | None) -> torch.Tensor:
        """The streams behind a layer."""
        return through(layer, ahead, self._ahead, keys.of_streams, OPERATIONS, maps)

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """What the head reads of states behind the last layer."""
        return self._modules.read(OPERATIONS.norm(states, self._modules.norm))[0]

    def last(self, ahead: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the head reads of each stream."""
        normed = self.read(ahead)
        return tuple(normed[stream :: self._streams] for stream in range(self._streams))


class WindowKeys:
    """Keys and values of one layer for windows side by side, each apart."""

    def __init__(self, unit: int, streams: int, scale: float) -> None:
        self._unit, self._streams, self._scale = unit, streams, scale
        self._cached: tuple[torch.Tensor, torch.Tensor] | None = None

    def of_text(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention of the model's own rows, whose keys streams then see."""
        query, keys, values = (_windows(each, self._unit) for each in (query, keys, values))
        self._cached = keys, values
        group = query.shape[1] // keys.shape[1]
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        found = F.scaled_dot_product_attention(
            query, keys.to(query), values.to(query), is_causal=True, scale=self._scale
        )
        return _packed(found)

    def of_streams(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        assert self._cached is not None, "the model's rows come first"
        query, keys, values = (_windows(each, self._unit * self._streams) for each in (query, keys, values))
        hidden = later(self._unit, query.device)
        near = keys.to(query), values.to(query)
        cached = self._cached[0].to(query), self._cached[1].to(query)
        return _packed(stream_attention(query, cached, near, self._streams, hidden, self._scale))


def _windows(packed: torch.Tensor, size: int) -> torch.Tensor:
    """``[1, heads, n, width]`` as ``[windows, heads, size, width]``."""
    found: torch.Tensor = packed[0].unflatten(1, (-1, size)).transpose(0, 1)
    return found


def _packed(windows: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = windows.transpose(0, 1).flatten(1, 2)[None]
    return packed


@dataclass(frozen=True, kw_only=True)
class StreamsKind(HeadKind[Head]):
    """As many streams of a draft model as tokens are learnt ahead, in its last layers."""

    method: ClassVar[str] = STREAMING
    measure: ClassVar[str] = "drafted tokens a forward of the draft model"
    noises: ClassVar[Sequence[str]] = (SHARED,)
    together: ClassVar[int] = 1
    """Texts of a batch draft with fewer streams."""

    layers: int = 0
    """The last ones of the model, in which streams are computed; 0 for half of them."""
    rank: int = 32
    first: int = 0
    """The layer whose input is read: the one that streams enter, or of a model in tracks the last one up to it where
    the tracks meet."""

    def fitted(self, target: Target) -> Self:
        if self.layers > target.layers:
            raise InputError(f"--layers {self.layers} are more than the {target.layers} of {target.name}; give fewer")
        layers = self.layers or -(-target.layers // 2)
        return replace(self, layers=layers, first=modules_of_target(target).meeting(target.layers - layers))

    def drafting(self, folder: Path, ahead: int) -> str:
        """With all of its streams: by default their number depends on measured seconds."""
        return f"{super().drafting(folder, ahead)},streams={ahead}"

    def measured(self, rounds: Sequence[Round]) -> float:
        """Whatever is accepted of a draft: streams change how fast it is made."""
        forwards = sum(each.counts[DRAFT_FORWARDS.name] for each in rounds)
        return sum(each.drafted for each in rounds) / max(1, forwards)


@dataclass(frozen=True, kw_only=True)
class StreamingKind(StreamsKind[StreamingAdapter]):
    """An adapter beside a draft model that stays as it is."""

    title: ClassVar[str] = "adapter of speculative streams"
    smaller: ClassVar[str] = "--layers, --rank"

    @property
    def usual_decay(self) -> float:
        return 0.8

    @property
    def reading(self) -> HeadReading:
        return HeadReading((self.first,), whole=True)

    def output_width(self, head: StreamingAdapter) -> int:
        """The rank is that of maps inside the layers, none of which is thinner than all keys."""
        return min(min(sizes) for sizes in head.shape.sizes.values())

    def made(self, ground: Ground) -> StreamingAdapter:
        sizes = sizes_of(modules_of_target(ground.target).layers[-1])
        return StreamingAdapter(
            StreamingShape(
                width=ground.width,
                vocab_size=ground.target.vocab_size,
                streams=ground.ahead,
                layers=self.layers,
                rank=self.rank,
                queries=sizes["q"][0],
                keys=sizes["k"][0],
                units=sizes["gate"][0],
                tracks=tracks_of_target(ground.target),
            )
        )

    def blank(self, ground: Ground) -> StreamingAdapter:
        """Streams begin as their row at another place."""
        return self.drawn(ground)

    def lesson(self, head: StreamingAdapter, ground: Ground, objective: Objective) -> StreamingLesson:
        lesson = StreamingLesson(head, ground.embedding, objective, ground.output)
        modules = lesson.modules = modules_of_target(ground.target)
        lesson.layers = [frozen(layer) for layer in modules.layers[self.first :]]
        return lesson

    def write(self, folder: Path, head: StreamingAdapter, about: Provenance) -> None:
        write_adapter(folder, head, about)

    @staticmethod
    def read(folder: Path) -> StreamingAdapter:
        return read_adapter(folder)[0]

    def rows(self, head: StreamingAdapter) -> list[tuple[str, str]]:
        shape = head.shape
        return [("shape", f"{shape.streams} streams in the last {shape.layers} layers, maps of rank {shape.rank}")]


def modules_of_target(target: Target) -> LlamaModules:
    modules = target.modules if isinstance(target, HFTarget) else None
    if modules is None:
        raise InputError(f"streams need a model of llama's structure, and {target.name} is none")
    return modules


def tracks_of_target(target: Target) -> int:
    """In how many tracks its layers run."""
    modules = modules_of_target(target)
    return modules.tracks.count if isinstance(modules, TracksModules) else 1


def frozen(layer: Layer) -> Layer:
    """A layer in float32, apart from what computes the model's own forwards: those may be packed or compiled."""
    query, key, value, out, gate, up, down = map(_plain, linears_of(layer).values())
    return replace(
        layer,
        qkv=(query, key, value),
        qkv_joint=None,
        out=out,
        gate=gate,
        up=up,
        gate_up_joint=None,
        down=down,
    )


def _plain(linear: nn.Module) -> nn.Module:
    if isinstance(linear, SharedLinear):
        return linear.in_floats()
    weight, bias = linear.weight, linear.bias
    assert isinstance(weight, torch.Tensor), "a linear layer has a weight"
    return ordinary(weight.detach().float().clone(), None if bias is None else bias.detach().float().clone())  # type: ignore[operator]
