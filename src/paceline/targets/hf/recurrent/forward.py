"""Layers that keep a state, in one forward: what transformers' functions are replaced by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from paceline.targets.base import Request
from paceline.targets.hf.integers.kernels import without_numba
from paceline.targets.hf.recurrent import scans_gpu, trial
from paceline.targets.hf.recurrent.kinds import Function, Given, Prepared, Recurrence, silu
from paceline.targets.hf.recurrent.rows import Key, StateTrail, owned
from paceline.targets.hf.recurrent.scans import DeltaRows, Visits, delta_rule, diagonal, outputs_of
from paceline.targets.hf.recurrent.walk import Order, PackedPart, RowWalk, in_order
from paceline.tree import Ints

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of rows that compiled recurrences compute in float32."""
KEPT_BYTES = 128 << 20
"""The states of all rows of a draft are kept where they take no more than this; else those of the accepted path are
computed again."""


@dataclass
class SteppedTrail(StateTrail):
    """The recurrence of one layer over a sequence's tentative rows: the state before them, their inputs, and the states
    after them where these were kept."""

    kind: Recurrence
    lead: int
    before: torch.Tensor | None
    """The state behind the rows that were read in one piece, or of the committed text."""
    given: Given | None = None
    """Of the rows that were not read in one piece."""
    kept: dict[int, torch.Tensor] | None = None
    """States by tentative row."""

    def after(self, path: Ints) -> torch.Tensor:
        behind = path[path >= self.lead] - self.lead
        if not len(behind):
            assert self.before is not None, "a text has rows"
            return self.before
        if self.kept is not None:
            return owned(self.kept[int(path[-1])])
        assert self.given is not None and self.before is not None, "rows were scored"
        state = self.before[None]
        for row in behind.tolist():
            state = self.kind.step(self.given.at(slice(row, row + 1)), state)[1]
        return state[0]


@dataclass
class CompiledTrail(StateTrail):
    """The same, compiled: the rows' inputs are kept, and the accepted path is computed again."""

    order: Order
    lead: int
    before: torch.Tensor
    rows: Prepared
    single: torch.Tensor | None = None
    """The state after the only row."""

    def after(self, path: Ints) -> torch.Tensor:
        behind = path[path >= self.lead] - self.lead
        if not len(behind):
            return self.before
        if self.single is not None:
            return owned(self.single)
        found = torch.empty_like(self.before)
        scan(self.order.path_to(int(behind[-1])), self.before, self.rows, None, found)
        return found

    def outputs(self) -> torch.Tensor:
        """``[rows, heads, width]``"""
        out = outputs_of(self.rows)
        self.single = torch.empty_like(self.before) if self.order.single else None
        scan(self.order.every(), self.before, self.rows, out, self.single)
        return out


def scan(
    visits: Visits, state: torch.Tensor, rows: Prepared, outputs: torch.Tensor | None, final: torch.Tensor | None
) -> None:
    """A compiled recurrence from a state."""
    before, behind = _by_heads(state), None if final is None else _by_heads(final)
    if on_gpu(state.device):
        table = scans_gpu.VisitTable.of(visits, state.device)
        scans_gpu.scan(table, before[None], rows, outputs, None if behind is None else behind[None])
    elif isinstance(rows, DeltaRows):
        delta_rule(visits, before, rows, outputs, behind)
    else:
        diagonal(visits, before, rows, outputs, behind)


def _by_heads(state: torch.Tensor) -> torch.Tensor:
    """``[heads, ...]``; the state of Mamba-1 is that of one head."""
    return state if state.dim() == 3 else state[None]


def on_gpu(device: torch.device) -> bool:
    """Whether recurrences are computed by `scans_gpu`, if at all."""
    return device.type == "cuda"


def _serves(kind: Recurrence, given: Given, state: torch.Tensor) -> bool:
    """Whether recurrences from such a state are compiled."""
    if on_gpu(state.device):
        return trial.obstacle(kind, given, state) is None
    narrow = all(rows.dtype in FLOATS for rows in given.rows.values())
    return state.device.type == "cpu" and state.dtype == torch.float32 and narrow and compiles()


@cache
def compiles() -> bool:
    """Whether recurrences are compiled here."""
    return without_numba() is None


