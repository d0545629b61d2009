"""Figure 2: the mean speed-up by dictionary size, a line for each least probability, with the longest n-grams and each
rule of entries: over all tokenizers and languages, and over the tokenizers in each language.

python -m papers.dictspec.figure2_sizes runs/dictionaries --svg figure2.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING

from papers.common import Claim, Curve, Panel, Report, script
from papers.dictspec.numbers import FLAT_FROM
from papers.dictspec.sweep import by_rule, ngrams, read, reader

if TYPE_CHECKING:
    import pandas as pd


def flattens(means: pd.DataFrame) -> Iterator[Claim]:
    """The gain beyond 200,000 entries beside the gain up to them, for each doubling."""
    first, last = means.index[0], means.index[-1]
    if FLAT_FROM not in means.index or not first < FLAT_FROM < last:
        return
    for least, mean in means.items():
        before, after = mean[FLAT_FROM] - mean[first], mean[last] - mean[FLAT_FROM]
        each = before / log2(FLAT_FROM / first), after / log2(last / FLAT_FROM)
        ours = (
            f"{before:.3f} up to {FLAT_FROM:,} entries and {after:.3f} beyond, {each[0]:.4f} and {each[1]:.4f} "
            "for each doubling"
        )
        yield Claim(f"at p {least:g} the gain flattens", "it does", ours, bool(each[1] < each[0]))


def falls(means: pd.DataFrame) -> Iterator[Claim]:
    if len(means.columns) > 1:
        lower = all((means[one] > means[other]).all() for one, other in pairwise(means.columns))
        claim = "the lower the probability, the higher the mean speed-up"
        yield Claim(claim, "at every size", "at every size" if lower else "not at every size", lower)


def averages(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Mean speed-ups by size and probability: over all languages, where there are several, and in each."""
    languages = list(cells.groupby("language", sort=False))
    for name, its in [*([("all languages", cells)] if len(languages) > 1 else []), *languages]:
        yield name, its.pivot_table(index="size", columns="min_probability", values="speed_up", aggfunc="mean")


def picture(means: pd.DataFrame, title: str) -> Panel:
    lines = [
        Curve(f"p ≥ {least:g}", [(size / 1000, 100 * (value - 1)) for size, value in mean.items()], number)
        for number, (least, mean) in enumerate(means.items(), start=1)
    ]
    return Panel(f"Mean gain by size, {title}", "thousand entries", "tokens per step gained, %", lines, log=True)


def main() -> None:
    options = reader(__doc__).parse_args()
    cells = read(options.sweep)
    order = cells.order.max()
    tables, claims, panels = [], list[Claim](), list[Panel]()
    for rule, its in by_rule(cells[cells.order == order]):
        found = list(averages(its))
        for name, means in found:
            rows = [(f"{size:,}", *(f"{value:.3f}" for value in row)) for size, *row in means.itertuples()]
            tables.append(((f"{rule}, {name}", *(f"p {least:g}" for least in means.columns)), rows))
            panels.append(picture(means, f"{ngrams(order)}, {rule}, {name}"))
        name, means = found[0]
        said = (*flattens(means), *falls(means))
        claims += [replace(one, claim=f"{rule}, {name}: {one.claim}") for one in said]
    notes = [
        "the paper averages over models and does not say whether over languages, too; both are shown",
        "where the text gives fewer entries, those that there are count at the larger sizes, too",
    ]
    Report("DictSpec, Figure 2: size and probability", tables, claims, notes, panels).show(options)


if __name__ == "__main__":
    script(main)
