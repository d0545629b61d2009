"""Our methods as contestants: a session of the engine, timed around all its work for a text."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

from paceline.context import Context, Ending
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.asking import fit
from paceline.drafters.networks.assistant import DraftModel
from paceline.engine.batch import Batch
from paceline.engine.follow import FollowingDice
from paceline.engine.loop import Session
from paceline.engine.observe import Observed
from paceline.engine.serial import run
from paceline.errors import InputError
from paceline.law import KeyedDice
from paceline.planning.specs import DEFAULT, make_planner
from paceline.targets.base import Target
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.race import Clock
from paceline_lab.bench.run.contestant import Job, TextContestant, Work, Written

Watch: TypeAlias = Callable[[str, Observed], None]
"""An observer of all texts of a run, called with the name of the entry and one of its rounds."""


@dataclass(kw_only=True)
class DraftedBy:
    """The common settings of our methods in a run."""

    vocabulary: Vocabulary | None = None
    draft_model: DraftModel | None = None
    planner: str | None = None
    """The planner of methods that name none themselves; None for each method's own size."""
    rule: Rule = Rule.COUPLED
    warm: bool = False
    """Drafters keep what they learnt from prompt to prompt."""
    watch: Watch | None = None
    make: Callable[[str, DraftModel | None], Drafter] = field(
        default=lambda spec, model: make_drafter(spec, model, must_use=False)
    )


class Ours(TextContestant):
    """One of our methods, ``SPEC`` or ``SPEC@PLANNER``."""

    ours: ClassVar[bool] = True

    def __init__(self, name: str, target: Target, how: DraftedBy) -> None:
        self.name = name
        self.spec, own = parted(name)
        self.target = target
        self._how = how
        self._named = own or how.planner
        self._drafter: Drafter | None = None
        self.forget()
        self.remembers = how.warm or self.drafter.keeps

    def begin(self) -> None:
        if not self.remembers:
            self.forget()

    def forget(self) -> None:
        """Draft with a new drafter. The old one is disposed of later, so that both share the loaded models: another
        copy of a model would be cold."""
        old, self._drafter = self._drafter, self._how.make(self.spec, self._how.draft_model)
        fit(self._drafter, self.target, self._how.vocabulary)
        if old is not None:
            old.dispose()
        self._planner = make_planner(self._planned, self.drafter, self.target)

    @property
    def _planned(self) -> str:
        """The spec of the planner."""
        return planner_of(self._named, self.drafter)

    @property
    def drafter(self) -> Drafter:
        assert self._drafter is not None, "made at the beginning"
        return self._drafter

    def facts(self) -> dict[str, Any]:
        models = self.drafter.models
        planner = self._planned
        return {
            "library": "paceline",
            "method": self.spec,
            "planner": f"fixed:{self.drafter.nodes}" if planner == "fixed" else planner,
            "rule": str(self._how.rule),
            "draft_model": models[0].name if models else None,
            "draft_fingerprint": models[0].fingerprint() if models else None,
            "learning": "kept from prompt to prompt" if self.remembers else "reset before every prompt",
        }

    def session(self, job: Job) -> Session:
        """A text about to be written, on new rows."""
        limit = self.target.context_length
        ending = Ending(max_new_tokens=job.max_new_tokens, eos=job.eos, context_length=limit)
        context = Context(job.prompt, job.sampling, ending)
        dice = None if job.script is None else FollowingDice(KeyedDice(context.noise), job.script)
        watch = None if self._how.watch is None else partial(self._how.watch, self.name)
        how: dict[str, Any] = {"rule": self._how.rule, "dice": dice, "observer": watch}
        return Session.on_new_rows(context, self.target, self.drafter, self._planner, **how)

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        session = self.session(job)
        opened = clock() - started
        deliveries: list[tuple[int, float]] = []
        try:
            for emission in run(session):
                if emission.round < len(deliveries):
                    continue  # a further token of the same round, which came with the others
                now, count = clock(), len(session.emissions)
                deliveries.append((count, now - started))
                if job.enough is not None and count >= job.enough:
                    break
                if job.until is not None and now > job.until and not session.rounds[-1].prefill:
                    break
        finally:
            session.rows.close()
        return replace(written(session, deliveries), seconds_prefill=opened + session.seconds_prefill)

    def do(self, task: Work, clock: Clock) -> list[Written]:
        return super().do(task, clock) if task.at_once is None else Together(self, task.jobs, clock).write(task.at_once)

    def close(self) -> None:
        self.drafter.dispose()


