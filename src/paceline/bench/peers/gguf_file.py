"""Llamas of transformers as GGUF files, for llama.cpp.

A file has the names and keys of the ``gguf`` package, and no tokenizer: input and output are ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.bench.run.contestant import Missing

BLOCKS = ("Q8_0", "Q5_0", "Q4_0")
"""Integers with a scale for every 32 of them, as the ``gguf`` package rounds them."""
BLOCK = 32


def converted(model: PreTrainedModel, file: Path, kind: str) -> Path:
    """Write a llama as a file of that type. `Missing` where it is anything else."""
    import gguf

    _refuse(model, kind)
    config: Any = model.config
    writer = gguf.GGUFWriter(file, "llama")
    _describe(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    turned = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        pairs = next((count for end, count in turned.items() if name.endswith(end)), None)
        weight = weight if pairs is None else _paired(weight, pairs)
        stored = gguf.GGMLQuantizationType["F32" if weight.dim() == 1 else kind]
        values = gguf.quants.quantize(weight.float().cpu().contiguous().numpy(), stored)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _describe(writer: Any, config: Any) -> None:
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _refuse(model: PreTrainedModel, kind: str) -> None:
    config: Any = model.config
    turns = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    weights = model.state_dict()
    if config.model_type != "llama" or turns != "default" or any(name.endswith(".bias") for name in weights):
        raise Missing("only llamas without biases and with ordinary rotary positions are converted for llama.cpp here")
    uneven = any(weight.dim() == 2 and weight.shape[1] % BLOCK for weight in weights.values())
    if kind in BLOCKS and uneven:
        raise Missing(f"{kind} rounds {BLOCK} values together, and the model's rows are no multiple of that")


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's order: it turns neighbouring rows of a head together, transformers the halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
