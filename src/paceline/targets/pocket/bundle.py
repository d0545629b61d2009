"""A bundled model's files in the package: configuration, settings of generation, weights, tokenizer, and checksums.

Files are read whole and compared with their checksums first, so that damage is one sentence and never odd text. No file
stays mapped, because an upgrade may replace it under a running process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load
from tokenizers import Tokenizer

from paceline.errors import DamagedFile
from paceline.files import write_whole
from paceline.targets.pocket import names
from paceline.targets.pocket.llama import BundledForCausalLM, Config, as_transformers

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

MODELS = names.MODELS
CONFIG, GENERATION, WEIGHTS, CHECKSUMS = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "checksums.json",
)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SEALED = (CONFIG, GENERATION, WEIGHTS, *TOKENIZER)
"""The files that have a checksum."""


@dataclass(frozen=True)
class Bundle:
    """One bundled model, verified and in memory."""

    name: str
    config: Config
    generation: SimpleNamespace
    """How it writes unless asked otherwise."""
    weights: dict[str, torch.Tensor]
    digest: str
    """Of the weights file; part of the identity of ballast."""


def read_bundle(name: str) -> Bundle:
    """Configuration, settings of generation and weights of a bundled model."""
    folder, sums = MODELS / name, _checksums(name)
    config = Config(**json.loads(_verified(folder / CONFIG, sums)))
    generation = SimpleNamespace(**json.loads(_verified(folder / GENERATION, sums)))
    return Bundle(name, config, generation, load(_verified(folder / WEIGHTS, sums)), sums[WEIGHTS])


def layers_in(name: str) -> int:
    """How many layers a bundled model has."""
    return int(json.loads(_verified(MODELS / name / CONFIG, _checksums(name)))["num_hidden_layers"])


def read_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a bundled model."""
    from transformers import PreTrainedTokenizerFast

    folder, sums = MODELS / name, _checksums(name)
    for file in TOKENIZER:
        _verified(folder / file, sums)
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


class BundledTokenizer:
    """A bundled model's tokenizer with what a vocabulary reads of it. For everything else it is transformers' own one,
    which takes a second to load."""

    chat_template = None

    def __init__(self, name: str) -> None:
        self.name_or_path = name
        sums = _checksums(name)
        content, _ = (_verified(MODELS / name / file, sums) for file in TOKENIZER)
        self.backend_tokenizer: Any = Tokenizer.from_buffer(content)

    @cached_property
    def whole(self) -> PreTrainedTokenizerFast:
        """The tokenizer as transformers has it."""
        return read_tokenizer(self.name_or_path)

    def encode(self, text: str, add_special_tokens: bool = True, verbose: bool = True) -> list[int]:
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling look for these
            raise AttributeError(name)
        return getattr(self.whole, name)


def assembled(config: Config, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """A model of transformers with these weights; no others are allocated or initialised."""
    return as_transformers(BundledForCausalLM(config, weights))


def seal(folder: Path) -> None:
    """Write down the checksums of a finished model's files."""
    sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in SEALED}
    write_whole(folder / CHECKSUMS, json.dumps(sums, indent=1) + "\n")


def _checksums(name: str) -> dict[str, str]:
    file = MODELS / name / CHECKSUMS
    try:
        sums = json.loads(_bytes(file))
        return {each: str(sums[each]) for each in SEALED}
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
