"""The progress of a training: its size first, a bar or lines while it goes on, its results, and a card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from paceline.drafters.networks.checkpoint import record_noise
from paceline_make import cards
from paceline_make.heads.batches import rank
from paceline_make.heads.kinds.base import parameters_in_all
from paceline_make.heads.loop import TrainingReport
from paceline_make.heads.run import Workshop, joined_processes
from paceline_make.states import resumable

EVERY = 50
"""Steps between two lines where there is no terminal."""
PROMPTS, PROMPT, WRITTEN = 12, 40, 64
"""Held-out texts that are written with the head, tokens of their beginnings, and tokens behind those."""


class TrainingOutcome(NamedTuple):
    """The result of a training."""

    bytes: int
    positions: int
    held_out: TrainingReport | None
    measured: dict[str, float]
    """By ``noise``, the measure of the kind of head (`HeadKind.measure`), of the method by default on the beginnings of
    held-out texts, at the temperature of the labels; empty if nothing is held out."""


def watched(workshop: Workshop, origin: Sequence[str]) -> TrainingOutcome:
    """Train, say how it goes on standard error, and leave a card beside the head. ``origin`` are lines that say what it
    was trained on."""
    with joined_processes(), resumable():
        if not rank():
            _say(_size(workshop))
        with _bar() as (label, report):
            workshop.train(label, report)
        if rank():
            return TrainingOutcome(0, 0, None, {})
        head = workshop.kind.read(workshop.out).float()
        outcome = TrainingOutcome(
            sum(file.stat().st_size for file in workshop.out.glob("*.safetensors")),
            workshop.positions,
            workshop.judge(head.to(workshop.target.device)),
            measured(workshop),
        )
        if outcome.measured:
            record_noise(workshop.out, outcome.measured)
        _write_card(workshop, head, outcome, origin)
    return outcome


def _size(workshop: Workshop) -> str:
    count, megabytes = workshop.windows * workshop.teacher.size, workshop.bytes / 1e6
    where = f"up to {megabytes:,.0f} MB on disk" if megabytes else "no disk, and are made again in each epoch"
    return f"{count:,} positions to label and learn; their labels take {where}"


def measured(workshop: Workshop) -> dict[str, float]:
    """The measure of the head that was written, by ``noise``."""
    prompts = _beginnings(workshop)
    found = {noise: _measured(workshop, prompts, noise) for noise in workshop.kind.noises if prompts}
    return {noise: tokens for noise, tokens in found.items() if tokens}


def _measured(workshop: Workshop, prompts: list[list[int]], noise: str) -> float:
    """Of rounds with a draft; 0 where there was none."""
    texts = workshop.lm.generate_batch(
        prompts,
        method=f"{workshop.kind.method}:head='{workshop.out}',noise={noise}",
        planner="fixed",
        temperature=workshop.recipe.labels.temperature,
        seed=0,
        max_new_tokens=WRITTEN,
    )
    rounds = [each for (text,) in texts for each in text.rounds if each.drafted]
    return workshop.kind.measured(rounds)


def _beginnings(workshop: Workshop) -> list[list[int]]:
    held = [each for each in workshop.held if isinstance(each, str) and each]
    chosen = [held[int(at)] for at in np.linspace(0, len(held) - 1, min(PROMPTS, len(held)))] if held else []
    vocabulary = workshop.lm.vocabulary
    assert vocabulary is not None, "a workshop has one"
    ids = (vocabulary.encode_prompt(each)[:PROMPT].tolist() for each in chosen)
    return [each for each in ids if each]


def _write_card(workshop: Workshop, head: nn.Module, outcome: TrainingOutcome, origin: Sequence[str]) -> None:
    recipe, kind = workshop.recipe, workshop.kind
    cards.write(
        workshop.out,
        cards.TEMPLATES / "head.md",
        model=workshop.target.name,
        fingerprint=workshop.target.fingerprint(),
        method=kind.method,
        title=kind.title,
        measure=kind.measure,
        rows=kind.rows(head),
        labels=asdict(recipe.labels),
        recipe=asdict(recipe),
        outcome=outcome,
        parameters=parameters_in_all(head),
        tokens=len(workshop.stream),
        origin=origin,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _bar() -> Iterator[tuple[Callable[[int, int], None], Callable[[TrainingReport], None]]]:
    shown = sys.stderr.isatty() and not rank()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("labels")

        def label(done: int, parts: int) -> None:
            bar.update(task, completed=done, total=parts)
            if not shown and (done % 10 == 0 or done == parts):
                _say(f"labels {done}/{parts}")

        def report(found: TrainingReport) -> None:
            right = " ".join(f"{share:.0%}" for share in found.right)
            said = f"loss {found.loss:.3f}, right {right}, {found.positions_per_second:,.0f} positions/s"
            bar.update(task, completed=found.step, total=found.steps, description=said)
            if not shown and (found.step % EVERY == 0 or found.step == found.steps):
                _say(f"step {found.step}/{found.steps} {said}")

        yield label, report
