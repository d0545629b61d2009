"""Calibrating: what small drafts would have brought, drift that is noticed, and the command from end to end."""

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from engine import PROMPT, SIZE, tabled, write
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.context import Context, Ending
from paceline.drafters import Budget, Drafter, Plain, make_drafter
from paceline.law import Sampling
from paceline.planning.acceptance import Spot
from paceline.planning.adaptive import costs_of
from paceline.planning.base import Outcome, Room
from paceline.planning.calibrated import PATIENCE, TRIED, WATCHED, Calibrated
from paceline.planning.curve import Curves
from paceline.planning.specs import make_planner
from paceline.planning.stored import Profile, find
from paceline.targets.base import NOTHING
from paceline.targets.setup import setup_of
from paceline.tree import ROOT, DraftTree
from paceline_lab import calibrate_method, open_vocabulary
from paceline_lab.machine import prompts as prompts_module
from paceline_lab.machine.calibrate import Calibrator, Method, Plan
from paceline_lab.machine.measuring import MOST_REPEATS, Measuring, Rounds, RoundSeconds, Walk
from paceline_lab.machine.prompts import prompts_of
from paceline_lab.machine.trails import Trail, corrected, places, point_at
from profiles import method, save, timings

TOKENS = 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path


class Prophet(Drafter):
    """Knows the text, but for some places; where ``bushy``, beside a wrong guess that it thinks likelier at times."""

    name = "prophet"

    def __init__(self, script: Sequence[int], bushy: bool = False) -> None:
        self._script, self._bushy = list(script), bushy

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        tokens, parents, scores, parent = list[int](), list[int](), list[float](), ROOT
        for place in range(len(state), min(len(state) + budget.depth, len(self._script))):
            true = (self._script[place] + (place % 5 == 0)) % SIZE
            level = [(true, -0.4)]
            if self._bushy:
                level.append(((true + 2) % SIZE, -0.2 - 0.4 * (place % 2)))
            first = len(tokens)
            for token, score in level:
                tokens.append(token)
                parents.append(parent)
                scores.append(score)
            parent = first
        return DraftTree.build(tokens, parents, source=self.name, scores=scores).top(budget.nodes)


def plain_text() -> list[int]:
    session = write(tabled(), PROMPT, Plain(), max_new_tokens=TOKENS, eos=frozenset())
    return session.context.tokens.tolist()


def walked(drafter: Drafter, nodes: int) -> list[Trail]:
    measuring = Measuring(target=tabled(), max_new_tokens=TOKENS)
    return [trail for walk in measuring.walk(drafter, [np.array(PROMPT)], nodes, 60.0) for trail in walk.trails]


# --- hindsight ---


@pytest.mark.parametrize("bushy", [False, True])
def test_what_is_told_of_a_small_size_is_what_a_run_of_it_brings(bushy: bool) -> None:
    drafter = Prophet(plain_text(), bushy)
    deep = walked(drafter, 40)
    for size in (0, 1, 2, 3, 4, 7, 12, 40):
        run = walked(drafter, size)
        found = sum(trail.emitted for trail in run) / len(run)
        assert point_at(deep, size).tokens == pytest.approx(found), size


def test_drafts_are_cut_as_trees_are() -> None:
    random = np.random.default_rng(3)
    for _ in range(30):
        count = int(random.integers(1, 20))
        parents = [int(random.integers(-1, node)) if node else -1 for node in range(count)]
        tree = DraftTree.build(range(count), parents, scores=-random.integers(0, 3, count).astype(float))
        for size in range(count + 1):
            assert tree.tokens[places(tree) < size].tolist() == tree.top(size).tokens.tolist()


