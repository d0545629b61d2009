"""Figure 7: beam width by beam length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline_lab import Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.redrafter.heads import shown, spec, with_head
from papers.report import Claim, Report, Table, Way
from papers.speeds import best, brings, in_all, overall, per_round, with_interval, written

WIDTHS, LENGTHS = (1, 2, 4), (2, 3, 4, 5)
TRAINED = 5
"""Tokens that the paper's heads are trained to predict."""
Cells = Mapping[tuple[int, int], str]
"""Entries by width and length."""


def sides(cells: Cells) -> tuple[list[int], list[int]]:
    return sorted({width for width, _ in cells}), sorted({length for _, length in cells})


def grid(run: Summary, cells: Cells) -> Table:
    """A row of every width; of every length speed-up, tokens a second and tokens a round."""
    widths, lengths = sides(cells)
    head = ["beam width", *(f"length {length}: x plain [95%], tokens/s, tokens/round" for length in lengths)]
    return head, [[str(width), *(_cell(run, cells[width, length]) for length in lengths)] for width in widths]


def _cell(run: Summary, entry: str) -> str:
    speed, rate = with_interval(overall(run, entry)), written(in_all(run, entry), ".1f")
    return f"{speed}, {rate}, {written(per_round(run, entry))}"


def claims(run: Summary, cells: Cells, trained: int = TRAINED) -> list[Claim]:
    (narrow, *_, wide), (short, *_, long) = ([*side, side[-1]] for side in sides(cells))
    found = list[Claim]()
    if wide > narrow:
        claim = f"{wide} beams bring more tokens a round than {narrow}"
        one, two = cells[wide, long], cells[narrow, long]
        found.append(brings(run, one, two, claim, "the more the wider (Table 4)", Way.ABOVE))
    if long > short:
        width, length = best({cell: in_all(run, entry) for cell, entry in cells.items()})
        ours = f"{width} wide and {length} long, of lengths {short} to {long}"
        claim = "the fastest draft is neither the shortest nor longer than the head was trained for"
        found.append(Claim(claim, "1 or 3 wide and 4 or 5 long, trained for 5", ours, short < length <= trained))
    return found


def panel(up: str, cells: Cells, of: Callable[[str], float]) -> Panel:
    widths, lengths = sides(cells)
    lines, places = {f"{width} wide": width for width in widths}, {length: length for length in lengths}
    return Panel(up, "beam length", up, curves(lines, places, lambda length, width: of(cells[width, length])))


def report(run: Summary, cells: Cells, trained: int = TRAINED) -> Report:
    panels = [
        panel("tokens/s", cells, lambda entry: in_all(run, entry)),
        panel("x plain", cells, lambda entry: overall(run, entry).value),
    ]
    notes = [f"plain decoding: {written(in_all(run, run.base), '.1f')} tokens/s"]
    title = "ReDrafter, Figure 7: beam width and beam length"
    return Report(title, [grid(run, cells)], claims(run, cells, trained), notes, panels)


def shape(given: Given) -> Report:
    """Figure 7: tokens per second and speed-up by beam width and beam length, one text at a time.

    The paper's picture is of two Apple chips. A length counts drafted tokens; the public code of ReDrafter also counts
    the token before them, which the target has chosen already.
    """
    lab = with_head(given)
    cells = {(w, n): spec(given, w, n) for w in sorted(set(given.width)) for n in sorted(set(given.length))}
    paper = "the paper's picture does not say. On A100 and H100 its best width is 50 or more"
    return shown(lab, report(lab.run(cells.values()), cells, given.trained), paper)
