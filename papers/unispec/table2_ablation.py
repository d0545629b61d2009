"""Table 2: UniSpec without calibration, without scores, without its tree expansion.

python -m papers.unispec.table2_ablation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.bench import Calibration, Summary
from papers.common import Report, Way, script
from papers.unispec.common import HEAD, Lab, at, brings, faster, parser, rows, size_notes, sized, with_options

UNCALIBRATED = 100
"""Nodes without calibration: ten for each of ten levels, what the paper's tree may hold."""
WITHOUT = {"without score estimation": "scores=false", "without tree expansion": "next=none,threshold=0"}
"""Parts that can be switched off, and how."""
PAPER = {"without calibration": 1.61, "without score estimation": 1.48, "without tree expansion": 1.66}
WHOLE = 1.96


def entries(method: str, found: Calibration) -> dict[str, str]:
    """Name -> spec."""
    parts = {name: sized(with_options(method, option), found) for name, option in WITHOUT.items()}
    return {"whole": sized(method, found), "without calibration": at(method, UNCALIBRATED), **parts}


def report(run: Summary, specs: Mapping[str, str], notes: Sequence[str] = ()) -> Report:
    whole, off, tree = specs["whole"], specs["without calibration"], specs["without tree expansion"]
    claims = [
        faster(run, specs[name], whole, f"{name}, it is slower", f"{paper:.2f}x against {WHOLE:.2f}x", Way.BELOW)
        for name, paper in PAPER.items()
    ]
    claims += [
        brings(run, off, whole, "without calibration, rounds bring more", "2.76 against 2.58", Way.ABOVE),
        brings(run, tree, whole, "without tree expansion, rounds bring less", "2.20 against 2.58", Way.BELOW),
    ]
    names = {spec: name for name, spec in specs.items()}
    return Report("UniSpec, Table 2: ablation", [(HEAD, rows(run, names))], claims, notes)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    specs = entries(lab.method, lab.size())
    runs = lab.races({"run": {"methods": [*specs.values(), "recycling"]}})
    lab.show(report(runs["run"], specs, size_notes(lab.size())))


if __name__ == "__main__":
    script(main)
