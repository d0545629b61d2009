"""Figure 6b: how much faster a draft model with streams drafts, by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import paceline
from paceline import LanguageModel
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import conditions, temperature_of
from papers.mirror.fallback import texts
from papers.report import Claim, Report, Table

GAMMAS, STREAMS = (1, 2, 3, 4, 5, 6, 7), (1, 2, 3)
PLAIN = 0
"""Streams of the draft model alone."""
MEASURED = -1
"""As many as `streaming` finds to be fastest, by default."""
SETTLE = 600
"""Drafts of each length within which that is found."""
LEVEL = 0.98
"""As fast, within what a quiet machine's times differ by."""
PAPER = "fewer steps for the same tokens, and shorter drafting, on every task (3 streams)"
ABOUT = (
    "steps are forwards of the draft model per full draft, of rounds that drafted; with streams as many tokens are "
    "drafted, and the same ones"
)
PASSES = (
    "a step with streams is one forward and, unless that is compiled as a whole, a second pass of the streams through "
    "the last layers"
)


@dataclass
class Drafting:
    """The rounds that drafted a full draft."""

    rounds: int = 0
    forwards: int = 0
    seconds: list[float] = field(default_factory=list)
    emitted: int = 0
    """Tokens of the target."""

    @property
    def steps(self) -> float:
        """The paper's J."""
        return self.forwards / max(1, self.rounds)

    @property
    def tokens(self) -> float:
        """The target's tokens a round."""
        return self.emitted / max(1, self.rounds)

    @property
    def milliseconds(self) -> float:
        """Of the median draft."""
        return 1000 * float(np.median(self.seconds)) if self.seconds else float("nan")

    def add(self, rounds: Sequence[Any], gamma: int) -> None:
        """Those of them that drafted as much."""
        for each in rounds:
            if each.drafted == gamma:
                self.rounds, self.forwards = self.rounds + 1, self.forwards + int(each.counts["draft_forwards"])
                self.emitted += each.emitted
                self.seconds.append(each.seconds_draft)


Cells = Mapping[tuple[str, int, int], Drafting]
"""By task, tokens of a draft, and streams."""


def method(given: Given, gamma: int, count: int) -> str:
    head = f",head='{given.head}'" if given.head else ""
    model = f"model='{given.draft}',length={gamma}"
    if count == PLAIN:
        return f"assistant:{model}"
    return f"streaming:{model}{head}" if count == MEASURED else f"streaming:{model},streams={count}{head}"


def label(count: int) -> str:
    return {PLAIN: "alone", MEASURED: "measured"}.get(count, f"{count} streams")


def settle(lm: LanguageModel, given: Given, prompts: Mapping[str, Sequence[str]]) -> None:
    """Have the fastest number of streams found, by so many drafts of each length."""
    how = {name: getattr(given, name) for name in ("temperature", "max_new_tokens")}
    for gamma in sorted(set(given.gamma)):
        drafts, seed = 0, given.seed
        while drafts < given.settle:
            for prompt in [each for several in prompts.values() for each in several]:
                text = lm.generate(
                    prompt, method=method(given, gamma, MEASURED), planner=f"fixed:{gamma}", seed=seed, **how
                )
                drafts += max(1, sum(each.drafted > 0 for each in text.rounds))
            seed += 1


def measured(
    lm: LanguageModel, given: Given, prompts: Mapping[str, Sequence[str]]
) -> dict[tuple[str, int, int], Drafting]:
    """Every prompt is continued with all methods in turn, and by each in the same words."""
    settle(lm, given, prompts)
    counts = [PLAIN, *sorted(set(given.streams)), MEASURED]
    cells = [(task, gamma, count) for task in prompts for gamma in sorted(set(given.gamma)) for count in counts]
    found = {cell: Drafting() for cell in cells}
    how = {name: getattr(given, name) for name in ("temperature", "seed", "max_new_tokens")}
    for warm in (True, *[False] * given.repeat):
        for gamma in sorted(set(given.gamma)):
            for task, several in prompts.items():
                for prompt in several[:1] if warm else several:
                    for count in counts:
                        text = lm.generate(prompt, method=method(given, gamma, count), planner=f"fixed:{gamma}", **how)
                        found[task, gamma, count].add([] if warm else text.rounds, gamma)
    return found


