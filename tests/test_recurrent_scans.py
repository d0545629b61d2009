"""Compiled recurrences over draft trees: right, and each row bitwise what it is when its path is computed alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.targets.hf.integers import kernels
from paceline.targets.hf.recurrent.scans import DeltaRows, DiagonalRows, Visits, delta_rule, diagonal

if kernels.without_numba() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.without_numba()}", allow_module_level=True)

from paceline.targets.hf.fused.vector import features

Rows = DeltaRows | DiagonalRows
Doubles = NDArray[np.float64]
KINDS = pytest.mark.parametrize("kind", ["gated delta", "kimi delta", "mamba", "mamba2"])
CLOSE = 1e-5
HELD_BACK = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
"""Vectors of 8 floats, also where a processor has larger ones."""


class Case(NamedTuple):
    kind: str
    parents: list[int]
    state: Tensor
    rows: Rows

    def run(
        self,
        visits: Visits,
        state: Tensor,
        final: Tensor | None = None,
        only: slice = slice(None),
        threads: int = 1,
    ) -> Tensor:
        rows = changed(self.rows, lambda part: part[only])
        result = torch.full((len(visits.parents), *state.shape[:1], width(self)), torch.nan)
        if isinstance(rows, DeltaRows):
            delta_rule(visits, state, rows, result, final, threads)
        else:
            diagonal(visits, state, rows, result, final, threads)
        return result


def changed(rows: Rows, change: Callable[[Tensor], Tensor]) -> Rows:
    """Rows with other tensors of the rows."""
    tensors = {name: part for name, part in rows._asdict().items() if isinstance(part, Tensor) and name != "rates"}
    parts: dict[str, Any] = {name: change(part) for name, part in tensors.items()}
    return rows._replace(**parts)


def width(case: Case) -> int:
    return case.state.shape[2 if isinstance(case.rows, DeltaRows) else 1]


def random_parents(generator: np.random.Generator, count: int, shape: str) -> list[int]:
    if shape == "chain":
        return list(range(-1, count - 1))
    return [int(generator.integers(-1, row)) for row in range(count)]


def case_of(kind: str, seed: int) -> Case:
    generator = np.random.default_rng(seed)
    count = [1, 2, 7, 16][seed % 4]
    heads, size, wide = (int(generator.choice(options)) for options in ([2, 4, 6], [1, 5, 16, 35], [3, 8, 32, 75, 104]))
    groups = int(generator.choice([group for group in (1, 2, heads) if heads % group == 0]))
    parents = random_parents(generator, count, "chain" if seed % 3 == 0 else "tree")
    if kind == "mamba":
        heads = groups = 1

    def draw(*sizes: int) -> Tensor:
        return torch.from_numpy(generator.standard_normal(sizes).astype(np.float32))

    def share(*sizes: int) -> Tensor:
        return torch.from_numpy(generator.random(sizes).astype(np.float32))

    if "delta" in kind:
        key = torch.nn.functional.normalize(draw(count, groups, size), dim=-1)
        decay = share(count, heads, size) if kind == "kimi delta" else share(count, heads)
        rows = DeltaRows(draw(count, groups, size), key, draw(count, heads, wide), decay, share(count, heads))
        return Case(kind, parents, draw(heads, size, wide), rows)
    decay = share(count, heads, wide) if kind == "mamba" else share(count, heads)
    rates = -3 * share(heads, wide, size) if kind == "mamba" else None
    inputs, b, c = draw(count, heads, wide), draw(count, groups, size), draw(count, groups, size)
    return Case(kind, parents, draw(heads, wide, size), DiagonalRows(inputs, decay, b, c, rates))


def expected(case: Case) -> tuple[Doubles, list[Doubles]]:
    """Outputs and states of all rows in doubles, head by head."""
    start = case.state.double().numpy()
    outputs, states = list[Doubles](), list[Doubles]()
    for row, parent in enumerate(case.parents):
        state = (states[parent] if parent >= 0 else start).copy()
        found = list[Doubles]()
        for head in range(len(state)):
            found.append(step_of(case.rows, row, head, state))
        states.append(state)
        outputs.append(np.stack(found))
    return np.stack(outputs), states


def step_of(rows: Rows, row: int, head: int, state: Doubles) -> Doubles:
    """A head's output; its state is changed in its place."""
    parts = [part.double().numpy() for part in rows if isinstance(part, Tensor)]
    if isinstance(rows, DeltaRows):
        query, key, value, decay, beta = (part[row] for part in parts)
        group = head * len(key) // len(value)
        state[head] *= decay[head].reshape(-1, 1)
        memory = state[head].T @ key[group]
        state[head] += np.outer(key[group], beta[head] * (value[head] - memory))
        return np.asarray(state[head].T @ query[group])
    inputs, decay, b, c = (part[row] for part in parts[:4])
    group = head * len(b) // len(inputs)
    factor = np.exp(decay[head][:, None] * parts[4][head]) if rows.rates is not None else decay[head]
    state[head] = state[head] * factor + np.outer(inputs[head], b[group])
    return np.asarray(state[head] @ c[group])


