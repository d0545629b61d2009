"""From a path, a name or a loaded model to a target that has been probed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget, refuse_recurrent

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_target(
    model: str | Path | PreTrainedModel,
    *,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
) -> HFTarget:
    """A transformers causal LM by path, hub name or as a loaded object.

    ``dtype`` is the checkpoint's own unless named. A loaded object keeps its own type and place.
    """
    if isinstance(model, PreTrainedModel):
        if dtype is not None and DTYPES[_dtype(dtype)] != model.dtype:
            raise ValueError(
                f"the model was handed over as {model.dtype}; convert it yourself instead of dtype={dtype}"
            )
        return prepare(HFTarget(model))
    kind = DTYPES[_dtype(dtype)] if dtype is not None else "auto"
    refuse_recurrent(_config(str(model)))
    placed = {"device_map": device_map} if device_map is not None else {}
    loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=kind, **placed)
    if device is not None and device_map is None:
        loaded = loaded.to(device)
    return prepare(HFTarget(loaded, name=str(model)))


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return name


def _config(model: str) -> Any:
    """The configuration first: a model that cannot be served is refused before its weights are read."""
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        if Path(model).is_dir():
            raise ValueError(
                f"{model} is a folder without a readable transformers config.json: {_first(error)}"
            ) from None
        raise ValueError(
            f"no model at {model!r}: neither a local folder nor a model name that can be reached"
        ) from None


def _first(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, if there is one; a model without speaks token ids only."""
    try:
        return AutoTokenizer.from_pretrained(str(model))
    except (OSError, ValueError):
        return None
