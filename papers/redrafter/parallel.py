"""Table 3: speed by the number of processes that compute the model (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline_lab import Summary, launched, read_run
from papers.driver import Given
from papers.redrafter.heads import shown, spec, with_head
from papers.report import Claim, Report, Table, Way
from papers.speeds import in_all, overall, per_round, with_interval, written

WIDTH, LENGTH = 6, 5
TABLE3 = {
    "V 7B": ((323.12, 2.19), (373.27, 1.82), (403.87, 1.68)),
    "V 13B": ((198.64, 2.30), (251.55, 1.89), (312.79, 1.84)),
    "V 33B": ((97.50, 2.51), (137.47, 2.15), (171.11, 1.93)),
}
"""Tokens a second and speed-up with 1, 2 and 4 GPUs."""
RANKS = 1, 2, 4
"""Of the paper."""
NAME = "ranks-"
"""Of the folder of a run, before the number of its ranks."""


def table(runs: Mapping[int, Summary], entry: str) -> Table:
    head = ["", *(f"{ranks} processes: tokens/s, x plain [95%], tokens/round" for ranks in runs)]
    rows = [["here", *(_cell(run, entry) for run in runs.values())]]
    for model, cells in TABLE3.items():
        known = dict(zip(RANKS, cells, strict=True))
        rows.append([f"{model} (paper)", *("{:.1f}, {:.2f}".format(*known[n]) if n in known else "" for n in runs)])
    return head, rows


def _cell(run: Summary, entry: str) -> str:
    speed = with_interval(overall(run, entry))
    return f"{written(in_all(run, entry), '.1f')}, {speed}, {written(per_round(run, entry))}"


def claims(runs: Mapping[int, Summary], entry: str) -> list[Claim]:
    found = [
        Claim.of(
            f"it is faster than plain decoding with {ranks} processes",
            "1.68 to 2.51 times",
            with_interval(overall(run, entry)),
            Way.ABOVE,
            overall(run, entry),
        )
        for ranks, run in runs.items()
    ]
    (few, *_, many) = [*runs, *runs]
    if many > few:
        one, other = (overall(runs[ranks], entry) for ranks in (many, few))
        claim, ours = f"{many} processes gain less than {few}", f"{one.value:.2f} and {other.value:.2f}"
        found.append(Claim(claim, "1.68 to 1.93 with four, 2.19 to 2.51 with one", ours, one.value < other.value))
    return found


def kept(out: Path) -> dict[int, Summary]:
    """The runs of all numbers of processes so far."""
    numbers = sorted(int(folder.name.removeprefix(NAME)) for folder in out.glob(f"{NAME}*"))
    return {ranks: Summary(read_run(out / f"{NAME}{ranks}")) for ranks in numbers}


def parallel(given: Given) -> Report:
    """Table 3: speed by the number of processes that compute the model, one text at a time.

    Give the command once alone, and once for each other number of processes by torchrun, with the same --out; each
    shows all runs so far. The head drafts on the first process, while the others wait. In the paper it is divided, too.
    """
    lab = with_head(given)
    entry = spec(given, given.width, given.length)
    lab.races({launched(): {"methods": [entry], "temperature": given.temperature}}, NAME + "{}")
    runs = kept(lab.out)
    notes = ["processes on the cores of one machine share its memory, so more of them are no faster there"]
    report = Report("ReDrafter, Table 3: tensor parallelism", [table(runs, entry)], claims(runs, entry), notes)
    return shown(lab, report, "the paper's at temperature 1 on H100 GPUs", [given.temperature])
