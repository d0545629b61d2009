"""Tiny random models of the transformers families, as different from each other as attention gets.

The default initialisation of transformers (standard deviation 0.02) makes a tiny model almost blind: attention is
uniform, positions barely matter, and a wrong mask or rotary angle changes nothing that a test could see. `redraw` draws
weights with which a wrong key, a wrong position, a forgotten sink or a forgotten soft cap shows; `test_families.py`
tries these mistakes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from paceline_lab.check.tiny import redraw

VOCAB = 97
WINDOW = 8
LAYERS = 3
EVERY_LAYER = (0, 1, 2)
POSITIONS = 4096


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a test must know of a family to expect the right thing of it."""

    model_type: str
    config: dict[str, Any]
    windowed: tuple[int, ...] = ()
    """Layers whose queries see only the last `WINDOW` keys, their own among them."""
    softcap: bool = False
    sinks: bool = False
    interface: bool = True
    """Attention is looked up in `ALL_ATTENTION_FUNCTIONS`, so a registered function serves every layer."""
    alibi: bool = False
    """Position is a bias by key index, built inside the model: it cannot be given from outside."""
    moe: bool = False


LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
GPT = {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_inner": 96, "n_positions": POSITIONS}
FALCON = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "ffn_hidden_size": 96,
    "max_position_embeddings": POSITIONS,
}
HEADS_OF_16 = {"head_dim": 16}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SLIDING = {"sliding_window": WINDOW}


def _mixed(*windowed: int) -> dict[str, Any]:
    kinds = ["sliding_attention" if i in windowed else "full_attention" for i in EVERY_LAYER]
    return SLIDING | {"layer_types": kinds}


def _partial_rotary(share: float) -> dict[str, Any]:
    """That share of a head turns with the position, the rest does not."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    return {"rope_parameters": rope}


FAMILIES: dict[str, Family] = {
    "llama": Family(model_type="llama", config=LLAMA),
    "mistral": Family(model_type="mistral", config=LLAMA | SLIDING, windowed=EVERY_LAYER),
    "qwen2": Family(
        model_type="qwen2",
        config=LLAMA | SLIDING | {"use_sliding_window": True, "max_window_layers": 1},
        windowed=(1, 2),
    ),
    "qwen3": Family(model_type="qwen3", config=LLAMA | HEADS_OF_16),
    "gemma2": Family(
        model_type="gemma2",
        config=LLAMA
        | HEADS_OF_16
        | _mixed(0, 2)
        | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
        windowed=(0, 2),
        softcap=True,
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        config=LLAMA | HEADS_OF_16 | _mixed(0, 2) | {"query_pre_attn_scalar": 16},
        windowed=(0, 2),
    ),
    "phi3": Family(model_type="phi3", config=LLAMA | SLIDING, windowed=EVERY_LAYER),
    "opt": Family(
        model_type="opt",
        config={
            "hidden_size": 64,
            "ffn_dim": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "max_position_embeddings": POSITIONS,
            "word_embed_proj_dim": 64,
        },
    ),
    "gpt2": Family(model_type="gpt2", config=GPT),
    "gpt_neox": Family(
        model_type="gpt_neox",
        config={k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | _partial_rotary(0.5),
    ),
    "olmo2": Family(model_type="olmo2", config=LLAMA),
    "mixtral": Family(model_type="mixtral", config=LLAMA | EXPERTS, moe=True),
    "gpt_oss": Family(
        model_type="gpt_oss",
        config=LLAMA | HEADS_OF_16 | EXPERTS | _mixed(0, 2),
        windowed=(0, 2),
        sinks=True,
        moe=True,
    ),
    "falcon": Family(
        model_type="falcon",
        config=FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        interface=False,
    ),
    "falcon_alibi": Family(
        model_type="falcon",
        config=FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        interface=False,
        alibi=True,
    ),
    "starcoder2": Family(model_type="starcoder2", config=LLAMA | SLIDING, windowed=EVERY_LAYER),
    "cohere2": Family(model_type="cohere2", config=LLAMA | _mixed(0, 1) | {"logit_scale": 1.0}, windowed=(0, 1)),
    "bloom": Family(
        model_type="bloom",
        config={"hidden_size": 64, "n_layer": LAYERS, "n_head": 4},
        interface=False,
        alibi=True,
    ),
    "gptj": Family(model_type="gptj", config=GPT | {"rotary_dim": 8}),
    "qwen3_moe": Family(
        model_type="qwen3_moe",
        config=LLAMA
        | HEADS_OF_16
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
        moe=True,
    ),
    "stablelm": Family(model_type="stablelm", config=LLAMA | _partial_rotary(0.5)),
    "granite": Family(
        model_type="granite",
        config=LLAMA | {"attention_multiplier": 0.25, "residual_multiplier": 0.5, "logits_scaling": 1.5},
    ),
    "smollm3": Family(
        model_type="smollm3",
        config=LLAMA
        | _mixed(1)
        | {"use_sliding_window": True, "no_rope_layers": [1, 1, 0], "tie_word_embeddings": False},
        windowed=(1,),
    ),
}


def build(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """The family's model, in eval mode. The same name and seed give the same weights in every dtype.

    No token ends a text unless `eos_token_id` is given, so that a test decides where to stop.
    """
    family = FAMILIES[name]
    model = _from_config(family.config | {"model_type": family.model_type}, seed, overrides)
    redraw(model, torch.Generator().manual_seed(seed))
    if family.softcap:
        model.set_attn_implementation("eager")  # some transformers choose sdpa, which forgets the soft cap
    return model.to(dtype).eval()


def _from_config(config: dict[str, Any], seed: int, overrides: dict[str, Any]) -> PreTrainedModel:
    tokens = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**(tokens | config | overrides)))


SAMPLE = (
    "the rider in front breaks the wind and the others ride in the draft behind; when the leader tires, "
    "the next one takes the front. за лідером легше. na zmianę."
)
END = "<|endoftext|>"


def byte_tokenizer(vocabulary: int = 320) -> PreTrainedTokenizerFast:
    """Every byte is a token, so any text goes in and comes out; a few merges make tokens of several bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def save(name: str, directory: Path, seed: int = 0) -> None:
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    build(name, seed=seed, vocab_size=len(tokenizer), eos_token_id=end).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
