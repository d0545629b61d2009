"""A run of the real protocol on a table target: everything but a model of size and a suite of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import tabled
from paceline.context import Ints
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.verify import Rule
from paceline_lab.bench.machine import Peak
from paceline_lab.bench.race import Clock, Race
from paceline_lab.bench.run.contestant import Job, TextContestant, Written
from paceline_lab.bench.run.directory import About, Run, begin
from paceline_lab.bench.run.judge import Judge
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.run.protocol import Conditions, Referee
from paceline_lab.bench.suites import Prompt, Workload

METHODS = ("plain", "lookup", "lookup:max_ngram=1")


def prompts(count: int = 4, turns: int = 1) -> tuple[Prompt, ...]:
    """Texts of digits, each of which is a token of the table; every other prompt is of another task."""
    return tuple(
        Prompt(
            key=f"p{number}",
            task=("even", "odd")[number % 2],
            language="en",
            turns=tuple(f"{number % 6}0314203{turn}" for turn in range(turns)),
            chat=turns > 1,
        )
        for number in range(count)
    )


def encode(prompt: Prompt, turn: int, answers: Sequence[str]) -> Ints:
    """All turns and answers so far, a digit a token."""
    said = [text for pair in zip(prompt.turns, [*answers, ""], strict=False) for text in pair][: 2 * turn + 1]
    return np.array([int(digit) for digit in "".join(said)], np.int64)


def spell(prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    return [str(token) for token in tokens]


@dataclass
class Echo(TextContestant):
    """Another library, which writes what it is told to."""

    says: list[int]
    name: str = "echo"
    jobs: list[Job] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        return {"library": "echo"}

    def write(self, job: Job, clock: Clock) -> Written:
        self.jobs.append(job)
        started = clock()
        return Written(tokens=list(self.says), deliveries=[(n + 1, clock() - started) for n in range(len(self.says))])


def refereed(
    path: Path,
    *,
    target: Target | None = None,
    methods: Sequence[str] = METHODS,
    peers: Sequence[TextContestant] = (),
    workload: Sequence[Prompt] | None = None,
    make: Any = None,
    rule: Rule = Rule.COUPLED,
    warm: bool = False,
    recipe: dict[str, Any] | None = None,
    energy: dict[str, Any] | None = None,
    contestants: Sequence[TextContestant] | None = None,
    **plan: Any,
) -> Referee:
    """A run that is about to begin, or to go on."""
    target = target or tabled()
    asked_for = tuple(workload if workload is not None else prompts())
    asked: dict[str, Any] = {
        "sampling": Sampling(),
        "max_new_tokens": 12,
        "eos": frozenset(),
        "follow": False,
        **plan,
    }
    how = DraftedBy(planner="fixed:4", rule=rule, warm=warm, make=make or made)
    everybody = list(contestants or [*(Ours(method, target, how) for method in methods), *peers])
    about = About(
        recipe={
            **{name: value for name, value in asked.items() if name not in ("sampling", "eos")},
            "methods": list(methods),
            "temperature": asked["sampling"].temperature,
            **(recipe or {}),
        },
        model={"model": target.name, "dtype": "float64", "fingerprint": target.fingerprint()},
        entries=[{"name": who.name, "ours": who.ours, **who.facts()} for who in everybody],
        workload={"suite": "digits", "cells": {}, "notes": [], "sources": {}, "units": 0},
        energy=energy or {},
        sittings=[{"started": "2026-11-22T00:00:00+00:00"}],
    )
    return Referee(
        run=begin(path, about, asked_for),
        race=Race(contestants=everybody, gauges={"peak": Peak(torch.device("cpu"))}),
        contestants=everybody,
        conditions=Conditions(context_length=target.context_length, **asked),
        workload=Workload(suite="digits", prompts=asked_for),
        encode=encode,
        text=spell,
        judge=Judge(target, rule),
    )


def made(spec: str, model: DraftModel | None) -> Drafter:
    return make_drafter(spec, model, must_use=False)


def finished(referee: Referee) -> Run:
    referee.sit()
    return referee.run
