"""Texts, token by token: whether they are plain decoding's, and where each token came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, zip_longest

import numpy as np

from paceline.api.pictures import TokenPicture
from paceline.api.piece import Piece
from paceline.verify import Kind
from paceline_lab.bench.report.blocks import Block, Row, Table, TableCell, Text, Tokens, by_method
from paceline_lab.bench.report.words import NOTHING, counted, entries_of, number, rate, share, times
from paceline_lab.bench.run.record import Record, TextVerdict
from paceline_lab.bench.statistics import LOOPING
from paceline_lab.bench.summary import Figures, Summary

EXAMPLE_TOKENS = 160
QUOTED = 900
"""Letters of a prompt that are quoted; of a longer one its end, which the texts continue."""
SHORT = 16
"""Tokens below which a text is no good example."""
MEANINGS = {
    TextVerdict.REFERENCE: "plain decoding's own texts",
    TextVerdict.EQUAL: "plain decoding's text, token for token",
    TextVerdict.NEAR_TIE: "parts where two tokens are as good as equal, by a re-score in float32",
    TextVerdict.BUG: "parts for no reason that rounding gives: an error",
    TextVerdict.NOT_RESCORED: "parts, and nothing could tell why",
    TextVerdict.DIFFERENT: "another library's text, which parts from ours",
    TextVerdict.FOLLOWED: "followed plain decoding's text; at a flip it would have chosen another token",
    TextVerdict.OWN: "sampled with other random numbers, not meant to be equal",
}


def equality(summary: Summary) -> Iterator[Block]:
    """How texts compare with plain decoding's."""
    entries = entries_of(summary)
    seen = [verdict for verdict in TextVerdict if any(verdict in f.verdicts for _, _, f in entries)]

    def cells(_: str, f: Figures) -> list[str]:
        counts = [str(f.verdicts.get(verdict, "")) for verdict in seen]
        return [*counts, number(f.flips_per_1000), f"{f.texts:,}", share(f.repeated_8grams), str(f.degenerate)]

    head = [*(verdict.value for verdict in seen), "flips per 1000", "texts", "repeated 8-grams", "degenerate"]
    words = "; ".join(f"{verdict.value}: {MEANINGS[verdict]}" for verdict in seen)
    degenerate = (
        f"A text is degenerate where more than {LOOPING:.0%} of its 8-grams occurred before in it; loops flatter "
        "methods that look things up in the text."
    )
    yield by_method("Texts by how they compare with plain decoding's", head, entries, cells)
    yield Text(f"{words}. {degenerate}" if words else degenerate)


def pictured(record: Record, *, most: int | None = None) -> TokenPicture:
    """A record as a picture; ``most`` cuts it after that many tokens, at the end of a round."""
    pieces = tuple(_pieces(record))
    if most is not None and len(pieces) > most:
        last = pieces[most - 1].round
        pieces = tuple(p for p in pieces[: 2 * most] if p.round <= last) if record.rounds else pieces[:most]
    return TokenPicture("", pieces)


def _pieces(record: Record) -> Iterator[Piece]:
    """Its tokens with all that the record says of each. Text after the last token has none."""
    rounds = record.rounds or {"emitted": [], "drafted": [], "refused": []}
    emitted = np.array(rounds["emitted"], int)
    columns = (record.pieces, record.tokens, record.sources, record.scores, np.arange(len(emitted)).repeat(emitted))
    length, last = max(len(record.pieces), len(record.tokens)), max(len(emitted) - 1, 0)
    for text, token, source, score, place in islice(zip_longest(*columns), length):
        which = last if place is None else int(place)
        if token is None:
            yield Piece(text or "", None, "", round=which)
            continue
        round_of_token = (source or "", rounds["drafted"][which], rounds["refused"][which]) if len(emitted) else None
        kind = Kind.UNTOLD if round_of_token is None else Kind.of(*round_of_token)
        yield Piece(text or "", token, source or "", round=which, kind=kind, score=score or 0.0)


def figures_of(summary: Summary, text: int) -> str:
    """The caption of one text, by its number in the run."""
    record, row = summary.run.records[text], summary.texts.loc[text]
    said = [counted(len(record.tokens), "token")]
    if row.rounds > 0:
        said.append(f"{number(row.emitted / row.rounds)} per round")
    if record.speed:
        said.append(f"{rate(record.speed)} tokens/s")
    if record.entry != summary.base and text in (ratios := _ratios(summary)):
        said.append(times(ratios[text]))
    said.append(record.verdict.value + ("" if record.parts_at is None else f" (parts at token {record.parts_at + 1})"))
    return " · ".join([*said, *(["degenerate"] if row.looping else [])])


@lru_cache(maxsize=4)
def _ratios(summary: Summary) -> dict[int, float]:
    """The speed-up of each text."""
    pairs = summary.beside(summary.base)
    return dict(zip(pairs.text, pairs.ratio, strict=True))