def test_rows_that_are_sent_count_probes_too() -> None:
    tree = DraftTree.build([1, 2, 3], [-1, 0, -1], probes=[False, False, True])
    trail = Trail.of(tree, (1, 2, 5))
    assert [trail.sent(size) for size in (0, 1, 2, 9)] == [0, 2, 3, 3]
    assert [trail.rounds(size) for size in (0, 1, 2)] == [3, 2, 1]
    assert point_at([trail, Trail.of(DraftTree.build([], []), (4,))], 2).sent == {0: 0.5, 3: 0.5}


def test_a_spot_mends_what_is_below_the_largest_size() -> None:
    points = method().points
    mended = corrected(points, Spot(nodes=8, foretold=2.0, found=1.5))
    by_size = {
        point.nodes: (new.tokens - 1) / max(point.tokens - 1, 1e-9) for point, new in zip(points, mended, strict=True)
    }
    assert mended[0].tokens == 1
    assert [by_size[4], by_size[8]] == pytest.approx([0.5, 0.5])
    assert 0.5 < by_size[32] < 0.9
    assert by_size[128] == pytest.approx(1.0)
    assert corrected(points, None) == points
    assert Spot(nodes=8, foretold=1.0, found=3.0).ratio == 1.0, "too little was foretold to tell anything"


def test_a_text_that_is_followed_is_the_same_text() -> None:
    drafter = make_drafter("lookup")
    measuring = Measuring(target=tabled(), sampling=Sampling(temperature=1.0), max_new_tokens=30)
    deep = measuring.walk(drafter, [np.array(PROMPT), np.array(PROMPT[:2])], 12, 60.0)
    again = measuring.follow(drafter, deep, 2, 60.0)
    assert [walk.tokens.tolist() for walk in again] == [walk.tokens.tolist() for walk in deep]
    assert measuring.follow(drafter, deep, 2, -1.0)[0].tokens.tolist() == deep[0].tokens.tolist()
    hurried = measuring.walk(drafter, [np.array(PROMPT)] * 2, 12, -1.0)
    assert [len(walk.trails) for walk in hurried] == [1, 1], "every prompt has a round"
    assert all(len(walk.tokens) == len(walk.prompt) + 1 + walk.trails[0].emitted for walk in hurried)


def test_a_second_pass_knows_nothing_of_the_first_and_only_what_is_kept_of_the_prompt_before() -> None:
    """The text that is followed is the very one that was learnt from."""
    prompts = [np.array(PROMPT)] * 2
    measuring = Measuring(target=tabled(), max_new_tokens=30)
    for store, learns in (("shared", False), ("kept", True)):
        drafter = make_drafter(f"recycling:store={store}")
        drafter.fit(measuring.target)
        first, second = measuring.walk(drafter, prompts, 12, 60.0)
        assert (len(second.trails) < len(first.trails)) == learns
        again = measuring.follow(drafter, [first], 12, 60.0)
        assert [len(walk.trails) for walk in again] == [len(first.trails)]


@pytest.mark.parametrize("spec", ["lookahead:paper", "spectra:paper", "lookup+lookahead:paper"])
def test_a_method_whose_small_drafts_are_no_part_of_its_large_ones_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be calibrated.*fixed:"):
        Method.of(make_drafter(spec))
    assert Method.of(make_drafter(spec.replace(":paper", ""))).spec == spec.replace(":paper", "")


# --- prompts ---


def rows(file: Path, count: int) -> str:
    file.write_text("".join(json.dumps({"prompt": f"Once {n}", "task": "ab"[n % 2]}) + "\n" for n in range(count)))
    return f"prompts:{file}"


def test_there_are_as_many_prompts_as_were_asked_for_or_an_error(tmp_path: Path) -> None:
    lm = LanguageModel(tabled(), open_vocabulary("pocket"))
    for count in (1, 5, 8, 30):
        names = [name for name, _ in prompts_of(None, lm, count, data=tmp_path)]
        assert len(set(names)) == count, "also without a data folder"
    with pytest.raises(ValueError, match="200 prompts were asked for, and the built-in mixture has 60"):
        prompts_of(None, lm, 200, data=tmp_path)
    suite = rows(tmp_path / "few.jsonl", 4)
    with pytest.raises(ValueError, match=r"5 prompts were asked for, and .* has 4; ask for fewer"):
        prompts_of(suite, lm, 5)
    assert len(prompts_of(suite, lm)) == 4, "nobody asked for a number"
    assert len(prompts_of(suite, lm, 2, tasks=["a"])) == 2
    with pytest.raises(ValueError, match="has 2"):
        prompts_of(suite, lm, 3, tasks=["a"])


