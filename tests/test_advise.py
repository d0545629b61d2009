"""Advice: its verdict follows its interval, which holds the truth, and the command says all of it."""

import argparse
import json
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paceline
from clock import MadeClock
from engine import SIZE, habitual
from paceline.cli import main, parser
from paceline.drafters import make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.law import Sampling
from paceline.targets.base import Pending, Request
from paceline.targets.table import Table, TableTarget
from paceline.tree import DraftTree
from paceline_lab.bench.run.contestant import Job
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.statistics import Estimate, SpeedVerdict
from paceline_lab.commands import advise as command
from paceline_lab.machine import advise
from paceline_lab.machine.advise import AUTO, PLAIN, WITH_DRAFTS, Advice, Advisor, Contender, Raced
from paceline_lab.machine.calibrate import Method
from paceline_lab.machine.measuring import Measuring, RoundSeconds, Walk
from paceline_lab.machine.trails import Trail
from thinning import thinned

FORWARD = 8.0
"""Seconds of a forward of the target with one row; next to them, looking at the clock takes no time."""
ROW = 0.5
"""Seconds of each further row."""
SAMPLING = Sampling(temperature=1.0, seed=3)


class Takes(TableTarget):
    """Moves the clock by what its forwards take."""

    def __init__(self, table: Table, forward: float, **options: Any) -> None:
        super().__init__(table, SIZE, **options)
        self._forward = forward

    def submit(self, requests: Sequence[Request]) -> Pending:
        rows = sum(len(request.tokens) for request in requests)
        time.sleep(self._forward * (1 + ROW / FORWARD * (rows - 1)))
        return super().submit(requests)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeClock:
    """All that is timed is timed by it."""
    made = MadeClock()
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, made)
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


def prompts(count: int = 30) -> list[tuple[str, Any]]:
    random = np.random.default_rng(5)
    return [(f"p{number}", random.integers(0, SIZE, 6)) for number in range(count)]


