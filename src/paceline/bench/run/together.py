"""Texts written together: in batches, or as prompts arrive on their own.

A batch is timed as a whole; each of its texts is given a share of the time by its tokens, so that any of them has the
speed of the batch. Where prompts arrive, they do so at random moments at a stated rate, the same moments for every
method, and wait for nobody: what counts then is how long each waits for its first and for its last token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.bench.rotation import order
from paceline.bench.run.contestant import Clock, Contestant, Job, Written
from paceline.bench.run.desk import Desk
from paceline.bench.run.ours import Ours, told
from paceline.bench.run.record import Record, Verdict
from paceline.bench.run.telling import DIGITS, kept
from paceline.bench.suites import Prompt
from paceline.engine.batch import Batch, Turn
from paceline.engine.loop import Session


@dataclass(eq=False)
class Guest:
    """One text of those that are written together; times are seconds since all began."""

    job: Job
    arrives: float = 0.0
    joined: float = 0.0
    session: Session | None = None
    deliveries: list[tuple[int, float]] = field(default_factory=list)

    @property
    def written(self) -> Written:
        assert self.session is not None, "asked for when all are written"
        return told(self.session, self.deliveries)

    @property
    def last(self) -> float:
        return self.deliveries[-1][1]


def arrivals(count: int, qps: float | None, seed: int) -> list[float]:
    """When prompts come: all at once, or ``qps`` of them in a second on average with exponential gaps."""
    if qps is None:
        return [0.0] * count
    gaps = np.random.default_rng(seed).exponential(1 / qps, count)
    return [float(when) for when in np.cumsum(gaps) - gaps[0]]


def write_together(desk: Desk, prompts: Sequence[Prompt], unit: int, repeat: int) -> list[Record]:
    """All turns of these prompts by every contestant, turn by turn."""
    for who in desk.contestants:
        who.begin()
    answers: dict[str, list[str]] = {prompt.key: [] for prompt in prompts}
    records: list[Record] = []
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        here = [prompt for prompt in prompts if turn < len(prompt.turns)]
        jobs = [desk.job(prompt, turn, answers[prompt.key]) for prompt in here]
        if desk.plan.follow:
            jobs = [desk.followed(job) for job in jobs]
        where = {"unit": unit, "turn": turn, "repeat": repeat, "batch": desk.plan.batch}
        sides = [
            (who, where | {"place": place}, _timed(desk, who, jobs, repeat))
            for place, who in enumerate(order(desk.contestants, repeat + turn, unit))
        ]
        plain = next(guests for who, _, (guests, _) in sides if who is desk.plain)
        for who, placed, (guests, shares) in sides:
            for prompt, guest, theirs, share in zip(here, guests, plain, shares, strict=True):
                records.append(_record(desk, who, prompt, guest, theirs, share | placed))
        for prompt, guest in zip(here, plain, strict=True):
            answers[prompt.key].append("".join(desk.text(guest.job.prompt.tolist(), guest.written.tokens)))
    return records


def _timed(desk: Desk, who: Contestant, jobs: Sequence[Job], repeat: int) -> tuple[list[Guest], list[dict[str, Any]]]:
    """All texts by one contestant, and each one's share of what they took together."""
    assert isinstance(who, Ours), "only our methods write several texts together"
    plan = desk.plan
    when = arrivals(len(jobs), plan.qps, plan.sampling.seed + repeat)
    guests = [Guest(job, at) for job, at in zip(jobs, when, strict=True)]
    desk.make_ready(who)
    started = desk.clock()
    busy = host(who, guests, plan.batch, desk.clock)
    desk.settle()
    seconds = desk.clock() - started
    joules = None if desk.meter is None else desk.meter.stop(seconds)
    peak, total = desk.peak.read(), sum(guest.deliveries[-1][0] for guest in guests)
    shares = [guest.deliveries[-1][0] / total for guest in guests]
    return guests, [
        {
            "share": share * seconds,
            "busy": share * busy,
            "joules": None if joules is None else share * joules,
            "peak": peak,
        }
        for share in shares
    ]


def rehearse(who: Contestant, jobs: Sequence[Job], clock: Clock) -> None:
    """Write these texts together, untimed."""
    assert isinstance(who, Ours), "only our methods write several texts together"
    host(who, [Guest(job) for job in jobs], len(jobs), clock)


def host(who: Ours, guests: Sequence[Guest], seats: int, clock: Clock) -> float:
    """Write the texts of guests who come when they come, as many at once as there are seats. Gives back how long it was
    at work on them."""
    coming, started, busy = deque(guests), clock(), 0.0
    writing: dict[Session, Guest] = {}
    try:
        with Batch(who.target, at_once=seats) as batch:
            while coming or writing:
                now = clock() - started
                while coming and coming[0].arrives <= now and len(writing) < seats:
                    guest = coming.popleft()
                    guest.joined, guest.session = now, who.session(guest.job)
                    writing[guest.session] = guest
                    batch.join(guest.session)
                if not writing:
                    time.sleep(max(0.0, coming[0].arrives - now))
                    continue
                began = clock()
                turns = batch.step()
                busy += clock() - began
                for turn in turns:
                    _note(turn, writing, clock() - started)
        return busy
    finally:
        for session in writing:
            session.rows.close()


def _note(turn: Turn, writing: dict[Session, Guest], now: float) -> None:
    """Remember what a step brought, and see a guest off who has everything."""
    if turn.error is not None:
        raise turn.error
    guest = writing[turn.session]
    if turn.emissions:
        guest.deliveries.append((len(turn.session.emissions), now))
    if turn.ended:
        del writing[turn.session]
        turn.session.rows.close()


def _record(desk: Desk, who: Contestant, prompt: Prompt, guest: Guest, plain: Guest, share: dict[str, Any]) -> Record:
    """The text of a guest. Its time runs from its arrival; its part in the decoding is its share of all that passed."""
    taken, busy = share.pop("share"), share.pop("busy")
    written = guest.written
    finding = desk.judge.find(who, written, guest.job, plain.written.tokens)
    if who is desk.plain:
        finding = finding._replace(verdict=Verdict.REFERENCE)
    seconds = guest.last - guest.arrives
    record = kept(who, prompt, guest.job, written, finding, desk.text, seconds=seconds, **share)
    return replace(
        record,
        seconds_first=round(guest.deliveries[0][1] - guest.arrives, DIGITS),
        seconds_waited=round(max(0.0, guest.joined - guest.arrives), DIGITS),
        decoded=len(record.tokens),
        seconds_decode=round(taken, DIGITS),
        split=_scaled(record.split, busy, taken),
    )


def _scaled(split: dict[str, float] | None, busy: float, seconds: float) -> dict[str, float] | None:
    """Phases that several texts lived through together, as parts of one text's share of the time: of the ``busy`` part
    of its ``seconds``. The rest went to seating guests and to waiting for them."""
    if split is None:
        return None
    lived = {name: value for name, value in split.items() if name != "rest"}
    total = sum(lived.values())
    parts = {name: value * busy / total if total else 0.0 for name, value in lived.items()}
    parts["rest"] = max(0.0, seconds - sum(parts.values()))
    return {name: round(value, DIGITS) for name, value in parts.items()}
