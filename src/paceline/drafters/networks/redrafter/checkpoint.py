"""Heads in files: ``config.json`` and ``model.safetensors``.

The names of the public ReDrafter code and those of TensorRT-LLM are both read and written. Data that only this project
has (a smaller vocabulary, thin output matrices, 8-bit integers, the first state, whose head it is, how its drafts are
ranked) is in the configuration under ``paceline``; other programs may ignore it where it states their defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.drafters.noise import NOISES
from paceline.errors import DamagedFile, InputError
from paceline.files import write_whole
from paceline.files.reading import damaged, parse, read_file
from paceline.files.shape import shaped

CONFIG, WEIGHTS = "config.json", "model.safetensors"
VERSION = 1
MEND = "train it again, or copy it again"
PUBLIC, TENSORRT = "public", "tensorrt-llm"
KIND, TENSORRT_KIND = "recurrent_drafting_drafter", "ReDrafterForCausalLM"
PICKLES = ("model.pt", "pytorch_model.bin")
MOST, MOST_CONFIG = 1 << 33, 1 << 20
SCALE = ".scale"
INT8_MOST = 127

Tensors = Mapping[str, torch.Tensor]


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
class _Own:
    """The part of the configuration that is this project's."""

    version: int
    first: str = "update"
    rank: int = 0
    kept: int = 0
    target: str = ""
    target_name: str = ""
    noise: str | None = None
    trained: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(type(size) is not int for size in (self.rank, self.kept)):
            raise ValueError(f"rank and kept are whole numbers, not {self.rank!r} and {self.kept!r}")
        if self.noise not in (None, *NOISES):
            raise ValueError(f"noise is {self.noise!r}, and a head has {' or '.join(NOISES)}")


def read_head(folder: Path) -> tuple[RecurrentHead, HeadConfig]:
    """A head and its configuration, in float32, or in the type in which it is stored."""
    where = f"the head in {folder}"
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that 'paceline train redrafter' wrote")
    config = _config(folder, where)
    file = folder / WEIGHTS
    if not file.exists():
        pickle = next((name for name in PICKLES if (folder / name).exists()), None)
        if pickle is not None:
            raise InputError(
                f"{where} is in {pickle}, a pickle, which can run code when it is opened; "
                f"save it as {WEIGHTS} with the program that made it"
            )
        raise InputError(f"{where} has no {WEIGHTS}; give the folder that 'paceline train redrafter' wrote")
    try:
        tensors = load(read_file(file, MOST))
    except Exception as error:
        raise DamagedFile(f"{file} is damaged: {str(error).splitlines()[0]}; {MEND}") from None
    _check_sizes(config.shape, tensors, where)
    with torch.device("meta"):
        head = RecurrentHead(config.shape)
    found = _floats(_renamed(tensors, config.shape))
    _check_tensors(head, found, where)
    head.load_state_dict(found, assign=True)
    return head.requires_grad_(False), config


def write_head(
    folder: Path,
    head: RecurrentHead,
    *,
    target: str = "",
    target_name: str = "",
    trained: Mapping[str, Any] | None = None,
    names: str = PUBLIC,
    dtype: torch.dtype | None = None,
    int8: bool = False,
) -> None:
    """``int8`` stores the matrices of the output in 8-bit integers with a scale for each row. The configuration is
    written last, so a folder with one is whole."""
    shape = head.shape
    if names == TENSORRT and (shape.kept or shape.rank or int8 or not shape.recurrent):
        raise InputError("TensorRT-LLM knows neither part vocabularies nor thin output matrices nor int8 in a head")
    own = _Own(
        version=VERSION,
        first=shape.first,
        rank=shape.rank,
        kept=shape.kept,
        target=target,
        target_name=target_name,
        trained=dict(trained or {}),
    )
    tensors = {name: weight.detach().to(_type_of(weight, dtype)) for name, weight in head.state_dict().items()}
    if int8:
        tensors = _rounded(tensors, f"lm_head.{shape.blocks}")
    if names == TENSORRT:
        tensors = {_tensorrt_name(name, shape.blocks): weight for name, weight in tensors.items()}
    config = _public_config(shape) if names == PUBLIC else _tensorrt_config(shape)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: weight.contiguous().cpu() for name, weight in tensors.items()}
    write_whole(folder / WEIGHTS, [save(contiguous, metadata={"format": "pt"})])
    write_whole(folder / CONFIG, _written({**config, "paceline": asdict(own)}))


def record_noise(folder: Path, tokens_per_round: Mapping[str, float]) -> None:
    """Write the tokens a round by ``noise`` into the configuration of a head, and the better ``noise`` as its own."""
    content = parse(read_file(folder / CONFIG, MOST_CONFIG))
    own = content["paceline"]
    own["noise"] = max(tokens_per_round, key=lambda noise: tokens_per_round[noise])
    own["trained"]["tokens_per_round"] = dict(tokens_per_round)
    write_whole(folder / CONFIG, _written(content))


