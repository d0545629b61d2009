"""What a sweep says of what the DictSpec paper found. Every sentence is computed from the cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from paceline.bench.dictionaries import paper
from paceline.bench.dictionaries.sweep.cells import Cell, Swept, best, ngrams
from paceline.bench.fertility import paper_name

CYRILLIC, LATIN, REFERENCE = "crh-Cyrl", "crh-Latn", "uk"
"""The paper's languages: the one that gains most, the one that gains least, and the one with much text."""
NAMED = 6
"""Exceptions that are told one by one."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Correlation:
    """Pearson's, of fertility and best speed-up."""

    r: float
    p: float
    points: int


@dataclass(frozen=True)
class Sentence:
    """One finding. ``holds`` says whether it is as in the paper; None where the paper says nothing of it."""

    said: str
    holds: bool | None


@dataclass(frozen=True)
class Findings:
    """All of them."""

    best: dict[Pair, Cell]
    """Of each tokenizer and language, the dictionary with the fewest steps."""
    correlation: Correlation | None
    told: list[Sentence]

    @property
    def sentences(self) -> list[str]:
        return [one.said for one in self.told]

    def as_dict(self) -> dict[str, Any]:
        return {
            "best": [
                {"tokenizer": tokenizer, "language": language, "order": cell.order, "size": cell.size}
                | {"entries": cell.entries, "min_probability": cell.min_probability}
                | cell.tally.as_dict()
                for (tokenizer, language), cell in self.best.items()
            ],
            "correlation": None if self.correlation is None else asdict(self.correlation),
            "told": [asdict(one) for one in self.told],
        }


def findings_of(swept: Swept) -> Findings:
    found = {about.pair: best(swept.of(about.pair)) for about in swept.abouts}
    correlation = _correlation(swept, found)
    parts = (
        _fertility(swept, found, correlation),
        _against(found, swept, CYRILLIC, REFERENCE, "Crimean Tatar in Cyrillic gains more than Ukrainian"),
        _against(found, swept, REFERENCE, LATIN, "Crimean Tatar in Latin script gains less than Ukrainian"),
        _orders(swept),
        _flattens(swept),
        _thresholds(swept),
        _adapted(swept, found),
        _unfilled(swept),
    )
    return Findings(found, correlation, [sentence for part in parts for sentence in part])


def best_by_order(swept: Swept, pair: Pair) -> dict[int, Cell]:
    """What Figure 3 shows."""
    orders = sorted({cell.order for cell in swept.of(pair)})
    return {order: best(swept.of(pair, order)) for order in orders}


def mean_by_size(swept: Swept, min_probability: float) -> dict[int, float]:
    """What Figure 2 shows: the mean speed-up over tokenizers and languages, by size, with the longest n-grams."""
    order = max(cell.order for cell in swept.cells)
    found: dict[int, list[float]] = {}
    for cell in swept.cells:
        if cell.order == order and cell.min_probability == min_probability:
            found.setdefault(cell.size, []).append(cell.tally.speed_up)
    return {size: sum(values) / len(values) for size, values in sorted(found.items())}


def paper_best(pair: Pair) -> paper.Best | None:
    """The row of Table 4 for a tokenizer and language, where there is one."""
    known = paper_name(pair[0])
    return None if known is None else paper.TABLE_4.get((known, pair[1]))


def _correlation(swept: Swept, found: dict[Pair, Cell]) -> Correlation | None:
    from scipy.stats import pearsonr

    left = [swept.about(pair).fertility for pair in found]
    right = [cell.tally.speed_up for cell in found.values()]
    if len(left) < 3 or len(set(left)) < 2 or len(set(right)) < 2:
        return None
    told = pearsonr(left, right)
    return Correlation(float(told.statistic), float(told.pvalue), len(left))


def _fertility(swept: Swept, found: dict[Pair, Cell], correlation: Correlation | None) -> Iterator[Sentence]:
    if correlation is None:
        return
    r, p = paper.CORRELATION
    rising = correlation.r > 0 and correlation.p < 0.05
    yield Sentence(
        f"Fertility and best speed-up correlate with r = {correlation.r:.2f} (two-sided p = {_p(correlation.p)}, "
        f"{correlation.points} points), fertility being that of each test text itself; in the paper, which told it by "
        f"FLORES+ for two languages of three, r = {r}, p = {p}",
        rising,
    )
    known = {pair: cell for pair, cell in found.items() if paper_best(pair) is not None}
    if 3 <= len(known) < len(found) and (theirs := _correlation(swept, known)) is not None:
        yield Sentence(
            f"Of the {theirs.points} that are in the paper's table as well, r = {theirs.r:.2f} (p = {_p(theirs.p)})",
            theirs.r > 0 and theirs.p < 0.05,
        )


def _against(found: dict[Pair, Cell], swept: Swept, more: str, less: str, claim: str) -> Iterator[Sentence]:
    """Whether one language gains more than another with each tokenizer."""
    both = [name for name in swept.tokenizers if (name, more) in found and (name, less) in found]
    if not both:
        return
    gains = {name: (found[name, more].tally.speed_up, found[name, less].tally.speed_up) for name in both}
    against = [f"{name} ({high:.2f}x, {low:.2f}x)" for name, (high, low) in gains.items() if high <= low]
    verdict = f"with all {len(both)} tokenizers" if not against else f"but not with {_and(against)}"
    if against and len(against) == len(both):
        verdict = f"with no tokenizer here: {_and(against)}"
    yield Sentence(f"{claim} {verdict}; in the paper with all", not against)


