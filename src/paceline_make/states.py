"""Saved states of a training, and the models that come of it: written whole or not at all, and checked when they are
read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from safetensors.torch import save

from paceline.errors import DamagedFile, InputError, UnwritableFile
from paceline.files import naming, partial, write_whole
from paceline.targets.place import free_memory

WEIGHTS, CONFIG, HEAD = "model.safetensors", "config.json", "lm_head.weight"
GO_ON = "make room there or give another folder; what was saved before is kept, and the same command goes on from it"


TRAINED_BYTES = 16
"""Of a parameter: its weight, its gradient, and the optimizer's two moments."""
LOG = "log.jsonl"
"""Of a training, in its folder."""


class TrainingLog:
    """What a training was begun with, and a line for each step."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / LOG

    def begin(self, same: Mapping[str, Any]) -> None:
        """Refuse to go on with other settings than before."""
        first = json.dumps({"same": same}, sort_keys=True)
        begun = self._file.read_text(errors="replace").partition("\n")[0] if self._file.exists() else ""
        if begun and begun != first:
            raise InputError(f"{self._folder} holds a training with other settings or texts; choose another folder")
        if not begun:
            write_whole(self._file, first + "\n")

    def add(self, found: Mapping[str, Any]) -> None:
        with naming(self._file), self._file.open("a") as log:
            log.write(json.dumps(found) + "\n")


def check_trainable(parameters: int, device: str, what: str, smaller: str) -> None:
    """Refuse a shape that is too large before it is made: a system may end the process instead of refusing.
    ``smaller`` names the options that make it smaller."""
    needed, free = TRAINED_BYTES * parameters, free_memory(torch.device(device))
    if free is not None and needed > free:
        raise InputError(
            f"training a {what} of this shape takes {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; make it "
            f"smaller ({smaller})"
        )


@contextmanager
def resumable() -> Iterator[None]:
    """Make write errors say what is kept and how to go on."""
    try:
        yield
    except UnwritableFile as error:
        raise UnwritableFile(error.errno, f"{error.strerror}; {GO_ON}", error.filename) from None


def save_state(file: Path, state: dict[str, Any]) -> None:
    """Replace a file. If it cannot be written, the old one stays."""
    with partial(file) as fresh, fresh.open("wb") as stream:
        try:
            torch.save(state, stream)
        except RuntimeError as error:  # torch closes its archive after a failed write, which fails with this error
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def read_state(file: Path, **how: Any) -> Any:
    """A saved state, with its checksums compared."""
    with ZipFile(file) as packed:
        if (broken := packed.testzip()) is not None:
            raise ValueError(f"{broken} has another checksum")
    return torch.load(file, weights_only=True, **how)


@contextmanager
def usable(file: Path, mend: str) -> Iterator[None]:
    """Whatever fails while a saved file is read and taken over is the fault of that file; ``mend`` says what to do."""
    try:
        yield
    except (InputError, FileNotFoundError, PermissionError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:  # zip, pickle and torch raise a dozen kinds
        raise DamagedFile(f"{file} is damaged or of another program; {mend}") from None


def set_ends(config: Any, eos: Collection[int]) -> None:
    """Let a configuration say where texts end: a ``generation_config.json``, which may say more, is not written."""
    config.eos_token_id = sorted(eos) if len(eos) > 1 else next(iter(eos), None)


def write_model(folder: Path, model: torch.nn.Module, config: Any, more: Mapping[str, Any] | None = None) -> None:
    """A model as transformers reads it, in bfloat16, with ``more`` in its configuration. That is written last, so a
    folder with one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if name != HEAD or not config.tie_word_embeddings
    }
    write_whole(folder / WEIGHTS, [save(weights, metadata={"format": "pt"})])
    config.dtype = torch.bfloat16
    content = json.loads(config.to_json_string()) | dict(more or {})
    write_whole(folder / CONFIG, json.dumps(content, indent=2) + "\n")
