"""Llamas of transformers as GGUF files, for llama.cpp.

A file has the names and keys of the ``gguf`` package. Without a vocabulary it has no tokenizer: input and output are
ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.errors import InputError
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.peers.weights import check_llama, head_width

BLOCKS = ("Q8_0", "Q5_0", "Q4_0")
"""Integers with a scale for every 32 of them, as the ``gguf`` package rounds them."""
BLOCK = 32
SPLITTING = {
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "dbrx",
}
"""The pattern by which a tokenizer splits a text -> llama.cpp's name of it."""


def write_gguf(kind: str, model: PreTrainedModel, file: Path, vocabulary: Vocabulary | None = None) -> None:
    """Write a llama as a file of that type. `Missing` where it is anything else."""
    import gguf

    check_llama(model, "llama.cpp")
    config: Any = model.config
    writer = gguf.GGUFWriter(file, "llama")
    _describe(writer, config, head_width(model))
    if vocabulary is None:
        writer.add_tokenizer_model("none")
        _end(writer, model)
    else:
        _add_tokens(writer, vocabulary, config.vocab_size)
        _end(writer, model)
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


def _end(writer: Any, model: PreTrainedModel) -> None:
    """The token that ends a text, where the configuration has one."""
    config: Any = model.config
    end = config.eos_token_id
    if isinstance(end, int):
        writer.add_eos_token_id(end)


def _add_tokens(writer: Any, vocabulary: Vocabulary, size: int) -> None:
    """A byte-level tokenizer, whose pattern llama.cpp knows; ``size`` ids, of which the last may be unused."""
    import gguf

    rule = json.loads(vocabulary.backend.to_str())
    parts = rule["pre_tokenizer"].get("pretokenizers", []) if rule["pre_tokenizer"] else []
    pattern = next((part["pattern"].get("Regex") for part in parts if part["type"] == "Split"), None)
    if rule["model"]["type"] != "BPE" or rule["decoder"]["type"] != "ByteLevel" or pattern not in SPLITTING:
        raise InputError("this tokenizer is not written to GGUF files here; write the file without it, in token ids")
    kinds = gguf.TokenType
    found = [vocabulary.backend.id_to_token(token) for token in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLITTING[pattern])
    writer.add_token_list([f"[PAD{token}]" if string is None else string for token, string in enumerate(found)])
    writer.add_token_types(
        [
            kinds.UNUSED if string is None else kinds.CONTROL if token in vocabulary.specials else kinds.NORMAL
            for token, string in enumerate(found)
        ]
    )
    merges = rule["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_add_bos_token(False)


def stored_type(weight: torch.Tensor, kind: str) -> str:
    """The type of a tensor: vectors stay floats, and matrices whose rows the blocks do not divide become halves."""
    if weight.dim() == 1:
        return "F32"
    return "F16" if kind in BLOCKS and weight.shape[1] % BLOCK else kind


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows in llama.cpp's order: it turns neighbouring rows of a head together, transformers the halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
