"""Figure 6: calibration with one to eight prompts, and how long it takes.

    python -m papers.unispec.figure6_samples --svg samples.svg

`--calibration-seconds` is the time for 5 prompts; other numbers of prompts have a proportional time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.bench import Calibration, Estimate
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.common import Lab, parser

COUNTS = 1, 2, 3, 5, 8
HEAD = ("", "g*", "tokens/round at g*", "seconds/round at g*", "expected tokens/s", "took")


def values(found: Calibration, size: int) -> tuple[float, float]:
    """Tokens and seconds of a round at a size."""
    return float(np.interp(size, found.sizes, found.tokens)), float(np.interp(size, found.sizes, found.seconds))


def speeds(found: Calibration) -> list[float]:
    return [tokens / seconds for tokens, seconds in zip(found.tokens, found.seconds, strict=True)]


def row(label: str, found: Calibration) -> tuple[str, ...]:
    tokens, seconds = values(found, found.nodes)
    speed = f"{tokens / seconds:.1f}"
    return label, str(found.nodes), f"{tokens:.2f}", f"{1000 * seconds:.1f} ms", speed, f"{found.took:.0f} s"


def lost(first: Calibration, last: Calibration) -> float:
    """The share of throughput that the first one's size misses, by what the last one knows."""
    at_first, at_last = (float(np.interp(one.nodes, last.sizes, speeds(last))) for one in (first, last))
    return 1 - at_first / at_last


def report(method: str, calibrated: Mapping[int, Calibration]) -> Report:
    """By the number of prompts."""
    every = list(calibrated.values())
    first, last = every[0], every[-1]
    missed = lost(first, last)
    claims = [
        Claim.of(
            "the size that one prompt finds is as good as that of many",
            "their number has little impact on the optimal length",
            f"{first.nodes} against {last.nodes} nodes, {missed:.0%} of the throughput lost",
            Way.LEVEL,
            Estimate(1 - missed),
        ),
        Claim.of(
            "more prompts take longer",
            "the time rises with their number",
            f"{first.took:.0f} s against {last.took:.0f} s",
            Way.ABOVE,
            Estimate(last.took / max(first.took, 1e-9)),
        ),
    ]
    pictures = (
        ("Best size", "g*", [float(one.nodes) for one in every]),
        ("Tokens per round at the best size", "tokens/round", [values(one, one.nodes)[0] for one in every]),
        ("Seconds per round at the best size", "ms/round", [1000 * values(one, one.nodes)[1] for one in every]),
        ("Time to calibrate", "seconds", [one.took for one in every]),
    )
    panels = [
        Panel(title, "prompts", up, [Curve(method, list(zip(map(float, calibrated), heights, strict=True)))])
        for title, up, heights in pictures
    ]
    rows = [row(f"{n} prompt{'s'[: n > 1]}", one) for n, one in calibrated.items()]
    return Report("UniSpec, Figure 6: calibration by samples", [(HEAD, rows)], claims, panels=panels)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    made = {n: lab.calibrate(f"{n} prompt{'s'[: n > 1]}", prompts=n) for n in COUNTS}
    lab.show(report(lab.method, lab.needed(made)))


if __name__ == "__main__":
    script(main)
