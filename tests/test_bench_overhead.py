"""The overhead bench: ratios are what they say, both sides do the same work, and what differs is told."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging

import paceline
from paceline.bench.overhead import Contest, Side, Trial, Write, run, side, writing
from paceline.bench.peers.transformers import Drafting
from paceline.bench.peers.weights import ordinary
from paceline.bench.statistics import median_of, repeated_share
from paceline.cli.bench.overhead import _short_names
from paceline.cli.bench.overhead.sides import INSIDE, OURS, THEIRS, Task, contests
from paceline.context import Ints
from paceline.drafters.assistant import DraftModel
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.target import HFTarget
from test_cli import say

PROMPTS = [np.array([1, 2, 3]), np.array([4, 5])]
DRAFT = 3


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slow = 1.0

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, pace: float, said: list[str] | None = None, opening: float = 0.0) -> Side:
        """Writes four tokens, `pace` seconds each where the machine is not slow."""

        def write(prompt: Ints) -> list[int]:
            self.now += 4 * pace * self.slow * len(prompt)
            if said is not None:
                said.append(name)
            return [7] * 4

        def opened() -> Write:
            self.now += opening
            return write

        return Side(name, opened, lambda _: Trial([7] * 4, 2))


# --- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 30])
def test_an_interval_holds_its_median_and_comes_again(count: int) -> None:
    values = np.random.default_rng(count).lognormal(size=count).tolist()
    found = median_of(values)
    assert found.value == np.median(values)
    assert found == median_of(values)
    assert found.bounded == (count > 1)
    if found.bounded:
        assert 0 < found.low < found.value < found.high


def test_an_interval_scales_with_what_was_measured() -> None:
    values = [1.0, 1.2, 1.1, 1.4, 0.9]
    once, twice = median_of(values), median_of([2 * value for value in values])
    assert (twice.low, twice.value, twice.high) == pytest.approx((2 * once.low, 2 * once.value, 2 * once.high))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0).exponential(size=(200, 15))
    held = [found.low <= np.log(2) <= found.high for found in map(median_of, draws.tolist())]
    assert 0.88 < np.mean(held) < 0.99


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="measure at least once"):
        median_of([])


def test_repetition_is_a_share_of_grams_within_a_text() -> None:
    assert repeated_share([list(range(40)), list(range(40))]) == 0
    assert repeated_share([[1] * 108]) == pytest.approx(100 / 101)
    assert repeated_share([[1] * 7]) == 0


# --- turns --------------------------------------------------------------------------------------------------


def test_a_ratio_is_of_speeds_and_a_slow_machine_slows_all() -> None:
    clock = Clock()
    contest = Contest("plain", (clock.side("fast", 0.1), clock.side("slow", 0.25)))

    def moved(doing: str, done: int, total: int) -> None:
        clock.slow = 1.0 + done  # the machine gets slower from text to text; within a turn it must not

    run([contest], PROMPTS, passes=3, clock=clock)
    assert contest.ratio("fast", "slow").value == pytest.approx(2.5)
    assert contest.ratio("slow", "fast").value == pytest.approx(0.4)
    assert contest.ratio_of_totals("fast", "slow") == pytest.approx(2.5)
    assert contest.speed("fast") == pytest.approx((1 / 0.3 + 1 / 0.2) / 2)
    assert contest.spread == pytest.approx(1)
    run([contest], PROMPTS, passes=1, clock=clock, progress=moved)
    assert contest.spread is not None
    assert contest.spread > 1


def test_a_slow_turn_moves_no_ratio() -> None:
    clock = Clock()
    contest = Contest("plain", (clock.side("fast", 0.1), clock.side("slow", 0.25)))
    for slow in (1.0, 5.0, 40.0):
        clock.slow = slow
        run([contest], PROMPTS, passes=1, clock=clock)
    found = contest.ratio("fast", "slow")
    assert (found.low, found.value, found.high) == pytest.approx((2.5, 2.5, 2.5))
    assert contest.spread == pytest.approx(40)


@pytest.mark.parametrize("count", [2, 3])
def test_everybody_goes_first_as_often_with_every_prompt(count: int) -> None:
    clock, said, names = Clock(), list[str](), "abc"[:count]
    contest = Contest("plain", [clock.side(name, 1.0, said) for name in names])
    prompts = [np.array([number]) for number in range(6)]  # whole cycles of the order
    run([contest], prompts, passes=count, clock=clock)
    turns = [tuple(said[start : start + count]) for start in range(0, len(said), count)]
    assert [tuple(turn.calls) for turn in contest.turns] == turns
    for prompt in range(6):
        assert Counter(turn[0] for turn in turns[prompt::6]) == Counter(names)
    assert set(turns) == set(itertools.permutations(names))
    for pair in itertools.combinations(names, 2):
        before = sum(turn.index(pair[0]) < turn.index(pair[1]) for turn in turns)
        assert before == len(turns) / 2


def test_sides_of_a_turn_follow_each_other() -> None:
    """One prompt of one method by all sides, before anything else is written."""
    clock, said = Clock(), list[str]()
    rivals = [Contest(m, [clock.side(f"{m}-{name}", 1.0, said) for name in "ab"]) for m in ("plain", "lookup")]
    run(rivals, PROMPTS, passes=2, clock=clock)
    pairs = list(zip(said[::2], said[1::2], strict=True))
    assert all(one.split("-")[0] == other.split("-")[0] and one != other for one, other in pairs)
    assert [len(contest.turns) for contest in rivals] == [4, 4]


def test_opening_and_trials_are_not_timed() -> None:
    clock = Clock()
    contest = Contest("plain", (clock.side("a", 1.0, opening=100.0), clock.side("b", 1.0)))
    steps = list[tuple[int, int]]()
    run([contest], PROMPTS, passes=2, clock=clock, progress=lambda _, done, total: steps.append((done, total)))
    assert contest.ratio("a", "b").value == 1
    assert contest.tokens_per_round("a") == 2
    assert [len(contest.trials[name]) for name in "ab"] == [2, 2]
    assert steps == [(number, 12) for number in range(12)]


# --- two sides, the same work -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32")


@pytest.fixture(scope="module")
def draft(lm: paceline.LanguageModel) -> DraftModel:
    return DraftModel.load("pocket-draft", lm.target)


@pytest.fixture(scope="module")
def prompt(lm: paceline.LanguageModel) -> Ints:
    return lm.encode("The old man sat down by the fire and began to tell")


def test_a_copy_has_the_weights_and_nothing_is_packed(lm: paceline.LanguageModel) -> None:
    assert isinstance(lm.target, HFTarget)
    before = lm.target.fingerprint()
    copied: Any = ordinary(lm.target)
    assert not any(isinstance(module, PackedLinear) for module in copied.modules())
    assert copied.lm_head.weight is copied.model.embed_tokens.weight
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert lm.target.fingerprint() == before


def test_theirs_goes_past_the_end_of_a_text(lm: paceline.LanguageModel, prompt: Ints) -> None:
    copied: Any = ordinary(lm.target)
    text = writing(copied, 12)(prompt)
    copied.generation_config.eos_token_id = text[2]
    assert writing(copied, 12)(prompt) == text
    assert len(text) == 12


def test_all_sides_write_the_same_with_drafts_of_the_same_length(
    lm: paceline.LanguageModel, draft: DraftModel, prompt: Ints
) -> None:
    found = contests(lm, draft, ("plain", "lookup", "assistant"), Task(20, DRAFT))
    for contest in found:
        trials = {side.name: side.trial(prompt) for side in contest.sides}
        assert list(trials) == [OURS, THEIRS, INSIDE]
        assert all(trial.tokens == trials[THEIRS].tokens for trial in trials.values())
        assert [len(trial.tokens) for trial in trials.values()] == [20] * 3
        assert trials[OURS].rounds == trials[INSIDE].rounds
        if contest.method != "lookup":  # what is looked up, and where, differs
            assert trials[OURS].rounds == trials[THEIRS].rounds
    assert found[2].sides[0].trial(prompt).rounds < 20


def test_a_draft_is_as_long_there_as_here(lm: paceline.LanguageModel, draft: DraftModel, prompt: Ints) -> None:
    """Forwards of the draft model before each forward of theirs; here, tokens drafted in each round."""
    copied, small = ordinary(lm.target), ordinary(draft.target)
    forwards = list[str]()
    copied.register_forward_pre_hook(lambda *_: forwards.append("|"))
    small.register_forward_pre_hook(lambda *_: forwards.append("."))
    side(THEIRS, "assistant", copied, 30, Drafting(DRAFT, small)).trial(prompt)
    theirs = [len(dots) for dots in "".join(forwards).split("|")[:-1]]
    text = paceline.LanguageModel(lm.target).generate(
        prompt, method="assistant", draft_model=draft, planner=f"fixed:{DRAFT}", max_new_tokens=30, ignore_eos=True
    )
    ours = [each.drafted for each in text.rounds]
    assert ours == theirs
    assert ours[:-2] == [DRAFT] * (len(ours) - 2)


def test_a_lookup_is_as_long_there_as_here(lm: paceline.LanguageModel) -> None:
    """Where the prompt repeats one thing, every draft is as long as it may be."""
    copied = ordinary(lm.target)
    rows = list[int]()

    def saw(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        rows.append(given["input_ids"].shape[1])

    copied.register_forward_pre_hook(saw, with_kwargs=True)
    prompt = lm.encode("one two three four five six " * 6)
    side(THEIRS, "lookup", copied, 20, Drafting(DRAFT)).trial(prompt)
    text = paceline.LanguageModel(lm.target).generate(
        prompt, method="lookup", planner=f"fixed:{DRAFT}", max_new_tokens=20, ignore_eos=True
    )
    assert max(rows[1:]) == DRAFT + 1
    assert max(each.drafted for each in text.rounds) == DRAFT


def test_nothing_is_left_from_one_text_to_the_next(
    lm: paceline.LanguageModel, draft: DraftModel, prompt: Ints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were kept would spare our sides the reading of the prompt."""
    from paceline.engine.loop import Session

    reused = list[int]()
    proper = Session._prefill

    def watched(session: Session, state: Any) -> Any:
        yield from proper(session, state)
        reused.append(session.reused)

    monkeypatch.setattr(Session, "_prefill", watched)
    contest = contests(lm, draft, ("assistant",), Task(4, DRAFT))[0]
    for each in (contest.sides[0], contest.sides[2]):
        for _ in range(2):
            each.open()(prompt)
    assert reused == [0] * 4


