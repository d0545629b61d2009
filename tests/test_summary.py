"""A summary says what the records say, in the words of the house; and it warns where there is cause."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline_lab.bench.run.directory import Run, read
from paceline_lab.bench.run.record import SPLIT, TextVerdict
from paceline_lab.bench.statistics import Estimate
from paceline_lab.bench.summary import Figures, Summary
from paceline_lab.bench.warnings import warnings
from runs import made_run


def figures(summary: Summary, entry: str, task: str | None = None, language: str | None = None) -> Figures:
    found = summary.figures(entry, task, language)
    assert found is not None
    return found


def changed(run: Run, entry: str, number: int = 0, **fields: Any) -> Run:
    """The run with one text of an entry changed."""
    places = [place for place, record in enumerate(run.records) if record.entry == entry]
    run.records[places[number]] = replace(run.records[places[number]], **fields)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_run(tmp_path / "run")


def test_made_runs_come_again_and_are_read_back(tmp_path: Path) -> None:
    one, two = made_run(tmp_path / "a"), made_run(tmp_path / "b")
    assert one.records == two.records == read(tmp_path / "a").records
    other = made_run(tmp_path / "c", seed=1)
    assert [r.tokens for r in other.records] == [r.tokens for r in one.records]
    assert [r.seconds for r in other.records] != [r.seconds for r in one.records]


# --- figures ------------------------------------------------------------------------------------------------


def test_words_mean_what_they_mean_everywhere(run: Run) -> None:
    summary = Summary(run)
    for entry in ("plain", "lookup", "assistant"):
        found = figures(summary, entry)
        rounds = [r for record in run.records if record.entry == entry for r in _rounds(record.rounds)[1:]]
        drafting = [r for r in rounds if r["drafted"]]
        accepted, drafted = sum(r["accepted"] for r in rounds), sum(r["drafted"] for r in rounds)
        assert found.rounds == len(rounds)
        assert found.tokens_per_round == pytest.approx(sum(r["emitted"] for r in rounds) / len(rounds))
        assert found.mean_accepted == pytest.approx(found.tokens_per_round - 1)
        assert found.coverage == pytest.approx(len(drafting) / len(rounds))
        assert found.rounds_by_tokens == Counter(r["emitted"] for r in rounds)
        if drafting:
            assert found.accepted_per_draft == pytest.approx(accepted / len(drafting))
            assert found.acceptance_rate == pytest.approx(accepted / drafted)
            assert sum(found.acceptance_per_position) == pytest.approx(found.accepted_per_draft)
            assert sum(found.drafted_per_position) == pytest.approx(drafted / len(drafting))
            pairs = zip(found.acceptance_per_position, found.drafted_per_position, strict=True)
            assert all(taken <= offered for taken, offered in pairs)
        else:
            assert (found.accepted_per_draft, found.acceptance_rate) == (None, None)
            assert found.acceptance_per_position == []


def test_the_round_of_the_prompt_brings_no_token_and_takes_no_seconds(run: Run) -> None:
    """Its token and its time are the prompt's; a first round that has either a draft or seconds is one like others."""
    summary, mine = Summary(run), [record for record in run.records if record.entry == "lookup"]
    columns = [record.rounds for record in mine if record.rounds is not None]
    rounds = sum(len(one["emitted"]) - 1 for one in columns)
    found = figures(summary, "lookup")
    assert found.rounds == rounds
    assert found.tokens_per_round == pytest.approx(sum(record.decoded for record in mine) / rounds)
    assert summary.rounds.scoring.min() > 0
    assert figures(summary, "plain").tokens_per_round == 1.0
    columns[0]["seconds_score"][0] = 0.02
    assert figures(Summary(run), "lookup").rounds == rounds + 1


def _rounds(columns: dict[str, list[float]] | None) -> list[dict[str, float]]:
    assert columns is not None
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_speed_is_all_tokens_over_all_seconds_and_ratios_are_of_neighbours(run: Run) -> None:
    found = figures(Summary(run), "lookup")
    mine = [record for record in run.records if record.entry == "lookup"]
    plain = {(r.pair, r.prompt): r for r in run.records if r.entry == "plain"}
    tokens, seconds = sum(r.decoded for r in mine), sum(r.seconds_decode for r in mine)
    base = sum(r.decoded for r in plain.values()) / sum(r.seconds_decode for r in plain.values())
    assert found.tokens_per_second == pytest.approx(tokens / seconds)
    assert found.speed_up is not None
    assert found.speed_up_of_means is not None
    ratios = [(r.speed or 0) / (plain[r.pair, r.prompt].speed or 1) for r in mine]
    assert found.speed_up.value == pytest.approx(np.mean(ratios))
    assert found.speed_up_of_means.value == pytest.approx(tokens / seconds / base)
    assert found.speed_up.low < found.speed_up.value < found.speed_up.high
    assert figures(Summary(run), "plain").speed_up == Estimate(1, 1, 1)


