"""The check: does speculation leave this model's text alone?

Under the coupled rule every case follows plain decoding's text, and every token must be the one that plain chose. Under
the rejection rule the same holds for greedy cases; sampled ones are tested against the law of every token.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import numpy as np

from paceline.dictionary.shipped import shipped
from paceline.drafters import Drafter, Plain, make_drafter
from paceline.drafters.asking import fit
from paceline.drafters.networks.assistant import DraftModel
from paceline.drafters.networks.heads import KINDS, shipped_methods
from paceline.drafters.spec import BUILT_IN
from paceline.engine.serial import run
from paceline.planning.base import Planner
from paceline.targets.base import Rows, Target
from paceline.testing.counted import Counted
from paceline.testing.evidence import ALARM, WIDE_ROWS, Evidence, law_evidence, p_value
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from paceline_lab.check.adversaries import ADVERSARIES, SAMPLED_SELF
from paceline_lab.check.bits import RowWitness
from paceline_lab.check.cases import NO_DRAFT_PLANNER, PILOTS, Case, Setting, aimed, cases, planner_of, settings
from paceline_lab.check.record import Recording, law_faults, record, row_faults
from paceline_lab.check.report import CaseResult, Report
from paceline_lab.check.rescore import Rescorer
from paceline_lab.check.walk import RESERVED_ROWS, FollowedCase, exact_at_borders, fault, together

ASSISTED = ("assistant", "assistant:top=4", "assistant:beams=3,noise=none")
"""Methods that are checked as well where there is a draft model."""
BESIDE = ("mirror",)
"""Likewise, where another process can load that model."""
WITH_DICTIONARY = ("dictionary", "hybrid", "dictionary+lookup")
"""Methods that are checked as well where a dictionary for the model's tokenizer is shipped."""
WITH_HEAD = ("{}", "{}:noise=none")
"""How each method is checked as well where a trained head for it and the model is shipped."""
DRAWN_BY_HEAD = {
    "redrafter": "redrafter:width=1",
    "medusa": "medusa:top=1",
    "hydra": "hydra:width=1",
    "eagle": "eagle:beams=1",
    "block": "block:width=1",
    "streaming": "streaming:streams=1",
}
"""How each of them draws its draft under the rejection rule."""
LAW = "(law against transformers)"
ROWS = "(rows against the model)"
BATCHES = (1, 8)
SAMPLES = 6
"""Texts per case of the sampled adversary under the rejection rule: a biased law shows in many tokens only."""
MIXED = 4
"""Cases of this many settings share a batch."""


UNAIDED = tuple(
    name
    for name, factory in BUILT_IN.items()
    if factory is not Plain
    and name not in (*WITH_DICTIONARY, *KINDS, *BESIDE)
    and all(option.default is not option.empty for option in signature(factory).parameters.values())
)
"""The built-in methods that draft from nothing but the model and its text."""
CHECKED_METHODS = (*UNAIDED, "lookup:min_ngram=2,lookup:max_ngram=1", "lookup+lookahead")
Progress = Callable[[str, int, int], None]
"""Called after every case with its name, the number of cases done, and an estimate of all."""


def completing(vocabulary: Vocabulary | None) -> tuple[str, ...]:
    """The methods that complete words, if they can do so for this tokenizer."""
    return WITH_DICTIONARY if vocabulary is not None and shipped(vocabulary.fingerprint) else ()


def trained(model: str) -> tuple[str, ...]:
    """The methods that draft with trained heads, as far as some for this model are shipped."""
    methods = shipped_methods(model)
    usual = [spec.format(method) for method in methods for spec in WITH_HEAD]
    return (*usual, *(DRAWN_BY_HEAD[method] for method in methods))


def beside(draft: DraftModel | None, vocabulary: Vocabulary | None) -> tuple[str, ...]:
    """The methods whose draft model is loaded by a separate process, if this one can be."""
    if sys.platform == "win32" or vocabulary is None or draft is None or draft.vocabulary is None:
        return ()
    same = draft.vocabulary.fingerprint == vocabulary.fingerprint
    return BESIDE if same and draft.origin is not None else ()


