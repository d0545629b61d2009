"""Hydra's heads in files: ``hydra_lm_head.pt``, as its authors publish them, or ``hydra_lm_head.safetensors``.

Names are those of the public code. Sizes are read from the tensors. Which heads they are is in the configuration:
``mlp``, or ``prefix-mlp`` for Hydra++. Public files also hold the target's input embeddings, which are read from the
target instead, and the frequencies of the prefix layer's rotations, which tell how wide its heads are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    OwnPart,
    Provenance,
    Tensors,
    are_equal,
    check_ids,
    fill,
    floats,
    own_part,
    parsing,
    read_tensors,
    whole,
    write_folder,
)
from paceline.drafters.networks.fitting import HeadFacts
from paceline.drafters.networks.heads import CONFIG, HYDRA, MEND, read_config
from paceline.drafters.networks.hydra.head import HydraHeads, HydraShape
from paceline.drafters.networks.hydra.prefix import PrefixShape
from paceline.errors import DamagedFile, InputError
from paceline.files.reading import damaged

WEIGHTS = "hydra_lm_head.safetensors"
FILES = (WEIGHTS, "hydra_lm_head.pt")
MLP, PREFIX_MLP = KINDS = ("mlp", "prefix-mlp")
PREFIX = "prefix_embeding_layer."
FREQUENCIES = PREFIX + "layers.0.self_attn.rotary_emb.inv_freq"
FIRST_LAYER = PREFIX + "layers.0."
OF_TARGET = ("input_embed_fn.weight", PREFIX + "embed_tokens.weight")
"""The target's input embeddings; the second copy is used by nothing."""
THETA = 10_000.0
EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class OwnHydra(OwnPart):
    """The part of this project."""

    vocab_size: int = 0
    """Of the target, where the heads know a part of it; else 0."""


def read_heads(folder: Path) -> tuple[HydraHeads, HeadFacts]:
    """Heads and what they say of their target, in the type in which they are stored."""
    config = read_config(folder)
    own = own_part(OwnHydra, config, folder) or OwnHydra()
    kind = config.get("hydra_head_arch", MLP)
    if kind not in KINDS:
        raise InputError(
            f"the head in {folder} is a Hydra of kind {kind!r}, and paceline drafts with {' and '.join(KINDS)}; "
            f"take heads of one of these"
        )
    tensors = floats(read_tensors(folder, FILES, HYDRA))
    shape = shape_of(tensors, config, own.vocab_size, folder)
    with torch.device("meta"):
        heads = HydraHeads(shape)
    fill(heads, {name: each for name, each in tensors.items() if name not in (*OF_TARGET, FREQUENCIES)}, folder)
    if heads.token_ids is not None:
        check_ids(heads.token_ids, shape.vocab_size, folder)
    facts = HeadFacts(
        width=shape.width,
        vocab_size=shape.vocab_size,
        target=own.target,
        target_name=own.target_name,
        noise=own.noise,
    )
    return heads, facts


def shape_of(tensors: Tensors, config: Mapping[str, Any], vocab_size: int, folder: Path) -> HydraShape:
    """The sizes of the heads that these tensors are; ``vocab_size`` is the target's where it is stated."""
    prefixed = config.get("hydra_head_arch", MLP) == PREFIX_MLP
    step, last = (2, ".1") if prefixed else (1, "")  # a place of dropout stands before each layer
    first, output = f"hydra_mlp.0.{step - 1}.", f"hydra_lm_head.0{last}"
    numbers = [int(name.split(".")[1]) for name in tensors if re.match(r"hydra_mlp\.\d+\.", name)]
    heads, blocks = 1 + max(numbers, default=-1), sum(_is_first_weight(name) for name in tensors)
    thin = tensors.get(f"{output}.0.weight")
    known = tensors.get(f"{output}.weight" if thin is None else f"{output}.1.weight")
    inner = tensors.get(f"{first}linear.weight")
    matrices = [each for each in (inner, known, thin) if each is not None]
    if not 0 < heads <= len(tensors) or inner is None or known is None or any(each.ndim != 2 for each in matrices):
        raise InputError(f"the weights in {folder} are not those of Hydra's heads of kind {_kind(prefixed)!r}; {MEND}")
    ids, width = tensors.get("token_ids"), len(inner)
    grounded = f"{first}res_connection.weight" in tensors
    with parsing(f"{CONFIG} of the head in {folder}"):
        prefix = _prefix_shape(tensors, config, folder) if prefixed else None
        offset = whole(config, "hidden_state_offset") if "hidden_state_offset" in config else 0
    with damaged(f"the head in {folder}", MEND):
        return HydraShape(
            width=width,
            vocab_size=len(known) if ids is None else vocab_size,
            heads=heads,
            blocks=blocks,
            tied=_is_tied(tensors, heads, range(step - 1, step * blocks, step)[1 if grounded else 0 :]),
            grounded=grounded,
            prefix=prefix,
            offset=offset,
            rank=0 if thin is None else len(thin),
            kept=0 if ids is None else len(known),
        )


