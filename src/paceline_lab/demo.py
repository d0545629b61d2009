"""The race of the demo: methods write the same prompts on one model, and only decoding is timed, prefill apart."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from paceline.api.model import LanguageModel
from paceline.api.pictures import TokenPicture
from paceline.api.writing import Generation
from paceline.engine.counters import Totals
from paceline_lab.bench.race import Clock, Contestant, Heat, Lap, Progress, Race
from paceline_lab.bench.texts import Texts

PASSES = 5
WARM_UP, TRIED = 2, 4
"""Tokens that each method writes before anything is timed, and then to find out how fast the machine is."""
LEAST = 12
"""Tokens of the shortest texts: however slow the machine is, every method writes as many."""
COMPARISONS = 3
"""Comparisons with plain decoding from which a method can be called faster: it must win all."""
GAUGED = 1 << 24
"""Values of the matrix that the machine is gauged by: 64 MB, more than caches hold."""
GAUGING = 0.6
"""Seconds that the gauging takes: several turns of a processor that others use, too."""


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
    """The result of a race of methods; the base is plain decoding."""

    methods: list[str]
    """Plain decoding first."""
    prompts: list[str]
    """Those that there was time for."""
    left_out: int
    """The number of the others."""
    tokens: int = 0
    """How long texts may be: as was asked, or as there was time for."""
    shortened: bool = False
    """Whether that is less than was asked."""

    def passes(self, method: str) -> list[list[Generation]]:
        """The texts of a method, pass by pass."""
        texts, count = self.texts(method), len(self.prompts)
        return [texts[start : start + count] for start in range(0, len(texts), count)]

    def speed(self, lap: Lap[Generation]) -> float:
        """Tokens per second, prefill and its token apart."""
        return _speed(lap.result)

    def speeds_of_passes(self, method: str) -> list[float]:
        """Tokens per second of each pass, all prompts together; first tokens come with their prompts."""
        return [sum((text.totals for text in texts), Totals()).tokens_per_second for texts in self.passes(method)]

    def per_round(self, method: str) -> float:
        """Tokens per round, over all texts of a pass."""
        return self._totals(method).tokens_per_round

    def _totals(self, method: str) -> Totals:
        """All texts of the first pass together."""
        return sum((text.totals for text in self.passes(method)[0]), Totals())

    @property
    def spread(self) -> float | None:
        """The largest ratio of a method's fastest pass to its slowest: how far the machine can be trusted. None after a
        single pass."""
        speeds = [self.speeds_of_passes(method) for method in self.methods]
        return max(max(found) / min(found) for found in speeds) if len(speeds[0]) > 1 else None

    def faster(self, method: str) -> bool:
        """Whether a method was faster in each of several comparisons."""
        ratios = self.ratios(method)
        return len(ratios) >= COMPARISONS and min(ratios) > 1

    @property
    def fastest(self) -> str | None:
        """The method with the largest gain, of those that were faster."""
        gains = {row["method"]: row["speed_up"] for row in self.rows()[1:] if row["faster"]}
        return max(gains, key=lambda method: gains[method]) if gains else None

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
        speeds, place = self.speeds_of_passes(method), self.parting(method)
        in_the_same_pass = zip(speeds, self.speeds_of_passes(self.base), strict=True)
        return {
            "method": method,
            "tokens_per_second": median(speeds),
            "slowest_pass": min(speeds),
            "fastest_pass": max(speeds),
            "passes": len(speeds),
            "speed_up": median(mine / plain for mine, plain in in_the_same_pass),
            "speed_up_of_texts": [min(self.ratios(method)), max(self.ratios(method))],
            "faster": self.faster(method),
            "tokens_per_round": self.per_round(method),
            "mean_accepted": self._totals(method).mean_accepted,
            "identical": place is None,
            "parts_at": None if place is None else place._asdict(),
        }


def shown(
    lm: LanguageModel,
    methods: Mapping[str, Mapping[str, Any]],
    prompts: list[str],
    tokens: int,
    *,
    least: int = LEAST,
    seconds: float,
    progress: Progress,
) -> Shown:
    """Race methods, by their settings, on all prompts, as often as there is time for. The first is plain decoding. On a
    slow or busy machine texts are shorter, though at least ``least`` tokens, for all methods alike."""
    end = time.monotonic() + seconds
    contestants = [DemoMethod(name, lm, settings) for name, settings in methods.items()]
    race = Race(contestants=contestants, clock=time.perf_counter, progress=progress)
    for count in (WARM_UP, TRIED):
        for contestant in contestants:
            contestant.begin()
        tried = race.heat(DemoTask(prompts[0], count), 0, 0)
    left = end - time.monotonic()
    fitting = int(min(tokens, max(least, _fitting(tried, left / len(prompts)))))
    race.done = 0
    heats = list(race.run([DemoTask(prompt, fitting) for prompt in prompts], passes=PASSES, seconds=left))
    written = 1 + max(heat.task for heat in heats)
    missing = len(prompts) - written
    return Shown(heats, next(iter(methods)), list(methods), prompts[:written], missing, fitting, fitting < tokens)


def _fitting(tried: Heat[Generation], seconds: float) -> float:
    """How long texts may be, so that every method writes one in ``seconds``."""
    whole = sum(lap.seconds for lap in tried.laps.values())
    token = sum(1 / _speed(lap.result) for lap in tried.laps.values())
    return TRIED + (seconds - whole) / token


def _speed(text: Generation) -> float:
    """Tokens per second, prefill and its token apart."""
    return max(text.totals.tokens_in_rounds, 1) / max(text.totals.seconds, 1e-9)


def seconds_per_gigabyte() -> float:
    """How long this machine, as busy as it is now, reads a gigabyte of weights for a row."""
    import torch

    side, count, started = math.isqrt(GAUGED), 0, time.perf_counter()
    weight, row = torch.ones(side, side), torch.ones(side)
    while count < 2 or time.perf_counter() - started < GAUGING:
        torch.mv(weight, row)
        count += 1
        if count == 1:
            started = time.perf_counter()  # behind the first call, which prepares the kernel
    return (time.perf_counter() - started) / (count - 1) / (4 * GAUGED / 1e9)
