"""The paper's figures, drawn from the cells of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.dictionaries.findings import Findings, best_by_order, mean_by_size
from paceline.bench.dictionaries.sweep.cells import Swept, ngrams
from paceline.bench.report.blocks import Chart, Charts
from paceline.bench.report.charts import Scales, Series, plot

GAIN = "tokens per step gained, %"


def fertility_figure(swept: Swept, findings: Findings) -> Charts:
    """Figure 1: a dot for each tokenizer and language, of the language's colour."""
    numbers = {language: number for number, language in enumerate(swept.languages, start=1)}
    series = [
        Series(
            numbers[pair[1]],
            [(swept.about(pair).fertility, cell.tally.speed_up)],
            [f"{' '.join(pair)}: {swept.about(pair).fertility:.2f} tokens per word, {cell.tally.speed_up:.3f}x"],
        )
        for pair, cell in findings.best.items()
    ]
    told = f"best speed-up by fertility, {len(series)} tokenizers and languages"
    scales = Scales(("tokens per word", "best speed-up"), across=1.0)
    svg = plot("Fertility and best speed-up", told, series, scales)
    caption = "The dashed line is decoding without drafts"
    if findings.correlation is not None:
        caption = f"r = {findings.correlation.r:.2f}. {caption}"
    return Charts([Chart(svg, f"{caption}.")], entries=[(number, name) for name, number in numbers.items()])


def size_figure(swept: Swept) -> Charts:
    """Figure 2: the mean speed-up by size, a line for each probability."""
    leasts = sorted({cell.min_probability for cell in swept.cells})
    lines = [
        _line(
            f"{least:g}", number, [(size / 1000, 100 * (mean - 1)) for size, mean in mean_by_size(swept, least).items()]
        )
        for number, least in enumerate(leasts, start=1)
    ]
    told = f"mean gain by dictionary size, a line for each least probability: {', '.join(f'{p:g}' for p in leasts)}"
    svg = plot("Mean gain by size", told, lines, Scales(("thousand entries", GAIN)))
    which = ngrams(max(cell.order for cell in swept.cells))
    caption = f"Mean over tokenizers and languages; {which}. Who has fewer entries than that counts with those it has."
    return Charts([Chart(svg, caption)], entries=[(n, f"at least {p:g}") for n, p in enumerate(leasts, start=1)])


def order_figure(swept: Swept) -> Charts:
    """Figure 3: the best speed-up by order, a picture for each language with a line for each tokenizer."""
    numbers = {name: number for number, name in enumerate(swept.tokenizers, start=1)}
    charts = [
        Chart(_orders(swept, language, numbers), f"{language}: the best dictionary of each order")
        for language in swept.languages
    ]
    return Charts(charts, entries=[(number, name) for name, number in numbers.items()])


def _orders(swept: Swept, language: str, numbers: dict[str, int]) -> str:
    lines = [
        _line(name, number, _gains(swept, (name, language)))
        for name, number in numbers.items()
        if any(about.pair == (name, language) for about in swept.abouts)
    ]
    told = f"best gain in {language} by the most words of an n-gram, a line for each tokenizer"
    return plot(f"Best gain by order in {language}", told, lines, Scales(("most words of an n-gram", GAIN)))


def _gains(swept: Swept, pair: tuple[str, str]) -> Sequence[tuple[float, float]]:
    return [(order, 100 * (cell.tally.speed_up - 1)) for order, cell in best_by_order(swept, pair).items()]


def _line(name: str, number: int, points: Sequence[tuple[float, float]]) -> Series:
    return Series(number, points, [f"{name}: {y:.3g} at {x:g}" for x, y in points], joined=True)
