"""The keys and values of a block of slots, written and read by kernels."""

from __future__ import annotations

import torch

from paceline.targets.hf.attention import AttentionOptions, KVCache
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.shapes import ForwardShape
from paceline.targets.hf.fixed.slab import Slab
from paceline.targets.hf.gpu import running


class KernelBlock(KVCache):
    """What `Block` is with torch's operations. It reads a text as far as it goes, so shapes need no length."""

    def __init__(self, slab: Slab, shape: ForwardShape, inputs: Inputs) -> None:
        self._slab, self.inputs = slab, inputs
        self._slots = slice(shape.first, shape.first + shape.count)

    def slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer."""
        return self._slab.keys[layer][self._slots], self._slab.values[layer][self._slots]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        running.write((keys, values), self.slots(layer), self.inputs)

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        return running.attend(query, self.slots(layer), self.inputs, options)
