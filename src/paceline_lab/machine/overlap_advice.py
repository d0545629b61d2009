"""Whether a draft model should work beside the target, on dedicated cores, or in turns with it, on all of them.

Rounds in turns are timed, of rounds beside one another the parts; outcomes are counted, and the law of `overlap` says
what such rounds would take. So there
is no interval of measured speeds; the advice allows for the error of the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from paceline.context import Context
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline_lab.bench.early_exit import Stop, foreseen
from paceline_lab.bench.race import Progress
from paceline_lab.bench.statistics import Estimate, SpeedVerdict
from paceline_lab.machine.measuring import RoundSeconds
from paceline_lab.machine.overlap import Bench, OverlapTrial, RoundParts, joined

EXITS, LEVELS, BRANCHES = (0.25, 0.5), (2, 4, 7), (4, 16)
PROXIES, REPEATS = 8, 2
ERROR = 1.1
"""The law's seconds of a round over measured ones, in either direction: up to 11% in `docs/lab-log.md`."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """One setting of ``mirror`` as the law has it."""

    exit: float
    gamma: int
    branches: int
    seconds: float
    """Of a round."""
    tokens: float
    anew: float
    hidden: bool
    """Whether all drafts fit beside the target's upper layers."""

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def spec(self) -> str:
        exit_ = "" if self.exit == 0.5 else f",exit={self.exit:g}"
        return f"mirror:overlap=always,gamma={self.gamma},branches={self.branches}{exit_}"


@dataclass(frozen=True, kw_only=True)
class OverlapTurns:
    """The same drafts in turns with the target, on all cores."""

    length: int
    seconds: float
    tokens: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def spec(self) -> str:
        return f"assistant:length={self.length}"


@dataclass(frozen=True)
class OverlapAdvice:
    together: Sequence[Overlap]
    turns: Sequence[OverlapTurns]
    plain: float
    """Seconds of a token of plain decoding on all cores."""

    @property
    def best(self) -> Overlap:
        return max(self.together, key=lambda one: one.speed)

    @property
    def best_turns(self) -> OverlapTurns:
        return max(self.turns, key=lambda one: one.speed)

    @property
    def gain(self) -> Estimate:
        """The speed beside one another over that in turns, with the bounds of the law's error."""
        ratio = self.best.speed / self.best_turns.speed
        return Estimate(ratio, ratio / ERROR, ratio * ERROR)

    @property
    def verdict(self) -> SpeedVerdict:
        """Whether to overlap."""
        return SpeedVerdict.of(self.gain)

    @property
    def spec(self) -> str:
        """The method to use."""
        return self.best.spec if self.verdict is SpeedVerdict.ON else self.best_turns.spec


def advise_overlap(trial: OverlapTrial, draft: str, advance: Progress) -> OverlapAdvice:
    """Measure for about a minute."""
    together, emitted = list[Overlap](), dict[int, float]()
    text, total = trial.text, len(LEVELS) * len(EXITS) + 1
    for done, (levels, exit_) in enumerate(product(LEVELS, EXITS)):
        advance(f"{levels} tokens, exit {exit_:g}", done, total)
        stops = foreseen(
            trial.lm,
            draft,
            trial.prompts,
            exit=exit_,
            proxies=PROXIES,
            levels=levels,
            temperature=trial.temperature,
            seed=trial.seed,
            max_new_tokens=trial.tokens,
        )
        emitted[levels] = fmean(stop.emitted for stop in stops)
        for branches in BRANCHES:
            parts = _parts(trial, draft, text, levels, exit_, branches)
            together.append(_overlap(parts, stops, exit_, levels, branches))
    advance("in turns", total - 1, total)
    seconds = _turns(trial, draft)
    advance("", total, total)
    turns = [
        OverlapTurns(length=levels, seconds=seconds[levels].whole, tokens=tokens) for levels, tokens in emitted.items()
    ]
    return OverlapAdvice(together, turns, seconds[0].whole)


def _parts(trial: OverlapTrial, draft: str, text: Context, levels: int, exit_: float, branches: int) -> RoundParts:
    mirror = Mirror(model=draft, gamma=levels, exit=exit_, branches=str(branches), overlap="always")
    try:
        mirror.fit(trial.lm.target, trial.lm.vocabulary)
        with closing(Bench(trial.lm.target, mirror, text, levels, branches)) as bench:
            return joined([bench.round() for _ in range(REPEATS)], judged=trial.judged())
    finally:
        mirror.dispose()


def _turns(trial: OverlapTrial, draft: str) -> dict[int, RoundSeconds]:
    """Of all lengths, and of plain decoding."""
    assistant = Assistant(model=DraftModel.load(draft, trial.lm.target), length=max(LEVELS))
    try:
        assistant.fit(trial.lm.target, trial.lm.vocabulary)
        return trial.turns(assistant, (0, *LEVELS), REPEATS)
    finally:
        assistant.dispose()


def _overlap(parts: RoundParts, stops: Sequence[Stop], exit_: float, levels: int, branches: int) -> Overlap:
    anew = fmean(stop.place >= branches for stop in stops)
    return Overlap(
        exit=exit_,
        gamma=levels,
        branches=branches,
        seconds=parts.step(levels, anew),
        tokens=fmean(stop.emitted for stop in stops),
        anew=anew,
        hidden=parts.ahead(levels) <= parts.window,
    )
