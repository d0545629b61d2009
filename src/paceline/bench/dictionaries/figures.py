"""The paper's figures, drawn from the cells of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.dictionaries.findings import Findings, best_by_order, mean_by_size
from paceline.bench.dictionaries.sweep.cells import Swept, ngrams
from paceline.bench.report.axes import nearest_line
from paceline.bench.report.blocks import Chart, Charts
from paceline.bench.report.charts import Curve, Dot, curves, scatter

GAIN = "tokens per step gained, %"


def fertility_figure(swept: Swept, findings: Findings) -> Charts:
    """Figure 1: a dot for each tokenizer and language, of the language's colour."""
    numbers = {language: number for number, language in enumerate(swept.languages, start=1)}
    dots = [
        Dot(
            swept.about(pair).fertility,
            cell.tally.speed_up,
            numbers[pair[1]],
            f"{' '.join(pair)}: {swept.about(pair).fertility:.2f} tokens per word, {cell.tally.speed_up:.3f}x",
        )
        for pair, cell in findings.best.items()
    ]
    fit = nearest_line([(dot.x, dot.y) for dot in dots])
    told = f"best speed-up by fertility, {len(dots)} tokenizers and languages"
    svg = scatter("Fertility and best speed-up", told, dots, fit, 1.0, ("tokens per word", "best speed-up"))
    caption = "The dashed line is decoding without drafts"
    known = findings.correlation
    if known is not None and fit is not None:
        caption = f"{fit}, r = {known.r:.2f}. {caption}"
    return Charts([Chart(svg, f"{caption}.")], entries=[(number, name) for name, number in numbers.items()])


def size_figure(swept: Swept) -> Charts:
    """Figure 2: the mean speed-up by size, a line for each probability."""
    leasts = sorted({cell.min_probability for cell in swept.cells})
    lines = [
        Curve(
            f"{least:g}", number, [(size / 1000, 100 * (mean - 1)) for size, mean in mean_by_size(swept, least).items()]
        )
        for number, least in enumerate(leasts, start=1)
    ]
    told = f"mean gain by dictionary size, a line for each least probability: {', '.join(line.name for line in lines)}"
    svg = curves("Mean gain by size", told, lines, ("thousand entries", GAIN), log=True)
    which = ngrams(max(cell.order for cell in swept.cells))
    caption = f"Mean over tokenizers and languages; {which}. Who has fewer entries than that counts with those it has."
    return Charts([Chart(svg, caption)], entries=[(line.number, f"at least {line.name}") for line in lines])


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
        Curve(name, number, _gains(swept, (name, language)))
        for name, number in numbers.items()
        if any(about.pair == (name, language) for about in swept.abouts)
    ]
    told = f"best gain in {language} by the most words of an n-gram, a line for each tokenizer"
    return curves(f"Best gain by order in {language}", told, lines, ("most words of an n-gram", GAIN), log=True)


def _gains(swept: Swept, pair: tuple[str, str]) -> Sequence[tuple[float, float]]:
    return [(order, 100 * (cell.tally.speed_up - 1)) for order, cell in best_by_order(swept, pair).items()]
