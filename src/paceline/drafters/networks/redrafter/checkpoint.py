"""Heads in files: ``config.json`` and ``model.safetensors``.

The names of the public ReDrafter code and those of TensorRT-LLM are both read and written. Data that only this project
has (a smaller vocabulary, thin output matrices, 8-bit integers, the first state, whose head it is, how its drafts are
ranked) is in the configuration under ``paceline``; other programs may ignore it where it states their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    WEIGHTS,
    OwnPart,
    Provenance,
    Tensors,
    check_ids,
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
from paceline.drafters.networks.heads import CONFIG, MEND, read_config
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.errors import InputError
from paceline.files.reading import damaged

PUBLIC, TENSORRT = "public", "tensorrt-llm"
KIND, TENSORRT_KIND = "recurrent_drafting_drafter", "ReDrafterForCausalLM"
PICKLES = ("model.pt", "pytorch_model.bin")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The configuration beside the weights."""

    shape: HeadShape
    target: str = ""
    """The fingerprint of the model that it was trained for; empty where nothing is said."""
    target_name: str = ""
    noise: str | None = None
    """How its drafts are ranked unless a method says it; None where that was not measured."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, for people."""


@dataclass(frozen=True, kw_only=True)
class _Own(OwnPart):
    """Its sizes beside those of the public code."""

    first: str = "update"
    rank: int = 0
    kept: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(type(size) is not int for size in (self.rank, self.kept)):
            raise ValueError(f"rank and kept are whole numbers, not {self.rank!r} and {self.kept!r}")


def read_head(folder: Path) -> tuple[RecurrentHead, HeadConfig]:
    """A head and its configuration, in float32, or in the type in which it is stored."""
    where = f"the head in {folder}"
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that 'paceline train redrafter' wrote")
    config = _config(folder, where)
    pickle = next((name for name in PICKLES if (folder / name).exists()), None)
    if pickle is not None and not (folder / WEIGHTS).exists():
        raise InputError(
            f"{where} is in {pickle}, a pickle, which can run code when it is opened; "
            f"save it as {WEIGHTS} with the program that made it"
        )
    tensors, shape = read_tensors(folder, [WEIGHTS], "redrafter"), config.shape
    if shape.blocks > len(tensors):
        counts = f"says {shape.blocks} layers, and {WEIGHTS} has {len(tensors)} tensors"
        raise InputError(f"{CONFIG} of {where} {counts}; {MEND}")
    check_sizes({name: getattr(shape, name) for name in ("width", "exit", "rank", "known")}, tensors, folder)
    with torch.device("meta"):
        head = RecurrentHead(shape)
    fill(head, floats(_renamed(tensors, shape)), folder)
    if head.token_ids is not None:
        check_ids(head.token_ids, shape.vocab_size, folder)
    return head, config


def write_head(folder: Path, head: RecurrentHead, about: Provenance = UNSTATED, *, names: str = PUBLIC) -> None:
    """Of its matrices only those of the output are large. The configuration is written last, so a folder with one is
    whole."""
    shape = head.shape
    if names == TENSORRT and (shape.kept or shape.rank or about.int8 or not shape.recurrent):
        raise InputError("TensorRT-LLM knows neither part vocabularies nor thin output matrices nor int8 in a head")
    own = about.part(_Own, first=shape.first, rank=shape.rank, kept=shape.kept)
    tensors = of_type(head.state_dict(), about.dtype)
    if about.int8:
        tensors = rounded(tensors, lambda name: name.startswith(f"lm_head.{shape.blocks}."))
    if names == TENSORRT:
        tensors = {_tensorrt_name(name, shape.blocks): weight for name, weight in tensors.items()}
    config = _public_config(shape) if names == PUBLIC else _tensorrt_config(shape)
    write_folder(folder, tensors, {**config, "paceline": asdict(own)})


# configurations


def _config(folder: Path, where: str) -> HeadConfig:
    content = read_config(folder)
    own = own_part(_Own, content, folder) or _Own(first=_first_of(content))
    with parsing(f"{CONFIG} of {where}"):
        names = _names_of(content)
        sizes = {name: whole(content, key) for name, key in names.items()}
        rnn = content.get("redrafter_is_rnn" if _is_tensorrt(content) else "rnn", True)
    with damaged(f"{CONFIG} of {where}", MEND):
        shape = HeadShape(
            **sizes,
            recurrent=bool(rnn),
            first=own.first,  # type: ignore[arg-type]
            rank=own.rank,
            kept=own.kept,
        )
    about = {name: getattr(own, name) for name in ("target", "target_name", "noise", "trained")}
    return HeadConfig(shape=shape, **about)


def _is_tensorrt(content: Mapping[str, Any]) -> bool:
    return content.get("architecture") == TENSORRT_KIND


def _names_of(content: Mapping[str, Any]) -> dict[str, str]:
    if _is_tensorrt(content):
        blocks, exit_width = "redrafter_num_layers", "redrafter_exit_dim"
        return {"width": "redrafter_hidden_size", "vocab_size": "vocab_size", "blocks": blocks, "exit": exit_width}
    if content.get("model_type") != KIND:
        raise ValueError(f"model_type is {content.get('model_type')!r}, and a recurrent head's is {KIND!r}")
    return {"width": "hidden_size", "vocab_size": "vocab_size", "blocks": "num_draft_layers", "exit": "exit_dim"}


def _first_of(content: Mapping[str, Any]) -> str:
    return "linear" if _is_tensorrt(content) else "update"


def _public_config(shape: HeadShape) -> dict[str, Any]:
    return {
        "model_type": KIND,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "exit_dim": shape.exit,
        "num_draft_layers": shape.blocks,
        "rnn": shape.recurrent,
    }


def _tensorrt_config(shape: HeadShape) -> dict[str, Any]:
    return {
        "architecture": TENSORRT_KIND,
        "vocab_size": shape.vocab_size,
        "redrafter_num_layers": shape.blocks,
        "redrafter_hidden_size": shape.width,
        "redrafter_exit_dim": shape.exit,
        "redrafter_is_rnn": shape.recurrent,
    }


# tensors


def _tensorrt_name(name: str, blocks: int) -> str:
    if name == f"lm_head.{blocks}.weight":
        return "drafter.lm_head.weight"
    return "drafter." + re.sub(r"^lm_head\.(\d+)\.linear", r"layers.\1.linear", name)


def _renamed(tensors: Tensors, shape: HeadShape) -> dict[str, torch.Tensor]:
    """Under the names of the public code."""
    found = {}
    for name, weight in tensors.items():
        plain = name.removeprefix("drafter.").replace("input_projs.", "input_proj.")
        plain = re.sub(r"^(layers|lm_heads|0)\.(\d+)\.linear", r"lm_head.\2.linear", plain)
        plain = re.sub(r"^lm_head\.weight", f"lm_head.{shape.blocks}.weight", plain)
        found[plain] = weight
    return found
