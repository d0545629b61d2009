"""The results of a sweep: Tables 2 and 4 and Figures 1 to 3. Each reads the folder that `sweep` made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.charts import Curve, Panel
from papers.dictspec.numbers import (
    BEST,
    CORPORA,
    CORRELATION,
    FERTILITY,
    FLAT_FROM,
    STAND_INS,
    is_comparable,
    paper_best,
    paper_name,
)
from papers.dictspec.sweep import best, by_rule, ngrams, read
from papers.driver import Given
from papers.report import Claim, Report

if TYPE_CHECKING:
    import pandas as pd

# --- Table 2


def table2(given: Given) -> Report:
    """Table 2: words counted and words tested, by language."""
    cells = read(given.sweep)
    rows = [
        (language, f"{one.train_words:,}", f"{one.test_words:,}", *(f"{n:,}" for n in CORPORA.get(language, ())))
        for language, one in cells.groupby("language", sort=False).first().iterrows()
    ]
    short = cells[cells.entries < cells["size"]]
    counts = ", ".join(
        f"{count} in {language}" for language, count in short.value_counts("language", sort=False).items()
    )
    note = f"{len(short)} of {len(cells)} dictionaries have fewer entries than asked for, since the text gives no more"
    notes = [f"{note}: {counts}"] if len(short) else []
    head = ("language", "counted", "tested", "paper, counted", "paper, tested")
    return Report("DictSpec, Table 2: words", [(head, rows)], notes=notes)


# --- Table 4

CYRILLIC, LATIN, REFERENCE = "crh-Cyrl", "crh-Latn", "uk"
"""The paper's languages: the one that gains most, the one that gains least, and the one with much text."""
RATIOS = ("speed_up", "coverage", "accepted_per_draft", "acceptance")
EXACT = 1e-9
BEST_HEAD = ("speed-up", "coverage", "accepted/draft", "acceptance", "words counted", "dictionary")


def best_row(one: Any) -> tuple[str, ...]:
    """A dictionary beside the paper's, where it has one."""
    theirs = paper_best(one.tokenizer, one.language)
    beside = [f" / {value:.2f}" for value in theirs] if theirs is not None else [""] * len(RATIOS)
    ratios = (f"{getattr(one, name):.2f}{more}" for name, more in zip(RATIOS, beside, strict=True))
    words = f"{one.train_words:,}" + (f" / {CORPORA[one.language][0]:,}" if theirs is not None else "")
    return one.pair, *ratios, words, f"{ngrams(one.order)}, p {one.min_probability:g}, {one.entries:,} entries"


def compared(found: pd.DataFrame, more: str, less: str, claim: str) -> Iterator[Claim]:
    """Whether one language gains more than another with each tokenizer."""
    gains = found.pivot(index="tokenizer", columns="language", values="speed_up")
    if more not in gains or less not in gains or gains[[more, less]].dropna().empty:
        return
    both = gains[[more, less]].dropna()
    against = both[both[more] <= both[less]]
    named = ", ".join(f"{name} ({one[more]:.2f}x, {one[less]:.2f}x)" for name, one in against.iterrows())
    ours = f"with {len(both) - len(against)} of {len(both)}" + (f", not with {named}" if named else "")
    yield Claim(claim, "with all tokenizers", ours, against.empty)


def steps_per_word(found: pd.DataFrame) -> Iterator[str]:
    """Tokenizers cut words differently, so their speed-ups do not say which writes a text in fewer steps. This does."""
    per = found.assign(without=found.tokens / found.test_words, drafted=found.steps / found.test_words)
    for language, its in per.sort_values("without").groupby("language", sort=False):
        first = its.iloc[0]
        ahead = ", ".join(its[1:][its[1:].drafted < first.without].tokenizer) or "no other"
        listed = ", ".join(f"{one.tokenizer} {one.without:.2f} and {one.drafted:.2f}" for one in its.itertuples())
        yield (
            f"steps per word in {language}, without a dictionary and with the best: {listed}; with one, {ahead} takes "
            f"fewer than {first.tokenizer} without"
        )


