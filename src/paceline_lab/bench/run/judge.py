"""Comparison of a text with plain decoding's. A difference is judged as in `paceline check`: the place is scored again
in a wider type, and only a difference that this explains is a near tie."""

from __future__ import annotations

from typing import NamedTuple

from paceline.context import Ending
from paceline.engine.follow import Flip
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.verify import Rule
from paceline_lab.bench.run.contestant import Job, TextContestant, Written, cut
from paceline_lab.bench.run.record import TextVerdict
from paceline_lab.bench.texts import first_difference
from paceline_lab.check.cases import Setting
from paceline_lab.check.record import record
from paceline_lab.check.rescore import Cause, Rescorer

VERDICTS = {
    Cause.NEAR_TIE: TextVerdict.NEAR_TIE,
    Cause.BUG: TextVerdict.BUG,
    Cause.NOT_RESCORED: TextVerdict.NOT_RESCORED,
}


class Judgement(NamedTuple):
    verdict: TextVerdict
    parts_at: int | None = None
    flips: int = 0


class Judge:
    """Compares texts of a target with plain decoding's."""

    def __init__(self, target: Target, rule: Rule) -> None:
        self._target = target
        self._rule = rule
        self._rescorer = Rescorer(target)

    def find(self, contestant: TextContestant, written: Written, job: Job, plain: list[int]) -> Judgement:
        """The judgement of a text; ``plain`` is plain decoding's."""
        if job.script is not None and contestant.ours:
            place = first_difference(written.tokens, job.script[len(job.prompt) :].tolist())
            return Judgement(TextVerdict.FOLLOWED if place is None else TextVerdict.BUG, place, len(written.flips))
        if not self._comparable(contestant, job.sampling):
            return Judgement(TextVerdict.OWN)
        tokens = cut(written.tokens, job)
        place = first_difference(tokens, plain)
        return Judgement(
            TextVerdict.EQUAL if place is None else self._explain(contestant, tokens, job, plain, place), place
        )

    def _comparable(self, contestant: TextContestant, sampling: Sampling) -> bool:
        """Whether a text must be plain decoding's: always where it is greedy, and with ours also where it is sampled,
        since the same seed gives the same text under the coupled rule."""
        return sampling.greedy or (contestant.ours and self._rule is Rule.COUPLED)

    def _explain(
        self, contestant: TextContestant, tokens: list[int], job: Job, plain: list[int], place: int
    ) -> TextVerdict:
        if place >= min(len(tokens), len(plain)):  # one ends where the other goes on, which no rounding explains
            return TextVerdict.BUG if contestant.ours else TextVerdict.DIFFERENT
        ending = Ending(max_new_tokens=place + 1, eos=job.eos, context_length=self._target.context_length)
        rows = self._target.open(len(job.prompt) + place + 1)
        try:
            recording = record(Setting("run", job.sampling, job.prompt, ending), self._target, rows)
        finally:
            rows.close()
        if recording.emitted.tolist() != plain[: place + 1]:  # plain decoding itself does not come out the same twice
            return TextVerdict.NOT_RESCORED
        flip = Flip(len(job.prompt) + place, tokens[place], plain[place])
        found = VERDICTS[self._rescorer.judge(flip, recording)]
        return TextVerdict.DIFFERENT if found is TextVerdict.BUG and not contestant.ours else found
