"""Drafting timed without a model: the made-up text, the rounds on it, and what the command prints."""

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.cli import main
from paceline.context import Context
from paceline.dictionary.index import Dictionary
from paceline.drafters import make_drafter
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.dictionary import DictSpec
from paceline.drafters.store import StoreDrafter
from paceline.targets.base import Pending, Request, Target, Want
from paceline.tree import DraftTree
from paceline_lab.bench import draft_cost, forwards, made_up
from paceline_lab.commands.bench import draft_cost as command

VOCABULARY = 3000


@pytest.fixture(scope="module")
def foretold() -> made_up.MadeUpModel:
    return made_up.MadeUpModel.made(draft_cost.CONTEXT + 3000, vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def pocket() -> Target:
    return paceline.load("pocket", dtype="float32").target


@pytest.mark.parametrize("width", [made_up.BEST, 64])
def test_the_made_up_model_names_different_tokens_and_the_texts_own_first(
    width: int, foretold: made_up.MadeUpModel
) -> None:
    made = foretold.wide(width)
    assert all(len(set(row)) == width for row in made.ids.tolist())
    assert 0 <= made.ids.min() <= made.ids.max() < VOCABULARY
    assert all(made.ids[before, 0] == after for before, after in dict(pairwise(made.text.tolist())).items())
    shares = np.exp(made.top(made.text[:50]).logits)
    assert (np.diff(shares, axis=1) <= 0).all()
    assert (shares.sum(axis=1) < 1 + 1e-6).all()


def test_wider_rows_begin_as_the_narrow_ones(foretold: made_up.MadeUpModel) -> None:
    assert (foretold.wide(64).ids[:, : made_up.BEST] == foretold.ids).all()
    assert foretold.wide(made_up.BEST) is foretold


def timed(drafter: Drafter, text: made_up.MadeUpModel, temperature: float = 0.0, rounds: int = 20) -> draft_cost.Cost:
    found = draft_cost.costs({"x": lambda: drafter}, sizes=[60], temperatures=[temperature], rounds=rounds, made=text)
    return found[temperature][60]["x"]


def test_a_method_that_reads_more_is_told_more(foretold: made_up.MadeUpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, int] = {}
    proper = draft_cost.DraftTimer.__init__

    def spy(timer: Any, name: str, drafter: Drafter, size: int, made: made_up.MadeUpModel, *more: Any) -> None:
        told[drafter.name] = made.ids.shape[1]
        proper(timer, name, drafter, size, made, *more)

    monkeypatch.setattr(draft_cost.DraftTimer, "__init__", spy)
    for name in ("lookup", "unispec", "foresight"):
        timed(make_drafter(name), foretold, rounds=1)
    assert told == {"lookup": made_up.BEST, "unispec": made_up.BEST, "foresight": 64}


@pytest.mark.parametrize("method", ["unispec", "recycling", "suffix", "lookup", "foresight", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_are_real_ones(foretold: made_up.MadeUpModel, method: str, temperature: float) -> None:
    cost = timed(make_drafter(method), foretold, temperature)
    assert 0 < cost.nodes <= 60
    assert cost.draft >= max(cost.propose, cost.observe) > 0
    assert cost.forward == cost.read == 0
    if method in ("unispec", "recycling"):
        assert cost.nodes > 50


@pytest.mark.parametrize("method", ["unispec", "foresight"])
def test_a_method_that_learns_from_rows_has_seen_all_of_them(foretold: made_up.MadeUpModel, method: str) -> None:
    drafter = make_drafter(method)
    timer = draft_cost.DraftTimer("x", drafter, 60, foretold.wide(drafter.needs.top), 100, 0.0)
    assert isinstance(drafter, StoreDrafter)
    assert drafter._shared is not None
    assert len(drafter._shared.chances) == VOCABULARY
    assert (drafter._shared.chances > 0).any(axis=1).all()
    timer.close()


def test_the_dictionary_of_a_made_up_text_has_something_to_say_about_it(
    foretold: made_up.MadeUpModel, tmp_path: Path
) -> None:
    path = tmp_path / "a.dict"
    made_up.write_dictionary(path, foretold.text, VOCABULARY, "of nobody")
    found = Dictionary.open(path)
    assert len(found) > 0.9 * made_up.ENTRIES
    assert found.header.tokenizer == "of nobody"
    text = foretold.text[:2000].tolist()
    right = sum(
        (known := found.longest(found.packed(text[place - 8 : place]))) is not None
        and found.first(known[1]) == text[place]
        for place in range(8, 1997)
    )
    assert right > 0.8 * 1989
    cost = timed(DictSpec(file=str(path)), foretold)
    assert 0.5 < cost.nodes <= 3


def test_rows_are_read_by_number_and_dtype() -> None:
    read = draft_cost.reading([1, 3], repeats=1, vocabulary=VOCABULARY)
    assert {dtype: list(by_rows) for dtype, by_rows in read.items()} == {"float32": [1, 3], "bfloat16": [1, 3]}
    assert all(milliseconds > 0 for by_rows in read.values() for milliseconds in by_rows.values())


def test_the_command_prints_a_table_and_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_up.MadeUpModel.made
    monkeypatch.setattr(made_up.MadeUpModel, "made", lambda length: made(length, vocabulary=VOCABULARY))
    for name, value in {"ROWS": (1, 2), "SIZES": (8,), "REPEATS": 1}.items():
        monkeypatch.setattr(command, name, value)
    assert main(["bench", "draft-cost", "--rounds", "4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert set(found["microseconds"]) == {*command.METHODS} >= {"auto", "dictionary", "lookup"}
    assert "rounds_of_a_model" not in found
    assert set(found["read_top_k"]) == {"float32", "bfloat16"}
    assert {(one["method"], one["temperature"]) for one in found["drafts"]} == {
        (method, temperature) for method in command.METHODS for temperature in command.TEMPERATURES
    }
    assert sum(line.startswith("unispec") for line in lines) == 2


class Watched(Drafter):
    """Drafts chains of a size, and remembers what it was told."""

    name = "watched"
    needs = Want(top=3)

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.closed = 0

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain([7] * budget.nodes)

    def observe(self, seen: Sequence[Seen]) -> None:
        time.sleep(0.002)
        self.seen += seen

    def close(self, state: Context) -> None:
        self.closed += 1


def test_shares_are_of_rounds_of_the_model_at_every_methods_size(pocket: Target) -> None:
    """Every forward has the rows that were drafted behind the same tokens; reading is timed where rows are read."""
    asked: list[tuple[int, int, int]] = []
    submit = pocket.submit

    def spy(requests: Sequence[Request]) -> Pending:
        asked.extend((one.rows.committed, len(one.tokens), one.want.top) for one in requests if not one.prefill)
        return submit(requests)

    watched = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pocket, "submit", spy)
        drafters: dict[str, tuple[Drafter, int]] = {"watched": (watched, 5), "lookup": (make_drafter("lookup"), 4)}
        found = draft_cost.shares(pocket, drafters, temperature=0.8, rounds=3, warm=1)
    before = draft_cost.behind(pocket) - 1
    assert {committed for committed, _, _ in asked} == {before}
    assert asked.count((before, 1, 0)) >= 4, "plain's, and lookup's where it found nothing"
    assert asked.count((before, 6, 3)) == 4
    assert len(asked) == 4 * 3
    own = found["watched"]
    assert own.nodes == 5
    assert min(found[draft_cost.PLAIN].forward, own.forward, own.read) > 0
    assert own.draft >= 0.002
    assert own.share == pytest.approx((own.draft + own.read) / (own.draft + own.read + own.forward))
    assert found["lookup"].read == 0
    assert watched.closed == 1


def test_the_command_tells_the_shares_of_a_named_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    made = made_up.MadeUpModel.made
    monkeypatch.setattr(
        made_up.MadeUpModel, "made", lambda length, *, vocabulary=VOCABULARY: made(length, vocabulary=vocabulary)
    )
    for name, value in {"ROWS": (1,), "SIZES": (8,), "REPEATS": 1, "METHODS": ("unispec", "suffix")}.items():
        monkeypatch.setattr(command, name, value)
    assert main(["bench", "draft-cost", "--rounds", "2", "--model", "pocket", "--dtype", "float32", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)["rounds_of_a_model"]
    assert (told["model"], told["dtype"], told["rounds"]) == ("pocket", "float32", 2)
    assert set(told["milliseconds_plain_forward"]) == {"0", "0.8"}
    assert [(one["method"], one["temperature"], one["budget"]) for one in told["methods"]] == [
        ("unispec", 0.0, 60), ("suffix", 0.0, 16), ("redrafter", 0.0, 16),
        ("unispec", 0.8, 60), ("suffix", 0.8, 16), ("redrafter", 0.8, 16),
    ]  # fmt: skip
    for one in told["methods"]:
        beside = one["milliseconds_draft"] + one["milliseconds_read"]
        assert one["share"] == pytest.approx(beside / (beside + one["milliseconds_forward"]), abs=2e-3)
        assert one["calibrated"] is False
    assert sum(line.startswith("unispec") and line.endswith("%  ms") for line in lines) == 2


def test_forwards_are_timed_along_every_path(pocket: Target) -> None:
    found = list(forwards.forwards(pocket, contexts=[20], sequences=[1, 2], rows=[1, 6], repeats=1))
    assert [(one.path, one.sequences, one.rows) for one in found] == [
        *(("own", 1, 1), ("compiled", 1, 1), ("lean", 1, 1), ("transformers", 1, 1)),
        *(("own", 1, 6), ("compiled", 1, 6), ("lean", 1, 6)),
        *(("own", 2, 1), ("compiled", 2, 1), ("lean", 2, 1), ("own", 2, 6), ("compiled", 2, 6), ("lean", 2, 6)),
    ]
    assert all(one.milliseconds > 0 and one.apart < 1e-4 for one in found)
    assert type(pocket.paths[0]).__name__ == "Fused", "the target goes on as before"


def test_forwards_of_a_random_model_are_told_beside_the_memorys_bandwidth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forwards, "bandwidth", lambda device: 1e9)
    command = ["bench", "draft-cost", "--forwards", "--model", "random:tiny", "--dtype", "float32", "--rounds", "1"]
    assert main([*command, "--context", "8", "--rows", "1", "4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    said = json.loads(last)
    config = forwards.SHAPES["tiny"]
    weights = forwards.random_target("tiny", "float32", "cpu").model.num_parameters() - 512 * config["hidden_size"]
    assert said["bytes_of_token"] == 4 * (weights + 8 * 2 * 2 * 2 * 16)
    assert {one["rows"] for one in said["forwards"]} == {1, 4}
    assert {one["least_milliseconds"] for one in said["forwards"]} == {1000 * said["bytes_of_token"] / 1e9}
    assert any(line.startswith("own ") and "(1.00x)" in line for line in lines)


def test_the_law_is_timed_for_rows_of_every_certainty() -> None:
    found = draft_cost.law_costs(300, 2)
    assert {len(row) for row in found.values()} == {4}
    assert min(value for row in found.values() for value in row.values()) > 0
