"""Table 12: thresholds of the draft tree from 0 to 0.2, by task.

    python -m papers.unispec.table12_threshold

Where texts are sampled, the same thresholds stand there with the shared noise, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Calibration, Summary
from papers.common import Report, Way, script
from papers.unispec.common import (
    Lab,
    brings,
    faster,
    parser,
    size_notes,
    sized,
    speed_up,
    tokens_per_round,
    with_interval,
    with_options,
)
from papers.unispec.tables import beside, by, conditions, of_run, published, remarks, shared

THRESHOLDS = "0", "0.01", "0.025", "0.05", "0.1", "0.2"
SHARED = ", shared noise"


def entries(method: str, found: Calibration, noisy: bool) -> dict[str, str]:
    """Threshold -> spec, and the same with the shared noise."""
    kinds = {"": method, **({SHARED: shared(method)} if noisy else {})}
    return {
        f"{r}{more}": sized(with_options(spec, f"threshold={r}"), found)
        for more, spec in kinds.items()
        for r in THRESHOLDS
    }


def report(run: Summary, specs: Mapping[str, str], notes: Sequence[str] = ()) -> Report:
    """``specs`` by threshold."""
    none, mild, most = specs["0"], specs["0.05"], specs["0.2"]
    names = {entry: f"r = {r}" for r, entry in specs.items()}
    claims = [
        faster(run, mild, none, "a mild threshold (0.05) is faster than none", "1.99x against 1.90x", Way.ABOVE),
        brings(run, mild, none, "and its rounds bring more", "2.58 against 2.40 tokens (MT)", Way.ABOVE),
        faster(run, most, mild, "the largest threshold (0.2) is slower than 0.05", "1.91x against 1.99x", Way.BELOW),
    ]
    for more in ("", SHARED):
        kind = {r: entry for r, entry in specs.items() if r.endswith(SHARED) == bool(more)}
        if kind:
            r, best = max(kind.items(), key=lambda one: speed_up(run, one[1]).value)
            wide = max(kind, key=lambda one: tokens_per_round(run, kind[one]))
            brought = f"most tokens a round: r = {wide} ({tokens_per_round(run, kind[wide]):.2f})"
            second = "; in the paper r = 0.05 and 0.025" if not more else ""
            notes = [*notes, f"fastest here: r = {r} ({with_interval(speed_up(run, best))}), {brought}{second}"]
    table = by("task", of_run(run, names))
    return Report("UniSpec, Table 12: confidence threshold", [table], claims, [*notes, *remarks([run])])


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench")
    lab = Lab(options.parse_args())
    specs = entries(lab.method, lab.size(), published(lab.method) and lab.temperature > 0)
    runs = lab.races({"run": {"methods": [*specs.values(), *beside(lab, 0.0)]}})
    lab.show(report(runs["run"], specs, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
