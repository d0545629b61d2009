"""Table 17: other methods as published and at their calibrated sizes, by task, greedy as in the paper.

    python -m papers.unispec.table17_rivals

The paper's procedure calibrates each on runs of 1 to 128 nodes; windows count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline_lab import Calibration, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.calibration import MOST, even
from papers.unispec.common import Lab, at, brings, faster, parser, size_notes, sized, speed_up
from papers.unispec.tables import beside, by, conditions, of_run, remarks

TASKS = "mt_bench", "code"
SIZES = {"lookahead:paper": 120, "spectra:paper": 60, "recycling:paper": 80}
"""As published."""
PAPER = {
    "lookahead:paper": ("60 nodes, 1.40x and 1.44x against 1.15x and 1.11x", "1.85 and 1.98 against 2.00 and 2.01"),
    "spectra:paper": ("30 nodes, 1.47x and 1.66x against 1.25x and 1.32x", "1.77 and 1.76 against 1.96 and 1.98"),
    "recycling:paper": ("53 nodes, 1.78x and 1.75x against 1.51x and 1.47x", "2.33 and 2.41 against 2.57 and 2.68"),
}
"""MT-Bench and code: speed-ups, and tokens per round."""


def unpaid(claim: Claim) -> Claim:
    """Towards no drafts at all every method that does not pay gets faster and brings less, which is not what the paper
    found."""
    return replace(claim, ours=f"{claim.ours}: neither is faster than plain decoding", agrees=None)


def report(run: Summary, calibrated: Mapping[str, Calibration], notes: Sequence[str] = ()) -> Report:
    claims, names = list[Claim](), dict[str, str]()
    for method, found in calibrated.items():
        (speeds, tokens), own, best = PAPER[method], at(method, SIZES[method]), sized(method, found)
        names |= {own: f"{method}, {SIZES[method]} nodes", best: f"{method}, {found.nodes} nodes (calibrated)"}
        claim, nodes = f"{method} is faster at its calibrated size than as published", f" with {found.nodes} nodes"
        gains = faster(run, best, own, claim, speeds, Way.ABOVE, nodes)
        pays = any(speed_up(run, entry).value > 1 for entry in (best, own))
        fewer = brings(run, best, own, f"and its rounds bring less, {method}", tokens, Way.BELOW)
        claims += [gains, fewer] if pays else [unpaid(gains), unpaid(fewer)]
    table = by("task", of_run(run, names))
    return Report("UniSpec, Table 17: rivals at calibrated sizes", [table], claims, [*notes, *remarks([run])])


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench", tasks=[*TASKS], temperature=0.0)
    lab = Lab(given := options.parse_args())
    made = {
        method: lab.calibrate(method, method, sizes=even(1, max(MOST, own), given.calibration_runs))
        for method, own in SIZES.items()
    }
    calibrated = lab.needed(made)
    rivals = [
        name for method, found in calibrated.items() for name in (at(method, SIZES[method]), sized(method, found))
    ]
    runs = lab.races({"run": {"methods": [*rivals, sized(lab.method, lab.size()), *beside(lab)]}})
    notes = [f"{method}: {note}" for method, found in calibrated.items() for note in size_notes(found)]
    lab.show(report(runs["run"], calibrated, [*notes, *conditions(lab)]))


if __name__ == "__main__":
    script(main)
