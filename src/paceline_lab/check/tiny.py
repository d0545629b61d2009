"""Tiny random models of any causal LM class that transformers can build.

A configuration is shrunk by the names of its fields: sizes become small, and lists with an entry per layer are cut to
match. With ``switches`` on, every size at which a model starts to compute differently (windows, chunks, original
lengths, floors) becomes so small that a text of a few dozen tokens passes it.

The default initialisation of transformers (standard deviation 0.02) makes a tiny model almost blind: attention is
uniform, and a wrong mask or position changes nothing that a test could see. `redraw` draws weights that show them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

TINY_VOCABULARY = 97
LAYERS = 4
POSITIONS = 512
WINDOW = 8
ORIGINAL = 16
"""The length that a scaled rotary embedding was trained for."""

BY_SIZE = {
    64: "hidden_size d_model n_embd dim embed_dim embedding_size dim_model word_embed_proj_dim lru_width emb_dim",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size d_ff dim_ff decoder_ffn_dim encoder_ffn_dim block_ff_dim"
    " feed_forward_size ffn_intermediate_size",
    48: "intermediate_size_mlp dense_intermediate_size shared_intermediate_size moe_intermediate_size"
    " shared_expert_intermediate_size expert_ffn_hidden_size expert_intermediate_size"
    " moe_shared_expert_intermediate_size",
    LAYERS: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head"
    " n_heads num_heads encoder_attention_heads decoder_attention_heads num_decoder_attention_heads"
    " num_encoder_attention_heads swa_num_attention_heads num_experts num_local_experts n_routed_experts"
    " moe_num_experts mamba_n_heads mamba_num_heads mamba_d_state state_size index_n_heads",
    2: "depth num_kv_shared_layers num_key_value_heads num_kv_heads n_kv_heads multi_query_group_num"
    " swa_num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts",
    16: "head_dim kv_channels d_kv attention_head_dim global_head_dim swa_head_dim dim_head kv_lora_rank v_head_dim"
    " qk_head_dim query_pre_attn_scalar hidden_size_per_layer_input index_head_dim mamba_d_head mamba_head_dim",
    32: "q_lora_rank",
    8: "qk_rope_head_dim qk_nope_head_dim rotary_dim index_topk",
    1: "n_group topk_group num_expert_group first_k_dense_replace num_dense_layers moe_layer_start_index"
    " n_shared_experts",
    TINY_VOCABULARY: "vocab_size decoder_vocab_size vocab_size_per_layer_input",
    POSITIONS: "max_position_embeddings n_positions n_ctx max_seq_len seq_length",
}
SIZES = {name: size for size, names in BY_SIZE.items() for name in names.split()}
"""Names of fields -> their sizes."""

BY_SWITCH = {
    WINDOW: "sliding_window attention_window attention_chunk_size window_size chunk_size sliding_window_size"
    " attention_window_size local_attention local_attention_window_len rel_extent",
    ORIGINAL: "original_max_position_embeddings initial_context_length keep_window_size",
    4: "floor_scale log_scaling_n_floor",
}
SWITCHES = {name: size for size, names in BY_SWITCH.items() for name in names.split()}
"""The same for fields at which a model starts to compute differently."""

ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_mscale": 1.1,
        "long_mscale": 1.4,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
}
TINY_VARIANTS = ("small", "switches", "attention", *ROPES)
"""Small sizes; then also small windows and floors; then also attention in every layer; small sizes and a scaled rotary
embedding."""
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
NEEDED = frozenset({"head_dim", "num_experts_per_tok", "n_routed_experts", "num_key_value_heads", "moe_topk"})
"""Fields that some configurations leave open and their models need."""
LATENT = {"head_dim": "qk_rope_head_dim", "num_key_value_heads": "num_attention_heads"}
"""With latent attention, keys and values are expanded to all heads: these fields must equal those."""
MIXED = ["linear_attention", "full_attention"] * (LAYERS // 2)
EXTRA: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": list(range(1, LAYERS, 2))},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 128},
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": MIXED},
    **{
        name: {
            "unpadded_vocab_size": TINY_VOCABULARY,
            "layer_types": ["hybrid", "hybrid_sliding"] * (LAYERS // 2),  # what a first layer does is seen best
        }
        for name in ("inkling2_text", "inkling2_loop_text")
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **{name: {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)} for name in ("lfm2", "lfm2_moe")},
    "nemotron_h": {"n_groups": 2},
    **{name: {"num_key_value_heads": 4} for name in ("dots3_note", "dots3_note_text")},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "mamba2": {"num_heads": 8},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * (LAYERS // 2),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "hc_lowrank": 16,
        "ple_layer_ids": [1, 3],
        "ngram_vocab_size_base": 50,
        "heads_per_ngram": 2,
        "split_ngram_parts": 2,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 12,
        "indexer_compress_ratio": 4,
        "eos_token_id": 5,
    },
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of single types; where these have layers with a state and layers that attend, both."""


def configuration(model_type: str, variant: str) -> PreTrainedConfig | None:
    """A tiny configuration of a type; None where the variant changes nothing or means nothing to the type."""
    of_class = CONFIG_MAPPING[model_type]
    default = of_class()
    fields = _shrunk(default, variant)
    if variant != "small" and fields == _shrunk(default, "switches" if variant == "attention" else "small"):
        return None
    return of_class(**fields)