def apart(found: Tensor, wanted: Doubles) -> float:
    """The largest difference, by the largest number."""
    return float(np.abs(found.double().numpy() - wanted).max() / max(1.0, np.abs(wanted).max()))


def along(case: Case, row: int, threads: int = 1) -> tuple[Tensor, Tensor]:
    """The output and the state of a row, whose path is computed a row at a time."""
    state, output = case.state, torch.empty(0)
    for step in Visits(case.parents).path(row):
        after = torch.full_like(state, torch.nan)
        output = case.run(Visits([-1], kept=0), state, after, slice(step, step + 1), threads)[0]
        state = after
    return output, state


@KINDS
@pytest.mark.parametrize("seed", range(40))
def test_outputs_and_states_are_those_of_the_formulas(kind: str, seed: int) -> None:
    case = case_of(kind, seed)
    outputs, states = expected(case)
    kept, before = seed % len(case.parents), case.state.clone()
    final = torch.full_like(case.state, torch.nan)
    found = case.run(Visits(case.parents, kept), case.state, final)
    assert apart(found, outputs) < CLOSE
    assert apart(final, states[kept]) < CLOSE
    assert torch.equal(case.state, before)
    assert torch.equal(found, case.run(Visits(case.parents), case.state)), "a kept state changes no output"


@KINDS
@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_a_row_is_bitwise_what_its_path_is_alone(kind: str, seed: int) -> None:
    case = case_of(kind, seed)
    for kept in range(len(case.parents)):
        final = torch.full_like(case.state, torch.nan)
        outputs = case.run(Visits(case.parents, kept), case.state, final, threads=1 + kept % 2)
        output, state = along(case, kept)
        assert torch.equal(outputs[kept], output)
        assert torch.equal(final, state)


@KINDS
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_path_is_computed_again_in_place(kind: str, threads: int) -> None:
    for seed in (2, 3, 7, 11):
        case = case_of(kind, seed)
        state = case.state.clone()
        kept = len(case.parents) - 1
        visits, rows = Visits(case.parents, kept, path_only=True), case.rows
        if isinstance(rows, DeltaRows):
            delta_rule(visits, state, rows._replace(query=None), None, state, threads)
        else:
            diagonal(visits, state, rows._replace(C=None), None, state, threads)
        assert torch.equal(state, along(case, kept)[1])


@KINDS
def test_rows_may_lie_apart(kind: str) -> None:
    case = case_of(kind, 7)
    wanted = case.run(Visits(case.parents), case.state)
    for change in (
        lambda part: torch.stack((part, torch.zeros_like(part)), 1)[:, 0],
        lambda part: part.transpose(0, -1).contiguous().transpose(0, -1),
    ):
        apart_rows = case._replace(rows=changed(case.rows, change))
        assert torch.equal(apart_rows.run(Visits(case.parents), case.state), wanted)


