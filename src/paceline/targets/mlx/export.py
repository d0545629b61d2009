"""From a model of transformers that is open here to a folder that mlx-lm opens.

mlx-lm itself converts: it reads a checkpoint as transformers saves it and renames the weights. What its code computes
is compared with what transformers computes before anything is quantised, because settings that a model file of mlx-lm
does not know are passed over without an error.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from paceline.errors import InputError, lacks_memory, need
from paceline.files import check_apart, naming, workplace
from paceline.law.scores import Row
from paceline.targets import hub, trust
from paceline.targets.hf.load import load_tokenizer
from paceline.targets.hf.plain_copy import plain_copy
from paceline.targets.hf.target import HFTarget
from paceline.targets.mlx.configuration import mlx_words
from paceline.targets.mlx.load import WEIGHTS, read_model
from paceline.targets.mlx.names import BUNDLED
from paceline.targets.pocket.bundle import TOKENIZER
from paceline.targets.pocket.names import BALLAST_MARK, MODELS, POCKET_NAMES, bundled_name
from paceline.targets.probing import PROBED_WINDOW, differ, some_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPARED = 64
"""Tokens of the text by which the two libraries are compared, behind the widest window that is not too wide to try."""
BARE = ("gpt2",)
"""Types whose checkpoints mlx-lm knows without the head, and without the prefix that stands for the rest."""
CONFIG, GENERATION = "config.json", "generation_config.json"


def export_mlx(target: HFTarget, folder: Path, *, bits: int | None, tokenizer: Any = None) -> None:
    """Write the model to a folder in mlx-lm's layout: all of it or nothing. Weights have the narrowest type that holds
    them exactly, or 4 or 8 bits. The tokenizer is the one beside the model unless another is given. An earlier folder
    of mlx-lm is replaced."""
    need("mlx_lm", "a folder for mlx-lm", "mlx")
    if bits not in (None, 4, 8):
        raise InputError(f"mlx-lm's weights are exported in 4 or 8 bits, or as they are, not in {bits}")
    if target.dtype == "float64":
        raise InputError(f"mlx does not compute in float64; open {target.name} in float32 or less")
    check_apart(folder, [Path(target.name)])
    if folder.exists() and not _may_be_replaced(folder):
        raise InputError(f"{folder} is there and is no folder of mlx-lm; name a new one")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no folder {folder.parent}")
    with naming(folder), workplace(folder.absolute().parent) as work:
        source, made = work / "transformers", work / "mlx"
        made.mkdir()
        _write_tokenizer(target.name, made, tokenizer)
        _write_generation(target.model, made)
        expected = _saved(plain_copy(target), source)
        _convert(target, source, made, expected, bits)
        _put(made, folder, work / "replaced")


def _put(made: Path, folder: Path, replaced: Path) -> None:
    """Give the new folder its name. An earlier one of that name goes aside, and comes back if that fails."""
    try:
        if folder.exists():
            folder.rename(replaced)
        made.rename(folder)
    except BaseException:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise


def _may_be_replaced(folder: Path) -> bool:
    """Whether a folder is empty, or its weights are in mlx-lm's format."""
    if not folder.is_dir():
        return False
    weights = sorted(folder.glob(WEIGHTS))
    try:
        with safe_open(weights[0], "np") as file:
            return (file.metadata() or {}).get("format") == "mlx"
    except (IndexError, OSError, SafetensorError):
        return not any(folder.iterdir())


def _write_tokenizer(name: str, folder: Path, tokenizer: Any) -> None:
    if tokenizer is None and (bundled := name.partition(BALLAST_MARK)[0]) in POCKET_NAMES:
        for file in TOKENIZER:
            copyfile(MODELS / bundled / file, folder / file)
        return
    if (found := load_tokenizer(name) if tokenizer is None else tokenizer) is None:
        raise InputError(f"{name} has no tokenizer, without which mlx-lm opens no folder; put one beside it")
    found.save_pretrained(folder)


def _write_generation(model: Any, folder: Path) -> None:
    if (settings := getattr(model, "generation_config", None)) is not None:
        (folder / GENERATION).write_text(json.dumps(settings.to_diff_dict(), indent=1, default=str), encoding="utf8")


def _saved(model: PreTrainedModel, source: Path) -> Row:
    """Write a checkpoint of transformers; returns the model's rows of the text that is compared."""
    text = _compared_text(model)
    saved: Any = model.base_model if model.config.model_type in BARE else model
    with torch.inference_mode():
        logits = model(torch.from_numpy(text)[None].to(model.device), use_cache=False).logits[0]
    with hub.without_bars(), hub.loading():
        saved.save_pretrained(source)
    rows: Row = logits.float().cpu().numpy()
    return rows


def _compared_text(model: PreTrainedModel) -> Any:
    config: Any = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    length = COMPARED + (window if window <= PROBED_WINDOW else 0)
    longest = getattr(config, "max_position_embeddings", None) or length
    return some_tokens(int(config.vocab_size), min(length, longest))


def _convert(target: HFTarget, source: Path, made: Path, expected: Row, bits: int | None) -> None:
    model, _ = read_model(target.name, source, trust.trusts_all())
    if not _agrees(model, expected, target):
        raise InputError(
            f"mlx-lm's code for {target.model.config.model_type} computes something else than transformers' with the "
            f"settings of {target.name}, so nothing is exported; a newer mlx-lm may know them"
        )
    from paceline.targets.mlx.files import narrow, write_model

    config = json.loads((source / CONFIG).read_text(encoding="utf8"))
    config |= mlx_words(config) | {"dtype": narrow(model)}
    if bundled := bundled_name(target.name):
        config[BUNDLED] = bundled
    write_model(made, model, config, bits, target.name)


def _agrees(model: Any, expected: Row, target: HFTarget) -> bool:
    """Whether mlx-lm's code has the same rows, and can compute them at all."""
    from paceline.targets.mlx.probe import FAILURES

    mx = import_module("mlx.core")
    text = some_tokens(target.vocab_size, len(expected))
    try:
        found = np.asarray(model(mx.array(text.astype(np.int32))[None])[0].astype(mx.float32))
    except FAILURES as error:
        if lacks_memory(error):
            raise
        return False
    return found.shape == expected.shape and not differ(found, expected, target.dtype)
