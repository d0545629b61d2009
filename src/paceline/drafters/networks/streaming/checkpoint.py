"""Adapters of streams in files: ``config.json`` says for which model, ``model.safetensors`` holds the tensors."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

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
from paceline.drafters.networks.heads import CONFIG, MEND, STREAMING, read_config
from paceline.drafters.networks.streaming.adapter import StreamingAdapter, StreamingShape
from paceline.errors import InputError
from paceline.files.reading import damaged

ARCHITECTURE = "PacelineStreaming"
MAP = re.compile(r"layers\.(\d+)\.(\w+)\.([ab])")


@dataclass(frozen=True, kw_only=True)
class OwnStreaming(OwnPart):
    """The part of this project."""

    vocab_size: int = 0
    """Of the model."""
    tracks: int = 1
    """In which its layers run."""


def base_of(folder: Path) -> str:
    """The name of the draft model that an adapter was trained for; empty where it is not said."""
    own = own_part(OwnStreaming, read_config(folder), folder)
    return "" if own is None else own.target_name


def read_adapter(folder: Path) -> tuple[StreamingAdapter, HeadFacts]:
    """An adapter and what it says of its model, in the type in which it is stored."""
    config = read_config(folder)
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
    with torch.device("meta"):
        adapter = StreamingAdapter(shape)
    fill(adapter, plain, folder)
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
    embedding = tensors.get("stream_embedding")
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
