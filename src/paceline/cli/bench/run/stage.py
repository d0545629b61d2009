"""Setting a run up: the model, the suite, who takes part, and the directory that all is kept in."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from paceline.api.model import LanguageModel
from paceline.bench.energy import Meter, open_meter
from paceline.bench.peers import check_peer, make_peer
from paceline.bench.peers.weights import Weights
from paceline.bench.run.about import About
from paceline.bench.run.contestant import Contestant, Job, Missing
from paceline.bench.run.desk import Plan
from paceline.bench.run.directory import begin, check_place
from paceline.bench.run.emulation import replay, stopped
from paceline.bench.run.judge import Judge
from paceline.bench.run.memory import Peak
from paceline.bench.run.ours import Drafting, Ours, parted
from paceline.bench.run.protocol import Referee
from paceline.bench.run.sitting import sitting
from paceline.bench.run.telling import pieces_of
from paceline.bench.suites import Workload, open_suite
from paceline.bench.suites.template import encode
from paceline.cli.common import describe, inputs_of, load_model
from paceline.drafters import make_drafter
from paceline.drafters.assistant import DraftModel
from paceline.files import check_apart, claimed
from paceline.law import Sampling
from paceline.planning.base import Planner
from paceline.planning.specs import make_planner
from paceline.targets.pocket.open import describe as shape
from paceline.targets.pocket.shape import MARK
from paceline.verify import Rule

if TYPE_CHECKING:
    from paceline.vocabulary import Vocabulary

Advance = Callable[[str, int, int], None]
HALF = (torch.bfloat16, torch.float16)
RECIPE = (
    *("suite", "tasks", "langs", "limit", "methods", "peers", "draft_model", "num_draft_tokens", "planner"),
    "rule",
    *("max_new_tokens", "ignore_eos", "temperature", "seed", "repeat", "warm", "batch", "qps"),
)
"""Options that decide what is written and by whom."""
REPLAY = "replay:"
TRIAL = 2
"""Tokens that another library writes to show that it can."""


@contextmanager
def referee(
    options: argparse.Namespace,
    advance: Advance,
    lm: LanguageModel | None = None,
    planned: Callable[[str, Planner], Planner] = lambda name, planner: planner,
) -> Iterator[Referee]:
    """Everything that a run needs, on a model that is loaded already if one is given. Child processes are given back
    in the end. ``planned`` is of `Drafting`."""
    _check(options)
    workload = open_suite(
        options.suite, data=options.data, languages=options.langs, tasks=options.tasks, limit=options.limit
    )
    check_place(options.out, workload.prompts)
    advance(f"loading {options.model}", 0, 0)
    replayed = replay(workload, options.model) if options.suite.startswith(REPLAY) else None
    if replayed is not None:
        lm = LanguageModel(replayed.target, replayed.vocabulary)
    lm = lm or load_model(options)
    draft = DraftModel.load(options.draft_model, lm.target) if options.draft_model else None
    meter, energy = _meter(options, str(lm.target.device))
    plan = _plan(options, lm, max(replayed.lengths.values()) if replayed else 0)
    rule = Rule(options.rule)
    drafting = {"planner": _planner(options), "rule": rule, "warm": options.warm}
    how = Drafting(vocabulary=lm.vocabulary, draft_model=draft, planned=planned, **drafting)
    contestants: list[Contestant] = [Ours(method, lm.target, how) for method in options.methods]
    advance("asking other libraries", 0, 0)
    peers, missing = _peers(options, lm, draft, plan)
    contestants += peers
    about = About(
        recipe={name: getattr(options, name) for name in RECIPE} | {"follow": plan.follow},
        model=_model(lm),
        entries=[{"name": who.name, "ours": who.ours, **who.facts()} for who in contestants],
        workload=_told(workload, plan),
        missing=missing,
        energy=energy,
        sittings=[sitting(shlex.join(["paceline", *sys.argv[1:]]))],
    )
    emulated = {} if replayed is None else {"encode": replayed.prompt, "lengths": replayed.lengths, "clock": stopped}
    on_device: dict[str, Any] = {"peak": Peak(lm.target.device), "meter": meter}
    if lm.target.device.type == "cuda":
        on_device["settle"] = partial(torch.cuda.synchronize, lm.target.device)
    try:
        with claimed(options.out):
            yield Referee(
                run=begin(options.out, about, workload.prompts),
                workload=workload,
                contestants=contestants,
                plan=plan,
                text=pieces_of(lm.vocabulary),
                judge=Judge(lm.target, rule),
                progress=advance,
                **{"encode": partial(encode, _vocabulary(lm)), **on_device, **emulated},
            )
    finally:
        for who in contestants:
            who.close()
        if meter is not None:
            meter.close()


def _check(options: argparse.Namespace) -> None:
    """Tell what need not wait for a model, which may take minutes to load."""
    check_apart(options.out, inputs_of(options))
    for peer in options.peers:
        check_peer(peer)
    for method in options.methods:
        spec, planner = parted(method)
        make_planner(planner or _planner(options), make_drafter(spec, options.draft_model, must_use=False))
    if options.suite.startswith(REPLAY) and options.qps is not None:
        raise ValueError("a replay takes no time, so no prompts can arrive during it; leave out --qps")


def _planner(options: argparse.Namespace) -> str | None:
    """The planner of all methods that name none."""
    if options.num_draft_tokens is None:
        planner: str | None = options.planner
        return planner
    if options.planner is not None:
        raise ValueError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
    return f"fixed:{options.num_draft_tokens}"


def _plan(options: argparse.Namespace, lm: LanguageModel, longest: int) -> Plan:
    """How all write. ``longest`` is the length of a text where none is given."""
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    follow = options.follow if options.follow is not None else lm.target.dtype in HALF
    if options.rule == Rule.REJECTION and not sampling.greedy:
        if options.follow:
            raise ValueError("under the rejection rule a sampled text is its own and cannot be followed; write --free")
        follow = False
    limit, tokens = lm.target.context_length, options.max_new_tokens or longest
    if limit is not None and tokens >= limit:
        raise ValueError(
            f"--max-new-tokens {tokens} leaves no room for a prompt in the {limit} tokens of the model's context; "
            "choose fewer"
        )
    return Plan(
        sampling=sampling,
        max_new_tokens=tokens,
        eos=frozenset() if options.ignore_eos else lm.target.eos,
        follow=bool(follow),
        repeat=options.repeat,
        batch=options.batch,
        qps=options.qps,
        context_length=lm.target.context_length,
    )


def _peers(
    options: argparse.Namespace, lm: LanguageModel, draft: DraftModel | None, plan: Plan
) -> tuple[list[Contestant], dict[str, str]]:
    """Those of the other libraries that can take part, and why the others cannot."""
    here: list[Contestant] = []
    missing: dict[str, str] = {}
    weights = Weights(lm.target, lm.vocabulary, draft)
    for spec in options.peers:
        if plan.batch > 1 or plan.qps is not None:
            missing[spec] = "other libraries take part one text at a time; leave out --batch and --qps"
            continue
        try:
            peer = make_peer(
                spec,
                target=lm.target,
                vocabulary=lm.vocabulary,
                draft=draft,
                draft_tokens=options.num_draft_tokens,
                sampling=plan.sampling,
                weights=weights,
            )
            _try(peer, lm, plan)
        except Missing as why:
            missing[spec] = str(why)
        else:
            here.append(peer)
    return here, missing


def _try(peer: Contestant, lm: LanguageModel, plan: Plan) -> None:
    """Have another library write a little, before the run counts on it."""
    import time

    job = Job(prompt=lm.encode("The "), sampling=plan.sampling, max_new_tokens=TRIAL, eos=plan.eos)
    try:
        peer.write(job, time.perf_counter)
    except Missing:
        raise
    except Exception as error:
        said = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise Missing(f"it fails on this model: {said}") from error


def _meter(options: argparse.Namespace, device: str) -> tuple[Meter | None, dict[str, Any]]:
    if options.energy == "none":
        return None, {"source": "none", "measured": False, "watts": None, "why": "not asked for"}
    meter, why = open_meter(options.energy, options.watts, device)
    if meter is None:
        return None, {"source": "none", "measured": False, "watts": None, "why": why}
    return meter, {"source": meter.source, "measured": meter.measured, "watts": meter.watts, "why": why}


def _model(lm: LanguageModel) -> dict[str, Any]:
    name = lm.target.name
    return {**describe(lm), "ballast": shape(name) if MARK in name else None}


def _told(workload: Workload, plan: Plan) -> dict[str, Any]:
    size = len(workload.prompts) if plan.qps is not None else plan.batch
    units = -(-len(workload.prompts) // size)
    return {
        "suite": workload.suite,
        "cells": workload.cells,
        "notes": list(workload.notes),
        "sources": dict(workload.sources),
        "prompts": len(workload.prompts),
        "units": units * plan.repeat,
    }


def _vocabulary(lm: LanguageModel) -> Vocabulary:
    if lm.vocabulary is None:
        raise ValueError(
            f"{lm.target.name} came without a tokenizer, and suites are texts; put the tokenizer beside it"
        )
    return lm.vocabulary


__all__: Sequence[str] = ["referee"]