def test_a_machine_that_slows_down_moves_no_speed_up(tmp_path: Path) -> None:
    steady = Summary(made_run(tmp_path / "a", stall=False, noise=0.001))
    slower = Summary(made_run(tmp_path / "b", stall=False, noise=0.001, drift=1.0))
    for entry in ("lookup", "assistant", "transformers"):
        one, two = (figures(summary, entry).speed_up for summary in (steady, slower))
        assert one is not None
        assert two is not None
        assert two.value == pytest.approx(one.value, rel=0.03)
    assert (figures(slower, "plain").tokens_per_second or 0) < 0.8 * (figures(steady, "plain").tokens_per_second or 0)


def test_another_entry_may_be_the_base(run: Run) -> None:
    over_plain, over_lookup = Summary(run), Summary(run, "lookup")
    assert figures(over_lookup, "lookup").speed_up == Estimate(1, 1, 1)
    one = figures(over_plain, "lookup").speed_up_of_means
    back = figures(over_lookup, "plain").speed_up_of_means
    assert one is not None
    assert back is not None
    assert back.value == pytest.approx(1 / one.value)
    with pytest.raises(ValueError, match="has no entry 'eagle'; it has plain, lookup, assistant, transformers"):
        Summary(run, "eagle")


def test_cells_rows_and_columns_hold_their_own_texts(run: Run) -> None:
    summary = Summary(run)
    assert len(summary.cells()) == 6
    of_cells = [figures(summary, "plain", *cell) for cell in summary.cells()]
    assert sum(cell.texts for cell in of_cells) == figures(summary, "plain").texts
    assert sum(figures(summary, "plain", None, language).texts for language in summary.languages) == 54
    assert figures(summary, "plain", "mt_bench", "pl").texts == 3 * 2 * 2
    assert summary.figures("plain", "rag") is None
    assert summary.figures("nobody") is None


def test_in_means_every_task_and_every_language_weighs_the_same(run: Run) -> None:
    """Questions of mt_bench have two turns, and so twice the texts; one cell is left out."""
    run.records = [one for one in run.records if (one.task, one.language) != ("qa", "ja")]
    summary = Summary(run)
    found = summary.means("lookup")
    for name in ("speed_up", "tokens_per_round"):
        tasks = [getattr(figures(summary, "lookup", task), name) for task in ("mt_bench", "qa")]
        assert value_of(getattr(found, name)) == pytest.approx(sum(map(value_of, tasks)) / 2)
        cells = {place: value_of(getattr(figures(summary, "lookup", *place), name)) for place in summary.cells()}
        of = {name: [value for (_, spoken), value in cells.items() if spoken == name] for name in summary.languages}
        means = [sum(values) / len(values) for values in of.values()]
        assert value_of(getattr(summary.means("lookup", "language"), name)) == pytest.approx(sum(means) / 3)
        assert value_of(getattr(summary.means("lookup", language="pl"), name)) == pytest.approx(
            sum(cells[task, "pl"] for task in ("mt_bench", "qa")) / 2
        )
    tasks = [value_of(figures(summary, "lookup", task).speed_up_of_means) for task in ("mt_bench", "qa")]
    assert value_of(found.speed_up_of_means) == pytest.approx(sum(tasks) / 2)
    assert value_of(found.speed_up) != pytest.approx(value_of(figures(summary, "lookup").speed_up), rel=1e-6)
    assert summary.means("plain").speed_up == Estimate(1, 1, 1)
    assert summary.means("transformers").tokens_per_round is not None


def test_languages_weigh_the_same_where_pairs_lack_a_cell(run: Run) -> None:
    """A task without speeds leaves its language with the other task, as heavy as before."""
    run.records = [
        replace(one, seconds_decode=0.0) if (one.task, one.language) == ("qa", "ja") else one for one in run.records
    ]
    summary = Summary(run)
    cells = [place for place in summary.cells() if place != ("qa", "ja")]
    of = {place: value_of(figures(summary, "lookup", *place).speed_up) for place in cells}
    means = [np.mean([of[place] for place in cells if place[1] == name]) for name in summary.languages]
    assert value_of(summary.means("lookup", "language").speed_up) == pytest.approx(np.mean(means))


def value_of(found: Any) -> float:
    return float(found.value if isinstance(found, Estimate) else found)


