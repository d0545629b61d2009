"""The lean path: a llama's forward without what transformers wraps around it.

One row of a small model costs transformers more in Python than in arithmetic. Here a layer is some twenty operations,
and everything that depends on the forward and not on the layer is done once. Operations and their order are those of
the model's own modules, so that rows are equal bit by bit where kernels are; the modules themselves are asked for
their weights anew in every forward, and linear layers are called, so that whatever an owner does to them counts. Of a
model only tables of its rotation are kept. At load rows must agree with the model's own (`probe`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import nn

from paceline.targets.hf.attention import Asked, MaskScratch, Part, by_part, write
from paceline.targets.hf.definitions import Definitions, origin
from paceline.targets.hf.forward import Mode
from paceline.targets.hf.kinds import Build, Layer, Look
from paceline.targets.hf.own import OwnForward, joined
from paceline.targets.hf.path import Asking, Found, Job, Path, Taps

FIRST_TABLE = 1024
"""Positions in the first table of a rotation; each further one has at least twice as many."""
FRAGILE = (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError)
"""What is raised where modules are put together in a way that nobody foresaw."""


class Lean(Path):
    """Computes models that `kinds` knows; holds on to the model's own path for its mode and its early exit."""

    def __init__(self, own: OwnForward, look: Look) -> None:
        self._own = own
        self._look = look
        classes = map(type, own.model.modules())
        self._definitions = Definitions(known for known in classes if origin(known) == "transformers")
        self._rotation = Rotation()
        self._scratch = MaskScratch()
        self.trusted = False
        """Its rows were those of the model, so that errors are answered by the model itself."""

    @classmethod
    def of(cls, own: OwnForward) -> Self | None:
        """None for models of another structure."""
        look = Look(own.model)
        return None if look.build is None else cls(own, look)

    def takes(self, job: Job) -> bool:
        if not self._look.stands():
            self._look = Look(self._own.model)
        return self._look.build is not None and self._own.mode is Mode.PACKED and self._definitions.stand()

    def run(self, job: Job) -> Found:
        try:
            return self._run(job)
        except torch.OutOfMemoryError:
            raise
        except FRAGILE as error:
            if not self.trusted:
                raise
            found = self._own.run(job)  # what is the model's own trouble is raised again
            self._look.refuse()
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"layers are left to transformers, which costs speed and nothing else: {why}", UserWarning, 2)
            return found

    def _run(self, job: Job) -> Found:
        build = self.build
        rows = Packed(Part.of_all(job.requests, self._scratch))
        device = build.norm.weight.device
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        positions = torch.from_numpy(joined([request.positions for request in job.requests]))
        states: torch.Tensor = build.embedding(tokens[None].to(device))
        end = max(request.end for request in job.requests)
        turns = self._rotation.at(positions.to(device), end, build.rotary, states)
        return self.computed(states, turns, rows, job.asking)

    @property
    def build(self) -> Build:
        build = self._look.build
        assert build is not None, "only jobs that were taken are run"
        return build

    def computed(self, states: torch.Tensor, turns: Turns, rows: Cached, asking: Asking) -> Found:
        """From embeddings ``[1, sum n, width]`` to what is found."""
        build, taps = self.build, Taps()
        last = len(build.layers)
        for number, layer in enumerate(build.layers):
            self._tap(number, states, asking, taps)
            cached = layer.attention.layer_idx  # its place, unless layers were taken out or moved
            query = _written(layer, cached, _normed(states, layer.before), turns, rows)
            ends = number == last - 1 and last not in asking.want.hidden
            if ends and not asking.logits:
                return Found(None, taps)  # of a prompt's last layer only keys and values are ever read
            asked = Asked(layer.attention.scaling, layer.window(layer.attention))
            seen = rows.seen(cached, query, asked).transpose(1, 2)
            if ends:
                states, seen = _only(asking.logit_rows, states), _only(asking.logit_rows, seen)
            states = states + layer.out(seen.reshape(1, states.shape[1], -1))
            states = states + _moved(layer, _normed(states, layer.between))
        if last not in asking.want.hidden:
            return Found(build.head(_normed(states, build.norm))[0], taps)
        taps.hidden[last] = _normed(states, build.norm)[0]
        if not asking.logits:
            return Found(None, taps)
        return Found(build.head(_only(asking.logit_rows, taps.hidden[last][None]))[0], taps)

    def _tap(self, number: int, states: torch.Tensor, asking: Asking, taps: Taps) -> None:
        """Show the states that are about to enter a layer."""
        if number in asking.want.hidden:
            taps.hidden[number] = states[0]
        if number == asking.want.early_exit:
            taps.early = self._own.anatomy.unembed(states[0])
            asking.on_exit(taps.early)


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


def _only(rows: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
    """The packed rows of these numbers, or all."""
    return states if rows is None else states[:, rows.to(states.device)]


def _written(layer: Layer, cached: int, given: torch.Tensor, turns: Turns, rows: Cached) -> torch.Tensor:
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
    rows.write(cached, turned[:, queries:], value.transpose(1, 2))
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
    weight = norm._parameters.get("weight")
    weight = norm.weight if weight is None else weight
    shape, eps = states.shape[-1:], norm.variance_epsilon
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
    """What a model's own rotary module gives for each position, in a table that is kept for as long as the frequencies
    are what they were. On other devices a look at them would wait for all work before it, so there the module is
    called."""

    def __init__(self) -> None:
        self._table = torch.empty(0)
        self._frequencies = torch.empty(0)
        self._made_for: tuple[Any, ...] = ()

    def at(self, positions: torch.Tensor, end: int, rotary: Any, like: torch.Tensor) -> Turns:
        """For positions short of ``end``."""
        if like.device.type != "cpu":
            return turns_at(positions, rotary, like)
        frequencies, made_for = rotary.inv_freq, (rotary.attention_scaling, like.dtype)
        if end > len(self._table) or made_for != self._made_for or not _same(frequencies, self._frequencies):
            size = max(end, FIRST_TABLE, 2 * len(self._table))
            self._table = torch.stack(turns_at(torch.arange(size), rotary, like), dim=1)
            self._frequencies, self._made_for = frequencies.clone(), made_for
        cosines, sines = self._table.index_select(0, positions).unbind(1)
        return cosines, sines


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By value: who writes to a tensor's data leaves no other trace."""
    return one.dtype == other.dtype and torch.equal(one, other)


def turns_at(positions: torch.Tensor, rotary: nn.Module, like: torch.Tensor) -> Turns:
    """Of these positions ``[n]``, from the module itself."""
    cosines, sines = rotary(like, positions[None])
    half = sines.shape[-1] // 2
    signed = torch.cat((-sines[..., :half], sines[..., half:]), dim=-1)
    return cosines[0].unsqueeze(1), signed[0].unsqueeze(1)