def _written(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=1) + "\n"


def _type_of(weight: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and weight.is_floating_point() else weight.dtype


# configurations


def _config(folder: Path, where: str) -> HeadConfig:
    try:
        content = parse(read_file(folder / CONFIG, MOST_CONFIG))
    except FileNotFoundError:
        raise InputError(f"there is no head in {folder}: it has no {CONFIG}; give a folder that has") from None
    except OSError as error:
        raise InputError(f"{where} cannot be read: {CONFIG}: {error.strerror}") from None
    except ValueError as error:
        raise DamagedFile(f"{where} is damaged: {CONFIG}: {error}; {MEND}") from None
    _check_version(content, where)
    with damaged(f"{CONFIG} of {where}", MEND):
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        given = content.get("paceline")
        own = _Own(version=VERSION, first=_first_of(content)) if given is None else shaped(_Own, given)
        names = _names_of(content)
        sizes = {name: _whole(content, key) for name, key in names.items()}
        rnn = content.get("redrafter_is_rnn" if _is_tensorrt(content) else "rnn", True)
        shape = HeadShape(
            **sizes,
            recurrent=bool(rnn),
            first=own.first,  # type: ignore[arg-type]
            rank=own.rank,
            kept=own.kept,
        )
    about = {name: getattr(own, name) for name in ("target", "target_name", "noise", "trained")}
    return HeadConfig(shape=shape, **about)


def _check_version(content: Any, where: str) -> None:
    own = content.get("paceline") if isinstance(content, dict) else None
    version = own.get("version") if isinstance(own, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise InputError(f"{where} is of version {version}, and this paceline reads {VERSION}; upgrade it")


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


def _whole(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return value


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


def _rounded(tensors: Tensors, last: str) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in tensors.items():
        if not (name.startswith(f"{last}.") and weight.ndim == 2):
            found[name] = weight
            continue
        scale = weight.float().abs().amax(dim=1).clamp_min(1e-12) / INT8_MOST
        found[name] = (weight.float() / scale[:, None]).round().to(torch.int8)
        found[name + SCALE] = scale
    return found


def _floats(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Without integers: a head computes in floats."""
    scales = {name.removesuffix(SCALE): scale for name, scale in tensors.items() if name.endswith(SCALE)}
    plain = {name: weight for name, weight in tensors.items() if not name.endswith(SCALE)}
    for name, scale in scales.items():
        if name in plain and plain[name].ndim == 2 and scale.shape == plain[name].shape[:1]:
            plain[name] = plain[name].float() * scale.float()[:, None]
    return plain


def _check_sizes(shape: HeadShape, tensors: Tensors, where: str) -> None:
    """Refuse sizes beyond those of the file before a head is built of them."""
    largest = max((size for weight in tensors.values() for size in weight.shape), default=0)
    if shape.blocks > len(tensors):
        counts = f"says {shape.blocks} layers, and {WEIGHTS} has {len(tensors)} tensors"
        raise InputError(f"{CONFIG} of {where} {counts}; {MEND}")
    for name in ("width", "exit", "rank", "known"):
        if (size := getattr(shape, name)) > largest:
            raise InputError(f"{CONFIG} of {where} says {name} {size}, and no tensor in {WEIGHTS} is so large; {MEND}")


def _check_tensors(head: RecurrentHead, found: Tensors, where: str) -> None:
    wanted = head.state_dict()
    if missing := sorted(wanted.keys() - found.keys()):
        raise InputError(f"{where} lacks the tensor {missing[0]}; {MEND}")
    if strange := sorted(found.keys() - wanted.keys()):
        raise InputError(f"{where} holds a tensor {strange[0]!r} that its configuration has no place for; {MEND}")
    for name, weight in found.items():
        if weight.shape != wanted[name].shape:
            has, needs = (" x ".join(map(str, each.shape)) for each in (weight, wanted[name]))
            raise InputError(f"the tensor {name} of {where} is {has}, and its configuration says {needs}; {MEND}")
        if weight.is_floating_point() != wanted[name].is_floating_point():
            raise InputError(f"the tensor {name} of {where} is of type {str(weight.dtype)[6:]}; {MEND}")
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(f"the tensor {name} of {where} holds numbers that are not finite; {MEND}")
    if (ids := found.get("token_ids")) is not None:
        inside = int(ids[0]) >= 0 and int(ids[-1]) < head.shape.vocab_size
        if not inside or not bool((ids.diff() > 0).all()):
            raise InputError(f"the token ids of {where} do not ascend within its vocabulary; {MEND}")
