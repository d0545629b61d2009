"""Ballast: a bundled model, made wider and deeper by weights that do not change its function, at the cost of a big one.

Why the function is the same (``r`` is how many times wider the residual stream is, a power of 4):

- The stream has the small model's channels in front. The others are zero from the embedding on, since every matrix that
  writes into the stream has zeros in their rows.
- A norm divides by the root of mean square plus eps. Over ``r`` times as many channels, all new ones zero, the mean is
  ``1/r`` of what it was; with eps divided by ``r`` as well the normed state is ``sqrt(r)`` times too large, and norm
  weights divided by ``sqrt(r)``, a power of 2, undo that exactly.
- New heads, keys and MLP units are computed like any others, from real states; the columns that would write their
  results into the stream are zero. The size of heads and the number of heads that share a key stay the same.
- New layers compute everything and add zeros. The small model's layers are spread evenly among them, the last one at
  the very end, so that no early exit reads a finished model.
- New ids have so large a negative bias in the head that no law can choose them.

All weights are written, with noise or with zeros: memory that was never written is one shared page of zeros, and
reading it is faster than reading a model.
"""

from __future__ import annotations

import copy
import math

import torch

from paceline.targets.pocket.bundle import Bundle
from paceline.targets.pocket.llama import Config
from paceline.targets.pocket.shape import ModelShape, real_layers

IMPOSSIBLE = -60_000.0
"""The bias of a new id: finite in float16, and with weight 0 at any temperature below some hundreds."""
NOISE_SCALE = 0.02
NOISE_LENGTH = 1_048_573
"""Values of noise, which weights are copied from again and again. A prime number, so that no two rows begin alike."""

READ = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
WRITE = ("self_attn.o_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def widened_config(config: Config, shape: ModelShape) -> Config:
    """The small model's configuration in the large shape."""
    wide = copy.deepcopy(config)
    wide.hidden_size *= shape.ratio
    wide.num_attention_heads *= shape.ratio
    wide.num_key_value_heads *= shape.ratio
    wide.rms_norm_eps /= shape.ratio
    wide.num_hidden_layers = shape.layers
    wide.intermediate_size = shape.units
    wide.vocab_size = shape.vocab
    return wide


def widened(bundle: Bundle, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """All weights of the large model, in their final type and on their device. A padded vocabulary has a bias of zeros;
    `forbid` makes the new ids impossible."""
    return Widening(bundle, shape, NewWeights(dtype, device)).weights()


def forbid(bias: torch.Tensor, known: int) -> None:
    """Make all ids from ``known`` on impossible."""
    bias[known:] = IMPOSSIBLE


class NewWeights:
    """Makes new weights: noise that is the same on every machine, or zeros in separate memory."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        random = torch.Generator().manual_seed(0)
        noise = torch.randn(NOISE_LENGTH, generator=random) * NOISE_SCALE
        self._noise = noise.to(dtype).to(device)
        self._at = 0

    def noise(self, *shape: int) -> torch.Tensor:
        weight = self._noise.new_empty(shape)
        rest = weight.view(-1)
        while len(rest):
            piece = self._noise[self._at : self._at + len(rest)]
            rest[: len(piece)] = piece
            rest = rest[len(piece) :]
            self._at = (self._at + len(piece)) % NOISE_LENGTH
        return weight

    def zeros(self, *shape: int) -> torch.Tensor:
        return self._noise.new_empty(shape).fill_(0)


class Widening:
    """Makes the weights of the large model from those of a bundled one."""

    def __init__(self, bundle: Bundle, shape: ModelShape, fresh: NewWeights) -> None:
        self._small, self._weights = bundle.config, bundle.weights
        self._large = widened_config(bundle.config, shape)
        self._shape, self._fresh = shape, fresh

    def weights(self) -> dict[str, torch.Tensor]:
        wide = {
            "model.embed_tokens.weight": self._embedding(),
            "model.norm.weight": self._norm("model.norm.weight"),
        }
        if self._shape.vocab > self._small.vocab_size:
            wide["lm_head.bias"] = self._fresh.zeros(self._shape.vocab)
        real = real_layers(self._shape.layers, self._small.num_hidden_layers)
        for layer in range(self._shape.layers):
            wide |= self._layer(layer, real.get(layer))
        return wide

    def _embedding(self) -> torch.Tensor:
        """Also the head. New ids too are zero outside the real channels, so that the function holds for them."""
        small = self._weights["model.embed_tokens.weight"]
        wide = self._fresh.zeros(self._shape.vocab, self._large.hidden_size)
        known, channels = small.shape
        wide[:known, :channels] = small
        wide[known:, :channels] = self._fresh.noise(self._shape.vocab - known, channels)
        return wide

    def _norm(self, name: str | None) -> torch.Tensor:
        """New layers have norms of ordinary size, so that their states are."""
        wide = self._fresh.noise(self._large.hidden_size).add_(1 / math.sqrt(self._shape.ratio))
        if name is not None:
            small = self._weights[name]
            wide[: len(small)] = small.to(wide.dtype) / math.sqrt(self._shape.ratio)
        return wide

    def _layer(self, layer: int, real: int | None) -> dict[str, torch.Tensor]:
        """One layer of the large model; ``real`` is the small model's layer inside it, if there is one."""
        wide = {}
        for part in (*READ, *WRITE, *NORMS):
            source = f"model.layers.{real}.{part}.weight" if real is not None else None
            wide[f"model.layers.{layer}.{part}.weight"] = (
                self._norm(source) if part in NORMS else self._matrix(part, source)
            )
        return wide

    def _matrix(self, part: str, source: str | None) -> torch.Tensor:
        """Zeros for a matrix that writes into the stream, noise for one that reads it; the small matrix in front."""
        make = self._fresh.zeros if part in WRITE else self._fresh.noise
        wide = make(*self._size(part))
        if source is not None:
            small = self._weights[source]
            wide[: small.shape[0], : small.shape[1]] = small
        return wide

    def _size(self, part: str) -> tuple[int, int]:
        config = self._large
        inner = {
            "q_proj": config.num_attention_heads * config.head_dim,
            "o_proj": config.num_attention_heads * config.head_dim,
            "k_proj": config.num_key_value_heads * config.head_dim,
            "v_proj": config.num_key_value_heads * config.head_dim,
        }.get(part.rpartition(".")[2], config.intermediate_size)
        return (config.hidden_size, inner) if part in WRITE else (inner, config.hidden_size)
