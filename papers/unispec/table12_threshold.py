"""Table 12: thresholds of the draft tree from 0 to 0.2.

python -m papers.unispec.table12_threshold
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.bench import Summary
from papers.common import Report, Way, script
from papers.unispec.common import HEAD, Lab, faster, fastest, parser, rows, size_notes, sized, with_options

THRESHOLDS = "0", "0.01", "0.025", "0.05", "0.1", "0.2"


def report(run: Summary, specs: Mapping[str, str], notes: Sequence[str] = ()) -> Report:
    """``specs`` by threshold."""
    none, mild, most = specs["0"], specs["0.05"], specs["0.2"]
    names = {entry: f"r = {r}" for r, entry in specs.items()}
    claims = [
        faster(run, mild, none, "a mild threshold (0.05) is faster than none", "1.99x against 1.90x", Way.ABOVE),
        faster(run, most, mild, "the largest threshold (0.2) is slower than 0.05", "1.91x against 1.99x", Way.BELOW),
    ]
    notes = [*notes, f"fastest here: {names[fastest(run, specs.values())]}; in the paper r = 0.05"]
    return Report("UniSpec, Table 12: confidence threshold", [(HEAD, rows(run, names))], claims, notes)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    specs = {r: sized(with_options(lab.method, f"threshold={r}"), lab.size()) for r in THRESHOLDS}
    runs = lab.races({"run": {"methods": specs.values()}})
    lab.show(report(runs["run"], specs, size_notes(lab.size())))


if __name__ == "__main__":
    script(main)
