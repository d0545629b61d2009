"""Llamas of transformers as GGUF files, for llama.cpp.

A file has the names and keys of the ``gguf`` package, and no tokenizer: input and output are ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline_lab.bench.peers.weights import check_llama, head_width

BLOCKS = ("Q8_0", "Q5_0", "Q4_0")
"""Integers with a scale for every 32 of them, as the ``gguf`` package rounds them."""
BLOCK = 32


def write_gguf(kind: str, model: PreTrainedModel, file: Path) -> None:
    """Write a llama as a file of that type. `Missing` where it is anything else."""
    import gguf

    check_llama(model, "llama.cpp")
    config: Any = model.config
    writer = gguf.GGUFWriter(file, "llama")
    _describe(writer, config, head_width(model))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    turned = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        pairs = next((count for end, count in turned.items() if name.endswith(end)), None)
        weight = weight if pairs is None else _paired(weight, pairs)
        stored = gguf.GGMLQuantizationType[stored_type(weight, kind)]
        values = gguf.quants.quantize(weight.float().cpu().contiguous().numpy(), stored)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: Any, width: int) -> None:
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


def stored_type(weight: torch.Tensor, kind: str) -> str:
    """The type of a tensor: vectors stay floats, and matrices whose rows the blocks do not divide become halves."""
    if weight.dim() == 1:
        return "F32"
    return "F16" if kind in BLOCKS and weight.shape[1] % BLOCK else kind


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's order: it turns neighbouring rows of a head together, transformers the halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
