"""From a path, a name or a loaded model to a target that has been probed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from paceline.targets import hub
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget, refuse_recurrent

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "merges.txt")
"""Files that a tokenizer is made of. Where there is none, transformers makes an empty one from the model's type."""


def load_target(
    model: str | Path | PreTrainedModel,
    *,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    fixed_shapes: bool | None = None,
) -> HFTarget:
    """A transformers causal LM by path, hub name or as a loaded object.

    ``dtype`` is the checkpoint's own unless named. A loaded object keeps its own type and place. ``fixed_shapes`` is as
    in `HFTarget`.
    """
    kind = named_dtype(dtype) if dtype is not None else None
    if isinstance(model, PreTrainedModel):
        if kind is not None and kind != model.dtype:
            raise ValueError(
                f"the model was handed over as {model.dtype}; convert it yourself instead of dtype={dtype}"
            )
        if device is not None or device_map is not None:
            raise ValueError("the model was handed over loaded; move it yourself instead of naming a device")
        return prepare(HFTarget(model, fixed_shapes=fixed_shapes))
    if device is not None and device_map is not None:
        raise ValueError(f"device={device} and device_map={device_map} both place the model; give one of them")
    place = torch.device("cpu") if device is None else named_device(device)
    name = _name(model)
    asked = _asked(name)
    config = _config(name, asked)
    refuse_recurrent(config, _model_class(name, config))
    placed = {"device_map": device_map} if device_map is not None else {}
    loaded = _weights(name, config, kind, asked | placed)
    if device is not None:
        torch.nn.Module.to(loaded, place)
    return prepare(HFTarget(loaded, name=name, fixed_shapes=fixed_shapes).pack())


def named_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def named_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"device {name!r} is not available here; choose cpu, or cuda where there is one") from None
    return device


def _name(model: str | Path) -> str:
    """What transformers should look up; a path that does not exist is told before a hub is asked for it."""
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists():
        raise ValueError(f"no model at {str(model)!r}: give the folder that holds config.json and weights, not a file")
    local = isinstance(model, Path) or model.startswith(("/", ".", "~")) or model.count("/") > 1
    if local:
        raise ValueError(f"no model at {str(model)!r}: there is no such folder")
    return str(model)


def _asked(name: str) -> dict[str, Any]:
    """How transformers is asked for it. A folder may still name a hub's model, an adapter's base for one."""
    return {} if Path(name).is_dir() else {"local_files_only": not hub.answers()}


def _config(name: str, asked: dict[str, Any]) -> Any:
    """The configuration first: a model that cannot be served is refused before its weights are read."""
    try:
        return AutoConfig.from_pretrained(name, **asked)
    except (OSError, ValueError) as error:
        if Path(name).exists():
            raise ValueError(
                f"{name} is not a folder with a readable transformers config.json: {_first(error)}"
            ) from None
        if asked.get("local_files_only"):
            raise ValueError(
                f"no model at {name!r}: there is no such folder, nothing of that name was downloaded before, "
                "and no hub answers"
            ) from None
        raise ValueError(f"no model at {name!r}: neither a local folder nor a model name that can be reached") from None


def _model_class(name: str, config: Any) -> Any:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(f"{name} is a {config.model_type} model, which transformers knows no causal LM for")
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _weights(name: str, config: Any, kind: torch.dtype | None, asked: dict[str, Any]) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=kind or "auto", **asked
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # every file format fails in a way of its own
        raise ValueError(f"the weights of {name} cannot be loaded: {_first(error)}") from error
    return model


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, if there is one; a model without speaks token ids only."""
    name = _name(model)
    if Path(name).is_dir() and not any(path.match(kind) for path in Path(name).iterdir() for kind in TOKENIZERS):
        return None
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **_asked(name))
    except (OSError, ValueError):
        return None
    return tokenizer