def test_a_calibration_without_end_is_a_fixed_amount_of_work(tmp_path: Path, monkeypatch: Any) -> None:
    """However fast the machine; the time that it takes is a finding."""
    written: list[int] = []
    one = Measuring._text

    def watched(measuring: Measuring, *given: Any, **more: Any) -> Walk:
        walk = one(measuring, *given, **more)
        written.append(len(walk.tokens) - len(walk.prompt))
        return walk

    monkeypatch.setattr(Measuring, "_text", watched)
    lm = LanguageModel(tabled(), open_vocabulary("pocket"))
    monkeypatch.setattr(prompts_module, "encode", lambda *_: np.array(PROMPT))
    for count in (1, 3):
        written.clear()
        suite = rows(tmp_path / "three.jsonl", 3)
        how: dict[str, Any] = {"suite": suite, "max_new_tokens": 9, "temperature": 1.0, "progress": told}
        found = calibrate_method(lm, "lookup", seconds=math.inf, prompts=count, **how)
        assert written[:count] == written[count:], "each twice, whole"
        assert len(written) == 2 * count
        assert found.took > 0
    with pytest.raises(ValueError, match="at least a little, not nan"):
        Plan(seconds=math.nan)


def told(doing: str, done: int, total: int) -> None:
    assert total == 0, "nobody knows how long it will take"


# --- seconds ---


@pytest.mark.parametrize("sequences", [1, 3])
def test_every_size_is_timed_and_reading_is_apart(sequences: int) -> None:
    found, readings = Measuring(target=tabled()).timings(
        np.array(PROMPT), (1, 3, 6), length=20, sequences=sequences, top=2, seconds=0.01, cap=None
    )
    assert [timing.rows for timing in found] == [row * sequences for row in (1, 3, 6)]
    assert {(timing.sequences, timing.length) for timing in found} == {(sequences, 20)}
    assert all(timing.seconds > 0 for timing in found)
    assert [(reading.top, reading.rows) for reading in readings] == [(2, row * sequences) for row in (1, 3, 6)]


def test_rounds_are_repeated_while_there_is_time_and_expensive_sizes_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    step = Rounds.step

    def watched(rounds: Rounds, nodes: int) -> RoundSeconds | None:
        asked.append(nodes)
        took = step(rounds, nodes)
        return took if took is None else RoundSeconds(1.0 + nodes, 0.0)

    monkeypatch.setattr(Rounds, "step", watched)
    how: dict[str, Any] = {"length": 20, "cap": 3.5}
    for seconds, repeats, passes in ((0.0, 3, 3), (1000.0, 2, MOST_REPEATS)):
        asked.clear()
        found, _ = Measuring(target=tabled()).timings(
            np.array(PROMPT), (1, 3, 6, 9), seconds=seconds, repeats=repeats, **how
        )
        assert [(timing.rows, timing.seconds) for timing in found] == [(1, 1.0), (3, 3.0), (6, 6.0)]
        timed = asked[asked.index(5) + 1 :]
        assert Counter(timed) == dict.fromkeys((0, 2, 5), passes), "all but the reading of the prompt and one pass"


def test_a_context_that_is_too_short_is_told() -> None:
    with pytest.raises(ValueError, match="give smaller --length"):
        Measuring(target=tabled(context_length=24)).timings(np.array(PROMPT), (1, 2, 3), length=20, seconds=0.01)


# --- the planner ---


