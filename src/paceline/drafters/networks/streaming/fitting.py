"""Which adapter makes streams of a draft model: one in a folder, or the one that comes with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.drafters.networks.fitting import FittedHead, fitted_head, layers_without_ballast, states_before
from paceline.drafters.networks.heads import STREAMING
from paceline.drafters.networks.streaming.adapter import StreamingAdapter
from paceline.drafters.networks.streaming.checkpoint import read_adapter
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.targets.hf.streams import Sizes, sizes_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import TracksModules
from paceline.targets.pocket.names import BALLAST_MARK
from paceline.targets.pocket.shape import real_layers
from paceline.targets.streams import StreamAdapter


@dataclass(frozen=True, eq=False)
class FittedStreams:
    """An adapter in the type and on the device of its draft model."""

    model: HFTarget
    adapter: StreamAdapter
    shared: FittedHead[StreamingAdapter]
    """What other drafters of the process share, as long as one of them holds it."""


def adapter_for(named: str | Path, model: Target) -> FittedStreams:
    """The adapter for a draft model, read once in a process."""
    modules = model.modules if isinstance(model, HFTarget) else None
    if modules is None or not isinstance(model, HFTarget):
        raise InputError(
            f"streams need a draft model of llama's structure that torch computes, and {model.name} is none; draft "
            "with it by assistant"
        )
    fitted = fitted_head(named, model, STREAMING, read_adapter, lambda adapter, _: adapter)
    tracks = modules.tracks.count if isinstance(modules, TracksModules) else 1
    if (meant := fitted.head.shape.tracks) != tracks:
        raise InputError(
            f"the head in {named} is for a model in {meant} tracks, and {model.name} has {tracks}; train one for this "
            "model"
        )
    adapter = _adapter(fitted.head, model, [sizes_of(layer) for layer in modules.layers])
    return FittedStreams(model, model.own_streams(adapter), fitted)


def _adapter(adapter: StreamingAdapter, model: Target, sizes: list[Sizes]) -> StreamAdapter:
    count = layers_without_ballast(model)
    if adapter.shape.layers > count:
        raise InputError(
            f"the head has streams in {adapter.shape.layers} layers, and {model.name} has {count}; train one for this "
            "model"
        )
    if BALLAST_MARK in model.name:
        return _padded(adapter, model, sizes, count)
    small, own = adapter.shape.sizes, sizes[-1]
    if (wrong := next((name for name in adapter.shape.named if small[name] != own[name]), None)) is not None:
        has, needs = (" x ".join(map(str, each)) for each in (small[wrong], own[wrong]))
        raise InputError(
            f"the head is for a model whose map {wrong} is {has}, and that of {model.name} is {needs}; train one for "
            "this model"
        )
    return adapter.as_adapter((adapter.number, model.name))


def _padded(adapter: StreamingAdapter, model: Target, sizes: list[Sizes], count: int) -> StreamAdapter:
    """The same for a model with ballast, whose real channels, heads and units are the first ones: zeros elsewhere, and
    maps of zeros in layers of ballast, at the cost of an adapter of that size."""
    shape, real = adapter.shape, real_layers(len(sizes), count)
    (first,) = states_before([count - shape.layers], model)
    embedding = adapter.stream_embedding
    width = sizes[-1]["q"][1]
    wide = embedding.new_zeros(shape.streams, width)
    wide[:, : shape.width] = embedding
    layers = []
    for number in range(first, len(sizes)):
        small = real.get(number, -1) - (count - shape.layers)
        own: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = adapter.maps[small] if small >= 0 else {}
        layers.append({name: _wide(*sizes[number][name], shape.rank, own.get(name), wide) for name in shape.named})
    return StreamAdapter(wide, layers, (adapter.number, model.name))


def _wide(
    outputs: int, inputs: int, rank: int, small: tuple[torch.Tensor, torch.Tensor] | None, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps of zeros with small ones in front."""
    inward, outward = like.new_zeros(rank, inputs), like.new_zeros(outputs, rank)
    if small is not None:
        inward[:, : small[0].shape[1]], outward[: len(small[1])] = small
    return inward, outward