@dataclass(eq=False)
class Guest:
    """One text of those that are written together; times are seconds since the beginning."""

    job: Job
    session: Session | None = None
    joined: float = 0.0
    deliveries: list[tuple[int, float]] = field(default_factory=list)
    before: int = 0
    """Tokens that came in steps that were not decoding."""


class Together:
    """Texts that are generated together: in a batch, or as their prompts arrive.

    A step is decoding if every text in it has its first token. Other steps read prompts; neither their seconds nor
    their tokens count as decoding, for any of the texts.
    """

    def __init__(self, contestant: Ours, jobs: Sequence[Job], clock: Clock) -> None:
        self._contestant, self._clock = contestant, clock
        self._guests = [Guest(job) for job in jobs]
        self._seated: dict[Session, Guest] = {}
        self._busy = self._apart = 0.0

    def write(self, at_once: int) -> list[Written]:
        """Write each text from its arrival on, as soon as there is a seat."""
        coming, started, before = deque(self._guests), self._clock(), 0.0
        try:
            with Batch(self._contestant.target, at_once=at_once) as batch:
                while coming or self._seated:
                    now = self._clock() - started
                    while coming and coming[0].job.arrives <= now and len(self._seated) < at_once:
                        batch.join(self._seat(coming.popleft(), now))
                    decoding = bool(self._seated) and all(guest.deliveries for guest in self._seated.values())
                    if self._seated:
                        self._step(batch, started, decoding)
                    else:
                        time.sleep(max(0.0, coming[0].job.arrives - now))
                    now = self._clock() - started
                    self._apart += 0.0 if decoding else now - before
                    before = now
        finally:
            for session in self._seated:
                session.rows.close()
        return [self._written(guest) for guest in self._guests]

    def _seat(self, guest: Guest, now: float) -> Session:
        guest.joined, guest.session = now, self._contestant.session(guest.job)
        self._seated[guest.session] = guest
        return guest.session

    def _step(self, batch: Batch, started: float, decoding: bool) -> None:
        began = self._clock()
        turns = batch.step()
        self._busy += self._clock() - began
        for turn in turns:
            if turn.error is not None:
                raise turn.error
            guest = self._seated[turn.session]
            if turn.emissions:
                guest.deliveries.append((len(turn.session.emissions), self._clock() - started))
                guest.before += 0 if decoding else len(turn.emissions)
            if turn.ended:
                del self._seated[turn.session]
                turn.session.rows.close()

    def _written(self, guest: Guest) -> Written:
        assert guest.session is not None, "all texts are written"
        return replace(
            written(guest.session, guest.deliveries),
            joined=guest.joined,
            before=guest.before,
            busy=self._busy,
            apart=self._apart,
        )


def parted(name: str) -> tuple[str, str | None]:
    """A method's spec, and the planner that stands behind its last @, if any; not within quotes.

    >>> parted("lookup:max_ngram=4@fixed:8")
    ('lookup:max_ngram=4', 'fixed:8')
    """
    found = re.fullmatch(r"((?:[^\"']|\"[^\"]*\"|'[^']*')*)@([^\"'@]*)", name)
    if found is None:
        return name, None
    spec, planner = found[1].strip(), found[2].strip()
    if not spec or not planner:
        raise InputError(f"cannot read method {name!r}: write SPEC@PLANNER, as in lookup@fixed:8")
    return spec, planner


def planner_of(named: str | None, drafter: Drafter) -> str:
    """The planner that a method is measured with: the ``named`` one, ``default`` for the one that users get, or else
    drafts of the method's own size."""
    if named == DEFAULT or (named is None and not drafter.sized):
        return drafter.planner
    return named or "fixed"


def written(session: Session, deliveries: list[tuple[int, float]]) -> Written:
    """The record of a session's text."""
    dice, first = session.dice, session.context.prompt_length
    flips = dice.flips if isinstance(dice, FollowingDice) else []
    return Written(
        tokens=session.context.emitted.tolist(),
        deliveries=deliveries,
        rounds=session.rounds,
        forwards=len(session.rounds),
        sources=[emission.source for emission in session.emissions],
        scores=[round(emission.score, 4) for emission in session.emissions],
        seconds_prefill=session.seconds_prefill,
        finish=str(session.context.finish or ""),
        flips=[(flip.index - first, flip.chosen) for flip in flips],
    )
