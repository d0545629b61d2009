"""The cases of a check: methods, rules, sampling settings and planners, each compared with plain decoding.

Draft sizes are planners (``fixed:n``). By default adversaries try every size in every setting, and a method takes the
sizes in turn from setting to setting. Planners that choose sizes themselves plan for every method and adversary in one
greedy and in one sampled setting (`PILOTS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from paceline.context import Context, Ending, Ints
from paceline.drafters import Drafter
from paceline.law import Sampling
from paceline.law.table import Acts, SettingRow, grouped, table
from paceline.planning.acceptance import Acceptance, Point
from paceline.planning.base import Planner
from paceline.planning.calibrated import Calibrated
from paceline.planning.curve import Curves
from paceline.planning.specs import make_planner
from paceline.planning.timing import Timing
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
PILOTS = ("greedy presence 0.6 frequency 0.4", "t=1")
"""Settings whose texts give others a token and a string to end at; planners that choose sizes plan for them."""
DRAFT_SIZES = (4, 12)
CHOOSING = ("adaptive", "calibrated")
"""Planners that choose sizes themselves."""
NO_DRAFT_PLANNER = "fixed:0"


@dataclass(frozen=True)
class Setting:
    """One way to decode: sampling settings, a prompt, and when to stop."""

    name: str
    sampling: Sampling
    prompt: Ints
    ending: Ending
    aimed: bool = False
    """Made to end at a token or string of a pilot's text, under the pilot's seed."""

    def context(self, sample: int = 0) -> Context:
        return Context(self.prompt, self.sampling, self.ending, sample=sample)


@dataclass(frozen=True)
class Case:
    """One run to be compared with plain decoding under the same setting."""

    method: str
    rule: Rule
    planner: str
    """Its spec."""
    setting: Setting
    batch: int = 1
    """How many sequences are written at once."""

    @property
    def followed(self) -> bool:
        """Whether plain's text can be followed: not where the rejection rule samples, for it writes another text."""
        return self.rule is Rule.COUPLED or self.setting.sampling.greedy

    @property
    def drafts(self) -> bool:
        """Whether there may be any drafts at all."""
        return self.planner != NO_DRAFT_PLANNER

    @property
    def name(self) -> str:
        batch = f" / batch of {self.batch}" if self.batch > 1 else ""
        return f"{self.method} / {self.rule} / {self.planner} / {self.setting.name}{batch}"


def cases(
    methods: Sequence[str], setting: Setting, rules: Sequence[Rule], planners: Sequence[str], batch: int = 1
) -> Iterator[Case]:
    """The grid of a setting; without ``planners`` each method has its own. Texts that cannot be followed are judged by
    statistics, which need neither a batch nor a special end."""
    for method in methods:
        for rule in rules:
            for planner in planners or by_default(method, setting.name):
                case = Case(method, rule, planner, setting, batch)
                if case.followed or not (setting.aimed or batch > 1):
                    yield case


def samplings(vocab_size: int, seed: int, kind: type[Sampling] = Sampling) -> dict[str, Sampling]:
    """Every setting that shapes the law, alone and together. At least half of them sample, each with its own seed."""
    rows = [row for row in table(kind) if row.tried]
    cuts = [row for row in rows if row.acts is Acts.AS_CUT]
    numbers = [group for group in grouped(row for row in rows if row.acts is Acts.ON_LOGITS) if group[0].token is None]
    naming = [row for row in rows if row.token is not None]  # together, since bias makes what is banned likely
    sampled = [
        _tried("t=0.7", [], temperature=0.7),
        _tried("t=1", []),
        *(_tried("t=1", [row]) for row in cuts),
        _tried("t=0.8", cuts, 1, temperature=0.8),
        *(_tried("t=1", group) for group in numbers),
        ("t=1 bias and bans", {row.name: row.example(0, vocab_size) for row in naming}),
    ]
    greedy = [_tried("greedy", []), *(_tried("greedy", group, 1) for group in numbers)]
    return {
        **{name: kind(**how) for name, how in greedy},
        **{name: kind(**{"temperature": 1.0, "seed": seed + i, **how}) for i, (name, how) in enumerate(sampled)},
    }


def _tried(name: str, rows: Sequence[SettingRow], number: int = 0, **how: Any) -> tuple[str, dict[str, Any]]:
    """Rows with one of their examples."""
    values = {row.name: row.example(number, 0) for row in rows}
    return " ".join([name, *(f"{row.label} {values[row.name]}" for row in rows)]), {**how, **values}


