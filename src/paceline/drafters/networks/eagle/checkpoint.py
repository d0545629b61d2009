"""Heads of EAGLE in files, in the layouts of SafeAILab (EAGLE-1, 2 and 3) and of speculators (eagle3, peagle, mtp).

Weights decide what configurations leave out: biases, norms of heads, an own embedding or output. `names` has the other
names of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.drafters.networks.checkpoint import (
    UNSTATED,
    WEIGHTS,
    OwnPart,
    Provenance,
    Tensors,
    check_sizes,
    fill,
    floats,
    own_part,
    parsing,
    read_tensors,
    whole,
    write_folder,
)
from paceline.drafters.networks.eagle.head import EAGLE1, EAGLE3, MTP, PEAGLE, EagleHead, EagleShape, Form
from paceline.drafters.networks.eagle.names import LAYER, MIDLAYER, check_readable, plain_names, safeailab_names
from paceline.drafters.networks.heads import CONFIG, EAGLE, MEND, read_config
from paceline.drafters.networks.layers import LayerShape, layer_shape
from paceline.drafters.networks.rotary import Rotary
from paceline.drafters.networks.token_tables import D2T, with_tables, with_token_ids
from paceline.errors import InputError
from paceline.files.reading import damaged

FILES = (WEIGHTS, "pytorch_model.bin")
STATED = (EAGLE3, PEAGLE, MTP)
"""Values of ``speculators_model_type``."""
SAFEAILAB, SPECULATORS = "safeailab", "speculators"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
OFFSET_NORMS = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5"})
"""Kinds of models whose norms add 1 to their weights."""
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings")
"""Keys of a configuration that a rotary embedding is made of."""


@dataclass(frozen=True, kw_only=True)
class EaglePart(OwnPart):
    """This project's part of a configuration."""

    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """The configuration beside the weights."""

    layer_ids: tuple[int, ...] | None
    """The target's layers whose inputs are the states that it reads; None for those that EAGLE-3 reads by default."""
    mask_token: int | None = None
    """The token that rows ahead of the text are read from, where all are read in one pass."""
    rope: Mapping[str, Any]
    """The part of the configuration that its rotary embedding is made of."""
    own: EaglePart


def read_head(folder: Path) -> tuple[EagleHead, EagleConfig]:
    """A head and its configuration, in float32, or in the type in which it is stored."""
    content, where = read_config(folder), f"the head in {folder}"
    own = own_part(EaglePart, content, folder) or EaglePart()
    what = f"{CONFIG} of {where}"
    with parsing(what):
        form, inner = _form_of(content, where)
    raw = floats(read_tensors(folder, FILES, EAGLE))
    form = EAGLE3 if form == EAGLE1 and any(name.startswith(MIDLAYER) for name in raw) else form
    tensors = plain_names(raw, form)
    check_readable(tensors, where)
    with parsing(what):
        with damaged(what, MEND):  # what a shape refuses names no file
            shape = _shape(form, content, inner, tensors, own.rank)
        rotary = Rotary.of(inner, shape.layer.head_size)
        config = EagleConfig(
            layer_ids=_layer_ids(content, shape),
            mask_token=_mask_token(content, shape),
            rope={name: inner[name] for name in ROPE if name in inner},
            own=own,
        )
    sizes = {"hidden_size": shape.width, "intermediate_size": shape.layer.units, "draft_vocab_size": shape.kept}
    check_sizes({**sizes, "vocab_size": shape.own_embedding * shape.vocab_size}, tensors, folder)
    if str(inner.get("model_type")) in OFFSET_NORMS:
        tensors = {name: weight + 1 if _is_norm(name) else weight for name, weight in tensors.items()}
    with torch.device("meta"):
        head = EagleHead(shape, rotary)
    fill(head, with_token_ids(tensors, shape.kept, shape.vocab_size, where), folder)
    return head, config


def _form_of(content: Mapping[str, Any], where: str) -> tuple[Form, Mapping[str, Any]]:
    """The form of a head by its configuration, and the configuration of its layers. Weights tell the first EAGLE from
    the third where the configuration does not."""
    stated = content.get("speculators_model_type")
    if stated is None:
        return EAGLE3 if content.get("draft_vocab_size") is not None else EAGLE1, content
    inner = content.get("transformer_layer_config")
    form = next((each for each in STATED if each == stated), None)
    if form is None:
        raise InputError(
            f"{where} is of kind {stated!r} in the layout of speculators, and method 'eagle' reads there "
            f"{', '.join(STATED)}; take a head of one of these"
        )
    if not isinstance(inner, dict):
        raise ValueError("it has no transformer_layer_config")
    if form == MTP and (count := content.get("num_nextn_predict_layers", 1)) != 1:
        raise InputError(f"{where} has {count!r} layers of prediction, and one can be read")
    return form, inner


def _shape(form: Form, content: Mapping[str, Any], inner: Mapping[str, Any], tensors: Tensors, rank: int) -> EagleShape:
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        whole(inner, name)
    layer, fc = layer_shape(inner, tensors, f"{LAYER}0"), tensors.get("fc.weight")
    state_width = int(content.get("target_hidden_size") or layer.width)
    aux, rest = (1, 0)
    if fc is not None and form not in (EAGLE1, MTP):
        aux, rest = divmod(fc.shape[-1], state_width)
    if fc is not None and (rest or not aux):
        raise ValueError(
            f"its fc reads {fc.shape[-1] if fc is not None else 0} channels, and states have {state_width}"
        )
    vocab_size = whole(inner, "vocab_size")
    query = tensors.get(f"{LAYER}0.self_attn.q_proj.weight")
    kept = whole(content, "draft_vocab_size") if content.get("draft_vocab_size") is not None else vocab_size
    layers = {int(name.split(".")[1]) for name in tensors if name.startswith(LAYER)}
    flags = {name: bool(content.get(name, False)) for name in FLAGS if form in (EAGLE3, PEAGLE)}
    return EagleShape(
        form=form,
        layer=_gated(layer, query),
        layers=max(layers, default=0) + 1,
        vocab_size=vocab_size,
        state_width=state_width,
        aux=aux,
        kept=kept if _reduced(kept, vocab_size, tensors) else 0,
        rank=rank,
        windows=() if form == MTP else _windows(inner),
        own_embedding="embed_tokens.weight" in tensors,
        own_output=any(name.startswith("lm_head.") for name in tensors),
        fc_bias=bool(content.get("bias", True)) if form == EAGLE1 else False,
        **flags,
    )