# --- the command --------------------------------------------------------------------------------------------

BENCH = ["bench", "overhead", "--max-new-tokens", "10", "--passes", "1", "--num-draft-tokens", "3"]
SHORT = ["--prompt", "The old man", "--prompt", "Once upon a time"]


def test_the_bench_tells_ratios_first(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads(), logging.get_verbosity()
    models = ["--models", "pocket", "pocket+ballast:12M"]
    code, out, error = say([*BENCH, *SHORT, *models, "--threads", "1", "--json"], capsys)
    assert (code, error) == (0, "")
    assert (torch.get_num_threads(), logging.get_verbosity()) == before
    *shown, last = out.splitlines()
    assert max(map(len, shown)) <= 100
    found = json.loads(last)
    keys = [f"{method}@{model}" for model in ("pocket", "ballast") for method in ("plain", "lookup", "assistant")]
    for part in ("ratios", "intervals", "inside_ratios", "inside_intervals", "rows"):
        assert list(found[part]) == keys
    for key, ratio in found["ratios"].items():
        low, high = found["intervals"][key]
        assert 0 < low <= ratio <= high
        assert f"{ratio:.2f} [{low:.2f}, {high:.2f}]" in out
    assert all(row["texts_equal"] and row["turns"] == 2 for row in found["rows"].values())
    assert found["models"]["ballast"]["model"] == "pocket+ballast:12M"
    assert {facts["threads"] for facts in found["models"].values()} == {1}
    assert found["settings"] == {"dtype": "float32", "num_draft_tokens": 3, "max_new_tokens": 10, "passes": 1}
    assert found["prompts"] == SHORT[1::2]
    assert sum(line.endswith("equal") for line in shown) == 6
    assert "10 tokens from each of 2 prompts" in " ".join(shown)


def test_the_bench_tells_a_text_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proper = paceline.LanguageModel.generate

    def tampering(lm: paceline.LanguageModel, prompt: Ints, **settings: Any) -> Any:
        text = proper(lm, prompt, **settings)
        if len(prompt) > 5:
            text.tokens[5] += 1
        return text

    monkeypatch.setattr(paceline.LanguageModel, "generate", tampering)
    prompts = ["--prompt", "A", "--prompt", "The old man sat down by the fire and began"]
    code, out, _ = say([*BENCH, *prompts, "--models", "pocket", "--methods", "plain", "--json"], capsys)
    row = json.loads(out.splitlines()[-1])["rows"]["plain@pocket"]
    assert code == 0
    assert row["parts_at"] == {"ours": {"prompt": 1, "token": 5}}
    assert not row["texts_equal"]
    assert "DIFFER" in out
    assert "plain: the text of ours is not theirs, from token 6 of prompt 2 on" in " ".join(out.split())
    assert "'paceline check --model pocket --dtype float32' tells" in " ".join(out.split())


def test_an_interrupted_bench_leaves_nothing_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> Callable[..., Any]:
        raise KeyboardInterrupt

    before = torch.get_num_threads(), logging.get_verbosity()
    monkeypatch.setattr(paceline.LanguageModel, "generate", stop)
    asked = ["--models", "pocket", "--methods", "plain", "--threads", str(before[0] + 1)]
    code, out, error = say([*BENCH, *SHORT, *asked], capsys)
    assert (code, out, error) == (130, "", "\npaceline: interrupted\n")
    assert (torch.get_num_threads(), logging.get_verbosity()) == before


def test_ratios_are_called_by_short_names_where_they_are_unique() -> None:
    one, other = "pocket+ballast:300M", "pocket+ballast:1B"
    assert _short_names(["pocket", one, one]) == {"pocket": "pocket", one: "ballast"}
    assert _short_names([one, other]) == {one: one, other: other}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "suffix"], "invalid choice: 'suffix' (choose from"),
        (["--models", "pockt"], "did you mean 'pocket'?"),
        (["--models", "pocket+ballast:much"], "cannot read a size in 'pocket+ballast:much'"),
        (["--models", "no/such/folder"], "no model at 'no/such/folder'"),
        (["--models", "x", "--methods", "assistant"], "assistant needs a draft model for x: give --draft-model NAME"),
        (["--models", "pocket", "--draft-model", "pocket-foreign"], "does not speak the tokens of pocket"),
        (["--models", "pocket", "--max-new-tokens", "100000"], "give fewer --max-new-tokens"),
        (["--passes", "0"], "--passes must be at least 1, not 0"),
        (["--num-draft-tokens", "0"], "--num-draft-tokens must be at least 1, not 0"),
        (["--threads", "-1"], "--threads must be at least 1, not -1"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--prompt", ""], "a --prompt is empty"),
    ],
    ids=str,
)
def test_the_bench_tells_mistakes(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = say(["bench", "overhead", *arguments], capsys)
    assert (code, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1


def test_the_bench_wants_to_know_what_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = say(["bench"], capsys)
    assert code == 2
    assert "MEASUREMENT" in error
