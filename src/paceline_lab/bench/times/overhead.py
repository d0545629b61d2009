"""The cost of the engine: its speed against that of transformers' own generation, which writes the same text.

Three contestants write with the same weights: ours, as Paceline loads a model; theirs, transformers' `generate` on
ordinary layers; inside, our loop in that `generate`, on the same model. All are greedy and go on past any end of
text, as many tokens as asked, with a new cache for every text. A call is timed whole, from the prompt's ids to the
finished ids, reading the prompt included; every text is written once before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from paceline.api.model import LanguageModel
from paceline.context import Ints
from paceline.drafters.networks.assistant import DraftModel
from paceline.integrations.transformers import custom_generate
from paceline.law import Sampling
from paceline_lab.bench.peers import make_peer
from paceline_lab.bench.peers.transformers import Options, Transformers
from paceline_lab.bench.peers.weights import PeerWeights, Terms
from paceline_lab.bench.race import Clock, Progress, Race, silent
from paceline_lab.bench.run.contestant import Job, TextContestant, Work, Written, alone
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.statistics import Estimate, median_of
from paceline_lab.bench.texts import Texts
from paceline_lab.bench.times.steps import TimedLine

OURS, THEIRS, INSIDE = NAMES = "ours", "theirs", "inside"
COUNTERPARTS = {
    "plain": "transformers",
    "lookup": "transformers-lookup",
    "assistant": "transformers-assisted",
}
"""Our method -> the peer that does the same."""


class OurLoopInside(Transformers):
    """Our loop in `generate`."""

    def __init__(self, terms: Terms, method: str) -> None:
        super().__init__(terms, {"method": method}, lambda: {"custom_generate": self._loop})
        drafts = DraftModel.load(terms.weights.draft_model, self._target) if method == "assistant" else None
        self._method: Options = {"method": method, "planner": f"fixed:{terms.draft_tokens}", "draft_model": drafts}
        self.begin()

    def begin(self) -> None:
        self._loop = custom_generate(**self._method, strict=True)

    def write(self, job: Job, clock: Clock) -> Written:
        written = super().write(job, clock)
        assert self._loop.last is not None, "a call that came to its end is recorded"
        return replace(written, forwards=self._loop.last.forwards)


@dataclass(frozen=True)
class Contest(Texts[Written]):
    """One method, and its race; the base is theirs."""

    method: str
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of each side."""

    def ratio(self, name: str, base: str = THEIRS) -> Estimate:
        """The median over all heats of a contestant's tokens per second over the base's."""
        return median_of(self.ratios(name, base))

    @property
    def about(self) -> dict[str, Any]:
        """The sides, and how far the race can be trusted."""
        trust = {"turns": len(self.heats), "spread": self.spread, "repeated_8grams": self.repetition}
        return {"sides": self.facts, **trust}

    @property
    def lengths(self) -> set[int]:
        """How many tokens texts have."""
        return {len(text.tokens) for name in NAMES for text in self.texts(name)}

    def tokens_per_forward(self, name: str) -> float:
        """Tokens over forwards, all texts together: contestants that draft alike agree."""
        texts = self.texts(name)
        return sum(len(text.tokens) for text in texts) / sum(text.forwards or 0 for text in texts)

    @property
    def spread(self) -> float | None:
        """The largest ratio of the slowest to the fastest time that a contestant took for the same text: how far the
        machine can be trusted. None where every text was timed once."""
        times: dict[tuple[str, int], list[float]] = {}
        for heat in self.heats:
            for name, lap in heat.laps.items():
                times.setdefault((name, heat.task), []).append(lap.seconds)
        again = [max(seconds) / min(seconds) for seconds in times.values() if len(seconds) > 1]
        return max(again, default=None)

    @property
    def parts(self) -> bool:
        """Whether any text is not theirs."""
        return any(self.parting(name) is not None for name in NAMES)

    @property
    def lines(self) -> Iterator[TimedLine]:
        """A line for each side."""
        for name in NAMES:
            speeds, parting = self.speeds(name), self.parting(name)
            yield TimedLine(
                {"method": self.method, "side": name},
                {"token": 1000 * median(1 / speed for speed in speeds)},
                {
                    "tokens_per_second": median(speeds),
                    "over_theirs": self.ratio(name),
                    "tokens_per_forward": self.tokens_per_forward(name),
                    "text": "equal" if parting is None else str(parting),
                },
            )


def contests(
    lm: LanguageModel,
    drafts: DraftModel | None,
    methods: Iterable[str],
    prompts: Sequence[Ints],
    *,
    tokens: int,
    draft_tokens: int,
    passes: int,
    progress: Progress = silent,
) -> Iterator[Contest]:
    """The race of each method. All share one copy of each model in ordinary layers."""
    weights, own = PeerWeights(lm.target, lm.vocabulary, drafts), DraftedBy(vocabulary=lm.vocabulary)
    works = [
        Work([Job(prompt=prompt, sampling=Sampling(), max_new_tokens=tokens, eos=frozenset())]) for prompt in prompts
    ]
    for method in methods:
        ours = replace(own, draft_model=drafts if method == "assistant" else None)
        terms = Terms(name=INSIDE, options={}, weights=weights, draft_tokens=draft_tokens, sampling=Sampling())
        contestants: list[TextContestant] = [
            Ours(f"{method}@fixed:{draft_tokens}", lm.target, ours),
            make_peer(COUNTERPARTS[method], weights, draft_tokens=draft_tokens),
            OurLoopInside(terms, method),
        ]
        race = Race(contestants=contestants, doing=f"{method}, ", progress=progress)
        with ExitStack() as leaving:
            for contestant, name in zip(contestants, NAMES, strict=True):
                leaving.callback(contestant.close)
                contestant.name = name
            heats = list(map(alone, race.run(works, passes=passes, warm_up=works)))
            facts = {contestant.name: contestant.facts() for contestant in contestants}
        yield Contest(heats, THEIRS, method, facts)
