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

import torch

from paceline.context import Context
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline_lab.bench.early_exit import Stop, foreseen
from paceline_lab.bench.race import Progress
from paceline_lab.bench.statistics import Estimate, SpeedVerdict
from paceline_lab.machine.communication import AllReduceLaw, Devices, measure
from paceline_lab.machine.measuring import RoundSeconds
from paceline_lab.machine.overlap import Bench, OverlapTrial, RoundParts, joined

EXITS, LEVELS, BRANCHES = (0.25, 0.5), (2, 4, 7), (4, 16)
PROXIES, REPEATS = 8, 2
BYTES = {"float64": 8, "bfloat16": 2, "float16": 2}
"""Of a value, by the target's type; other types compute in float32."""
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
    devices: Devices | None = None
    """The devices that all of this is simulated for; None where it is this machine's."""

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


def advise_overlap(
    trial: OverlapTrial, draft: str, advance: Progress, devices: int = 1, law: AllReduceLaw | None = None
) -> OverlapAdvice:
    """Measure for about a minute. The advice is for as many ``devices`` as this one, for each model; with the ``law``
    of all-reduces between them, or that of two processes here."""
    several = None if devices == 1 else devices_of(trial, draft, devices, law)
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
            if several is not None:
                parts = several.parts(parts, levels=levels, branches=branches, exit=exit_)
            together.append(_overlap(parts, stops, exit_, levels, branches))
    advance("in turns", total - 1, total)
    seconds = _turns(trial, draft)
    advance("", total, total)
    whole = {levels: each.whole for levels, each in seconds.items()}
    if several is not None:
        whole = {levels: several.turns(each, levels) for levels, each in whole.items()}
    turns = [OverlapTurns(length=levels, seconds=whole[levels], tokens=tokens) for levels, tokens in emitted.items()]
    return OverlapAdvice(together, turns, whole[0], several)


def devices_of(trial: OverlapTrial, draft: str, count: int, law: AllReduceLaw | None) -> Devices:
    """What the law of devices needs of a target and its draft model."""
    target, small = trial.lm.target, DraftModel.load(draft, trial.lm.target).target
    width, draft_width = (int(one.embed(torch.zeros(1, dtype=torch.long)).shape[-1]) for one in (target, small))
    return Devices(
        count=count,
        law=measure().law if law is None else law,
        layers=target.layers,
        width=width,
        draft_width=draft_width,
        vocabulary=small.vocab_size,
        itemsize=BYTES.get(target.dtype, 4),
    )


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
