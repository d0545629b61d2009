"""Table 6: methods at temperatures 0 and 1.

python -m papers.unispec.table6_temperature
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.bench import Between, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import (
    HEAD,
    RIVALS,
    Lab,
    faster,
    parser,
    rows_of,
    size_notes,
    sized,
    speed_up,
    told,
)

TEMPERATURES = "T=0", "T=1.0"
PAPER = {"T=0": "2.13x against 1.97x of recycling", "T=1.0": "1.85x against 1.78x of recycling"}


def best_rival(run: Summary) -> str:
    return max(RIVALS, key=lambda entry: speed_up(run, entry).value)


def report(runs: Mapping[str, Summary], method: str, entry: str, notes: Sequence[str] = ()) -> Report:
    claims = []
    if len(runs) == len(TEMPERATURES):
        cold, warm = (runs[name] for name in TEMPERATURES)
        ours = f"{told(speed_up(warm, entry))} against {told(speed_up(cold, entry))}"
        claim = f"{method} gains less at temperature 1 than at 0"
        moved = next(one for one in Between(cold.run, warm.run).findings if one.entry == entry and one.task is None)
        claims.append(Claim.of(claim, "1.85x against 2.13x", ours, Way.BELOW, moved.ratio))
    for name, run in runs.items():
        best = best_rival(run)
        claim = f"at {name} {method} is faster than the best of the others"
        claims.append(faster(run, entry, best, claim, PAPER[name], Way.ABOVE, f" of {best}"))
    notes = [*notes, "a model that loops when it is greedy flatters methods that look things up"]
    return Report("UniSpec, Table 6: temperature", [(HEAD, rows_of(runs))], claims, notes)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    entry = sized(lab.method, lab.size())
    methods = [*RIVALS, entry, "auto"]
    runs = lab.races({name: {"methods": methods, "temperature": float(name[2:])} for name in TEMPERATURES})
    lab.show(report(runs, lab.method, entry, size_notes(lab.size())))


if __name__ == "__main__":
    script(main)
