"""Tiny models of mlx-lm with random weights, and their folders. Imported where mlx-lm is installed only."""

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from families import VOCAB, WINDOW
from paceline.law.scores import Row
from paceline.targets.load import open_model
from paceline.targets.mlx.files import write_model
from paceline.targets.mlx.target import MLXTarget
from paceline.tree import Ints

mx.disable_compile()  # of small functions in models: compiling takes longer than all tests here
STACK = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
}
TREES: dict[str, dict[str, Any]] = {
    "llama": STACK
    | {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "qwen3": STACK | {"head_dim": 16, "tie_word_embeddings": True, "rope_theta": 10000.0},
    "gemma3_text": STACK
    | {"head_dim": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
    "gemma2": STACK | {"head_dim": 16, "query_pre_attn_scalar": 16.0},
    "phi3": STACK | {"partial_rotary_factor": 0.5},
    "mixtral": STACK | {"num_local_experts": 4},
    "olmo2": STACK,
    "gpt_neox": STACK
    | {"layer_norm_eps": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 0.5, "use_parallel_residual": True},
}
"""Families whose code takes masks and a position for each row."""
CHAINS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_ctx": 512,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCAB,
    },
}
"""Families that count positions themselves."""
OWN_CACHES: dict[str, dict[str, Any]] = {
    "mamba": {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 8,
        "num_hidden_layers": 3,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 8,
    },
}
"""Families whose layers keep a state."""


def written(folder: Path, model_type: str, config: dict[str, Any], *, bits: int | None = None, seed: int = 0) -> str:
    """Write a model to a folder; returns what `paceline.load` takes for it."""
    code = import_module(f"mlx_lm.models.{model_type}")
    config = {"model_type": model_type, "eos_token_id": 0} | config
    mx.random.seed(seed)
    model = code.Model(code.ModelArgs.from_dict(config))
    model.update(tree_map_with_path(_drawn, model.parameters()))
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, model, config, bits, model_type)
    return f"mlx:{folder}"


def _drawn(name: str, weight: mx.array) -> mx.array:
    """Weights with which a wrong key or position shows; norms and the like stay near what they are."""
    if weight.ndim < 2 or "A_log" in name or "conv" in name:
        return weight + 0.1 * mx.random.normal(weight.shape)
    return mx.random.normal(weight.shape) * (1.6 / weight.shape[-1] ** 0.5)


def opened(folder: Path, model_type: str, config: dict[str, Any], **how: Any) -> MLXTarget:
    """The target of a model that is written to a folder."""
    written(folder, model_type, config, **how)
    return opened_folder(folder)


def opened_folder(folder: Path) -> MLXTarget:
    """The target of a folder, without the warning that drafts are clipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        target, _ = open_model(f"mlx:{folder}", with_tokenizer=False)
    assert isinstance(target, MLXTarget)
    return target


def alone(target: MLXTarget, tokens: Ints) -> Row:
    """Logits of all rows, by mlx-lm's own caches in one forward."""
    logits = target.model(mx.array(tokens.astype(np.int32))[None], cache=make_prompt_cache(target.model))
    return np.asarray(logits[0].astype(mx.float32))


def own_text(target: MLXTarget, prompt: Ints, count: int) -> list[int]:
    """mlx-lm's greedy text."""
    steps = generate_step(mx.array(prompt.astype(np.int32)), target.model, max_tokens=count)
    return [int(token) for token, _ in steps]
