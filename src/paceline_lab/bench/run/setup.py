"""Setting a run up: the model, the suite, the contestants, and the directory that all is kept in."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.api.model import LanguageModel
from paceline.drafters import make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.errors import InputError
from paceline.files import claimed
from paceline.law import Sampling
from paceline.planning.specs import make_planner
from paceline.targets.base import Target
from paceline.targets.pocket.names import BALLAST_MARK
from paceline.targets.pocket.open import describe as shape
from paceline.targets.setup import described
from paceline.verify import Rule
from paceline_lab.bench.energy import Meter, open_meter
from paceline_lab.bench.machine import Peak, sitting
from paceline_lab.bench.peers import ALONE, check_peer, make_peer
from paceline_lab.bench.peers.weights import PeerWeights
from paceline_lab.bench.race import Gauge, Progress, Race, silent
from paceline_lab.bench.run.contestant import Job, Missing, TextContestant
from paceline_lab.bench.run.directory import begin, check_place
from paceline_lab.bench.run.emulation import KnownTexts, replay, stopped
from paceline_lab.bench.run.judge import Judge
from paceline_lab.bench.run.keeping import pieces_of
from paceline_lab.bench.run.ours import DraftedBy, Ours, Watch, parted, planner_of
from paceline_lab.bench.run.protocol import Conditions, Referee
from paceline_lab.bench.run.record import About
from paceline_lab.bench.suites import Workload, encode, open_suite

HALF = ("bfloat16", "float16")
REPLAY = "replay:"
TRIAL = 2
"""Tokens that another library writes to show that it can."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The workload and its contestants, by the names of the flags of ``bench run``. A run goes on only with equal
    ones."""

    suite: str
    tasks: list[str] | None = None
    langs: list[str] | None = None
    limit: int | None = None
    methods: list[str]
    """The first is plain decoding."""
    peers: list[str]
    draft_model: str | None = None
    num_draft_tokens: int | None = None
    planner: str | None = None
    rule: str = Rule.COUPLED
    max_new_tokens: int | None = None
    """None for all of a text that is replayed."""
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    repeat: int = 1
    warm: bool = False
    batch: int = 1
    qps: float | None = None
    follow: bool | None = None
    """None for yes in half precision."""

    def check(self) -> None:
        """Tell what need not wait for a model, which may take minutes to load."""
        if self.rule not in list(Rule):
            raise InputError(f"unknown rule {self.rule!r}; choose {' or '.join(Rule)}")
        for peer in self.peers:
            check_peer(peer)
        for method in self.methods:
            spec, planner = parted(method)
            drafter = make_drafter(spec, self.draft_model, must_use=False)
            make_planner(planner_of(planner or self.planner_spec, drafter), drafter)
        if self.replays and self.qps is not None:
            raise InputError("a replay takes no time, so no prompts can arrive during it; leave out --qps")

    @property
    def replays(self) -> bool:
        """Whether a known text takes the model's place."""
        return self.suite.startswith(REPLAY)

    @property
    def planner_spec(self) -> str | None:
        """The planner of all methods that name none."""
        if self.num_draft_tokens is None:
            return self.planner
        if self.planner is not None:
            raise InputError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
        return f"fixed:{self.num_draft_tokens}"

    def conditions(self, target: Target, longest: int) -> Conditions:
        """How all write; ``longest`` is the length of a text where none is given."""
        sampling = Sampling(temperature=self.temperature, seed=self.seed)
        follow = self.follow if self.follow is not None else target.dtype in HALF
        if self.rule == Rule.REJECTION and not sampling.greedy:
            if self.follow:
                raise InputError(
                    "under the rejection rule a sampled text is its own and cannot be followed; write --free"
                )
            follow = False
        limit, tokens = target.context_length, self.max_new_tokens or longest
        if limit is not None and tokens >= limit:
            raise InputError(
                f"--max-new-tokens {tokens} leaves no room for a prompt in the {limit} tokens of the model's context; "
                "choose fewer"
            )
        return Conditions(
            sampling=sampling,
            max_new_tokens=tokens,
            eos=frozenset() if self.ignore_eos else target.eos,
            follow=bool(follow),
            repeat=self.repeat,
            batch=self.batch,
            qps=self.qps,
            context_length=limit,
        )


