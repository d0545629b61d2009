"""Two measurements as functions: a race of methods that is stored in a folder, and a calibration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.api.model import LanguageModel
from paceline.drafters import make_drafter
from paceline.law import Sampling
from paceline_lab.bench.machine import hushed
from paceline_lab.bench.race import Progress, silent
from paceline_lab.bench.run.ours import Watch
from paceline_lab.bench.run.setup import RunOptions, opened
from paceline_lab.bench.summary import Summary
from paceline_lab.machine.calibrate import Calibrator, Method, Plan
from paceline_lab.machine.prompts import prompts_of


def race_methods(
    lm: LanguageModel,
    methods: Sequence[str],
    *,
    out: Path,
    data: Path | None = None,
    watch: Watch | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Summary:
    """Have plain decoding and these methods write a suite in turns, as ``paceline bench run`` does: ``options`` are its
    flags (`RunOptions`), ``out`` is the folder where it is kept. The same call goes on with a run that was interrupted.
    ``watch`` is called after each round of our methods, also in the warm-up.
    """
    wanted = RunOptions(methods=list(dict.fromkeys(["plain", *methods])), peers=[], **options)
    how: dict[str, Any] = {"data": data, "watch": watch, "progress": progress}
    with hushed(), opened(wanted, lm.target.name, lambda: lm, out, **how) as referee:
        referee.sit()
    return Summary(referee.run)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The results of a calibration."""

    nodes: int
    """The best draft size of single texts."""
    sizes: list[int]
    """Measured sizes."""
    tokens: list[float]
    """Tokens of a round, by size."""
    seconds: list[float]
    """Seconds of a round, by size."""
    took: float
    """Seconds that the calibration took."""


def calibrate_method(
    lm: LanguageModel,
    method: str,
    *,
    seconds: float,
    prompts: int | None = None,
    suite: str | None = None,
    tasks: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    data: Path | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Calibration:
    """The best draft size of a method for single texts, found as ``paceline calibrate`` finds it, and not stored.

    ``seconds`` may be infinite: then the work is fixed, and the time that it takes is a finding. The prompts are of a
    suite, or ``prompts:FILE``, and by default a mixture; fewer than were asked for are an error.
    """
    started = time.monotonic()
    calibrated = Method.fitted(make_drafter(method), lm.target, lm.vocabulary)
    sampling = Sampling(temperature=temperature, seed=seed)
    plan = Plan(sampling=sampling, lengths=(256,), sequences=(1,), seconds=seconds, max_new_tokens=max_new_tokens)
    texts = prompts_of(suite, lm, prompts, tasks=tasks, languages=languages, data=data)
    with hushed():
        profile = Calibrator(target=lm.target, methods=[calibrated], prompts=texts, plan=plan, progress=progress).run()
    found = profile.method(calibrated.spec, calibrated.draft)
    assert found is not None, "it was just measured"
    choice = found.choices[0]
    return Calibration(
        nodes=choice.nodes,
        sizes=[point.nodes for point in found.points],
        tokens=[point.tokens for point in found.points],
        seconds=found.seconds(profile.curves(found.top), choice.sequences, choice.length).tolist(),
        took=time.monotonic() - started,
    )
