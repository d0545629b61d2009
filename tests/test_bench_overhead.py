"""The overhead bench: ratios are what they say, both sides do the same work, and what differs is told."""

import json
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging

import paceline
from paceline.context import Ints
from paceline.drafters.networks.assistant import DraftModel
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.target import HFTarget
from paceline_lab.bench.overhead import (
    INSIDE,
    NAMES,
    OURS,
    THEIRS,
    Contest,
    CountedText,
    OurLoop,
    OurLoopInside,
    TheirLoop,
    contests,
)
from paceline_lab.bench.peers.transformers import assisted, looked_up
from paceline_lab.bench.peers.weights import ordinary
from paceline_lab.bench.race import Heat, Lap
from paceline_lab.bench.statistics import median_of, repeated_share
from paceline_lab.commands.bench.overhead import _short_names
from test_cli import say

DRAFT = 3

# --- numbers ------------------------------------------------------------------------------------------------


def test_a_median_is_numpys_and_nothing_has_none() -> None:
    assert median_of([1.0, 1.2, 1.1, 1.4]).value == np.median([1.0, 1.2, 1.1, 1.4])
    with pytest.raises(ValueError, match="measure at least once"):
        median_of([])


def test_repetition_is_a_share_of_grams_within_a_text() -> None:
    assert repeated_share([list(range(40)), list(range(40))]) == 0
    assert repeated_share([[1] * 108]) == pytest.approx(100 / 101)
    assert repeated_share([[1] * 7]) == 0


# --- figures ------------------------------------------------------------------------------------------------


def heats(*seconds: tuple[int, float, float]) -> list[Heat[CountedText]]:
    """Heats of a prompt each; the seconds of ours and theirs."""
    text = CountedText([7] * 4, 2)
    return [
        Heat(prompt, turn, {OURS: Lap(text, ours), THEIRS: Lap(text, theirs), INSIDE: Lap(text, theirs)})
        for turn, (prompt, ours, theirs) in enumerate(seconds)
    ]


def test_a_ratio_is_of_speeds_and_a_slow_machine_slows_all() -> None:
    """Also from text to text: ratios are taken within a heat."""
    contest = Contest(heats((0, 0.1, 0.25), (1, 0.5, 1.25), (0, 4.0, 10.0)), THEIRS, "plain")
    for found, value in ((contest.ratio(OURS), 2.5), (contest.ratio(THEIRS, OURS), 0.4)):
        assert (found.low, found.value, found.high) == pytest.approx((value, value, value))
    assert contest.ratio_of_totals(OURS) == pytest.approx(2.5)
    assert contest.speed(OURS) == pytest.approx(4 / 0.5)
    assert contest.tokens_per_forward(OURS) == 2
    assert contest.spread == pytest.approx(40)
    assert Contest(heats((0, 0.1, 0.25), (1, 0.1, 0.25)), THEIRS, "plain").spread is None


# --- two sides, the same work -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


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


def theirs(model: Any, tokens: int, options: Callable[[], dict[str, Any]] = dict) -> TheirLoop:
    return TheirLoop(model, tokens, options)


def test_theirs_goes_past_the_end_of_a_text(lm: paceline.LanguageModel, prompt: Ints) -> None:
    copied: Any = ordinary(lm.target)
    text = theirs(copied, 12).do(prompt, time.perf_counter).tokens
    copied.generation_config.eos_token_id = text[2]
    assert theirs(copied, 12).do(prompt, time.perf_counter).tokens == text
    assert len(text) == 12


def test_all_sides_write_the_same_with_drafts_of_the_same_length(
    lm: paceline.LanguageModel, draft: DraftModel, prompt: Ints
) -> None:
    how: dict[str, Any] = {"tokens": 20, "draft_tokens": DRAFT, "passes": 1, "progress": lambda *_: None}
    found = list(contests(lm, draft, ("plain", "lookup", "assistant"), [prompt], **how))
    for contest in found:
        (heat,) = contest.heats
        assert sorted(heat.laps) == sorted(NAMES)
        texts = {name: lap.result for name, lap in heat.laps.items()}
        assert all(text.tokens == texts[THEIRS].tokens for text in texts.values())
        assert contest.lengths == {20}
        assert texts[OURS].forwards == texts[INSIDE].forwards
        if contest.method != "lookup":  # what is looked up, and where, differs
            assert texts[OURS].forwards == texts[THEIRS].forwards
    assert found[2].texts(OURS)[0].forwards < 20


