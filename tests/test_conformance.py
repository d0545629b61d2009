"""The conformance kit finds nothing on a sound engine, and finds each of the mistakes it exists for."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import families
from paceline import verify
from paceline.check import (
    ADVERSARIES,
    CHOOSING,
    METHODS,
    SIZES,
    WITH_DICTIONARY,
    Checker,
    Report,
    fixed,
    walk,
)
from paceline.check.cases import LATE, Case, Plan, samplings
from paceline.check.oracle import law_faults
from paceline.check.planned import CHOSEN_FOR, by_default
from paceline.check.record import Recording, record, teacher_forced
from paceline.check.report import Result
from paceline.check.rescore import Rescorer, Verdict, wider_twin
from paceline.check.run import SAMPLED
from paceline.check.walk import session_of
from paceline.cli import main
from paceline.context import Finish
from paceline.drafters.assistant import DraftModel
from paceline.engine.batch import Batch, Seat
from paceline.engine.follow import Flip
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Dice, Distribution, Law, Sampling
from paceline.planning.base import Planner
from paceline.planning.fixed import Fixed
from paceline.targets import base
from paceline.targets.cache import CacheRows
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget, random_table
from paceline.tree import DraftTree, Ints
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary


def target(dtype: torch.dtype = torch.float32, family: str = "llama") -> HFTarget:
    return prepare(HFTarget(families.build(family, dtype=dtype), name=family))


SOME = (*CHOSEN_FOR, "t=1 repetition 1.2")
"""Settings enough to see a mistake in: one that is greedy, one that samples, both of which others are aimed with, and
one whose law depends on the text before it."""


@contextmanager
def only_in(*names: str) -> Iterator[None]:
    """Checks in these settings, and in those that are aimed with them."""
    every = Plan.settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "settings", lambda plan: [one for one in every(plan) if one.name in names])
        yield


def small_check(subject: HFTarget | TableTarget, *batches: int) -> Report:
    """Two adversaries, one draft size: the smallest grid with power against every mistake below."""
    methods = ("(oracle tree)", "(self, sampled)")
    return Checker(
        subject, methods=methods, planners=("fixed:8",), max_new_tokens=LATE + 2, batches=batches or (1,)
    ).run()


def smaller_check(subject: HFTarget, *batches: int) -> Report:
    """The same in some settings: a mistake must show there already."""
    with only_in(*SOME):
        return small_check(subject, *batches)


def test_a_method_that_does_not_fit_is_a_mistake_and_no_bug() -> None:
    stranger = DraftModel(TableTarget(random_table(9), 9))
    with pytest.raises(ValueError, match="does not speak the tokens"):
        Checker(target(), methods=("lookup", "assistant"), draft_model=stranger).run()


def test_a_sound_engine_is_equal_everywhere() -> None:
    report = small_check(target())
    assert report.sentences() == []
    assert report.summary()["cases"] == report.summary()["equal"] >= 60
    assert report.control_tokens >= 13 * LATE


def float64_grid(*methods: str, rules: Sequence[Rule] = tuple(Rule)) -> int:
    """What `paceline check --dtype float64 --batch 1 --sizes 4 12` runs, of some methods: how many cases, all equal."""
    vocabulary = Vocabulary.of(families.byte_tokenizer())
    model = families.build("gemma3", dtype=torch.float64, vocab_size=vocabulary.size)
    target = prepare(HFTarget(model, name="gemma3"))
    summary = Checker(target, vocabulary, methods, fixed(SIZES), rules, batches=(1,)).run().summary()
    assert summary["faults"] == []
    assert summary["cases"] == summary["equal"]
    assert summary["flips_per_1000"] == summary["control_flips_per_1000"] == 0
    return int(summary["cases"])


@pytest.mark.parametrize(
    ("rule", "methods", "least"),
    [
        (Rule.COUPLED, ("lookup", "spectra", "lookup+lookahead"), 40),
        (Rule.COUPLED, ADVERSARIES, 60),
        (Rule.REJECTION, ("lookup+lookahead", "(oracle tree)"), 20),
    ],
    ids=["methods", "adversaries", "rejection"],
)
def test_float64_has_no_difference_at_all(rule: Rule, methods: tuple[str, ...], least: int) -> None:
    with only_in(*SOME):
        assert float64_grid(*methods, rules=(rule,)) >= least


@pytest.mark.slow
def test_float64_has_no_difference_at_all_in_any_setting() -> None:
    assert float64_grid("lookup", "spectra", "lookup+lookahead", *ADVERSARIES) >= 300


def test_texts_are_long_and_mostly_sampled() -> None:
    rules = (Rule.COUPLED,)
    report = Checker(target(), None, ("lookup",), ("fixed:4",), rules, batches=(1,)).run()
    assert min(result.tokens for result in report.results) >= LATE
    sampled = [r for r in report.results if not r.case.setting.sampling.greedy]
    assert len(sampled) >= len(report.results) / 2


def test_every_method_meets_every_planner_and_every_size_without_trying_all_with_all() -> None:
    settings = [setting.name for setting in Plan(target(), None).settings()]
    assert set(CHOSEN_FOR) <= set(settings)
    for method in (*METHODS, *WITH_DICTIONARY, *ADVERSARIES):
        planned = {name: by_default(method, name, adversary=method in ADVERSARIES) for name in settings}
        assert {planner for planners in planned.values() for planner in planners} == {*fixed(SIZES), *CHOOSING}
        assert sum(map(len, planned.values())) <= (2 if method in ADVERSARIES else 1) * len(settings) + 2 * 2


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("planner", CHOOSING)
def test_planners_that_choose_sizes_are_checked_with_drafts_that_are_sent(planner: str, size: int) -> None:
    """Under them, too, drafts reach the target and are accepted; and a batch shares its planner, as hosts do."""
    made: list[Planner] = []
    drafted = accepted = 0

    class Kept(Session):
        def _judge(self, tree: DraftTree, scores: Any) -> Any:
            nonlocal drafted, accepted
            made.append(self.planner)
            verdict = super()._judge(tree, scores)
            drafted, accepted = drafted + len(tree), accepted + verdict.accepted
            return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "Session", Kept)
        settings = Plan.settings
        patch.setattr(Plan, "settings", lambda self: settings(self)[3:6])
        methods, rules = ("(oracle tree)",), (Rule.COUPLED,)
        checker = Checker(target(), None, methods, (planner,), rules, LATE + 2, batches=(size,))
        report = checker.run()
    assert report.sentences() == []
    cases = sum(result.case.drafts for result in report.results)
    assert report.summary()["planners"] == {planner: cases}
    assert drafted > accepted > 5
    assert len(set(made)) == (cases if size == 1 else 1)


def test_the_adversaries_are_accepted_at_depth() -> None:
    """A kit whose drafts are all refused would prove nothing."""
    subject = target()
    checker = Checker(subject, methods=("(oracle tree)",))
    setting = Plan(subject, None).settings()[4]
    recording = record(setting, subject, subject.open(256))
    case = Case("(oracle tree)", Rule.COUPLED, "fixed:12", setting)
    session = session_of(case, subject, checker._drafter(case, recording), Fixed(12), subject.open(256))
    list(run(session))
    accepted = [r.accepted for r in session.rounds]
    assert max(accepted) >= 3
    assert np.mean(accepted) > 1


# --- mistakes -------------------------------------------------------------------------------------------------------


def bonus_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """The token after a path is read from the row before the path's last node."""
    patch.setattr(Scores, "row", lambda self, node: self.logits[max(node, 0)])
    patch.setattr(Scores, "choice", lambda self, node: int(self._best[0][max(node, 0)]))


