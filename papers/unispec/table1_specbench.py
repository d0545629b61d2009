"""Tables 1 and 5: Spec-Bench, speed-up and tokens per round by task and by language, and their means.

    python -m papers.unispec.table1_specbench [--rival recycling:paper ...] [--planner adaptive]
    python -m papers.unispec.table1_specbench --suite multi-spec-bench --langs de,es,fr,ja,vi,zh

Beside it stand UniSpec against Token Recycling, and `auto` against the best of the others, in every task. Runs of
several models and machines are joined by `papers.unispec.main`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline_lab import Estimate, Summary
from papers.common import CHANCE, UNBOUNDED, Claim, Report, script
from papers.unispec.common import Lab, against, pairwise, parser, ratio, size_notes, sized, speed_up, with_interval
from papers.unispec.tables import AUTO, RIVALS, beside, by, conditions, of_run, remarks


def everywhere(run: Summary, entry: str, rival: str) -> Claim:
    """In how many tasks the paper's method is faster than another."""
    ratios = {task: ratio(run, entry, rival, task) for task in run.tasks}
    lost = [task for task, one in ratios.items() if not one.value > 1]
    known = all(one.excludes(1) for one in ratios.values()) if not lost else any(ratios[t].high < 1 for t in lost)
    whole = f"{against(run, entry, rival)}{pairwise(ratio(run, entry, rival))}"
    ours = f"in {len(ratios) - len(lost)} of {len(ratios)} tasks, {whole}"
    doubt = "" if known else CHANCE if all(one.bounded for one in ratios.values()) else UNBOUNDED
    return Claim("UniSpec is faster than Token Recycling", "in every task", ours, not lost, doubt)


def sentences(run: Summary) -> Iterator[str]:
    """`auto` against the best of the others, task by task."""
    entries = [entry for entry in run.entries[1:] if entry.partition("@")[0] != AUTO]
    if AUTO not in run.entries or not entries:
        return
    gains = dict[str, Estimate]()
    for task in run.tasks:
        best = max(entries, key=lambda entry: speed_up(run, entry, task).value)
        gains[task] = ratio(run, AUTO, best, task)
        yield f"{task}: auto over {best}, the best other method, {with_interval(gains[task])}"
    whole = float(np.exp(np.mean([np.log(one.value) for one in gains.values()])))
    ahead = sum(one.value > 1 for one in gains.values())
    yield f"auto is {whole:.3f}x the best other method of each task on average, and ahead in {ahead} of {len(gains)}"


def report(run: Summary, entry: str, notes: Sequence[str] = ()) -> Report:
    rival = next((one for one in run.entries if one.partition("@")[0] == "recycling:paper"), None)
    claims = []
    if rival is not None:
        claims.append(everywhere(run, entry, rival))
    tables = [by("task", of_run(run)), *([by("language", of_run(run))] if len(run.languages) > 1 else [])]
    return Report("UniSpec, Tables 1 and 5: Spec-Bench", tables, claims, [*notes, *sentences(run), *remarks([run])])


def main() -> None:
    options = parser(__doc__)
    text = "other methods (the paper's)"
    options.add_argument("--rival", dest="rivals", nargs="+", default=RIVALS, metavar="SPEC", help=text)
    options.add_argument("--planner", metavar="P", help="one planner for all methods, --method included (none)")
    options.set_defaults(suite="spec-bench")
    lab = Lab(given := options.parse_args())
    found = None if given.planner else lab.size()
    entry = sized(lab.method, found)
    methods = [*given.rivals, entry, *([AUTO] if given.planner else beside(lab))]
    run = lab.races({"run": {"methods": methods, "planner": given.planner}})["run"]
    lab.show(report(run, entry, [*size_notes(found), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
