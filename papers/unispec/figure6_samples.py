"""Figure 6: calibration with one to eight prompts, and how long it takes.

    python -m papers.unispec.figure6_samples --svg samples.svg

Every prompt is written whole, at every size: no calibration has a time to keep to, so its time is a finding. The
paper's method is calibrated by the paper's procedure, `unispec` by Paceline's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from paceline_lab import Calibration, Estimate
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.common import Lab, parser
from papers.unispec.tables import OWN, conditions

COUNTS = 1, 2, 3, 5, 8
HEAD = ("", "g*", "tokens/round at g*", "seconds at g*", "expected tokens/s", "took")

SECONDS = "seconds are of forwards where the method is calibrated as published, else of whole rounds"


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


def claims_of(method: str, calibrated: Mapping[int, Calibration]) -> list[Claim]:
    fewest, most = min(calibrated), max(calibrated)
    first, last = calibrated[fewest], calibrated[most]
    missed = lost(first, last)
    size = f"the size of {counted(fewest)} is as good as that of {most}, {method}"
    return [
        Claim.of(
            size,
            "their number has little impact on the optimal length",
            f"{first.nodes} against {last.nodes} nodes, {missed:.0%} of the throughput lost",
            Way.LEVEL,
            Estimate(1 - missed),
        ),
        Claim.of(
            f"{most} prompts take longer than {fewest}, {method}",
            "the time rises with their number",
            f"{first.took:.0f} s against {last.took:.0f} s",
            Way.ABOVE,
            Estimate(last.took / max(first.took, 1e-9)),
        ),
    ]


def counted(prompts: int) -> str:
    return f"{prompts} prompt{'s'[: prompts > 1]}"


def report(methods: Mapping[str, Mapping[int, Calibration]], notes: Sequence[str] = ()) -> Report:
    """By the method and the number of prompts."""
    claims = [claim for method, every in methods.items() if len(every) > 1 for claim in claims_of(method, every)]
    pictures = (
        ("Best size", "g*", lambda one: float(one.nodes)),
        ("Tokens per round at the best size", "tokens/round", lambda one: values(one, one.nodes)[0]),
        ("Seconds at the best size", "ms", lambda one: 1000 * values(one, one.nodes)[1]),
        ("Time to calibrate", "seconds", lambda one: one.took),
    )
    panels = [
        Panel(
            title,
            "prompts",
            up,
            [
                Curve(method, [(float(n), of(one)) for n, one in every.items()], number)
                for number, (method, every) in enumerate(methods.items(), start=1)
            ],
        )
        for title, up, of in pictures
    ]
    rows = [row(f"{method}, {counted(n)}", one) for method, every in methods.items() for n, one in every.items()]
    return Report("UniSpec, Figure 6: calibration by samples", [(HEAD, rows)], claims, [SECONDS, *notes], panels)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    made = {
        (method, n): lab.calibrate(f"{method} {counted(n)}", method, prompts=n, seconds=math.inf)
        for method in dict.fromkeys((lab.method, OWN))
        for n in COUNTS
    }
    found = lab.needed(made)
    by_method = {
        method: {lab.prompts_of(n): one for (m, n), one in found.items() if m == method} for method, _ in found
    }
    lab.show(report(by_method, conditions(lab)))


if __name__ == "__main__":
    script(main)
