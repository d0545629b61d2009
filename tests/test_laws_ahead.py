"""Laws of a whole draft, read with that of its root where the host waits for another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drafting import as_plain
from engine import PROMPT, Erratic, tabled, write
from paceline.drafters import Plain
from paceline.engine import calls
from paceline.law import Place, Sampling, laws
from paceline.targets.table import TableTarget

SETTINGS = {
    "warm": {"temperature": 1.0},
    "the best": {"temperature": 1.2, "top_k": 5},
    "nucleus": {"temperature": 1.0, "top_p": 0.8},
    "the likely": {"temperature": 1.0, "min_p": 0.1},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.4, "presence_penalty": 0.3},
    "bans": {"temperature": 1.0, "banned": ((1,), (0, 3))},
    "greedy": {},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each time that laws were read, as if the logits were on another device than the host."""
    sizes = list[int]()

    def counted(places: Sequence[Place]) -> Any:
        if places:
            sizes.append(len(places))
        return laws(places)

    monkeypatch.setattr(calls, "laws", counted)
    monkeypatch.setattr("paceline.law.scores.HOST_DEVICE", "elsewhere")
    on_host = TableTarget._logits
    monkeypatch.setattr(TableTarget, "_logits", lambda *given: torch.from_numpy(on_host(*given)))
    monkeypatch.setattr("paceline.law.contenders.WHOLE_ROW_TOKENS", 0)
    return sizes


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_text_is_plain_decodings(setting: str, asked: list[int]) -> None:
    for seed in range(3):
        sampling = Sampling(**SETTINGS[setting], seed=seed)
        session = as_plain(tabled(), PROMPT, Erratic(seed=seed), sampling=sampling, nodes=7, max_new_tokens=30)
        assert sum(r.accepted for r in session.rounds) > 0


@pytest.mark.parametrize("setting", ["warm", "the best", "the likely", "penalties", "bans"])
def test_a_round_waits_once(setting: str, asked: list[int]) -> None:
    sampling = Sampling(**SETTINGS[setting])
    session = write(tabled(), PROMPT, Erratic(), sampling=sampling, nodes=7, max_new_tokens=30)
    assert len(asked) == len(session.rounds)
    assert all(read > round.drafted for read, round in zip(asked, session.rounds, strict=True))  # probes are read too


def test_stateful_processors_are_asked_along_the_path_alone(asked: list[int]) -> None:
    seen = list[list[int]]()

    def processor(tokens: Any, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tokens.tolist())
        return scores

    sampling = Sampling(temperature=1.0, processors=(processor,))
    write(tabled(), PROMPT, Erratic(), sampling=sampling, nodes=7, max_new_tokens=20)
    drafted = list(seen)
    seen.clear()
    write(tabled(), PROMPT, Plain(), sampling=sampling, max_new_tokens=20)
    assert drafted == seen


def test_an_error_at_a_node_that_is_not_reached_ends_nothing(asked: list[int]) -> None:
    """Of a row without a finite score."""
    table = tabled().table
    target = tabled()
    sampling = Sampling(temperature=1.0)
    plain = write(target, PROMPT, Plain(), sampling=sampling, max_new_tokens=20)
    text = [*PROMPT, *plain.context.emitted.tolist()]

    def broken(history: tuple[int, ...]) -> list[float]:
        row = table(history)
        return row if list(history) == text[: len(history)] else [-float("inf")] * len(row)

    target.table = broken  # type: ignore[method-assign]
    session = write(target, PROMPT, Erratic(), sampling=sampling, nodes=7, max_new_tokens=20)
    assert session.context.emitted.tolist() == plain.context.emitted.tolist()
