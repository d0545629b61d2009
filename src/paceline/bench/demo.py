"""The race of the demo: methods write the same prompts on one model, and only decoding is timed, prefill apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from paceline.api.model import LanguageModel
from paceline.api.pictures import TokenPicture
from paceline.api.writing import Generation
from paceline.bench.race import Clock, Contestant, Progress, Race
from paceline.bench.texts import Texts
from paceline.engine.account import Totals

PASSES = 5
WARM_UP = 8
"""Tokens that each method writes before it is timed."""


class DemoTask(NamedTuple):
    """A prompt to go on from, and how many tokens to write."""

    prompt: str
    tokens: int


class DemoMethod(Contestant[DemoTask, Generation]):
    """A method on a model; its settings hold the drafter itself."""

    def __init__(self, name: str, lm: LanguageModel, settings: Mapping[str, Any]) -> None:
        self.name, self._lm, self._settings = name, lm, settings

    def begin(self) -> None:
        self._settings["method"].reset()

    def do(self, task: DemoTask, clock: Clock) -> Generation:
        return self._lm.generate(task.prompt, **{**self._settings, "max_new_tokens": task.tokens, "strict": True})


@dataclass(frozen=True)
class Shown(Texts[Generation]):
    """What a race of methods showed; the base is plain decoding."""

    methods: list[str]
    """Plain decoding first."""
    prompts: list[str]
    """Those that there was time for."""
    left_out: int
    """The number of the others."""

    def passes(self, method: str) -> list[list[Generation]]:
        """The texts of a method, pass by pass."""
        texts, count = self.texts(method), len(self.prompts)
        return [texts[start : start + count] for start in range(0, len(texts), count)]

    def speeds(self, method: str) -> list[float]:
        """Tokens per second of each pass, all prompts together; first tokens come with their prompts."""
        totals = [[text.totals for text in texts] for texts in self.passes(method)]
        return [
            sum(one.tokens - one.tokens_of_prefill for one in found) / max(sum(one.seconds for one in found), 1e-9)
            for found in totals
        ]

    def per_round(self, method: str, count: Callable[[Totals], int] = lambda totals: totals.tokens) -> float:
        """A count per round, over all texts of a pass."""
        totals = [text.totals for text in self.passes(method)[0]]
        return sum(map(count, totals)) / max(sum(one.rounds for one in totals), 1)

    @property
    def spread(self) -> float | None:
        """The largest ratio of a method's fastest pass to its slowest: how far the machine can be trusted. None after a
        single pass."""
        speeds = [self.speeds(method) for method in self.methods]
        return max(max(found) / min(found) for found in speeds) if len(speeds[0]) > 1 else None

    @property
    def best(self) -> str:
        """The drafting method with the most tokens per round."""
        return max(self.methods[1:] or self.methods, key=self.per_round)

    def picture(self, number: int, name: str) -> TokenPicture:
        """The tokens of the best method's text of a prompt, coloured by source."""
        text = self.texts(self.best)[number]
        title = f"{name}, drafts by {self.best}"
        return TokenPicture(self.prompts[number], tuple(text.pieces), text.totals, {}, title)

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, a row per method."""
        return [self._row(method) for method in self.methods]

    def _row(self, method: str) -> dict[str, Any]:
        speeds, place = self.speeds(method), self.parting(method)
        in_the_same_pass = zip(speeds, self.speeds(self.base), strict=True)
        return {
            "method": method,
            "tokens_per_second": median(speeds),
            "slowest_pass": min(speeds),
            "fastest_pass": max(speeds),
            "passes": len(speeds),
            "speed_up": median(mine / plain for mine, plain in in_the_same_pass),
            "tokens_per_round": self.per_round(method),
            "mean_accepted": self.per_round(method, lambda totals: totals.accepted),
            "identical": place is None,
            "parts_at": None if place is None else place._asdict(),
        }


def shown(
    lm: LanguageModel,
    methods: Mapping[str, Mapping[str, Any]],
    prompts: list[str],
    tokens: int,
    *,
    seconds: float,
    progress: Progress,
) -> Shown:
    """Race methods, by their settings, on all prompts, as often as there is time for. The first is plain decoding."""
    race = Race(contestants=[DemoMethod(name, lm, settings) for name, settings in methods.items()], progress=progress)
    tasks, warm_up = [DemoTask(prompt, tokens) for prompt in prompts], [DemoTask(prompts[0], WARM_UP)]
    heats = list(race.run(tasks, passes=PASSES, seconds=seconds, warm_up=warm_up))
    written = 1 + max(heat.task for heat in heats)
    return Shown(heats, next(iter(methods)), list(methods), prompts[:written], len(prompts) - written)