def wrong_row_gathered(patch: pytest.MonkeyPatch) -> None:
    """Kept rows are the first tentative ones, not the accepted ones."""
    right = CacheRows._gather
    patch.setattr(CacheRows, "_gather", lambda self, rows: right(self, np.arange(len(rows))))


def sibling_visible(patch: pytest.MonkeyPatch) -> None:
    """Every earlier row of a draft is seen, ancestor or not, at the position of its own depth."""
    patch.setattr(base, "ancestors", lambda parents: np.tri(len(parents), dtype=np.bool_))


def stale_noise_position(patch: pytest.MonkeyPatch) -> None:
    """All tokens of a round are drawn with the noise of its first."""
    right = verify._settle

    def stale(tree: DraftTree, node: int, law: Distribution, rule: Rule, dice: Dice, index: int) -> int:
        return right(tree, node, law, rule, dice, index - len(tree.path(node)))

    patch.setattr(verify, "_settle", stale)


def warp_twice_under_drafts(patch: pytest.MonkeyPatch) -> None:
    """The law of a drafted node is warped once more than plain decoding's."""
    right = verify._settle

    def twice(tree: DraftTree, node: int, law: Distribution, rule: Rule, dice: Dice, index: int) -> int:
        again = type(law)(law.ids, law.weights**2) if node >= 0 else law
        return right(tree, node, again, rule, dice, index)

    patch.setattr(verify, "_settle", twice)


