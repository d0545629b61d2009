"""The lean path: the forward of a llama without what transformers wraps around it.

One row of a small model costs transformers more in Python than in arithmetic. Here a layer is some twenty operations,
and what depends on the forward and not on the layer is computed once. Operations and their order are those of the
model's own modules, so rows are equal bit by bit where kernels are. Weights are read from the modules in every forward,
and linear layers are called as modules. Only tables of rotary angles are kept. At load the rows must agree with the
model's own (`probe`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn

from paceline.targets.hf.attention import AttentionOptions, KVCache, MaskScratch, Segment
from paceline.targets.hf.operations import CosSin, Heads, Operations
from paceline.targets.hf.own import Mode, OwnForward, joined
from paceline.targets.hf.path import UNTESTED_ERRORS, ForwardJob, ForwardPath, Found, Outputs, Taps
from paceline.targets.hf.snapshot import DefinitionSnapshot, origin
from paceline.targets.hf.streams import StreamPass
from paceline.targets.hf.variants import Layer, LlamaModules, modules_of
from paceline.targets.streams import LookAhead, Streams

TABLE = 1024
"""Positions that are computed together, so that an angle does not depend on how long the table is."""


class Lean(ForwardPath):
    """Computes models that `variants` knows. The model's own path gives it the mode and the early exit."""

    def __init__(self, own: OwnForward, operations: Operations | None = None) -> None:
        self._own = own
        self._operations = operations or Operations()
        self._modules, self._changes = self.known(own.model), own.changes
        classes = map(type, own.model.modules())
        self._definitions = DefinitionSnapshot(known for known in classes if origin(known) == "transformers")
        self._rotary = RotaryTable()
        self._scratch = MaskScratch()
        self.trusted = False
        """Whether its rows were compared with the model's own. From then on the model's own path answers errors."""

    @classmethod
    def of(cls, own: OwnForward) -> Self | None:
        """None for models of another structure."""
        made = cls(own)
        return None if made._modules is None else made

    @staticmethod
    def known(model: Any) -> LlamaModules | None:
        """The modules of a model that this computes."""
        return modules_of(model)

    def takes(self, job: ForwardJob) -> bool:
        return self.ready()

    def ready(self) -> bool:
        """Whether the model is one that this computes."""
        if self._changes != self._own.changes:
            self._changes = self._own.changes
            self._look_again()
        return self._modules is not None and self._own.mode is Mode.PACKED

    def _look_again(self) -> None:
        self._modules = self.known(self._own.model) if self._definitions.unchanged() else None

    def run(self, job: ForwardJob) -> Found:
        try:
            return self._run(job)
        except torch.OutOfMemoryError:
            raise
        except UNTESTED_ERRORS as error:
            if not self.trusted:
                raise
            found = self._own.run(job)  # raises again what is the model's own error
            self._modules = None  # until the model changes
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"layers are left to transformers, which costs speed and nothing else: {why}", UserWarning, 2)
            return found

    def _run(self, job: ForwardJob) -> Found:
        return self.computed(*self._begun(job), job.outputs)

    def _begun(self, job: ForwardJob) -> tuple[torch.Tensor, CosSin, KVCache]:
        """Embeddings, angles and rows of a forward."""
        modules = self.modules
        rows = self._operations.cache(Segment.of_all(job.requests, self._scratch))
        device = modules.norm.weight.device
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        positions = torch.from_numpy(joined([request.positions for request in job.requests]))
        states: torch.Tensor = modules.embedding(tokens[None].to(device))
        end = max(request.end for request in job.requests)
        return states, self._rotary.at(positions.to(device), end, modules.rotary, states), rows

    def streamed(self, asked: Sequence[LookAhead], streams: Streams) -> torch.Tensor | None:
        if not self.ready():
            return None
        rotary, like = self.modules.rotary, torch.as_tensor(asked[0].state)
        return StreamPass(self.modules, self._operations, streams).logits(
            asked, lambda positions, end: self._rotary.at(positions, end, rotary, like)
        )

    @property
    def modules(self) -> LlamaModules:
        assert self._modules is not None, "only jobs that were taken are run"
        return self._modules

    def computed(
        self,
        states: torch.Tensor,
        cos_sin: CosSin,
        rows: KVCache,
        outputs: Outputs,
        operations: Operations | None = None,
    ) -> Found:
        """The forward from embeddings ``[1, sum n, width]`` on."""
        modules, taps, operations = self.modules, Taps(), operations or self._operations
        last, more = len(modules.layers), None
        for number, layer in enumerate(modules.layers):
            states, given = _entering(states, more, layer.before, operations)
            self._tap(number, states, outputs, taps)
            place = layer.attention.layer_idx  # its number in the cache; layers may have been removed or reordered
            query = operations.placed(self._joint(layer, given), layer, place, cos_sin, rows)
            ends = number == last - 1 and last not in outputs.want.hidden
            if ends and not outputs.logits:
                return Found(None, taps)  # a prompt's last layer only has to write its keys and values
            options = AttentionOptions(layer.attention.scaling, layer.window(layer.attention))
            mixed = rows.attend(place, query, options).transpose(1, 2)
            if ends:
                states, mixed = select(outputs.logit_rows, states), select(outputs.logit_rows, mixed)
            out = layer.out(mixed.reshape(1, states.shape[1], -1))
            states, given = operations.added(states, out, layer.between)
            more = self._mlp(layer, given, operations)
        final = _entering(states, more, modules.norm, operations)[1]
        if last not in outputs.want.hidden:
            return Found(modules.head(final)[0], taps)
        taps.hidden[last] = final[0]
        if not outputs.logits:
            return Found(None, taps)
        return Found(modules.head(select(outputs.logit_rows, final))[0], taps)

    def _joint(self, layer: Layer, given: torch.Tensor) -> Heads:
        n, width = given.shape[1], layer.attention.head_dim
        if layer.qkv_joint is None:
            apart = [linear(given) for linear in layer.qkv]
            together, sizes = torch.cat(apart, dim=-1), [part.shape[-1] for part in apart]
        else:
            together, sizes = layer.qkv_joint(given), [part.out_features for part in layer.qkv_joint.slices]
        return Heads(together.view(1, n, -1, width), sizes[0] // width, sizes[1] // width)

    def _mlp(self, layer: Layer, given: torch.Tensor, operations: Operations) -> torch.Tensor:
        if layer.gate_up_joint is None:
            gate, up = layer.gate(given), layer.up(given)
        else:
            gate, up = layer.gate_up_joint(given).chunk(2, dim=-1)
        result: torch.Tensor = layer.down(operations.gated(gate, up, layer.act))
        return result

    def _tap(self, number: int, states: torch.Tensor, outputs: Outputs, taps: Taps) -> None:
        """Record the states that enter a layer, where they are wanted."""
        if number in outputs.want.hidden:
            taps.hidden[number] = states[0]
        if number == outputs.want.early_exit:
            taps.early = self._own.anatomy.unembed(outputs.leaving(states[0]))
            outputs.on_exit(taps.early)


def _entering(
    states: torch.Tensor, more: torch.Tensor | None, norm: Any, operations: Operations
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states that enter a layer, and their norm; ``more`` is what the layer before adds to them."""
    return (states, operations.norm(states, norm)) if more is None else operations.added(states, more, norm)


def select(rows: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """The packed rows of these numbers, or all."""
    return states if rows is None else states[:, rows.to(states.device)]


class RotaryTable:
    """The output of a model's rotary module for each position, kept until the module's frequencies change. On other
    devices than the CPU that comparison would wait for all work before it, so there the module is called."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], torch.Tensor] = {}
        """By the scale of the angles and the type of the floats: one model may be computed in two types in turns."""
        self._frequencies = torch.empty(0)

    def at(self, positions: torch.Tensor, end: int, rotary: Any, like: torch.Tensor) -> CosSin:
        """For positions short of ``end``."""
        if like.device.type != "cpu":
            return cos_sin_at(positions, rotary, like)
        cosines, sines = self.upto(end, rotary, like).index_select(0, positions).unbind(1)
        return cosines, sines

    def upto(self, end: int, rotary: Any, like: torch.Tensor) -> torch.Tensor:
        """Cosines and sines ``[positions, 2, 1, width]`` of all positions short of ``end``, on the CPU."""
        frequencies, made_for = rotary.inv_freq, (rotary.attention_scaling, like.dtype)
        if not _same(frequencies, self._frequencies):
            self._tables, self._frequencies = {}, frequencies.clone()
        table = self._tables.get(made_for)
        if table is None or end > len(table):
            size = -(-max(end, 0 if table is None else 2 * len(table)) // TABLE) * TABLE
            blocks = torch.arange(size).split(TABLE)
            table = torch.cat([torch.stack(cos_sin_at(block, rotary, like), dim=1) for block in blocks])
            self._tables[made_for] = table
        return table


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By value: writing to a tensor's data leaves no other trace."""
    return one.dtype == other.dtype and torch.equal(one, other)


def cos_sin_at(positions: torch.Tensor, rotary: nn.Module, like: torch.Tensor) -> CosSin:
    """Of positions ``[n]``, computed by the model's rotary module."""
    cosines, sines = rotary(like, positions[None])
    half = sines.shape[-1] // 2
    signed = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    return cosines[0].unsqueeze(1), signed[0].unsqueeze(1)