def context(foreseeable: bool = True) -> Context:
    made = Context(range(250), Sampling(), Ending(max_new_tokens=100))
    made.foreseeable = foreseeable
    return made


def planner(*batch_sizes: int) -> Calibrated:
    known = method(points=method().points, drafting=())
    curves = Curves([timing for number in batch_sizes or (1,) for timing in timings(number)])
    return Calibrated(
        dataclasses.replace(known, choices=tuple(known.choose(curves, *key) for key in curves.keys)), curves
    )


def sizes(
    planner: Calibrated, rounds: int, seconds: object, *, foreseeable: bool = True, batch_size: int = 1
) -> list[int]:
    """The sizes that it asks for, where rounds of n rows take ``seconds(n)``."""
    texts, found = [context(foreseeable) for _ in range(batch_size)], []
    for _ in range(rounds):
        nodes = planner.plan([Room(text, 100) for text in texts])[0].nodes
        tree = DraftTree.chain(range(nodes))
        took = seconds(batch_size * (1 + nodes))  # type: ignore[operator]
        planner.review(
            [
                Outcome(context=text, proposed=tree, sent=tree, tokens=(1,), seconds_draft=0.0, seconds=took)
                for text in texts
            ]
        )
        found.append(nodes)
    return found


def as_stored(rows: int) -> float:
    return 0.05 + 0.0005 * (rows - 1)


def test_the_size_that_was_found_is_drafted() -> None:
    known = method().choose(Curves(timings()))
    assert set(sizes(planner(), 300, as_stored)) == {known.nodes}


def test_each_batch_size_has_its_own_size() -> None:
    both = planner(1, 4)
    alone, together = (sizes(both, 1, as_stored, batch_size=batch_size)[0] for batch_size in (1, 4))
    assert alone > together


def test_noise_is_no_drift() -> None:
    random = np.random.default_rng(0)
    assert len(set(sizes(planner(), 2000, lambda rows: as_stored(rows) * random.lognormal(0, 0.15)))) == 1


def test_rows_that_have_become_expensive_are_drafted_no_more() -> None:
    made = planner()
    before = sizes(made, 1, as_stored)[0]
    after = sizes(made, 1000, lambda rows: 0.05 + 0.01 * (rows - 1))[-1]
    assert 0 <= after < before / 2
    tokens = {point.nodes: point.tokens for point in method().points}
    best = max(tokens, key=lambda size: tokens[size] / (0.05 + 0.01 * size))
    assert abs(after - best) <= 3
    assert sizes(made, 3000, as_stored)[-1] > before / 2, "and are again when the machine is itself again"


