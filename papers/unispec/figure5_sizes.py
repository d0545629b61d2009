"""Figure 5: the calibrated size by testbed and model.

    python -m papers.unispec.figure5_sizes --svg sizes.svg
    python -m papers.unispec.figure5_sizes --runs S1/Llama=DIR S1/Qwen=DIR S2/Llama=DIR --svg sizes.svg

The first calibrates here, with one and two threads, in bfloat16 and float32: settings of one machine. The second reads
what scripts kept in their folders (`--out`) on several machines or with several models: TESTBED=DIR, or
TESTBED/MODEL=DIR where a testbed has several models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Calibration
from papers.common import LEVEL, UNBOUNDED, Claim, Curve, Panel, Report, script
from papers.unispec.calibration import named
from papers.unispec.common import Lab, parser
from papers.unispec.figure6_samples import HEAD, SECONDS, lost, row, speeds
from papers.unispec.tables import conditions

THREADS, TYPES = (1, 2), ("bfloat16", "float32")
Settings = Mapping[tuple[str, str], Calibration]
"""By testbed and model."""


def differs(calibrated: Sequence[Calibration]) -> Claim:
    """The sizes of any two calibrations may lie apart by chance; it matters where one's size is slow on the other."""
    low, high = min(one.nodes for one in calibrated), max(one.nodes for one in calibrated)
    most = max(lost(other, one) for one in calibrated for other in calibrated)
    ours = f"it lies between {low} and {high} nodes, and a size of elsewhere loses up to {most:.0%} of the throughput"
    paper = "it differs from device to device"
    return Claim("the best size is not the same everywhere", paper, ours, most > LEVEL, UNBOUNDED)


def report(calibrated: Settings, method: str, notes: Sequence[str] = ()) -> Report:
    claims = [differs(list(calibrated.values()))] if len(calibrated) > 1 else []
    testbeds, models = (list(dict.fromkeys(names)) for names in zip(*calibrated, strict=True))
    best = [
        Curve(
            model,
            [
                (float(n), float(calibrated[at].nodes))
                for n, t in enumerate(testbeds)
                if (at := (t, model)) in calibrated
            ],
            number,
        )
        for number, model in enumerate(models, start=1)
    ]
    lines = [
        Curve(label(*at, models), list(zip(map(float, one.sizes), speeds(one), strict=True)), number)
        for number, (at, one) in enumerate(calibrated.items(), start=1)
    ]
    panels = [
        Panel("Calibrated size", "testbed", "g*", best, names=testbeds),
        Panel("Expected tokens/s by draft size", "nodes", "tokens/s", lines),
    ]
    rows = [row(label(*at, models), one) for at, one in calibrated.items()]
    return Report(f"UniSpec, Figure 5: calibrated sizes of {method}", [(HEAD, rows)], claims, [SECONDS, *notes], panels)


def label(testbed: str, model: str, models: list[str]) -> str:
    return f"{testbed}, {model}" if len(models) > 1 else testbed


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", nargs="+", metavar="[NAME=]DIR", help="measure nothing, and join what was kept")
    given = options.parse_args()
    if given.runs:
        found = {placed(name, model): one for name, (model, one) in named(given.runs, given.method).items()}
        report(found, given.method).show(given)
        return
    lab = Lab(given)
    settings = {f"{dtype}, {n} thread{'s'[: n > 1]}": (dtype, n) for dtype in TYPES for n in THREADS}
    made = {name: lab.calibrate(name, dtype=dtype, threads=n) for name, (dtype, n) in settings.items()}
    lab.show(report({(name, given.model): one for name, one in lab.needed(made).items()}, lab.method, conditions(lab)))


def placed(name: str, model: str) -> tuple[str, str]:
    """Testbed and model; the model that is kept with the calibration where none is named."""
    testbed, _, own = name.partition("/")
    return testbed, own or model


if __name__ == "__main__":
    script(main)
