"""Kinds of recurrences: how the functions of transformers' model files are called, in one piece and token by token.

A layer calls one function for many rows and another for one row; the two round differently. Plain decoding uses the
second, so a draft's rows are computed with the second, too: all rows of a depth at a time, side by side in the batch
dimension, each from its parent's state.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch

from paceline.targets.hf.recurrent.rows import owned
from paceline.targets.hf.recurrent.scans import DeltaRows, DiagonalRows

Function = Callable[..., Any]
Prepared = DeltaRows | DiagonalRows
Finish = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Given:
    """The arguments of a call: those with an entry for each row as ``[rows, ...]``, and the others."""

    rows: Mapping[str, torch.Tensor]
    others: Mapping[str, Any]

    def at(self, index: torch.Tensor | slice) -> Given:
        return replace(self, rows={name: given[index] for name, given in self.rows.items()})

    def narrowed(self) -> Given:
        """Doubles in float32."""
        return Given(*({name: _narrowed(value) for name, value in each.items()} for each in (self.rows, self.others)))

    def behind(self, first: Given | None) -> Given:
        """These rows behind those of an earlier call of the same layer."""
        if first is None:
            return self
        return replace(self, rows={name: torch.cat([first.rows[name], given]) for name, given in self.rows.items()})


def _narrowed(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value


class Recurrence(ABC):
    """One kind of recurrence."""

    axes: ClassVar[Mapping[str, int]]
    """The arguments of the function for many rows that have an entry for each row, and in which dimension; the first
    dimension is a batch of one."""
    output_axis: ClassVar[int] = 1
    state: ClassVar[str | None]
    """The argument that takes the state before the rows; None where the function cannot."""
    wants_state: ClassVar[str]
    """The argument that asks for the state after them."""

    def __init__(self, whole: Function, single: Function) -> None:
        self.whole, self.single = whole, single
        self._signature = inspect.signature(whole)

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """The arguments of a call of the function for many rows."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        others = dict(bound.arguments)
        others |= others.pop("kwargs", {})
        rows = dict[str, torch.Tensor]()
        for name, axis in self.axes.items():
            value = others.pop(name)
            if value is None:
                others[name] = None
            else:
                rows[name] = value[0].movedim(axis - 1, 0)
        return Given(rows, others)

    def read(self, given: Given, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs ``[rows, ...]`` of rows that are read in one piece, and the state after them."""
        if self.state is None and state is not None:
            return self._one_by_one(given, state)
        named: dict[str, Any] = {**given.others, self.wants_state: True}
        named |= {name: value.movedim(0, self.axes[name] - 1)[None] for name, value in given.rows.items()}
        if self.state is not None:
            named[self.state] = None if state is None else state[None]
        out, final = self.whole(**named)
        return out[0].movedim(self.output_axis - 1, 0), owned(final[0])

    def _one_by_one(self, given: Given, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, states = list[torch.Tensor](), state[None]
        for row in range(len(next(iter(given.rows.values())))):
            out, states = self.step(given.at(slice(row, row + 1)), states)
            outputs.append(out)
        return torch.cat(outputs), states[0]

    def output(self, rows: torch.Tensor) -> torch.Tensor:
        """Outputs ``[rows, ...]`` as the function for many rows returns them."""
        return rows.movedim(0, self.output_axis - 1)[None]

    @abstractmethod
    def compiled(self, given: Given, *, raw: bool = False) -> tuple[Prepared, Finish]:
        """The rows as compiled recurrences take them, or kernels of a GPU (``raw``), and what follows on their outputs.
        What is computed for a row does not depend on how many there are: on a CPU, numpy's functions treat all numbers
        alike, and torch's do not; on a GPU, torch's do, but for sums."""

    @abstractmethod
    def sizes(self, given: Given) -> tuple[int, ...]:
        """Of a state of these rows' layer."""

    @abstractmethod
    def step(self, given: Given, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token of each row: outputs ``[rows, ...]`` and the states after it, of the states ``[rows, ...]`` before
        it, which stay as they are."""


class DeltaRule(Recurrence):
    """The gated delta rule, and Kimi's with a decay for each channel."""

    axes: ClassVar = {"query": 1, "key": 1, "value": 1, "g": 1, "beta": 1}
    state = "initial_state"
    wants_state = "output_final_state"

    def compiled(self, given: Given, *, raw: bool = False) -> tuple[Prepared, Finish]:
        if raw and given.others["use_qk_l2norm_in_kernel"]:
            query, key, value, decay, beta = (given.rows[name] for name in self.axes)
            return DeltaRows(query, key, value, decay, beta, raw=True), lambda out: out
        query, key, value, decay, beta = (given.rows[name].float() for name in self.axes)
        if given.others["use_qk_l2norm_in_kernel"]:
            query, key = _normed(query), _normed(key)
        query = query * query.shape[-1] ** -0.5
        kind = given.rows["value"].dtype
        return DeltaRows(query, key, value, _exp(decay), beta), lambda out: out.to(kind)

    def sizes(self, given: Given) -> tuple[int, ...]:
        heads, width = given.rows["value"].shape[1:]
        return heads, given.rows["key"].shape[2], width

    def step(self, given: Given, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        named = {name: value[:, None] for name, value in given.rows.items()}
        normed = given.others["use_qk_l2norm_in_kernel"]
        out, after = self.single(**named, initial_state=states, output_final_state=True, use_qk_l2norm_in_kernel=normed)
        return out[:, 0], after


class Mamba2(Recurrence):
    axes: ClassVar = {"hidden_states": 1, "dt": 1, "B": 1, "C": 1}
    state = "initial_states"
    wants_state = "return_final_states"

    def compiled(self, given: Given, *, raw: bool = False) -> tuple[Prepared, Finish]:
        inputs, steps, before, after = (given.rows[name].float() for name in self.axes)
        others, kind = given.others, given.rows["hidden_states"].dtype
        steps = _steps(steps, others["dt_bias"], softplus=others["dt_softplus"])
        rows = DiagonalRows(inputs * steps[..., None], _exp(steps * others["A"].float()), before, after)
        skip = others["D"]
        if skip is None:
            return rows, lambda out: out.to(kind)
        skipped = inputs * skip.float()[:, None]
        return rows, lambda out: (out + skipped[-len(out) :]).to(kind)

    def sizes(self, given: Given) -> tuple[int, ...]:
        return (*given.rows["hidden_states"].shape[1:], given.rows["B"].shape[2])

    def step(self, given: Given, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, others, after = given.rows, given.others, states.clone()
        width, size = states.shape[-2:]

        def wide(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values[..., None].expand(*values.shape, width)

        out = self.single(
            after,
            rows["hidden_states"],
            wide(rows["dt"]),
            others["A"][:, None, None].expand(-1, width, size),
            rows["B"],
            rows["C"],
            wide(others["D"]),
            z=None,
            dt_bias=wide(others["dt_bias"]),
            dt_softplus=others["dt_softplus"],
        )
        return out, after


class Mamba1(Recurrence):
    axes: ClassVar = {"hidden_states": 2, "dt": 2, "B": 2, "C": 2, "z": 2}
    output_axis = 2
    state = None
    wants_state = "return_last_state"

    def compiled(self, given: Given, *, raw: bool = False) -> tuple[Prepared, Finish]:
        inputs, steps, before, after = (given.rows[name].float() for name in ("hidden_states", "dt", "B", "C"))
        others, kind = given.others, given.rows["hidden_states"].dtype
        steps = _steps(steps, others["delta_bias"], softplus=others["delta_softplus"])
        rates = others["A"].float()[None].contiguous()
        rows = DiagonalRows((inputs * steps)[:, None], steps[:, None], before[:, None], after[:, None], rates)
        skip = None if others["D"] is None else inputs * others["D"].float()
        gate = given.rows.get("z")
        gates = None if gate is None else silu(gate.float())

        def finish(out: torch.Tensor) -> torch.Tensor:
            found = out[:, 0]
            found = found if skip is None else found + skip[-len(out) :]
            return (found if gates is None else found * gates[-len(out) :]).to(kind)

        return rows, finish

    def sizes(self, given: Given) -> tuple[int, ...]:
        return given.rows["hidden_states"].shape[1], given.rows["B"].shape[1]

    def step(self, given: Given, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, others, after = given.rows, given.others, states.clone()
        out = self.single(
            after,
            rows["hidden_states"],
            rows["dt"],
            others["A"],
            rows["B"],
            rows["C"],
            others["D"],
            z=rows.get("z"),
            dt_bias=others["delta_bias"],
            dt_softplus=others["delta_softplus"],
        )
        return out, after


@cache
def functions() -> dict[str, tuple[type[Recurrence], str]]:
    """Of transformers' functions for many rows the kind, and the name of the one for a row."""
    return {
        "torch_chunk_gated_delta_rule": (DeltaRule, "torch_recurrent_gated_delta_rule"),
        "chunk_kimi_delta_attention": (DeltaRule, "recurrent_kimi_delta_attention"),
        "mamba2_chunk_scan": (Mamba2, "mamba2_selective_state_update"),
        "mamba_selective_scan": (Mamba1, "mamba_selective_state_update"),
    }


def _normed(rows: torch.Tensor) -> torch.Tensor:
    return rows * torch.rsqrt((rows * rows).sum(dim=-1, keepdim=True) + 1e-6)


def _exp(values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.exp(values.numpy())) if values.device.type == "cpu" else values.exp()


def silu(values: torch.Tensor) -> torch.Tensor:
    """The same for every number, wherever it stands: on a CPU, torch's rounds in another way at the end of a row."""
    return values / (1 + _exp(-values))


def _steps(given: torch.Tensor, bias: torch.Tensor | None, *, softplus: bool) -> torch.Tensor:
    """The step sizes of Mamba."""
    steps = given if bias is None else given + bias.float()
    if not softplus:
        return steps
    if steps.device.type != "cpu":
        return torch.nn.functional.softplus(steps)
    values = steps.numpy()
    return torch.from_numpy(np.where(values > LINEAR, values, np.log1p(np.exp(np.minimum(values, LINEAR)))))


LINEAR = 20.0
"""Behind this, torch's softplus returns its argument."""

CONVOLUTION = "causal_conv1d_fn"
"""The function of a convolution over many rows."""