class RecurrentForward:
    """The convolutions and recurrences of one forward."""

    def __init__(self, requests: Sequence[Request], *, narrow: bool = False) -> None:
        """States and windows of a ``narrow`` forward are in float32, whatever layers compute in, and prompts are read
        with the arithmetic of single tokens: a row has the same bits however it was read."""
        self._walk = RowWalk(requests)
        self._narrow = narrow
        self._place: tuple[int, int] | None = None
        self._calls = 0
        self._due = False
        self._mixers = 0

    @property
    def walk(self) -> RowWalk:
        return self._walk

    def number(self) -> int:
        """A number for the next call of a module that keeps its own state: modules are called in one order."""
        self._mixers += 1
        return self._mixers

    def enter(self, layer: int, number: int) -> None:
        """The layer whose convolution comes next."""
        self._place, self._calls, self._due = (layer, number), 0, True

    @property
    def is_due(self) -> bool:
        """Whether a layer has given inputs to a convolution that never came."""
        return self._due

    def _key(self) -> Key:
        assert self._place is not None, "a layer was entered"
        return (*self._place, self._calls)

    def convolved(
        self,
        whole: Function,
        given: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None,
        **others: Any,
    ) -> torch.Tensor:
        """A causal convolution ``[1, channels, rows]`` of each row with its own path. ``others`` are for ``whole``."""
        one_piece = partial(whole, weight=weight, bias=bias, activation=activation, **others)
        mixed = partial(_mixed, weight=weight, bias=bias, activation=activation)
        if not self._narrow:
            return self._convolved(one_piece, mixed, given, weight.shape[-1])
        with torch._C.DisableTorchFunction():  # `integers.doubles` would widen it
            return self._convolved(one_piece, mixed, given.float(), weight.shape[-1]).double()

    def _convolved(self, whole: Function, mixed: Function, given: torch.Tensor, width: int) -> torch.Tensor:
        key = self._key()
        self._due = False
        fresh = given[0].T
        outputs = list[torch.Tensor]()
        for number, part in enumerate(self._walk.parts):
            own = fresh[part.start : part.start + part.count]
            inputs = part.rows.inputs(key, own, width, part.held)
            if part.lead and self._narrow:
                outputs.append(mixed([inputs[place : place + part.lead] for place in range(width)]))
            elif part.lead:
                outputs.append(whole(inputs[: width - 1 + part.lead].T[None])[0, :, width - 1 :].T)
            if part.count > part.lead:
                columns = self._walk.columns(number, width, fresh.device)
                outputs.append(mixed(inputs[columns].unbind(1)))
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).T[None]

    def recurred(
        self, kind: Recurrence, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A recurrence over all rows, each from its parent's state."""
        given = kind.given(args, kwargs)
        if not self._narrow:
            return self._recurred(kind, given)
        with torch._C.DisableTorchFunction():
            rows, after = self._recurred(kind, given.narrowed())
            return rows.double(), after

    def _recurred(self, kind: Recurrence, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        key = self._key()
        self._calls += 1
        outputs, order, befores = list[torch.Tensor](), list[Ints](), list[torch.Tensor]()
        for part in self._walk.parts:
            before = self._before(part, key)
            if part.lead:
                out, before = self._read(kind, given.at(part.read), before)
                outputs.append(out)
                order.append(np.arange(part.read.start, part.read.stop))
            assert before is not None, "the first token of a text is read"
            befores.append(before)
        compiled = _serves(kind, given, befores[0])
        for part, before in zip(self._walk.parts, befores, strict=True):
            if not part.held and not (compiled and part in self._walk.drafts):
                part.rows.tentatives.trails[key] = SteppedTrail(kind, part.lead, before)
        if not compiled and self._walk.levels:
            self._take_levels(kind, key, given, outputs, order)
        elif compiled:
            self._take_scans(kind, key, given, befores, outputs, order)
        rows = in_order(outputs, order)
        return kind.output(rows), rows.new_empty(1)

    def _before(self, part: PackedPart, key: Key) -> torch.Tensor | None:
        """The state before a part's rows; None at the beginning of a text."""
        if part.held:
            return part.rows.tentatives.trails[key].after(np.arange(part.rows.tentatives.lead))
        return part.rows.states.recurrent.get(key)

    def _read(self, kind: Recurrence, given: Given, before: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows in one piece; row by row where transformers' function cannot go on from a state."""
        if self._narrow and before is None:
            before = torch.zeros(kind.sizes(given))
        if before is None or not (self._narrow or kind.state is None) or not _serves(kind, given, before):
            return kind.read(given, before)
        rows, finish = kind.compiled(given, raw=on_gpu(before.device))
        count = len(rows.decay)
        out, after = outputs_of(rows), torch.empty_like(before)
        scan(Visits(np.arange(-1, count - 1), count - 1), before, rows, out, after)
        return finish(out), after

    def _take_scans(
        self,
        kind: Recurrence,
        key: Key,
        given: Given,
        befores: list[torch.Tensor],
        outputs: list[torch.Tensor],
        order: list[Ints],
    ) -> None:
        drafts = [
            (part, before) for part, before in zip(self._walk.parts, befores, strict=True) if part in self._walk.drafts
        ]
        if drafts and on_gpu(befores[0].device) and not any(part.held for part, _ in drafts):
            outputs += self._scan_together(kind, key, given, [before for _, before in drafts])
        else:
            outputs += [self._scan(kind, key, given.at(part.nodes), before, part) for part, before in drafts]
        order += [np.arange(part.nodes.start, part.nodes.stop) for part, _ in drafts]

    def _scan_together(
        self, kind: Recurrence, key: Key, given: Given, befores: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs of each part's rows, by one launch."""
        device, drafts = befores[0].device, self._walk.drafts
        rows, finish = kind.compiled(given, raw=True)
        before = [_by_heads(state).float() for state in befores]
        states = before[0][None].contiguous() if len(before) == 1 else torch.stack(before)
        visits = self._walk.visits(device)
        finals = torch.empty_like(states) if visits.keeps else None
        out = outputs_of(rows)
        scans_gpu.scan(visits, states, rows, out, finals)
        for place, (part, state) in enumerate(zip(drafts, befores, strict=True)):
            after = None if finals is None or not part.order.single else finals[place].view(state.shape)
            trail = CompiledTrail(part.order, part.lead, state.float().contiguous(), _rows_at(rows, part.nodes), after)
            part.rows.tentatives.trails[key] = trail
        out = finish(out)
        return [out[part.nodes] for part in drafts]

    def _scan(self, kind: Recurrence, key: Key, given: Given, before: torch.Tensor, part: PackedPart) -> torch.Tensor:
        """The outputs of a part's fresh rows. Rows that are held are computed again, which reads no weight."""
        rows, finish = kind.compiled(given, raw=on_gpu(before.device))
        if part.held:
            first, held = part.rows.tentatives.trails[key], part.held - part.rows.tentatives.lead
            if isinstance(first, CompiledTrail) and held:
                rows = _joined(_rows_at(first.rows, slice(held)), rows)
        trail = CompiledTrail(part.order, part.rows.tentatives.lead, before.contiguous(), rows)
        part.rows.tentatives.trails[key] = trail
        return finish(trail.outputs()[-part.count + part.lead :])

    def _take_levels(
        self, kind: Recurrence, key: Key, given: Given, outputs: list[torch.Tensor], order: list[Ints]
    ) -> None:
        first = [_trail(part, key).after(part.rows.path_to(parent)) for part, parent in self._walk.firsts]
        states = first[0][None] if len(first) == 1 else torch.stack(first)
        levels = list[torch.Tensor]()
        for depth, level in enumerate(self._walk.levels):
            index = torch.from_numpy(level.rows).to(states.device)
            if depth and not level.in_order:
                states = states[torch.from_numpy(level.parents).to(states.device)]
            out, states = kind.step(given.at(index), states)
            outputs.append(out)
            order.append(level.rows)
            levels.append(states)
        self._leave(key, given, levels)

    def _leave(self, key: Key, given: Given, levels: list[torch.Tensor]) -> None:
        """Note what a path will need once it is accepted."""
        places = {row: (d, i) for d, level in enumerate(self._walk.levels) for i, row in enumerate(level.rows.tolist())}
        for part in self._walk.parts:
            trail = _trail(part, key)
            if part.count == part.lead:
                continue
            fits = part.rows.states.bytes * (part.count - part.lead) <= KEPT_BYTES
            if fits and (trail.kept is not None or not part.held):
                nodes = range(part.nodes.start, part.nodes.stop)
                fresh = {part.held + row - part.start: levels[places[row][0]][places[row][1]] for row in nodes}
                trail.kept = (trail.kept or {}) | fresh
            else:
                trail.kept = None
            held = part.held - trail.lead
            first = trail.given.at(slice(held)) if trail.given is not None and held > 0 else None
            trail.given = given.at(part.nodes).behind(first)


def _joined(first: Prepared, more: Prepared) -> Prepared:
    """Rows, and more rows behind them."""
    both: dict[str, Any] = {name: torch.cat([value, getattr(more, name)]) for name, value in _each(first)}
    return first._replace(**both)


def _rows_at(rows: Prepared, index: slice) -> Prepared:
    return rows._replace(**{name: value[index] for name, value in _each(rows)})


def _each(rows: Prepared) -> list[tuple[str, Any]]:
    """The tensors with an entry for each row, and their names."""
    return [
        (name, value) for name, value in rows._asdict().items() if isinstance(value, torch.Tensor) and name != "rates"
    ]


def _trail(part: PackedPart, key: Key) -> SteppedTrail:
    trail = part.rows.tentatives.trails[key]
    assert isinstance(trail, SteppedTrail), "this forward made it"
    return trail


def _mixed(
    inputs: Sequence[torch.Tensor], *, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor:
    """``[rows, channels]`` of the ``width`` inputs of each row, ``[rows, channels]`` each; one product after the other,
    so that a row does not depend on how many there are."""
    from transformers.activations import ACT2FN

    total: torch.Tensor = inputs[0].to(weight.dtype) * weight[:, 0]
    for place, given in enumerate(inputs[1:], start=1):
        total = total + given.to(weight.dtype) * weight[:, place]
    if bias is not None:
        total = total + bias
    if activation in ("silu", "swish") and total.device.type == "cpu":
        total = silu(total.float())
    elif activation is not None:
        total = ACT2FN[activation](total)
    return total.to(inputs[0].dtype)
