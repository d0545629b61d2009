"""The conformance run: does speculation leave this model's text alone?

Under the coupled rule every case walks plain decoding's text and every token must be the one that plain chose. Under
the rejection rule greedy cases must do so, too; sampled ones are tested against the law of every token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature

from paceline.check.adversaries import Oracle, Recall, SelfDraft, Spy
from paceline.check.cases import Case, Plan, Setting, cases
from paceline.check.oracle import law_faults, row_faults
from paceline.check.planned import NO_DRAFT, by_default, planner_of
from paceline.check.record import Recording, record, teacher_forced
from paceline.check.report import Report, Result
from paceline.check.rescore import Rescorer
from paceline.check.statistics import ALARM, Evidence, gather
from paceline.check.walk import (
    ROOM,
    Counted,
    Entry,
    Walk,
    fault,
    in_company,
    logit_type_is_exact,
    session_of,
)
from paceline.dictionary.shipped import shipped
from paceline.drafters import Drafter, Plain, make_drafter
from paceline.drafters.assistant import DraftModel
from paceline.drafters.spec import BUILT_IN
from paceline.engine.serial import run
from paceline.law import Law
from paceline.planning.base import Planner
from paceline.targets.base import Rows, Target
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary

COMPOSED = ("lookup:min_ngram=2,lookup:max_ngram=1", "lookup+lookahead")
ASSISTED = ("assistant", "assistant:top=4", "assistant:beams=3,noise=none")
"""What is checked besides where there is a draft model."""
SAMPLED = "(self, sampled)"
WITH_DICTIONARY = ("dictionary", "hybrid", "dictionary+lookup")
"""What is checked besides where a dictionary for the model's tokenizer comes along."""
ADVERSARIES = ("(oracle chain)", "(oracle tree)", "(whole oracle)", "(recall with shared noise)", SAMPLED)
LAW = "(law against transformers)"
ROWS = "(rows against the model)"
BATCHES = (1, 8)
SAMPLES = 6
"""Texts per case of the sampled adversary under the rejection rule: a biased law shows in many tokens only."""
MIXED = 4
"""Cases of so many settings share a batch."""


def unaided() -> tuple[str, ...]:
    """The built-in methods that draft from nothing but the model and its text."""
    return tuple(
        name
        for name, factory in BUILT_IN.items()
        if factory is not Plain
        and name not in WITH_DICTIONARY
        and all(option.default is not option.empty for option in signature(factory).parameters.values())
    )


METHODS = (*unaided(), *COMPOSED)


