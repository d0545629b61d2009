"""The conformance kit finds nothing on a sound engine, and finds each of the mistakes it exists for."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import families
from clock import MadeClock
from paceline import verify
from paceline.cli import main
from paceline.context import Finish
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.assistant import DraftModel
from paceline.engine.batch import Batch, Seat
from paceline.engine.follow import Flip
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Dice, Distribution, Law, Sampling
from paceline.planning.fixed import Fixed
from paceline.targets import base
from paceline.targets.base import Done
from paceline.targets.cache import CacheRows
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.targets.scores import Scores
from paceline.targets.table import TableTarget, random_table
from paceline.testing.evidence import teacher_forced
from paceline.tree import DraftTree, Ints
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from paceline_lab.check import (
    ADVERSARIES,
    CHECKED_METHODS,
    CHOOSING,
    DRAFT_SIZES,
    WITH_DICTIONARY,
    Checker,
    Report,
    fixed,
    rescore,
    walk,
)
from paceline_lab.check import run as checking
from paceline_lab.check.adversaries import SAMPLED_SELF
from paceline_lab.check.cases import LATE, PILOTS, Case, Setting, aimed, by_default, samplings, settings
from paceline_lab.check.record import Recording, law_faults, record
from paceline_lab.check.report import CaseResult
from paceline_lab.check.rescore import Cause, Rescorer, wider_twin
from thinning import crossed, thinned


def target(dtype: torch.dtype = torch.float32, family: str = "llama") -> HFTarget:
    return prepare(HFTarget(families.build(family, dtype=dtype), name=family))


SOME = (*PILOTS, "t=1 repetition 1.2")
"""Settings enough to see a mistake in: a greedy pilot, a sampled pilot, and one whose law depends on the text before
it."""


@contextmanager
def only_in(*names: str) -> Iterator[None]:
    """Checks in these settings, and in those that are aimed with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "settings", lambda *of: [one for one in settings(*of) if one.name in names])
        yield


def greedy(subject: HFTarget | TableTarget, max_new_tokens: int = 64) -> Setting:
    return settings(subject, None, max_new_tokens)[0]


def recorded(subject: HFTarget | TableTarget, setting: Setting | None = None) -> Recording:
    return record(setting or greedy(subject), subject, subject.open(256))


def small_check(subject: HFTarget, *batches: int, methods: Sequence[str] = ("(oracle tree)", SAMPLED_SELF)) -> Report:
    """Two adversaries, one draft size."""
    checker = Checker(subject, None, methods, ("fixed:8",), max_new_tokens=LATE + 2, batches=batches or (1,))
    return checker.run()


def smallest_check(subject: HFTarget, *batches: int) -> Report:
    """One adversary in some settings: the smallest grid with power against every mistake below."""
    with only_in(*SOME):
        return small_check(subject, *batches, methods=("(oracle tree)",))


def test_a_method_that_does_not_fit_is_a_mistake_and_no_bug() -> None:
    stranger = DraftModel(TableTarget(random_table(9), 9))
    with pytest.raises(ValueError, match="came without its tokenizer"):
        Checker(target(), methods=("lookup", "assistant"), draft_model=stranger).run()


@pytest.fixture(scope="module")
def sound() -> Report:
    return small_check(target(), 1, 8)


def test_a_sound_engine_is_equal_everywhere(sound: Report) -> None:
    assert sound.sentences() == []
    assert len([result for result in sound.results if result.case.batch == 1]) >= 60
    assert sound.summary()["cases"] == sound.summary()["equal"] == len(sound.results)
    assert sound.summary()["batch_sizes"] == (1, 8)
    assert sound.control_tokens >= 13 * LATE


def test_in_a_batch_some_leave_in_the_middle(sound: Report) -> None:
    together = [result for result in sound.results if result.case.batch == 8]
    assert len(together) >= 30
    left = [r for r in together if r.tokens < LATE]
    assert 3 <= len(left) <= len(together) / 4


def float64_grid(*methods: str, rules: Sequence[Rule] = tuple(Rule)) -> int:
    """What `paceline check --dtype float64 --batch 1 --sizes 4 12` runs, of some methods: how many cases, all equal."""
    vocabulary = Vocabulary(families.byte_tokenizer())
    model = families.build("gemma3", dtype=torch.float64, vocab_size=vocabulary.size)
    target = prepare(HFTarget(model, name="gemma3"))
    summary = Checker(target, vocabulary, methods, fixed(DRAFT_SIZES), rules, batches=(1,)).run().summary()
    assert summary["faults"] == []
    assert summary["cases"] == summary["equal"]
    assert summary["flips_per_1000"] == summary["control_flips_per_1000"] == 0
    return int(summary["cases"])


