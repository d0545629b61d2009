"""Figure 5: the calibrated size with one and two threads, in bfloat16 and float32.

    python -m papers.unispec.figure5_sizes --svg sizes.svg

The paper's devices are four graphics cards; these are settings of one machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.bench import Calibration, Estimate
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.common import Lab, parser
from papers.unispec.figure6_samples import HEAD, row, speeds

THREADS, TYPES = (1, 2), ("bfloat16", "float32")


def report(calibrated: Mapping[str, Calibration]) -> Report:
    low, high = (of(one.nodes for one in calibrated.values()) for of in (min, max))
    ours, ratio = f"it lies between {low} and {high} nodes", Estimate(high / max(low, 1))
    claim, paper = "the best size is not the same everywhere", "it differs from device to device"
    claims = [Claim.of(claim, paper, ours, Way.ABOVE, ratio)]
    lines = [
        Curve(label, list(zip(map(float, one.sizes), speeds(one), strict=True)), number)
        for number, (label, one) in enumerate(calibrated.items(), start=1)
    ]
    panels = [Panel("Expected tokens/s by draft size", "nodes", "tokens/s", lines)]
    rows = [row(label, one) for label, one in calibrated.items()]
    return Report("UniSpec, Figure 5: calibrated sizes", [(HEAD, rows)], claims, panels=panels)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    named = {f"{dtype}, {n} thread{'s'[: n > 1]}": (dtype, n) for dtype in TYPES for n in THREADS}
    made = {label: lab.calibrate(label, dtype=dtype, threads=n) for label, (dtype, n) in named.items()}
    lab.show(report(lab.needed(made)))


if __name__ == "__main__":
    script(main)
