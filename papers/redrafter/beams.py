"""Tables 4 and 5: beam width by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paceline_lab import Summary
from papers.driver import Given
from papers.lab import Lab
from papers.redrafter.heads import rates, shown, spec, with_head
from papers.report import Claim, Report, Table, Way
from papers.speeds import best, brings, in_all, overall, per_request, per_round, with_interval, written
from papers.unispec.methods import filling

WIDTHS, BATCHES = (1, 2, 4, 8), (1, 2, 4)
TABLE5: Mapping[int, Sequence[float]] = {
    1: (62.55, 73.32, 80.47, 88.31, 100.16, 104.51, 110.64),
    2: (58.56, 70.25, 75.77, 86.64, 99.45, 107.52, 111.42),
    4: (57.51, 67.42, 74.77, 81.95, 97.13, 99.11, 85.23),
    8: (53.14, 60.48, 69.49, 81.14, 83.44, 73.41, 54.19),
    10: (53.61, 58.79, 66.29, 71.55, 73.57, 65.31, 44.23),
    20: (45.16, 49.05, 57.35, 53.87, 48.76, 35.66, 23.28),
    40: (32.69, 33.59, 36.68, 34.33, 26.43, 19.15, 12.09),
    80: (18.94, 20.45, 19.65),
}
"""Tokens a second of a request, by batch size; of widths 1, 2, 4 and so on to 64. The rest of 80 was out of memory."""
PAPER_WIDTHS = 1, 2, 4, 8, 16, 32, 64
OUT_OF_MEMORY = "out of memory"
Runs = Mapping[int, Summary]
"""By batch size."""


def raced(lab: Lab, entries: Mapping[int, str], batch: int) -> Summary | None:
    """A race of all widths; without the widest ones where memory does not suffice."""
    limit, left = filling(lab.given.limit, batch), dict(entries)
    while left:
        name = f"batch {batch}" + ("" if len(left) == len(entries) else f" to {max(left)} wide")
        how: dict[str, Any] = {"batch": batch, "limit": limit, "ignore_eos": True}
        if (run := lab.race(name, left.values(), **how)) is not None:
            return run
        if "memory" not in lab.missing[name].lower():
            return None
        lab.missing[f"{max(left)} wide at batch {batch}"] = lab.missing.pop(name)
        left.pop(max(left))
    return None


def table5(runs: Runs, entries: Mapping[int, str]) -> Table:
    head = ["texts at a time", "plain", "in all"]
    for width in entries:
        head += [f"{width} wide", "in all"]
    rows = list[Sequence[str]]()
    for batch, run in runs.items():
        row = [str(batch)]
        for entry in (run.base, *entries.values()):
            there = entry in run.entries
            row += [written(of(run, entry), ".1f") if there else OUT_OF_MEMORY for of in (per_request, in_all)]
        rows += [row, *paper_row(batch, entries)]
    return head, rows


def paper_row(batch: int, widths: Iterable[int]) -> Iterator[Sequence[str]]:
    """The paper's numbers of these widths, where it has this batch size."""
    if batch in TABLE5:
        known, row = dict(zip(PAPER_WIDTHS, TABLE5[batch], strict=False)), [f"{batch}  paper", "", ""]
        for width in widths:
            there = width in known
            without = OUT_OF_MEMORY if width in PAPER_WIDTHS else ""
            row += [f"{known[width]:.1f}", f"{known[width] * batch:.1f}"] if there else [without] * 2
        yield row


def table4(run: Summary, entries: Mapping[int, str]) -> Table:
    """Single texts."""
    rows = [
        (str(width), with_interval(overall(run, e)), written(per_round(run, e)), written(in_all(run, e), ".1f"))
        for width, e in entries.items()
        if e in run.entries
    ]
    return ("beam width, one text", "x plain [95%]", "tokens/round", "tokens/s"), rows


def claims(runs: Runs, entries: Mapping[int, str]) -> list[Claim]:
    (small, first), (large, last) = min(runs.items()), max(runs.items())
    there = [width for width, entry in entries.items() if entry in first.entries]
    found = list[Claim]()
    if len(there) > 1:
        one, two = entries[there[-1]], entries[there[0]]
        claim = f"wider beams bring more tokens a round ({there[-1]} against {there[0]})"
        found.append(brings(first, one, two, claim, "with every width of Table 4", Way.ABOVE))
    if large > small:
        both = [w for w in there if entries[w] in last.entries]
        widths = [best({w: of(run, entries[w]) for w in both}) for run, of in ((first, per_request), (last, in_all))]
        ours = f"{widths[0]} of {both[-1]} for one of {small}, {widths[1]} for all of {large}"
        claim = "the best width for one request is larger than that for all of a large batch"
        found.append(Claim(claim, "64 for one of 1 or 2, 2 for all of 80", ours, widths[0] > widths[1]))
        speeds = [max(in_all(run, entries[w]) for w in both) for run in (last, first)]
        ours = f"{speeds[0]:.1f} against {speeds[1]:.1f} tokens/s"
        claim = f"all of {large} texts come faster together than {small}"
        found.append(Claim(claim, "1636.4 of 80 against 110.6 of 1", ours, speeds[0] > speeds[1]))
    return found


def report(runs: Runs, entries: Mapping[int, str]) -> Report:
    """``entries`` by width."""
    tables = [table5(runs, entries)] + ([table4(runs[1], entries)] if 1 in runs else [])
    names = {"plain": "plain", **{f"{width} wide": entry for width, entry in entries.items()}}
    said = "one request: from its first token to its last; in all: while every text of the batch has its first token"
    title = "ReDrafter, Tables 4 and 5: beam width and batch size"
    return Report(title, tables, claims(runs, entries), [said], rates(runs, names))


def beams(given: Given) -> Report:
    """Tables 4 and 5: beam width by batch size: tokens per second of a request and of all together, speed-up,
    tokens/round.

    Table 4 is the column of single texts, with speed-up and tokens a round; the paper measured it with MLX, this item
    on your device. A batch for which memory does not suffice is written again without the widest beams. Texts of a
    batch are written to their full length, so that no batch empties.
    """
    lab = with_head(given)
    entries = {width: spec(given, width, given.length) for width in sorted(set(given.width))}
    runs = lab.needed({batch: raced(lab, entries, batch) for batch in sorted(set(given.batch))}, "measured")
    return shown(lab, report(runs, entries), "the paper's Table 4 is at 0, and Table 5 does not say")