def test_a_draft_is_as_long_there_as_here(lm: paceline.LanguageModel, draft: DraftModel, prompt: Ints) -> None:
    """Forwards of the draft model before each forward of theirs; here, tokens drafted in each round."""
    copied, small = ordinary(lm.target), ordinary(draft.target)
    forwards = list[str]()
    copied.register_forward_pre_hook(lambda *_: forwards.append("|"))
    small.register_forward_pre_hook(lambda *_: forwards.append("."))
    theirs(copied, 30, partial(assisted, small, DRAFT)).do(prompt, time.perf_counter)
    there = [len(dots) for dots in "".join(forwards).split("|")[:-1]]
    text = paceline.LanguageModel(lm.target).generate(
        prompt, method="assistant", draft_model=draft, planner=f"fixed:{DRAFT}", max_new_tokens=30, ignore_eos=True
    )
    first, *here = text.rounds
    assert (first.prefill, first.drafted) == (True, 0), "the first token comes with the prompt"
    for drafted in (there, [each.drafted for each in here]):
        assert drafted[:-2] == [DRAFT] * (len(drafted) - 2)


def test_a_lookup_is_as_long_there_as_here(lm: paceline.LanguageModel) -> None:
    """Where the prompt repeats one thing, every draft is as long as it may be."""
    copied = ordinary(lm.target)
    rows = list[int]()

    def saw(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        rows.append(given["input_ids"].shape[1])

    copied.register_forward_pre_hook(saw, with_kwargs=True)
    prompt = lm.encode("one two three four five six " * 6)
    theirs(copied, 20, partial(looked_up, DRAFT)).do(prompt, time.perf_counter)
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

    def watched(session: Session) -> Any:
        yield from proper(session)
        reused.append(session.reused)

    monkeypatch.setattr(Session, "_prefill", watched)
    copied = ordinary(lm.target)
    inner = DraftModel.load(ordinary(draft.target), lm.target)
    method = {"method": "assistant", "planner": f"fixed:{DRAFT}"}
    for each in (
        OurLoop(lm, 4, method | {"draft_model": draft}),
        OurLoopInside(copied, 4, method | {"draft_model": inner}),
    ):
        for _ in range(2):
            each.begin()
            each.do(prompt, time.perf_counter)
    assert reused == [0] * 4


# --- the command --------------------------------------------------------------------------------------------

BENCH = ["bench", "overhead", "--max-new-tokens", "10", "--passes", "1", "--num-draft-tokens", "3"]
SHORT = ["--prompt", "The old man", "--prompt", "Once upon a time"]


def test_the_bench_tells_ratios_first(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads(), logging.get_verbosity()
    models = ["--model", "pocket", "pocket+ballast:12M"]
    code, out, error = say([*BENCH, *SHORT, *models, "--threads", "1", "--json"], capsys)
    assert (code, error) == (0, "")
    assert (torch.get_num_threads(), logging.get_verbosity()) == before
    *shown, last = out.splitlines()
    usual = [re.sub(r"\d{3,}\.\d\d", "99.99", line) for line in shown]  # two prompts on a busy machine give any bound
    assert max(map(len, usual)) <= 100
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
    code, out, _ = say([*BENCH, *prompts, "--model", "pocket", "--method", "plain", "--json"], capsys)
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

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = 2, logging.get_verbosity()
        monkeypatch.setattr(paceline.LanguageModel, "generate", stop)
        asked = ["--model", "pocket", "--method", "plain", "--threads", "1"]
        code, out, error = say([*BENCH, *SHORT, *asked], capsys)
        assert (code, out, error) == (130, "", "\npaceline: interrupted\n")
        assert (torch.get_num_threads(), logging.get_verbosity()) == before
    finally:
        torch.set_num_threads(threads)


def test_ratios_are_called_by_short_names_where_they_are_unique() -> None:
    one, other = "pocket+ballast:300M", "pocket+ballast:1B"
    assert _short_names(["pocket", one, one]) == {"pocket": "pocket", one: "ballast"}
    assert _short_names([one, other]) == {one: one, other: other}
