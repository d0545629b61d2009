"""The scripts of the paper on cross-family drafting for Polish: energy follows from watts and speeds, acceptance is
counted in units that a draft's length moves differently, and a run of two tokenizers has all tables."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline_lab import open_vocabulary
from paper_items import shown
from papers.bielik import buckets, measured, rewind, speed
from papers.bielik.energy import MACHINES, Machine
from papers.bielik.measured import (
    DRAFTED,
    OWN,
    PRINTED,
    STAND_INS,
    STRATEGIES,
    UNITS,
    WRITTEN,
    Text,
    is_called,
    percent,
)
from papers.bielik.rewind import Count, common, replayed, translated


def test_the_arithmetic_of_the_paper() -> None:
    """Section 6.6: 30 W at 15 tokens/s, and 50 texts of 128 tokens."""
    one = Machine("", 30, None, 15)
    assert one.joules_per_token == 2.0
    assert one.watt_hours(50 * 128) == pytest.approx(12_800 / 3600)
    assert [f"{row.joules_per_token:.1f}" for row in MACHINES] == [str(row.printed) for row in MACHINES]


def test_where_its_text_does_not_follow_from_its_table_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown("bielik", "table12", "--watts", 30, "--tokens-per-second", 20)
    lines = capsys.readouterr().out.splitlines()
    assert [one["agrees"] for one in found["claims"]] == [True, False, False]
    assert found["claims"][1]["ours"].startswith("1.6 ")
    assert found["claims"][2]["ours"] == "1,200 Wh, 2.8 times the M2 Pro system's 427"
    assert any(line.startswith("| this machine, as stated") and "1.50" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--watts", "30"], "give --watts W and --tokens-per-second R"),
        (["--watts", "0", "--tokens-per-second", "15"], "more than 0"),
        (["--watts", "nan", "--tokens-per-second", "15"], "more than 0"),
        (["--watts", "30", "--tokens-per-second", "15", "--texts", "0"], "at least 1"),
    ],
)
def test_bad_numbers_are_told(given: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shown("bielik", "table12", *given)


# --- acceptance


def text(rounds: int, accepted: int, k: int) -> Text:
    """Every round drafts k tokens of both vocabularies."""
    return Text(rounds, rounds + accepted, rounds * k, accepted, rounds * k, 0)


def test_units_of_acceptance() -> None:
    one = Text(rounds=10, emitted=16, drafted=24, accepted=6, draft_tokens=20, rolled_back=0)
    assert {unit: of(one) for unit, of in UNITS.items()} == {DRAFTED: 6 / 24, OWN: 6 / 20, WRITTEN: 6 / 16}
    assert all(math.isnan(of(Text(0, 0, 0, 0, 0, 0))) for of in UNITS.values())


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
def test_only_the_share_of_emitted_tokens_rises_with_the_length_of_drafts(chance: float) -> None:
    """Where every token is accepted by the same chance if the one before it was."""
    texts = [text(1000, round(1000 * sum(chance**i for i in range(1, k + 1))), k) for k in (2, 4, 6)]
    for unit, of in UNITS.items():
        found = [of(one) for one in texts]
        assert found == sorted(found, reverse=unit != WRITTEN)
    assert all(UNITS[WRITTEN](one) <= k / (k + 1) for one, k in zip(texts, (2, 4, 6), strict=True))


def test_texts_without_drafts_count_in_no_mean() -> None:
    assert percent([text(10, 4, 2), Text(10, 10, 0, 0, 0, 0)]) == "20.0%"
    assert percent([Text(10, 10, 0, 0, 0, 0)]) == percent([]) == "no drafts"
    assert percent([text(10, n, 2) for n in (2, 4, 6)]) == "20.0% ± 24.8"


def test_the_papers_cells_stand_beside_their_drafters() -> None:
    assert len(PRINTED) == 9 * 3 + 9 + 3
    assert measured.printed("Qwen/Qwen2.5-1.5B-Instruct", "naive", "Synthetic", 2) == "4.9"
    assert measured.printed("pocket-foreign", "naive", "Synthetic", 2) == "16.7 / 3.1 / 4.9"
    assert measured.printed("pocket-foreign", "lattice", "Synthetic", 2) == ""
    assert is_called("speakleash/Bielik-1.5B-v3.0-Instruct", "Bielik-1.5B")
    assert not is_called("speakleash/Bielik-11B-v3.0-Instruct", "Bielik-1.5B")


TINY = ["--limit", "1", "--max-new-tokens", "8"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """An item without a data folder, and its data."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    return partial(shown, "bielik")