@contextmanager
def opened(
    options: RunOptions,
    model: str,
    load: Callable[[], LanguageModel],
    out: Path,
    *,
    data: Path | None = None,
    energy: str | None = "none",
    watts: float | None = None,
    watch: Watch | None = None,
    progress: Progress = silent,
) -> Iterator[Referee]:
    """Everything that a run needs; ``sit`` then writes it. Child processes are given back in the end. ``watch`` is
    called after each round, ``energy`` is the name of a meter, or None for the first that works here."""
    options.check()
    workload = open_suite(options.suite, data=data, languages=options.langs, tasks=options.tasks, limit=options.limit)
    check_place(out, workload.prompts)
    progress(f"loading {model}", 0, 0)
    replayed = replay(workload, model) if options.replays else None
    lm = load() if replayed is None else LanguageModel(replayed.target, replayed.vocabulary)
    target, vocabulary = lm.target, lm.vocabulary
    if vocabulary is None:
        raise InputError(
            f"{target.name} came without a tokenizer, and suites are texts; put tokenizer.json and "
            "tokenizer_config.json into the model's folder"
        )
    conditions = options.conditions(target, 0 if replayed is None else max(replayed.lengths.values()))
    known = replayed or (KnownTexts.of(workload, vocabulary) if conditions.follow else KnownTexts(texts={}, starts={}))
    how = DraftedBy(
        vocabulary=vocabulary,
        draft_model=DraftModel.load(options.draft_model, target) if options.draft_model else None,
        planner=options.planner_spec,
        rule=Rule(options.rule),
        warm=options.warm,
        watch=watch,
    )
    with ExitStack() as leaving:
        contestants: list[TextContestant] = [Ours(method, target, how) for method in options.methods]
        progress("asking other libraries", 0, 0)
        peers, missing = _peers(options, lm, how.draft_model, conditions)
        contestants += peers
        for contestant in contestants:
            leaving.callback(contestant.close)
        gauges: dict[str, Gauge] = {"peak": Peak(torch.device(target.device))}
        meter, metering = _meter(energy, watts, target.device)
        if meter is not None:
            leaving.callback(meter.close)
            gauges["joules"] = meter
        about = About(
            recipe=asdict(options) | {"follow": conditions.follow},
            model=described(target) | {"ballast": shape(target.name) if BALLAST_MARK in target.name else None},
            entries=[
                {"name": contestant.name, "ours": contestant.ours, **contestant.facts()} for contestant in contestants
            ],
            workload=_described(workload, conditions) | ({"known": len(known.texts)} if known.texts else {}),
            missing=missing,
            energy=metering,
            sittings=[sitting(shlex.join(["paceline", *sys.argv[1:]]))],
        )
        leaving.enter_context(claimed(out))
        yield Referee(
            run=begin(out, about, workload.prompts),
            race=Race(
                contestants=contestants,
                clock=time.perf_counter if replayed is None else stopped,
                settle=partial(torch.cuda.synchronize, target.device)
                if target.device.startswith("cuda")
                else lambda: None,
                gauges=gauges,
                progress=progress,
            ),
            contestants=contestants,
            conditions=conditions,
            workload=workload,
            encode=partial(encode, vocabulary),
            text=pieces_of(vocabulary),
            judge=Judge(target, how.rule),
            known=known,
        )


def _peers(
    options: RunOptions, lm: LanguageModel, draft: DraftModel | None, conditions: Conditions
) -> tuple[list[TextContestant], dict[str, str]]:
    """The other libraries that can take part, and why the others cannot."""
    here: list[TextContestant] = []
    missing: dict[str, str] = {}
    weights = PeerWeights(lm.target, lm.vocabulary, draft)
    for spec in options.peers:
        if conditions.at_once is not None:
            missing[spec] = ALONE
            continue
        try:
            peer = make_peer(spec, weights, draft_tokens=options.num_draft_tokens, sampling=conditions.sampling)
            _try(peer, lm, conditions)
        except Missing as why:
            missing[spec] = str(why)
        else:
            here.append(peer)
    return here, missing


def _try(peer: TextContestant, lm: LanguageModel, conditions: Conditions) -> None:
    """Have another library write a little, before the run counts on it."""
    job = Job(prompt=lm.encode("The "), sampling=conditions.sampling, max_new_tokens=TRIAL, eos=conditions.eos)
    try:
        peer.write(job, time.perf_counter)
    except Missing:
        raise
    except Exception as error:
        said = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise Missing(f"it fails on this model: {said}") from error


def _meter(energy: str | None, watts: float | None, device: str) -> tuple[Meter | None, dict[str, Any]]:
    meter, why = (None, "not asked for") if energy == "none" else open_meter(energy, watts, device)
    if meter is None:
        return None, {"source": "none", "measured": False, "watts": None, "why": why}
    return meter, {"source": meter.source, "measured": meter.measured, "watts": meter.watts, "why": why}


def _described(workload: Workload, conditions: Conditions) -> dict[str, Any]:
    size = len(workload.prompts) if conditions.qps is not None else conditions.batch
    return {
        "suite": workload.suite,
        "cells": workload.cells,
        "notes": list(workload.notes),
        "sources": dict(workload.sources),
        "prompts": len(workload.prompts),
        "units": -(-len(workload.prompts) // size) * conditions.repeat,
    }
