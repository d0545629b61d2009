"""The seconds of rounds of methods on a device, by part; one finding for each method and temperature.

    python -m papers.device.rounds --model pocket --methods plain auto lookup -n 32

Before each method everything recorded is dropped, so its first text shows what recording costs; the numbers are those
of its texts from the third on. ``--profile`` adds the kernels and host operations of a method's rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import reduce
from operator import add
from statistics import mean
from typing import Any

import paceline
from paceline_lab import open_meter, open_suite
from papers.device.findings import found, not_run, options_of, short
from papers.device.profiles import profiled
from papers.driver import script

SUITE, LANGUAGE = "stories", "en"
WARM = 2
"""Texts of a method that are not counted: shapes are recorded in them."""
SEED = 3
PHASES = "draft", "score", "read", "judge"
IDLE = 3.0
"""Seconds of the idle device."""


def options() -> argparse.Namespace:
    asked = options_of(__doc__)
    take = asked.add_argument
    take("--methods", nargs="*", default=["plain"], metavar="SPEC", help="methods (plain)")
    take("--temperatures", nargs="+", type=float, default=[0.8, 0.0], metavar="T", help="temperatures (0.8 0)")
    take("--texts", type=int, default=WARM + 2, metavar="N", help="texts of each, at least 3 (4)")
    take("--profile", nargs="*", default=[], metavar="SPEC", help="methods whose rounds are profiled")
    take("--energy", action="store_true", help="nothing else is asked for than joules; without a meter do not run")
    given = asked.parse_args()
    if given.texts <= WARM:
        raise ValueError(f"--texts must be more than {WARM}, not {given.texts}")
    return given


class Lab:
    """A model, its prompts and a meter."""

    lm: paceline.LanguageModel
    """Once it is loaded."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.meter, self.unmetered = open_meter(None, None, given.device)
        suite = open_suite(SUITE, languages=[LANGUAGE], limit=given.texts)
        self.prompts = [prompt.turns[0] for prompt in suite.prompts]

    def load(self) -> None:
        self.lm = paceline.load(self.given.model, device=self.given.device, dtype=self.given.dtype)

    def text(self, method: str, temperature: float, prompt: str) -> paceline.Generation:
        """One text of the length that was asked for."""
        how: dict[str, Any] = {"method": method, "temperature": temperature, "seed": SEED, "ignore_eos": True}
        return self.lm.generate(prompt, max_new_tokens=self.given.max_new_tokens, **how)

    def metered(self, method: str, temperature: float, prompt: str) -> tuple[paceline.Generation, float, float | None]:
        """One text, its seconds and its joules."""
        if self.meter is not None:
            self.meter.start()
        started = time.perf_counter()
        text = self.text(method, temperature, prompt)
        took = time.perf_counter() - started
        return text, took, None if self.meter is None else self.meter.stop(took)

    def idle_watts(self) -> float | None:
        """The power of the device while it holds the model and computes nothing."""
        assert self.meter is not None, "asked before"
        self.meter.start()
        started = time.perf_counter()
        time.sleep(IDLE)
        took = time.perf_counter() - started
        joules = self.meter.stop(took)
        return None if joules is None else joules / took


def milliseconds(totals: Any) -> dict[str, float]:
    """Of a round, by what it was spent on, and in all."""
    rounds = max(1, totals.rounds)
    spent = {phase: 1000 * getattr(totals, f"seconds_{phase}") / rounds for phase in PHASES}
    return spent | {"round": 1000 * totals.seconds / rounds}


def measured(lab: Lab, method: str, temperature: float) -> dict[str, Any]:
    """The texts of a method at a temperature."""
    texts = [lab.metered(method, temperature, prompt) for prompt in lab.prompts]
    (first, took, _), counted = texts[0], texts[WARM:]
    totals = reduce(add, (text.totals for text, _, _ in counted))
    rows = [one.rows for text, _, _ in counted for one in text.rounds if not one.prefill]
    later, joules = milliseconds(totals), [spent for _, _, spent in counted if spent is not None]
    return {
        "method": method,
        "temperature": temperature,
        "milliseconds": later,
        "first_text_seconds": took,
        "extra_seconds": first.totals.rounds * (milliseconds(first.totals)["round"] - later["round"]) / 1000,
        "text_seconds": mean(seconds for _, seconds, _ in counted),
        "tokens_per_second": totals.tokens_per_second,
        "tokens_per_round": totals.tokens_per_round,
        "rows": mean(rows) if rows else 0.0,
        "joules_per_token": sum(joules) / totals.tokens if len(joules) == len(counted) else None,
    }


def work(lab: Lab) -> Iterator[tuple[str, dict[str, Any]]]:
    """The findings that are not known yet, one by one."""
    given = lab.given
    for method in given.methods:
        names = {f"{method} at {temperature:g}": temperature for temperature in given.temperatures}
        missing = {name: temperature for name, temperature in names.items() if name not in given.known}
        if missing:
            lab.lm.forget()
        for number, (name, temperature) in enumerate(missing.items()):
            try:
                yield name, measured(lab, method, temperature) | {"fresh": number == 0}
            except (paceline.PacelineError, RuntimeError) as error:
                yield name, {"method": method, "temperature": temperature, "failed": short(error)}
    for method in given.profile:
        name = f"profile of {method}"
        if name not in given.known:
            lab.text(method, given.temperatures[0], lab.prompts[0])
            text = lambda method=method: lab.text(method, given.temperatures[0], lab.prompts[-1])  # noqa: E731
            yield name, {"method": method, **profiled(text, given.device)}


def refusal(lm: Any) -> str | None:
    """Why forwards are not recorded any more, if they were once."""
    fixed = getattr(lm.target, "fixed", None)
    return None if fixed is None else fixed.refused


def main() -> None:
    given = options()
    lab = Lab(given)
    if given.energy and lab.meter is None:
        not_run(lab.unmetered)
        return
    lab.load()
    if given.energy and "idle" not in given.known:
        found("idle", watts=lab.idle_watts())
    for name, facts in work(lab):
        found(name, **facts)
    if (why := refusal(lab.lm)) is not None:
        found("refused", why=why)


if __name__ == "__main__":
    script(main)
