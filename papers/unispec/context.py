"""Table 11: prompts that are brought to lengths of context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline_lab import Prompt, Sources, Summary, Vocabulary, as_lines, languages_of, open_suite, passages
from papers.charts import Panel, curves
from papers.driver import Given, write
from papers.report import Report, Way
from papers.speeds import by, compared, of_runs, speed_up
from papers.unispec.lab import SizesLab

LENGTHS = 1024, 2048, 4096, 8192, 16384, 32768
SPARE, TEMPLATE, CHARACTERS = 8, 32, 6
"""Tokens by which a text may be longer than its share of a longer one says; those of the chat template in each turn;
and characters that a token may have on average."""
PASSAGES = 4000


def lengths_within(limit: int | None) -> list[int]:
    """Lengths of prompt and answer together that fit; the whole context where even the first does not."""
    limit = limit or LENGTHS[-1]
    return [length for length in LENGTHS if length <= limit] or [limit]


def fitted(prompt: Prompt, vocabulary: Vocabulary, text: str, length: int, tokens: int) -> Prompt:
    """The same prompt with a text before it that fills a context of ``length`` tokens. Later turns and the answers to
    all have their room."""
    first, *later = prompt.turns
    taken = sum(len(vocabulary.encode(turn)) for turn in later) + len(prompt.turns) * (tokens + TEMPLATE)
    room = length - taken - SPARE
    if room < 1:
        raise ValueError(f"--max-new-tokens {tokens} leaves no room in a context of {length} tokens")
    size = len(vocabulary.encode(first))
    if size > room:
        first = first[-(len(first) * room // size) :]
    elif missing := room - size:
        piece = text[: CHARACTERS * missing]
        there = len(vocabulary.encode(piece))
        if there < missing:
            raise ValueError(f"there is too little running text for contexts of {length} tokens; name more --langs")
        first = f"{piece[: len(piece) * missing // there]}\n\n{first}"
    return replace(prompt, key=f"{prompt.key}-{length}", turns=(first, *later))


def prompts(asked: Sequence[Prompt], vocabulary: Vocabulary, text: str, length: int, tokens: int) -> list[Prompt]:
    """All prompts at a length, each behind another place of the text."""
    starts = [len(text) * number // (len(asked) + 1) for number in range(len(asked))]
    around = text + text
    return [
        fitted(prompt, vocabulary, around[start:], length, tokens) for prompt, start in zip(asked, starts, strict=True)
    ]


def running_text(data: Path | None, languages: Sequence[str]) -> str:
    """Of one language after the other."""
    sources = Sources(data)
    known = languages_of(sources)
    return "\n".join(one.text for name in languages if name in known for one in passages(sources, name, PASSAGES))


def context(runs: Mapping[int, Summary], limit: int | None) -> Report:
    """A run for each length."""
    (short, first), *_, (long, last) = [*runs.items()] * 2
    entry, claims = first.entries[1], []
    if len(runs) > 1:
        claim, paper = f"the speed-up at {long} tokens is that at {short}", "1.93x at 32768 and 1.86x at 1024 tokens"
        claims = [compared(claim, paper, speed_up(last, entry), speed_up(first, entry), Way.LEVEL)]
    notes = list[str]()
    if limit and limit < LENGTHS[-1]:
        left = ", ".join(str(length) for length in LENGTHS if length > limit)
        notes = [f"the model's context ends at {limit} tokens; {left} are left out"]
    lines = curves({e: e for e in first.entries}, runs, lambda run, e: speed_up(run, e).value, first=0)
    panels = [Panel("Speed-up by length", "tokens", "x plain", lines, log=True)]
    return Report("UniSpec, Table 11: context length", [by("task", of_runs(runs))], claims, notes, panels)


def table11(given: Given) -> Report:
    """Table 11: speed-up by context length, 1,024 to 32,768 tokens, by task, as far as the model's context goes.

    Every prompt of a task is brought to every length. Where it is too short, running text stands before it; where it is
    too long, it loses its beginning.
    """
    lab = SizesLab(given)
    lm, methods = lab.model(), [lab.sized(), *lab.beside()]
    assert lm.vocabulary is not None, "the prompts are texts"
    limit: int | None = lm.target.context_length
    how = {"tasks": given.tasks, "languages": lab.prompts()["langs"], "limit": given.limit, "data": given.data}
    asked = open_suite(given.suite, **how).prompts
    text, stages = running_text(given.data, given.langs or ["en"]), {}
    for length in lengths_within(limit):
        file = lab.out / f"prompts-{length}.jsonl"
        write(file, as_lines(prompts(asked, lm.vocabulary, text, length, given.max_new_tokens)))
        whole = {"suite": f"prompts:{file}", "limit": None, "langs": None, "tasks": None}
        stages[length] = {"methods": methods, **whole}
    return lab.whole(context(lab.races(stages), limit))
