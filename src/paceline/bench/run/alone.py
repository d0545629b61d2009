"""Texts written one at a time, turn by turn, by everybody in turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.bench.rotation import order
from paceline.bench.run.contestant import Contestant, Job, Written
from paceline.bench.run.desk import Desk
from paceline.bench.run.record import Record, Verdict
from paceline.bench.run.telling import kept
from paceline.bench.suites import Prompt


def write_alone(desk: Desk, prompt: Prompt, unit: int, repeat: int) -> list[Record]:
    """All turns of a prompt by every contestant."""
    for contestant in desk.contestants:
        contestant.begin()
    records: list[Record] = []
    answers: list[str] = []
    for turn in range(len(prompt.turns)):
        job = desk.job(prompt, turn, answers)
        if desk.plan.follow:
            job = desk.followed(job)
        texts = list(_timed(desk, job, unit, repeat, turn))
        plain = next(written.tokens for who, written, _ in texts if who is desk.plain)
        for who, written, rest in texts:
            finding = desk.judge.find(who, written, job, plain)
            if who is desk.plain:
                finding = finding._replace(verdict=Verdict.REFERENCE)
            where: dict[str, Any] = {"unit": unit, "turn": turn, "repeat": repeat, **rest}
            records.append(kept(who, prompt, job, written, finding, desk.text, **where))
        answers.append("".join(desk.text(job.prompt.tolist(), plain)))
    return records


def _timed(
    desk: Desk, job: Job, unit: int, repeat: int, turn: int
) -> Iterator[tuple[Contestant, Written, dict[str, Any]]]:
    for place, who in enumerate(order(desk.contestants, repeat + turn, unit)):
        desk.make_ready(who)
        started = desk.clock()
        written = who.write(job, desk.clock)
        desk.settle()
        seconds = desk.clock() - started
        joules = None if desk.meter is None else desk.meter.stop(seconds)
        yield who, written, {"place": place, "seconds": seconds, "joules": joules, "peak": desk.peak.read()}