def _shrunk(default: PreTrainedConfig, variant: str) -> dict[str, Any]:
    """Keyword arguments that make the configuration small."""
    fields = default.to_dict()
    layers = next((fields[name] for name in LAYER_COUNTS if isinstance(fields.get(name), int)), None)
    small: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    for name, value in fields.items():
        if name in default.sub_configs and getattr(default, name) is not None:
            small[name] = _shrunk(getattr(default, name), variant)
        elif name in SIZES and (type(value) is int or (value is None and name in NEEDED)):
            small[name] = SIZES[name]
        elif isinstance(value, list) and len(value) == layers:
            kinds = list({str(kind): kind for kind in value}.values())
            small[name] = [SIZES.get(name, kinds[i % len(kinds)]) for i in range(LAYERS)]
    if "qk_rope_head_dim" in small:
        small |= {name: small[of] for name, of in LATENT.items() if name in small and of in small}
    small |= {"is_decoder": True} if "is_decoder" in fields else {}
    small |= EXTRA.get(default.model_type, {})
    return small | (_scaled if variant in ROPES else _switched)(fields, small, variant)


def _switched(fields: dict[str, Any], small: dict[str, Any], variant: str) -> dict[str, Any]:
    """Fields that set windows and floors low, and in the variant ``attention`` put attention into every layer."""
    if variant == "small":
        return {}
    found: dict[str, Any] = {name: size for name, size in SWITCHES.items() if name in fields}
    if "use_sliding_window" in fields:
        found |= {"use_sliding_window": True, "max_window_layers": 1}
    kinds = small.get("layer_types")
    if kinds is not None and set(kinds) <= {"full_attention"} and "sliding_window" in found:
        found["layer_types"] = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    if variant == "attention" and "attn_layer_indices" in fields:
        found["attn_layer_indices"] = list(range(LAYERS))
    elif variant == "attention" and kinds is not None:
        found["layer_types"] = ["full_attention"] * LAYERS
    return found


def _scaled(fields: dict[str, Any], small: dict[str, Any], variant: str) -> dict[str, Any]:
    """Fields that scale a rotary embedding, where the type has one."""
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_type" not in rope:
        return {}
    found: dict[str, Any] = {
        "rope_parameters": rope | ROPES[variant],
        "max_position_embeddings": ORIGINAL if variant == "dynamic" else POSITIONS,
    }
    if variant == "longrope":
        found["original_max_position_embeddings"] = ORIGINAL
        width = int(small.get("head_dim", 16) * rope.get("partial_rotary_factor", 1.0)) // 2
        found["rope_parameters"] |= {"short_factor": [1.0] * width, "long_factor": [1.5] * width}
    return found


def build(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """The model in eval mode, with weights in which a wrong row shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    redraw(model, torch.Generator().manual_seed(seed))
    model.generation_config = GenerationConfig(pad_token_id=0)  # no forced tokens, no end
    model.float().train(False)
    return model


# Queries and keys of deviation g give attention scores of deviation g squared.
GAIN = 2.0
# Small beside what the layers add, so that the context outweighs the token that came in.
EMBEDDING = 0.25
# What every context shares (biases, and the mean of an activation, see `_mixing`) makes favourite tokens.
BIAS = 0.03
# The final norm turns the residual stream around (weights of about -1.5), so that the head disfavours the
# token that came in: left as it is, a tied head favours it, and greedy text repeats one token for ever.
FINAL_NORM_SHIFT = -2.5


@torch.no_grad()
def redraw(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Draw weights so that a wrong key, a wrong position, a forgotten sink or soft cap moves the logits, and greedy
    text goes on."""
    tokens: Any = model.get_input_embeddings()
    head = model.get_output_embeddings()
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if id(parameter) in tables:
            parameter.copy_(EMBEDDING * noise)
        elif head is not None and parameter is head.weight and parameter.shape == tokens.weight.shape:
            parameter.copy_((tokens.weight + EMBEDDING * noise) / math.sqrt(2))
        elif parameter.ndim < 2:
            parameter.copy_(_moved(name, parameter, noise))
        elif (parameter.ndim == 3 and parameter.shape[1] == 1) or "static_weight" in name:
            # a convolution of each channel with its own past
            parameter.copy_(noise)
        else:
            parameter.copy_(_mixing(noise))


def _moved(name: str, parameter: Tensor, noise: Tensor) -> Tensor:
    """Move sinks, norms and biases off the values 0 and 1, at which a forgotten one would go unseen."""
    if "sinks" in name:
        return noise
    if "word_embeddings_layernorm" in name:  # bloom norms the embeddings, which undoes EMBEDDING
        return EMBEDDING * (parameter + 0.2 * noise)
    in_a_layer = any(part.isdigit() for part in name.split("."))
    if not in_a_layer and name.endswith("weight"):
        return parameter + FINAL_NORM_SHIFT + 0.2 * noise
    if name.endswith("bias"):
        return BIAS * noise
    if "q_norm" in name or "k_norm" in name:
        return parameter + 0.5 + 0.2 * noise
    return parameter + 0.2 * noise


def _mixing(noise: Tensor) -> Tensor:
    """A matrix whose rows and columns sum to zero: the positive mean of gelu or relu does not get through."""
    centred = noise - noise.mean(-1, keepdim=True)
    centred = centred - centred.mean(-2, keepdim=True)
    return GAIN / math.sqrt(noise.shape[-1]) * centred