def test_a_peer_tells_no_rounds_and_claims_none(run: Run) -> None:
    found = figures(Summary(run), "transformers")
    assert found.rounds is found.stalls is found.mean_accepted is found.acceptance_rate is found.coverage is None
    assert (found.split, found.rounds_by_tokens, found.acceptance_per_position) == ({}, {}, [])
    assert found.tokens_per_round == pytest.approx(1.0)
    assert found.speed_up is not None


def test_a_peer_whose_tokens_come_at_once_has_no_speed(run: Run) -> None:
    for number in range(54):
        changed(run, "transformers", number, seconds_decode=0.0, decoded=0)
    found = figures(Summary(run), "transformers")
    assert found.speed_up is found.speed_up_of_means is found.tokens_per_second is None


def test_the_split_adds_up_to_the_time(run: Run) -> None:
    for entry in ("plain", "lookup"):
        found = figures(Summary(run), entry)
        seconds = [record.seconds for record in run.records if record.entry == entry]
        assert tuple(found.split) == SPLIT
        assert sum(found.split.values()) == pytest.approx(np.mean(seconds))


def test_repeated_text_stalls_energy_and_memory_are_counted(run: Run) -> None:
    summary = Summary(run)
    plain, lookup = figures(summary, "plain"), figures(summary, "lookup")
    assert (plain.degenerate, figures(summary, "plain", "qa").degenerate) == (4, 0)
    assert 0 < plain.repeated_8grams < 0.2
    assert (lookup.stalls, plain.stalls) == (1, 0)
    assert plain.joules_per_token == pytest.approx(
        sum(r.joules or 0 for r in run.records if r.entry == "plain") / plain.tokens
    )
    assert plain.peak_bytes == 305_000_000
    assert plain.verdicts == {"reference": 54}


def test_flips_are_counted_of_texts_that_were_walked(run: Run) -> None:
    changed(run, "lookup", 0, verdict=TextVerdict.FOLLOWED, flips=2)
    changed(run, "lookup", 1, verdict=TextVerdict.FOLLOWED)
    tokens = sum(len(record.tokens) for record in run.records if record.verdict is TextVerdict.FOLLOWED)
    assert figures(Summary(run), "lookup").flips_per_1000 == pytest.approx(2000 / tokens)
    assert figures(Summary(run), "assistant").flips_per_1000 is None


def test_latency_where_prompts_arrive(tmp_path: Path) -> None:
    assert figures(Summary(made_run(tmp_path / "a")), "plain").latency == {}
    run = made_run(tmp_path / "b", recipe={"qps": 2.0})
    latency = figures(Summary(run), "plain").latency
    last = [record.seconds for record in run.records if record.entry == "plain"]
    assert latency["last"]["p90"] == pytest.approx(np.percentile(last, 90))
    assert latency["first"]["p50"] < latency["first"]["p99"] < latency["last"]["p50"]


def test_everything_is_plain_data(run: Run) -> None:
    found = json.loads(json.dumps(Summary(run).as_dict()))
    assert set(found["overall"]) == set(run.entries)
    assert found["overall"]["lookup"]["speed_up"]["low"] < 1.1
    assert [cell["task"] for cell in found["cells"]] == ["mt_bench"] * 3 + ["qa"] * 3
    assert all(isinstance(sentence, str) for sentence in warnings(Summary(run)))


# --- warnings -----------------------------------------------------------------------------------------------


def told(run: Run, words: str) -> list[str]:
    return [sentence for sentence in warnings(Summary(run)) if words in sentence]


@pytest.fixture
def calm(tmp_path: Path) -> Run:
    """A run that gives no cause for a warning."""
    return made_run(tmp_path / "calm", degenerate=False, stall=False, joules=False, prompts=8, noise=0.01, drift=0.01)


