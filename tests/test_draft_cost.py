"""Drafting timed without a model: the made-up text, the rounds on it, and what the command prints."""

import json
from itertools import pairwise

import numpy as np
import pytest

from paceline.cli import main
from paceline.cli.bench import draft_cost as command
from paceline.drafters import make_drafter
from paceline.measure import draft_cost

VOCABULARY = 3000


@pytest.fixture(scope="module")
def foretold() -> draft_cost.Foretold:
    return draft_cost.Foretold.made(draft_cost.CONTEXT + 3000, vocabulary=VOCABULARY)


def test_the_made_up_model_names_different_tokens_and_the_texts_own_first(foretold: draft_cost.Foretold) -> None:
    text = foretold.text.tolist()
    assert all(len(set(row)) == draft_cost.BEST for row in foretold.ids.tolist())
    assert 0 <= foretold.ids.min() <= foretold.ids.max() < VOCABULARY
    last = dict(pairwise(text))
    assert all(foretold.ids[before, 0] == after for before, after in last.items())
    top = foretold.top(foretold.text[:50])
    shares = np.exp(top.logits)
    assert (np.diff(shares, axis=1) <= 0).all()
    assert (shares.sum(axis=1) < 1 + 1e-6).all()


@pytest.mark.parametrize("method", ["unispec", "recycling", "suffix", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_are_real_ones(foretold: draft_cost.Foretold, method: str, temperature: float) -> None:
    cost = draft_cost.cost(make_drafter(method), foretold, nodes=60, temperature=temperature, rounds=20, warm=5)
    assert 0 < cost.nodes <= 60
    assert cost.microseconds >= max(cost.propose, cost.observe) > 0
    if method in ("unispec", "recycling"):
        assert cost.nodes > 50


def test_rows_are_read_by_number_and_dtype() -> None:
    read = draft_cost.reading([1, 3], repeats=1, vocabulary=VOCABULARY)
    assert {dtype: list(by_rows) for dtype, by_rows in read.items()} == {"float32": [1, 3], "bfloat16": [1, 3]}
    assert all(milliseconds > 0 for by_rows in read.values() for milliseconds in by_rows.values())


def test_the_command_prints_a_table_and_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = draft_cost.Foretold.made
    monkeypatch.setattr(draft_cost.Foretold, "made", lambda length: made(length, vocabulary=VOCABULARY))
    for name, value in {"ROWS": (1, 2), "SIZES": (8,), "REPEATS": 1}.items():
        monkeypatch.setattr(command, name, value)
    assert main(["bench", "draft-cost", "--rounds", "4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert set(found["microseconds"]) == {"unispec", "recycling", "suffix", "lookup"}
    assert set(found["read_top_k"]) == {"float32", "bfloat16"}
    assert {(one["method"], one["temperature"]) for one in found["drafts"]} == {
        (method, temperature) for method in command.METHODS for temperature in command.TEMPERATURES
    }
    assert sum(line.startswith("unispec") for line in lines) == 2


def test_no_rounds_are_no_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "draft-cost", "--rounds", "0"]) != 0
    assert "--rounds must be at least 1, not 0" in capsys.readouterr().err
