"""Counters: those of the engine, those that drafters declare, and the sums of both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import paceline
from engine import PROMPT, tabled
from paceline import Budget, Context, Counter, Drafter, DraftTree, LanguageModel
from paceline.drafters import make_drafter
from paceline.drafters.compose import Union
from paceline.engine.counters import NO_COUNTS, Round, Totals
from paceline.errors import DrafterError
from paceline_lab.bench.run.record import ROUND_COLUMNS

OF_DRAFTERS = {
    "draft_forwards": 9,
    "draft_tokens": 12,
    "rows_rolled_back": 5,
    "bytes_translated": 36,
    "levels_ahead": 4,
    "drafts_anew": 1,
    "bytes_exchanged": 500,
    "rounds_foreseen": 3,
    "overlap_mass": 1.5,
    "drafts_inside": 0,
    "rounds_overlapped": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}
SPENT = {"seconds_draft": 1.0, "seconds_score": 2.0, "seconds_read": 0.5, "seconds_judge": 0.5}
ROWS = [(0, 0, 0, False, 1), (4, 4, 2, True, 3), (0, 0, 0, False, 1), (6, 3, 0, True, 1), (2, 2, 2, False, 2)]


def rounds() -> list[Round]:
    """The record of a prompt, and of four rounds."""
    made = [
        Round(
            position=4,
            drafted=drafted,
            depth=depth,
            accepted=right,
            refused=refused,
            emitted=emitted,
            counts=NO_COUNTS
            + {
                "draft_forwards": depth,
                "draft_tokens": drafted,
                "rows_rolled_back": 1,
                "bytes_translated": 3 * drafted,
                "levels_ahead": right,
                "drafts_anew": depth == 3,
                "bytes_exchanged": 100,
                "rounds_foreseen": drafted > 0,
                "overlap_mass": drafted / 8,
            },
            **SPENT,
        )
        for drafted, depth, right, refused, emitted in ROWS
    ]
    return [replace(made[0], prefill=True, **dict.fromkeys(SPENT, 0.0)), *made[1:]]


def test_totals_are_sums_and_ratios_of_rounds() -> None:
    found = Totals.of(rounds(), 0.5)
    expected = {
        "rounds": 4,
        "tokens": 8,
        "drafted": 12,
        "accepted": 4,
        "drafting_rounds": 3,
        "seconds_prefill": 0.5,
        "seconds_draft": 4.0,
        "seconds_score": 8.0,
        "seconds_read": 2.0,
        "seconds_judge": 2.0,
        "tokens_of_prefill": 1,
        **OF_DRAFTERS,
        "tokens_in_rounds": 7,
        "tokens_per_second": 7 / 16,
        "tokens_per_round": 7 / 4,
        "mean_accepted": 4 / 4,
        "accepted_per_draft": 4 / 3,
        "acceptance_rate": 1 / 3,
        "coverage": 3 / 4,
    }
    assert list(found.as_dict().items()) == list(expected.items())
    assert (found.tokens_per_round, found.tokens_per_second, found.forwards) == (7 / 4, 7 / 16, 5)


def test_totals_add() -> None:
    first, second = Totals.of(rounds()[:2], 0.5), Totals.of(rounds()[2:], 0.0)
    assert first + second == second + first == Totals.of(rounds(), 0.5)
    assert sum([first, second], Totals()).counts == OF_DRAFTERS
    assert Totals.of([], 0.0) == Totals()
    assert set(Totals().as_dict().values()) == {0}


def test_the_names_in_json_and_in_files_are_those_that_they_always_were() -> None:
    numbers = ["position", "drafted", "depth", "accepted", "refused", "emitted", *SPENT, "proposed"]
    assert list(rounds()[0].as_dict()) == [*numbers, "why", "rows", "prefill", "unasked", *OF_DRAFTERS]
    assert (*numbers, "rows") == ROUND_COLUMNS
    text = LanguageModel(tabled()).generate(PROMPT, method="plain", max_new_tokens=3)
    zeros = [json.dumps(each) for each in (text.rounds[0].as_dict(), text.totals.as_dict())]
    assert all('"bytes_exchanged": 0, "rounds_foreseen": 0, "overlap_mass": 0.0' in line for line in zeros)


# --- counters of drafters -----------------------------------------------------------------------------------


class Guesser(Drafter):
    """Guesses the last token again, and counts its guesses."""

    name = "guesser"
    counters = (Counter("guesses", "tokens that were guessed"),)

    def __init__(self, **reports: Any) -> None:
        self._reports = reports

    def open(self, context: Context) -> dict[str, Any]:
        return {"context": context, "guesses": 0}

    def propose_one(self, state: dict[str, Any], budget: Budget) -> DraftTree:
        state["guesses"] += 1
        return DraftTree.chain([state["context"].root], source=self.name)

    def counts(self, state: dict[str, Any]) -> Mapping[str, float]:
        guesses, state["guesses"] = state["guesses"], 0
        return {"guesses": guesses, **self._reports}


def written(method: Any, **how: Any) -> paceline.Generation:
    return LanguageModel(tabled()).generate(
        PROMPT, method=method, planner="fixed:2", max_new_tokens=12, strict=True, **how
    )


def test_a_plug_ins_counters_are_shown_like_those_of_built_in_methods() -> None:
    text = written(Guesser())
    drafting = text.totals.drafting_rounds
    assert text.totals.counts["guesses"] == text.totals.as_dict()["guesses"] == drafting > 0
    assert [each.as_dict()["guesses"] for each in text.rounds] == [min(each.drafted, 1) for each in text.rounds]
    assert text.totals.counts["draft_forwards"] == 0


def test_counters_of_parts_are_those_of_the_whole() -> None:
    both = Union([Guesser(), make_drafter("lookup"), Guesser()])
    assert both.counters == Guesser.counters
    totals = written(both).totals
    assert totals.counts["guesses"] == 2 * totals.drafting_rounds > 0


def test_a_counter_that_is_not_there_is_named() -> None:
    counts = written(Guesser()).totals.counts
    with pytest.raises(KeyError, match="no counter 'guesse'; did you mean 'guesses'"):
        _ = counts["guesse"]
    with pytest.raises(KeyError, match="no counter 'x'; there are draft_forwards, "):
        _ = counts["x"]
    assert counts.get("x") is None


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ({"other": 1}, "drafter 'guesser' counted 'other', which is none of its counters: guesses"),
        ({"guesses": "1"}, "drafter 'guesser' counted a str of guesses, where a number belongs"),
    ],
)
def test_counts_without_a_counter_are_refused(reports: dict[str, Any], said: str) -> None:
    for drafter in (Guesser(**reports), Union([make_drafter("lookup"), Guesser(**reports)])):
        with pytest.raises(DrafterError, match=said):
            written(drafter)


@pytest.mark.parametrize("name", ["accepted", "rounds", "why", "coverage", "counts"])
def test_the_engines_own_names_are_taken(name: str) -> None:
    drafter = Guesser()
    drafter.counters = (Counter(name, "anything"),)
    with pytest.raises(DrafterError, match=f"has a counter '{name}', which the engine counts itself"):
        written(drafter)
