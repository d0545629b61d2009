"""Table 6: methods at temperatures 0 and 1, by task.

    python -m papers.unispec.table6_temperature

At temperature 1 the methods as published rank drafts by probability alone; `noise=shared` is the same method with the
noise that the target will choose by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Between, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import Lab, faster, pairwise, parser, size_notes, sized, speed_up, with_interval
from papers.unispec.tables import beside, by, of_runs, published, remarks, shared

TEMPERATURES = "T=0", "T=1.0"
RIVALS = "lookahead:paper", "spectra:paper", "recycling:paper"
PAPER = {"T=0": "2.13x against 1.97x of Token Recycling", "T=1.0": "1.85x against 1.78x of Token Recycling"}


def best_rival(run: Summary) -> str:
    return max((one for one in RIVALS if one in run.entries), key=lambda entry: speed_up(run, entry).value)


def report(runs: Mapping[str, Summary], method: str, entry: str, notes: Sequence[str] = ()) -> Report:
    claims, noisy = list[Claim](), entry.replace(method, shared(method), 1)
    if len(runs) == len(TEMPERATURES):
        cold, warm = (runs[name] for name in TEMPERATURES)
        claim = f"{method} gains less at temperature 1 than at 0"
        moved = next(one for one in Between(cold.run, warm.run).findings if one.entry == entry and one.task is None)
        two, one = with_interval(speed_up(warm, entry)), with_interval(speed_up(cold, entry))
        ours = f"{two} against {one}{pairwise(moved.ratio)}"
        claims.append(Claim.of(claim, "1.85x against 2.13x", ours, Way.BELOW, moved.ratio))
    for name, run in runs.items():
        best = best_rival(run)
        claim = f"at {name} {method} is faster than the best of the others"
        claims.append(faster(run, entry, best, claim, PAPER[name], Way.ABOVE, f" of {best}"))
        if noisy in run.entries:
            claims.append(faster(run, noisy, entry, f"at {name} shared noise adds to {method}", "", Way.ABOVE))
    notes = [
        *notes,
        "a model that loops when it is greedy flatters methods that look things up",
        *remarks(runs.values()),
    ]
    return Report("UniSpec, Table 6: temperature", [by("task", of_runs(runs))], claims, notes)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench")
    lab = Lab(options.parse_args())
    entry = sized(lab.method, lab.size())
    stages = {}
    for name in TEMPERATURES:
        heat = float(name[2:])
        noisy = [shared(rival) for rival in RIVALS] if heat and published(lab.method) else []
        stages[name] = {"methods": [*RIVALS, *noisy, entry, *beside(lab, heat)], "temperature": heat}
    lab.show(report(lab.races(stages), lab.method, entry, size_notes(lab.size())))


if __name__ == "__main__":
    script(main)
