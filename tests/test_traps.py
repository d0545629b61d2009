"""The nine traps that a widely used benchmark of speculative decoding fell into, each with what catches it here.

The first (methods that count their own tokens, also those behind the end) is caught in `test_run`.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import habitual, tabled
from paceline.context import Context
from paceline.drafters import Budget, Drafter, make_drafter
from paceline.engine.serial import run as drive
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, DraftTree
from paceline_lab.bench.compare import Between
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, Written
from paceline_lab.bench.run.directory import Run, read
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.run.record import Record, TextVerdict
from paceline_lab.bench.summary import Summary
from paceline_lab.bench.warnings import warnings
from refereed import Echo, encode, finished, prompts, refereed
from runs import made_run
from test_cli import say


def texts(run: Run, entry: str) -> list[Record]:
    return [record for record in run.records if record.entry == entry]


def plain_text() -> list[int]:
    session = Ours("plain", tabled(), DraftedBy()).session(_job())
    list(drive(session))
    return session.context.emitted.tolist()


def _job() -> Job:
    return Job(prompt=encode(prompts()[0], 0, ()), sampling=Sampling(), max_new_tokens=12, eos=frozenset())


# --- 2: a base that runs on a slower cache than the methods --------------------------------------------------


class Watched(TableTarget):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(habitual(), 6)
        self.asked: list[tuple[str, Any]] = []

    def open(self, capacity: int) -> Any:
        rows = super().open(capacity)
        self.asked.append(("open", (capacity, type(rows))))
        return rows

    def submit(self, requests: Any) -> Any:
        self.asked.append(("submit", len(requests)))
        return super().submit(requests)


class Silent(Drafter):
    """A method that never has anything to say."""

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return EMPTY


def test_2_a_method_that_drafts_nothing_does_exactly_what_plain_decoding_does() -> None:
    """Same target, same cache, same loop: the drafts are all that a method has of its own."""
    asked = []
    for make in (make_drafter, lambda spec, model: Silent()):
        target = Watched()
        who = Ours("plain", target, DraftedBy(make=make))
        list(drive(who.session(_job())))
        asked.append(target.asked)
    assert asked[0] == asked[1]
    assert Counter(what for what, _ in asked[0])["submit"] >= 12


def test_2_all_our_methods_write_on_one_target_with_one_kind_of_cache() -> None:
    target = tabled()
    sessions = [Ours(spec, target, DraftedBy()).session(_job()) for spec in ("plain", "lookup", "lookup:max_ngram=1")]
    assert {id(session.target) for session in sessions} == {id(target)}
    assert len({type(session.rows) for session in sessions}) == 1


# --- 3: an error that is swallowed, and the time of the text before kept -------------------------------------


def test_3_an_error_ends_the_run_and_leaves_no_time(tmp_path: Path) -> None:
    class Failing(Echo):
        def write(self, job: Job, clock: Clock) -> Written:
            if len(self.jobs) == 3:
                raise RuntimeError("out of memory")
            return super().write(job, clock)

    referee = refereed(tmp_path / "run", peers=[Failing([1, 2, 3])])
    with pytest.raises(RuntimeError, match="out of memory"):
        referee.sit()
    kept = read(tmp_path / "run")
    assert len(texts(kept, "echo")) == len(texts(kept, "plain")) == 1
    assert any("not finished" in sentence for sentence in warnings(Summary(kept)))


# --- 4: what is learnt from one question helps with the next -------------------------------------------------


class Pupil(Drafter):
    """Remembers every text it was opened for."""

    def __init__(self, taught: list[int]) -> None:
        self.taught, self.texts = taught, 0

    def open(self, context: Context) -> Context:
        self.taught.append(self.texts)
        self.texts += 1
        return context

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return EMPTY


@pytest.mark.parametrize("warm", [False, True])
def test_4_learning_is_forgotten_between_prompts_or_declared(tmp_path: Path, warm: bool) -> None:
    taught: list[int] = []

    def make(spec: str, model: Any) -> Drafter:
        return make_drafter(spec) if spec == "plain" else Pupil(taught)

    referee = refereed(tmp_path / "run", methods=["plain", "pupil"], make=make, warm=warm, recipe={"warm": warm})
    run = finished(referee)
    assert (max(taught[2:]) > 0) is warm, "the two texts of the warm-up apart"
    declared = {entry["name"]: entry["learning"] for entry in run.about.entries}["pupil"]
    assert ("kept" in declared) is warm
    assert any("kept what they learnt" in sentence for sentence in warnings(Summary(run))) is warm


# --- 5: some end at the end of the text, others go on --------------------------------------------------------


def test_5_all_end_at_the_same_token(tmp_path: Path) -> None:
    plain = plain_text()
    end = plain[5]
    on = Echo(plain)
    run = finished(refereed(tmp_path / "run", workload=prompts(1), peers=[on], eos=frozenset({end})))
    expected = plain[: plain.index(end) + 1]
    assert {tuple(record.tokens) for record in run.records} == {tuple(expected)}
    assert {record.finish for record in run.records} == {"eos"}
    assert {record.verdict for record in run.records} == {TextVerdict.REFERENCE, TextVerdict.EQUAL}
    assert {job.eos for job in on.jobs} == {frozenset({end})}


# --- 6: whether the texts are equal is another script, which nobody runs -------------------------------------


def test_6_the_command_fails_where_a_method_writes_another_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Ours.write

    def elsewhere(who: Ours, job: Job, clock: Clock) -> Written:
        found = written(who, job, clock)
        return found if who.name == "plain" else replace(found, tokens=[*found.tokens[:-1], found.tokens[-1] ^ 1])

    monkeypatch.setattr(Ours, "write", elsewhere)
    suite = tmp_path / "one.jsonl"
    suite.write_text(json.dumps({"prompt": "The old house", "chat": False}) + "\n", encoding="utf8")
    asked = [
        "--suite",
        f"prompts:{suite}",
        "--model",
        "pocket-draft",
        "--method",
        "plain,lookup",
        "--dtype",
        "float32",
    ]
    asked += ["--max-new-tokens", "6", "--temperature", "0", "--energy", "none", "--out", str(tmp_path / "run")]
    code, out, _ = say(["bench", "run", *asked], capsys)
    assert code == 1
    assert "this is a bug" in " ".join(out.split())


# --- 7: a method that fits some models only, and is silently not there for others ----------------------------


def test_7_a_method_that_does_not_fit_the_model_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    class ForAnother(Silent):
        def fit(self, target: Target, vocabulary: Any = None) -> None:
            raise ValueError("this head was trained for another model")

    def make(spec: str, model: Any) -> Drafter:
        return make_drafter(spec) if spec == "plain" else ForAnother()

    with pytest.raises(ValueError, match="trained for another model"):
        refereed(tmp_path / "run", methods=["plain", "head"], make=make)
    assert not (tmp_path / "run").exists()


# --- 8: a ratio of means that is called a speed-up without saying so -----------------------------------------


def test_8_mean_of_ratios_and_ratio_of_means_stand_side_by_side(tmp_path: Path) -> None:
    """One long text that gains nothing beside short ones that gain much: the two say different things, both true."""
    run = made_run(tmp_path / "run", methods=("plain", "lookup"), peers=(), stall=False, degenerate=False)
    for place, record in enumerate(run.records):
        long = record.unit == 0
        gain = 1.0 if record.entry == "plain" or long else 3.0
        tokens = 5000 if long else 20
        run.records[place] = replace(record, decoded=tokens, seconds_decode=tokens / 50 / gain)
    found = Summary(run).figures("lookup")
    assert found is not None
    assert found.speed_up is not None
    assert found.speed_up_of_means is not None
    assert found.speed_up.value > 2.5
    assert found.speed_up_of_means.value < 1.1
    plain = Summary(run).as_dict()["overall"]["lookup"]
    assert {"speed_up", "speed_up_of_means"} <= set(plain)


# --- 9: temperatures above 0 are rarely reported --------------------------------------------------------------


def test_9_sampled_texts_are_run_compared_and_told(tmp_path: Path) -> None:
    drawn = finished(refereed(tmp_path / "drawn", sampling=Sampling(temperature=1.0, seed=5)))
    greedy = finished(refereed(tmp_path / "greedy"))
    assert read(tmp_path / "drawn").about.recipe["temperature"] == 1.0
    assert {record.verdict for record in texts(drawn, "lookup")} == {TextVerdict.EQUAL}
    assert [r.tokens for r in texts(drawn, "plain")] != [r.tokens for r in texts(greedy, "plain")]
    assert "temperature was 0.0 and is 1.0" in Between(greedy, drawn).notes
