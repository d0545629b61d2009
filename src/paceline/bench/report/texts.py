"""Texts, token by token: are they plain decoding's, and who wrote what of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from paceline.api.pictures import TokenPicture
from paceline.bench.report.blocks import Block, Cell, Quote, Row, Section, Table, Text, Tokens
from paceline.bench.report.speed import written_entries
from paceline.bench.report.words import NOTHING, counted, number, rate, share, times
from paceline.bench.run.record import Record, Verdict
from paceline.bench.summary import LOOPING, Summary, repeated, speed_up
from paceline.engine.account import Totals
from paceline.verify import Kind

EXAMPLE_TOKENS = 160
QUOTED = 900
"""Letters of a prompt that are quoted; of a longer one its end, which is what was gone on from."""
MEANINGS = {
    Verdict.REFERENCE: "plain decoding's own texts",
    Verdict.EQUAL: "plain decoding's text, token for token",
    Verdict.NEAR_TIE: "parts where two tokens are as good as equal, by a re-score in float32",
    Verdict.BUG: "parts for no reason that rounding gives: an error",
    Verdict.NOT_RESCORED: "parts, and nothing could tell why",
    Verdict.DIFFERENT: "another library's text, which parts from ours",
    Verdict.FOLLOWED: "walked plain decoding's text; flips would have gone another way",
    Verdict.OWN: "sampled with other coins, not meant to be equal",
}


@dataclass(frozen=True)
class Spelled:
    """A token of a record, as pictures want it."""

    text: str
    token: int | None
    source: str = ""
    round: int = 0
    kind: str = Kind.UNTOLD
    score: float = 0.0


def equality(summary: Summary) -> Section:
    """How texts compare with plain decoding's."""
    entries = written_entries(summary)
    seen = [verdict for verdict in Verdict if any(verdict in f.verdicts for _, _, f in entries)]
    rows = [
        Row(
            entry,
            [
                *(Cell(str(f.verdicts[v])) if v in f.verdicts else Cell("") for v in seen),
                number(f.flips_per_1000),
                f"{f.texts:,}",
                share(f.repeated_8grams),
                str(f.degenerate),
            ],
            n,
        )
        for n, entry, f in entries
    ]
    head = ["method", *(v.value for v in seen), "flips per 1000", "texts", "repeated 8-grams", "degenerate"]
    words = "; ".join(f"{verdict.value}: {MEANINGS[verdict]}" for verdict in seen)
    degenerate = (
        f"A text is degenerate where more than {LOOPING:.0%} of its 8-grams occurred before in it; loops flatter "
        "methods that look things up in the text."
    )
    table = Table("Texts by how they compare with plain decoding's", head, rows)
    return Section("equality", "The same text?", [table, Text(f"{words}. {degenerate}" if words else degenerate)])


def pictured(record: Record, *, most: int | None = None) -> TokenPicture:
    """A record as a picture; ``most`` cuts it after so many tokens, at the end of a round."""
    pieces = tuple(_pieces(record))
    if most is not None and len(pieces) > most:
        last = pieces[most - 1].round
        pieces = tuple(p for p in pieces[: 2 * most] if p.round <= last) if record.rounds else pieces[:most]
    return TokenPicture("", pieces, _totals(record))


def _pieces(record: Record) -> Iterator[Spelled]:
    """Its tokens with all that the record tells of each. Text behind the last token has none."""
    rounds = record.rounds or {}
    number, ends = 0, _ends(rounds.get("emitted", []))
    told = zip_longest(record.pieces, record.tokens)
    for place, (text, token) in enumerate(told):
        while number + 1 < len(ends) and place >= ends[number]:
            number += 1
        if token is None:
            yield Spelled(text or "", None, round=number)
            continue
        source = record.sources[place] if place < len(record.sources) else ""
        score = record.scores[place] if place < len(record.scores) else 0.0
        kind = Kind.of(source, rounds["drafted"][number], rounds["refused"][number]) if ends else Kind.UNTOLD
        yield Spelled(text or "", token, source, number, kind, score)


def _ends(emitted: Sequence[float]) -> list[int]:
    ends, done = list[int](), 0
    for count in emitted:
        done += int(count)
        ends.append(done)
    return ends


def _totals(record: Record) -> Totals:
    rounds = record.rounds or {}
    drafted = rounds.get("drafted", [])
    return Totals(
        rounds=len(rounds.get("emitted", [])),
        tokens=len(record.tokens),
        drafted=int(sum(drafted)),
        accepted=int(sum(rounds.get("accepted", []))),
        drafting_rounds=sum(count > 0 for count in drafted),
        seconds_prefill=(record.split or {}).get("prefill", 0.0),
        seconds_draft=sum(rounds.get("seconds_draft", [])),
        seconds_score=sum(rounds.get("seconds_score", [])),
        seconds_read=sum(rounds.get("seconds_read", [])),
        seconds_judge=sum(rounds.get("seconds_judge", [])),
    )


def figures_of(summary: Summary, record: Record) -> str:
    """What is said of one text."""
    said = [counted(len(record.tokens), "token")]
    if record.rounds is not None and record.rounds["emitted"]:
        rounds = len(record.rounds["emitted"])
        said.append(f"{number(len(record.tokens) / rounds)} per round")
    if record.speed:
        said.append(f"{rate(record.speed)} tokens/s")
    pair = summary.pairs([record])
    if record.entry != summary.base and pair:
        said.append(times(speed_up(*pair[0])))
    said.append(record.verdict.value + ("" if record.parts_at is None else f" (parts at token {record.parts_at + 1})"))
    if repeated(tuple(record.tokens)) > LOOPING:
        said.append("degenerate")
    return " · ".join(said)


