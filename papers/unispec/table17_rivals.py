"""Table 17: other methods at their own and at their calibrated sizes.

python -m papers.unispec.table17_rivals
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.bench import Calibration, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import HEAD, RIVALS, Lab, brings, faster, parser, rows, sized

PAPER = {
    "lookahead": ("1.40x against 1.15x", "1.85 against 2.00"),
    "spectra": ("1.47x against 1.25x", "1.77 against 1.96"),
    "recycling": ("1.78x against 1.51x", "2.33 against 2.57"),
}


def report(run: Summary, calibrated: Mapping[str, Calibration]) -> Report:
    claims = list[Claim]()
    for method, found in calibrated.items():
        best, (speeds, tokens) = sized(method, found), PAPER[method]
        claim, nodes = f"{method} is faster at its calibrated size than at its own", f" with {found.nodes} nodes"
        claims.append(faster(run, best, method, claim, speeds, Way.ABOVE, nodes))
        claims.append(brings(run, best, method, f"and its rounds bring less, {method}", tokens, Way.BELOW))
    return Report("UniSpec, Table 17: rivals at calibrated sizes", [(HEAD, rows(run))], claims)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    made = {method: lab.calibrate(method, method) for method in RIVALS}
    calibrated = {method: found for method, found in made.items() if found is not None}
    methods = [name for method in RIVALS for name in (method, sized(method, made[method]))]
    runs = lab.races({"run": {"methods": methods}})
    lab.show(report(runs["run"], calibrated))


if __name__ == "__main__":
    script(main)
