"""Sections on rounds (how many tokens they bring, how deep drafts are accepted, where the time goes) and on what a text
costs: latency, energy, memory."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_lab.bench.report.blocks import Block, Chart, Group, TableCell, Text, by_method
from paceline_lab.bench.report.charts import Bar, Scales, Series, bars, histogram, plot
from paceline_lab.bench.report.words import (
    NOTHING,
    Entries,
    entries_of,
    listed,
    number,
    seconds,
    seconds_between,
    share,
    size,
)
from paceline_lab.bench.run.record import SPLIT
from paceline_lab.bench.statistics import Estimate
from paceline_lab.bench.summary import PERCENTILES, Figures, Summary, of_cell

MANY = 12
"""Tokens of a round from which bars are gathered."""
NARROW = 6
"""Positions that a table beside a picture has room for."""
UNTOLD = "untold"
PARTS = {
    "prefill": "prefill: reading the prompt",
    "draft": "draft: proposing tokens",
    "score": "score: the model's forwards",
    "read": "read: logits to laws",
    "judge": "judge: accepting, keeping, learning",
    "rest": "rest",
}
LATENCY_PARTS = {"first": "until the first token", "later": "from there to the last"}
BOTH = [(which, f"p{percent}") for which in ("first", "last") for percent in PERCENTILES]
ABOUT_ROUNDS = (
    "A round is one call of the model; it brings the accepted part of the draft and one token of the model's own. "
    "The line is the mean. Plain decoding brings one token in every round."
)
ABOUT_WORDS = (
    "Tokens per round counts the model's own token, mean accepted does not; accepted per draft leaves out rounds "
    "without a draft; acceptance rate is accepted over drafted tokens, all nodes of a tree counted; coverage is the "
    "share of rounds that drafted; a stall is a round of more than five times the method's median."
)
ABOUT_POSITIONS = (
    "Of the rounds with a draft, the share that accepted at least this many tokens. The larger a mark, the more "
    "drafts went so deep; the small numbers of the table tell how many."
)


def per_round(summary: Summary) -> Iterator[Block]:
    """How many tokens a round brought, a chart for each method."""
    entries = entries_of(summary)
    recorded = [(n, entry, figures) for n, entry, figures in entries if figures.rounds_by_tokens]
    if not recorded:
        yield Text("No contestant of this run recorded its rounds.")
        return
    longest = max(max(figures.rounds_by_tokens) for _, _, figures in recorded)
    last, more = max(2, min(MANY, longest)), longest > MANY
    shares = {entry: _shares(figures, last) for _, entry, figures in recorded}
    # plain decoding's rounds are all of one token: a bar as high as the page, which would flatten the others
    top = max((max(found) for entry, found in shares.items() if entry != summary.base), default=1.0)

    def chart(n: int, entry: str, figures: Figures) -> Chart:
        mean = number(figures.tokens_per_round)
        said = f"{share(shares[entry][0])} of rounds brought a single token; the mean is {mean}."
        title, value = f"Tokens per round of {entry}", figures.tokens_per_round or 0.0
        svg = histogram(title, said, shares[entry], value, top, n, more)
        return Chart(svg, f"mean {mean}, longest {max(figures.rounds_by_tokens)}", owner=(n, entry))

    def cells(entry: str, figures: Figures) -> list[TableCell | str]:
        return [number(figures.tokens_per_round), *(TableCell(share(s) if s else "", bar=s) for s in shares[entry])]

    yield Group([chart(*one) for one in recorded if one[1] != summary.base or len(recorded) == 1], "many")
    yield Text(ABOUT_ROUNDS)
    head = ["mean", *map(str, range(1, last)), f"{last}+" if more else str(last)]
    yield by_method("Share of rounds by the number of tokens that they brought", head, recorded, cells)
    yield from _words(entries)


def _shares(figures: Figures, last: int) -> list[float]:
    """Of rounds that brought 1, 2 and so on up to ``last`` tokens or more."""
    total = sum(figures.rounds_by_tokens.values())
    shares = [figures.rounds_by_tokens.get(count, 0) / total for count in range(1, last)]
    return [*shares, sum(rounds for count, rounds in figures.rounds_by_tokens.items() if count >= last) / total]


def _words(entries: Entries) -> Iterator[Block]:
    """Acceptance in the words of the house, and which entries do not report rounds."""

    def cells(_: str, f: Figures) -> list[str]:
        return [
            *map(number, (f.tokens_per_round, f.mean_accepted, f.accepted_per_draft)),
            *map(share, (f.acceptance_rate, f.coverage)),
            *(NOTHING if count is None else f"{count:,}" for count in (f.rounds, f.stalls)),
        ]

    head = [
        "tokens per round",
        "mean accepted",
        "accepted per draft",
        "acceptance rate",
        "coverage",
        "rounds",
        "stalls",
    ]
    yield by_method("Acceptance in one set of words", head, entries, cells)
    yield Text(ABOUT_WORDS)
    if names := [entry for _, entry, figures in entries if figures.rounds is None]:
        yield Text(f"Other libraries tell nothing of their rounds: {listed(names)}.")


def by_position(summary: Summary) -> Iterator[Block]:
    """How deep drafts are accepted."""
    drafting = [(n, entry, f) for n, entry, f in entries_of(summary) if f.acceptance_per_position]
    if not drafting:
        yield Text("No contestant of this run drafted and recorded its rounds, so there is no acceptance by position.")
        return
    deepest = max(len(f.acceptance_per_position) for _, _, f in drafting)
    said = "; ".join(f"{entry}: {', '.join(map(share, f.acceptance_per_position))}" for _, entry, f in drafting)
    words = ("position in the draft", "accepted at least so deep")
    scales = Scales(words, places=range(1, deepest + 1, -(-deepest // 12)), percent=True)
    chart = plot("Acceptance by position", said, [_series(*one) for one in drafting], scales, 260)

    def cells(_: str, f: Figures) -> list[TableCell]:
        places = zip(f.acceptance_per_position, f.drafted_per_position, strict=True)
        found = [TableCell(share(accepted), f"of {share(drafted)}") for accepted, drafted in places]
        return found + [TableCell("")] * (deepest - len(found))

    caption = "Share of drafts accepted so deep; beneath, the share of drafts that went so deep"
    table = by_method(caption, list(map(str, range(1, deepest + 1))), drafting, cells)
    beside = deepest <= NARROW
    yield Group([chart, Text(ABOUT_POSITIONS), *([table] if beside else [])])
    if not beside:
        yield table


def _series(n: int, entry: str, figures: Figures) -> Series:
    places = list(zip(figures.acceptance_per_position, figures.drafted_per_position, strict=True))
    tips = [
        f"{entry}, position {place}: {accepted:.1%} accepted; {drafted:.1%} of drafts went so deep"
        for place, (accepted, drafted) in enumerate(places, start=1)
    ]
    points = [(place, accepted) for place, (accepted, _) in enumerate(places, start=1)]
    return Series(n, entry, points, tips, [20 + 100 * drafted for _, drafted in places], joined=True)


def time_split(summary: Summary) -> Iterator[Block]:
    """Where the time of a token goes."""
    entries = entries_of(summary)
    parts = {entry: _milliseconds(summary, figures) for _, entry, figures in entries}

    def bar(entry: str) -> Bar:
        tips = [(part, ms, f"{part}: {number(ms)} ms per token") for part, ms in parts[entry].items()]
        return Bar(entry, tips, f"{number(sum(parts[entry].values()), 1)} ms")

    def cells(entry: str, _: Figures) -> list[TableCell | str]:
        total = sum(parts[entry].values())
        return [TableCell(number(total), bar=total), *(number(parts[entry].get(part)) for part in SPLIT)]

    silent = [entry for _, entry, figures in entries if not figures.split]
    note = f"Other libraries do not report what their time goes to: {listed(silent)}; a bar is their whole call."
    caption, title = "Milliseconds per token", "Time per token by what it goes to"
    legend = PARTS | ({UNTOLD: "not told apart"} if silent else {})
    chart = bars(title, caption, list(map(bar, parts)), " ms", f"{caption}, the whole call, prefill and all.", legend)
    table = by_method(caption, ["all", *SPLIT], entries, cells)
    yield Group([chart, table, *([Text(note)] if silent else [])])


def _milliseconds(summary: Summary, figures: Figures) -> dict[str, float]:
    """Milliseconds per token by what they were spent on."""
    if not figures.tokens:
        return {}
    if figures.split:
        return {part: 1000 * seconds * figures.texts / figures.tokens for part, seconds in figures.split.items()}
    return {UNTOLD: 1000 * float(of_cell(summary.texts, figures.entry).seconds.sum()) / figures.tokens}


def latency(summary: Summary) -> Iterator[Block]:
    """Time to the first token and to the last."""
    entries = entries_of(summary)

    def bar(entry: str, first: Estimate, whole: Estimate) -> Bar:
        until, then = seconds(first.value), seconds(whole.value)
        later = max(whole.value - first.value, 0.0)
        parts = [("first", first.value, f"first token after {until}"), ("later", later, f"last token after {then}")]
        return Bar(entry, parts, f"{until} · {then}")

    def cells(_: str, figures: Figures) -> list[TableCell]:
        return [
            TableCell(seconds(one.value), seconds_between(one), bar=one.value)
            for one in (figures.seconds_first, figures.seconds)
        ]

    rows = [bar(entry, figures.seconds_first, figures.seconds) for _, entry, figures in entries]
    description, caption = "Median seconds to the first and the last token", "Medians over texts, in seconds."
    chart = bars("First and last token", description, rows, " s", caption, LATENCY_PARTS)
    yield Group([chart, by_method("Medians, with 95% intervals", ["first token", "whole text"], entries, cells)])
    arrivals = [one for one in entries if one[2].latency]
    if arrivals:
        head = [f"{which}, {percentile}" for which, percentile in BOTH]
        yield by_method(
            "Percentiles, from arrival", head, arrivals, lambda _, f: [seconds(f.latency[a][b]) for a, b in BOTH]
        )
        qps = summary.run.about.recipe.get("qps")
        yield Text(f"Prompts arrived on their own, {qps:g} a second; times count from arrival, waiting included.")


def energy(summary: Summary) -> Iterator[Block]:
    """Joules per token, measured or estimated, and memory."""
    entries, about = entries_of(summary), summary.run.about.energy
    metered = [(n, entry, f) for n, entry, f in entries if f.joules_per_token is not None]
    if metered:
        measured, watts = about.get("measured"), about.get("watts")
        stated = f": time × a stated {watts:g} W" if watts else ""
        how = f"measured by {about.get('source')}" if measured else f"estimated{stated}"
        yield _joules(metered, summary.base, f"Joules per token, {how}")
        return
    because = f" ({about['why']})" if about.get("why") else ""
    yield Text(
        f"No energy was counted{because}. Run with --energy auto where the machine has a meter, or with "
        "--watts W for an estimate from a power that you state."
    )
    if peaks := [(n, entry, f) for n, entry, f in entries if f.peak_bytes is not None]:
        yield by_method("Peak memory", ["bytes"], peaks, lambda _, f: [size(f.peak_bytes)])


def _joules(metered: Entries, base: str, caption: str) -> Block:
    joules = {entry: f.joules_per_token or 0.0 for _, entry, f in metered}
    shown = {entry: number(value, 3) for entry, value in joules.items()}
    rows = [
        Bar(entry, [("energy", joules[entry], f"{shown[entry]} J per token")], f"{shown[entry]} J") for entry in joules
    ]

    def cells(entry: str, f: Figures) -> list[TableCell | str]:
        of_plain = number(joules[entry] / joules[base]) if joules.get(base) else NOTHING
        return [TableCell(shown[entry], bar=joules[entry]), of_plain, size(f.peak_bytes)]

    chart = bars(caption, caption, rows, " J", f"{caption}.")
    return Group([chart, by_method(caption, ["joules", "of plain's", "peak memory"], metered, cells)])