def shown(summary: Summary, record: Record, *, most: int | None = None, link: str = "") -> Tokens:
    picture = pictured(record, most=most)
    cut = len(picture.pieces) < len(record.tokens)
    said = figures_of(summary, record) + (f" · the first {len(picture.pieces)} tokens" if cut else "")
    plain = record.text if record.rounds is None or not record.pieces else ""
    place = summary.entries.index(record.entry)
    return Tokens(picture, place, record.entry, said, link, source_numbers(summary), plain)


@lru_cache(maxsize=4)
def source_numbers(summary: Summary) -> Mapping[str, int]:
    """Every source of a run by a number of its own; 0 is the model itself."""
    sources = {source: None for r in in_order(summary, summary.run.records) for source in r.sources if source}
    return {"": 0, **{source: number for number, source in enumerate(sources, start=1)}}


def in_order(summary: Summary, records: Sequence[Record]) -> list[Record]:
    """Records in the order of entries, which is not that in which they were written."""
    return sorted(records, key=lambda record: summary.entries.index(record.entry))


def telling(summary: Summary) -> list[Record]:
    """A text of every method, on the prompt where what rounds bring is nearest to what they bring on the whole, so
    that nobody is shown at their best. Loops are left out where there is anything else."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in summary.run.records:
        if record.repeat == 0 and record.rounds is not None:
            groups.setdefault((record.prompt, record.turn), []).append(record)
    best = min(groups.values(), key=lambda found: _oddity(summary, found), default=[])
    drafting = [record for record in best if any((record.rounds or {}).get("drafted", []))]
    return in_order(summary, drafting or best[:1])


def _oddity(summary: Summary, records: Sequence[Record]) -> tuple[bool, bool, float]:
    odd = 0.0
    for record in records:
        figures = summary.figures(record.entry)
        if record.rounds and record.rounds["emitted"] and figures is not None and figures.tokens_per_round:
            here = len(record.tokens) / len(record.rounds["emitted"])
            odd += abs(math.log(max(here, 0.1) / figures.tokens_per_round))
    short = all(len(record.tokens) < 16 for record in records)
    return any(repeated(tuple(r.tokens)) > LOOPING for r in records), short, odd / max(len(records), 1)


def quoted(summary: Summary, prompt: str, turn: int) -> list[Block]:
    """What was asked, where the run still knows it."""
    known = summary.run.prompts.get(prompt)
    if known is None:
        return []
    words = known.turns[turn].strip()
    return [Quote(words if len(words) <= QUOTED else "…" + words[-QUOTED:])]


def examples(summary: Summary, pages: dict[str, str], chosen: Sequence[str], total: int) -> Section:
    """One telling text of every method, and the list of all that have a page."""
    found = telling(summary)
    blocks: list[Block] = []
    if found:
        where = f"{found[0].task}, {found[0].language}, prompt {found[0].prompt}"
        blocks.append(
            Text(
                f"One text ({where}), as each method wrote it: the one where rounds brought most nearly what they "
                "bring on the whole. What was drafted stands on its source's colour, the model's own tokens on none."
            )
        )
        blocks += quoted(summary, found[0].prompt, found[0].turn)
        blocks += [shown(summary, r, most=EXAMPLE_TOKENS, link=pages.get(r.prompt, "")) for r in found]
    else:
        blocks.append(Text("No contestant of this run told its rounds, so no text can be coloured."))
    if chosen:
        blocks.append(_list_of_pages(summary, pages, chosen))
        if len(chosen) < total:
            blocks.append(Text(f"{len(chosen)} of {counted(total, 'prompt')} have a page; --texts {total} writes all."))
    return Section("texts", "Texts, token by token", blocks)


def _list_of_pages(summary: Summary, pages: dict[str, str], chosen: Sequence[str]) -> Table:
    first = {record.prompt: record for record in reversed(summary.run.records)}
    rows = []
    for prompt in chosen:
        record = first[prompt]
        beginning = " ".join(record.text.split())
        beginning = beginning if len(beginning) <= 60 else beginning[:59] + "…"
        rows.append(
            Row(
                pages[prompt].rpartition("/")[2].removesuffix(".html"),
                [Cell(prompt, link=pages[prompt]), record.task, record.language, beginning or NOTHING],
            )
        )
    head = ["page", "prompt", "task", "language", "begins"]
    return Table("Texts of all methods, prompt by prompt", head, rows, folded=len(rows) > 8, words=True)


def prompts_to_show(summary: Summary, most: int) -> list[str]:
    """Prompts that get a page: all, or those of the examples and others evenly spread over the run."""
    prompts = list(dict.fromkeys(record.prompt for record in summary.run.records))
    if len(prompts) <= most or not most:
        return prompts[:most]
    wanted = dict.fromkeys([record.prompt for record in telling(summary)][:most])
    step = len(prompts) / most
    for number_ in range(most):
        if len(wanted) < most:
            wanted[prompts[int(number_ * step)]] = None
    return [prompt for prompt in prompts if prompt in wanted]
