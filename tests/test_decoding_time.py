"""Decoding time is one thing for single texts and for batches: from the first token on, prompts apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from clock import MadeClock
from engine import SIZE
from paceline.context import Context
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.targets.base import Pending, Request
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from paceline_lab.bench.run.record import Record
from paceline_lab.bench.suites import Prompt
from refereed import finished, refereed

STEP, TOKENS = 64.0, 41
"""Seconds of a forward, however many rows it has; next to them, looking at the clock takes no time."""


class Counts(TableTarget):
    """Counts up; a forward that reads a prompt takes ``prefill`` seconds, any other `STEP`."""

    def __init__(self, prefill: float) -> None:
        super().__init__(lambda history: [float(token == (history[-1] + 1) % SIZE) for token in range(SIZE)], SIZE)
        self.prefill = prefill

    def submit(self, requests: Sequence[Request]) -> Pending:
        time.sleep(self.prefill if any(one.prefill for one in requests) else STEP)
        return super().submit(requests)


class Foresees(Drafter):
    """The next token, so a round brings two."""

    name = "foresees"

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.build([(state.root + 1) % SIZE], [-1])


def made(spec: str, model: object) -> Drafter:
    return make_drafter(spec) if spec == "plain" else Foresees()


def texts(*said: str) -> list[Prompt]:
    return [Prompt(key=f"p{n}", task="count", language="en", turns=(text,), chat=False) for n, text in enumerate(said)]


def ran(path: Path, clock: MadeClock, prefill: float, said: Sequence[str], **how: float) -> list[Record]:
    """How plain decoding and the drafter wrote."""
    target, workload = Counts(prefill), texts(*said)
    options = {"max_new_tokens": TOKENS, **how}
    referee = refereed(path, target=target, methods=["plain", "foresees"], make=made, workload=workload, **options)
    referee.race.clock = clock
    return finished(referee).records


def speed(records: Sequence[Record], entry: str) -> float:
    mine = [one for one in records if one.entry == entry]
    return sum(one.decoded for one in mine) / sum(one.seconds_decode for one in mine)


UNLIKE = "0123", "1234", "2345", "3450", "4501"
"""Prompts of which none begins as another one."""


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("prefill", [0.0, 4.0, 4000.0])
def test_a_draft_of_one_sure_token_doubles_the_speed_of_any_batch(
    batch: int, prefill: float, tmp_path: Path, clock: MadeClock
) -> None:
    records = ran(tmp_path / "run", clock, prefill, UNLIKE[:batch], batch=batch)
    assert speed(records, "foresees") / speed(records, "plain") == pytest.approx(2, rel=0.01)
    assert speed(records, "plain") == pytest.approx(batch / STEP, rel=0.01)
    assert {one.decoded for one in records} == {TOKENS - 1}


def test_what_texts_write_while_another_reads_is_no_decoding(tmp_path: Path, clock: MadeClock) -> None:
    """A long prompt takes many forwards, in which the others write on; neither their seconds nor their tokens count."""
    found = []
    for prefill in (0.0, 4.0, 4000.0):
        records = ran(tmp_path / f"run{prefill}", clock, prefill, ["0" * 40, "1234", "2345"], batch=3)
        long, *short = (one.decoded for one in records if one.entry == "foresees")
        assert long == TOKENS - 1
        assert all(TOKENS / 4 < one < TOKENS * 3 / 4 for one in short)
        found.append([speed(records, entry) for entry in ("plain", "foresees")])
    assert all(one == pytest.approx(found[0], rel=1e-3) for one in found)
    assert found[0][1] > 1.5 * found[0][0]


def test_equal_texts_share_a_prompt(tmp_path: Path, clock: MadeClock) -> None:
    for prefill in (0.0, 4000.0):
        records = ran(tmp_path / f"run{prefill}", clock, prefill, ["0" * 40] * 4, batch=4)
        assert speed(records, "foresees") / speed(records, "plain") == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("prefill", [4.0, 4000.0])
def test_texts_that_join_late_stop_the_clock_of_all(prefill: float, tmp_path: Path, clock: MadeClock) -> None:
    """Prompts arrive while others are written, and some wait for a seat."""
    records = ran(tmp_path / "run", clock, prefill, UNLIKE, batch=2, qps=0.01)
    for entry, expected in (("plain", 1), ("foresees", 2)):
        pace = speed(records, entry) * STEP
        assert expected * 0.99 <= pace <= 2 * expected, "of one text or of two, and no prompt in it"
    for entry in ("plain", "foresees"):
        mine = [one for one in records if one.entry == entry]
        assert sum(one.decoded for one in mine) < len(UNLIKE) * (TOKENS - 1), "some came while others read"
        assert all(one.seconds >= one.seconds_decode for one in mine)


def test_a_batch_of_a_token_each_has_no_speed(tmp_path: Path, clock: MadeClock) -> None:
    records = ran(tmp_path / "run", clock, 4.0, UNLIKE, batch=5, max_new_tokens=1)
    assert {one.decoded for one in records} == {0}
    assert {one.speed for one in records} == {None}