def test_acceptance_counts_every_strategy(run: Run) -> None:
    found = run("acceptance", *TINY, "--k", "2", "3")
    cells = {(one["strategy"], one["k"]): Text(**one["texts"][0]) for one in found["cells"]}
    assert cells.keys() == {(name, k) for name in STRATEGIES for k in (2, 3)}
    assert {one["dataset"] for one in found["cells"]} == {"Synthetic"}
    assert all(one.emitted - one.accepted == one.rounds for one in cells.values())
    assert cells["naive", 2].draft_tokens == cells["context-aware", 2].draft_tokens > 0
    assert any("Synthetic is not here; in its place stand questions written" in note for note in found["notes"])
    assert [note.partition(" is left out")[0] for note in found["notes"][:2]] == [*STAND_INS][:2]


def test_content_has_the_kinds_that_are_there(run: Run) -> None:
    found = run("content", *TINY, "--strategies", "context-aware")
    assert {one["kind"] for one in found["cells"]} == {"lists", "numbers", "stories", "questions"}
    assert [claim["claim"].partition(":")[0] for claim in found["claims"]] == ["pocket-foreign, context-aware"]


def test_a_race_fills_the_tables_of_speed_buckets_and_break_even(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"prompt": "Za lasem"}\n{"prompt": "Nad rzeką"}\n', encoding="utf8")
    given = ["--model", "pocket", "--k", "2", "4", "--strategies", "context-aware", "naive", "--out", "out"]
    found = run("speed", "--limit", "2", "--max-new-tokens", "8", *given, "--prompts", f"Wikipedia={own}")
    (summary,) = found["runs"].values()
    entries = [
        speed.method("pocket-foreign", *how) for how in (("context-aware", 2), ("naive", 2), ("context-aware", 4))
    ]
    assert summary["entries"] == ["plain", *entries]
    assert summary["tasks"] == ["Wikipedia", "Synthetic"]
    assert all(one["verdicts"] == {"equal": 4} for name, one in summary["overall"].items() if name != "plain")
    bucketed = run("buckets", "out/pocket", "--unit", "emitted")["buckets"]
    assert all(sum(map(len, one["gains"])) <= 2 for one in bucketed)
    assert {one["entry"] for one in bucketed} == set(entries)
    conditions = run("breakeven", "out/pocket", "--unit", "k", "--ratio", "0.5")["conditions"]
    assert {one["k"] for one in conditions} == {2, 4}
    with pytest.raises(ValueError, match="the formula is of drafted tokens"):
        run("breakeven", "out/pocket", "--unit", "emitted", "--ratio", "0.5")


