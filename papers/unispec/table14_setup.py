"""Table 14: how calibration fits and searches, with what comes of each part here.

python -m papers.unispec.table14_setup --svg fits.svg
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from papers.common import Claim, Curve, Panel, Report, script
from papers.unispec.calibration import (
    DEGREE,
    KNOTS,
    POWER,
    ROUNDS,
    SEED,
    TOLERANCE,
    Fit,
    Floats,
    Runs,
    cubic,
    evolved_size,
    speed,
    spline,
)
from papers.unispec.common import Lab, parser
from papers.unispec.tables import conditions


def explained(fit: Fit, places: Floats, values: Sequence[float]) -> str:
    """R squared."""
    y = np.array(values)
    rest, whole = float(((y - fit(places)) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return f"R² {1 - rest / whole:.3f} over {len(y)} runs" if whole > 0 else f"level over {len(y)} runs"


def report(found: Runs, method: str, notes: Sequence[str] = ()) -> Report:
    places, least, most = np.array(found.sizes, np.float64), found.sizes[0], found.sizes[-1]
    tokens, seconds = cubic(found.sizes, found.tokens), spline(found.sizes, found.seconds)
    curve, evolved = speed(tokens, seconds), evolved_size(tokens, seconds, least, most)
    best = curve(np.array([evolved, float(found.nodes)])).tolist()
    rows = [
        ("f_accept(g)", f"polynomial of degree {POWER}, least squares", explained(tokens, places, found.tokens)),
        ("f_time(g)", f"B-spline of degree {DEGREE}, {KNOTS} uniform knots", explained(seconds, places, found.seconds)),
        ("f_speed(g)", "f_accept(g) / f_time(g)", f"{best[1]:.1f} tokens/s at g*"),
        ("optimization", "differential evolution, -f_speed(g) minimized", f"g = {evolved:.2f}"),
        ("solver", f"seed={SEED}, maxiter={ROUNDS}, atol=tol={TOLERANCE:g}", f"bounds {least} and {most}"),
        ("output", "g* of most throughput, of all whole numbers", f"g* = {found.nodes}"),
    ]
    near = "differential evolution and a look at every whole number find the same size"
    ours = f"{evolved:.2f} and {found.nodes}"
    claims = [Claim(near, "g* is found by differential evolution", ours, abs(evolved - found.nodes) <= 1)]
    every = np.linspace(least, most, 200)
    panels = [
        Panel(
            title,
            "nodes",
            up,
            [Curve("fit", drawn(every, fit(every)), marks=False), Curve("runs", drawn(places, y), 2, dots=True)],
        )
        for title, up, fit, y in (
            ("Tokens per round", "tokens/round", tokens, np.array(found.tokens)),
            ("Forward time", "s", seconds, np.array(found.seconds)),
            ("Throughput", "tokens/s", curve, np.array(found.tokens) / np.array(found.seconds)),
        )
    ]
    head = ("", "configuration", f"here, {method}")
    return Report("UniSpec, Table 14: how calibration fits and searches", [(head, rows)], claims, notes, panels)


def drawn(x: Floats, y: Floats) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    found = lab.needed({lab.method: lab.calibrate(lab.method, procedure="paper")})[lab.method]
    if not isinstance(found, Runs):
        raise ValueError(f"{lab.out} has a calibration of {lab.method} by another procedure; give another --out")
    lab.show(report(found, lab.method, conditions(lab)))


if __name__ == "__main__":
    script(main)
