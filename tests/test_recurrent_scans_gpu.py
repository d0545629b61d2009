"""Recurrences over draft trees as kernels: those of the compiled ones, and each row bitwise what it is when its path is
computed alone. On a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from paceline import launching
from paceline.targets.base import Request
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.recurrent import forward as states_forward
from paceline.targets.hf.recurrent import functions, scans_gpu, trial
from paceline.targets.hf.recurrent.kinds import DeltaRule, Given, Recurrence
from paceline.targets.hf.recurrent.scans import DeltaRows, Visits, outputs_of
from paceline.targets.hf.recurrent.scans_gpu import VisitTable, scan
from paceline.targets.hf.target import HFTarget
from paceline.tree import Ints
from paceline_lab.check.tiny import build, configuration
from test_recurrent import KINDS, TOKENS, Text, path_in, rounds, tree
from test_recurrent_scans import CLOSE, Case, apart, case_of, changed, expected

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAWS = pytest.mark.parametrize("kind", ["gated delta", "kimi delta", "mamba", "mamba2"])
LAYERS = pytest.mark.parametrize("name", KINDS)


def there(case: Case) -> Case:
    rows = changed(case.rows, lambda part: part.to(DEVICE))
    if not isinstance(rows, DeltaRows) and rows.rates is not None:
        rows = rows._replace(rates=rows.rates.to(DEVICE))
    return case._replace(state=case.state.to(DEVICE), rows=rows)


def run(case: Case, visits: Visits, state: Tensor, only: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """The outputs of rows, and the state after the one that is kept."""
    rows, final = changed(case.rows, lambda part: part[only]), torch.full_like(state, torch.nan)
    found = outputs_of(rows).fill_(torch.nan)
    scan(VisitTable.of(visits, DEVICE), state[None], rows, found, final[None])
    return found, final


def along(case: Case, row: int) -> tuple[Tensor, Tensor]:
    """The output and the state of a row, whose path is computed a row at a time."""
    state, output = case.state, torch.empty(0)
    for step in Visits(case.parents).path(row):
        outputs, state = run(case, Visits([-1], kept=0), state, slice(step, step + 1))
        output = outputs[0]
    return output, state


@LAWS
@pytest.mark.parametrize("seed", range(8))
def test_outputs_and_states_are_those_of_the_compiled_recurrences(kind: str, seed: int) -> None:
    case = case_of(kind, seed)
    kept = seed % len(case.parents)
    final = torch.empty_like(case.state)
    wanted = case.run(Visits(case.parents, kept), case.state, final)
    found, state = run(there(case), Visits(case.parents, kept), case.state.to(DEVICE))
    assert apart(found.cpu(), wanted.double().numpy()) < CLOSE
    assert apart(state.cpu(), final.double().numpy()) < CLOSE
    assert apart(found.cpu(), expected(case)[0]) < CLOSE


@LAWS
@pytest.mark.parametrize("seed", [2, 7])
def test_a_row_is_bitwise_what_its_path_is_alone(kind: str, seed: int) -> None:
    case = there(case_of(kind, seed))
    for kept in range(0, len(case.parents), 5):
        outputs, final = run(case, Visits(case.parents, kept), case.state)
        output, state = along(case, kept)
        assert torch.equal(outputs[kept], output)
        assert torch.equal(final, state)


@LAWS
@pytest.mark.parametrize("seed", [3, 11])
def test_a_path_is_computed_again_in_place(kind: str, seed: int) -> None:
    case = there(case_of(kind, seed))
    kept = len(case.parents) - 1
    state = case.state.clone()
    visits = VisitTable.of(Visits(case.parents, kept, path_only=True), DEVICE)
    assert visits.slots == 0
    scan(visits, state[None], case.rows, None, state[None])
    assert torch.equal(state, along(case, kept)[1])


@LAWS
def test_sequences_share_a_launch(kind: str) -> None:
    """Of different trees; one keeps a state, and the rows of another stand between theirs."""
    case = there(case_of(kind, 7))
    parents = [[-1, 0, 0], [-1], [-1, 0, 1, 0, 2], [-1, -1]]
    firsts, keeps = [0, 4, 5, 12], [None, 0, 3, None]
    visits = [Visits(part, kept) for part, kept in zip(parents, keeps, strict=True)]
    states = torch.stack([(number + 1) * case.state for number in range(4)])
    finals, found = torch.full_like(states, torch.nan), outputs_of(case.rows).fill_(torch.nan)
    scan(VisitTable(list(zip(visits, firsts, strict=True)), DEVICE), states, case.rows, found, finals)
    for number, (part, first, kept) in enumerate(zip(parents, firsts, keeps, strict=True)):
        own = slice(first, first + len(part))
        alone, final = run(case, visits[number], states[number], own)
        assert torch.equal(found[own], alone)
        if kept is not None:
            assert torch.equal(finals[number], final)
    assert found[[3, 10, 11, 14, 15]].isnan().all()


@LAWS
def test_rows_may_lie_apart(kind: str) -> None:
    case = there(case_of(kind, 2))
    visits = Visits(case.parents, 3)
    wanted = run(case, visits, case.state)
    for change in (
        lambda part: torch.stack((part, torch.zeros_like(part)), 1)[:, 0],
        lambda part: part.transpose(0, -1).contiguous().transpose(0, -1),
        lambda part: torch.cat((part[:1], part))[1:],
    ):
        found = run(case._replace(rows=changed(case.rows, change)), visits, case.state)
        assert all(map(torch.equal, found, wanted))
    moved = torch.cat((torch.zeros(1, device=DEVICE), case.state.flatten()))[1:].view(case.state.shape)
    assert all(map(torch.equal, run(case, visits, moved), wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gated delta", "kimi delta"])
def test_raw_rows_are_normed_and_scaled(kind: str, dtype: torch.dtype) -> None:
    case = there(case_of(kind, 2))
    assert isinstance(case.rows, DeltaRows)
    raw = case.rows._replace(key=3 * case.rows.key, decay=case.rows.decay.log(), raw=True)
    raw = raw._replace(**{name: getattr(raw, name).to(dtype) for name in ("query", "key", "value", "beta")})
    given = Given(dict(zip(DeltaRule.axes, raw[:5], strict=True)), {"use_qk_l2norm_in_kernel": True})
    rows, finish = DeltaRule(scan, scan).compiled(Given({n: r.cpu() for n, r in given.rows.items()}, given.others))
    wanted = there(Case(kind, case.parents, case.state, rows))
    visits = Visits(case.parents, 3)
    found, final = run(case._replace(rows=raw), visits, case.state)
    outputs, state = run(wanted, visits, case.state)
    assert found.dtype == dtype
    assert apart(final.cpu(), state.double().cpu().numpy()) < CLOSE
    assert apart(found.cpu(), finish(outputs).double().cpu().numpy()) < max(CLOSE, 2 * torch.finfo(dtype).eps)


def stored(visits: Visits) -> VisitTable:
    return VisitTable([(visits, 0)], DEVICE)


@pytest.mark.parametrize(
    ("parents", "slots", "loads"),
    [
        ([], 0, 0),
        (list(range(-1, 15)), 0, 1),
        ([-1] * 4, 0, 4),
        ([-1, 0, 0, 0, 0], 1, 4),
        ([-1, 0, 0, 1, 1, 2, 2], 2, 4),
    ],
)
def test_chains_stay_in_registers(parents: list[int], slots: int, loads: int) -> None:
    table = stored(Visits(parents))
    assert table.slots == slots
    assert int((table.numbers[2:].view(-1, 3)[:, 1] != scans_gpu.table.HERE).sum()) == loads


def test_memory_holds_what_rows_continue() -> None:
    generator = np.random.default_rng(3)
    for count in range(1, 30):
        parents = [int(generator.integers(-1, row)) for row in range(count)]
        for kept in (None, int(generator.integers(count))):
            holds, before = {-1: -1}, None
            for row, source, target in stored(Visits(parents, kept)).numbers[2:].view(-1, 3).tolist():
                assert parents[row] == (before if source == scans_gpu.table.HERE else holds[source])
                assert (target == -2) == (row == kept)
                holds[target], before = row, row


def test_a_siblings_state_is_seen() -> None:
    """The comparisons see a row that continues the state of its parent's other child."""
    case = there(case_of("gated delta", 6)._replace(parents=[-1, 0, 0, 1, 2, 3, 4]))
    visits = Visits(case.parents, 4)
    line = visits.table[:, 0].tolist().index(4)
    visits.table[line, 1] = table_place(visits, 1)
    assert not torch.equal(run(case, visits, case.state)[1], along(case, 4)[1])


