"""The layers of a head as one compiled call, beside a target whose forward is one.

Called one by one, the operations of a small layer cost more than their arithmetic. The rows are those of the head's
own modules (`layers`), up to rounding: matrices become 8-bit integers. Loads numba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Self

import numpy as np
import torch
from torch import nn

from paceline.drafters.networks.layers import DecoderLayer, compilable
from paceline.drafters.networks.rotary import Rotary
from paceline.targets.base import Request
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.placed import PlacedLayers, Unplaceable, Workspace, rows_of, texts_of
from paceline.targets.hf.fused.team import TEAM
from paceline.targets.hf.fused.weights import Weights, of_bytes, rounded_product
from paceline.targets.hf.integers.kernels import Compiled, obstacle
from paceline.targets.hf.integers.linear import Int8Linear, quantized
from paceline.targets.hf.integers.operations import value_step
from paceline.targets.hf.threads import compiled_threads
from paceline.targets.hf.variants import Layer

LEAST = 1 << 18
"""Weights of fewer values are left to torch: preparing a call costs more than computing it with all threads saves."""
NO_WINDOWS: Mapping[int, int] = MappingProxyType({})


class CompiledLinear(nn.Module):
    """A linear layer in 8-bit integers, as a compiled product by the threads of compiled forwards.

    What a draft takes is the reading of its weights, and it need not be exact.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias, self.out_features = layer.bias, layer.out_features
        self.weights = integer_weights(layer)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = rounded_product(rows.reshape(-1, rows.shape[-1]), self.weights)
        if self.bias is not None:
            found += self.bias
        return found.view(*rows.shape[:-1], self.out_features).to(rows.dtype)


def integer_weights(layer: nn.Module) -> Weights:
    """The weight of a linear layer in 8-bit integers."""
    if isinstance(layer, CompiledLinear):
        return layer.weights
    assert isinstance(layer, nn.Linear), "heads multiply by linear layers"
    return of_bytes(*quantized(layer.weight.detach()))


def compile_linears(head: nn.Module, parts: Sequence[nn.Module]) -> None:
    """Have the large linear layers of a head compiled, but for those in ``parts``, which are compiled as a whole."""
    if obstacle() is not None:
        return
    left_out = {id(module) for part in parts for module in part.modules()}
    for module in list(head.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and id(layer) not in left_out and layer.weight.numel() >= LEAST:
                setattr(module, name, CompiledLinear(layer))


class CompiledLayers:
    """Layers over the rows of texts."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        rotary: Rotary,
        given: bool,
        skipped: int,
        windows: Mapping[int, int],
        integers: bool,
    ) -> None:
        """``skipped`` and ``windows`` are those of `TextRows`. What the first layer reads may be ``given``, beside the
        states that it adds to. Matrices become ``integers`` where that is possible. `Unplaceable` where a layer is
        another than the compiled ones are."""
        layers = compilable(layers, rotary)
        if not layers:
            raise Unplaceable
        steps = _in_integers(layers) if integers else None
        placed = [_placed(layer, windows.get(number), given and not number) for number, layer in enumerate(layers)]
        self._weights, self._rotary, self._skipped = PlacedLayers(placed, steps), rotary, skipped
        self._space, self._dtype = Workspace(self._weights), layers[0].post_attention_layernorm.weight.dtype

    @classmethod
    def of(
        cls,
        layers: Sequence[DecoderLayer],
        rotary: Rotary,
        *,
        given: bool = False,
        skipped: int = 0,
        windows: Mapping[int, int] = NO_WINDOWS,
        integers: bool = False,
    ) -> Self | None:
        """None where they are computed in another way."""
        try:
            return cls(layers, rotary, given, skipped, windows, integers)
        except Unplaceable:
            return None

    def takes(self, requests: Sequence[Request]) -> bool:
        """False for a tree behind fewer rows than are skipped: it lists these one by one."""
        return all(request.is_chain or request.rows.committed >= self._skipped for request in requests)

    def __call__(
        self, requests: Sequence[Request], states: torch.Tensor, read: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The states ``[rows, width]`` behind the layers. Keys and values are written to the requests' rows."""
        weights = self._weights
        for request in requests:
            request.rows.note(request.tokens, request.held)
        found = states.to(torch.float32, copy=True).contiguous()
        rows, further = rows_of(requests)
        texts = texts_of(requests, weights)
        places = np.array([text.ctypes.data for text in texts], np.int64)
        end = max(request.end for request in requests)
        angles, chosen = self._rotary.upto(end), np.arange(len(found))
        job = weights.job.copy()
        job[at.THREADS], job[at.COUNT], job[at.CHOSEN] = compiled_threads(), len(found), len(found)
        job[at.FIRST], job[at.LAST], job[at.SKIPPED] = 0, len(weights.layers), self._skipped
        job[at.STATES] = found.data_ptr()
        if read is not None:
            read = read.float().contiguous()
            job[at.GIVEN], job[at.GIVEN_WIDTH] = read.data_ptr(), read.shape[-1]
        job[at.ROWS], job[at.EXTRAS], job[at.TEXTS] = rows.ctypes.data, further.ctypes.data, places.ctypes.data
        job[at.ANGLES], job[at.CHOICE] = angles.data_ptr(), chosen.ctypes.data
        self._space.into(job, len(found), end)
        TEAM.run(job)
        return found.to(self._dtype)


def _in_integers(layers: Sequence[DecoderLayer]) -> dict[int, float] | None:
    """Have the matrices of float32 layers multiplied in 8-bit integers, a quarter of the bytes to read; returns the
    steps to which values are rounded then. None where they stay as they are, as those in bfloat16 do: of a layer whose
    attention reads what is not normed, nobody knows how large its values are."""
    floats = all(layer.post_attention_layernorm.weight.dtype == torch.float32 for layer in layers)
    if not floats or obstacle() is not None or not all(layer.norms_before for layer in layers):
        return None
    for layer in layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if type(linear) is nn.Linear:
                    setattr(part, name, Int8Linear(linear, kernel=Compiled))
    return {layer.self_attn.number: _step(layer) for layer in layers}


def _step(layer: DecoderLayer) -> float:
    norms = torch.cat([norm.weight for norm in layer.norms_before])
    return value_step(layer.self_attn.v_proj, norms, None)


def _placed(layer: DecoderLayer, window: int | None, given: bool) -> Layer:
    """A head's layer, as tables of layers are made of it."""
    attention, mlp, size = layer.self_attn, layer.mlp, layer.self_attn.shape.head_size
    return Layer(
        before=None if given else layer.input_layernorm,
        qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
        qkv_joint=None,
        norms=(attention.q_norm, attention.k_norm) if attention.shape.head_norms else None,
        attention=SimpleNamespace(layer_idx=attention.number, head_dim=size, scaling=size**-0.5),
        window=lambda _: window,
        out=attention.o_proj,
        between=layer.post_attention_layernorm,
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        gate_up_joint=None,
        act=nn.SiLU(),
        down=mlp.down_proj,
    )
