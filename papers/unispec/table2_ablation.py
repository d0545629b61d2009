"""Table 2: UniSpec without calibration, without score estimation, without its tree expansion.

    python -m papers.unispec.table2_ablation

Without calibration it drafts 100 nodes, ten for each of ten levels; the paper does not state its size. Without tree
expansion it has neither the next-next candidates nor the threshold. The paper's numbers are those of MT-Bench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Calibration, Summary
from papers.common import Report, Way, script
from papers.unispec.common import Lab, at, brings, faster, parser, size_notes, sized, with_options
from papers.unispec.tables import beside, by, conditions, of_run, remarks

TASKS = "mt_bench", "code"
RIVALS = "spectra:paper", "recycling:paper"
UNCALIBRATED = 100
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
        faster(
            run,
            specs[name],
            whole,
            f"{name}, it is slower",
            f"{paper:.2f}x against {WHOLE:.2f}x on MT-Bench",
            Way.BELOW,
        )
        for name, paper in PAPER.items()
    ]
    tokens = "2.58 on MT-Bench"
    claims += [
        brings(run, off, whole, "without calibration, rounds bring more", f"2.76 against {tokens}", Way.ABOVE),
        brings(run, tree, whole, "without tree expansion, rounds bring less", f"2.20 against {tokens}", Way.BELOW),
    ]
    names = {spec: f"{spec}  ({name})" for name, spec in specs.items()}
    return Report("UniSpec, Table 2: ablation", [by("task", of_run(run, names))], claims, [*notes, *remarks([run])])


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench", tasks=[*TASKS])
    lab = Lab(options.parse_args())
    specs = entries(lab.method, lab.size())
    runs = lab.races({"run": {"methods": [*RIVALS, *specs.values(), *beside(lab)]}})
    lab.show(report(runs["run"], specs, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