def _orders(swept: Swept) -> Iterator[Sentence]:
    orders = sorted({cell.order for cell in swept.cells})
    for low, high in pairwise(orders):
        names = ngrams(low), ngrams(high)
        worse = [
            f"{' '.join(about.pair)} ({by[low].tally.speed_up:.4f}x, {by[high].tally.speed_up:.4f}x)"
            for about in swept.abouts
            if (by := best_by_order(swept, about.pair))[high].tally.steps > by[low].tally.steps
        ]
        where = (
            f"everywhere ({len(swept.abouts)} of {len(swept.abouts)})" if not worse else f"but not for {_few(worse)}"
        )
        yield Sentence(f"At its best {names[1]} is no worse than {names[0]} {where}", not worse)
        yield _cell_by_cell(swept, low, high)


def _cell_by_cell(swept: Swept, low: int, high: int) -> Sentence:
    """The same at equal size and probability, where a longer n-gram takes the place of a shorter one."""
    at = {(cell.pair, cell.order, cell.size, cell.min_probability): cell for cell in swept.cells}
    both = [(at[pair, low, size, p], cell) for (pair, order, size, p), cell in at.items() if order == high]
    lost = [(one.tally.speed_up - other.tally.speed_up, other) for one, other in both]
    worse = sorted(((loss, cell) for loss, cell in lost if loss > 0), key=lambda entry: -entry[0])
    said = (
        f"Dictionary by dictionary, {ngrams(high)} takes more steps than {ngrams(low)} in {len(worse)} of {len(both)}"
    )
    if worse:
        loss, cell = worse[0]
        said += (
            f", most of all for {' '.join(cell.pair)} with {cell.size} entries at {cell.min_probability:g}: "
            f"{loss:.3f} less speed-up"
        )
    return Sentence(said, None)


def _flattens(swept: Swept) -> Iterator[Sentence]:
    """The gain beyond 200k entries beside the gain up to them."""
    for least in sorted({cell.min_probability for cell in swept.cells}):
        means = mean_by_size(swept, least)
        first, last = min(means), max(means)
        if paper.FLAT_FROM not in means or not first < paper.FLAT_FROM < last:
            continue
        before, after = means[paper.FLAT_FROM] - means[first], means[last] - means[paper.FLAT_FROM]
        doublings = math.log2(paper.FLAT_FROM / first), math.log2(last / paper.FLAT_FROM)
        each = before / doublings[0], after / doublings[1]
        yield Sentence(
            f"At {least:g} the mean speed-up rises by {before:.3f} from {_size(first)} to {_size(paper.FLAT_FROM)} "
            f"entries and by {after:.3f} from there to {_size(last)}: {each[0]:.4f} and {each[1]:.4f} for each doubling"
            f", so the curve {'flattens' if each[1] < each[0] else 'does not flatten'}",
            each[1] < each[0],
        )


def _thresholds(swept: Swept) -> Iterator[Sentence]:
    leasts = sorted({cell.min_probability for cell in swept.cells})
    if len(leasts) < 2:
        return
    means = [mean_by_size(swept, least) for least in leasts]
    falls = all(a[size] > b[size] for a, b in pairwise(means) for size in a)
    which = "at every size" if falls else "but not at every size"
    yield Sentence(f"The lower the probability, the higher the mean speed-up, {which}", falls)


def _adapted(swept: Swept, found: dict[Pair, Cell]) -> Iterator[Sentence]:
    """Steps per word, which tokenizers can be compared by: who needs fewest without a dictionary, against the others
    with one."""
    for language in swept.languages:
        abouts = [about for about in swept.abouts if about.language == language]
        steps = sorted(
            (one.steps_per_word, found[one.pair].tally.steps / one.test_words, one.tokenizer) for one in abouts
        )
        if len(steps) < 2:
            continue
        least, _, first = steps[0]
        ahead = [name for _, drafted, name in steps[1:] if drafted < least]
        verdict = (
            f"with one {_and(ahead)} {'takes' if len(ahead) == 1 else 'take'} fewer steps than {first} without"
            if ahead
            else f"a dictionary takes no other as low as {first} is without one"
        )
        told = ", ".join(f"{name} {without:.2f} and {drafted:.2f}" for without, drafted, name in steps)
        yield Sentence(
            f"Steps per word in {language}, without a dictionary and with the best: {told}; {verdict}",
            None,
        )


def _unfilled(swept: Swept) -> Iterator[Sentence]:
    short = [cell for cell in swept.cells if not cell.filled]
    if short:
        languages = {language: sum(cell.language == language for cell in short) for language in swept.languages}
        counts = ", ".join(f"{count} in {language}" for language, count in languages.items() if count)
        yield Sentence(
            f"{len(short)} of {len(swept.cells)} dictionaries have fewer entries than were asked for, since the text "
            f"gives no more: {counts}",
            None,
        )


def _size(entries: int) -> str:
    return f"{entries // 1000}k" if entries < 1_000_000 else f"{entries / 1e6:g}M"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def _few(names: Sequence[str]) -> str:
    return _and(names) if len(names) <= NAMED else f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