def identity(cells: pd.DataFrame) -> Claim:
    """A step writes what it accepts and one token more."""
    off = (cells.speed_up - 1 - cells.coverage * cells.accepted_per_draft).abs().max()
    theirs = [abs(one.speed_up - 1 - one.coverage * one.accepted_per_draft) for one in BEST.values()]
    paper = f"off by {max(theirs):.3f} at most in {len(theirs)} rows of two digits"
    ours = f"off by {off:.0e} at most in {len(cells):,} dictionaries"
    return Claim("speed-up = 1 + coverage x accepted per draft", paper, ours, bool(off < EXACT))


def rules(cells: pd.DataFrame) -> Iterator[str]:
    """The two rules beside each other, dictionary by dictionary and each at its best."""
    at = ["pair", "order", "size", "min_probability"]
    steps = cells.pivot(index=at, columns="rule", values="steps")
    if len(steps.columns) < 2:
        return
    fewer = (steps.token < steps.paper).sum(), (steps.token > steps.paper).sum()
    speeds = best(cells, "rule").pivot(index="pair", columns="rule", values="speed_up")
    gains = speeds.token / speeds.paper
    yield (
        f"token by token takes fewer steps than whole endings in {fewer[0]} of {len(steps)} dictionaries and more in "
        f"{fewer[1]}; each at its best, its speed-up is {gains.min():.2f} to {gains.max():.2f} times the other's"
    )


def table4(given: Given) -> Report:
    """Table 4: the best dictionary of each tokenizer and language, by each rule of entries."""
    cells = read(given.sweep)
    claims, tables = list[Claim](), []
    for rule, its in by_rule(cells):
        found = best(its)
        claims += compared(found, CYRILLIC, REFERENCE, f"{rule}: Crimean Tatar in Cyrillic gains more than Ukrainian")
        claims += compared(found, REFERENCE, LATIN, f"{rule}: Crimean Tatar in Latin script gains less than Ukrainian")
        tables.append(((rule, *BEST_HEAD), [best_row(one) for one in found.itertuples()]))
    data = {"best": best(cells, "rule").to_dict("records")}
    notes = ["numbers are here / in the paper", *rules(cells), *steps_per_word(best(cells))]
    title = "DictSpec, Table 4: the best dictionaries"
    return Report(title, tables, [*claims, identity(cells)], notes, data=data)


# --- Figure 1


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


def correlations(found: pd.DataFrame, rule: str) -> Iterator[Claim]:
    """The correlation over all points, and over those that the paper has."""
    yield from correlated(found, f"{rule}: fertility and best speed-up correlate")
    named = {
        "without tokenizers that are no kin of the paper's": is_comparable,
        "with the paper's tokenizers": paper_name,
    }
    for which, known in named.items():
        kept = found[[bool(known(name)) for name in found.tokenizer]]
        if len(kept) < len(found):
            yield from correlated(kept, f"{rule}: so they do {which}")
    if (found.stated != found.fertility).any():
        yield from correlated(found, f"{rule}: so does the fertility of the test text", "fertility")


def absent_notes(found: pd.DataFrame) -> Iterator[str]:
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
    others = [name for name in names if not is_comparable(name)]
    yield f"in the paper and not here: {', '.join(absent) or 'none'}; here and not kin to the paper's: " + (
        ", ".join(others) or "none"
    )


def _stand_in(name: str, names: Sequence[str]) -> str:
    found = next((one for one in names if name in STAND_INS and re.search(STAND_INS[name], one.lower())), None)
    return "" if found is None else f"{found} instead"


def fertility_row(one: Any, speeds: Sequence[float]) -> tuple[str, ...]:
    """A tokenizer and language: fertility here, of the test text and in the paper; then speed-ups."""
    theirs = paper_best(one.tokenizer, one.language)
    paper = FERTILITY.get(paper_name(one.tokenizer) or "", {}).get(one.language)
    numbers = (one.stated, one.fertility, *speeds)
    beside = ["" if number is None else f"{number:.2f}" for number in (paper, theirs and theirs.speed_up)]
    return one.pair, *(f"{number:.2f}" for number in numbers), *beside


def dots_by_fertility(found: pd.DataFrame, rule: str) -> Panel:
    dots = [
        Curve(language, list(zip(its.stated, its.speed_up, strict=True)), number, dots=True)
        for number, (language, its) in enumerate(found.groupby("language"), start=1)
    ]
    if len(found) > 1:
        ends = np.array([found.stated.min(), found.stated.max()])
        fit = np.polyval(np.polyfit(found.stated, found.speed_up, 1), ends)
        dots.append(Curve("least squares", list(zip(ends, fit, strict=True)), 0))
    return Panel(f"Best speed-up by fertility, {rule}", "tokens per word", "best speed-up", dots, level=1.0)


