"""`bench time`: drafting on the made-up text and between forwards, forwards, logits, and our loop beside theirs."""

import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging

import paceline
from gguf_models import file_of, needs_llama, target_of
from paceline.cli import main
from paceline.context import Context, Ints
from paceline.dictionary.index import Dictionary
from paceline.drafters import make_drafter
from paceline.drafters.base import Budget, Drafter, Seen
from paceline.drafters.dictionary import DictSpec
from paceline.drafters.networks.assistant import DraftModel
from paceline.drafters.networks.heads import shipped_methods
from paceline.drafters.store import StoreDrafter
from paceline.law import Sampling
from paceline.targets.base import Pending, Request, Target, Want
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from paceline_lab.bench.peers import make_peer
from paceline_lab.bench.peers.weights import PeerWeights, ordinary
from paceline_lab.bench.race import Clock, Heat, Lap
from paceline_lab.bench.run.contestant import Job, Written
from paceline_lab.bench.run.ours import Ours
from paceline_lab.bench.statistics import median_of, repeated_share
from paceline_lab.bench.times import drafting, forwards, logits, made_up
from paceline_lab.bench.times.drafting import DraftTask
from paceline_lab.bench.times.overhead import COUNTERPARTS, INSIDE, NAMES, OURS, THEIRS, Contest, contests
from paceline_lab.bench.times.steps import TimedLine
from paceline_lab.commands.bench.time import drafting as command
from test_cli import say

VOCABULARY = 3000
DRAFT = 3