def settings(target: Target, vocabulary: Vocabulary | None, max_new_tokens: int = 64, seed: int = 0) -> list[Setting]:
    """The settings that need no pilot, each with the next of the prompts."""
    limit = target.context_length
    ending = Ending(max_new_tokens=max_new_tokens, context_length=limit)
    made = []
    for number, (name, sampling) in enumerate(samplings(target.vocab_size, seed).items()):
        if vocabulary is None:
            prompt = np.random.default_rng(number).integers(0, target.vocab_size, 24)
        else:
            prompt = vocabulary.encode(PROMPTS[number % len(PROMPTS)])
        if limit is not None:  # the end of it, where the context would not hold it together with the text
            prompt = prompt[-max(1, limit - max_new_tokens) :]
        made.append(Setting(name, sampling, prompt, ending))
    return made


def aimed(pilot: Setting, text: Ints, vocabulary: Vocabulary | None) -> tuple[list[Setting], list[str]]:
    """The pilot with an end-of-text token and with a stop string that its text reaches late, inside a draft; and
    sentences about what could not be found."""
    endings, notes = dict[str, Ending](), list[str]()
    if (token := _late_token(text)) is not None:
        endings["eos"] = replace(pilot.ending, eos=frozenset([token]))
    else:
        notes.append(
            f"end-of-text was not tested under {pilot.name!r}: no new token after the first {LATE} of its text"
        )
    if vocabulary is None:
        notes.append("stop strings were not tested: the model has no tokenizer")
    elif (string := _late_string(text, vocabulary)) is not None:
        endings["stop string"] = replace(pilot.ending, strings=StopStrings(vocabulary, (string,)))
    else:
        notes.append(f"stop strings were not tested under {pilot.name!r}: no new one after the first {LATE} tokens")
    return [replace(pilot, name=f"{pilot.name} {what}", ending=e, aimed=True) for what, e in endings.items()], notes


def _late_token(text: Ints) -> int | None:
    """The first token that occurs at or after `LATE` and nowhere before: as end of text it leaves a long text."""
    tokens = text.tolist()
    return next((token for place, token in enumerate(tokens) if place >= LATE and token not in tokens[:place]), None)


def _late_string(text: Ints, vocabulary: Vocabulary) -> str | None:
    """Two characters that straddle a token boundary at least `LATE` tokens into the text, and not before."""
    for cut in range(LATE, len(text) - 1):
        before, upto = vocabulary.text(text[:cut]), vocabulary.text(text[: cut + 1])
        string = upto[len(before) - 1 : len(before) + 1]
        if upto.startswith(before) and len(string) == 2 and "\ufffd" not in string and upto.count(string) == 1:
            return string
    return None


def fixed(sizes: Sequence[int]) -> tuple[str, ...]:
    """The planners that stand for draft sizes."""
    return tuple(f"fixed:{size}" for size in sizes)


def by_default(method: str, setting: str) -> tuple[str, ...]:
    """The planners of a method in a setting, if none are named. The names of adversaries are in parentheses."""
    sizes = fixed(DRAFT_SIZES)
    if not method.startswith("("):
        turn = crc32(f"{method} in {setting}".encode()) % len(sizes)
        sizes = sizes[turn : turn + 1]
    return (*sizes, *CHOOSING) if setting in PILOTS else sizes


def planner_of(spec: str, drafter: Drafter, target: Target) -> Planner:
    """The planner as other commands make it; ``calibrated`` from invented measurements, since none need be stored."""
    return _invented(drafter) if spec == "calibrated" else make_planner(spec, drafter, target)


def _invented(drafter: Drafter) -> Calibrated:
    """Measurements by which rows cost a little, and larger drafts bring more tokens. No real machine behaves like that,
    so the planner tries other sizes and changes its choice on the way."""
    curves = Curves(
        Timing(rows=rows, seconds=1e-3 * (1 + 0.004 * rows), length=0, sequences=sequences)
        for sequences in (1, 8)
        for rows in (1, 4, 16, 64, 160)
    )
    known = Acceptance(
        method=drafter.name,
        draft="",
        points=tuple(Point(nodes=n, tokens=1 + 0.4 * n**0.5, sent={n: 1.0}) for n in (0, 2, 4, 8, 12, 16)),
        drafting=(),
        top=0,
        spot=None,
        temperature=1.0,
        prompts=(),
        rounds=0,
        emitted=0,
    )
    return Calibrated(replace(known, choices=tuple(known.choose(curves, n) for n in (1, 8))), curves)