def test_exponentials_are_right() -> None:
    numbers = torch.linspace(-87, 88, 4001)
    ones, none = torch.ones(1, 1, 1), torch.zeros(1, 1, 4001)
    state, rows = torch.ones(1, 1, 4001), DiagonalRows(ones, ones, none, None, numbers.view(1, 1, -1))
    diagonal(Visits([-1], kept=0), state, rows, None, state, 1)
    wanted = np.exp(numbers.double().numpy())
    assert np.abs(state[0, 0].double().numpy() / wanted - 1).max() < 2e-7
    limits = torch.tensor([-1e30, -torch.inf, torch.nan, 0.0]).view(1, 1, -1)
    state = torch.ones(1, 1, 4)
    diagonal(Visits([-1], kept=0), state, rows._replace(B=torch.zeros(1, 1, 4), rates=limits), None, state, 1)
    assert (state[0, 0, :2] < 1e-37).all()
    assert state[0, 0, 2].isnan()
    assert state[0, 0, 3] == 1


def test_a_siblings_state_is_seen() -> None:
    """The comparisons see a row that continues the state of its parent's other child."""
    case = case_of("gated delta", 6)._replace(parents=[-1, 0, 0, 1, 2, 3, 4])
    visits = Visits(case.parents)
    assert torch.equal(case.run(visits, case.state)[4], along(case, 4)[0])
    places = {row: place for row, _, place in visits.table.tolist()}
    assert places[2] != places[1]
    line = visits.table[:, 0].tolist().index(4)
    visits.table[line, 1] = places[1]
    found = case.run(visits, case.state)
    assert not torch.equal(found[4], along(case, 4)[0])
    assert apart(found, expected(case)[0]) > CLOSE


def check_slots(visits: Visits) -> int:
    """A row finds its parent's state, which no other row has replaced; the number of slots that rows are in."""
    holds: dict[int, int] = {-1: -1}
    for row, before, after in visits.table.tolist():
        assert holds[before] == visits.parents[row]
        assert after != -1
        assert (after == -2) == (row == visits.kept)
        holds[after] = row
    return len(holds.keys() - {-1, -2})


def test_slots_hold_what_rows_continue() -> None:
    generator = np.random.default_rng(3)
    for count in range(1, 40):
        parents = random_parents(generator, count, "tree")
        for kept in (None, int(generator.integers(count))):
            visits = Visits(parents, kept)
            assert sorted(visits.table[:, 0].tolist()) == list(range(count))
            assert check_slots(visits) == visits.slots <= 1 + np.log2(count)


@pytest.mark.parametrize(
    ("parents", "slots"),
    [
        ([], 0),
        ([-1], 1),
        (list(range(-1, 15)), 1),
        ([-1] * 9, 1),
        ([-1, 0, 0, 0, 0], 2),
        ([-1, 0, 0, 1, 1, 2, 2], 3),
        ([-1, 0, 0, 1, 1, 3, 3], 2),
    ],
)
def test_few_states_are_held(parents: Sequence[int], slots: int) -> None:
    """A chain has one. A row with few descendants is computed before its siblings."""
    assert Visits(parents).slots == slots


def test_only_a_path_is_visited() -> None:
    visits = Visits([-1, 0, 0, 1, 2, 4, -1], kept=4, path_only=True)
    assert visits.table[:, 0].tolist() == [0, 2, 4]
    assert visits.is_path
    assert check_slots(visits) == 1
    assert not Visits([-1, 0, 0]).is_path
    assert not Visits([-1, -1]).is_path


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2]])
def test_a_parent_stands_before_its_children(parents: Sequence[int]) -> None:
    with pytest.raises(ValueError, match="earlier row"):
        Visits(parents)
    with pytest.raises(ValueError, match="no row 1"):
        Visits([-1], kept=1)


@pytest.mark.skipif("avx512f" not in features(), reason="vectors are as short everywhere else")
def test_a_row_is_its_path_alone_in_shorter_vectors() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    test = f"{__file__}::{test_a_row_is_bitwise_what_its_path_is_alone.__name__}"
    done = subprocess.run([*command, test], env={**os.environ, **HELD_BACK}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
