"""Adapters of streams in files: ``config.json`` says for which model, ``model.safetensors`` holds the tensors.

A draft model that was trained with its streams is a folder that any program reads as that model. Beside its own files
stands ``streams.safetensors`` with the embeddings of the streams, and its ``config.json`` has this project's part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    WEIGHTS,
    OwnPart,
    Provenance,
    Tensors,
    check_sizes,
    fill,
    floats,
    of_type,
    own_part,
    parsing,
    read_tensors,
    rounded,
    whole,
    write_folder,
)
from paceline.drafters.networks.fitting import HeadFacts
from paceline.drafters.networks.heads import CONFIG, MEND, STREAMING, STREAMS, holds_model, read_config
from paceline.drafters.networks.streaming.adapter import StreamingAdapter, StreamingShape
from paceline.errors import InputError
from paceline.files import write_whole
from paceline.files.reading import damaged

ARCHITECTURE = "PacelineStreaming"
EMBEDDING = "stream_embedding"
MAP = re.compile(r"layers\.(\d+)\.(\w+)\.([ab])")


@dataclass(frozen=True, kw_only=True)
class OwnStreaming(OwnPart):
    """The part of this project."""

    vocab_size: int = 0
    """Of the model."""
    layers: int = 0
    """With streams, of a model that was trained with them."""
    tracks: int = 1
    """In which its layers run."""


def base_of(folder: Path) -> str:
    """The name of the draft model that an adapter was trained for; empty where it is not said."""
    if holds_model(folder):
        return str(folder)
    own = own_part(OwnStreaming, read_config(folder), folder)
    return "" if own is None else own.target_name


def read_adapter(folder: Path) -> tuple[StreamingAdapter, HeadFacts]:
    """An adapter and what it says of its model, in the type in which it is stored."""
    config = read_config(folder)
    if holds_model(folder):
        return _of_model(folder, config)
    if config.get("architectures") != [ARCHITECTURE]:
        raise InputError(
            f"the head in {folder} is no adapter of streams; give the folder that 'paceline train streaming' wrote"
        )
    own = own_part(OwnStreaming, config, folder) or OwnStreaming()
    plain = floats(read_tensors(folder, (WEIGHTS,), STREAMING))
    with parsing(f"{CONFIG} of the head in {folder}"):
        sizes = {name: whole(config, name) for name in ("streams", "layers", "rank")}
    check_sizes({"streams": sizes["streams"], "rank": sizes["rank"]}, plain, folder)
    if sizes["layers"] > len(plain):
        raise InputError(
            f"{CONFIG} of the head in {folder} says layers {sizes['layers']}, and {WEIGHTS} holds fewer tensors; {MEND}"
        )
    shape = _shape_of(plain, sizes | {"tracks": own.tracks, "vocab_size": own.vocab_size}, folder)
    return _filled(shape, plain, own, folder)


def _of_model(folder: Path, config: Mapping[str, Any]) -> tuple[StreamingAdapter, HeadFacts]:
    """An adapter of rank 0, of a model that was trained with its streams."""
    own = own_part(OwnStreaming, config, folder)
    if own is None:
        raise InputError(f"{CONFIG} of the model in {folder} says nothing of its {STREAMS}; {MEND}")
    plain = read_tensors(folder, (STREAMS,), STREAMING)
    embedding = plain.get(EMBEDDING)
    if embedding is None or embedding.ndim != 2:
        raise InputError(f"{STREAMS} in {folder} holds no embeddings of streams; {MEND}")
    with parsing(f"{CONFIG} of the model in {folder}"):
        if own.layers > (most := whole(config, "num_hidden_layers")):
            raise ValueError(f"it has {most} layers, and streams in {own.layers}")
    streams, width = embedding.shape
    with damaged(f"the model in {folder}", MEND):
        sizes = {"layers": own.layers, "rank": 0, "tracks": own.tracks, "vocab_size": own.vocab_size}
        shape = StreamingShape(width=width, streams=streams, **sizes)
    adapter, facts = _filled(shape, plain, own, folder)
    return adapter, replace(facts, target_name="the model in that folder")


def _filled(
    shape: StreamingShape, tensors: Tensors, own: OwnStreaming, folder: Path
) -> tuple[StreamingAdapter, HeadFacts]:
    with torch.device("meta"):
        adapter = StreamingAdapter(shape)
    fill(adapter, tensors, folder)
    facts = HeadFacts(
        width=shape.width,
        vocab_size=shape.vocab_size,
        target=own.target,
        target_name=own.target_name,
        noise=own.noise,
    )
    return adapter, facts


def _shape_of(tensors: Tensors, sizes: dict[str, int], folder: Path) -> StreamingShape:
    """The sizes of the adapter that these tensors are."""
    outputs, width = dict[str, int](), 0
    for name, weight in tensors.items():
        found = MAP.fullmatch(name)
        if found is not None and found[1] == "0" and found[3] == "b" and weight.ndim == 2:
            outputs[found[2]] = len(weight)
    embedding = tensors.get(EMBEDDING)
    if embedding is not None and embedding.ndim == 2:
        width = embedding.shape[1]
    if not width or not {"q", "k", "gate"} <= outputs.keys():
        raise InputError(f"the weights in {folder} are not those of an adapter of streams; {MEND}")
    with damaged(f"the head in {folder}", MEND):
        return StreamingShape(
            width=width,
            queries=outputs["q"],
            keys=outputs["k"],
            units=outputs["gate"],
            **sizes,
        )


def write_adapter(folder: Path, adapter: StreamingAdapter, about: Provenance = UNSTATED) -> None:
    """The configuration is written last, so a folder with one is whole."""
    shape = adapter.shape
    tensors = of_type(adapter.state_dict(), about.dtype)
    if about.int8:
        tensors = rounded(tensors, lambda name: MAP.fullmatch(name) is not None)
    config = {
        "architectures": [ARCHITECTURE],
        "streams": shape.streams,
        "layers": shape.layers,
        "rank": shape.rank,
        "base": {
            "name": about.target_name,
            "fingerprint": about.target,
            "width": shape.width,
            "vocab_size": shape.vocab_size,
        },
        "paceline": asdict(about.part(OwnStreaming, vocab_size=shape.vocab_size, tracks=shape.tracks)),
    }
    write_folder(folder, tensors, config)


def write_streams(folder: Path, adapter: StreamingAdapter, about: Provenance) -> dict[str, Any]:
    """The embeddings of a model's streams, beside the model; gives this project's part for its configuration."""
    shape, tensors = adapter.shape, of_type(adapter.state_dict(), about.dtype)
    assert not shape.rank, "the model's own weights make its streams"
    write_whole(folder / STREAMS, [save({EMBEDDING: tensors[EMBEDDING].cpu().contiguous()}, metadata={"format": "pt"})])
    return asdict(about.part(OwnStreaming, vocab_size=shape.vocab_size, layers=shape.layers, tracks=shape.tracks))
