"""Figure 3: the best speed-up by the most words of an n-gram, a picture for each language and rule of entries.

python -m papers.dictspec.figure3_orders runs/dictionaries --svg figure3.svg
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from papers.common import Claim, Curve, Panel, Report, script
from papers.dictspec.sweep import best, by_rule, ngrams, read, reader

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 6
"""Exceptions that are named one by one."""


def at_best(found: pd.DataFrame) -> Iterator[Claim]:
    """Whether more words are better, and whether they are no worse, each at its best dictionary."""
    steps = found.pivot(index="pair", columns="order", values="steps")
    speeds = found.pivot(index="pair", columns="order", values="speed_up")
    for low, high in pairwise(steps.columns):
        for than, fails in ("better", steps[high] >= steps[low]), ("no worse", steps[high] > steps[low]):
            against = steps.index[fails]
            named = [f"{pair} ({speeds[low][pair]:.4f}x, {speeds[high][pair]:.4f}x)" for pair in against]
            named = named if len(named) <= SHOWN else [*named[:SHOWN], f"{len(named) - SHOWN} more"]
            ours = f"in {len(steps) - len(against)} of {len(steps)}"
            ours += f", not for {', '.join(named)}" if named else ""
            claim = f"at its best {ngrams(high)} is {than} than {ngrams(low)}"
            yield Claim(claim, "in all pairs", ours, against.empty)


def cell_by_cell(cells: pd.DataFrame) -> Iterator[Claim]:
    """The same at equal size and probability, where a longer n-gram takes the place of a shorter one."""
    at = ["pair", "size", "min_probability"]
    for low, high in pairwise(sorted(cells.order.unique())):
        both = cells[cells.order == low].merge(cells[cells.order == high], on=at, suffixes=("", "_high"))
        lost = both.speed_up - both.speed_up_high
        ours = f"it takes more steps in {(lost > 0).sum()} of {len(both)}"
        if lost.max() > 0:
            one = both.loc[lost.idxmax()]
            ours += (
                f", most of all for {one.pair} with {one['size']} entries at {one.min_probability:g}: "
                f"{lost.max():.3f} less speed-up"
            )
        yield Claim(f"{ngrams(high)} beside {ngrams(low)}, dictionary by dictionary", "", ours, None)


def pictures(found: pd.DataFrame, rule: str, colors: Mapping[str, int]) -> Iterator[Panel]:
    for language, its in found.groupby("language", sort=False):
        lines = [
            Curve(name, [(one.order, 100 * (one.speed_up - 1)) for one in by.itertuples()], colors[name])
            for name, by in its.groupby("tokenizer", sort=False)
        ]
        yield Panel(f"Best gain by order, {language}, {rule}", "most words", "tokens per step gained, %", lines)


def main() -> None:
    options = reader(__doc__).parse_args()
    cells = read(options.sweep)
    colors = {name: number for number, name in enumerate(cells.tokenizer.unique(), start=1)}
    tables, claims, panels = [], list[Claim](), list[Panel]()
    for rule, its in by_rule(cells):
        found = best(its, "order")
        speeds = found.pivot(index="pair", columns="order", values="speed_up").loc[its.pair.unique()]
        rows = [(pair, *(f"{value:.3f}" for value in row)) for pair, *row in speeds.itertuples()]
        tables.append(((rule, *map(ngrams, speeds.columns)), rows))
        claims += [replace(one, claim=f"{rule}: {one.claim}") for one in (*at_best(found), *cell_by_cell(its))]
        panels += pictures(found, rule, colors)
    Report("DictSpec, Figure 3: longer n-grams", tables, claims, panels=panels).show(options)


if __name__ == "__main__":
    script(main)
