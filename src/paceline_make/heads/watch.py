"""The progress of a training: its size first, a bar or lines while it goes on, its results, and a card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from paceline.drafters.networks.checkpoint import record_noise
from paceline.targets.hf.ranks.processes import joined_processes
from paceline_make import cards
from paceline_make.heads.batches import rank
from paceline_make.heads.judging import rounds_of, tokens_per_round
from paceline_make.heads.kinds.base import parameters_in_all
from paceline_make.heads.loop import TrainingReport
from paceline_make.heads.run import Workshop
from paceline_make.states import resumable

EVERY = 50
"""Steps between two lines where there is no terminal."""


class TrainingOutcome(NamedTuple):
    """The result of a training."""

    bytes: int
    positions: int
    held_out: TrainingReport | None
    measured: dict[str, float]
    """By ``noise``, the measure of the kind of head (`HeadKind.measure`), of the method by default on the beginnings of
    held-out texts, at the temperature of the labels; empty if nothing is held out."""
    accepted: float | None = None
    """Of a draft model with another target: tokens a round of that target, in the same rounds."""


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
        found, accepted = measured(workshop)
        outcome = TrainingOutcome(
            sum(file.stat().st_size for file in workshop.out.glob("*.safetensors")),
            workshop.positions,
            workshop.judge(head.to(workshop.target.device)),
            found,
            accepted,
        )
        if outcome.measured:
            record_noise(workshop.out, outcome.measured)
        _write_card(workshop, head, outcome, origin)
    return outcome


def _size(workshop: Workshop) -> str:
    count, megabytes = workshop.windows * workshop.teacher.size, workshop.bytes / 1e6
    where = f"up to {megabytes:,.0f} MB on disk" if megabytes else "no disk, and are made again in each epoch"
    return f"{count:,} positions to label and learn; their labels take {where}"


def measured(workshop: Workshop) -> tuple[dict[str, float], float | None]:
    """The measure of the head that was written, by ``noise``, and the tokens a round of another target."""
    kind, temperature, author = workshop.kind, workshop.recipe.labels.temperature, workshop.author
    method = kind.drafting(workshop.out, workshop.recipe.labels.ahead)
    found = rounds_of(author or workshop.lm, workshop.held, method, temperature, kind.noises, kind.together)
    values = {noise: kind.measured(rounds) for noise, rounds in found.items() if rounds}
    best = max((tokens_per_round(rounds) for rounds in found.values()), default=0.0)
    return {noise: value for noise, value in values.items() if value}, best if author and best else None


def _write_card(workshop: Workshop, head: nn.Module, outcome: TrainingOutcome, origin: Sequence[str]) -> None:
    recipe, kind = workshop.recipe, workshop.kind
    cards.write(
        workshop.out,
        cards.TEMPLATES / "head.md",
        model=workshop.target.name,
        fingerprint=workshop.target.fingerprint(),
        author=None if workshop.author is None else workshop.author.target.name,
        is_model=kind.is_model,
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
