"""Block heads in files: ``config.json`` and ``model.safetensors``, in the public layouts.

They are written as `speculators` has them, or in z-lab's layout what that cannot state: causal layers without a window,
scales of the input and the output.
"""

from __future__ import annotations

import io
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.shape import FULL, SLIDING, SPECULATORS, BlockShape, read_shape
from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    WEIGHTS,
    OwnPart,
    Provenance,
    Tensors,
    check_sizes,
    check_tensor,
    fill,
    floats,
    own_part,
    parsing,
    read_tensors,
    reading,
    unpickled,
    write_folder,
)
from paceline.drafters.networks.fitting import HeadFacts
from paceline.drafters.networks.heads import BLOCK, CONFIG, MEND, read_config
from paceline.drafters.networks.token_tables import with_tables, with_token_ids
from paceline.errors import InputError
from paceline.files.reading import read_file

FILES = (WEIGHTS, "pytorch_model.bin")
MASK_FILE, MASK = "mask_embedding.pt", "mask_embedding"
MOST_MASK = 1 << 24
OTHER_NAMES = (
    (r"^model\.", ""),
    (r"^midlayer\.", "layers.0."),
    (r"^encoder\.fc\.", "fc."),
    (r"^encoder\.output_norm_enc\.", "hidden_norm."),
    (r"_codebook\.weight$", "_codebook"),
)
"""Names of the same tensors in files of different authors."""
LEFT_OUT = re.compile(r"verifier_.*|rotary_emb\..*")
"""Tensors that drafting does not need."""


@dataclass(frozen=True, kw_only=True)
class BlockPart(OwnPart):
    """This project's part of the configuration."""

    rank: int = 0
    """The width between two thin output matrices; 0 for one whole matrix."""


def read_block(folder: Path) -> tuple[BlockHead, HeadFacts]:
    """A head, in the type in which it is stored, and what it says of its target."""
    config = read_config(folder)
    own = own_part(BlockPart, config, folder) or BlockPart()
    found = _renamed(floats(read_tensors(folder, FILES, BLOCK)))
    shape = read_shape(config, frozenset(found), folder)
    check_sizes({"hidden_size": shape.width, "intermediate_size": shape.layer.units}, found, folder)
    if shape.layers > len(found):
        raise InputError(
            f"{CONFIG} of the head in {folder} says {shape.layers} layers, and {len(found)} tensors; {MEND}"
        )
    if (mask := _mask(folder, shape)) is not None:
        found[MASK] = mask
    with parsing(f"{CONFIG} of the head in {folder}"):
        shape = replace(shape, rank=own.rank, own_mask=MASK in found)
    with torch.device("meta"):
        head = BlockHead(shape)
    fill(head, with_token_ids(found, shape.kept, shape.vocab_size, f"the head in {folder}"), folder)
    facts = HeadFacts(
        width=shape.width, vocab_size=shape.vocab_size, target=own.target, target_name=own.target_name, noise=own.noise
    )
    return head, facts


def write_block(folder: Path, head: BlockHead, about: Provenance = UNSTATED) -> None:
    shape = head.shape
    tensors = with_tables(about.stored(head.state_dict()), shape.vocab_size)
    own = about.part(BlockPart, rank=shape.rank)
    config = _speculators_config(shape, about.target_name) if _fits_speculators(shape) else _zlab_config(shape)
    write_folder(folder, tensors, {**config, "paceline": asdict(own)})


# reading


def _renamed(tensors: Tensors) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in tensors.items():
        for pattern, plain in OTHER_NAMES:
            name = re.sub(pattern, plain, name)
        if not LEFT_OUT.fullmatch(name):
            found[name] = weight
    return found


def _mask(folder: Path, shape: BlockShape) -> torch.Tensor | None:
    """The mask token's own embedding, from a file beside the weights: a vector, alone or with the token."""
    file = folder / MASK_FILE
    if not file.exists():
        return None
    with reading(file):
        content = unpickled(io.BytesIO(read_file(file, MOST_MASK)), file)
    if isinstance(content, dict):
        if content.get("mask_token_id", shape.mask_token) != shape.mask_token:
            raise InputError(f"{file} is of the token {content['mask_token_id']}, and the head's mask token is another")
        content = content.get("embedding")
    if not isinstance(content, torch.Tensor):
        raise InputError(f"{file} holds no embedding; {MEND}")
    content = content.reshape(-1)
    check_tensor(MASK, content, (shape.width,), f"the head in {folder}")
    return content


# writing


def _fits_speculators(shape: BlockShape) -> bool:
    scaled = shape.embedding_scale != 1.0 or shape.output_scale != 1.0 or shape.softcap or shape.own_mask
    slides = [window is not None for window in shape.windows]
    one_way = shape.causal == tuple(slides) or not any(shape.causal)
    return not scaled and one_way and (shape.window_of_anchor or not any(slides))


def _layer_config(shape: BlockShape) -> dict[str, Any]:
    layer, windows = shape.layer, {window for window in shape.windows if window is not None}
    return {
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": layer.units,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": layer.eps,
        "attention_bias": layer.bias,
        **shape.rope,
        "layer_types": [FULL if window is None else SLIDING for window in shape.windows],
        "use_sliding_window": bool(windows),
        "sliding_window": max(windows, default=None),
    }


def _tie_config(shape: BlockShape) -> dict[str, Any]:
    found = dict[str, Any]()
    if shape.taps:
        found |= {"conv_kernel_size": shape.taps, "conv_group_size": shape.group}
    if shape.selector_rank:
        found |= {"selector_rank": shape.selector_rank, "selector_top_k": shape.selector_top}
    if shape.markov_rank:
        found |= {"markov_rank": shape.markov_rank, "markov_head_type": shape.markov}
    if shape.confidence:
        found |= {"enable_confidence_head": True, "confidence_head_with_markov": shape.confidence_reads_markov}
    return found


def _speculators_config(shape: BlockShape, target_name: str) -> dict[str, Any]:
    kind, architecture = "dflash", "DFlashSpeculator"
    if shape.taps or shape.selector_rank:
        kind, architecture = "dflash2", "DFlash2DraftModel"
    elif shape.markov_rank or shape.confidence:
        kind, architecture = "dspark", "DSparkSpeculator"
    return {
        SPECULATORS: kind,
        "architectures": [architecture],
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": shape.places}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
        "transformer_layer_config": _layer_config(shape),
        "draft_vocab_size": shape.known,
        "block_size": shape.block,
        "aux_hidden_state_layer_ids": list(shape.states),
        "mask_token_id": shape.mask_token,
        "sample_from_anchor": shape.from_anchor,
        "sliding_window_non_causal": not any(shape.causal),
        "num_target_layers": shape.target_layers or None,
        **_tie_config(shape),
    }


def _zlab_config(shape: BlockShape) -> dict[str, Any]:
    """Also the one of a JetSpec head."""
    inner = {
        "block_size": shape.block,
        "mask_token_id": shape.mask_token,
        "target_layer_ids": [state - 1 for state in shape.states],
        "causal_head": all(shape.causal),
        "sample_from_anchor": shape.from_anchor,
        "input_embedding_scale": shape.embedding_scale,
        "output_multiplier": shape.output_scale,
        "final_logit_softcapping": shape.softcap or None,
        **_tie_config(shape),
    }
    return {
        "architectures": ["DFlash2DraftModel" if shape.taps else "DFlashDraftModel"],
        **_layer_config(shape),
        "draft_vocab_size": shape.known,
        "block_size": shape.block,
        "num_target_layers": shape.target_layers or None,
        "dflash_config": inner,
    }
