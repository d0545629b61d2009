"""Numbers in words, and the honest sentence that a report begins with."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from paceline_lab.bench.compare import fastest, too_few
from paceline_lab.bench.run.record import TextVerdict
from paceline_lab.bench.statistics import Estimate
from paceline_lab.bench.summary import Figures, Summary

Entries = list[tuple[int, str, Figures]]
NOTHING = "–"
ALL = "all"
MINUS = "−"
DEFAULT = "auto"
LONGEST = 44
"""Characters of a name in a sentence."""
WIDEST = 4
"""The ratio of an interval's ends from which it says nothing of a speed."""


def times(value: float | None) -> str:
    """How many times as fast."""
    return NOTHING if value is None else f"{value:.2f}×" if value < 9.995 else f"{value:.1f}×"


def interval(found: Estimate | None, digits: int = 2) -> str:
    """The bounds; empty where there are none, and for the base: its speed-up is 1 by definition."""
    if found is None or not found.bounded or found.low == found.high:
        return ""
    return f"{found.low:.{digits}f}–{found.high:.{digits}f}"


def rate(value: float | None) -> str:
    """Tokens per second."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}" if value == 0 or value >= 0.0995 else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return NOTHING
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value:,.0f} s"


def seconds_between(found: Estimate | None) -> str:
    if found is None or not found.bounded:
        return ""
    return f"{seconds(found.low)} – {seconds(found.high)}"


def size(count: int | None) -> str:
    """Bytes."""
    if count is None:
        return NOTHING
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def labelled(found: Estimate) -> str:
    """A speed-up with its interval, in a chart."""
    bounds = interval(found)
    return f"{times(found.value)} ({bounds})" if bounds else times(found.value)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def short(name: str, most: int = LONGEST) -> str:
    """A name in at most ``most`` letters, of which wide ones count twice. Names differ at both ends, so the middle of a
    long one is left out."""
    halves = (name[: (n + 1) // 2] + "…" + name[len(name) - n // 2 :] for n in range(len(name) - 1, 0, -1))
    return name if cell_len(name) <= most else next((half for half in halves if cell_len(half) <= most), name[:1])


def entries_of(summary: Summary) -> Entries:
    """Entries that wrote something: number, name and figures over everything."""
    found = ((number, entry, summary.figures(entry)) for number, entry in enumerate(summary.entries))
    return [(number, entry, figures) for number, entry, figures in found if figures is not None]


def model_name(summary: Summary) -> str:
    model = summary.run.about.model
    return short(str(model.get("model") or model.get("name") or "a model"))


def best_of(
    summary: Summary, task: str | None = None, language: str | None = None, *, ours: bool | None = None
) -> Figures | None:
    """The fastest entry of a cell, or of our methods or of the peers in it, plain decoding left out."""
    return max(_measured(summary, task, language, ours), key=lambda figures: speed_up_of(figures).value, default=None)


def _measured(summary: Summary, task: str | None, language: str | None, ours: bool | None) -> list[Figures]:
    """The figures of a cell that have a speed-up, of our methods, of the peers or of both."""
    is_ours = {entry["name"]: bool(entry.get("ours", True)) for entry in summary.run.about.entries}
    return [
        figures
        for entry in summary.entries
        if entry != summary.base and ours in (None, is_ours.get(entry))
        if (figures := summary.figures(entry, task, language)) is not None and figures.speed_up is not None
    ]


def main_of(summary: Summary) -> Figures | None:
    """Our method that represents the run: the default one, or else the first that was requested. Not the fastest: part
    of the lead of the fastest of several is chance, the more so the fewer prompts there are."""
    measured = _measured(summary, None, None, True)
    methods = {entry["name"]: str(entry.get("method") or entry["name"]) for entry in summary.run.about.entries}
    return min(measured, key=lambda figures: methods.get(figures.entry) != DEFAULT, default=None)


def speed_up_of(figures: Figures) -> Estimate:
    assert figures.speed_up is not None, "the best of those that have one"
    return figures.speed_up


def with_interval(found: Estimate) -> str:
    """A speed-up with its interval."""
    bounds = interval(found)
    return (
        f"{times(found.value)} (95% interval {bounds})" if bounds else f"{times(found.value)} (one prompt: no interval)"
    )


def headline(summary: Summary) -> str:
    """The result in a sentence, good news or bad."""
    model = model_name(summary)
    if not summary.run.records:
        return f"Nothing has been written yet on {model}."
    main = main_of(summary)
    if main is None:
        speed = getattr(summary.figures(summary.base), "tokens_per_second", None)
        if speed is None:
            return f"On {model}, rounds were counted and no speed was measured."
        return f"Plain decoding writes {rate(speed)} tokens per second on {model}; no method was held against it."
    found, name = speed_up_of(main), short(main.entry)
    if not found.bounded:
        there = f"{name} ran at {times(found.value)} plain decoding's speed there"
        return f"On {model}, one prompt was measured, so there is no interval: {there}."
    if found.low > 1:
        return f"On {model}, {name} writes {with_interval(found).replace('×', '× as fast as plain decoding', 1)}."
    if found.high > WIDEST * found.low:
        unknown = f"so few prompts do not show whether {name} is faster than plain decoding"
        return f"On {model}, {unknown}: it ran at {with_interval(found)}."
    chance = "" if found.excludes(1) else " beyond chance"
    return f"On {model}, {name} was not faster than plain decoding{chance}: it ran at {with_interval(found)}."


def _best(summary: Summary) -> str:
    """Which of several methods was the fastest, as far as the run can tell."""
    methods = [figures.entry for figures in _measured(summary, None, None, True)]
    main, first = main_of(summary), fastest(summary, methods)
    if len(methods) < 2 or main is None:
        return ""
    if first is not None:
        found = summary.figures(first)
        if first == main.entry or found is None:
            return f"It was the fastest of {len(methods)} methods."
        return f"The fastest of {len(methods)} methods was {short(first)}, at {with_interval(speed_up_of(found))}."
    if too_few(summary):
        return f"These are too few prompts to name a best of {len(methods)} methods."
    return f"None of {len(methods)} methods was faster than all others beyond chance."


def second_sentences(summary: Summary) -> str:
    """Qualifications of the headline: the fastest method, a faster peer, the other way to take a mean, and what the
    numbers were taken on."""
    said = [_best(summary)]
    main, peer = main_of(summary), best_of(summary, ours=False)
    if peer is not None and speed_up_of(peer).value > (1.0 if main is None else speed_up_of(main).value):
        ran = with_interval(speed_up_of(peer)).replace("×", "× our plain decoding", 1)
        chance = "" if speed_up_of(peer).excludes(1) else ", which may be chance"
        said.append(f"Another library was faster: {short(peer.entry)} ran at {ran}{chance}.")
    if main is not None and main.speed_up_of_means is not None:
        other, found = main.speed_up_of_means, speed_up_of(main)
        if (other.value > 1) != (found.value > 1):
            said.append(
                f"Taken over all tokens together, not text by text, {short(main.entry)} ran at {with_interval(other)}."
            )
    recipe, about = summary.run.about.recipe, summary.run.about
    prompts = len({record.prompt for record in summary.run.records})
    how = "every method followed plain decoding's text" if recipe.get("follow") else "every method wrote freely"
    heat = recipe.get("temperature")
    warmth = "" if heat is None else ", greedy" if heat == 0 else f", temperature {heat:g}"
    said.append(
        f"Suite {recipe.get('suite', about.workload.get('suite', '?'))}, {counted(prompts, 'prompt')} in "
        f"{counted(len(summary.cells()), 'cell')}{warmth}; {how}."
    )
    return " ".join(filter(None, said))


def equal_texts(summary: Summary) -> tuple[str, str] | None:
    """How many texts of methods are plain decoding's, and what else must be said; None where there are none to ask."""
    counts: dict[str, int] = {}
    for entry in summary.run.about.entries:
        figures = summary.figures(entry["name"])
        if entry["name"] != summary.base and entry.get("ours", True) and figures is not None:
            for verdict, count in figures.verdicts.items():
                counts[verdict] = counts.get(verdict, 0) + count
    total = sum(counts.values())
    if not total:
        return None
    odd = [
        f"{counts[v]} {v.value}"
        for v in (TextVerdict.BUG, TextVerdict.NOT_RESCORED, TextVerdict.NEAR_TIE)
        if counts.get(v)
    ]
    if counts.get(TextVerdict.FOLLOWED) == total:
        return f"{total} of {total}", "followed: by construction"
    if counts.get(TextVerdict.OWN) == total:
        return "own texts", "sampled with other random numbers"
    return f"{counts.get(TextVerdict.EQUAL, 0) + counts.get(TextVerdict.FOLLOWED, 0)} of {total}", ", ".join(odd)