def shown(summary: Summary, text: int, *, most: int | None = None, link: str = "") -> Tokens:
    """A text, by its number in the run, as a block."""
    record = summary.run.records[text]
    picture = pictured(record, most=most)
    cut = len(picture.pieces) < len(record.tokens)
    said = figures_of(summary, text) + (f" · the first {len(picture.pieces)} tokens" if cut else "")
    plain = record.text if record.rounds is None or not record.pieces else ""
    place = summary.entries.index(record.entry)
    return Tokens(picture, place, record.entry, said, link, source_numbers(summary), plain)


@lru_cache(maxsize=4)
def source_numbers(summary: Summary) -> Mapping[str, int]:
    """Every source of a run -> its number; 0 is the model itself."""
    records = (summary.run.records[text] for text in in_order(summary, range(len(summary.run.records))))
    sources = dict.fromkeys(source for record in records for source in record.sources if source)
    return {"": 0, **{source: place for place, source in enumerate(sources, start=1)}}


def in_order(summary: Summary, texts: Iterable[int]) -> list[int]:
    """Numbers of texts in the order of entries, which is not that in which they were written."""
    return sorted(texts, key=lambda text: summary.entries.index(summary.run.records[text].entry))


def typical(summary: Summary) -> list[int]:
    """A text of every method that drafts, on the prompt where tokens per round are nearest to what they are on the
    whole, so that no method is shown at its best. Loops and short texts come last."""
    texts = summary.texts[(summary.texts["repeat"] == 0) & summary.texts.rounds.notna()]
    if texts.empty:
        return []
    usual = texts.entry.map({entry: figures.tokens_per_round for _, entry, figures in entries_of(summary)})
    odd = np.log((texts.emitted / texts.rounds).clip(lower=0.1) / usual).abs().fillna(0.0)
    prompts = texts.assign(odd=odd, long=texts.tokens >= SHORT).groupby(["prompt", "turn"], sort=False)
    ranked = prompts.agg({"looping": "any", "long": "any", "odd": "mean"})
    prompt, turn = ranked.sort_values([*ranked], ascending=[True, False, True], kind="stable").index[0]
    chosen = texts[(texts.prompt == prompt) & (texts.turn == turn)]
    drafting = chosen[chosen.drafted > 0]
    return in_order(summary, drafting.index if len(drafting) else chosen.index[:1])


def quoted(summary: Summary, prompt: str, turn: int) -> list[Block]:
    """The prompt, if the run still has it."""
    known = summary.run.prompts.get(prompt)
    if known is None:
        return []
    words = known.turns[turn].strip()
    return [Text(words if len(words) <= QUOTED else "…" + words[-QUOTED:], "quote")]


def examples(summary: Summary, pages: Mapping[str, str]) -> Iterator[Block]:
    """A typical text of every method, and the list of prompts that have a page of texts."""
    found = typical(summary)
    if found:
        first = summary.run.records[found[0]]
        yield Text(
            f"One text ({first.task}, {first.language}, prompt {first.prompt}), as each method wrote it: the prompt "
            "whose tokens per round are nearest to those of the whole run. A drafted token has the colour of its "
            "source, a token of the model's own has none."
        )
        yield from quoted(summary, first.prompt, first.turn)
        link = pages.get(first.prompt, "")
        yield from (shown(summary, text, most=EXAMPLE_TOKENS, link=link) for text in found)
    else:
        yield Text("No contestant of this run recorded its rounds, so no text can be coloured.")
    if pages:
        yield _list_of_pages(summary, pages)
        if len(pages) < (total := summary.texts.prompt.nunique()):
            yield Text(f"{len(pages)} of {counted(total, 'prompt')} have a page; --texts {total} writes all.")


def _list_of_pages(summary: Summary, pages: Mapping[str, str]) -> Table:
    first = {record.prompt: record for record in reversed(summary.run.records)}
    rows = []
    for prompt, page in pages.items():
        record = first[prompt]
        beginning = " ".join(record.text.split())
        beginning = beginning if len(beginning) <= 60 else beginning[:59] + "…"
        name = page.rpartition("/")[2].removesuffix(".html")
        rows.append(Row(name, [TableCell(prompt, link=page), record.task, record.language, beginning or NOTHING]))
    head = ["page", "prompt", "task", "language", "begins"]
    return Table("Texts of all methods, prompt by prompt", head, rows, "words", folded=len(rows) > 8)


def prompts_to_show(summary: Summary, most: int) -> Sequence[str]:
    """Prompts that get a page: all, or those of the examples and others evenly spread over the run."""
    prompts = list(dict.fromkeys(record.prompt for record in summary.run.records))
    if len(prompts) <= most or not most:
        return prompts[:most]
    wanted = dict.fromkeys(summary.run.records[text].prompt for text in typical(summary)[:most])
    for place in range(most):
        if len(wanted) < most:
            wanted[prompts[int(place * len(prompts) / most)]] = None
    return [prompt for prompt in prompts if prompt in wanted]
