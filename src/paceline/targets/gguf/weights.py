"""A model of transformers from the tensors of a GGUF file, read one after the other, in the families that are written
here. Transformers' own reader has all weights twice, and leaves out how positions are stretched."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from paceline.errors import UnsupportedModel
from paceline.targets.gguf.contents import GgufContents
from paceline.targets.gguf.metadata import FACTORS, FAMILIES, HEAD, names_of, rotation, rows_back

BIASES = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
"""Settings of a model -> a tensor that it then has."""


def read_model(contents: GgufContents, config: Any, kind: torch.dtype) -> tuple[Any, Any] | None:
    """The model and what was found of it; None of families, tensors and positions that are not known here."""
    family = FAMILIES.get(config.model_type)
    if family is None or not _stretch(contents, config):
        return None
    for setting, tensor in BIASES.items():
        if hasattr(config, setting):  # which transformers' reader leaves as it is by default
            setattr(config, setting, tensor in contents.tensors)
    with torch.device("meta"):
        planned = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    tied = {HEAD} if config.tie_word_embeddings else set()
    try:
        names = names_of("", family, config, set(planned.state_dict()) - tied)
    except UnsupportedModel:
        return None
    if set(names.values()) != contents.tensors.keys() - {FACTORS}:
        return None
    contents.must_fit(kind.itemsize)
    weights = {name: _floats(contents.tensors[own], name, config).to(kind) for name, own in names.items()}
    model, report = type(planned).from_pretrained(
        None, config=config, state_dict=weights, dtype=kind, output_loading_info=True, trust_remote_code=False
    )
    if FACTORS in contents.tensors:
        _slow_down(model.model.rotary_emb, contents.tensors[FACTORS].data)
    return model, report


def _floats(held: Any, name: str, config: Any) -> torch.Tensor:
    """The values of a tensor, with its rows in transformers' order."""
    import gguf

    stored = np.asarray(held.data)  # no memmap, whose slices take as long as their values
    values = torch.from_numpy(gguf.dequantize(stored, held.tensor_type).copy())
    return rows_back(FAMILIES[config.model_type], config, name, values)


def _stretch(contents: GgufContents, config: Any) -> bool:
    """Write into the configuration how positions are stretched; False where that is not understood."""
    kind, factor = contents.stretch
    if kind == "none":
        return True
    if kind not in ("linear", "yarn"):
        return False
    stretched = {**rotation(config), "rope_type": kind, "factor": factor}
    if kind == "yarn":
        key = f"{contents.architecture}.rope.scaling.original_context_length"
        stretched["original_max_position_embeddings"] = int(contents.said(key, config.max_position_embeddings))
    config.rope_parameters = stretched
    return True


def _slow_down(rotary: Any, factors: Any) -> None:
    """Divide the frequencies, as Llama 3.1 does with the low ones."""
    slowed = rotary.inv_freq / torch.from_numpy(factors.copy())
    rotary.inv_freq = rotary.original_inv_freq = slowed
