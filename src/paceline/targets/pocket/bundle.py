"""A bundled model's files in the package: configuration, weights, tokenizer, and checksums of all three.

Files are read whole and compared with their checksums first, so that damage is one sentence and never odd text. No file
stays mapped, because an upgrade may replace it under a running process.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.errors import DamagedFile
from paceline.files import write_whole

MODELS = Path(__file__).parent / "models"
CONFIG, WEIGHTS, CHECKSUMS = "config.json", "model.safetensors", "checksums.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


Config: TypeAlias = Any
"""A complete `LlamaConfig`; its own types allow None where this has numbers."""


@dataclass(frozen=True)
class Bundle:
    """One bundled model, verified and in memory."""

    name: str
    config: Config
    weights: dict[str, torch.Tensor]
    digest: str
    """Of the weights file; part of the identity of ballast."""


def read_bundle(name: str) -> Bundle:
    """Configuration and weights of a bundled model."""
    folder, sums = MODELS / name, _checksums(name)
    config = LlamaConfig.from_dict(json.loads(_verified(folder / CONFIG, sums)))
    return Bundle(name, config, load(_verified(folder / WEIGHTS, sums)), sums[WEIGHTS])


def read_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a bundled model."""
    folder, sums = MODELS / name, _checksums(name)
    for file in TOKENIZER:
        _verified(folder / file, sums)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def assembled(config: Config, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """A model with these weights; no others are allocated or initialised. The head has a bias if ``lm_head.bias`` is
    among them."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        if "lm_head.bias" in weights:
            model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    kind, place = (getattr(weights["model.norm.weight"], what) for what in ("dtype", "device"))
    model.model.rotary_emb.to(place)
    model.config.dtype = kind
    head = {"lm_head.weight": weights["model.embed_tokens.weight"]}
    model.load_state_dict(weights | head, assign=True)
    model.tie_weights()
    model.requires_grad_(False)
    model.train(False)
    return model


def seal(folder: Path) -> None:
    """Write down the checksums of a finished model's files."""
    sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in (CONFIG, WEIGHTS, *TOKENIZER)}
    write_whole(folder / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def _checksums(name: str) -> dict[str, str]:
    file = MODELS / name / CHECKSUMS
    try:
        sums = json.loads(_bytes(file))
        return {each: str(sums[each]) for each in (CONFIG, WEIGHTS, *TOKENIZER)}
    except (ValueError, KeyError, TypeError) as error:
        raise (error if isinstance(error, Damaged) else Damaged(file, "is garbled")) from None


def _verified(file: Path, sums: dict[str, str]) -> bytes:
    content = _bytes(file)
    if hashlib.sha256(content).hexdigest() != sums[file.name]:
        raise Damaged(file, "is damaged: its checksum is not the shipped one")
    return content


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise Damaged(file, "is missing") from None
    except OSError as error:
        raise Damaged(file, f"cannot be read ({error.strerror})") from None


class Damaged(DamagedFile):
    """A file of a bundled model is not as it was shipped."""

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"{file} {what}; reinstall paceline to restore it")
