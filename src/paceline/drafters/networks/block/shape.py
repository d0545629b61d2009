"""The sizes of a block head, and the public configurations that state them.

Three layouts are read: z-lab's (DFlash, DFlash2; JetSpec's is the same with ``causal_head``), that of `speculators`
(``dflash``, ``dflash2``, ``dspark``) and DeepSeek's own for DSpark, which is flat. They number the target's layers in
two ways. `speculators` names states as transformers does, 0 for the embeddings; the others name layers, whose outputs
are one further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from paceline.drafters.networks.checkpoint import parsing, whole
from paceline.drafters.networks.heads import CONFIG
from paceline.drafters.networks.layers import LayerShape, layer_shape
from paceline.drafters.networks.rotary import Rotary
from paceline.errors import InputError

Markov = Literal["vanilla", "gated", "rnn"]
SPECULATORS = "speculators_model_type"
SLIDING, FULL = "sliding_attention", "full_attention"
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
"""Qwen3's, which a configuration of its kind leaves out where they hold. Qwen2's are the same but for ``head_dim``."""
QWEN = ("qwen2", "qwen3")
FROM_ANCHOR = ("sample_from_anchor", "draft_shift", "shift_label")
"""Names of one setting: whether the anchor's row predicts, too."""
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "max_position_embeddings")
"""Keys that `Rotary.of` reads."""
OTHER_KINDS = {"domino": "Domino", "xpress": "XPress", "lilicorr": "LiLiCorr"}
"""Relatives of DFlash whose corrections are computed otherwise, by a part of a tensor's name or of the
``projector_type``."""


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """The sizes of a head, for a target of ``width`` channels and ``vocab_size`` ids."""

    layer: LayerShape
    vocab_size: int
    block: int
    """Rows of a block: the anchor, which is the text's last token, and mask tokens."""
    mask_token: int
    states: tuple[int, ...]
    """The target's states that it reads, numbered as in `Want.hidden`."""
    windows: tuple[int | None, ...]
    """Of each layer: how far it sees back; None without a limit."""
    causal: tuple[bool, ...]
    """Of each layer: whether a row of the block sees only rows before it."""
    window_of_anchor: bool = False
    """Whether a window is counted from the anchor, for all rows of a block, or from each row."""
    from_anchor: bool = False
    """Whether the anchor's row predicts, too: row *i* then predicts the token behind it, and else its own."""
    target_layers: int = 0
    """Layers of the target; 0 where nothing is said."""
    rope: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The rotary embedding, as transformers' configurations state it (`Rotary.of`)."""
    embedding_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float = 0.0
    own_embedding: bool = False
    """Whether it has input embeddings, or reads the target's."""
    own_output: bool = False
    """Whether it has an output matrix, or uses the target's."""
    rank: int = 0
    """The width between two thin output matrices; 0 for one whole matrix."""
    kept: int = 0
    """How many of the target's tokens it predicts; 0 for all."""
    own_mask: bool = False
    """Whether the mask token has an embedding of its own."""
    taps: int = 0
    """Taps of the convolutions around attention and MLP; 0 without any."""
    group: int = 16
    """Channels that share a kernel of these."""
    selector_rank: int = 0
    """Of the selector among candidates; 0 without it."""
    selector_top: int = 16
    markov_rank: int = 0
    """Of the bias by the token before; 0 without it."""
    markov: Markov = "vanilla"
    confidence: bool = False
    confidence_reads_markov: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block", "layers", "group"):
            if (size := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {size}, and a block head has at least 1")
        for name in ("rank", "kept", "taps", "selector_rank", "markov_rank"):
            if (size := getattr(self, name)) < 0:
                raise ValueError(f"{name} is {size}, and cannot be negative")
        if self.places < 1:
            raise ValueError(f"block_size is {self.block}, and so small a block predicts nothing")
        if self.taps and (self.width % self.group or self.taps > self.block):
            raise ValueError(f"convolutions of {self.taps} taps in groups of {self.group} do not fit {self.width}")
        if not self.states or min(self.states) < 0:
            raise ValueError(f"the target's layers are {list(self.states)}")
        if self.markov not in get_args(Markov):
            raise ValueError(f"markov_head_type is {self.markov!r}, not {', '.join(get_args(Markov))}")
        if not 0 <= self.mask_token < self.vocab_size:
            raise ValueError(f"mask_token_id is {self.mask_token}, and its vocabulary has {self.vocab_size} tokens")
        if self.kept > self.vocab_size:
            raise ValueError(f"it cannot know {self.kept} of {self.vocab_size} tokens")
        if self.kept and not self.own_output:
            raise ValueError("it knows a part of the tokens, and has no lm_head for them")

    @property
    def width(self) -> int:
        """Channels of its layers, and of the target's states."""
        return self.layer.width

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def places(self) -> int:
        """The tokens that a block predicts."""
        return self.block - (not self.from_anchor)

    @property
    def known(self) -> int:
        """The number of tokens it predicts."""
        return self.kept or self.vocab_size


def read_shape(config: Mapping[str, Any], names: frozenset[str], folder: Path) -> BlockShape:
    """The shape that a public configuration states. ``names`` are those of the tensors beside it: which of them there
    are decides what is the head's own."""
    for part, kind in OTHER_KINDS.items():
        if any(part in name for name in names) or _inner(config).get("projector_type") == part:
            raise InputError(
                f"the head in {folder} is one of {kind}, whose corrections paceline does not compute; choose a head of "
                f"DFlash, DFlash2, DSpark or JetSpec"
            )
    with parsing(f"{CONFIG} of the head in {folder}"):
        shape = _Reading(config, names).shape()
    stated = {**config, **_inner(config)}.get("target_hidden_size")
    if stated not in (None, shape.width):
        raise InputError(
            f"the head in {folder} is {shape.width} wide and its target {stated}, which paceline does not compute; "
            f"choose a head that is as wide as its target"
        )
    return shape


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("dflash_config")
    return inner if isinstance(inner, dict) else config


class _Reading:
    """One configuration, being read."""

    def __init__(self, config: Mapping[str, Any], names: frozenset[str]) -> None:
        self._names, self._kind = names, str(config.get(SPECULATORS, ""))
        layers = config.get("transformer_layer_config") if self._kind else config
        if not isinstance(layers, dict):
            raise ValueError("transformer_layer_config is no JSON object")
        model_type = layers.get("model_type") or "qwen3"
        if layers.get("head_dim") is None and model_type != "qwen3":
            layers = {**layers, "head_dim": whole(layers, "hidden_size") // whole(layers, "num_attention_heads")}
        if layers.get("hidden_activation") is not None:  # as Gemma's are called
            layers = {**layers, "hidden_act": layers["hidden_activation"]}
        self._layers: Mapping[str, Any] = {**(DEFAULTS if model_type in QWEN else {}), **layers}
        self._own: Mapping[str, Any] = {**config, **_inner(config)}

    def shape(self) -> BlockShape:
        own, layers = self._own, self._layers
        for name in ("hidden_size", "intermediate_size", "num_attention_heads"):  # only Qwen's may be left out
            whole(layers, name)
        windows, rope = self._windows(), {key: layers[key] for key in ROPE if key in layers}
        Rotary.of(rope, whole(layers, "head_dim"))
        return BlockShape(
            layer=layer_shape(layers, dict.fromkeys(self._names), "layers.0"),
            vocab_size=whole(layers, "vocab_size"),
            block=whole(own, "block_size"),
            mask_token=whole(own, "mask_token_id"),
            states=self._states(),
            windows=windows,
            causal=self._causal(windows),
            window_of_anchor=bool(self._kind) and any(windows),
            from_anchor=self._from_anchor(),
            target_layers=whole(own, "num_target_layers") if own.get("num_target_layers") is not None else 0,
            rope=rope,
            embedding_scale=float(own.get("input_embedding_scale") or 1.0),
            output_scale=float(own.get("output_multiplier") or own.get("logit_scale") or 1.0),
            softcap=float(own.get("final_logit_softcapping") or 0.0),
            own_embedding="embed_tokens.weight" in self._names,
            own_output=any(name.startswith("lm_head.") for name in self._names),
            kept=self._kept(),
            **self._ties(),
        )

    @property
    def _is_dspark(self) -> bool:
        return self._kind == "dspark" or (not self._kind and self._own.get("markov_rank") is not None)

    def _from_anchor(self) -> bool:
        stated = (self._own.get(name) for name in FROM_ANCHOR)
        return bool(next((each for each in stated if each is not None), self._is_dspark))

    def _states(self) -> tuple[int, ...]:
        key = "aux_hidden_state_layer_ids" if self._kind else "target_layer_ids"
        found = self._own.get(key)
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise ValueError(f"{key} is {found!r}, not a list of layers")
        return tuple(found) if self._kind else tuple(each + 1 for each in found)

    def _slides(self) -> tuple[bool, ...]:
        """Of each layer: whether its attention is called sliding."""
        layers = self._layers
        count, given = whole(layers, "num_hidden_layers"), layers.get("layer_types")
        if given is None:
            stated = layers.get("use_sliding_window") and layers.get("max_window_layers") is not None
            first = whole(layers, "max_window_layers") if stated else count
            return tuple(number >= first for number in range(count))
        if not isinstance(given, list) or len(given) != count or any(each not in (SLIDING, FULL) for each in given):
            raise ValueError(f"layer_types is {given!r} for {count} layers")
        return tuple(each == SLIDING for each in given)

    def _windows(self) -> tuple[int | None, ...]:
        layers, own, slides = self._layers, self._own, self._slides()
        if own.get("use_swa") and not any(slides):
            window = whole({**layers, **own}, "swa_window_size" if "swa_window_size" in own else "sliding_window")
            return (window,) * len(slides)
        if not layers.get("use_sliding_window", True) or layers.get("sliding_window") is None:
            return (None,) * len(slides)
        window = whole(layers, "sliding_window")
        return tuple(window if slide else None for slide in slides)

    def _causal(self, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
        """Without a word of it sliding layers are causal, and others see the whole block."""
        own = self._own
        if self._kind:
            both = bool(own.get("sliding_window_non_causal", self._kind == "dflash2"))
            return tuple(window is not None and not both for window in windows)
        for key in ("is_causal", "causal", "causal_head"):
            if own.get(key) is not None:
                return (bool(own[key]),) * len(windows)
        return self._slides()

    def _kept(self) -> int:
        size = self._own.get("draft_vocab_size")
        if size is None or size == self._layers["vocab_size"]:
            return 0
        return whole(self._own, "draft_vocab_size")

    def _ties(self) -> dict[str, Any]:
        """What ties a token to the one before it."""
        own, found = self._own, dict[str, Any]()
        if any(name.startswith("layers.0.attention_conv.") for name in self._names):
            found |= {"taps": int(own.get("conv_kernel_size", 2)), "group": int(own.get("conv_group_size", 16))}
        if any(name.startswith("candidate_selector.") for name in self._names):
            found["selector_rank"] = int(own.get("selector_rank", 256))
            found["selector_top"] = int(own.get("selector_top_k", 16))
        if any(name.startswith("markov_head.") for name in self._names):
            found["markov_rank"] = int(own.get("markov_rank", 256))
            found["markov"] = str(own.get("markov_head_type", "vanilla"))
        if any(name.startswith("confidence_head.") for name in self._names):
            found["confidence"] = True
            found["confidence_reads_markov"] = bool(own.get("confidence_head_with_markov", bool(self._kind)))
        return found
