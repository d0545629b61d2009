"""Folders with trained heads: which method drafts with one, and which come with the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import DamagedFile, InputError
from paceline.files.reading import damaged, parse, read_file
from paceline.targets import hub
from paceline.targets.mlx.names import MLX_MARK
from paceline.targets.pocket.names import BALLAST_MARK, POCKET_NAMES

SHIPPED = "shipped"
CONFIG = "config.json"
MOST_CONFIG = 1 << 20
MEND = "train it again, or copy it again"

REDRAFTER, MEDUSA, HYDRA, EAGLE, BLOCK, STREAMING = KINDS = (
    "redrafter",
    "medusa",
    "hydra",
    "eagle",
    "block",
    "streaming",
)
"""The methods that draft with a head."""
FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")
"""What is downloaded of a head on the hub."""
STREAMS = "streams.safetensors"
"""Of a draft model that was trained with its streams, beside its own files."""
OF_FILES = {"medusa_lm_head": MEDUSA, "hydra_lm_head": HYDRA, STREAMS.partition(".")[0]: STREAMING}
"""By the beginning of a weight file's name."""
OF_TYPES = {
    "recurrent_drafting_drafter": REDRAFTER,
    "eagle3": EAGLE,
    "peagle": EAGLE,
    "mtp": EAGLE,
    "dflash": BLOCK,
    "dflash2": BLOCK,
    "dspark": BLOCK,
}
"""By ``speculators_model_type`` or ``model_type``."""
OF_KEYS = {
    "medusa_num_heads": MEDUSA,
    "hydra_num_heads": HYDRA,
    "dflash_config": BLOCK,
    "draft_vocab_size": EAGLE,
    "bias": EAGLE,
}
"""By a key that other configurations lack. EAGLE's first files have only ``bias``, beside those of a Llama."""
OF_ARCHITECTURES = {
    "redrafter": REDRAFTER,
    "eagle": EAGLE,
    "dflash": BLOCK,
    "dspark": BLOCK,
    "jetspec": BLOCK,
    "pacelinestreaming": STREAMING,
}
"""By a part of the name of an architecture, in small letters."""


def shipped_head(model: str, method: str = REDRAFTER) -> Path | None:
    """The folder of a method's head that comes with the package for a bundled model, with or without ballast."""
    name = model.removeprefix(MLX_MARK).partition(BALLAST_MARK)[0]
    folder = shipped_folder(method) / name
    return folder if name in POCKET_NAMES and folder.is_dir() else None


def shipped_methods(model: str) -> list[str]:
    """The methods whose heads for a model come with the package."""
    return [method for method in KINDS if shipped_head(model, method) is not None]


def shipped_folder(method: str) -> Path:
    """Where a method's heads that come with the package are, a folder for each model."""
    return Path(__file__).parent / method / "heads"


def folder_of(named: str | Path, model: str, method: str) -> Path:
    """The folder of a head that a user named, or else the one for this model: that comes with the package, or stands in
    the model's own folder."""
    folder = (shipped_head(model, method) or _within(model, method)) if named == SHIPPED else found_folder(named)
    if folder is None:
        raise InputError(
            f"no head for {model} comes with paceline; train one with 'paceline train {method}' and give head=FOLDER"
        )
    if folder.is_file():
        raise InputError(f"{folder} is a file; give the folder that 'paceline train {method}' wrote")
    if (kind := _of_files(_files(folder))) not in (None, method):
        raise InputError(f"the head in {folder} is one for {kind}, not for {method}; give {kind}:head={folder}")
    return folder


def _within(model: str, method: str) -> Path | None:
    """The folder of a model if it holds a head for a method, too."""
    return Path(model) if _of_files(_files(Path(model))) == method else None


def holds_model(named: str | Path) -> bool:
    """Whether a head stands in the folder of the draft model that was trained with it."""
    return named != SHIPPED and (found_folder(named) / STREAMS).exists()


def found_folder(named: str | Path) -> Path:
    """The folder of this name, or that of a head on the hub, downloaded."""
    folder = Path(named)
    if folder.exists() or not hub.NAME.fullmatch(str(named)):
        return folder
    if (fetched := hub.downloaded(str(named), FILES)) is None:
        raise InputError(f"there is no head in {folder}: no folder has this name, and no model of the hub")
    return fetched


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration in a head's folder."""
    where = f"the head in {folder}"
    try:
        content = parse(read_file(folder / CONFIG, MOST_CONFIG))
    except FileNotFoundError:
        raise InputError(f"there is no head in {folder}: it has no {CONFIG}; give a folder that has") from None
    except OSError as error:
        raise InputError(f"{where} cannot be read: {CONFIG}: {error.strerror}") from None
    except ValueError as error:
        raise DamagedFile(f"{where} is damaged: {CONFIG}: {error}; {MEND}") from None
    with damaged(f"{CONFIG} of {where}", MEND):
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
    return content


def method_for(named: str | Path) -> str:
    """The method that drafts with the head in a folder, by its configuration and the names of its files."""
    folder = found_folder(named)
    if found := kind_of(read_config(folder), _files(folder)):
        return found
    *others, last = KINDS
    raise InputError(
        f"the head in {folder} is of no kind that paceline knows: name its method, {', '.join(others)} or {last}"
    )


def _files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


def _of_files(files: Iterable[str]) -> str | None:
    """The kind of a head whose files are named after it."""
    return next((kind for file in files if (kind := OF_FILES.get(file.partition(".")[0]))), None)


def kind_of(config: Mapping[str, Any], files: Iterable[str]) -> str | None:
    """The kind of a head; None of a folder that holds something else."""
    if found := _of_files(files):
        return found
    for key in ("speculators_model_type", "model_type"):
        if found := OF_TYPES.get(str(config.get(key))):
            return found
    architectures = config.get("architectures")
    named = " ".join(map(str, architectures if isinstance(architectures, list) else [config.get("architecture")]))
    for part, kind in OF_ARCHITECTURES.items():
        if part in named.lower():
            return kind
    return next((kind for key, kind in OF_KEYS.items() if key in config), None)
