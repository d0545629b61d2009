"""The paper's figures, drawn from the cells of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.dictionaries.findings import Findings, best_by_order, mean_by_size
from paceline.bench.dictionaries.sweep.cells import Swept, ngrams
from paceline.bench.report.blocks import Chart
from paceline.bench.report.charts import Scales, Series, plot

GAIN = "tokens per step gained, %"


def fertility_figure(swept: Swept, findings: Findings) -> Chart:
    """Figure 1: a dot for each tokenizer and language, of the language's colour."""
    numbers = {language: number for number, language in enumerate(swept.languages, start=1)}
    series = [
        Series(
            numbers[pair[1]],
            " ".join(pair),
            [(swept.about(pair).fertility, cell.tally.speed_up)],
            [f"{' '.join(pair)}: {swept.about(pair).fertility:.2f} tokens per word, {cell.tally.speed_up:.3f}x"],
        )
        for pair, cell in findings.best.items()
    ]
    told = f"best speed-up by fertility, {len(series)} tokenizers and languages"
    scales = Scales(("tokens per word", "best speed-up"), level=1.0)
    correlation = "" if findings.correlation is None else f"r = {findings.correlation.r:.2f}. "
    caption = f"{correlation}The dashed line is decoding without drafts."
    return plot("Fertility and best speed-up", told, series, scales, 320, caption)


def size_figure(swept: Swept) -> Chart:
    """Figure 2: the mean speed-up by size, a line for each probability."""
    leasts = sorted({cell.min_probability for cell in swept.cells})
    lines = [
        _line(f"at least {p:g}", n, [(size / 1000, 100 * (mean - 1)) for size, mean in mean_by_size(swept, p).items()])
        for n, p in enumerate(leasts, start=1)
    ]
    told = f"mean gain by dictionary size, a line for each least probability: {', '.join(line.name for line in lines)}"
    which = ngrams(max(cell.order for cell in swept.cells))
    caption = f"Mean over tokenizers and languages; {which}. Who has fewer entries than that counts with those it has."
    return plot("Mean gain by size", told, lines, Scales(("thousand entries", GAIN)), 280, caption)


def order_figure(swept: Swept) -> list[Chart]:
    """Figure 3: the best speed-up by order, a picture for each language with a line for each tokenizer."""
    numbers = {name: number for number, name in enumerate(swept.tokenizers, start=1)}
    return [_orders(swept, language, numbers) for language in swept.languages]


def _orders(swept: Swept, language: str, numbers: dict[str, int]) -> Chart:
    lines = [
        _line(name, number, _gains(swept, (name, language)))
        for name, number in numbers.items()
        if any(about.pair == (name, language) for about in swept.abouts)
    ]
    told = f"best gain in {language} by the most words of an n-gram, a line for each tokenizer"
    scales, caption = Scales(("most words of an n-gram", GAIN)), f"{language}: the best dictionary of each order"
    return plot(f"Best gain by order in {language}", told, lines, scales, 280, caption)


def _gains(swept: Swept, pair: tuple[str, str]) -> Sequence[tuple[float, float]]:
    return [(order, 100 * (cell.tally.speed_up - 1)) for order, cell in best_by_order(swept, pair).items()]


def _line(name: str, number: int, points: Sequence[tuple[float, float]]) -> Series:
    return Series(number, name, points, [f"{name}: {y:.3g} at {x:g}" for x, y in points], joined=True)
