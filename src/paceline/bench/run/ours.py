"""Our methods as contestants: the engine's own session, timed around whatever it does for a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from paceline.bench.run.contestant import Clock, Contestant, Job, Written
from paceline.context import Context, Ending
from paceline.drafters import Drafter, make_drafter
from paceline.drafters.assistant import DraftModel
from paceline.engine.follow import FollowingDice
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import KeyedDice
from paceline.planning.base import Planner
from paceline.planning.specs import make_planner
from paceline.targets.base import SPARE_ROWS, Target
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary


@dataclass(kw_only=True)
class Drafting:
    """What our methods of a run have in common."""

    vocabulary: Vocabulary | None = None
    draft_model: DraftModel | None = None
    planner: str | None = None
    """Who sizes the drafts of methods that name no planner themselves; None for each method's own."""
    rule: Rule = Rule.COUPLED
    warm: bool = False
    """Drafters keep what they learnt from prompt to prompt."""
    planned: Callable[[str, Planner], Planner] = lambda name, planner: planner
    """What stands in for the planner of an entry, which may look on."""
    make: Callable[[str, DraftModel | None], Drafter] = field(
        default=lambda spec, model: make_drafter(spec, model, must_use=False)
    )


class Ours(Contestant):
    """One of our methods, ``SPEC`` or ``SPEC@PLANNER``."""

    ours: ClassVar[bool] = True

    def __init__(self, name: str, target: Target, how: Drafting) -> None:
        self.name = name
        self.spec, own = parted(name)
        self.target = target
        self.remembers = how.warm
        self._how = how
        self._planned = own or how.planner
        self._drafter: Drafter | None = None
        self.forget()

    def begin(self) -> None:
        if not self.remembers:
            self.forget()

    def forget(self) -> None:
        """Draft with a new drafter. The old one is disposed of later, so that both share what is loaded: another copy
        of a model would be cold."""
        old, self._drafter = self._drafter, self._how.make(self.spec, self._how.draft_model)
        self._drafter.fit(self.target, self._how.vocabulary)
        if old is not None:
            old.dispose()
        self._planner = self._how.planned(self.name, make_planner(self._planned, self._drafter, self.target))

    def facts(self) -> dict[str, Any]:
        assert self._drafter is not None, "made at the beginning"
        draft = self._draft_model
        planner = self._planned or self._drafter.planner
        size = f"fixed:{self._drafter.nodes}" if planner == "fixed" else planner
        return {
            "library": "paceline",
            "method": self.spec,
            "planner": size,
            "rule": str(self._how.rule),
            "draft_model": None if draft is None else draft.name,
            "draft_fingerprint": None if draft is None else draft.fingerprint(),
            "learning": "kept from prompt to prompt" if self.remembers else "reset before every prompt",
        }

    @property
    def _draft_model(self) -> Target | None:
        """The model that this method drafts with: one that it names, or the one that is there for all."""
        assert self._drafter is not None, "made at the beginning"
        own = next(iter(self._drafter.models), None)
        if own is not None or self._how.draft_model is None:
            return own
        try:
            make_drafter(self.spec, self._how.draft_model)
        except ValueError:  # it takes none
            return None
        return self._how.draft_model.target

    def session(self, job: Job) -> Session:
        """A text about to be written, on rows of its own."""
        assert self._drafter is not None, "made at the beginning"
        limit = self.target.context_length
        ending = Ending(max_new_tokens=job.max_new_tokens, eos=job.eos, context_length=limit)
        context = Context(job.prompt, job.sampling, ending)
        return Session(
            context=context,
            target=self.target,
            rows=self.target.open(len(context) + context.room + SPARE_ROWS),
            drafter=self._drafter,
            planner=self._planner,
            rule=self._how.rule,
            dice=None if job.script is None else FollowingDice(KeyedDice(context.noise), job.script),
        )

    def write(self, job: Job, clock: Clock) -> Written:
        started = clock()
        session = self.session(job)
        opened = clock() - started
        deliveries: list[tuple[int, float]] = []
        try:
            for count, emission in enumerate(run(session), start=1):
                if emission.round == len(deliveries):
                    deliveries.append((count, clock() - started))
                else:  # a further token of the same round, which came with the others
                    deliveries[-1] = count, deliveries[-1][1]
        finally:
            session.rows.close()
        return replace(told(session, deliveries), seconds_prefill=opened + session.seconds_prefill)


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
        raise ValueError(f"cannot read method {name!r}: write SPEC@PLANNER, as in lookup@fixed:8")
    return spec, planner


def told(session: Session, deliveries: list[tuple[int, float]]) -> Written:
    """What a finished session knows of its text."""
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
        finish=str(session.context.finish),
        flips=[(flip.index - first, flip.chosen) for flip in flips],
    )