@pytest.mark.parametrize(
    ("rule", "methods", "least"),
    thinned(
        [
            (Rule.REJECTION, ("lookup+lookahead", "(oracle tree)"), 20),
            (Rule.COUPLED, ("lookup", "spectra", "lookup+lookahead"), 40),
            (Rule.COUPLED, ADVERSARIES, 60),
        ]
    ),
    ids=["rejection", "methods", "adversaries"],
)
def test_float64_has_no_difference_at_all(rule: Rule, methods: tuple[str, ...], least: int) -> None:
    with only_in(*SOME):
        assert float64_grid(*methods, rules=(rule,)) >= least


@pytest.mark.slow
def test_float64_has_no_difference_at_all_in_any_setting() -> None:
    assert float64_grid("lookup", "spectra", "lookup+lookahead", *ADVERSARIES) >= 300


@pytest.mark.slow
def test_texts_are_long_and_mostly_sampled() -> None:
    rules = (Rule.COUPLED,)
    report = Checker(target(), None, (), ("fixed:4",), rules, batches=(1,)).run()
    assert min(result.tokens for result in report.results) >= LATE
    sampled = [r for r in report.results if not r.case.setting.sampling.greedy]
    assert len(sampled) >= len(report.results) / 2


def test_every_method_meets_every_planner_and_every_size_without_trying_all_with_all() -> None:
    names = list(samplings(100, 0))
    assert set(PILOTS) <= set(names)
    for method in (*CHECKED_METHODS, *WITH_DICTIONARY, *ADVERSARIES):
        planned = {name: by_default(method, name) for name in names}
        assert {planner for planners in planned.values() for planner in planners} == {*fixed(DRAFT_SIZES), *CHOOSING}
        assert sum(map(len, planned.values())) <= (2 if method in ADVERSARIES else 1) * len(names) + 2 * 2


@pytest.mark.parametrize(("planner", "size"), crossed(CHOOSING, [1, 3]))
def test_planners_that_choose_sizes_are_checked_with_drafts_that_are_sent(
    planner: str, size: int, clock: MadeClock
) -> None:
    """Under them, too, drafts reach the target and are accepted; and a batch shares its planner, as hosts do."""
    made: list[Session] = []

    class Kept(Session):
        def __post_init__(self) -> None:
            super().__post_init__()
            made.append(self)

    with pytest.MonkeyPatch.context() as patch, only_in("t=0.7", "t=1"):
        patch.setattr(walk, "Session", Kept)
        methods, rules = ("(oracle tree)",), (Rule.COUPLED,)
        report = Checker(target(), None, methods, (planner,), rules, 12 * LATE, batches=(size,)).run()
    assert report.sentences() == []
    cases = sum(result.case.drafts for result in report.results)
    assert report.summary()["planners"] == {planner: cases}
    rounds = [each for session in made for each in session.rounds]
    assert sum(each.drafted for each in rounds) > sum(each.accepted for each in rounds) > 5
    assert len({session.planner for session in made}) == (cases if size == 1 else 1)


def test_the_adversaries_are_accepted_at_depth() -> None:
    """A kit whose drafts are all refused would prove nothing."""
    subject = target()
    recording = recorded(subject, settings(subject, None)[4])
    drafter = ADVERSARIES["(oracle tree)"](recording)
    session = Session(recording.setting.context(), subject, subject.open(256), drafter, Fixed(12))
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
    assert smallest_check(subject).bugs > 0


@pytest.mark.slow
def test_a_bias_of_acceptance_shows_in_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no single text, but in those of all settings together. By default `test_statistics` sees the same mistake."""
    accepts_with_p(monkeypatch)
    methods, rules = (SAMPLED_SELF,), (Rule.REJECTION,)
    with only_in(*(name for name, sampling in samplings(97, 0).items() if not sampling.greedy)):
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


@pytest.mark.parametrize("dtype", thinned([torch.float32, torch.bfloat16]), ids=str)
def test_a_mistake_that_spoils_the_control_is_caught_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near ties are measured against the model itself, not against forwards that share the mistake."""
    subject = target(dtype)
    next_row_visible(monkeypatch)
    report = small_check(subject, methods=())
    assert all("from the model's own" in fault for fault in report.sentences())
    assert report.bugs >= 12, "in every setting"