def table_place(visits: Visits, row: int) -> int:
    return next(place for visited, _, place in visits.table.tolist() if visited == row)


# --- layers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recurrences of layers are computed by kernels, which are interpreted."""
    if DEVICE.type == "cuda":
        pytest.skip("layers of these tests are on a CPU")
    monkeypatch.setattr(states_forward, "on_gpu", lambda device: True)
    trial._tried.clear()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("chain", [True, False], ids=["chains", "trees"])
@LAYERS
def test_the_state_after_drafts_is_that_of_plain_decoding(name: str, chain: bool) -> None:
    """Bitwise."""
    rounds(KINDS[name](), 8, chain=chain)
    assert trial._tried
    assert not any(trial._tried.values())


@pytest.mark.usefixtures("kernels")
@LAYERS
def test_texts_of_one_forward_do_not_touch_each_other(name: str) -> None:
    layer, drawn = KINDS[name](), np.random.default_rng(8)
    together, alone = ([Text(layer) for _ in range(3)] for _ in range(2))
    for turn in range(6):
        requests = list[tuple[Request, Request]]()
        for number, (one, other) in enumerate(zip(together, alone, strict=True)):
            if turn == 0 or turn % 3 == number:
                tokens = drawn.integers(0, TOKENS, int(drawn.integers(1, 9)))
                requests.append(tuple(Request.of_prompt(t.rows, tokens, ends_prompt=True) for t in (one, other)))
            else:
                root, draft = int(drawn.integers(0, TOKENS)), tree(drawn, 4, chain=False)
                requests.append(tuple(Request.of_tree(t.rows, root, draft) for t in (one, other)))
        found = together[0].score(*(ours for ours, _ in requests))
        wanted = torch.cat([alone[0].score(theirs) for _, theirs in requests])
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)
        for ours, theirs in requests:
            path = np.arange(len(ours.tokens)) if ours.prefill else path_in(drawn, ours)
            ours.rows.keep(path)
            theirs.rows.keep(path)
        for (ours, _), one, other in zip(requests, together, alone, strict=True):
            assert torch.allclose(one.state, other.state, rtol=1e-3, atol=1e-4)
            assert torch.equal(one.window, other.window)
            assert ours.prefill or one.state.untyped_storage().nbytes() == one.state.nbytes, "no other text's state"