def completing(vocabulary: Vocabulary | None) -> tuple[str, ...]:
    """The methods that complete words, if they can do so for this tokenizer."""
    there = vocabulary is not None and shipped(vocabulary.fingerprint)
    return WITH_DICTIONARY if there else ()


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
    planners: Sequence[str] = ()
    """Every one of these with everything else; by default a choice of all (`planned`)."""
    rules: Sequence[Rule] = tuple(Rule)
    max_new_tokens: int = 64
    seed: int = 0
    progress: Progress | None = None
    batches: Sequence[int] = BATCHES
    """How many sequences are written at once."""
    draft_model: DraftModel | None = None
    """For those methods that draft with a model and name none."""
    _pooled: dict[tuple[str, str], Evidence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rescorer = Rescorer(self.target)
        self._rows: Rows = self.target.open(ROOM)
        self.report = Report(self.target.name, self.target.dtype_name, self.target.fingerprint(), tuple(self.batches))

    def run(self) -> Report:
        """All cases, a setting at a time. A method that cannot draft for this target is told before: that is no bug."""
        started = time.perf_counter()
        for method in self.methods:
            if method not in ADVERSARIES:
                self._made(method)
        plan = Plan(self.target, self.vocabulary, self.max_new_tokens, self.seed)
        settings = plan.settings()
        pilots = {"greedy presence 0.6 frequency 0.4", "t=1"}
        together: list[Recording] = []
        while settings:
            setting = settings.pop(0)
            recording = record(setting, self.target, self._rows)
            self._control(recording)
            self._law(recording)
            if setting.name in pilots:
                settings += plan.aimed(setting, recording.emitted)
            if 1 in self.batches:
                for case in self._cases(setting):
                    self._tell(case, settings)
                    self.report.results.append(self.compare(case, recording))
            together.append(recording)
            if len(together) == MIXED or not settings:
                self._in_batches(together, settings)
                together = []
        self._pool()
        self.report.notes += plan.notes
        self.report.close()
        self.report.seconds = time.perf_counter() - started
        return self.report

    def _cases(self, setting: Setting, size: int = 1) -> list[Case]:
        """The cases of a setting. Those of a sampled text of their own are for statistics, in batches of one."""
        made = cases(self.methods, [setting], self.rules, self._planners)
        return list(made) if size == 1 else [replace(case, batch=size) for case in made if case.followed]

    def _planners(self, method: str, setting: str) -> Sequence[str]:
        return self.planners or by_default(method, setting, adversary=method in ADVERSARIES)

    def _tell(self, case: Case, coming: Sequence[Setting], more: int = 0) -> None:
        """What is next, how much is done, and how much there will be."""
        if self.progress is not None:
            done = more + sum(result.case.drafts for result in self.report.results)
            grid = sum(len(self._cases(case.setting, size)) for size in self.batches)
            self.progress(case.name, done, max(done + 1, done + grid * len(coming)))

    def _in_batches(self, recordings: Sequence[Recording], coming: Sequence[Setting]) -> None:
        """The cases of several settings mixed, in batches of every size."""
        for size in sorted(set(self.batches) - {1}):
            drafters = {method: Counted(self._made(method)) for method in self.methods if method not in ADVERSARIES}
            planners: dict[tuple[str, str], Planner] = {}
            entries = []
            for recording in recordings:
                for case in self._cases(recording.setting, size):
                    drafter = drafters.get(case.method) or adversary(case.method, recording)
                    asked = case.method, case.planner
                    if asked not in planners:  # as hosts share them
                        planners[asked] = planner_of(case.planner, drafter, self.target)
                    entries.append(Entry(case, recording, drafter, planners[asked]))
            found: dict[Entry, Result] = {}
            for entry, result in in_company(entries, size, self.target, self._rescorer, self.seed):
                self._tell(entry.case, coming, len(found))
                found[entry] = result
            self.report.results += [found[entry] for entry in entries]
            for method, counted in drafters.items():
                if counted.open_states:
                    self.report.faults.append(f"{method}: {counted.open_states} states were never closed")

    def compare(self, case: Case, recording: Recording) -> Result:
        """One case against plain decoding. Whatever a method does wrong, the check goes on."""
        try:
            if not case.followed:
                return self._test_law(case, recording)
            drafter = self._drafter(case, recording)
            planner = planner_of(case.planner, drafter, self.target)
            walk = Walk.of(case, recording, drafter, planner, self._rows)
            handed = [emission.token for emission in run(walk.session)]
            return walk.result(self._rescorer, handed)
        except Exception as error:
            self._rows = self.target.open(ROOM)
            return Result(case, 0, faults=(fault(error),))

    def _drafter(self, case: Case, recording: Recording) -> Drafter:
        if case.method in ADVERSARIES:
            return adversary(case.method, recording)
        return self._made(case.method)

    def _made(self, method: str) -> Drafter:
        drafter = make_drafter(method, self.draft_model, must_use=False)
        drafter.fit(self.target, self.vocabulary)
        return drafter

    def _test_law(self, case: Case, recording: Recording) -> Result:
        evidence = Evidence()
        for sample in range(SAMPLES if case.method == SAMPLED else 1):
            evidence.add(self._evidence(case, recording, sample))
        faults = []
        if evidence.impossible and logit_type_is_exact(self.target):
            faults.append(f"{evidence.impossible} tokens have no probability under the law")
        if evidence.p_value < ALARM:
            faults.append(f"the tokens do not follow the law (p = {evidence.p_value:.1e})")
        self._pooled.setdefault((case.method, case.planner), Evidence()).add(evidence)
        return Result(case, evidence.tokens, faults=tuple(faults))

    def _evidence(self, case: Case, recording: Recording, sample: int) -> Evidence:
        """A text under the rejection rule, each of its tokens held against a law scored without any draft."""
        spy = Spy(self._drafter(case, recording))
        session = session_of(case, self.target, spy, planner_of(case.planner, spy, self.target), self._rows, sample)
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
            case = Case(name, Rule.COUPLED, NO_DRAFT, recording.setting)
            self.report.results.append(Result(case, len(recording.emitted), faults=faults))

    def _pool(self) -> None:
        """Evidence of all settings together: a small bias that no single text betrays."""
        for (method, planner), evidence in self._pooled.items():
            if evidence.p_value < ALARM:
                p, n = evidence.p_value, evidence.tokens
                self.report.faults.append(f"{method} / rejection / {planner}: {n} tokens off the law (p = {p:.1e})")