@pytest.fixture(scope="module")
def foretold() -> made_up.MadeUpModel:
    return made_up.MadeUpModel.made(drafting.CONTEXT + 3000, vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def pocket(lm: paceline.LanguageModel) -> Target:
    return lm.target


@pytest.fixture(scope="module")
def draft(lm: paceline.LanguageModel) -> DraftModel:
    return DraftModel.load("pocket-draft", lm.target)


# --- drafting -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [made_up.BEST, 64])
def test_the_made_up_model_names_different_tokens_and_the_texts_own_first(
    width: int, foretold: made_up.MadeUpModel
) -> None:
    made = foretold.wide(width)
    assert all(len(set(row)) == width for row in made.ids.tolist())
    assert 0 <= made.ids.min() <= made.ids.max() < VOCABULARY
    assert all(made.ids[before, 0] == after for before, after in dict(pairwise(made.text.tolist())).items())
    shares = np.exp(made.top(made.text[:50]).logits)
    assert (np.diff(shares, axis=1) <= 0).all()
    assert (shares.sum(axis=1) < 1 + 1e-6).all()


def test_wider_rows_begin_as_the_narrow_ones(foretold: made_up.MadeUpModel) -> None:
    assert (foretold.wide(64).ids[:, : made_up.BEST] == foretold.ids).all()
    assert foretold.wide(made_up.BEST) is foretold


def timed(drafter: Drafter, text: made_up.MadeUpModel, temperature: float = 0.0, rounds: int = 20) -> TimedLine:
    (line,) = drafting.drafting([DraftTask("x", lambda: drafter, temperature, 60)], rounds=rounds, made=text)
    return line


def test_a_method_that_reads_more_is_told_more(foretold: made_up.MadeUpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tops: dict[str, int] = {}
    proper = drafting.DraftTimer.__init__

    def spy(timer: Any, asked: DraftTask, drafter: Drafter, made: made_up.MadeUpModel, *more: Any) -> None:
        tops[drafter.name] = made.ids.shape[1]
        proper(timer, asked, drafter, made, *more)

    monkeypatch.setattr(drafting.DraftTimer, "__init__", spy)
    for name in ("lookup", "unispec", "foresight"):
        timed(make_drafter(name), foretold, rounds=1)
    assert tops == {"lookup": made_up.BEST, "unispec": made_up.BEST, "foresight": 64}


@pytest.mark.parametrize("method", ["unispec", "recycling", "suffix", "lookup", "foresight", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_are_real_ones(foretold: made_up.MadeUpModel, method: str, temperature: float) -> None:
    line = timed(make_drafter(method), foretold, temperature)
    nodes, parts = line.figures["nodes"], line.milliseconds
    assert line.facts == {"method": "x", "temperature": temperature, "budget": 60, "sized": "given"}
    assert 0 < nodes <= 60
    assert set(parts) == {"propose", "learn", "draft"}
    assert parts["draft"] >= max(parts["propose"], parts["learn"]) > 0
    if method in ("unispec", "recycling"):
        assert nodes > 50


@pytest.mark.parametrize("method", ["unispec", "foresight"])
def test_a_method_that_learns_from_rows_has_seen_all_of_them(foretold: made_up.MadeUpModel, method: str) -> None:
    drafter = make_drafter(method)
    timer = drafting.DraftTimer(
        DraftTask("x", lambda: drafter, 0.0, 60), drafter, foretold.wide(drafter.needs.top), 100
    )
    assert isinstance(drafter, StoreDrafter)
    assert drafter._shared is not None
    assert len(drafter._shared.chances) == VOCABULARY
    assert (drafter._shared.chances > 0).any(axis=1).all()
    timer.close()


def test_the_dictionary_of_a_made_up_text_has_something_to_say_about_it(
    foretold: made_up.MadeUpModel, tmp_path: Path
) -> None:
    path = tmp_path / "a.dict"
    made_up.write_dictionary(path, foretold.text, VOCABULARY, "of nobody")
    found = Dictionary.open(path)
    assert len(found) > 0.9 * made_up.ENTRIES
    assert found.header.tokenizer == "of nobody"
    text = foretold.text[:2000].tolist()
    right = sum(
        (known := found.longest(found.packed(text[place - 8 : place]))) is not None
        and found.first(known[1]) == text[place]
        for place in range(8, 1997)
    )
    assert right > 0.8 * 1989
    assert 0.5 < timed(DictSpec(file=str(path)), foretold).figures["nodes"] <= 3


class Watched(Drafter):
    """Drafts chains of a size, and remembers its calls."""

    name = "watched"
    needs = Want(top=3)

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.closed = 0

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        return DraftTree.chain([7] * budget.nodes)

    def observe(self, seen: Sequence[Seen]) -> None:
        time.sleep(0.002)
        self.seen += seen

    def close(self, state: Context) -> None:
        self.closed += 1


def test_shares_are_of_rounds_of_the_model_at_every_methods_size(pocket: Target) -> None:
    """Every forward has the rows that were drafted behind the same tokens; reading is timed where rows are read."""
    asked: list[tuple[int, int, int]] = []
    submit = pocket.submit

    def spy(requests: Sequence[Request]) -> Pending:
        asked.extend((one.rows.committed, len(one.tokens), one.want.top) for one in requests if not one.prefill)
        return submit(requests)

    watched = Watched()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pocket, "submit", spy)
        patch.setattr(drafting, "WARM", 1)
        asked_for = [
            DraftTask("watched", lambda: watched, 0.8, 5),
            DraftTask("lookup", lambda: make_drafter("lookup"), 0.8, 4),
        ]
        lines = list(drafting.drafting(asked_for, rounds=3, target=pocket))
    before = drafting.behind(pocket) - 1
    assert {committed for committed, _, _ in asked} == {before}
    assert asked.count((before, 1, 0)) >= 4, "plain's, and lookup's where it found nothing"
    assert asked.count((before, 6, 3)) == 4
    assert len(asked) == 4 * 3
    plain, own, lookup = (line.milliseconds for line in lines)
    assert [line.facts["method"] for line in lines] == ["plain", "watched", "lookup"]
    assert lines[1].figures["nodes"] == 5
    assert min(plain["forward"], own["forward"], own["read"]) > 0
    assert own["draft"] >= 2
    beside = own["draft"] + own["read"]
    assert lines[1].figures["share"] == pytest.approx(beside / (beside + own["forward"]))
    assert lookup["read"] == 0
    assert watched.closed == 1


@pytest.mark.parametrize("model", [None, "pocket"])
def test_the_command_times_every_method(
    model: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    made = made_up.MadeUpModel.made
    monkeypatch.setattr(
        made_up.MadeUpModel, "made", lambda length, *, vocabulary=VOCABULARY: made(length, vocabulary=vocabulary)
    )
    for name, value in {"SIZES": (8,), "METHODS": ("unispec", "suffix", "dictionary", "auto")}.items():
        monkeypatch.setattr(command, name, value)
    of = [] if model is None else ["--model", model, "--dtype", "float32"]
    assert main(["bench", "time", "drafting", "--rounds", "2", *of, "--json"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    methods = [*command.METHODS] if model is None else ["plain", *command.METHODS, *shipped_methods("pocket")]
    assert found["rounds"] == 2
    assert [(one["temperature"], one["method"]) for one in found["lines"]] == [
        (t, m) for t in (0.0, 0.8) for m in methods
    ]
    assert sum(line.startswith("unispec") for line in shown) == 2
    sizes = {one["method"]: (one["budget"], one["sized"]) for one in found["lines"]}
    assert sizes["suffix"] == ((8, "given") if model is None else (16, "own"))
    assert (found["setup"] or {}).get("model") == model
    assert all(("share" in one) == (model is not None) for one in found["lines"])


# --- logits and forwards ------------------------------------------------------------------------------------


def test_logits_are_timed_by_rows_and_by_certainty(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "time", "logits", "--rounds", "1", "--rows", "1", "3", "--vocabulary", "300", "--json"]
    assert main(command) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    lines = json.loads(last)["lines"]
    read = [(one["dtype"], one["rows"]) for one in lines if "rows" in one]
    assert read == [("float32", 1), ("float32", 3), ("bfloat16", 1), ("bfloat16", 3)]
    assert len([one for one in lines if "row" in one]) == 4 * len(logits.SETTINGS)
    assert all(took > 0 for one in lines for took in one["milliseconds"].values())
    assert any(line.startswith("greedy") for line in shown)


def test_forwards_are_timed_along_every_path(pocket: Target) -> None:
    found = list(forwards.forwards(pocket, contexts=[20], sequences=[1, 2], rows=[1, 6], repeats=1))
    assert [tuple(line.facts[name] for name in ("path", "sequences", "rows")) for line in found] == [
        *(("own", 1, 1), ("compiled", 1, 1), ("lean", 1, 1), ("transformers", 1, 1)),
        *(("own", 1, 6), ("compiled", 1, 6), ("lean", 1, 6)),
        *(("own", 2, 1), ("compiled", 2, 1), ("lean", 2, 1), ("own", 2, 6), ("compiled", 2, 6), ("lean", 2, 6)),
    ]
    assert all(line.milliseconds["forward"] > 0 and line.figures["apart"] < 1e-4 for line in found)
    assert type(pocket.paths[0]).__name__ == "Fused", "the target goes on as before"


@needs_llama
def test_forwards_of_a_gguf_file_are_timed_beside_the_bytes_of_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forwards, "bandwidth", lambda device: 1e9)
    file = file_of("pocket", "Q8_0")
    command = ["bench", "time", "forwards", "--model", str(file), "--rounds", "1", "--context", "8"]
    assert main([*command, "--sequence", "1", "2", "--rows", "1", "4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    said = json.loads(last)
    assert {(one["path"], one["sequences"], one["rows"]) for one in said["lines"]} == {
        ("Q8_0", count, rows) for count in (1, 2) for rows in (1, 4)
    }
    assert all(one["milliseconds"]["forward"] > 0 for one in said["lines"])
    row = target_of("Q8_0").row_bytes()
    assert row
    assert said["bytes_of_token"] == file.stat().st_size + 8 * row
    assert any(line.startswith("Q8_0 ") and "(1.00x)" in line for line in lines)


def test_forwards_of_a_random_model_are_told_beside_the_memorys_bandwidth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 1e8 < forwards.bandwidth("cpu") < 1e13
    monkeypatch.setattr(forwards, "bandwidth", lambda device: 1e9)
    command = ["bench", "time", "forwards", "--model", "random:tiny", "--dtype", "float32", "--rounds", "1"]
    assert main([*command, "--context", "8", "--rows", "1", "4", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    said = json.loads(last)
    config = forwards.SHAPES["tiny"]
    weights = forwards.random_target("tiny", "float32", "cpu").model.num_parameters() - 512 * config["hidden_size"]
    assert said["bytes_of_token"] == 4 * (weights + 8 * 2 * 2 * 2 * 16)
    assert {one["rows"] for one in said["lines"]} == {1, 4}
    assert {one["least"] for one in said["lines"]} == {1000 * said["bytes_of_token"] / 1e9}
    assert any(line.startswith("own ") and "(1.00x)" in line for line in lines)


def test_forwards_that_are_interrupted_are_told_as_far_as_they_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = forwards.forwards

    def stopped(*given: Any, **how: Any) -> Any:
        found = timed(*given, **how)
        yield from (line for line in found if line.facts["rows"] == 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(forwards, "forwards", stopped)
    monkeypatch.setattr(forwards, "bandwidth", lambda device: 1e9)
    command = ["bench", "time", "forwards", "--model", "random:tiny", "--dtype", "float32", "--rounds", "1"]
    assert main([*command, "--context", "8", "--rows", "4", "1", "--json"]) == 130
    found = capsys.readouterr()
    assert {one["rows"] for one in json.loads(found.out.splitlines()[-1])["lines"]} == {4}
    assert "interrupted" in found.err


# --- overhead -----------------------------------------------------------------------------------------------


def test_a_median_is_numpys_and_nothing_has_none() -> None:
    assert median_of([1.0, 1.2, 1.1, 1.4]).value == np.median([1.0, 1.2, 1.1, 1.4])
    with pytest.raises(ValueError, match="measure at least once"):
        median_of([])


def test_repetition_is_a_share_of_grams_within_a_text() -> None:
    assert repeated_share([list(range(40)), list(range(40))]) == 0
    assert repeated_share([[1] * 108]) == pytest.approx(100 / 101)
    assert repeated_share([[1] * 7]) == 0


def heats(*seconds: tuple[int, float, float]) -> list[Heat[Written]]:
    """Heats of a prompt each; the seconds of ours and theirs."""
    text = Written(tokens=[7] * 4, deliveries=[], forwards=2)
    return [
        Heat(prompt, turn, {OURS: Lap(text, ours), THEIRS: Lap(text, theirs), INSIDE: Lap(text, theirs)})
        for turn, (prompt, ours, theirs) in enumerate(seconds)
    ]


def test_a_ratio_is_of_speeds_and_a_slow_machine_slows_all() -> None:
    """Also from text to text: ratios are taken within a heat."""
    contest = Contest(heats((0, 0.1, 0.25), (1, 0.5, 1.25), (0, 4.0, 10.0)), THEIRS, "plain")
    for found, value in ((contest.ratio(OURS), 2.5), (contest.ratio(THEIRS, OURS), 0.4)):
        assert (found.low, found.value, found.high) == pytest.approx((value, value, value))
    assert next(contest.lines).figures["tokens_per_second"] == pytest.approx(4 / 0.5)
    assert contest.tokens_per_forward(OURS) == 2
    assert contest.spread == pytest.approx(40)
    assert Contest(heats((0, 0.1, 0.25), (1, 0.1, 0.25)), THEIRS, "plain").spread is None


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


def test_a_lookup_is_as_long_there_as_here(lm: paceline.LanguageModel) -> None:
    """Where the prompt repeats one thing, every draft is as long as it may be."""
    weights, rows = PeerWeights(lm.target), list[int]()

    def saw(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        rows.append(given["input_ids"].shape[1])

    weights.model.register_forward_pre_hook(saw, with_kwargs=True)
    prompt = lm.encode("one two three four five six " * 6)
    job = Job(prompt=prompt, sampling=Sampling(), max_new_tokens=20, eos=frozenset())
    make_peer("transformers-lookup", weights, draft_tokens=DRAFT).write(job, time.perf_counter)
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
    list(contests(lm, draft, ["assistant"], [prompt], tokens=4, draft_tokens=DRAFT, passes=1))
    assert reused == [0] * 4, "both of ours, warmed up and timed"


BENCH = ["bench", "time", "overhead", "--max-new-tokens", "7", "--passes", "1", "--num-draft-tokens", "3"]
SHORT = ["--prompt", "The old man", "--prompt", "Once upon a time"]


def test_the_bench_tells_ratios_first(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads(), logging.get_verbosity()
    models = ["--model", "pocket", "pocket+ballast:12M"]
    code, out, error = say([*BENCH, *SHORT, *models, "--threads", "1", "--json"], capsys)
    assert (code, error) == (0, "")
    assert (torch.get_num_threads(), logging.get_verbosity()) == before
    *shown, last = out.splitlines()
    assert max(map(len, shown)) <= 100
    found = json.loads(last)
    asked = [(model, method, side) for model in models[1:] for method in COUNTERPARTS for side in NAMES]
    assert [(one["model"], one["method"], one["side"]) for one in found["lines"]] == asked
    for one in found["lines"]:
        ratio = one["over_theirs"]
        assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
        assert f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" in out
        assert one["text"] == "equal"
    assert {setup["threads"] for setup in found["setups"].values()} == {1}
    races = [race for setup in found["setups"].values() for race in setup["races"].values()]
    assert {race["turns"] for race in races} == {2}
    assert all(
        0 <= race["repeated_8grams"] <= 1 and set(race["sides"]) == {"theirs", "ours", "inside"} for race in races
    )
    assert found["settings"] == {"dtype": "float32", "num_draft_tokens": 3, "max_new_tokens": 7, "passes": 1}
    assert found["prompts"] == SHORT[1::2]
    assert "7 tokens from each of 2 prompts" in " ".join(shown)


def test_the_bench_tells_a_text_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proper = Ours.write

    def tampering(ours: Ours, job: Job, clock: Clock) -> Written:
        text = proper(ours, job, clock)
        if len(job.prompt) > 5:
            text.tokens[5] += 1
        return text

    monkeypatch.setattr(Ours, "write", tampering)
    prompts = ["--prompt", "A", "--prompt", "The old man sat down by the fire and began"]
    code, out, _ = say([*BENCH, *prompts, "--model", "pocket", "--method", "plain", "--json"], capsys)
    assert code == 0
    texts = [one["text"] for one in json.loads(out.splitlines()[-1])["lines"]]
    assert texts == ["parts at token 6 of prompt 2", "equal", "equal"]
    assert texts[0] in out
    assert "'paceline check --model pocket --dtype float32' distinguishes" in " ".join(out.split())


def test_an_interrupted_bench_leaves_nothing_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> Callable[..., Any]:
        raise KeyboardInterrupt

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = 2, logging.get_verbosity()
        monkeypatch.setattr(Ours, "write", stop)
        asked = ["--model", "pocket", "--method", "plain", "--threads", "1"]
        code, out, error = say([*BENCH, *SHORT, *asked], capsys)
        assert (code, out, error) == (130, "", "\npaceline: interrupted\n")
        assert (torch.get_num_threads(), logging.get_verbosity()) == before
    finally:
        torch.set_num_threads(threads)
