"""Writes a twin of a model of gated-delta layers and attention: the same function at the cost of a large model.

    PYTHONPATH=src python -m tools.hybrid_twin build/hybrid build/hybrid-150M 150e6

The method is that of `paceline.targets.pocket.ballast`, with other scales, since these norms have the weight 1 + w, and
one eps serves all norms of a model. The residual stream is four times as wide, and its old channels are twice as large:
then a mean over all channels, of which the new ones are zero, is what it was, and so is eps beside it. The normed state
is twice as large as it was. Matrices that read it are halved, those that write into the stream are doubled, and the
embedding is doubled where the head is halved, so the twin's are two matrices. All factors are powers of two, so no
weight is rounded in any type.
"""

from __future__ import annotations

import argparse
import copy
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from paceline.errors import InputError
from paceline.targets.pocket.shape import CLOSE_ENOUGH, MLP_STEP, REFERENCE, REFERENCE_DEPTH, real_layers

RATIO = 4
"""How many times wider the residual stream is, and how many times as many heads there are."""
SCALE = 2
"""The root of it."""
READ = (
    *("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"),
)
WRITE = ("o_proj", "out_proj", "down_proj")
HEADS = ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads")
JOINED = ("in_proj_qkv", "conv1d")
"""Parts whose rows are queries, keys and values one after another."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def chosen(config: Qwen3_5TextConfig, size: float) -> Qwen3_5TextConfig:
    """The shape of about that many parameters: depth grows with the cube root of size, MLPs take what is left."""
    depth = REFERENCE_DEPTH * (size / REFERENCE) ** (1 / 3) / period_of(config)
    layers = max(config.num_hidden_layers, period_of(config) * round(depth))
    least = widened_config(config, layers, config.intermediate_size)
    rest = (size - parameters(least)) / (3 * least.hidden_size * layers)
    wide = widened_config(config, layers, config.intermediate_size + max(0, round(rest / MLP_STEP)) * MLP_STEP)
    if abs(found := parameters(wide) - size) > CLOSE_ENOUGH * size:
        raise InputError(f"{size:,.0f} parameters cannot be met: the nearest twin has {size + found:,.0f}")
    return wide


def widened_config(config: Qwen3_5TextConfig, layers: int, units: int) -> Qwen3_5TextConfig:
    """The small model's configuration in the large shape."""
    wide = copy.deepcopy(config)
    wide.hidden_size *= RATIO
    for heads in HEADS:
        setattr(wide, heads, getattr(wide, heads) * RATIO)
    wide.num_hidden_layers, wide.intermediate_size = layers, units
    wide.layer_types = (config.layer_types or [])[: period_of(config)] * (layers // period_of(config))
    wide.tie_word_embeddings = False
    return wide


def period_of(config: Qwen3_5TextConfig) -> int:
    """The number of layers from one attention to the next."""
    types: list[str] = config.layer_types or []
    period = types.index("full_attention") + 1
    if types != types[:period] * (config.num_hidden_layers // period):
        raise InputError(f"the layers {types} do not repeat a pattern that ends with attention")
    return period


def parameters(config: Qwen3_5TextConfig) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in Qwen3_5ForCausalLM(config).parameters())


@torch.no_grad()
def twin(small: Qwen3_5ForCausalLM, shape: Qwen3_5TextConfig) -> Qwen3_5ForCausalLM:
    """The large model. Layers are added in whole periods of the pattern, and the small model's last is at the end."""
    config, period = small.config, period_of(small.config)
    assert not config.attention_bias, "biases are not widened"
    wide = Qwen3_5ForCausalLM(shape)
    nn.Module.to(wide, small.dtype)
    groups = real_layers(shape.num_hidden_layers // period, config.num_hidden_layers // period)
    for name, weight in wide.named_parameters():
        part = name.split(".")[-2]
        if part in WRITE or part == "embed_tokens":
            weight.zero_()
        if (source := source_of(name, groups, period)) is not None:
            put(weight, small.get_parameter(source) * factor(part), blocks(config) if part in JOINED else (1,))
    return wide


def source_of(name: str, groups: dict[int, int], period: int) -> str | None:
    """The small model's weight inside a large one; None in a layer that was added."""
    if name == "lm_head.weight":
        return "model.embed_tokens.weight"
    *before, layer, rest = name.split(".", 3) if name.startswith("model.layers.") else ("", "", name)
    if not layer:
        return name
    group, place = divmod(int(layer), period)
    return ".".join((*before, str(groups[group] * period + place), rest)) if group in groups else None


def factor(part: str) -> float:
    return 1 / SCALE if part in READ else SCALE if part in (*WRITE, "embed_tokens") else 1


def blocks(config: Qwen3_5TextConfig) -> tuple[int, ...]:
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return keys, keys, config.linear_num_value_heads * config.linear_value_head_dim


def put(wide: torch.Tensor, small: torch.Tensor, shares: Sequence[int]) -> None:
    """A small weight in front of a large one, in each block of rows."""
    for large, one in zip(split(wide, shares), split(small, shares), strict=True):
        large[tuple(slice(length) for length in one.shape)] = one


def split(weight: torch.Tensor, shares: Sequence[int]) -> Iterator[torch.Tensor]:
    unit = len(weight) // sum(shares)
    return iter(weight.split([share * unit for share in shares]))


def write(folder: Path, out: Path, size: float) -> str:
    """The twin of a folder as another folder. Returns a description."""
    config: Any = AutoConfig.from_pretrained(folder)
    if not isinstance(config, Qwen3_5TextConfig):
        raise InputError(f"{folder} holds a model of type {config.model_type}, not qwen3_5_text")
    shape = chosen(config, size)
    twin(Qwen3_5ForCausalLM.from_pretrained(folder, dtype="auto"), shape).save_pretrained(out)
    for name in TOKENIZER:
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)
    return (
        f"{parameters(shape) / 1e6:.1f}M parameters: {shape.num_hidden_layers} layers, {shape.hidden_size} wide, "
        f"MLP {shape.intermediate_size}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes a twin of a hybrid model: the same function, a larger cost.")
    parser.add_argument("folder", type=Path, help="the small model")
    parser.add_argument("out", type=Path, help="where to write the twin")
    parser.add_argument("size", type=float, help="about how many parameters, as 150e6")
    options = parser.parse_args(arguments)
    if not options.size >= 1 or math.isinf(options.size):
        parser.error(f"a size is a number of parameters as 150e6, not {options.size}")
    torch.manual_seed(0)
    try:
        print(write(options.folder, options.out, options.size))
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