def _gated(layer: LayerShape, query: torch.Tensor | None) -> LayerShape:
    """With gates, queries take twice the rows."""
    return replace(layer, gated=query is not None and len(query) == 2 * layer.heads * layer.head_size)


def _reduced(kept: int, vocab_size: int, tensors: Tensors) -> bool:
    """Whether a head knows a part of the target's tokens. Some files have ``d2t`` of nothing but zeros."""
    return kept != vocab_size or (D2T in tensors and bool(tensors[D2T].any()))


def _windows(inner: Mapping[str, Any]) -> tuple[int, ...]:
    kinds, window = inner.get("layer_types") or [], inner.get("sliding_window") or 0
    return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds) if window else ()


def _layer_ids(content: Mapping[str, Any], shape: EagleShape) -> tuple[int, ...] | None:
    nested = content.get("eagle_config")
    given = content.get("eagle_aux_hidden_state_layer_ids")
    if given is None and isinstance(nested, dict):
        given = nested.get("eagle_aux_hidden_state_layer_ids")
    if given is None or not shape.fuses:
        return None
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        raise ValueError(f"eagle_aux_hidden_state_layer_ids is {given!r}")
    if len(given) != shape.aux:
        raise ValueError(f"it names {len(given)} layers, and fc reads the states of {shape.aux}")
    return tuple(given)


def _mask_token(content: Mapping[str, Any], shape: EagleShape) -> int | None:
    if shape.form != PEAGLE:
        return None
    token = whole(content, "mask_token_id")
    if not 0 <= token < shape.vocab_size:
        raise ValueError(f"mask_token_id is {token}, and it has {shape.vocab_size} tokens")
    return token


def _is_norm(name: str) -> bool:
    return name.rpartition(".")[0].endswith("norm")


# writing


def write_head(
    folder: Path,
    head: EagleHead,
    rope: Mapping[str, Any],
    about: Provenance = UNSTATED,
    *,
    layer_ids: tuple[int, ...] | None = None,
    mask_token: int | None = None,
    names: str = SPECULATORS,
) -> None:
    """``rope`` are the keys of the configuration that the rotary embedding is made of. Only this project reads 8-bit
    integers and thin matrices."""
    shape = head.shape
    _check_layout(shape, names)
    tensors = with_tables(about.stored(head.state_dict()), shape.vocab_size)
    if names == SAFEAILAB:
        tensors = safeailab_names(tensors, shape.form)
    own = about.part(EaglePart, rank=shape.rank)
    layer = {**_layer_config(shape), **rope}
    public = _safeailab(shape, layer) if names == SAFEAILAB else _speculators(shape, layer, layer_ids, mask_token)
    write_folder(folder, tensors, {**public, "paceline": asdict(own)})


def _check_layout(shape: EagleShape, names: str) -> None:
    flagged = [flag for flag in FLAGS if getattr(shape, flag)]
    if names == SAFEAILAB and (shape.form in (PEAGLE, MTP) or shape.layers > 1 or flagged):
        more = flagged[0] if flagged else f"{shape.layers} layers of {shape.form!r}"
        raise InputError(f"the layout of SafeAILab has no {more}; write the head in that of speculators")
    if names == SPECULATORS and shape.form in (EAGLE1, MTP):
        raise InputError(f"a head of form {shape.form!r} is not written in the layout of speculators")


def _layer_config(shape: EagleShape) -> dict[str, Any]:
    layer = shape.layer
    return {
        "model_type": "qwen3" if layer.head_norms else "llama",
        "hidden_size": layer.width,
        "intermediate_size": layer.units,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_size,
        "num_hidden_layers": shape.layers,
        "rms_norm_eps": layer.eps,
        "attention_bias": layer.bias,
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
    }


def _safeailab(shape: EagleShape, layer: Mapping[str, Any]) -> dict[str, Any]:
    if shape.form == EAGLE1:
        return {"architectures": ["LlamaForCausalLMEagle"], **layer, "bias": shape.fc_bias}
    sizes = {"draft_vocab_size": shape.known}
    if shape.state_width != shape.width:
        sizes["target_hidden_size"] = shape.state_width
    return {"architectures": ["LlamaForCausalLMEagle3"], **layer, **sizes}


def _speculators(
    shape: EagleShape, layer: Mapping[str, Any], layer_ids: tuple[int, ...] | None, mask_token: int | None
) -> dict[str, Any]:
    named = {EAGLE3: "Eagle3Speculator", PEAGLE: "PEagleSpeculator"}[shape.form]
    return {
        "architectures": [named],
        "speculators_model_type": shape.form,
        "speculators_config": {"algorithm": shape.form},
        "transformer_layer_config": dict(layer),
        "draft_vocab_size": shape.known,
        "target_hidden_size": None if shape.state_width == shape.width else shape.state_width,
        "eagle_aux_hidden_state_layer_ids": None if layer_ids is None else list(layer_ids),
        **{flag: getattr(shape, flag) for flag in FLAGS},
        **({} if mask_token is None else {"mask_token_id": mask_token}),
    }
