"""Table 6: heads trained with different labels: speed-up and tokens per round by beam width, language and temperature.

    python -m papers.redrafter.labels --heads truth=DIR greedy=DIR sampled=DIR soft=DIR
    python -m papers.redrafter.labels --model M --heads truth=DIR greedy=DIR --width 1 2 4 16 64 --temperature 0

A label is what a head learns to predict: the next tokens of the training text (`truth`), those that the model itself
writes there, greedily or sampled (`greedy`, `sampled`), or its probabilities (`soft`). The paper has two rows, without
distillation and with labels that the model wrote at temperature 0. Tokens a round are counts, which no machine's speed
moves; speed-ups of the bundled models without ballast say little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.redrafter.common import (
    COUNTING,
    LENGTH,
    STAND_IN,
    WIDTH,
    Lab,
    conditions,
    overall,
    parser,
    spec,
    with_method,
    with_suite,
)
from papers.unispec.common import brings, faster, number, with_interval
from papers.unispec.tables import by, remarks

TRUTH = "truth"
LABELS = TRUTH, "greedy", "sampled", "soft"
WIDTHS = 1, 2, 4, 16, 64
Row = tuple[float, float]
PAPER: Mapping[str, Sequence[Row]] = {
    "truth": ((1.47, 2.21), (1.52, 2.31), (1.54, 2.48), (1.80, 2.87), (1.99, 3.30)),
    "greedy": ((1.54, 2.35), (1.60, 2.50), (1.72, 2.73), (1.92, 3.09), (2.18, 3.58)),
}
"""Speed-up and tokens a round by width."""
TEMPERATURES = 0.0, 1.0
Entries = Mapping[tuple[str, int], str]
"""By label and width."""


def named_head(given: str) -> tuple[str, Path]:
    name, equals, folder = given.partition("=")
    if name not in LABELS or not (equals and folder):
        raise argparse.ArgumentTypeError(
            f"name a label ({', '.join(LABELS)}) and a folder, as in truth=DIR; got {given!r}"
        )
    return name, Path(folder)


def gains(place: int) -> Iterator[float]:
    """How much more labels of the model bring in the paper: of speed (0) and of tokens a round (1), by width."""
    yield from (new[place] / old[place] for new, old in zip(PAPER["greedy"], PAPER["truth"], strict=True))


def by_width(runs: Mapping[float, Summary], entries: Entries) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The paper's table: a row of every label, with columns of widths, and the paper's rows."""
    labels, widths = list(dict.fromkeys(n for n, _ in entries)), sorted({w for _, w in entries})
    head = ["x plain [95%], tokens/round", *(f"{width} wide" for width in widths)]
    rows = list[Sequence[str]]()
    for heat, run in runs.items():
        for label in labels:
            cells = [_cell(run, entries[label, width]) for width in widths]
            rows.append((f"T={heat:g}  {label}", *cells))
    for label, printed in PAPER.items():
        known = dict(zip(WIDTHS, printed, strict=True))
        cells = [f"{known[w][0]:.2f}, {known[w][1]:.2f}" if w in known else "" for w in widths]
        rows.append((f"paper  {label}", *cells))
    return head, rows


def _cell(run: Summary, entry: str) -> str:
    figures = run.figures(entry)
    return "" if figures is None else f"{with_interval(overall(run, entry))}, {number(figures.tokens_per_round)}"


def claims(runs: Mapping[float, Summary], entries: Entries) -> Iterator[Claim]:
    """Every label against the training text's own tokens, at the narrowest width."""
    width = min(width for _, width in entries)
    if (TRUTH, width) not in entries:
        return
    low, high = min(gains(1)), max(gains(1))
    for heat, run in runs.items():
        for label in (n for n, w in entries if w == width and n != TRUTH):
            known = label == "greedy"
            one, two = entries[label, width], entries[TRUTH, width]
            where = f"T={heat:g}, {width} wide"
            claim = f"{where}: {label} labels bring more tokens a round" if known else f"{where}: {label} and {TRUTH}"
            yield brings(run, one, two, claim, f"{low:.2f} to {high:.2f} times" if known else "", Way.ABOVE)
            paper = f"{min(gains(0)):.2f} to {max(gains(0)):.2f} times" if known else ""
            yield faster(run, one, two, claim if not known else f"{where}: and texts come faster", paper, Way.ABOVE)


def report(runs: Mapping[float, Summary], entries: Entries, notes: Sequence[str] = ()) -> Report:
    """``runs`` by temperature."""
    rows = [
        (f"T={heat:g}  {label}, {width} wide", run, entry)
        for heat, run in runs.items()
        for (label, width), entry in entries.items()
    ]
    lines = {
        f"T={heat:g}, {label}": [
            (float(width), figures.tokens_per_round or 0.0)
            for (name, width), entry in entries.items()
            if name == label and (figures := run.figures(entry)) is not None
        ]
        for heat, run in runs.items()
        for label in dict.fromkeys(n for n, _ in entries)
    }
    curves = [Curve(name, points, place) for place, (name, points) in enumerate(lines.items(), start=1)]
    panels = [Panel("Tokens a round", "beam width", "tokens/round", curves)]
    tables = [by_width(runs, entries), by("language", rows)]
    title = "ReDrafter, Table 6: labels of the training"
    return Report(title, tables, list(claims(runs, entries)), [*notes, *remarks(runs.values())], panels)


def main() -> None:
    options = with_method(with_suite(parser(__doc__, model=COUNTING)))
    add = options.add_argument
    add("--heads", type=named_head, nargs="+", default=[], metavar="LABEL=DIR", help="trained heads, by their labels")
    add(
        "--width", type=int, nargs="+", default=(WIDTH,), metavar="W", help=f"beam widths ({WIDTH}; the paper: 1 to 64)"
    )
    add("--length", type=int, default=LENGTH, metavar="L", help=f"tokens of a beam ({LENGTH})")
    options.set_defaults(suite=STAND_IN)
    lab = Lab(given := options.parse_args())
    if len(heads := dict(given.heads)) < 2 or len(heads) < len(given.heads):
        raise ValueError("give two heads or more, each of another label: --heads truth=DIR greedy=DIR")
    if given.head is not None:
        raise ValueError("this script compares heads; name them with --heads and leave --head out")
    lab.need_head(*heads.values())
    widths = sorted(set(given.width))
    entries = {(n, w): spec(given, w, given.length, head=heads[n]) for n in LABELS if n in heads for w in widths}
    heats = TEMPERATURES if given.temperature is None else (given.temperature,)
    made = lab.races({f"T={heat:g}": {"methods": entries.values(), "temperature": heat} for heat in heats})
    runs = {heat: made[f"T={heat:g}"] for heat in heats if f"T={heat:g}" in made}
    lab.show(report(runs, entries, conditions(lab, heats, "the paper does not say at which its are")))


if __name__ == "__main__":
    script(main)