def figure1(given: Given) -> Report:
    """Figure 1: the best speed-up by fertility, a dot for each tokenizer and language."""
    cells = read(given.sweep)
    cells = cells.assign(stated=cells.parallel.astype(float).fillna(cells.fertility))
    found = {rule: best(its).sort_values("stated", ascending=False) for rule, its in by_rule(cells)}
    speeds = {rule: its.set_index("pair").speed_up for rule, its in found.items()}
    first = next(iter(found.values()))
    rows = [fertility_row(one, [by_pair[one.pair] for by_pair in speeds.values()]) for one in first.itertuples()]
    head = ("", "tokens per word", "in the test text", *found, "paper: tokens per word", "paper: speed-up")
    said = [claim for rule, its in found.items() for claim in correlations(its, rule)]
    panels = [dots_by_fertility(its, rule) for rule, its in found.items()]
    title = "DictSpec, Figure 1: fertility and speed-up"
    return Report(title, [(head, rows)], said, list(absent_notes(first)), panels)


# --- Figure 2


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


def lines_by_size(means: pd.DataFrame, title: str) -> Panel:
    lines = [
        Curve(f"p ≥ {least:g}", [(size / 1000, 100 * (value - 1)) for size, value in mean.items()], number)
        for number, (least, mean) in enumerate(means.items(), start=1)
    ]
    return Panel(f"Mean gain by size, {title}", "thousand entries", "tokens per step gained, %", lines, log=True)


def figure2(given: Given) -> Report:
    """Figure 2: the mean speed-up by dictionary size, a line for each least probability, with the longest n-grams and
    each rule of entries: over all tokenizers and languages, and over the tokenizers in each language."""
    cells = read(given.sweep)
    order = cells.order.max()
    tables, claims, panels = [], list[Claim](), list[Panel]()
    for rule, its in by_rule(cells[cells.order == order]):
        found = list(averages(its))
        for name, means in found:
            rows = [(f"{size:,}", *(f"{value:.3f}" for value in row)) for size, *row in means.itertuples()]
            tables.append(((f"{rule}, {name}", *(f"p {least:g}" for least in means.columns)), rows))
            panels.append(lines_by_size(means, f"{ngrams(order)}, {rule}, {name}"))
        name, means = found[0]
        said = (*flattens(means), *falls(means))
        claims += [replace(one, claim=f"{rule}, {name}: {one.claim}") for one in said]
    notes = [
        "the paper averages over models and does not say whether over languages, too; both are shown",
        "where the text gives fewer entries, those that there are count at the larger sizes, too",
    ]
    return Report("DictSpec, Figure 2: size and probability", tables, claims, notes, panels)


# --- Figure 3

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


def lines_by_order(found: pd.DataFrame, rule: str, colors: Mapping[str, int]) -> Iterator[Panel]:
    for language, its in found.groupby("language", sort=False):
        lines = [
            Curve(name, [(one.order, 100 * (one.speed_up - 1)) for one in by.itertuples()], colors[name])
            for name, by in its.groupby("tokenizer", sort=False)
        ]
        yield Panel(f"Best gain by order, {language}, {rule}", "most words", "tokens per step gained, %", lines)


def figure3(given: Given) -> Report:
    """Figure 3: the best speed-up by the most words of an n-gram, a picture for each language and rule of entries."""
    cells = read(given.sweep)
    colors = {name: number for number, name in enumerate(cells.tokenizer.unique(), start=1)}
    tables, claims, panels = [], list[Claim](), list[Panel]()
    for rule, its in by_rule(cells):
        found = best(its, "order")
        speeds = found.pivot(index="pair", columns="order", values="speed_up").loc[its.pair.unique()]
        rows = [(pair, *(f"{value:.3f}" for value in row)) for pair, *row in speeds.itertuples()]
        tables.append(((rule, *map(ngrams, speeds.columns)), rows))
        claims += [replace(one, claim=f"{rule}: {one.claim}") for one in (*at_best(found), *cell_by_cell(its))]
        panels += lines_by_order(found, rule, colors)
    return Report("DictSpec, Figure 3: longer n-grams", tables, claims, panels=panels)
