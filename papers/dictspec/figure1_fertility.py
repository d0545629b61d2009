"""Figure 1: the best speed-up by fertility, a dot for each tokenizer and language.

python -m papers.dictspec.figure1_fertility runs/dictionaries --svg figure1.svg
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.common import Claim, Curve, Panel, Report, script
from papers.dictspec.numbers import BEST, CORRELATION, FERTILITY, STAND_INS, paper_best, paper_name, stands_in
from papers.dictspec.sweep import best, by_rule, read, reader

if TYPE_CHECKING:
    import pandas as pd


def correlated(found: pd.DataFrame, claim: str, fertility: str = "stated") -> Iterator[Claim]:
    """Pearson's r, where there are points enough."""
    if len(found) < 3 or found[fertility].nunique() < 2 or found.speed_up.nunique() < 2:
        return
    r, p = _pearson(found[fertility], found.speed_up)
    paper = "r = {}, p = {}".format(*CORRELATION)
    shown = f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"
    yield Claim(claim, paper, f"r = {r:.2f}, p = {shown}, {len(found)} points", bool(r > 0 and p < 0.05))


def of_the_paper() -> str:
    """The correlation in the paper's own Tables 3 and 4."""
    points = [(FERTILITY[name][language], row.speed_up) for (name, language), row in BEST.items()]
    r, p = _pearson(*zip(*points, strict=True))
    return f"the paper's Tables 3 and 4 give r = {r:.2f}, p = {p:.3f}, {len(points)} points"


def _pearson(*columns: Any) -> tuple[float, float]:
    from scipy.stats import pearsonr

    r, p = pearsonr(*columns)
    return float(r), float(p)


def claims(found: pd.DataFrame, rule: str) -> Iterator[Claim]:
    """The correlation over all points, and over those that the paper has."""
    yield from correlated(found, f"{rule}: fertility and best speed-up correlate")
    named = {"without tokenizers that are no kin of the paper's": stands_in, "with the paper's tokenizers": paper_name}
    for which, known in named.items():
        kept = found[[bool(known(name)) for name in found.tokenizer]]
        if len(kept) < len(found):
            yield from correlated(kept, f"{rule}: so they do {which}")
    if (found.stated != found.fertility).any():
        yield from correlated(found, f"{rule}: so does the fertility of the test text", "fertility")


def notes(found: pd.DataFrame) -> Iterator[str]:
    yield of_the_paper()
    running = list(dict.fromkeys(found[found.parallel.isna()].language))
    yield (
        "fertility is that of a parallel text, as in the paper, which has FLORES+; for "
        f"{', '.join(running) or 'no language'} that of the test text, as there for crh-Cyrl"
    )
    here = set(map(paper_name, found.tokenizer))
    missing = [name for name in FERTILITY if name not in here]
    names = sorted(set(found.tokenizer))
    absent = [f"{name} ({_stand_in(name, names)})" if _stand_in(name, names) else name for name in missing]
    others = [name for name in names if not stands_in(name)]
    yield f"in the paper and not here: {', '.join(absent) or 'none'}; here and not kin to the paper's: " + (
        ", ".join(others) or "none"
    )


def _stand_in(name: str, names: Sequence[str]) -> str:
    found = next((one for one in names if name in STAND_INS and re.search(STAND_INS[name], one.lower())), None)
    return "" if found is None else f"{found} stands in"


def row(one: Any, speeds: Sequence[float]) -> tuple[str, ...]:
    """A tokenizer and language: fertility here, of the test text and in the paper; then speed-ups."""
    theirs = paper_best(one.tokenizer, one.language)
    paper = FERTILITY.get(paper_name(one.tokenizer) or "", {}).get(one.language)
    numbers = (one.stated, one.fertility, *speeds)
    beside = ["" if number is None else f"{number:.2f}" for number in (paper, theirs and theirs.speed_up)]
    return one.pair, *(f"{number:.2f}" for number in numbers), *beside


def picture(found: pd.DataFrame, rule: str) -> Panel:
    dots = [
        Curve(language, list(zip(its.stated, its.speed_up, strict=True)), number, dots=True)
        for number, (language, its) in enumerate(found.groupby("language"), start=1)
    ]
    if len(found) > 1:
        ends = np.array([found.stated.min(), found.stated.max()])
        fit = np.polyval(np.polyfit(found.stated, found.speed_up, 1), ends)
        dots.append(Curve("least squares", list(zip(ends, fit, strict=True)), 0))
    return Panel(f"Best speed-up by fertility, {rule}", "tokens per word", "best speed-up", dots, level=1.0)


def main() -> None:
    options = reader(__doc__).parse_args()
    cells = read(options.sweep)
    cells = cells.assign(stated=cells.parallel.astype(float).fillna(cells.fertility))
    found = {rule: best(its).sort_values("stated", ascending=False) for rule, its in by_rule(cells)}
    speeds = {rule: its.set_index("pair").speed_up for rule, its in found.items()}
    first = next(iter(found.values()))
    rows = [row(one, [by_pair[one.pair] for by_pair in speeds.values()]) for one in first.itertuples()]
    head = ("", "tokens per word", "in the test text", *found, "paper: tokens per word", "paper: speed-up")
    said = [claim for rule, its in found.items() for claim in claims(its, rule)]
    panels = [picture(its, rule) for rule, its in found.items()]
    title = "DictSpec, Figure 1: fertility and speed-up"
    Report(title, [(head, rows)], said, list(notes(first)), panels=panels).show(options)


if __name__ == "__main__":
    script(main)
