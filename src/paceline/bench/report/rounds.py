"""Sections on rounds: how many tokens they bring, how deep drafts are accepted, and what the time goes to."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.report.blocks import Beside, Block, Cell, Chart, Charts, Row, Section, Table, Text
from paceline.bench.report.charts import Bar, Series, bars, histogram, lines
from paceline.bench.report.speed import written_entries
from paceline.bench.report.words import NOTHING, listed, number, share
from paceline.bench.run.record import SPLIT
from paceline.bench.summary import Figures, Summary

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
SILENT = "tell nothing of their rounds"


def _silent(entries: Sequence[tuple[int, str, Figures]]) -> list[Block]:
    """Who is left out, and why."""
    names = [entry for _, entry, figures in entries if figures.rounds is None]
    return [Text(f"Other libraries tell nothing of their rounds: {listed(names)}.")] if names else []


def per_round(summary: Summary) -> Section:
    """How many tokens a round brought, a picture for each method."""
    entries = written_entries(summary)
    told = [(number, entry, figures) for number, entry, figures in entries if figures.rounds_by_tokens]
    if not told:
        return Section("rounds", "Tokens per round", [Text("No contestant of this run told its rounds.")])
    longest = max(max(figures.rounds_by_tokens) for _, _, figures in told)
    last = max(2, min(MANY, longest))
    shares = {entry: _shares(figures) for _, entry, figures in told}
    # plain decoding's rounds are all of one token: a bar as high as the page, which would flatten the others
    top = max((_gathered_top(s, last) for entry, s in shares.items() if entry != summary.base), default=1.0)
    charts = [
        Chart(
            histogram(
                f"Tokens per round of {entry}",
                f"{share(shares[entry].get(1, 0.0))} of rounds brought a single token; the mean is "
                f"{number(figures.tokens_per_round)}.",
                shares[entry],
                figures.tokens_per_round or 0.0,
                top,
                last,
                number_,
            ),
            f"mean {number(figures.tokens_per_round)}, longest {max(figures.rounds_by_tokens)}",
            number_,
            entry,
        )
        for number_, entry, figures in told
        if entry != summary.base or len(told) == 1
    ]
    counts = list(range(1, last + 1))
    head = ["method", "mean", *(f"{n}+" if n == last and longest > last else str(n) for n in counts)]
    rows = [
        Row(
            entry,
            [number(figures.tokens_per_round), *(_share_cell(_share_of(shares[entry], n, last)) for n in counts)],
            number_,
        )
        for number_, entry, figures in told
    ]
    table = Table("Share of rounds by the number of tokens that they brought", head, rows)
    note = Text(
        "A round is one call of the model; it brings what was accepted of the draft and one token of the model's own. "
        "The line is the mean. Plain decoding brings one token in every round."
    )
    return Section("rounds", "Tokens per round", [Charts(charts), note, table, *_words_for_rounds(entries)])


def _words_for_rounds(entries: Sequence[tuple[int, str, Figures]]) -> list[Block]:
    rows = [
        Row(
            entry,
            [
                number(f.tokens_per_round),
                number(f.mean_accepted),
                number(f.accepted_per_draft),
                share(f.acceptance_rate),
                share(f.coverage),
                NOTHING if f.rounds is None else f"{f.rounds:,}",
                NOTHING if f.stalls is None else str(f.stalls),
            ],
            number_,
        )
        for number_, entry, f in entries
    ]
    head = ["method", "tokens per round", "mean accepted", "accepted per draft", "acceptance rate", "coverage"]
    table = Table("Acceptance in one set of words", [*head, "rounds", "stalls"], rows)
    note = (
        "Tokens per round counts the model's own token, mean accepted does not; accepted per draft leaves out rounds "
        "without a draft; acceptance rate is accepted over drafted tokens, all nodes of a tree counted; coverage is "
        "the share of rounds that drafted; a stall is a round of more than five times the method's median."
    )
    return [table, Text(note), *_silent(entries)]


def _shares(figures: Figures) -> dict[int, float]:
    total = sum(figures.rounds_by_tokens.values())
    return {int(count): rounds / total for count, rounds in figures.rounds_by_tokens.items()}


def _share_of(shares: dict[int, float], count: int, last: int) -> float:
    return sum(s for n, s in shares.items() if n >= last) if count == last else shares.get(count, 0.0)


def _gathered_top(shares: dict[int, float], last: int) -> float:
    return max(_share_of(shares, count, last) for count in range(1, last + 1))


def _share_cell(value: float) -> Cell:
    return Cell(share(value) if value else "", bar=value)


def by_position(summary: Summary) -> Section:
    """How deep drafts are accepted."""
    entries = written_entries(summary)
    told = [(n, entry, f) for n, entry, f in entries if f.acceptance_per_position]
    if not told:
        said = "No contestant of this run drafted and told its rounds, so there is no acceptance by position."
        return Section("positions", "Acceptance by position", [Text(said)])
    series = [Series(entry, n, f.acceptance_per_position, f.drafted_per_position) for n, entry, f in told]
    said = "; ".join(f"{one.name}: {', '.join(share(v) for v in one.values)}" for one in series)
    svg = lines("Acceptance by position", said, series, ("position in the draft", "accepted at least so deep"))
    deepest = max(len(one.values) for one in series)
    head = ["method", *map(str, range(1, deepest + 1))]
    rows = [Row(one.name, [_depth_cell(one, place) for place in range(deepest)], one.number) for one in series]
    note = Text(
        "Of the rounds with a draft, the share that accepted at least so many of its tokens. The larger a mark, the "
        "more drafts went so deep; the small numbers of the table tell how many."
    )
    table = Table("Share of drafts accepted so deep; beneath, the share of drafts that went so deep", head, rows)
    legend = [(one.number, one.name) for one in series]
    chart = Charts([Chart(svg)], legend)
    blocks: list[Block] = [Beside(chart, [note, table])] if deepest <= NARROW else [Beside(chart, [note]), table]
    return Section("positions", "Acceptance by position", blocks)


def _depth_cell(one: Series, place: int) -> Cell:
    if place >= len(one.values):
        return Cell("")
    return Cell(share(one.values[place]), f"of {share(one.weights[place])}")


def time_split(summary: Summary) -> Section:
    """What the time of a token goes to."""
    entries = written_entries(summary)
    rows, table = [], []
    for number_, entry, figures in entries:
        stretches, total = _stretches(summary, entry, figures)
        label = f"{number(total, 1)} ms"
        rows.append(
            Bar(entry, [(f"p-{part}", ms, f"{part}: {number(ms)} ms per token") for part, ms in stretches], label)
        )
        named = dict(stretches)
        cells: list[Cell | str] = [Cell(number(total), bar=total)]
        cells += [number(named[part]) if part in named else NOTHING for part in SPLIT]
        table.append(Row(entry, cells, number_))
    told = "; ".join(f"{row.name} {row.label}" for row in rows)
    svg = bars("Time per token by what it goes to", f"Milliseconds per token: {told}.", rows, " ms")
    parts = [(f"p-{part}", said) for part, said in PARTS.items()]
    silent = [entry for _, entry, figures in entries if not figures.split]
    if silent:
        parts.append((f"p-{UNTOLD}", "not told apart"))
    chart = Charts([Chart(svg, "Milliseconds per token, the whole call, prefill and all.")], parts=parts)
    right: list[Text | Table] = [Table("Milliseconds per token", ["method", "all", *SPLIT], table)]
    if silent:
        right.append(
            Text(f"Other libraries do not tell what their time goes to: {listed(silent)}; a bar is their whole call.")
        )
    return Section("time", "Where the time goes", [Beside(chart, right)])


def _stretches(summary: Summary, entry: str, figures: Figures) -> tuple[list[tuple[str, float]], float]:
    """Parts in milliseconds per token, and their sum."""
    if not figures.tokens:
        return [], 0.0
    if figures.split:
        found = [(part, 1000 * figures.split.get(part, 0.0) * figures.texts / figures.tokens) for part in SPLIT]
        return found, sum(ms for _, ms in found)
    total = 1000 * sum(record.seconds for record in summary.records(entry)) / figures.tokens
    return [(UNTOLD, total)], total
