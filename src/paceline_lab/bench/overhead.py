"""What the engine costs: its speed against that of transformers' own generation, which writes the same text.

Three contestants write with the same weights: ours, as a user of Paceline has it; theirs, transformers' `generate` on
ordinary layers; inside, our loop in that `generate`, on the same model. All are greedy and go on past any end of
text, as many tokens as asked, with a new cache for every text. A call is timed whole, from the prompt's ids to the
finished ids, reading the prompt included; every text is written once before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from paceline.api.model import LanguageModel
from paceline.context import Ints
from paceline.drafters.networks.assistant import DraftModel
from paceline.integrations.transformers import custom_generate
from paceline.law import Sampling
from paceline_lab.bench.peers.transformers import Options, assisted, counted, generated, looked_up, sampled
from paceline_lab.bench.peers.weights import ordinary
from paceline_lab.bench.race import Clock, Contestant, Progress, Race
from paceline_lab.bench.statistics import Estimate, median_of
from paceline_lab.bench.texts import Texts

OURS, THEIRS, INSIDE = NAMES = "ours", "theirs", "inside"
COUNTERPARTS = {
    "plain": "generate",
    "lookup": "generate with prompt_lookup_num_tokens",
    "assistant": "generate with assistant_model",
}
"""Our method -> what transformers has for it."""


class CountedText(NamedTuple):
    """One text, and how many forwards of the model that writes brought it: each brought a token at least, so a forward
    that read a prompt and brought none is not among them."""

    tokens: list[int]
    forwards: int


class OurLoop(Contestant[Ints, CountedText]):
    """A method of ours by the Python API, on ids."""

    name = OURS

    def __init__(self, lm: LanguageModel, tokens: int, method: Options) -> None:
        self._target = lm.target
        self._settings = {"max_new_tokens": tokens, "ignore_eos": True, "strict": True, **method}
        self.begin()

    def begin(self) -> None:
        """Keep no rows of the texts before."""
        self._lm = LanguageModel(self._target)

    def do(self, task: Ints, clock: Clock) -> CountedText:
        text = self._lm.generate(task, **self._settings)
        return CountedText(text.tokens, text.totals.forwards)


class TheirLoop(Contestant[Ints, CountedText]):
    """Transformers' counterpart of a method. It keeps nothing between calls."""

    name = THEIRS

    def __init__(self, model: PreTrainedModel, tokens: int, options: Callable[[], Options]) -> None:
        self._model, self._tokens, self._options = model, tokens, options

    def do(self, task: Ints, clock: Clock) -> CountedText:
        with counted(self._model) as forwards:
            tokens = _generated(self._model, task, self._tokens, self._options())
        return CountedText(tokens, len(forwards))


class OurLoopInside(Contestant[Ints, CountedText]):
    """Our loop in `generate`."""

    name = INSIDE

    def __init__(self, model: PreTrainedModel, tokens: int, method: Options) -> None:
        self._model, self._tokens, self._method = model, tokens, method
        self.begin()

    def begin(self) -> None:
        self._loop = custom_generate(**self._method, strict=True)

    def do(self, task: Ints, clock: Clock) -> CountedText:
        tokens = _generated(self._model, task, self._tokens, {"custom_generate": self._loop})
        assert self._loop.last is not None, "a call that came to its end is recorded"
        return CountedText(tokens, self._loop.last.forwards)


def _generated(model: PreTrainedModel, prompt: Ints, tokens: int, options: Options) -> list[int]:
    return generated(model, prompt, tokens, frozenset(), {**sampled(Sampling()), **options})


@dataclass(frozen=True)
class Contest(Texts[CountedText]):
    """One method, and its race; the base is theirs."""

    method: str

    def ratio(self, name: str, base: str = THEIRS) -> Estimate:
        """The median over all heats of a contestant's tokens per second over the base's."""
        pairs = zip(self.speeds(name), self.speeds(base), strict=True)
        return median_of([mine / other for mine, other in pairs])

    def ratio_of_totals(self, name: str) -> float:
        """The same from all tokens and all seconds, where slow texts weigh more."""
        return self._total(name) / self._total(THEIRS)

    def speed(self, name: str) -> float:
        """The median of tokens per second."""
        return median(self.speeds(name))

    def speeds(self, name: str) -> list[float]:
        """Tokens per second of every text."""
        return [len(heat.laps[name].result.tokens) / heat.laps[name].seconds for heat in self.heats]

    @property
    def lengths(self) -> set[int]:
        """How many tokens texts have."""
        return {len(text.tokens) for name in NAMES for text in self.texts(name)}

    def tokens_per_forward(self, name: str) -> float:
        """Tokens over forwards, all texts together: contestants that draft alike agree."""
        texts = self.texts(name)
        return sum(len(text.tokens) for text in texts) / sum(text.forwards for text in texts)

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        partings = {name: self.parting(name) for name in NAMES}
        return {
            "method": self.method,
            "counterpart": COUNTERPARTS[self.method],
            "ratios": {name: asdict(self.ratio(name)) for name in (OURS, INSIDE)},
            "ratios_of_totals": {name: self.ratio_of_totals(name) for name in (OURS, INSIDE)},
            "tokens_per_second": {name: self.speed(name) for name in NAMES},
            "tokens_per_forward": {name: self.tokens_per_forward(name) for name in NAMES},
            "texts_equal": all(found is None for found in partings.values()),
            "parts_at": {name: found._asdict() for name, found in partings.items() if found is not None},
            "repeated_8grams": self.repetition,
            "spread": self.spread,
            "turns": len(self.heats),
        }

    def _total(self, name: str) -> float:
        laps = [heat.laps[name] for heat in self.heats]
        return sum(len(lap.result.tokens) for lap in laps) / sum(lap.seconds for lap in laps)


def contests(
    lm: LanguageModel,
    drafts: DraftModel | None,
    methods: Iterable[str],
    prompts: Sequence[Ints],
    *,
    tokens: int,
    draft_tokens: int,
    passes: int,
    progress: Progress,
) -> Iterator[Contest]:
    """The race of each method. All share one copy of each model in ordinary layers."""
    copied = ordinary(lm.target)
    draft = None if drafts is None else ordinary(drafts.target)
    inner = None if draft is None else DraftModel.load(draft, lm.target)
    ways: dict[str, Callable[[], Options]] = {"plain": dict, "lookup": partial(looked_up, draft_tokens)}
    if draft is not None:
        ways["assistant"] = partial(assisted, draft, draft_tokens)

    def ours(method: str, model: DraftModel | None) -> dict[str, Any]:
        return {
            "method": method,
            "planner": f"fixed:{draft_tokens}",
            "draft_model": model if method == "assistant" else None,
        }

    for method in methods:
        contestants: list[Contestant[Ints, CountedText]] = [
            OurLoop(lm, tokens, ours(method, drafts)),
            TheirLoop(copied, tokens, ways[method]),
            OurLoopInside(copied, tokens, ours(method, inner)),
        ]
        race = Race(contestants=contestants, doing=f"{method}, ", progress=progress)
        yield Contest(list(race.run(prompts, passes=passes, warm_up=prompts)), THEIRS, method)