def _kind(prefixed: bool) -> str:
    return PREFIX_MLP if prefixed else MLP


def _is_first_weight(name: str) -> bool:
    return re.fullmatch(r"hydra_mlp\.0\.\d+\.linear\.weight", name) is not None


def _is_tied(tensors: Tensors, heads: int, places: range) -> bool:
    """Whether the blocks at these places of each head are one and the same."""
    return all(
        are_equal(tensors, [f"hydra_mlp.{head}.{place}.linear.{part}" for place in places])
        for head in range(heads if len(places) > 1 else 0)
        for part in ("weight", "bias")
    )


def _prefix_shape(tensors: Tensors, config: Mapping[str, Any], folder: Path) -> PrefixShape:
    """The sizes of the prefix layer; the width of its heads is that of two frequencies for each rotation."""
    where = f"the head in {folder}"
    names = {name: f"{FIRST_LAYER}{name}.weight" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")}
    for name in names.values():
        if name not in tensors:
            raise InputError(f"{where} lacks the tensor {name}; {MEND}")
    queries, keys, units = (len(tensors[name]) for name in names.values())
    frequencies = tensors.get(FREQUENCIES)
    if frequencies is None:
        width = queries // whole(config, "num_attention_heads")
    elif (
        frequencies.ndim == 1
        and frequencies.is_floating_point()
        and 0 < len(frequencies) == int((frequencies > 0).sum())
    ):
        width = 2 * len(frequencies)
    else:
        raise DamagedFile(f"the tensor {FREQUENCIES} of {where} is no row of numbers above 0; {MEND}")
    if not width or queries % width or keys % width:
        raise InputError(f"{queries} queries and {keys} keys of {where} are not of heads {width} wide; {MEND}")
    return PrefixShape(
        heads=queries // width,
        key_heads=keys // width,
        head_width=width,
        units=units,
        eps=float(config.get("rms_norm_eps", EPS)),
        theta=_theta(frequencies, config, where),
    )


def _theta(frequencies: torch.Tensor | None, config: Mapping[str, Any], where: str) -> float:
    """The base of the rotations. Frequencies in half precision are rounded, so they only confirm it."""
    stated = float(config.get("rope_theta", THETA))
    if frequencies is None or len(frequencies) < 2:
        return stated
    count, exact = len(frequencies), frequencies.dtype in (torch.float32, torch.float64)
    theta = float(f"{float(frequencies[1]) ** -count:.5g}") if exact else stated
    wanted = theta ** -(torch.arange(count, dtype=torch.float64) / count)
    if not torch.allclose(frequencies.double(), wanted, rtol=1e-4 if exact else 1e-2, atol=1e-7):
        raise InputError(f"the rotations of {where} are scaled, and paceline computes only those of one base")
    return theta


def write_heads(folder: Path, heads: HydraHeads, about: Provenance = UNSTATED) -> None:
    """The configuration is written last, so a folder with one is whole."""
    shape = heads.shape
    own = about.part(OwnHydra, vocab_size=shape.vocab_size if shape.kept else 0)
    tensors = about.stored(heads.state_dict())
    config = {
        "hydra_num_heads": shape.heads,
        "hydra_num_layers": shape.blocks,
        "hydra_head_arch": _kind(shape.prefix is not None),
        "grounded_heads": shape.grounded,
        "hidden_state_offset": shape.offset,
        "base_model_name_or_path": about.target_name,
    }
    if (prefix := shape.prefix) is not None:
        count = prefix.head_width // 2
        tensors[FREQUENCIES] = (prefix.theta ** -(torch.arange(count, dtype=torch.float64) / count)).float()
        config |= {"rms_norm_eps": prefix.eps, "rope_theta": prefix.theta}
    write_folder(folder, tensors, {**config, "paceline": asdict(own)}, weights=WEIGHTS)