def warp_twice_everywhere(patch: pytest.MonkeyPatch) -> None:
    """Plain decoding is wrong in the same way as every method, so only an independent law can tell."""
    right = Law.distribution

    def twice(self: Law, row: torch.Tensor, tokens: Ints) -> Distribution:
        return right(self, row / (self.sampling.temperature**2 or 1.0) * 0.5, tokens)

    patch.setattr(Law, "distribution", twice)


def accepts_with_p(patch: pytest.MonkeyPatch) -> None:
    """The rejection rule accepts a sampled child with probability p instead of p / q."""

    def biased(p: Distribution, q: Distribution, drawn: Ints, dice: Dice, index: int) -> int:
        for token in drawn.tolist():
            if dice.accept(index, token, p.probability(token)):
                return int(token)
        return dice.draw(index, p)

    patch.setattr(verify, "_accept_sampled", biased)


MISTAKES = [
    bonus_off_by_one,
    wrong_row_gathered,
    sibling_visible,
    stale_noise_position,
    warp_twice_under_drafts,
    warp_twice_everywhere,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_each_mistake_is_caught(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    subject = target()
    mistake(monkeypatch)
    assert smaller_check(subject).bugs > 0


def test_a_bias_of_acceptance_shows_in_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no single text, but in those of all settings together."""
    accepts_with_p(monkeypatch)
    methods, rules = (SAMPLED,), (Rule.REJECTION,)
    report = Checker(target(), None, methods, ("fixed:8",), rules, LATE + 2, batches=(1,)).run()
    assert any("tokens off the law" in sentence for sentence in report.sentences())
    assert report.bugs > 0


def next_row_visible(patch: pytest.MonkeyPatch) -> None:
    """In a forward of several rows each sees the row after it, in the control as under drafts."""
    right = base.ancestors

    def leaking(parents: Ints) -> np.ndarray:
        return right(parents) | np.eye(len(parents), k=1, dtype=np.bool_)

    patch.setattr(base, "ancestors", leaking)
    patch.setattr(base.Request, "is_chain", property(lambda self: len(self.tokens) == 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mistake_that_spoils_the_control_is_caught_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near ties are measured against the model itself, not against forwards that share the mistake."""
    subject = target(dtype)
    next_row_visible(monkeypatch)
    report = smaller_check(subject)
    assert any("from the model's own" in fault for fault in report.sentences())
    assert report.bugs >= len(SOME) + 1, "all settings and a text that is aimed"


def test_a_greedy_law_that_refuses_the_drafted_token_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the rejection rule: the law of a node whose child carries plain's token is another token's."""
    right = verify._accept_sampled

    def wrong(p: Distribution, q: Distribution, drawn: Ints, dice: Dice, index: int) -> int:
        law = Distribution.one_hot((int(p.ids[0]) + 1) % 97) if p.ids[0] in drawn else p
        return right(law, q, drawn, dice, index)

    subject = target()
    monkeypatch.setattr(verify, "_accept_sampled", wrong)
    checker = Checker(subject, methods=("(self, sampled)",), planners=("fixed:8",), rules=(Rule.REJECTION,))
    setting = Plan(subject, None).settings()[0]
    recording = record(setting, subject, subject.open(256))
    result = checker.compare(Case("(self, sampled)", Rule.REJECTION, "fixed:8", setting), recording)
    assert result.count(Verdict.BUG) > 3
    assert len({flip.index for flip, _ in result.flips}) == len(result.flips)


# --- near ties ------------------------------------------------------------------------------------------------------


def test_bfloat16_differences_are_near_ties_within_the_control() -> None:
    report = small_check(target(torch.bfloat16))
    assert report.bugs == 0, report.sentences()
    assert report.control_flips > 0
    assert report.flips > 0


def test_a_difference_far_from_a_tie_is_a_bug_in_any_type() -> None:
    """The same difference is judged a bug unless both tokens are on top within the measured error."""
    subject = target(torch.bfloat16)
    setting = Plan(subject, None).settings()[0]
    recording = record(setting, subject, subject.open(256))
    index = len(setting.prompt) + 5
    best = recording.narrow[5].topk(2)
    worst = int(recording.narrow[5].argmin())
    assert float(best.values[0] - recording.narrow[5][worst]) > 2
    assert Rescorer(subject).judge(Flip(index, worst, int(best.indices[0])), recording) is Verdict.BUG


def test_float64_knows_no_near_ties_and_a_table_cannot_be_rescored() -> None:
    subject = target(torch.float64)
    setting = Plan(subject, None).settings()[0]
    recording = record(setting, subject, subject.open(256))
    flip = Flip(len(setting.prompt), 1, int(recording.emitted[0]))
    assert Rescorer(subject).judge(flip, recording) is Verdict.BUG
    table = TableTarget(random_table(5), 5, dtype=torch.float32)
    setting = Plan(table, None, 4).settings()[0]
    recording = record(setting, table, table.open())
    flip = Flip(len(setting.prompt), 1, int(recording.emitted[0]))
    assert Rescorer(table).judge(flip, recording) is Verdict.NOT_RESCORED


@pytest.mark.parametrize("unknown", [False, True], ids=["too little memory", "memory unknown"])
def test_a_twin_is_made_where_there_is_room_or_nobody_knows(unknown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def pages(name: str) -> int:
        if unknown:
            raise ValueError("unrecognized configuration name")
        return 1

    monkeypatch.setattr("os.sysconf", pages)
    assert (wider_twin(target(torch.bfloat16)) is not None) is unknown


def test_too_many_near_ties_are_a_bug() -> None:
    """A flip rate that the control does not explain is an error hiding among near ties."""
    setting = Plan(TableTarget(random_table(5), 5), None, 4).settings()[0]
    case = Case("lookup", Rule.COUPLED, "fixed:4", setting)
    near = tuple((Flip(i, 1, 2), Verdict.NEAR_TIE) for i in range(30))
    report = Report("m", "bfloat16", "f", control_flips=2, control_tokens=1000)
    report.results.append(Result(case, 1000, near))
    report.close()
    assert report.bugs == 1
    calm = Report("m", "bfloat16", "f", control_flips=20, control_tokens=1000)
    calm.results.append(Result(case, 1000, near))
    calm.close()
    assert calm.bugs == 0


def test_teacher_forced_rows_are_plain_decodings_rows() -> None:
    subject = target(torch.float64)
    setting = Plan(subject, None, 20).settings()[0]
    recording = record(setting, subject, subject.open(64))
    for width in (1, 7, 16):
        rows = list(teacher_forced(subject, recording.tokens, len(setting.prompt), width))
        assert len(rows) == len(recording.emitted)
        for ours, plain in zip(rows, recording.narrow, strict=True):
            torch.testing.assert_close(ours, plain, rtol=0, atol=1e-9)


def test_ties_at_a_warps_border_are_no_difference_from_transformers() -> None:
    """Which of equal tokens stays in the nucleus is lowest id first with us; a wrong mass is still seen."""
    table = TableTarget(random_table(6), 6)
    setting = replace(Plan(table, None, 1).settings()[0], sampling=Sampling(temperature=1.0, top_p=0.5))
    row = torch.tensor([0.0, 2.0, 2.0, 2.0, 2.0, -1.0])
    tokens = np.append(setting.prompt, 1)
    recording = Recording(setting, table, tokens, Finish.LENGTH, [0.0], [row])
    assert law_faults(recording) == ()
    wider = replace(recording, setting=replace(setting, sampling=Sampling(temperature=1.0, top_p=0.9)))
    assert law_faults(wider) == ()
    with pytest.MonkeyPatch.context() as patch:
        warp_twice_everywhere(patch)
        assert law_faults(replace(wider, narrow=[torch.arange(6.0)])) != ()


# --- in company ------------------------------------------------------------------------------------------------------


def answers_swapped(patch: pytest.MonkeyPatch) -> None:
    """Two sequences that score as many rows get each other's."""
    right = HFTarget.submit

    def submit(self: HFTarget, requests: Sequence[base.Request], on_early: base.OnEarly | None = None) -> base.Pending:
        scores = right(self, requests, on_early).result()
        if len(scores) > 1 and len(requests[0].tokens) == len(requests[1].tokens):
            scores[0], scores[1] = scores[1], scores[0]
        return base.Done(scores)

    patch.setattr(HFTarget, "submit", submit)


def borrowed_rows_too_far(patch: pytest.MonkeyPatch) -> None:
    """Of a common beginning one row more is claimed than was copied."""
    right = CacheRows._copy

    def copied(self: CacheRows, other: CacheRows, count: int) -> None:
        right(self, other, count)
        for layer in self.layers.values():
            assert layer.keys is not None
            layer.keys[:, :, count - 1] = layer.keys[:, :, 0]

    patch.setattr(CacheRows, "_copy", copied)


def neighbours_seen(patch: pytest.MonkeyPatch) -> None:
    """In a forward of several sequences the keys of the first are written to the second as well."""
    right = CacheRows.write
    before: list[Any] = []

    def write(self: CacheRows, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Any:
        if before and before[-1][:2] != (id(self), layer) and before[-1][1] == layer:
            first = before[-1][2]
            n = min(first.shape[2], keys.shape[2])
            keys = torch.cat([first[:, :, :n], keys[:, :, n:]], dim=2)
        before[:] = [(id(self), layer, keys)]
        return right(self, layer, keys, values)

    patch.setattr(CacheRows, "write", write)


def last_token_not_told(patch: pytest.MonkeyPatch) -> None:
    """What a round brings is handed out but for its end."""
    right = Seat.turn
    patch.setattr(Seat, "turn", lambda seat: (t := right(seat))._replace(emissions=t.emissions[:-1]))


def states_left_open(patch: pytest.MonkeyPatch) -> None:
    """Who leaves a batch is forgotten rather than closed."""

    def leave(self: Batch, session: Session) -> None:
        forgotten.extend(seat for seat in self._seats if seat.session is session)
        self._seats = [seat for seat in self._seats if seat.session is not session]

    forgotten: list[Seat] = []
    patch.setattr(Batch, "leave", leave)


@pytest.mark.parametrize("size", [3, 8])
def test_a_sound_engine_is_equal_in_company(size: int) -> None:
    report = small_check(target(), size)
    assert report.sentences() == []
    assert report.summary()["batch_sizes"] == (size,)
    together = [result for result in report.results if result.case.batch == size]
    assert len(together) >= 30
    left = [r for r in together if r.tokens < LATE]
    assert 3 <= len(left) <= len(together) / 4


def test_a_state_that_is_never_closed_is_a_fault_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    states_left_open(monkeypatch)
    report = Checker(target(), methods=("lookup",), planners=("fixed:4",), batches=(3,), max_new_tokens=LATE).run()
    assert any("states were never closed" in sentence for sentence in report.sentences())


@pytest.mark.parametrize("mistake", [answers_swapped, borrowed_rows_too_far, neighbours_seen, last_token_not_told])
def test_mistakes_among_sequences_show_in_company_only(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = target()
    mistake(monkeypatch)
    report = smaller_check(subject, 1, 3)
    assert report.bugs > 0
    assert {result.case.batch for result in report.results if result.buggy} == {3}


# --- aimed cases and the command ------------------------------------------------------------------------------------


def test_aimed_settings_end_late_at_their_token_or_string() -> None:
    subject = target(family="gpt2")
    vocabulary = Vocabulary.of(families.byte_tokenizer())
    subject = prepare(HFTarget(families.build("gpt2", vocab_size=vocabulary.size), name="gpt2"))
    plan = Plan(subject, vocabulary)
    pilot = plan.settings()[4]
    text = record(pilot, subject, subject.open(256))
    late, *strings = plan.aimed(pilot, text.emitted)
    cut = record(late, subject, subject.open(256))
    assert cut.finish == "eos"
    assert cut.emitted.tolist() == text.emitted[: len(cut.emitted)].tolist()
    for stop in strings:
        assert record(stop, subject, subject.open(256)).finish == "stop"


def test_the_command_prints_its_counts_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    families.save("llama", tmp_path)
    code = main(
        [
            "check",
            "--model",
            str(tmp_path),
            "--methods",
            "lookup",
            "--rules",
            "coupled",
            "--sizes",
            "6",
            "--json",
        ]
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert list(last)[:3] == ["cases", "equal", "near_ties"]
    assert last["bugs"] == 0
    assert last["cases"] == last["equal"]


def test_the_command_exits_with_1_on_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families.save("llama", tmp_path)
    wrong_row_gathered(monkeypatch)
    arguments = [
        "check",
        "--model",
        str(tmp_path),
        "--methods",
        "(oracle tree)",
        "--rules",
        "coupled",
        "--sizes",
        "6",
        "--batch",
        "1",
    ]
    with only_in(*SOME):
        assert main(arguments) == 1


def test_settings_cover_every_field_of_sampling() -> None:
    """A new sampling setting must enter the check."""
    made = list(samplings(100, 0).values())
    for field in fields(Sampling):
        if field.name != "processors":
            assert any(getattr(s, field.name) != getattr(Sampling(), field.name) for s in made), field.name