def test_a_greedy_law_that_refuses_the_drafted_token_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the rejection rule: the law of a node whose child carries plain's token is another token's."""
    right = verify._accept_sampled

    def wrong(p: Distribution, q: Distribution, drawn: Ints, dice: Dice, index: int) -> int:
        law = Distribution.one_hot((int(p.ids[0]) + 1) % 97) if p.ids[0] in drawn else p
        return right(law, q, drawn, dice, index)

    subject = target()
    monkeypatch.setattr(verify, "_accept_sampled", wrong)
    recording = recorded(subject)
    result = Checker(subject).compare(Case(SAMPLED_SELF, Rule.REJECTION, "fixed:8", recording.setting), recording)
    assert result.count(Cause.BUG) > 3
    assert len({flip.index for flip, _ in result.flips}) == len(result.flips)


# --- near ties ------------------------------------------------------------------------------------------------------


def test_bfloat16_differences_are_near_ties_within_the_control() -> None:
    subject = target(torch.bfloat16)
    report = small_check(subject, methods=("(oracle tree)",))
    assert report.bugs == 0, report.sentences()
    assert report.control_flips > 0
    assert report.summary()["flips_per_1000"] > 0
    with only_in("greedy", "t=1 top-p 0.9"):
        assert small_check(subject, methods=(SAMPLED_SELF,)).bugs == 0


def test_a_difference_far_from_a_tie_is_a_bug_in_any_type() -> None:
    """The same difference is judged a bug unless both tokens are on top within the measured error."""
    subject = target(torch.bfloat16)
    recording = recorded(subject)
    index = recording.start + 5
    row = recording.narrow[5]
    best, worst = int(row.argmax()), int(row.argmin())
    assert row[best] - row[worst] > 2
    assert Rescorer(subject).judge(Flip(index, worst, best), recording) is Cause.BUG


def test_float64_knows_no_near_ties_and_a_table_cannot_be_rescored() -> None:
    subject = target(torch.float64)
    table = TableTarget(random_table(5), 5, dtype="float32")
    for model, verdict in ((subject, Cause.BUG), (table, Cause.NOT_RESCORED)):
        recording = recorded(model, greedy(model, 4))
        flip = Flip(recording.start, 1, int(recording.emitted[0]))
        assert Rescorer(model).judge(flip, recording) is verdict


@pytest.mark.parametrize("unknown", [False, True], ids=["too little memory", "memory unknown"])
def test_a_twin_is_made_where_there_is_room_or_nobody_knows(unknown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore, "free_memory", lambda device: None if unknown else 1)
    assert (wider_twin(target(torch.bfloat16)) is not None) is unknown


def test_too_many_near_ties_are_a_bug() -> None:
    """A flip rate that the control does not explain is an error hiding among near ties."""
    case = Case("lookup", Rule.COUPLED, "fixed:4", greedy(TableTarget(random_table(5), 5)))
    near = tuple((Flip(i, 1, 2), Cause.NEAR_TIE) for i in range(30))
    report = Report("m", "bfloat16", "f", control_flips=2, control_tokens=1000)
    report.results.append(CaseResult(case, 1000, near))
    report.close()
    assert report.bugs == 1
    calm = Report("m", "bfloat16", "f", control_flips=20, control_tokens=1000)
    calm.results.append(CaseResult(case, 1000, near))
    calm.close()
    assert calm.bugs == 0


def test_teacher_forced_rows_are_plain_decodings_rows() -> None:
    subject = target(torch.float64)
    recording = recorded(subject, greedy(subject, 20))
    for width in (1, 7, 16):
        rows = list(teacher_forced(subject, recording.tokens, recording.start, width))
        assert len(rows) == len(recording.emitted)
        for ours, plain in zip(rows, recording.narrow, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-9)


def test_ties_at_a_warps_border_are_no_difference_from_transformers() -> None:
    """Which of equal tokens stays in the nucleus is lowest id first with us; a wrong mass is still seen."""
    table = TableTarget(random_table(6), 6)
    setting = replace(greedy(table, 1), sampling=Sampling(temperature=1.0, top_p=0.5))
    row = np.array([0.0, 2.0, 2.0, 2.0, 2.0, -1.0])
    tokens = np.append(setting.prompt, 1)
    recording = Recording(setting, table, tokens, Finish.LENGTH, [0.0], [row])
    assert law_faults(recording) == ()
    wider = replace(recording, setting=replace(setting, sampling=Sampling(temperature=1.0, top_p=0.9)))
    assert law_faults(wider) == ()
    with pytest.MonkeyPatch.context() as patch:
        warp_twice_everywhere(patch)
        assert law_faults(replace(wider, narrow=[np.arange(6.0)])) != ()


# --- in batches ------------------------------------------------------------------------------------------------------


def answers_swapped(patch: pytest.MonkeyPatch) -> None:
    """Two sequences that score as many rows get each other's."""
    right = HFTarget.submit

    def submit(self: HFTarget, requests: Sequence[base.Request]) -> base.Pending:
        scores = right(self, requests).result()
        if len(scores) > 1 and len(requests[0].tokens) == len(requests[1].tokens):
            scores[0], scores[1] = scores[1], scores[0]
        return Done(scores)

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


