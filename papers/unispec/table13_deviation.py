"""Table 13: sizes up to 15 nodes beside the calibrated one, by task.

python -m papers.unispec.table13_deviation
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.common import Lab, at, faster, parser, size_notes, speed_up
from papers.unispec.tables import beside, by, conditions, of_run, remarks

DEVIATIONS = -15, -10, -5, 0, 5, 10, 15


def around(best: int) -> list[int]:
    return sorted({best, *(best + moved for moved in DEVIATIONS if best + moved >= 1)})


def report(run: Summary, method: str, best: int, notes: Sequence[str] = ()) -> Report:
    sizes, claims = around(best), list[Claim]()
    for size, where, paper in ((sizes[0], "smallest", "1.95x at -15"), (sizes[-1], "largest", "1.95x at +15")):
        if size != best:
            claim = f"the {where} size of the window ({size - best:+d}) is slower than the calibrated one"
            claims.append(faster(run, at(method, size), at(method, best), claim, f"{paper} against 2.13x", Way.BELOW))
    if len(sizes) < len(DEVIATIONS):
        left = len(DEVIATIONS) - len(sizes)
        notes = [*notes, f"{left} sizes of the window are below one node and left out"]
    names = {at(method, size): f"g = {size} ({size - best:+d})" for size in sizes}
    line = Curve(method, [(float(size), speed_up(run, at(method, size)).value) for size in sizes])
    panels = [Panel("Speed-up by draft size", "nodes", "x plain", [line])]
    table = by("task", of_run(run, names))
    return Report("UniSpec, Table 13: deviation of the size", [table], claims, [*notes, *remarks([run])], panels)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench")
    lab = Lab(options.parse_args())
    best = lab.size().nodes
    runs = lab.races({"run": {"methods": [*(at(lab.method, size) for size in around(best)), *beside(lab)]}})
    lab.show(report(runs["run"], lab.method, best, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
