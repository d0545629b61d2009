"""The lean path: a llama's forward without what transformers wraps around it.

One row of a small model costs transformers more in Python than in arithmetic. Here a layer is some twenty operations,
and everything that depends on the forward and not on the layer is done once. Operations and their order are those of
the model's own modules, so that rows are equal bit by bit where kernels are; the modules themselves are asked for
their weights anew in every forward, and linear layers are called, so that whatever an owner does to them counts. Of a
model only tables of its rotation are kept. At load rows must agree with the model's own (`probe`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from paceline.targets.hf.attention import Asked, MaskScratch, Part, by_part, write
from paceline.targets.hf.forward import Mode
from paceline.targets.hf.kinds import Build, Layer
from paceline.targets.hf.own import OwnForward, joined
from paceline.targets.hf.path import Found, Job, Path, Taps

FIRST_TABLE = 1024
"""Positions in the first table of a rotation; each further one has at least twice as many."""


class Lean(Path):
    """Computes models that `kinds` knows; holds on to the model's own path for its mode and its early exit."""

    def __init__(self, own: OwnForward, build: Build) -> None:
        self._own = own
        self._build: Build | None = build
        self._rotation = Rotation()
        self._scratch = MaskScratch()

    @classmethod
    def of(cls, own: OwnForward) -> Lean | None:
        """None for models of another structure."""
        build = Build.of(own.model)
        return None if build is None else cls(own, build)

    def takes(self, job: Job) -> bool:
        if self._build is None or not self._build.stands():
            self._build = Build.of(self._own.model)
        return self._build is not None and self._own.mode is Mode.PACKED

    def run(self, job: Job) -> Found:
        build = self.build
        rows = Packed(Part.of_all(job.requests, self._scratch))
        device = build.norm.weight.device
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        positions = torch.from_numpy(joined([request.positions for request in job.requests]))
        states: torch.Tensor = build.embedding(tokens[None].to(device))
        end = max(request.end for request in job.requests)
        turns = self._rotation.at(positions.to(device), end, build.rotary, states)
        return self.computed(states, turns, rows, job)

    @property
    def build(self) -> Build:
        assert self._build is not None, "only jobs that were taken are run"
        return self._build

    def computed(self, states: torch.Tensor, turns: Turns, rows: Cached, job: Job) -> Found:
        """From embeddings ``[1, sum n, width]`` to what is found; needs nothing of the job but what it wants."""
        build, taps = self.build, Taps()
        last = len(build.layers)
        for number, layer in enumerate(build.layers):
            self._tap(number, states, job, taps)
            query = _written(layer, number, _normed(states, layer.before), turns, rows)
            if number == last - 1 and not any(job.logits_of) and last not in job.want.hidden:
                return Found(None, taps)  # of a prompt's last layer only keys and values are ever read
            asked = Asked(layer.attention.scaling, layer.window(layer.attention))
            seen = rows.seen(number, query, asked)
            states = states + layer.out(seen.transpose(1, 2).reshape(1, states.shape[1], -1))
            states = states + _moved(layer, _normed(states, layer.between))
        return self._finish(build, states, job, taps)

    def _finish(self, build: Build, states: torch.Tensor, job: Job, taps: Taps) -> Found:
        """Through the last norm and the head, for the rows that are asked for."""
        last, rows = len(build.layers), job.logit_rows
        if last in job.want.hidden:
            taps.hidden[last] = _normed(states, build.norm)[0]
        if not any(job.logits_of):
            return Found(None, taps)
        if rows is not None:
            states = states[:, rows.to(states.device)]
        logits: torch.Tensor = build.head(_normed(states, build.norm))
        return Found(logits[0], taps)

    def _tap(self, number: int, states: torch.Tensor, job: Job, taps: Taps) -> None:
        """Show the states that are about to enter a layer."""
        if number in job.want.hidden:
            taps.hidden[number] = states[0]
        if number == job.want.early_exit:
            taps.early = self._own.anatomy.unembed(states[0])
            job.early(taps.early)


Turns = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines ``[n, 1, width]`` of each row's angles, the sines of the first half of a head negated."""


