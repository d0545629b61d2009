"""Figure 1: the best speed-up by fertility, a dot for each tokenizer and language.

python -m papers.dictspec.figure1_fertility runs/dictionaries --svg figure1.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from papers.common import Claim, Curve, Panel, Report, script
from papers.dictspec.numbers import CORRELATION, paper_best
from papers.dictspec.sweep import best, read, reader

if TYPE_CHECKING:
    import pandas as pd


def correlated(found: pd.DataFrame, claim: str) -> Iterator[Claim]:
    """Pearson's r, where there are points enough."""
    from scipy.stats import pearsonr

    if len(found) < 3 or found.fertility.nunique() < 2 or found.speed_up.nunique() < 2:
        return
    r, p = pearsonr(found.fertility, found.speed_up)
    paper = "r = {}, p = {} (fertility of FLORES+ for two languages of three)".format(*CORRELATION)
    shown = f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"
    yield Claim(claim, paper, f"r = {r:.2f}, p = {shown}, {len(found)} points", bool(r > 0 and p < 0.05))


def main() -> None:
    options = reader(__doc__).parse_args()
    found = best(read(options.sweep)).sort_values("fertility", ascending=False)
    theirs = found[[paper_best(one.tokenizer, one.language) is not None for one in found.itertuples()]]
    claims = [*correlated(found, "fertility of the test text and best speed-up correlate")]
    if len(theirs) < len(found):
        claims += correlated(theirs, "so they do where the paper has the tokenizer and language, too")
    rows = [(one.pair, f"{one.fertility:.2f}", f"{one.speed_up:.3f}") for one in found.itertuples()]
    dots = [
        Curve(language, list(zip(its.fertility, its.speed_up, strict=True)), number, dots=True)
        for number, (language, its) in enumerate(found.groupby("language"), start=1)
    ]
    if len(found) > 1:
        ends = np.array([found.fertility.min(), found.fertility.max()])
        fit = np.polyval(np.polyfit(found.fertility, found.speed_up, 1), ends)
        dots.append(Curve("least squares", list(zip(ends, fit, strict=True)), 0))
    panel = Panel("Best speed-up by fertility", "tokens per word", "best speed-up", dots, level=1.0)
    head = ("", "tokens per word", "speed-up")
    Report("DictSpec, Figure 1: fertility and speed-up", [(head, rows)], claims, panels=[panel]).show(options)


if __name__ == "__main__":
    script(main)
