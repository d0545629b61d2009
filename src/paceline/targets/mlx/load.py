"""From a folder or a name to a target that mlx-lm computes, and its tokenizer."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from paceline.errors import InputError, MissingPackage, first_line, need
from paceline.targets import hub, trust
from paceline.targets.hf.generation import settings_of
from paceline.targets.memory import SMALLER, host_memory, must_fit
from paceline.targets.mlx.configuration import mlx_words
from paceline.targets.mlx.names import MLX_MARK
from paceline.targets.pocket.names import MODELS, POCKET_NAMES, is_bundled
from paceline.targets.types import type_name

if TYPE_CHECKING:
    from paceline.targets.mlx.target import MLXTarget

DTYPES = ("float32", "bfloat16", "float16")
WEIGHTS = "model*.safetensors"
FILES = ("*.json", WEIGHTS, "*.py", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja")
"""Of a model on a hub."""
DEVICES = (None, "auto", "cpu", "gpu")


def load_mlx(
    model: str,
    *,
    dtype: object = None,
    quantize: str | None = None,
    device: object = None,
    device_map: object = None,
    fixed_shapes: bool | None = None,
    trust_remote_code: bool = False,
    strict: bool = True,
) -> MLXTarget:
    """A probed target. ``dtype`` converts the weights that are floats; by default they stay as they are, and those of a
    bundled model are float32. Unless this is ``strict``, ``dtype``, ``quantize`` and ``device`` say what is preferred,
    and what mlx-lm does not have is left out."""
    need("mlx_lm", "a model of mlx-lm", "mlx")
    kind, bundled = None if dtype is None else type_name(dtype), is_bundled(_name(model))
    if kind not in (None, "auto", *DTYPES):
        if strict:
            raise InputError(f"mlx computes in {', '.join(DTYPES)}, not in {kind}")
        kind = "float32"
    if kind is None and bundled:
        kind = "float32"  # in half precision, which the files have, near ties could change a text from run to run
    if strict:
        _check_options(model, quantize, device, device_map, fixed_shapes)
    folder = model_folder(model)
    if _place() == "cpu":
        must_fit(model, sum(file.stat().st_size for file in folder.glob(WEIGHTS)), host_memory(), SMALLER)
    loaded, config = read_model(model, folder, trust_remote_code or trust.trusts_all())
    if kind in DTYPES:
        loaded.set_dtype(getattr(import_module("mlx.core"), kind))
    try:
        from paceline.targets.mlx.probe import prepare
        from paceline.targets.mlx.target import MLXTarget
    except ImportError as error:
        raise _unusable(error) from None
    target = prepare(MLXTarget(loaded, config, name=model, settings=_settings(folder, config)))
    if (bits := (config.get("quantization") or {}).get("bits")) is not None:
        target.note, target.rounded = f"stored in {bits} bits", True
    return target


def _check_options(model: str, quantize: str | None, device: object, device_map: object, fixed_shapes: object) -> None:
    if quantize not in (None, "none"):
        raise InputError(
            f"mlx-lm reads {model} as it is stored; 'paceline export mlx --bits 4' stores a model in few bits"
        )
    if device_map is not None or fixed_shapes:
        raise InputError("mlx places models and records forwards itself; leave device_map and fixed_shapes out")
    if device is None or str(device) == "auto":
        return
    if str(device) != (here := _place()):
        raise InputError(f"mlx computes on the {here} here, not on {device}; leave device out")


def _place() -> str:
    """Where mlx computes: cpu or gpu."""
    return str(import_module("mlx.core").default_device().type.name)


def _name(model: str) -> str:
    return model.removeprefix(MLX_MARK)


def model_folder(model: str) -> Path:
    """Where the files of ``mlx:...`` are: of a bundled model, in a folder, or downloaded from a hub."""
    name = _name(model)
    if name in POCKET_NAMES:
        return MODELS / name
    if is_bundled(name):
        raise InputError(f"{name} is made by torch; mlx-lm loads {', '.join(POCKET_NAMES)} and folders")
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    found = hub.downloaded(name, FILES) if name and not folder.exists() and hub.NAME.fullmatch(name) else None
    if found is None:
        raise InputError(
            f"no model at {model!r}: give a folder with config.json and *.safetensors that mlx-lm can load"
        )
    return found


def read_model(model: str, folder: Path, trusted: bool) -> tuple[Any, dict[str, Any]]:
    """The model in a folder and its configuration, which may name Python code to run. Errors call it ``model``."""
    try:
        utils = import_module("mlx_lm.utils")
    except ImportError as error:
        raise _unusable(error) from None
    try:
        config = utils.load_config(folder)
        if config.get("model_file") is not None and not trusted:
            raise trust.refusal(model)
        given: dict[str, Any] = {"model_config": mlx_words(config)}
        if trusted and config.get("model_file") is not None:
            given["trust_remote_code"] = True
        loaded: tuple[Any, dict[str, Any]] = utils.load_model(folder, **given)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # files are damaged in all ways, and models are of all kinds
        raise InputError(f"mlx-lm cannot load {model}: {_why(error)}") from None
    except SystemExit:  # a model file of mlx-lm ends the process where another package is missing
        raise InputError(f"mlx-lm cannot load {model}: its model file needs a package that is not installed") from None
    return loaded


def _unusable(error: ImportError) -> MissingPackage:
    return MissingPackage(
        f"mlx-lm cannot be used here ({first_line(error)}): pip install 'paceline[mlx]' has what it needs"
    )


def _why(error: Exception) -> str:
    said = first_line(error).rstrip(": ")
    return f"{type(error).__name__} {said}" if isinstance(error, LookupError | TypeError | AttributeError) else said


def _settings(folder: Path, config: dict[str, Any]) -> Any:
    try:
        given = json.loads((folder / "generation_config.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        given = None
    text = SimpleNamespace(**{"eos_token_id": None} | (config.get("text_config") or {}) | config)
    described = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text),
        generation_config=None if given is None else SimpleNamespace(**given),
        name_or_path=str(folder),
    )
    return settings_of(described, int(getattr(text, "vocab_size", 0) or 0))


def load_tokenizer(model: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer in the folder of a model."""
    from transformers import AutoTokenizer

    trusted = trust_remote_code or trust.trusts_all()
    try:
        return AutoTokenizer.from_pretrained(str(model_folder(model)), local_files_only=True, trust_remote_code=trusted)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # tokenizers raise errors of any type
        if trust.is_unanswered(error):
            raise trust.refusal(model) from None
        raise InputError(f"the tokenizer of {model} cannot be loaded: {_why(error)}") from None
