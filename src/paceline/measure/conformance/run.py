"""The conformance run: does speculation leave this model's text alone?

Under the coupled rule every case walks plain decoding's text and every token must be the one that plain chose. Under
the rejection rule greedy cases must do so, too; sampled ones are tested against the law of every token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.decode.planner import Fixed
from paceline.decode.serial import run
from paceline.decode.session import Session
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.assistant import DraftModel
from paceline.law import KeyedDice, Law
from paceline.measure.conformance.adversaries import Oracle, Recall, SelfDraft, Spy
from paceline.measure.conformance.cases import Case, Plan, Setting, cases
from paceline.measure.conformance.follow import FollowingDice, Overrun
from paceline.measure.conformance.oracle import law_faults, row_faults
from paceline.measure.conformance.record import Recording, logit_scale, record, teacher_forced
from paceline.measure.conformance.report import Report, Result
from paceline.measure.conformance.rescore import Rescorer
from paceline.measure.conformance.statistics import ALARM, Evidence, gather
from paceline.targets.base import Rows, Target
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

METHODS = ("lookup", "lookup:min_ngram=2,lookup:max_ngram=1", "lookup+lookup:max_ngram=1")
ASSISTED = ("assistant", "assistant:top=4", "assistant:beams=3,noise=none")
"""What is checked besides where there is a draft model."""
SAMPLED = "(self, sampled)"
ADVERSARIES = ("(oracle chain)", "(oracle tree)", "(whole oracle)", "(recall with shared noise)", SAMPLED)
LAW = "(law against transformers)"
ROWS = "(rows against the model)"
SIZES = (4, 12)
SAMPLES = 6
"""Texts per case of the sampled adversary under the rejection rule: a biased law shows in many tokens only."""
LOGPROB_TOLERANCE = 1e-4

Progress = Callable[[str, int, int], None]
"""Called before every case with its name, its number and the number of all."""


def adversary(name: str, recording: Recording) -> Drafter:
    """A drafter of the kit's own, by the name under which the report lists it."""
    target = recording.target
    if name.startswith("(recall"):
        return Recall()
    if name == SAMPLED:
        return SelfDraft(target)
    return Oracle(recording.tokens, target.vocab_size, tree="tree" in name, whole="whole" in name)