def mistaken(table: Table) -> Table:
    """The same, but for a third of the places, where the best tokens are the worst."""
    return lambda history: [-weight if history[-1] < SIZE // 3 else weight for weight in table(history)]


def advisor(share: float | None, *, perfect: bool = False, **how: Any) -> Advisor:
    """A draft model whose forward takes this share of the target's, or none. The text never repeats itself."""
    table = habitual(memory=8)
    draft = None if share is None else DraftModel(Takes(table if perfect else mistaken(table), share * FORWARD))
    given = {"prompts": prompts(), "sampling": SAMPLING, "max_new_tokens": 24, "seconds": 9000.0} | how
    return Advisor(target=Takes(table, FORWARD), draft=draft, **given)


def speed_ratio(made: Advisor, spec: str, clock: MadeClock) -> float:
    """The mean over texts that the advice has not seen of the speed of a method over plain decoding's."""
    how, ratios = DraftedBy(draft_model=made.draft), []
    plain, other = Ours(PLAIN, made.target, DraftedBy()), Ours(spec, made.target, how)
    for number, (_, prompt) in enumerate(prompts(60)):
        sampling = Sampling(temperature=1.0, seed=100 + number)
        tokens = made.max_new_tokens
        job = Job(prompt=prompt, sampling=sampling, max_new_tokens=2 * tokens, eos=frozenset(), enough=tokens)
        for who in (plain, other):
            who.begin()
        speeds = [who.write(job, clock).speed for who in (plain, other)]
        ratios.append((speeds[1] or math.nan) / (speeds[0] or math.nan))
    return float(np.mean(ratios))


# --- made worlds ---


def test_a_cheap_draft_model_is_turned_on_and_the_interval_holds_its_speed(clock: MadeClock) -> None:
    made = advisor(0.05)
    found = made.run()
    judged = found.judged
    assert [one.name for one in found.raced] == [PLAIN, AUTO, WITH_DRAFTS], "what is recommended was measured"
    assert (found.verdict, found.chosen, judged.spec) == (SpeedVerdict.ON, judged, AUTO)
    assert judged.ratio.low <= speed_ratio(made, AUTO, clock) <= judged.ratio.high
    assert judged.ratio.high <= 1.15 * judged.ratio.value
    assert found.gain.value == pytest.approx(judged.ratio.value / found.without.ratio.value, rel=0.1)
    assert found.best is not None
    assert found.best.price == pytest.approx(0.05, abs=0.02)
    assert found.seconds <= 1.1 * made.seconds


@pytest.mark.slow
def test_the_best_length_follows_the_price_of_drafts(clock: MadeClock) -> None:
    lengths = [best.length for share in (0.01, 0.25) if (best := advisor(share).run().best) is not None]
    assert lengths[0] > lengths[1] >= 1
    perfect = advisor(0.01, perfect=True).run().best
    assert perfect is not None
    assert perfect.length == advise.LONGEST, "a draft model that is always right"
    assert perfect.tokens_per_round == pytest.approx(1 + advise.LONGEST, rel=0.2), "its drafts end where texts end"


def test_an_expensive_draft_model_is_not_turned_on(clock: MadeClock) -> None:
    found = advisor(1.0).run()
    assert found.verdict is not SpeedVerdict.ON, "the planner asks it so rarely that it may make no difference"
    assert not found.chosen.drafts
    assert all(one.ratio.value < 1 for one in found.candidates)


def test_without_a_draft_model_drafting_is_judged_against_plain_decoding(clock: MadeClock) -> None:
    found = advisor(None).run()
    assert [one.name for one in found.raced] == [PLAIN, AUTO]
    assert (found.judged.name, found.without.name, found.best, found.candidates) == (AUTO, PLAIN, None, [])
    assert found.gain == found.judged.ratio
    assert "p0" in found.texts, "no prompt is spent on a draft model"
    assert found.seconds <= 1.1 * 9000


@pytest.mark.slow
def test_prompts_of_the_choice_and_of_the_race_are_different(clock: MadeClock) -> None:
    few = advisor(0.05, prompts=prompts(4)).run()
    assert set(few.texts) == {"p1", "p2", "p3"}, "three prompts again and again, but not the first"
    many = advisor(0.05).run()
    assert "p6" in many.texts
    assert not {f"p{number}" for number in range(6)} & {*many.texts}


def test_every_text_has_noise_of_its_own(clock: MadeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that share their noise are alike, and an interval over them is too narrow."""
    seeds: dict[str, set[int]] = {}
    write = Ours.write

    def watched(who: Ours, job: Job, clock: Any) -> Any:
        seeds.setdefault(who.name, set()).add(job.sampling.seed)
        return write(who, job, clock)

    monkeypatch.setattr(Ours, "write", watched)
    found = advisor(0.05, sampling=Sampling(temperature=1.0, seed=2**64 - 3)).run()
    assert seeds[PLAIN] == seeds[AUTO] == seeds[WITH_DRAFTS]
    assert len(seeds[PLAIN]) >= len(found.texts), "one of them also warmed up"
    assert len(seeds["assistant"]) == advise.PROBED
    assert not seeds["assistant"] & seeds[PLAIN]


def test_a_slow_model_writes_shorter_texts_and_fewer_methods(clock: MadeClock) -> None:
    found = advisor(0.05, seconds=1500.0).run()
    assert found.tokens == advise.LEAST_TOKENS
    assert [one.name for one in found.raced] == [PLAIN, WITH_DRAFTS], "auto without the draft model stays out"


def test_ways_that_cannot_work_say_why_and_the_others_go_on(clock: MadeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise, "OWN_TOKENIZER", ("assistant:wrong=1", "assistant"))
    found = advisor(0.05).run()
    assert list(found.refused) == ["assistant:wrong=1"]
    assert "wrong" in found.refused["assistant:wrong=1"]
    assert {one.spec.partition(":")[0] for one in found.candidates} == {"assistant"}
    monkeypatch.setattr(advise, "OWN_TOKENIZER", ("assistant:wrong=1",))
    with pytest.raises(ValueError, match="wrong"):
        advisor(0.05).run()


def test_a_foreign_tokenizer_has_ways_of_its_own() -> None:
    made = advisor(0.05)
    vocabularies: Any = [SimpleNamespace(fingerprint=name) for name in "aab"]
    made.vocabulary = vocabularies[0]
    for theirs, foreign in ((vocabularies[1], False), (vocabularies[2], True), (None, False)):
        assert made._foreign(DraftModel(made.target, theirs)) is foreign


@pytest.mark.parametrize(
    ("name", "ways"),
    thinned([("pocket-draft", advise.OWN_TOKENIZER), ("pocket-foreign", advise.FOREIGN_TOKENIZER)]),
    ids=["own tokenizer", "foreign tokenizer"],
)
def test_every_way_of_the_table_is_one_that_there_is(name: str, ways: Sequence[str]) -> None:
    lm = paceline.load("pocket", probe=False)
    draft = DraftModel.load(name, lm.target)
    made = Advisor(target=lm.target, draft=draft, prompts=prompts(), vocabulary=lm.vocabulary)
    assert made._foreign(draft) is (ways is advise.FOREIGN_TOKENIZER)
    for spec in ways:
        method = Method.fitted(make_drafter(spec, draft), lm.target, lm.vocabulary)
        assert (method.spec, method.draft) == (spec, draft.target.fingerprint())
        method.drafter.dispose()


def test_too_little_to_measure_is_told() -> None:
    for how, said in (
        ({"seconds": 1.0}, "at least 5 seconds of measuring, not 1"),
        ({"seconds": math.nan}, "at least 5 seconds"),
        ({"seconds": math.inf}, "not inf"),
        ({"max_new_tokens": 23}, "at least 24 tokens, not 23"),
        ({"prompts": prompts(2)}, "at least 3 prompts, .* there are 2"),
    ):
        with pytest.raises(ValueError, match=said):
            advisor(0.05, **how)


def test_texts_that_end_at_once_are_told(clock: MadeClock) -> None:
    ends = Takes(habitual(), FORWARD, eos=frozenset(range(SIZE)))
    made = advisor(0.05)
    made.target = ends
    with pytest.raises(ValueError, match="the first token of every text ends it"):
        made.run()


# --- decisions ---


VERDICTS = [
    (1.30, 1.20, 1.40, "on"),
    (1.02, 1.01, 1.03, "on"),
    (1.05, 0.97, 1.15, "makes no difference"),
    (1.40, 0.95, 1.99, "makes no difference"),
    (1.00, 1.00, 1.00, "makes no difference"),
    (0.98, 0.96, 1.10, "makes no difference"),
    (3.00, math.nan, math.nan, "no interval"),
    (0.99, 0.98, 0.995, "off"),
    (0.80, 0.70, 0.90, "off"),
]


@pytest.mark.parametrize(("value", "low", "high", "verdict"), VERDICTS)
@pytest.mark.parametrize("drafts", [True, False])
def test_the_verdict_follows_the_interval(value: float, low: float, high: float, verdict: str, drafts: bool) -> None:
    gain = Estimate(value, low, high)
    found = advice(1.2 * value, gain=gain) if drafts else advice(None, auto=value, gain=gain)
    judged, without = (WITH_DRAFTS, AUTO) if drafts else (AUTO, PLAIN)
    assert (found.verdict, found.judged.name) == (verdict, judged)
    assert found.chosen.name == (judged if verdict == "on" else without)
    lines, commands = told(found, draft="small" if drafts else "none")
    assert lines[0].startswith(
        {
            ("on", True): "Turn the draft model on: --method auto --draft-model small",
            ("off", True): "Leave the draft model off: --method auto",
            ("makes no difference", True): "The draft model makes no difference here: --method auto",
            ("on", False): "Turn drafting on: --method auto",
            ("no interval", True): "Too few texts were written to judge the draft model: --method auto",
            ("no interval", False): "Too few texts were written to judge drafting: --method plain",
            ("off", False): "Leave drafting off: --method plain",
            ("makes no difference", False): "Drafting makes no difference here: --method plain",
        }[verdict, drafts]
    )
    asked = parser().parse_args(commands["To use it"])
    assert asked.method == found.chosen.spec
    assert asked.draft_model == ("small" if drafts and verdict == "on" else None)


@pytest.mark.parametrize(
    ("auto", "over"), [(0.9, PLAIN), (1.1, AUTO)], ids=["auto alone is slower", "auto alone is faster"]
)
def test_a_draft_model_is_judged_against_the_fastest_way_without_it(auto: float, over: str) -> None:
    assert advice(1.2, auto=auto).without.name == over


def test_tokens_and_rounds_of_a_length_make_its_ratio() -> None:
    walk = Walk(np.array([0]), lambda: None)
    walk.trails = [Trail.of(DraftTree.chain([1, 2, 3, 4]), (1, 2, 9)), Trail.of(DraftTree.chain([1, 2]), (7,))]
    rounds = {0: RoundSeconds(1.0, 0.0), 1: RoundSeconds(1.0, 0.0, 0.25)}
    found = advise._candidate("assistant:translate=tli", 1, [walk], rounds)
    assert found.spec == "assistant:translate=tli,length=1"
    assert found.tokens_per_round == pytest.approx(4 / 3), "a b | c, and one round that was refused"
    assert found.ratio.value == pytest.approx(4 / 3 / 1.25)
    assert found.price == 0.25


# --- the command ---


def raced(name: str, value: float) -> Raced:
    ratio = Estimate(value, *((1.0, 1.0) if name == PLAIN else (value - 0.05, value + 0.05)))
    spec = PLAIN if name == PLAIN else AUTO
    return Raced(name=name, spec=spec, tokens_per_second=10 * value, ratio=ratio)


def advice(drafted: float | None, *, auto: float | None = 1.2, gain: Estimate | None = None) -> Advice:
    """Made-up ratios over plain decoding: of `auto` with a draft model and without."""
    candidate = Contender(
        strategy="assistant",
        spec="assistant:length=2",
        length=2,
        tokens_per_round=1.9,
        seconds=0.012,
        seconds_draft=0.004,
        seconds_plain=0.01,
        ratio=Estimate(1.5, 1.4, 1.6),
    )
    values = {PLAIN: 1.0, AUTO: auto, WITH_DRAFTS: drafted}
    return Advice(
        candidates=[] if drafted is None else [candidate],
        raced=[raced(name, value) for name, value in values.items() if value is not None],
        gain=gain or Estimate(1.25, 1.2, 1.3),
        refused={"assistant:translate=tli": "the models share no token"},
        texts=["a", "b"],
        tokens=20,
        seconds=58.0,
    )


def told(found: Advice, *flags: str, draft: str = "small") -> tuple[list[str], dict[str, list[str]]]:
    """The lines, and the commands among them as words."""
    options: argparse.Namespace = parser().parse_args(["advise", "--draft-model", draft, *flags])
    options.temperature, options.draft_model = 0.5, None if draft == "none" else draft
    lines = "\n".join(command._lines(found, "cpu", options)).splitlines()
    commands = {line.partition(":")[0]: shlex.split(line.partition(":")[2])[1:] for line in lines if line[:3] == "To "}
    return lines, commands


def test_the_advice_is_in_plain_words() -> None:
    lines, commands = told(advice(1.5), "--model", "big one", "--dtype", "bfloat16")
    assert " ".join(lines[1:3]) == (
        "auto with small writes 15.0 tokens per second, 1.25 [1.20, 1.30] times as many as auto and 1.50 [1.45, 1.55] "
        "times as many as plain."
    )
    assert "Why: to draft a token takes 20% of a plain round. Of 2 drafted tokens, 0.9 are accepted." in lines[3]
    start = next(number for number, line in enumerate(lines) if line.startswith("measured in turns"))
    rows = [line.partition("  ")[0] for line in lines[start + 1 : start + 4]]
    assert rows == ["plain", "auto", "auto with small"]
    assert "- assistant:translate=tli cannot draft: the models share no token" in lines
    for words in commands.values():
        asked = parser().parse_args(words)
        assert (asked.model, asked.draft_model, asked.dtype, asked.temperature) == ("big one", "small", "bfloat16", 0.5)
    assert parser().parse_args(commands["To check it"]).methods == ["auto"]


def test_commands_say_how_it_was_measured() -> None:
    off = advice(0.8, gain=Estimate(0.7, 0.6, 0.8))
    _, commands = told(off, "--prompts", __file__, "--langs", "en,pl", "--threads", "1")
    asked = parser().parse_args(commands["To check it"])
    assert (asked.suite, asked.langs, asked.threads) == (f"prompts:{__file__}", ["en", "pl"], 1)
    assert (asked.draft_model, asked.methods) == ("small", ["auto"]), "what was judged"
    alone = told(advice(None), draft="none")[1]
    asked = parser().parse_args(alone["To check it"])
    assert (asked.draft_model, asked.methods) == ("none", ["auto"])


def test_what_was_not_measured_is_said() -> None:
    for auto in (None, 1.2):
        lines, _ = told(advice(1.5, auto=auto))
        assert any("no time to measure auto without the draft model" in line for line in lines) is (auto is None)


def test_a_wide_interval_is_called_wide() -> None:
    for high, wide in ((1.6, False), (3.0, True), (math.nan, True)):
        low = math.nan if math.isnan(high) else 1.4
        lines, _ = told(advice(1.5, gain=Estimate(1.5, low, high)))
        assert any("more --seconds or more --prompts" in line for line in lines) is wide


def test_json_holds_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["advise", "--model", "pocket", "--langs", "en", "--seconds", "5", "-n", "24", "--seed", "4"]
    assert main([*quick, "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert "draft model" in lines[0]
    assert found["verdict"] in list(SpeedVerdict)
    assert found["turn_on"] is (found["verdict"] == "on")
    assert {"strategy", "k", "method", "ratio", "low", "high", "refused", "seconds"} <= set(found)
    assert [one["length"] for one in found["candidates"]] == [1, 2, 3, 4, 5, 6]
    names = [one["name"] for one in found["raced"]]
    assert (names[0], names[-1], found["judged"]) == (PLAIN, WITH_DRAFTS, WITH_DRAFTS)
    assert any(line.startswith("auto with pocket-draft ") for line in lines[1:])
    assert all(one["ratio"] > 0 for one in (*found["candidates"], *found["raced"]))
    assert (found["draft_model"], found["temperature"], found["seed"]) == ("pocket-draft", 0.8, 4)
    assert found["setup"]["model"] == "pocket"
    assert len(found["draft_fingerprint"]) == len(found["setup"]["fingerprint"]) > 8
    assert found["machine"]["instruction_sets"]
    assert all(name.startswith("en-") for name in found["texts"])
    for line in (found["generate"], found["check"]):
        parser().parse_args(shlex.split(line)[1:])


def test_without_a_draft_model_the_command_judges_auto(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["advise", "--model", "pocket-draft", "--langs", "en", "--seconds", "5", "-n", "24", "--no-probe", "--json"]
    assert main(quick) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert "drafting" in lines[0].lower()
    assert [one["name"] for one in found["raced"]] == [PLAIN, AUTO]
    assert (found["judged"], found["over"], found["candidates"], found["k"]) == (AUTO, PLAIN, [], None)
    assert (found["draft_model"], found["draft_fingerprint"]) == (None, None)


def test_an_interruption_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(Measuring, "walk", interrupt)
    assert main(["advise", "--no-probe", "--seconds", "5"]) == 130
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""
