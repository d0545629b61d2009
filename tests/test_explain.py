"""A planner's choices as sentences: phases cover the text, and each tells what was sent, why, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pytest

import paceline.testing
from paceline.context import Context
from paceline.drafters.base import Budget
from paceline.engine.counters import Round
from paceline.engine.emission import Emission
from paceline.engine.explain import MISSED, NO_DRAFT, SHORTEST, phases
from paceline.planning.base import Planner, Room, Why
from paceline.planning.knowledge import BACKED_OFF
from paceline.tree import DraftTree


def rounds(kinds: str, *, why: bool = True, proposed: int = 6, unasked: str = "") -> tuple[list[Round], list[Emission]]:
    """A letter a round: "." without a draft, "x" a draft that is wrong, any other the source that two tokens are of."""
    made, emissions = list[Round](), list[Emission]()
    for number, kind in enumerate(kinds):
        right = 0 if kind in ".x" else 2
        spent = {"seconds_draft": 0.0, "seconds_score": 0.5, "seconds_read": 0.0, "seconds_judge": 0.0}
        made.append(
            Round(
                position=len(emissions),
                drafted=0 if kind == "." else 4,
                depth=0 if kind == "." else 2,
                accepted=right,
                refused=kind != ".",
                emitted=right + 1,
                proposed=proposed,
                unasked=unasked if kind == "." else "",
                why=Why(2.5 if right else 1.0, 0.5, 0.25, 4.0, 0.07, 0.13) if why else None,
                **spent,
            )
        )
        emissions += [Emission(1, kind, round=number) for _ in range(right)] + [Emission(1, "", round=number)]
    return made, emissions


def test_phases_cover_the_text_and_change_where_the_source_does() -> None:
    found = phases(*rounds("." * 10 + "a" * 10 + "b" * 10))
    assert [phase.kind for phase in found] == [NO_DRAFT, "a", "b"]
    assert [(phase.first, phase.tokens) for phase in found] == [(1, 10), (11, 30), (41, 30)]


@pytest.mark.parametrize("kinds", ["", ".", "ax.ax.ax.", "." * 7 + "a" + "." * 7, "xxxxaxxxx" * 3, "abababab.x"])
def test_no_phase_is_shorter_than_one_can_read(kinds: str) -> None:
    made, emissions = rounds(kinds)
    found = phases(made, emissions)
    assert sum(phase.tokens for phase in found) == len(emissions)
    assert sum((phase.rounds for phase in found), ()) == tuple(made)
    assert all(len(phase.rounds) >= SHORTEST for phase in found) or len(found) == 1


def test_a_source_that_is_right_at_times_is_not_called_wrong() -> None:
    [phase] = phases(*rounds("xaxaxaxaxaxa"))
    assert phase.kind == "a"
    [phase] = phases(*rounds("xxxxxxxxaxxxxx"))
    assert phase.kind == MISSED


def test_what_was_sent_is_never_put_down_to_no_draft() -> None:
    [phase] = phases(*rounds(".a..a..a..."))
    assert phase.kind == NO_DRAFT
    assert "1.1 of 6.0 proposed nodes sent, all of them in a few rounds" in phase.sentence()
    [phase] = phases(*rounds("xxxxxxxxaxxxxx"))
    assert "hardly any of them right" in phase.sentence()
    [phase] = phases(*rounds("xxxxxx"))
    assert "none of them right" in phase.sentence()


def test_sentences_say_what_it_brought_and_what_else_it_would_have_cost() -> None:
    first, second = (phase.sentence() for phase in phases(*rounds("." * 8 + "a" * 10)))
    assert "tokens 1-8" in first
    assert "chance of 0.07" in first
    assert "costs 0.13 tokens" in first
    assert "tokens 9-38" in second
    assert "4.0 of 6.0 proposed" in second
    assert "from a" in second
    assert "expected 2.50 tokens a round, came 3.00" in second
    assert "took 5.00 s, without drafts about 7.50 s" in second


def test_a_planner_that_expects_nothing_is_quoted_with_nothing() -> None:
    [phase] = phases(*rounds("a" * 6, why=False))
    assert phase.expected is phase.seconds_plain is None
    assert "expected" not in phase.sentence()
    assert "without drafts" not in phase.sentence()


def test_rounds_without_a_draft_have_the_reason_that_they_had() -> None:
    """A back-off is told where the planner backed off, and nowhere else."""
    reasons = {
        "the method is plain": {"method": "plain"},
        "the method proposed nothing": {"method": Silent(), "planner": "fixed:4"},
        "the budget was empty": {"method": Silent(), "planner": "fixed:0"},
        BACKED_OFF: {"method": Silent(), "planner": Resting()},
    }
    lm = paceline.LanguageModel(paceline.testing.habitual())
    for reason, how in reasons.items():
        [sentence] = lm.generate([1, 2], max_new_tokens=12, **how).explain()
        assert f": no draft: {reason}; took" in sentence
        assert all(other not in sentence for other in reasons if other != reason)
    [sentence] = lm.generate([1, 2], max_new_tokens=1, method=Silent(), planner="fixed:4").explain()
    assert "no draft: there was room for one token only" in sentence
    [phase] = phases(*rounds("...a...", why=False, unasked=BACKED_OFF))
    assert f"hardly anything sent, in 6 of 7 rounds since {BACKED_OFF}" in phase.sentence()


class Silent(paceline.Drafter):
    """Proposes nothing."""

    name = "silent"

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain([])


class Resting(Planner):
    """Backs off in every round."""

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        return [Budget(0, 0, BACKED_OFF)] * len(rooms)


def test_what_was_expected_is_plain_data_in_a_round() -> None:
    [made], _ = rounds("a")
    assert asdict(made)["why"]["rate"] == 4.0
