"""Names of tensors of EAGLE heads: of those who publish them, and of the module that computes them."""

from __future__ import annotations

import re

import torch

from paceline.drafters.networks.checkpoint import Tensors
from paceline.drafters.networks.eagle.head import EAGLE3, MTP, Form
from paceline.errors import InputError

LAYER = "layers."
MIDLAYER = "midlayer."
TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight")
"""What speculators needs to train a head, and does not write."""
MTP_PLACES = re.compile(r"^(model\.|mtp\.|mtp_)?layers\.\d+\.|^mtp\.")
"""Where the one layer of a model's own prediction stands, by who has written it."""
MTP_NAMES = {
    "input_proj": "fc",
    "eh_proj": "fc",
    "token_layernorm": "token_norm",
    "pre_fc_norm_embedding": "token_norm",
    "enorm": "token_norm",
    "hidden_layernorm": "hidden_norm",
    "pre_fc_norm_hidden": "hidden_norm",
    "hnorm": "hidden_norm",
    "final_layernorm": "norm",
    "shared_head.norm": "norm",
    "norm": "norm",
    "fc": "fc",
    "shared_head.head": "lm_head",
    "lm_head": "lm_head",
    "embed_tokens": "embed_tokens",
}
"""Speculators', Qwen3-Next's and DeepSeek's names of what stands around that layer."""
UNREAD = {"experts": "a mixture of experts", "kv_a_proj_with_mqa": "attention by latent keys", "indexer": "an indexer"}
"""Parts of names of layers that are not computed here."""


def plain_names(tensors: Tensors, form: Form) -> dict[str, torch.Tensor]:
    """Tensors under the module's names."""
    found = {}
    for name, weight in tensors.items():
        if name in TRAINING_ONLY or name.endswith("rotary_emb.inv_freq"):
            continue
        found[_mtp_name(name) if form == MTP else _name(name)] = weight
    return found


def _name(name: str) -> str:
    plain = name.removeprefix("model.")
    return LAYER + "0." + plain.removeprefix(MIDLAYER) if plain.startswith(MIDLAYER) else plain


def _mtp_name(name: str) -> str:
    inner = MTP_PLACES.sub("", name).removeprefix("model.")
    part, _, kind = inner.rpartition(".")
    known = MTP_NAMES.get(part)
    if known is None:
        return inner if inner == name else f"{LAYER}0.{inner}"
    return f"{known}.{kind}"


def safeailab_names(tensors: Tensors, form: Form) -> dict[str, torch.Tensor]:
    """The module's tensors under SafeAILab's names."""
    if form != EAGLE3:
        return dict(tensors)
    return {name.replace(LAYER + "0.", MIDLAYER): weight for name, weight in tensors.items()}


def check_readable(tensors: Tensors, where: str) -> None:
    """`InputError` where a layer is of a kind that is not computed."""
    for name in tensors:
        for part, what in UNREAD.items():
            if f".{part}" in name:
                raise InputError(f"the layer of {where} has {what} ({name}), which method 'eagle' does not compute")
