"""Rotary embeddings of trained heads, by the configurations in which transformers writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

TABLE = 1024
"""Positions whose angles are computed together."""
ROTARIES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embeddings whose angles depend on the position alone."""

Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines."""


class Rotary:
    """Turns queries and keys by their positions. Frequencies are in float32 whatever type the head has, so they are no
    buffer of a module."""

    def __init__(self, frequencies: torch.Tensor, scale: float = 1.0) -> None:
        self._on, self._scale = {frequencies.device: frequencies}, scale
        self._table = torch.empty(0)

    @classmethod
    def of(cls, config: Mapping[str, Any], head_size: int) -> Rotary:
        """From a configuration as transformers writes it; ValueError where it cannot be read."""
        given = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        kind = str(given.get("rope_type", given.get("type", "default")))
        if kind not in ROTARIES:
            raise ValueError(f"its rotary embedding is {kind!r}, and heads have {', '.join(ROTARIES)}")
        base = float(given.get("rope_theta", config.get("rope_theta", 10_000.0)))
        part = float(given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
        size = int(head_size * part)
        if size % 2 or not 0 < size <= head_size or not base > 0:
            raise ValueError(f"its rotary embedding turns {size} of {head_size} channels, with the base {base:g}")
        shares = torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size
        frequencies = 1.0 / base**shares
        length = given.get("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
        if kind == "linear":
            return cls(frequencies / float(given["factor"]))
        if kind == "llama3":
            return cls(_llama3(frequencies, given, float(length)))
        return cls(*_yarn(frequencies, given, float(length), base)) if kind == "yarn" else cls(frequencies)

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines ``[..., rows, 1, size]`` at these positions."""
        if (frequencies := self._on.get(positions.device)) is None:
            frequencies = self._on[positions.device] = next(iter(self._on.values())).to(positions.device)
        angles = positions[..., None].float() * frequencies
        angles = torch.cat([angles, angles], dim=-1)[..., None, :]
        return (angles.cos() * self._scale).to(dtype), (angles.sin() * self._scale).to(dtype)

    @property
    def size(self) -> int:
        """How many channels of a head it turns."""
        return 2 * len(next(iter(self._on.values())))

    def upto(self, end: int) -> torch.Tensor:
        """Cosines and sines ``[positions, 2, size]`` of all positions short of ``end``, kept on the host for the next
        time; sines of the first half of a head are negated."""
        table = self._table  # another thread may replace it by a shorter one
        if end > len(table):
            positions = torch.arange(-(-max(end, 2 * len(table)) // TABLE) * TABLE, device="cpu")
            cosines, sines = self.at(positions, torch.float32)
            sines = torch.cat([-sines[..., : self.size // 2], sines[..., self.size // 2 :]], dim=-1)
            table = self._table = torch.cat([cosines, sines], dim=-2).contiguous()
        return table


def _llama3(frequencies: torch.Tensor, given: Mapping[str, Any], length: float) -> torch.Tensor:
    """Long waves are slowed down, short ones are not, and those between are blended."""
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    waves = 2 * math.pi / frequencies
    share = ((length / waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (share + (1 - share) / float(given["factor"]))


def _yarn(
    frequencies: torch.Tensor, given: Mapping[str, Any], length: float, base: float
) -> tuple[torch.Tensor, float]:
    """Frequencies that turn rarely within the trained length are slowed down; and the scale of what is turned."""
    factor, half = float(given["factor"]), len(frequencies)

    def place(turns: float) -> float:
        return half * math.log(length / (turns * 2 * math.pi)) / math.log(base)

    first, last = place(float(given.get("beta_fast") or 32)), place(float(given.get("beta_slow") or 1))
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    slowed = ((torch.arange(half, dtype=torch.float32, device="cpu") - first) / max(last - first, 1e-3)).clamp(0, 1)
    return frequencies * (1 - slowed + slowed / factor), _yarn_scale(factor, given)


def _yarn_scale(factor: float, given: Mapping[str, Any]) -> float:
    if (stated := given.get("attention_factor")) is not None:
        return float(stated)
    scales = [float(given.get(name) or 0) for name in ("mscale", "mscale_all_dim")]
    grown = [0.1 * (scale or 1.0) * math.log(factor) + 1.0 if factor > 1 else 1.0 for scale in scales]
    return grown[0] / grown[1] if all(scales) else 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotated(rows: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Queries or keys, turned; channels behind those of the rotation stay."""
    cosines, sines = rotation
    size = cosines.shape[-1]
    turned, rest = rows[..., :size], rows[..., size:]
    one, other = turned.chunk(2, dim=-1)
    turned = turned * cosines + torch.cat([-other, one], dim=-1) * sines
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