class Cached(Protocol):
    """The rows of a forward, as its layers write and read them, ``[1, heads, sum n, width]``."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None: ...

    def seen(self, layer: int, query: torch.Tensor, asked: Asked) -> torch.Tensor:
        """What attention finds for the rows that were just written."""
        ...


class Packed:
    """Each sequence's rows in buffers of its own."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        write(self._parts, layer, keys, values)

    def seen(self, layer: int, query: torch.Tensor, asked: Asked) -> torch.Tensor:
        return by_part(self._parts, layer, query, asked)


def _written(layer: Layer, number: int, given: torch.Tensor, turns: Turns, rows: Cached) -> torch.Tensor:
    """Queries ``[1, heads, n, width]`` of one layer, whose keys and values are cached from here on."""
    n, width = given.shape[1], layer.attention.head_dim
    if layer.reads_joined is None:
        apart = [read(given) for read in layer.reads]
        queries, keys, _ = (read.shape[-1] // width for read in apart)
        together = torch.cat(apart, dim=-1)
    else:
        queries, keys, _ = (share.out_features // width for share in layer.reads_joined.shares)
        together = layer.reads_joined(given)
    heads = together.view(1, n, -1, width)
    turning, value = heads[:, :, : queries + keys], heads[:, :, queries + keys :]
    if layer.norms is not None:
        query, key = turning.split((queries, keys), dim=2)
        turning = torch.cat((_normed(query, layer.norms[0]), _normed(key, layer.norms[1])), dim=2)
    turned = _turned(turning, turns).transpose(1, 2)
    rows.write(number, turned[:, queries:], value.transpose(1, 2))
    return turned[:, :queries]


def _moved(layer: Layer, given: torch.Tensor) -> torch.Tensor:
    """What a layer's gated units make of normed states."""
    if layer.gate_joined is None:
        gate, up = layer.gate(given), layer.up(given)
    else:
        gate, up = layer.gate_joined(given).chunk(2, dim=-1)
    moved: torch.Tensor = layer.down(layer.act(gate) * up)
    return moved


def _normed(states: torch.Tensor, norm: Any) -> torch.Tensor:
    """The root-mean-square norm as a llama's module has it: in float32, cast back before the weights are applied."""
    weight, shape, eps = norm._parameters["weight"], states.shape[-1:], norm.variance_epsilon
    if states.dtype == weight.dtype == torch.float32:
        return torch.rms_norm(states, shape, weight, eps)
    plain = torch.rms_norm(states.float(), shape, None, eps)
    result: torch.Tensor = weight * plain.to(states.dtype)
    return result


def _turned(heads: torch.Tensor, turns: Turns) -> torch.Tensor:
    """Heads ``[1, n, heads, width]`` rotated, each half of a head with the other one."""
    cosines, sines = turns
    return (heads * cosines).add_(heads.roll(heads.shape[-1] // 2, -1) * sines)


class Rotation:
    """What a model's own rotary module gives for each position, kept for as long as the module stays as it is."""

    def __init__(self) -> None:
        self._table = torch.empty(0)
        self._made_of: tuple[Any, ...] = ()

    def at(self, positions: torch.Tensor, end: int, rotary: Any, like: torch.Tensor) -> Turns:
        """For positions short of ``end``."""
        frequencies = rotary.inv_freq
        # The tensor itself, not only its number: a freed tensor's number is given to another one.
        made_of = (frequencies, frequencies._version, rotary.attention_scaling, like.dtype, like.device)
        if end > len(self._table) or not _same(made_of, self._made_of):
            size = max(end, FIRST_TABLE, 2 * len(self._table))
            self._table, self._made_of = _table(rotary, size, like), made_of
        cosines, sines = self._table.index_select(0, positions).unbind(1)
        return cosines, sines


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(other) > 0 and one[0] is other[0] and one[1:] == other[1:]


def _table(rotary: nn.Module, size: int, like: torch.Tensor) -> torch.Tensor:
    """``[positions, 2, 1, width]``: cosines, and sines with the sign that `_turned` needs."""
    cosines, sines = rotary(like, torch.arange(size, device=like.device)[None])
    half = sines.shape[-1] // 2
    signed = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    return torch.stack((cosines[0], signed[0]), dim=1).unsqueeze(2)