def test_a_machine_that_is_slow_altogether_keeps_its_size_and_is_seldom_tried() -> None:
    made = planner()
    size = sizes(made, 1, as_stored)[0]
    slow = sizes(made, 10000, lambda rows: 2 * as_stored(rows))
    assert slow[-1] == size
    assert sum(other != size for other in slow) <= 4 * TRIED
    restless = iter(range(10**6))  # never the same for long
    tried = sizes(planner(), 10000, lambda rows: as_stored(rows) * (2 if next(restless) // 150 % 2 else 0.5))
    assert sum(other != size for other in tried) < 0.05 * len(tried)
    assert PATIENCE[0] < PATIENCE[1]


def test_under_the_rejection_rule_nothing_live_counts() -> None:
    made = planner()
    size = sizes(made, 1, as_stored)[0]
    assert set(sizes(made, 300, lambda rows: 0.05 + 0.05 * rows, foreseeable=False)) == {size}
    sizes(made, 300, lambda rows: 0.05 + 0.05 * rows)
    assert set(sizes(made, 3, as_stored, foreseeable=False)) == {size}, "nor what others have shown"


def test_under_the_rejection_rule_batch_size_is_no_part_of_a_text() -> None:
    both = planner(1, 4)
    alone = sizes(both, 1, as_stored)[0]
    assert sizes(both, 1, as_stored, batch_size=4)[0] != alone
    assert sizes(both, 1, as_stored, foreseeable=False, batch_size=4)[0] == alone


def test_a_batch_size_that_was_not_measured_takes_no_part_in_a_trial() -> None:
    made = planner(1, 4)
    size = sizes(made, 1, as_stored)[0]
    expensive = sizes(made, WATCHED * 4, lambda rows: 0.05 + 0.01 * (rows - 1))
    begun = next(number for number, asked in enumerate(expensive) if asked != size)
    made = planner(1, 4)
    sizes(made, begun + 2, lambda rows: 0.05 + 0.01 * (rows - 1))  # in the middle of a trial
    together = sizes(planner(1, 4), 1, as_stored, batch_size=3)[0]
    assert set(sizes(made, 50, as_stored, batch_size=3)) == {together}


def test_a_planner_without_measurements_names_the_command() -> None:
    target, drafter = tabled(), make_drafter("lookup:max_ngram=4")
    make_planner("calibrated", drafter)  # without a target only the spec is judged
    with pytest.raises(ValueError, match="paceline calibrate --model table --method lookup:max_ngram=4") as error:
        make_planner("calibrated", drafter, target)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="cannot read planner"):
        make_planner("calibrated:3", drafter, target)


def test_what_was_calibrated_is_found_by_the_planner() -> None:
    target, drafter = tabled(), make_drafter("lookup")
    plan = Plan(max_nodes=6, lengths=(16,), sequences=(1, 2), max_new_tokens=60, seconds=math.inf)
    prompts = [("one", np.array(PROMPT)), ("two", np.array(PROMPT[::-1]))]
    profile = Calibrator(target=target, methods=[Method.of(drafter)], prompts=prompts, plan=plan).run()
    save(profile)
    assert find(setup_of(target)) == profile
    known = profile.method("lookup")
    assert known is not None
    assert [point.nodes for point in known.points] == list(range(7))
    assert {(choice.sequences, choice.length) for choice in known.choices} == {(1, 16), (2, 16)}
    made = make_planner("calibrated", make_drafter("lookup"), target)
    assert made.plan([Room(context(), 100)])[0].nodes == known.choices[0].nodes
    with pytest.raises(ValueError, match="measured are lookup;"):
        make_planner("calibrated", make_drafter("lookup:max_ngram=2"), target)
    other = Calibrator(target=target, methods=[Method.of(Plain())], prompts=prompts, plan=plan).run(profile)
    assert [one.method for one in other.methods] == ["lookup", "plain"]


def test_texts_make_up_for_what_rounds_took_and_keep_half_of_their_seconds() -> None:
    plan = Plan(seconds=100.0)
    methods = [Method.of(make_drafter("lookup"))]
    calibrator = Calibrator(target=tabled(), methods=methods, prompts=[("one", np.array(PROMPT))], plan=plan)
    planned = 60.0
    for spent, left in ((10.0, 60.0), (35.0, 60.0), (50.0, 45.0), (65.0, 30.0), (400.0, 30.0)):
        assert planned * calibrator._left_to_texts(spent) == pytest.approx(left)


def test_what_a_known_method_reads_is_timed_again() -> None:
    target = tabled()
    plan = Plan(max_nodes=3, lengths=(16,), sequences=(1,), max_new_tokens=8, seconds=0.1)
    reads, plain = (
        Calibrator(target=target, methods=[Method.of(one)], prompts=[("one", np.array(PROMPT))], plan=plan)
        for one in (make_drafter("lookup:next=2"), Plain())
    )
    assert {reading.top for reading in plain.run(reads.run()).readings} == {2}
    assert plain.run().readings == ()


def test_the_adaptive_planner_begins_with_what_was_measured() -> None:
    target = tabled()
    assert not costs_of(target, NOTHING).known
    other = tabled()
    save(Profile.now(setup_of(other), tuple(timings())))
    costs = costs_of(other, NOTHING)
    assert costs is costs_of(other, NOTHING)
    assert costs.seconds(1)[1] == pytest.approx(0.05)


def test_a_plan_of_nothing_is_told() -> None:
    for wrong in ({"max_nodes": 0}, {"lengths": (0,)}, {"sequences": ()}, {"sequences": (0,)}, {"seconds": 0.0}):
        with pytest.raises(ValueError, match="at least"):
            Plan(**wrong)  # type: ignore[arg-type]


def test_a_text_knows_every_round_of_its_own() -> None:
    seen: list[int] = []
    walk = Walk(np.array(PROMPT), lambda: seen.append(1))
    how: dict[str, Any] = {"method": "lookup", "planner": "fixed:3", "max_new_tokens": 9}
    text = LanguageModel(tabled()).generate(PROMPT, observer=walk.note, **how)
    rounds = [each for each in text.rounds if not each.prefill]
    assert [(one.nodes, one.emitted) for one in walk.trails] == [(each.drafted, each.emitted) for each in rounds]
    assert (walk.emitted, len(seen)) == (text.totals.tokens_in_rounds, len(rounds))
    assert walk.seconds_draft == pytest.approx(text.totals.seconds_draft)


# --- the command ---

QUICK = ["--model", "pocket", "--method", "lookup", "--max-nodes", "3", "--length", "24", "--batch", "1"]
QUICK += ["--samples", "2", "--max-new-tokens", "4", "--seconds", "0.2", "--prompts", "dictspec"]
ENOUGH = [*QUICK, "--max-new-tokens", "120", "--seconds", "30"]


def test_the_command_keeps_what_the_planner_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["calibrate", *ENOUGH, "--html", str(page), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert found["methods"][0]["method"] == "lookup"
    assert 0 <= found["methods"][0]["nodes"] <= 3
    assert math.isfinite(found["methods"][0]["tokens_per_second"])
    assert Path(found["profile"]).is_file()
    assert any("best size" in line for line in lines)
    shown = page.read_text(encoding="utf8")
    assert shown.count('<svg class="chart') == 3
    assert "<script" not in shown
    assert main(["generate", "Once", "--method", "lookup", "--planner", "calibrated", "--max-new-tokens", "4"]) == 0
    assert main(["generate", "Once", "--method", "lookup:max_ngram=9", "--planner", "calibrated"]) == 2
    assert "--method lookup:max_ngram=9" in capsys.readouterr().err


def test_too_few_rounds_are_marked_and_steer_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["calibrate", *QUICK, "--html", str(page), "--json"]) == 0
    out = capsys.readouterr().out
    assert "these are too few rounds: planners do not use what was found. Measure at least 32" in out
    assert json.loads(out.splitlines()[-1])["methods"][0]["enough"] is False
    assert "Too few rounds of lookup were measured to choose a size" in page.read_text(encoding="utf8")
    assert main(["generate", "Once", "--method", "lookup", "--planner", "calibrated"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"only \d rounds of 'lookup' were measured for .* chosen from 32 or more; .*: paceline", said)
    assert not costs_of(paceline.load("pocket").target, NOTHING).known


def test_timings_of_a_calibration_that_was_too_short_do_not_steer_auto() -> None:
    for rounds, known in ((31, False), (32, True)):
        target = tabled()
        profile = Profile.now(setup_of(target), tuple(timings()))
        made = [method("some", rounds=31), method("other", rounds=rounds)]
        curves = profile.curves(made[0].top)
        save(
            profile.with_methods(
                tuple(
                    dataclasses.replace(one, choices=tuple(one.choose(curves, *key) for key in curves.keys))
                    for one in made
                )
            )
        )
        assert costs_of(target, NOTHING).known is known


def test_an_interruption_leaves_the_profile_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *QUICK, "--json"]) == 0
    path = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["profile"])
    before = path.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Measuring, "follow", interrupt)
    assert main(["calibrate", *QUICK]) == 130
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