def rows(found: Cells) -> Table:
    """A row of every task and length: tokens a round, and steps and milliseconds of the draft model alone and with
    streams."""
    counts = list(dict.fromkeys(count for _, _, count in found))
    head = ("task, tokens: J, ms", "tokens/round", *map(label, counts))
    lines = dict[tuple[str, int], list[str]]()
    for (task, gamma, count), each in found.items():
        plain = found[task, gamma, PLAIN]
        ratio = "" if count == PLAIN else f" ({plain.milliseconds / each.milliseconds:.2f}x)"
        lines.setdefault((task, gamma), []).append(f"{each.steps:.2f}, {each.milliseconds:.2f}{ratio}")
    return head, [
        (f"{task}, {gamma}", f"{found[task, gamma, PLAIN].tokens:.2f}", *cells)
        for (task, gamma), cells in lines.items()
    ]


def claims(found: Cells) -> Iterator[Claim]:
    """Of the longest drafts with the most streams, and of all with the measured number, beside drafts without."""
    gamma, most = max(gamma for _, gamma, _ in found), max(count for _, _, count in found)
    if pairs := _beside(found, most, gamma):
        steps = ", ".join(f"{name} {one.steps:.2f} to {other.steps:.2f}" for name, (one, other) in pairs.items())
        claim = f"with {most} streams drafts of {gamma} tokens take fewer steps"
        yield Claim(claim, PAPER, steps, all(other.steps < one.steps for one, other in pairs.values()))
        yield _faster(f"with {most} streams they are drafted faster", PAPER, pairs, 1.0)
    if pairs := _beside(found, MEASURED):
        yield _faster("with the number that is measured no draft takes longer", "", pairs, LEVEL)


Pairs = Mapping[str, tuple[Drafting, Drafting]]


def _beside(found: Cells, count: int, gamma: int | None = None) -> Pairs:
    """Drafts by the draft model alone and with so many streams, by task and length, where there are both."""
    cells = {
        (task if gamma else f"{task} {length}"): (found[task, length, PLAIN], each)
        for (task, length, number), each in found.items()
        if number == count and gamma in (None, length)
    }
    return {name: pair for name, pair in cells.items() if all(each.rounds for each in pair)}


def _faster(claim: str, paper: str, pairs: Pairs, least: float) -> Claim:
    speeds = {name: one.milliseconds / other.milliseconds for name, (one, other) in pairs.items()}
    ours = ", ".join(f"{name} {speed:.2f}x" for name, speed in speeds.items())
    return Claim(claim, paper, ours, all(each > least for each in speeds.values()))


def report(found: Cells, notes: Sequence[str]) -> Report:
    gammas = {gamma: gamma for _, gamma, _ in found}
    panels, number = list[Panel](), 1
    for task in dict.fromkeys(task for task, _, _ in found):
        lines = {label(n): n for of, _, n in found if of == task}

        def steps(gamma: int, count: int, task: str = task) -> float:
            return found[task, gamma, count].steps

        panels.append(
            Panel(task, "tokens of a draft", "steps of the draft model", curves(lines, gammas, steps, number))
        )
        number += len(lines)
    said = [*notes, ABOUT, PASSES]
    return Report(
        "Mirror-SD, Figure 6b: drafts with speculative streaming", [rows(found)], list(claims(found)), said, panels
    )


def streams(given: Given) -> Report:
    """Figure 6b: steps and seconds of a draft with streams beside the draft model alone, by task.

    Both draft the same tokens, so nothing but the draft differs. The adapter is the one that comes with paceline for
    `pocket-draft`, with or without ballast, or yours: ``--head FOLDER``. A draft model that was trained with its
    streams brings them along: ``--draft FOLDER``.
    """
    lm = paceline.load(given.model, dtype=given.dtype, device=given.device)
    temperature = given.temperature = temperature_of(given.temperature, given.model)
    found = measured(lm, given, texts(given))
    about = f"{given.model} with {given.draft}, {lm.target.dtype}; milliseconds are of the median draft"
    return report(found, [*conditions([temperature], "those of the paper at 0 and 1", given.model), about])
