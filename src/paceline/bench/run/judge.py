"""How a text of a run compares with plain decoding's. A difference is looked at as `paceline check` looks at it: the
place is scored again in a wider type, and only what that explains is called a near tie."""

from __future__ import annotations

from typing import NamedTuple

from paceline.bench.comparison import first_parting
from paceline.bench.run.contestant import Contestant, Job, Written, cut
from paceline.bench.run.record import Verdict
from paceline.check.cases import Setting
from paceline.check.record import record
from paceline.check.rescore import Rescorer
from paceline.check.rescore import Verdict as Rescored
from paceline.context import Ending
from paceline.engine.follow import Flip
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.verify import Rule

VERDICTS = {
    Rescored.NEAR_TIE: Verdict.NEAR_TIE,
    Rescored.BUG: Verdict.BUG,
    Rescored.NOT_RESCORED: Verdict.NOT_RESCORED,
}


class Finding(NamedTuple):
    verdict: Verdict
    parts_at: int | None = None
    flips: int = 0


class Judge:
    """Knows plain decoding's text of each job, and says of every other text what it is."""

    def __init__(self, target: Target, rule: Rule) -> None:
        self._target = target
        self._rule = rule
        self._rescorer = Rescorer(target)

    def find(self, who: Contestant, written: Written, job: Job, plain: list[int]) -> Finding:
        """``plain`` is plain decoding's text."""
        if job.script is not None and who.ours:
            parting = first_parting([_Text(written.tokens)], [_Text(job.script[len(job.prompt) :].tolist())])
            if parting is None:
                return Finding(Verdict.FOLLOWED, flips=len(written.flips))
            return Finding(Verdict.BUG, parting.token, len(written.flips))
        if not self._comparable(who, job.sampling):
            return Finding(Verdict.OWN)
        tokens = cut(written.tokens, job)
        parting = first_parting([_Text(tokens)], [_Text(plain)])
        if parting is None:
            return Finding(Verdict.EQUAL)
        return Finding(self._explain(who, tokens, job, plain, parting.token), parting.token)

    def _comparable(self, who: Contestant, sampling: Sampling) -> bool:
        """Whether a text is meant to be plain decoding's: always where nothing is drawn by lot, and with ours also
        where it is, since the same seed gives the same text under the coupled rule."""
        return sampling.greedy or (who.ours and self._rule is Rule.COUPLED)

    def _explain(self, who: Contestant, tokens: list[int], job: Job, plain: list[int], place: int) -> Verdict:
        if place >= min(len(tokens), len(plain)):  # one ends where the other goes on, which no rounding explains
            return Verdict.BUG if who.ours else Verdict.DIFFERENT
        ending = Ending(max_new_tokens=place + 1, eos=job.eos, context_length=self._target.context_length)
        rows = self._target.open(len(job.prompt) + place + 1)
        try:
            recording = record(Setting("run", job.sampling, job.prompt, ending), self._target, rows)
        finally:
            rows.close()
        if recording.emitted.tolist() != plain[: place + 1]:  # plain decoding itself does not come out the same twice
            return Verdict.NOT_RESCORED
        flip = Flip(len(job.prompt) + place, tokens[place], plain[place])
        found = VERDICTS[self._rescorer.judge(flip, recording)]
        return Verdict.DIFFERENT if found is Verdict.BUG and not who.ours else found


class _Text(NamedTuple):
    tokens: list[int]
