"""Figure 7: tokens per second and speed-up by beam width and beam length, one text at a time.

    python -m papers.redrafter.shape --svg shape.svg
    python -m papers.redrafter.shape --model M --head FOLDER --width 1 2 3 4 --length 1 2 3 4 5 6

The paper's picture is of two Apple chips. A length counts drafted tokens; the public code of ReDrafter also counts the
token before them, which the target has chosen already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.redrafter.common import Lab, conditions, in_all, overall, parser, spec, with_method, with_suite, written
from papers.unispec.common import brings, number, with_interval
from papers.unispec.tables import remarks

WIDTHS, LENGTHS = (1, 2, 4), (2, 3, 4, 5)
TRAINED = 5
"""Tokens that the paper's heads are trained to predict."""
Cells = Mapping[tuple[int, int], str]
"""Entries by width and length."""


def sides(cells: Cells) -> tuple[list[int], list[int]]:
    return sorted({width for width, _ in cells}), sorted({length for _, length in cells})


def fastest(run: Summary, cells: Cells) -> tuple[int, int]:
    return max(cells, key=lambda cell: in_all(run, cells[cell]))


def grid(run: Summary, cells: Cells) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A row of every width; of every length speed-up, tokens a second and tokens a round."""
    widths, lengths = sides(cells)
    head = ["beam width", *(f"length {length}: x plain [95%], tokens/s, tokens/round" for length in lengths)]
    rows = list[Sequence[str]]()
    for width in widths:
        row = [str(width)]
        for length in lengths:
            entry = cells[width, length]
            figures = run.figures(entry)
            per_round = number(figures.tokens_per_round) if figures is not None else ""
            row.append(f"{with_interval(overall(run, entry))}, {written(in_all(run, entry))}, {per_round}")
        rows.append(row)
    return head, rows


def claims(run: Summary, cells: Cells, trained: int = TRAINED) -> list[Claim]:
    (narrow, *_, wide), (short, *_, long) = ([*side, side[-1]] for side in sides(cells))
    found = list[Claim]()
    if wide > narrow:
        claim = f"{wide} beams bring more tokens a round than {narrow}"
        one, two = cells[wide, long], cells[narrow, long]
        found.append(brings(run, one, two, claim, "the more the wider (Table 4)", Way.ABOVE))
    if long > short:
        width, length = fastest(run, cells)
        ours = f"{width} wide and {length} long, of lengths {short} to {long}"
        claim = "the fastest draft is neither the shortest nor longer than the head was trained for"
        found.append(Claim(claim, "1 or 3 wide and 4 or 5 long, trained for 5", ours, short < length <= trained))
    return found


def report(run: Summary, cells: Cells, notes: Sequence[str] = (), trained: int = TRAINED) -> Report:
    widths, lengths = sides(cells)
    values: Mapping[str, Callable[[str], float]] = {
        "tokens/s": lambda entry: in_all(run, entry),
        "x plain": lambda entry: overall(run, entry).value,
    }
    panels = list[Panel]()
    for up, value in values.items():
        lines = [
            Curve(f"{width} wide", [(float(length), value(cells[width, length])) for length in lengths], place)
            for place, width in enumerate(widths, start=1)
        ]
        panels.append(Panel(up, "beam length", up, lines))
    notes = [*notes, f"plain decoding: {written(in_all(run, run.base))} tokens/s", *remarks([run])]
    title = "ReDrafter, Figure 7: beam width and beam length"
    return Report(title, [grid(run, cells)], claims(run, cells, trained), notes, panels)


def main() -> None:
    options = with_method(with_suite(parser(__doc__)))
    add = options.add_argument
    add("--width", type=int, nargs="+", default=WIDTHS, metavar="W", help="beam widths (1 2 4)")
    add("--length", type=int, nargs="+", default=LENGTHS, metavar="L", help="tokens of a beam (2 3 4 5)")
    add(
        "--trained", type=int, default=TRAINED, metavar="N", help=f"tokens that the head learned to predict ({TRAINED})"
    )
    lab = Lab(given := options.parse_args())
    lab.need_head()
    cells = {(w, n): spec(given, w, n) for w in sorted(set(given.width)) for n in sorted(set(given.length))}
    runs = lab.races({"run": {"methods": cells.values()}})
    paper = "the paper's picture does not say. On A100 and H100 its best width is 50 or more"
    lab.show(report(runs["run"], cells, conditions(lab, [lab.temperature], paper), given.trained))


if __name__ == "__main__":
    script(main)