@pytest.mark.usefixtures("kernels")
@LAYERS
def test_a_draft_that_is_scored_level_by_level(name: str) -> None:
    layer, drawn = KINDS[name](), np.random.default_rng(4)
    levels, whole = Text(layer), Text(layer)
    for text in (levels, whole):
        text.score(Request.of_prompt(text.rows, np.arange(5), ends_prompt=True))
        text.rows.keep(range(5))
    for _ in range(4):
        request = Request.of_tree(whole.rows, 11, tree(drawn, 6, chain=False))
        wanted = whole.score(request)
        cut = int(drawn.integers(1, len(request.tokens) + 1))
        cuts: list[tuple[int, int]] = [(0, cut), *([(cut, len(request.tokens))] if cut < len(request.tokens) else [])]
        found = [
            levels.score(Request(levels.rows, request.tokens[start:end], request.parents[:end], held=start))
            for start, end in cuts
        ]
        assert torch.equal(torch.cat(found), wanted)
        path: Ints = path_in(drawn, request)
        for text in (levels, whole):
            text.rows.keep(path)
        assert torch.equal(levels.state, whole.state)


# --- what does not work is not used -----------------------------------------------------------------------------


def _wrong(factor: Callable[[int], float]) -> Callable[..., None]:
    honest = scans_gpu.scan

    def scanned(visits: VisitTable, states: Tensor, rows: Any, outputs: Any = None, finals: Any = None) -> None:
        honest(visits, states, rows, outputs, finals)
        if outputs is not None:
            outputs *= factor(len(outputs))

    return scanned


def _broken(*given: Any, **constants: Any) -> None:
    raise RuntimeError("no such instruction\nmore of it")


FAULTS: dict[str, tuple[Any, str, Callable[..., None]]] = {
    "kernels differ from torch": (scans_gpu, "scan", _wrong(lambda n: 1.01)),
    "a row of the kernels depends on other rows": (scans_gpu, "scan", _wrong(lambda n: 1 + 1e-6 * n)),
    "RuntimeError: no such instruction": (launching, "launch", _broken),
    launching.NOT_INSTALLED: (launching, "installed", lambda: False),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("said", FAULTS)
def test_kernels_that_fail_leave_drafts_to_torch(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, fault = FAULTS[said]
    monkeypatch.setattr(place, name, fault)
    monkeypatch.setattr("test_recurrent.same", lambda one, other: torch.allclose(one, other, rtol=1e-4, atol=1e-5))
    rounds(KINDS["qwen3_next"](), 3, chain=False)
    assert set(trial._tried.values()) == {said}
    assert trial.obstacles({"transformers.models.qwen3_next.modeling_qwen3_next"}, "cpu") == [said]
    assert trial.obstacles({"transformers.models.mamba2.modeling_mamba2"}, "cpu") == []
    trial._tried.clear()


@pytest.mark.usefixtures("kernels")
def test_layers_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Recurrence]()
    honest = trial._difference

    def counted(kind: Recurrence, given: Given, state: Tensor) -> str | None:
        calls.append(kind)
        return honest(kind, given, state)

    monkeypatch.setattr(trial, "_difference", counted)
    for _ in range(2):
        rounds(KINDS["mamba2"](), 1, chain=False)
    assert len(calls) == 1


def test_a_target_notes_that_kernels_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    target = HFTarget(build(configuration("qwen3_next", "small")))
    home = sys.modules[type(target.model).__module__]
    whole = getattr(home.torch_chunk_gated_delta_rule, functions.OURS)
    tried = trial._Tried(whole, torch.device("cpu"), torch.Size(), (), ())
    monkeypatch.setattr(trial, "_tried", {tried: "no such instruction"})
    prepare(target)
    assert target.note is not None
    assert target.note.endswith("level by level, which costs speed and nothing else: no such instruction")
