"""The cases of a conformance run: every method, rule, sampling setting and planner, each against plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.check.planned import NO_DRAFT
from paceline.context import Context, Ending, Ints
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.verify import Rule
from paceline.vocabulary import StopStrings, Vocabulary

PROMPTS = (
    "The train left the station at dawn, and the travellers who had slept on its benches woke one by one.",
    "Gdy wieczorem zapalono lampy, w całym domu pachniało chlebem i świeżo skoszoną trawą.",
    "Коли сонце зійшло над степом, чумаки вже запрягали волів і рушали далі шляхом.",
    "for row in rows:\n    if row.total > limit:\n        report(row.name, row.total)\n",
)
LATE = 48
"""Texts that end early by design still hold this many tokens."""


@dataclass(frozen=True)
class Setting:
    """One way to decode: sampling settings, a prompt, and when to stop."""

    name: str
    sampling: Sampling
    prompt: Ints
    ending: Ending
    aimed: bool = False
    """Made to end where another setting's text is known to pass, under that setting's seed."""

    def context(self, sample: int = 0) -> Context:
        return Context(self.prompt, self.sampling, self.ending, sample=sample)


@dataclass(frozen=True)
class Case:
    """One run to be compared with plain decoding under the same setting."""

    method: str
    rule: Rule
    planner: str
    """The spec of whoever sizes the drafts."""
    setting: Setting
    batch: int = 1
    """How many sequences are written at once."""

    @property
    def followed(self) -> bool:
        """Whether plain's text can be walked: not where the rejection rule samples, whose text is its own."""
        return self.rule is Rule.COUPLED or self.setting.sampling.greedy

    @property
    def drafts(self) -> bool:
        """Whether there may be any drafts at all."""
        return self.planner != NO_DRAFT

    @property
    def name(self) -> str:
        company = f" / batch of {self.batch}" if self.batch > 1 else ""
        return f"{self.method} / {self.rule} / {self.planner} / {self.setting.name}{company}"


def samplings(vocab_size: int, seed: int) -> dict[str, Sampling]:
    """Every setting that shapes the law, alone and together. At least half of them sample."""
    middle = vocab_size // 2
    return {
        "greedy": Sampling(),
        "greedy repetition 1.3": Sampling(repetition_penalty=1.3),
        "greedy presence 0.6 frequency 0.4": Sampling(presence_penalty=0.6, frequency_penalty=0.4),
        "t=0.7": Sampling(temperature=0.7, seed=seed),
        "t=1": Sampling(temperature=1.0, seed=seed + 1),
        "t=1 top-k 12": Sampling(temperature=1.0, top_k=12, seed=seed + 2),
        "t=1 top-p 0.9": Sampling(temperature=1.0, top_p=0.9, seed=seed + 3),
        "t=1 min-p 0.05": Sampling(temperature=1.0, min_p=0.05, seed=seed + 4),
        "t=0.8 top-k 40 top-p 0.95 min-p 0.02": Sampling(
            temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, seed=seed + 5
        ),
        "t=1 repetition 1.2": Sampling(temperature=1.0, repetition_penalty=1.2, seed=seed + 6),
        "t=0.9 presence 0.5 frequency 0.3": Sampling(
            temperature=0.9, presence_penalty=0.5, frequency_penalty=0.3, seed=seed + 7
        ),
        "t=1 bias and bans": Sampling(
            temperature=1.0,
            logit_bias={middle: 1.5},
            banned=((middle + 1,), (middle, middle - 1)),
            seed=seed + 8,
        ),
    }


@dataclass
class Plan:
    """Settings for one target; the ones that need a text to aim at are made from a pilot run of plain decoding."""

    target: Target
    vocabulary: Vocabulary | None
    max_new_tokens: int = 64
    seed: int = 0
    notes: list[str] = field(default_factory=list)

    def settings(self) -> list[Setting]:
        """The settings that need no pilot."""
        made = samplings(self.target.vocab_size, self.seed)
        return [self._setting(name, sampling, i) for i, (name, sampling) in enumerate(made.items())]

    def aimed(self, pilot: Setting, text: Ints) -> list[Setting]:
        """End-of-text tokens and stop strings that a pilot's text is known to run into, late and inside a draft."""
        endings: dict[str, Ending] = {}
        if (token := _late(text)) is not None:
            endings["eos"] = replace(pilot.ending, eos=frozenset([token]))
        else:
            self._note(f"a pilot text came to no new token after {LATE}: no end-of-text token was checked there")
        if (strings := self._late_string(text)) is not None:
            endings["stop string"] = replace(pilot.ending, strings=strings)
        return [replace(pilot, name=f"{pilot.name} {what}", ending=e, aimed=True) for what, e in endings.items()]

    def _setting(self, name: str, sampling: Sampling, number: int) -> Setting:
        ending = Ending(max_new_tokens=self.max_new_tokens, context_length=self.target.context_length)
        return Setting(name, sampling, self._prompt(number), ending)

    def _prompt(self, number: int) -> Ints:
        """The end of a prompt, where a short context would not hold it together with the text."""
        if self.vocabulary is None:
            prompt = np.random.default_rng(number).integers(0, self.target.vocab_size, 24)
        else:
            prompt = self.vocabulary.encode(PROMPTS[number % len(PROMPTS)])
        limit = self.target.context_length
        return prompt if limit is None else prompt[-max(1, limit - self.max_new_tokens) :]

    def _late_string(self, text: Ints) -> StopStrings | None:
        """Two characters that straddle a token boundary at least `LATE` tokens into the text, and not before."""
        if self.vocabulary is None:
            self._note("no tokenizer beside the model: stop strings were not checked")
            return None
        for cut in range(LATE, len(text) - 1):
            before, upto = self.vocabulary.text(text[:cut]), self.vocabulary.text(text[: cut + 1])
            string = upto[len(before) - 1 : len(before) + 1]
            if upto.startswith(before) and len(string) == 2 and "\ufffd" not in string and upto.count(string) == 1:
                return StopStrings(self.vocabulary, (string,))
        self._note("a pilot text held no string to stop at: stop strings were not checked there")
        return None

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def cases(
    methods: Sequence[str],
    settings: Sequence[Setting],
    rules: Sequence[Rule],
    planners: Callable[[str, str], Sequence[str]],
) -> Iterator[Case]:
    """The grid, a setting at a time, so that what is known of a setting's text can be dropped after it. ``planners``
    are those of a method in a setting."""
    for setting in settings:
        for method in methods:
            for rule in rules:
                for planner in planners(method, setting.name):
                    case = Case(method, rule, planner, setting)
                    if case.followed or not setting.aimed:
                        yield case


def _late(text: Ints) -> int | None:
    """The first token that occurs at or after `LATE` and nowhere before: as end of text it leaves a long text."""
    tokens = text.tolist()
    return next(
        (int(token) for place, token in enumerate(tokens) if place >= LATE and token not in tokens[:place]),
        None,
    )