FEW: dict[str, Any] = {"tasks": ("qa",), "languages": ("en", "pl")}
ONE: dict[str, Any] = {"languages": ("en",), "prompts": 1}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"finished": False}, "not finished: 12 of 12 units are written"),
        ({"missing": {"mlx-lm": "it is not installed"}}, "mlx-lm is missing: it is not installed"),
        ({"recipe": {"warm": True}}, "kept what they learnt"),
        ({"recipe": {"follow": True}}, "followed plain decoding's recorded text"),
        ({"recipe": {"qps": 2.5}}, "prompts arrived, 2.5 a second"),
        ({"joules": True}, "energy is an estimate from a stated power of 30 W, not measured"),
        ({"degenerate": True}, "2 of 12 texts of plain loop"),
        ({"repeats": 1}, "written once"),
        ({"drift": 0.4, "prompts": 9}, "slower at the end than at the beginning"),
        (ONE | {"prompts": 4, "noise": 0.4}, "unstable: speed-ups are uncertain by ±"),
        ({"prompts": 1, "noise": 1.5, "repeats": 1}, "unstable: the speed-up of lookup, assistant"),
        (ONE, "so there is no interval around the speed-up of lookup, assistant, transformers"),
    ],
)
def test_what_must_be_known_is_told(asked: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert told(made_run(tmp_path / "run", **FEW | asked), words)


def test_a_peer_on_another_device_is_told(calm: Run) -> None:
    calm.about.entries[-1]["device"] = "cpu"
    assert not told(calm, "on the CPU")
    calm.about.model["device"] = "cuda:0"
    (sentence,) = told(calm, "computed on the CPU, and the target on cuda:0: --device cpu has all on one")
    assert sentence.startswith(calm.about.entries[-1]["name"])


def test_a_calm_run_has_no_warning(calm: Run) -> None:
    assert warnings(Summary(calm)) == []


def test_times_that_differ_make_a_run_unstable(calm: Run) -> None:
    first = calm.records[0]
    changed(calm, "plain", seconds_decode=2 * first.seconds_decode)
    assert told(calm, "unstable: times of the same text differ by up to 2.0x between repeats, of 1 of")


def test_many_stalls_make_a_run_unstable_and_one_is_told(calm: Run) -> None:
    record = next(record for record in calm.records if record.entry == "plain")
    assert record.rounds is not None
    record.rounds["seconds_score"][3] += 1
    assert told(calm, "more than five times") == [
        "rounds took more than five times the median round: 1 of 5036 (plain)"
    ]
    for others in calm.records:
        if others.entry == "plain" and others.rounds is not None:
            others.rounds["seconds_read"][1] += 1
    assert told(calm, "unstable: rounds took more than five times the median round: 145 of 5036 (plain)")


def test_texts_that_are_not_plain_decodings_are_told(calm: Run) -> None:
    changed(calm, "lookup", verdict=TextVerdict.BUG, parts_at=6)
    changed(calm, "transformers", verdict=TextVerdict.DIFFERENT, parts_at=0)
    changed(calm, "assistant", verdict=TextVerdict.NEAR_TIE, parts_at=3)
    changed(calm, "assistant", 1, verdict=TextVerdict.NOT_RESCORED, parts_at=3)
    bug, *rest = warnings(Summary(calm))
    assert "lookup wrote another text than plain in 1 of 144 texts" in bug
    assert "from token 7 on" in bug
    assert "this is a bug" in bug
    assert ["another library" in s for s in rest] == [True, False, False]
    assert told(calm, "part from plain's at a near tie of the arithmetic, so not the same work was done: 1 (assistant)")


def test_a_cause_is_said_once_for_all_entries(tmp_path: Path) -> None:
    for asked in ({"noise": 0.5, "prompts": 4}, {"prompts": 1, "languages": ("en",)}, {"prompts": 2, "noise": 1.0}):
        found = warnings(Summary(made_run(tmp_path / str(len(list(tmp_path.iterdir()))), **FEW | asked)))
        causes = [re.sub(r"[\d.]+%?|\(?(plain|lookup|assistant|transformers)\)?,?", "", sentence) for sentence in found]
        assert len(causes) == len({*causes})


def test_sittings_that_differ_are_told(calm: Run) -> None:
    first = calm.about.sittings[0]
    again = {**first, "threads": 4, "versions": {**first["versions"], "torch": "2.10.0"}, "load": 3.5}
    calm.about.sittings.append({**again, "git": {"commit": "1234567", "changed": True}})
    found = warnings(Summary(calm))
    for words in ("differ in torch: 2.9.0 and 2.10.0", "differ in threads: 2 and 4", "(commit): abcdef0 and 1234567"):
        assert any(words in sentence for sentence in found)
    assert any("load 3.5 on 2 cores" in sentence for sentence in found)


def test_a_peer_that_parts_in_the_warm_up_is_told(calm: Run) -> None:
    calm.about.warm_up["transformers"] = {"tokens": 16, "same": False, "verdict": "near tie", "parts_at": 4}
    assert told(calm, "transformers parted from plain at token 5 of the greedy warm-up: a near tie")
    calm.about.warm_up["transformers"] |= {"verdict": "different"}
    assert told(calm, "at token 5 of the greedy warm-up: rounding does not explain it")


def test_a_replay_has_no_times_to_warn_of(calm: Run) -> None:
    calm.records[:] = [replace(record, seconds_decode=0.0) for record in calm.records]
    calm.about.sittings[0] |= {"load": 64.0}
    assert not told(calm, "unstable")
    assert not told(calm, "the machine was at work")


def test_a_run_without_texts_is_told(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", prompts=1)
    run.records.clear()
    summary = Summary(run)
    assert warnings(summary) == ["not a single text is finished"]
    assert summary.figures("plain") is None
    assert summary.cells() == []