@pytest.mark.parametrize(
    ("item", "given", "said"),
    [
        ("acceptance", ["--k", "0"], "--k must be at least 1, not 0"),
        (
            "acceptance",
            ["--strategies", "context"],
            "there is no strategy 'context'; there are 'no translation', 'naive'",
        ),
        ("acceptance", ["--model", "pocket", "pocket-draft"], "acceptance is of one target model"),
        ("acceptance", [*TINY, "--draft-model", "no-such-model"], "nothing could be measured: .*no-such-model"),
        ("acceptance", [*TINY, "--prompts", "Wikipedia=nowhere.jsonl"], "there is no file nowhere.jsonl"),
        ("content", ["--k", "2", "4"], "one target model and one k"),
        ("speed", ["--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        ("buckets", ["--unit", "k"], "--unit belongs to a run"),
        ("buckets", ["nowhere"], "nowhere holds no run"),
        ("rewind", ["--prefix", "0"], "must be at least 1"),
        ("rewind", ["--tokenizers", "pocket"], "name two with --tokenizers TARGET DRAFTER"),
    ],
)
def test_bad_options_are_told(item: str, given: list[str], said: str, run: Run) -> None:
    with pytest.raises(ValueError, match=said):
        run(item, *given)


# --- buckets


def test_a_bucket_has_its_lower_end() -> None:
    assert [buckets.bucket(alpha) for alpha in (0.0, 0.299, 0.3, 0.45, 0.5, 0.7, 1.0)] == [0, 0, 1, 2, 3, 5, 5]


@pytest.mark.parametrize("form", buckets.FORMS)
def test_the_cost_of_a_round_is_found_again(form: str) -> None:
    alphas = [0.1, 0.3, 0.6]
    found, off = buckets.cost(alphas, [buckets.FORMS[form](alpha, 4) / 2.5 for alpha in alphas], 4, form)
    assert (found, off) == (pytest.approx(2.5), pytest.approx(0))


def test_the_papers_buckets_are_nearer_to_a_share_of_emitted_tokens(run: Run) -> None:
    found = run("buckets")
    costs = {(one["form"], one["k"]): one["cost"] for one in found["costs"]}
    line, share = buckets.FORMS
    assert [f"{costs[line, k]:.2f}" for k in (2, 4, 6)] == ["1.81", "4.57", "9.04"]
    assert [f"{costs[share, k]:.2f}" for k in (2, 4, 6)] == ["1.76", "3.26", "4.64"]
    assert found["claims"][0]["agrees"] is False


# --- context and rewinding

POLISH = "W pierwszą niedzielę wiosny cała ulica jak co roku wynosiła stoły przed domy, a dzieci biegały dookoła."


def test_what_a_draft_changes_before_it_is_merged() -> None:
    target = open_vocabulary("pocket")
    for cut in range(1, len(POLISH) - 5):
        before, draft = POLISH[max(0, cut - 9) : cut], POLISH[cut : cut + 5]
        one = translated(target, before, draft)
        alone, both = (rewind.encoded(target, of) for of in (before, before + draft))
        assert one.tokens == both[len(alone) :]
        assert one.merged == len(alone) - common(alone, both)
    assert translated(target, "", POLISH).tokens == rewind.encoded(target, POLISH)


class Pairs:
    """A tokenizer of pairs of letters; what is left of a word joins the last pair. ``size`` 1 has single letters."""

    def __init__(self, size: int = 2) -> None:
        self.size = size

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        parts = [text[at : at + self.size] for at in range(0, len(text), self.size)]
        if len(parts) > 1 and len(parts[-1]) < self.size:
            parts[-2:] = ["".join(parts[-2:])]
        return [int.from_bytes(part.encode()) for part in parts]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(token.to_bytes(8).strip(b"\0").decode() for token in ids)


def test_a_draft_that_merges_with_the_text_stalls_and_rewinding_scores_its_rows_again() -> None:
    target, drafter = Pairs(), Pairs(1)
    context, rewound = (replayed(target, drafter, "abcdefgh", way, 1) for way in ("context:1", "rewind:1"))  # type: ignore[arg-type]
    assert context == Count(rounds=2, stalled=2, changed=2)
    assert rewound == Count(rounds=2, drafted=2, stalled=2, changed=2, extra=2)
    for way in ("context:1", "rewind:1"):
        found = replayed(target, drafter, "abcdefgh", way, 2)  # type: ignore[arg-type]
        assert found == Count(rounds=1, drafted=1, accepted=1, by_bytes=1)


def test_every_round_of_a_replay_brings_its_accepted_tokens_and_one_more() -> None:
    target, drafter = open_vocabulary("pocket"), open_vocabulary("pocket-foreign")
    tokens = len(rewind.encoded(target, POLISH))
    for way in ("naive", "bare", "context:1", "rewind:5"):
        one = replayed(target, drafter, POLISH, way, 2)
        begun = max(1, int(way.partition(":")[2] or 0))
        assert 0 < one.accepted <= one.by_bytes <= one.drafted
        assert tokens - 1 <= begun + one.rounds + one.accepted <= tokens + 1


def test_a_drafter_with_the_targets_tokenizer_loses_nothing_to_translation() -> None:
    target = open_vocabulary("pocket")
    found = replayed(target, target, POLISH, "context:5", 3)
    assert found.accepted >= found.drafted - 3


def test_rewinding_is_counted_on_texts_of_ones_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(POLISH + "\n" + "za krótko\n", encoding="utf8")
    given = ["--tokenizers", "pocket", "pocket-foreign", "--texts", "pl=own.txt", "--k", "2"]
    found = run("rewind", *given)
    assert found["notes"][0].startswith("target pocket; 1 Polish texts own.txt")
    assert len(found["counts"]) == 6
    (tmp_path / "own.txt").write_text("za krótko\n", encoding="utf8")
    with pytest.raises(ValueError, match="there is no line of more than 100 characters"):
        run("rewind", *given)
