"""What a GGUF file says of a model: the family, the sizes, the rotation of positions, and the names of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from paceline.errors import UnsupportedModel
from paceline.targets.gguf.kinds import BUNDLED
from paceline.targets.pocket.names import bundled_name


@dataclass(frozen=True)
class GgufFamily:
    """How models of a type of transformers are written."""

    architecture: str
    """The name of the ``gguf`` package."""
    turned: bool = False
    """llama.cpp turns neighbouring rows of a head together, transformers its halves, so rows change places."""
    biases: tuple[str, ...] = ()
    """Modules whose biases llama.cpp reads."""


ATTENTION, MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj")
LLAMA = GgufFamily("LLAMA", turned=True, biases=(*ATTENTION, "o_proj", *MLP))
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": GgufFamily("QWEN2", biases=ATTENTION),
    "qwen3": GgufFamily("QWEN3"),
}
"""Type of a model in transformers -> how it is written."""
ROTATIONS = ("default", "linear", "yarn", "llama3")
ACTIVATION = "silu"
HEAD = "lm_head.weight"
FACTORS = "rope_freqs.weight"
"""Of frequencies, in a file whose model slows some of them down."""


def family_of(name: str, config: Any) -> GgufFamily:
    """How this model is written. `UnsupportedModel` where llama.cpp would compute something else."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise UnsupportedModel(f"{name} is a {config.model_type} model, and GGUF files are written here of {known}")
    if (act := getattr(config, "hidden_act", ACTIVATION)) != ACTIVATION:
        raise UnsupportedModel(f"{name} has the activation {act}, and llama.cpp has {ACTIVATION} in this family")
    if (kind := rotation(config).get("rope_type", "default")) not in ROTATIONS:
        raise UnsupportedModel(
            f"{name} rotates positions by {kind!r}, and GGUF files are written here of {', '.join(ROTATIONS)}"
        )
    return family


def rotation(config: Any) -> dict[str, Any]:
    """The rotation of positions, as this and older versions of transformers have it."""
    found = getattr(config, "rope_parameters", None)
    if found is None:
        found = {"rope_theta": config.rope_theta, **(getattr(config, "rope_scaling", None) or {})}
    return {"rope_type": found.get("type", "default"), **found}


def head_width(config: Any) -> int:
    """Values of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def context_length(config: Any) -> int:
    """The longest text. llama.cpp attends to all of it in these families, so it ends with a sliding window, if any."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return int(min(config.max_position_embeddings, window or config.max_position_embeddings))


def describe(writer: Any, name: str, config: Any) -> None:
    """Write the sizes of a model."""
    width = head_width(config)
    writer.add_name(name)
    if bundled_name(name):
        writer.add_string(BUNDLED, name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(context_length(config))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    turns = rotation(config)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(turns["rope_theta"])
    if turns["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(_scaling(turns["rope_type"]))
        writer.add_rope_scaling_factor(turns["factor"])
    if turns["rope_type"] == "yarn":
        before = turns.get("original_max_position_embeddings") or config.max_position_embeddings
        writer.add_rope_scaling_orig_ctx_len(before)


def _scaling(kind: str) -> Any:
    import gguf

    return gguf.RopeScalingType(kind)


def factors(config: Any) -> torch.Tensor | None:
    """By what llama.cpp divides the frequency of each pair of a head: Llama 3.1 slows low frequencies down."""
    turns = rotation(config)
    if turns["rope_type"] != "llama3":
        return None
    width, before = head_width(config), turns["original_max_position_embeddings"]
    low, high = turns["low_freq_factor"], turns["high_freq_factor"]
    base = torch.tensor(turns["rope_theta"], dtype=torch.float64)
    frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = before * frequencies / (2 * math.pi)  # how often a pair turns around over the trained length
    smooth = ((turned - low) / (high - low)).clamp(0, 1)
    found: torch.Tensor = (1 / ((1 - smooth) / turns["factor"] + smooth)).float()
    return found


def names_of(name: str, family: GgufFamily, config: Any, tensors: Iterable[str]) -> dict[str, str]:
    """Transformers' names of the tensors that are written -> their names in the file."""
    import gguf

    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.architecture], config.num_hidden_layers)
    found = dict[str, str]()
    for tensor in tensors:
        own = known.get_name(tensor, try_suffixes=(".weight", ".bias"))
        if own is None or (tensor.endswith(".bias") and tensor.split(".")[-2] not in family.biases):
            raise UnsupportedModel(f"{name} has the tensor {tensor}, which llama.cpp does not read in this family")
        found[tensor] = own
    return found


def rows_of(family: GgufFamily, config: Any, tensor: str, weight: torch.Tensor) -> torch.Tensor:
    """A tensor with its rows in llama.cpp's order."""
    module = tensor.split(".")[-2] if "." in tensor else ""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(module)
    if not family.turned or heads is None:
        return weight
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def rows_back(family: GgufFamily, config: Any, tensor: str, weight: torch.Tensor) -> torch.Tensor:
    """A tensor of a file with its rows in transformers' order."""
    rows = torch.arange(len(weight))
    order = rows_of(family, config, tensor, rows)
    return weight if order is rows else weight[order.argsort()]