def test_a_state_that_is_never_closed_is_a_fault_of_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    states_left_open(monkeypatch)
    report = Checker(target(), methods=("lookup",), planners=("fixed:4",), batches=(3,), max_new_tokens=LATE).run()
    assert any("states were never closed" in sentence for sentence in report.sentences())


def test_every_drafter_is_disposed_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Drafter] = []
    gone: list[Drafter] = []

    def making(*given: Any, **options: Any) -> Drafter:
        drafter = make_drafter(*given, **options)
        monkeypatch.setattr(drafter, "dispose", lambda: gone.append(drafter))
        made.append(drafter)
        return drafter

    monkeypatch.setattr(checking, "make_drafter", making)
    with only_in("t=1"):
        Checker(target(), None, ("lookup",), ("fixed:4",), max_new_tokens=LATE, batches=(1, 3)).run()
    assert len(made) > 3
    assert Counter(map(id, gone)) == Counter(map(id, made))


@pytest.mark.parametrize(
    "mistake", thinned([answers_swapped, borrowed_rows_too_far, neighbours_seen, last_token_not_told], every=4)
)
def test_mistakes_among_sequences_show_in_batches_only(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = target()
    mistake(monkeypatch)
    report = smallest_check(subject, 1, 3)
    assert report.bugs > 0
    assert {result.case.batch for result in report.results if result.buggy} == {3}


# --- aimed cases and the command ------------------------------------------------------------------------------------


def test_aimed_settings_end_late_at_their_token_or_string() -> None:
    vocabulary = Vocabulary(families.byte_tokenizer())
    subject = prepare(HFTarget(families.build("gpt2", vocab_size=vocabulary.size), name="gpt2"))
    pilot = settings(subject, vocabulary)[4]
    text = recorded(subject, pilot)
    (late, stop), notes = aimed(pilot, text.emitted, vocabulary)
    cut = recorded(subject, late)
    assert cut.finish == "eos"
    assert len(cut.emitted) > LATE
    assert cut.emitted.tolist() == text.emitted[: len(cut.emitted)].tolist()
    assert recorded(subject, stop).finish == "stop"
    assert notes == []
    assert "stop strings were not tested" in aimed(pilot, text.emitted, None)[1][0]


def test_the_command_prints_its_counts_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    families.save("llama", tmp_path)
    asked = ["--method", "lookup", "--rule", "coupled", "--sizes", "6", "--json"]
    with only_in(*SOME):
        code = main(["check", "--model", str(tmp_path), *asked])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert list(last)[:3] == ["cases", "equal", "near_ties"]
    assert last["bugs"] == 0
    assert last["cases"] == last["equal"]
    assert last["batch_sizes"] == [1, 8]


def test_the_command_exits_with_1_on_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families.save("llama", tmp_path)
    wrong_row_gathered(monkeypatch)
    asked = ["--method", "(oracle tree)", "--rule", "coupled", "--sizes", "6", "--batch", "1"]
    with only_in(*SOME):
        assert main(["check", "--model", str(tmp_path), *asked]) == 1


def test_settings_cover_every_field_of_sampling() -> None:
    """A new sampling setting must enter the check."""
    made = list(samplings(100, 0).values())
    for field in fields(Sampling):
        if field.name not in ("processors", "grammar"):  # `tests/test_grammar.py` has grammars
            assert any(getattr(s, field.name) != getattr(Sampling(), field.name) for s in made), field.name


def test_cases_that_failed_alike_share_a_sentence(tmp_path: Path) -> None:
    """It names the line of the drafter's own file, alone and in a batch."""
    file = tmp_path / "bad.py"
    file.write_text(
        "from paceline import Drafter\nclass Bad(Drafter):\n    def propose_one(self, text, budget):\n        1 / 0\n"
    )
    report = Checker(target(), None, (str(file),), ("fixed:4",), (Rule.COUPLED,), 4, batches=(1, 2)).run()
    (one,) = report.sentences()
    assert one.startswith(f"drafter '{file}' failed in propose: ZeroDivisionError: division by zero (bad.py, line 4); ")
    assert f"; {report.bugs} cases, first {file} / coupled / fixed:4 / greedy" in one


def test_a_drafter_that_answers_for_too_few_of_a_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = Lookup.propose
    monkeypatch.setattr(Lookup, "propose", lambda self, asks: propose(self, asks)[: max(1, len(asks) - 1)])
    report = Checker(target(), None, ("lookup",), ("fixed:4",), (Rule.COUPLED,), LATE + 2, batches=(8,)).run()
    assert any(
        re.search("drafter .lookup. was asked to propose for . texts and answered for .", one)
        for one in report.sentences()
    ), report.sentences()[:3]
