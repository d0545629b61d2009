"""Table 6: heads that were trained with different labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline_lab import Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import Lab
from papers.redrafter.heads import need_head, shown, spec
from papers.report import Claim, Report, Table, Way
from papers.speeds import brings, by, faster, overall, per_round, with_interval, written

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


def gains(place: int) -> Iterator[float]:
    """How much more labels of the model bring in the paper: of speed (0) and of tokens a round (1), by width."""
    yield from (new[place] / old[place] for new, old in zip(PAPER["greedy"], PAPER["truth"], strict=True))


def by_width(runs: Mapping[float, Summary], entries: Entries) -> Table:
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
    return f"{with_interval(overall(run, entry))}, {written(per_round(run, entry))}"


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


def report(runs: Mapping[float, Summary], entries: Entries) -> Report:
    """``runs`` by temperature."""
    rows = [
        (f"T={heat:g}  {label}, {width} wide", run, entry)
        for heat, run in runs.items()
        for (label, width), entry in entries.items()
    ]
    labels, widths = list(dict.fromkeys(n for n, _ in entries)), sorted({w for _, w in entries})
    lines = {f"T={heat:g}, {label}": (run, label) for heat, run in runs.items() for label in labels}
    places = {width: width for width in widths}
    drawn = curves(lines, places, lambda width, of: per_round(of[0], entries[of[1], width]))
    tables = [by_width(runs, entries), by("language", rows)]
    panels = [Panel("Tokens a round", "beam width", "tokens/round", drawn)]
    return Report("ReDrafter, Table 6: labels of the training", tables, list(claims(runs, entries)), panels=panels)


def labels(given: Given) -> Report:
    """Table 6: heads trained with different labels: speed-up and tokens per round by beam width, language and
    temperature.

    A label is what a head learns to predict: the next tokens of the training text (`truth`), those that the model
    itself writes there, greedily or sampled (`greedy`, `sampled`), or its probabilities (`soft`). The paper has two
    rows, without distillation and with labels that the model wrote at temperature 0. Tokens a round are counts, which
    no machine's speed moves; speed-ups of the bundled models without ballast say little.
    """
    lab, heads = Lab(given), dict(given.heads)
    if unknown := [name for name in heads if name not in LABELS]:
        raise ValueError(f"name a label ({', '.join(LABELS)}) and a folder, as in truth=DIR; got {unknown[0]}")
    if len(heads) < 2 or len(heads) < len(given.heads):
        raise ValueError("give two heads or more, each of another label: --heads truth=DIR greedy=DIR")
    if given.head is not None:
        raise ValueError("labels compares heads; name them with --heads and leave --head out")
    need_head(lab, *heads.values())
    widths = sorted(set(given.width))
    entries = {(n, w): spec(given, w, given.length, head=heads[n]) for n in LABELS if n in heads for w in widths}
    heats = TEMPERATURES if given.temperature is None else (given.temperature,)
    runs = lab.races({heat: {"methods": entries.values(), "temperature": heat} for heat in heats}, "T={:g}")
    return shown(lab, report(runs, entries), "the paper does not say at which its are", heats)