@dataclass
class Checker:
    """One target under test. `run` is the whole check; `compare` is one case of it; `finish` ends early."""

    target: Target
    vocabulary: Vocabulary | None = None
    methods: Sequence[str] = (*CHECKED_METHODS, *ADVERSARIES)
    planners: Sequence[str] = ()
    """Every one of these with everything else; by default a choice of all (`by_default`)."""
    rules: Sequence[Rule] = tuple(Rule)
    max_new_tokens: int = 64
    seed: int = 0
    progress: Progress | None = None
    batches: Sequence[int] = BATCHES
    """How many sequences are written at once."""
    draft_model: DraftModel | None = None
    """For those methods that draft with a model and name none."""

    def __post_init__(self) -> None:
        self._started = time.perf_counter()
        self._pooled: dict[tuple[str, str], list[Evidence]] = {}
        self._rescorer = Rescorer(self.target)
        self._rows: Rows = self.target.open(RESERVED_ROWS)
        self._witness = RowWitness() if self.target.exact else None
        self.report = Report(self.target.name, self.target.dtype, self.target.fingerprint(), tuple(self.batches))

    def run(self) -> Report:
        """All cases, some settings at a time. A method that cannot draft for this target is refused first: no bug."""
        self._started = time.perf_counter()
        for method in self._proper:
            self._made(method).dispose()
        coming = settings(self.target, self.vocabulary, self.max_new_tokens, self.seed)
        done = 0
        while coming:
            recordings = list[Recording]()
            while coming and len(recordings) < MIXED:
                setting = coming.pop(0)
                recordings.append(recording := self._plain(setting))
                if setting.name in PILOTS:
                    more, notes = aimed(setting, recording.emitted, self.vocabulary)
                    coming += more
                    self.report.notes += [note for note in notes if note not in self.report.notes]
            done += len(recordings)
            for result in (result for size in sorted(set(self.batches)) for result in self._results(recordings, size)):
                self.report.results.append(result)
                if self.progress is not None:
                    count = len(self.report.results)
                    self.progress(result.case.name, count, count * (done + len(coming)) // done)
        return self.finish()

    def finish(self) -> Report:
        """The report of the cases that are done: all of them, or those before an interrupt."""
        self._judge_pooled()
        if self._witness is not None:
            self.report.faults += self._witness.faults()
            self.report.same_bits = self._witness.again
        order = [ROWS, LAW, *self.methods]
        self.report.results.sort(key=lambda result: order.index(result.case.method))
        self.report.close()
        self.report.seconds = time.perf_counter() - self._started
        return self.report

    def _plain(self, setting: Setting) -> Recording:
        """Plain decoding's text, its rows and law compared with transformers', and the control."""
        recording = record(setting, self.target, self._rows, self._witness)
        if self._witness is not None:
            texts = [recording.tokens[:index] for index in range(recording.start, len(recording.tokens))]
            self._witness.note(texts, np.stack(recording.wide), beside=WIDE_ROWS - 1)
        self.report.control_flips += len(recording.control())
        self.report.control_tokens += len(recording.emitted)
        for name, faults in ((ROWS, row_faults(recording)), (LAW, law_faults(recording))):
            case = Case(name, Rule.COUPLED, NO_DRAFT_PLANNER, setting)
            self.report.results.append(CaseResult(case, len(recording.emitted), faults=faults))
        return recording

    def _results(self, recordings: Sequence[Recording], size: int) -> Iterator[CaseResult]:
        """The cases of these settings, alone or in batches of this size."""
        if size > 1:
            yield from self._in_batches(recordings, size)
            return
        for recording in recordings:
            for case in cases(self.methods, recording.setting, self.rules, self.planners):
                yield self.compare(case, recording)

    def _in_batches(self, recordings: Sequence[Recording], size: int) -> Iterator[CaseResult]:
        """The cases of several settings mixed. Those of a method share its drafter and planners, as a server does."""
        shared = {method: Counted(self._made(method)) for method in self._proper}
        planners: dict[tuple[str, str], Planner] = {}
        walks = []
        for recording in recordings:
            for case in cases(self.methods, recording.setting, self.rules, self.planners, size):
                drafter: Drafter = shared.get(case.method) or ADVERSARIES[case.method](recording)
                planner = planners.get((case.method, case.planner)) or planner_of(case.planner, drafter, self.target)
                planners[case.method, case.planner] = planner
                walks.append(FollowedCase(case, recording, drafter, planner, self._witness))
        yield from together(walks, size, self.target, self._rescorer, self.seed)
        for method, counted in shared.items():
            if counted.open_states:
                self.report.faults.append(f"{method}: {counted.open_states} states were never closed")
            counted.dispose()

    def compare(self, case: Case, recording: Recording) -> CaseResult:
        """One case against plain decoding. Whatever a method does wrong, the check goes on."""
        try:
            with self._drafter(case.method, recording) as drafter:
                if not case.followed:
                    return self._test_law(case, drafter)
                planner = planner_of(case.planner, drafter, self.target)
                walk = FollowedCase(case, recording, drafter, planner, self._witness)
                for emission in run(walk.start(self._rows)):
                    walk.handed.append(emission.token)
                return walk.result(self._rescorer)
        except Exception as error:
            self._rows = self.target.open(RESERVED_ROWS)
            return CaseResult(case, 0, faults=(fault(error),))

    @property
    def _proper(self) -> list[str]:
        """The methods that are no adversaries."""
        return [method for method in self.methods if method not in ADVERSARIES]

    @contextmanager
    def _drafter(self, method: str, recording: Recording) -> Iterator[Drafter]:
        drafter = ADVERSARIES[method](recording) if method in ADVERSARIES else self._made(method)
        try:
            yield drafter
        finally:
            drafter.dispose()

    def _made(self, method: str) -> Drafter:
        drafter = make_drafter(method, self.draft_model, must_use=False)
        fit(drafter, self.target, self.vocabulary)
        return drafter

    def _test_law(self, case: Case, drafter: Drafter) -> CaseResult:
        """Texts under the rejection rule, each of their tokens tested against a law scored without any draft."""
        samples = range(SAMPLES if case.method == SAMPLED_SELF else 1)
        evidence = [each for sample in samples for each in self._evidence(case, drafter, sample)]
        self._pooled.setdefault((case.method, case.planner), []).extend(evidence)
        faults = []
        impossible = sum(each.place is None for each in evidence)
        if impossible and exact_at_borders(self.target):
            faults.append(f"{impossible} tokens have no probability under the law")
        if (p := p_value(evidence)) < ALARM:
            faults.append(f"the tokens do not follow the law (p = {p:.1e})")
        return CaseResult(case, len(evidence), faults=tuple(faults))

    def _evidence(self, case: Case, drafter: Drafter, sample: int) -> Iterator[Evidence]:
        planner = planner_of(case.planner, drafter, self.target)
        return law_evidence(case.setting.context(sample), self.target, drafter, planner, self._rows, self._witness)

    def _judge_pooled(self) -> None:
        """Evidence of all settings together shows a small bias that no single text betrays."""
        for (method, planner), evidence in self._pooled.items():
            if (p := p_value(evidence)) < ALARM:
                n = len(evidence)
                self.report.faults.append(f"{method} / rejection / {planner}: {n} tokens off the law (p = {p:.1e})")
