"""Table 11: speed-up by context length, 1,024 to 32,768 tokens, by task, as far as the model's context goes.

    python -m papers.unispec.table11_context

Every prompt of a task is brought to every length. Where it is too short, running text stands before it; where it is too
long, it loses its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from paceline_lab import Prompt, Sources, Summary, Vocabulary, as_lines, languages_of, open_suite, passages
from papers.common import Claim, Panel, Report, Way, script, write
from papers.unispec.common import Lab, between, curves, over, parser, size_notes, sized, speed_up
from papers.unispec.tables import beside, by, conditions, of_runs, remarks

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
    """The same prompt, of whose context a text of so many tokens fills the rest. Later turns and the answers to all
    have their room."""
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


def report(runs: Mapping[str, Summary], limit: int | None, notes: Sequence[str] = ()) -> Report:
    """A run for each length."""
    (short, first), *_, (long, last) = [*runs.items()] * 2
    entry, claims = first.entries[1], list[Claim]()
    if len(runs) > 1:
        one, two = speed_up(last, entry), speed_up(first, entry)
        claim, paper = f"the speed-up at {long} tokens is that at {short}", "1.93x at 32768 and 1.86x at 1024 tokens"
        claims.append(Claim.of(claim, paper, between(one, two), Way.LEVEL, over(one, two)))
    if limit and limit < LENGTHS[-1]:
        left = ", ".join(str(length) for length in LENGTHS if length > limit)
        notes = [*notes, f"the model's context ends at {limit} tokens; {left} are left out"]
    lines = curves(first.entries, [(float(length), partial(speed_up, run)) for length, run in runs.items()])
    panels = [Panel("Speed-up by length", "tokens", "x plain", lines, log=True)]
    table = by("task", of_runs(runs))
    return Report("UniSpec, Table 11: context length", [table], claims, [*notes, *remarks(runs.values())], panels)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(suite="spec-bench")
    lab = Lab(given := options.parse_args())
    lm, methods = lab.model(), [sized(lab.method, lab.size()), *beside(lab)]
    assert lm.vocabulary is not None, "the prompts are texts"
    limit: int | None = lm.target.context_length
    how = {"tasks": given.tasks, "languages": lab.languages, "limit": given.limit, "data": given.data}
    asked = open_suite(given.suite, **how).prompts
    text, stages = running_text(given.data, given.langs or ["en"]), {}
    for length in lengths_within(limit):
        file = lab.out / f"prompts-{length}.jsonl"
        write(file, as_lines(prompts(asked, lm.vocabulary, text, length, given.max_new_tokens)))
        whole = {"suite": f"prompts:{file}", "limit": None, "langs": None, "tasks": None}
        stages[str(length)] = {"methods": methods, **whole}
    lab.show(report(lab.races(stages), limit, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