@dataclass
class Checker:
    """One target under test. ``run`` is the whole check; `compare` is one case of it."""

    target: Target
    vocabulary: Vocabulary | None = None
    methods: Sequence[str] = (*METHODS, *ADVERSARIES)
    sizes: Sequence[int] = SIZES
    rules: Sequence[Rule] = tuple(Rule)
    max_new_tokens: int = 64
    seed: int = 0
    progress: Progress | None = None
    draft_model: DraftModel | None = None
    """For those methods that draft with a model and name none."""
    _pooled: dict[tuple[str, int], Evidence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rescorer = Rescorer(self.target)
        self._rows: Rows = self.target.open(512)
        dtype = str(getattr(self.target, "dtype", "")).removeprefix("torch.")
        self.report = Report(self.target.name, dtype, self.target.fingerprint())

    def run(self) -> Report:
        """All cases, a setting at a time. A method that cannot draft for this target is told before: that is no bug."""
        started = time.perf_counter()
        for method in self.methods:
            if method not in ADVERSARIES:
                self._made(method)
        plan = Plan(self.target, self.vocabulary, self.max_new_tokens, self.seed)
        settings = plan.settings()
        pilots = {"greedy presence 0.6 frequency 0.4", "t=1"}
        done = 0
        while settings:
            setting = settings.pop(0)
            recording = record(setting, self.target, self._rows)
            self._control(recording)
            self._law(recording)
            if setting.name in pilots:
                settings += plan.aimed(setting, recording.emitted)
            total = done + len(self._cases([setting, *settings]))
            for case in self._cases([setting]):
                if self.progress is not None:
                    self.progress(case.name, done, total)
                done += 1
                self.report.results.append(self.compare(case, recording))
        self._pool()
        self.report.notes += plan.notes
        self.report.close()
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _cases(self, settings: Sequence[Setting]) -> list[Case]:
        return list(cases(self.methods, settings, self.rules, self.sizes))

    def compare(self, case: Case, recording: Recording) -> Result:
        """One case against plain decoding. Whatever a method does wrong, the check goes on."""
        try:
            return self._follow(case, recording) if case.followed else self._test_law(case, recording)
        except Exception as error:
            self._rows = self.target.open(512)
            what = str(error).splitlines()[0] if str(error) else "no message"
            return Result(case, 0, faults=(f"{type(error).__name__}: {what}",))

    def _session(self, case: Case, drafter: Drafter, sample: int = 0) -> Session:
        return Session(
            context=case.setting.context(sample),
            target=self.target,
            rows=self._rows,
            drafter=drafter,
            planner=Fixed(case.nodes),
            rule=case.rule,
            top_logprobs=0,
            checked=True,
        )

    def _drafter(self, case: Case, recording: Recording) -> Drafter:
        if case.method in ADVERSARIES:
            return adversary(case.method, recording)
        return self._made(case.method)

    def _made(self, method: str) -> Drafter:
        drafter = make_drafter(method, self.draft_model, must_use=False)
        drafter.fit(self.target, self.vocabulary)
        return drafter

    def _follow(self, case: Case, recording: Recording) -> Result:
        session = self._session(case, self._drafter(case, recording))
        dice = FollowingDice(KeyedDice(session.context.noise), recording.tokens)
        session.dice = dice
        faults = []
        try:
            emissions = list(run(session))
        except Overrun as overrun:
            return Result(case, len(session.context.emitted), faults=(str(overrun),))
        if len(emissions) < len(recording.emitted) or session.context.finish != recording.finish:
            ours, plains = session.context.finish, recording.finish
            faults.append(
                f"ended after {len(emissions)} tokens ({ours}), plain after {len(recording.emitted)} ({plains})"
            )
        if (gap := _logprob_gap(session, recording)) is not None:
            faults.append(gap)
        flips = tuple((flip, self._rescorer.judge(flip, recording)) for flip in dice.flips)
        return Result(case, len(emissions), flips, tuple(faults))

    def _test_law(self, case: Case, recording: Recording) -> Result:
        evidence = Evidence()
        for sample in range(SAMPLES if case.method == SAMPLED else 1):
            evidence.add(self._evidence(case, recording, sample))
        faults = []
        if evidence.impossible and logit_type_is_exact(self.target):
            faults.append(f"{evidence.impossible} tokens have no probability under the law")
        if evidence.p_value < ALARM:
            faults.append(f"the tokens do not follow the law (p = {evidence.p_value:.1e})")
        self._pooled.setdefault((case.method, case.nodes), Evidence()).add(evidence)
        return Result(case, evidence.tokens, faults=tuple(faults))

    def _evidence(self, case: Case, recording: Recording, sample: int) -> Evidence:
        """A text under the rejection rule, each of its tokens held against a law scored without any draft."""
        spy = Spy(self._drafter(case, recording))
        session = self._session(case, spy, sample)
        list(run(session))
        tokens, first = session.context.tokens, session.context.prompt_length
        law = Law(session.context.sampling, first)
        rows = teacher_forced(self.target, tokens, first)
        laws = (law.distribution(row, tokens[:index]) for index, row in enumerate(rows, start=first))
        return gather(tokens[first:], first, laws, spy.trees, seed=(session.context.sampling.seed, sample))

    def _control(self, recording: Recording) -> None:
        self.report.control_flips += len(recording.control())
        self.report.control_tokens += len(recording.emitted)

    def _law(self, recording: Recording) -> None:
        """Plain decoding's own rows and law, against independent ones."""
        for name, faults in ((ROWS, row_faults(recording)), (LAW, law_faults(recording))):
            case = Case(name, Rule.COUPLED, 0, recording.setting)
            self.report.results.append(Result(case, len(recording.emitted), faults=faults))

    def _pool(self) -> None:
        """Evidence of all settings together: a small bias that no single text betrays."""
        for (method, nodes), evidence in self._pooled.items():
            if evidence.p_value < ALARM:
                p, n = evidence.p_value, evidence.tokens
                self.report.faults.append(f"{method} / rejection / {nodes}: {n} tokens off the law (p = {p:.1e})")


def logit_type_is_exact(target: Target) -> bool:
    """Whether a token at the border of a warp is on the same side in every forward, near ties apart."""
    return "float16" not in str(getattr(target, "dtype", ""))


def _logprob_gap(session: Session, recording: Recording) -> str | None:
    """Log-probabilities belong to the text, too: they must be plain's, up to the type's own rounding."""
    if not logit_type_is_exact(session.target):
        return None
    ours = [e.logprobs.logprob for e in session.emissions if e.logprobs is not None]
    gaps = [abs(a - b) for a, b in zip(ours, recording.logprobs, strict=False)]
    worst = max(gaps, default=0.0)
    if worst <= LOGPROB_TOLERANCE * logit_scale(recording):
        return None
    return f"log-probabilities are off by {worst:.2g} at emitted token {gaps.index(worst)}"
